"""Change events of one schema as JSON that has only what a plain stretch is read for, compiled.

Of a source block and a transaction these are the fields that a position has, and of the images
those of each key's newest event. An older event of the same key only says which operation it is,
where it stands and which images it has: they are written as objects without members. Keys are
compared as they are written: those that look different are taken for different ones, which is
slower and right.
"""

from typing import Any

import numpy as np

from lakemark.converters.avro.compiled.scan_datums import BAD, DEEPEST, FULL, datum, number, put
from lakemark.converters.avro.program import NULL, RECORD, STRING, UNION
from lakemark.converters.compiler import Bytes, Offsets, Whole, compiled

OTHER, BEFORE, AFTER, SOURCE, OP, TRANSACTION = range(6)
"""The parts of an envelope: what its fields are."""

_COMMA, _OPEN, _CLOSE = map(ord, ",{}")
_D = ord("d")


def _text(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8)


_NULL_TEXT, _EMPTY = map(_text, (b"null", b"{}"))
_TO_BEFORE, _TO_AFTER, _TO_SOURCE = map(_text, (b'{"before":', b',"after":', b',"source":'))
_TO_TRANSACTION, _TO_OP, _TO_END = map(_text, (b',"transaction":', b',"op":"', b'"}'))


@compiled
def newest(data: Bytes, offsets: Offsets, events: Any, last: Any) -> None:
    """Find the events of which no newer one has the same key.

    Args:
        data, offsets: of an Arrow array of keys.
        events: True for those records that are events.
        last: gets False for those that have a newer one, as far as it was noticed.
    """
    slots = 16
    while slots < 2 * events.size:
        slots *= 2
    table = np.full(slots, -1, np.int64)
    for event in range(events.size - 1, -1, -1):
        last[event] = True
        if not events[event]:
            continue
        at = offsets[event]
        size = offsets[event + 1] - at
        mixed = np.uint64(14695981039346656037)  # FNV-1a
        for i in range(size):
            mixed = (mixed ^ np.uint64(data[at + i])) * np.uint64(1099511628211)
        slot = np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(slots - 1))
        newer = table[slot]
        table[slot] = event
        if newer >= 0 and offsets[newer + 1] - offsets[newer] == size:
            alike = True
            for i in range(size):
                if data[at + i] != data[offsets[newer] + i]:
                    alike = False
                    break
            last[event] = not alike


@compiled
def parts(
    data: Bytes,
    begins: Whole,
    ends: Whole,
    code: Whole,
    links: Whole,
    texts: Bytes,
    roles: Whole,
    spans: Whole,
    op: Bytes,
    doubles: Any,
    holes: Whole,
    state: Whole,
) -> bool:
    """Find the parts of change events.

    Args:
        data, begins, ends: where they are.
        code, links, texts: of the envelope's program.
        roles: what each of its fields is.
        spans: gets where the parts begin.
        op: gets the letters of the operations.
        doubles, holes, state: see `datum`; they get nothing.

    Returns:
        False if one of them is no such event.
    """
    stack = np.empty((DEEPEST, 2), np.int64)
    nothing = np.empty(0, np.uint8)
    first = code[0, 1]
    for event in range(begins.size):
        at, end = begins[event], ends[event]
        for field in range(roles.size):
            spans[event, roles[field]] = at
            node = links[first + field, 0]
            begin = at
            at, _ = datum(
                data, at, end, code, links, texts, node, nothing, 0, doubles, holes, state, stack
            )
            if at < 0:
                return False
            if roles[field] == OP:
                if code[node, 0] != STRING or at - begin != 2:
                    return False
                op[event] = data[begin + 1]
        if at != end:
            return False
    return True


@compiled
def _value(data: Bytes, at: int, end: int, code: Whole, links: Whole, node: int) -> tuple[Any, Any]:
    """The type of a value that may stand in a union, and where it begins; it was read before."""
    if code[node, 0] == UNION:
        branch, at = number(data, at, end)
        node = links[code[node, 1] + branch, 0]
    return node, at


@compiled
def _brief(
    data: Bytes,
    at: int,
    end: int,
    code: Whole,
    links: Whole,
    texts: Bytes,
    wanted: Any,
    node: int,
    out: Bytes,
    to: int,
    doubles: Any,
    holes: Whole,
    state: Whole,
    stack: Whole,
    nothing: Bytes,
) -> Any:
    """Past the JSON of a record that has only the fields that are wanted; that of null."""
    node, at = _value(data, at, end, code, links, node)
    if code[node, 0] != RECORD:
        return put(out, to, _NULL_TEXT, 0, 4) if code[node, 0] == NULL else BAD
    if to + 2 > out.size:
        return FULL
    out[to] = _OPEN
    to += 1
    some = False
    first = code[node, 1]
    for link in range(first, first + code[node, 2]):
        if wanted[link]:
            # The name, without the brace or the comma before it.
            if to == out.size:
                return FULL
            out[to] = _COMMA
            to = put(out, to + some, texts, links[link, 1] + 1, links[link, 2] - 1)
            if to < 0:
                return FULL
            some = True
            at, to = datum(
                data, at, end, code, links, texts, links[link, 0], out, to, doubles, holes, state,
                stack,
            )  # fmt: skip
        else:
            at, _ = datum(
                data, at, end, code, links, texts, links[link, 0], nothing, 0, doubles, holes,
                state, stack,
            )  # fmt: skip
        if at < 0:
            return at
    if to == out.size:
        return FULL
    out[to] = _CLOSE
    return to + 1


@compiled
def _image(
    data: Bytes,
    at: int,
    end: int,
    code: Whole,
    links: Whole,
    texts: Bytes,
    node: int,
    out: Bytes,
    to: int,
    doubles: Any,
    holes: Whole,
    state: Whole,
    stack: Whole,
    whole: Any,
) -> Any:
    """Past the JSON of an image; without its members unless it is wanted as a whole."""
    node, at = _value(data, at, end, code, links, node)
    if code[node, 0] == NULL:
        return put(out, to, _NULL_TEXT, 0, 4)
    if not whole:
        return put(out, to, _EMPTY, 0, 2)
    at, to = datum(data, at, end, code, links, texts, node, out, to, doubles, holes, state, stack)
    return at if at < 0 else to


@compiled
def briefs(
    data: Bytes,
    ends: Whole,
    code: Whole,
    links: Whole,
    texts: Bytes,
    nodes: Whole,
    wanted: Any,
    spans: Whole,
    op: Bytes,
    last: Any,
    begun: int,
    out: Bytes,
    offsets: Whole,
    doubles: Any,
    holes: Whole,
    state: Whole,
) -> int:
    """The JSON of change events, one behind the other.

    Args:
        data, ends: where they are.
        code, links, texts: of the envelope's program.
        nodes: the types of its parts, -1 for those that are left out.
        wanted: True for the links of fields that are wanted, of source block and transaction.
        spans, op: see `parts`.
        last: False for those that have a newer event.
        begun: the first one to read; all before it are in `out`.
        out: gets the JSON.
        offsets: gets where the JSON of each begins, and the end of the last; has that of `begun`.
        doubles, holes, state: see `datum`.

    Returns:
        The number of those that are read: where there was no room, one comes next; `BAD` where one
        is no event.
    """
    stack = np.empty((DEEPEST, 2), np.int64)
    nothing = np.empty(0, np.uint8)
    for event in range(begun, ends.size):
        kept = state[0]
        end = ends[event]
        deleted = op[event] == _D
        to = put(out, offsets[event], _TO_BEFORE, 0, _TO_BEFORE.size)
        if to >= 0:
            to = _image(
                data, spans[event, BEFORE], end, code, links, texts, nodes[BEFORE], out, to,
                doubles, holes, state, stack, deleted and last[event],
            )  # fmt: skip
        if to >= 0:
            to = put(out, to, _TO_AFTER, 0, _TO_AFTER.size)
        if to >= 0:
            to = _image(
                data, spans[event, AFTER], end, code, links, texts, nodes[AFTER], out, to,
                doubles, holes, state, stack, not deleted and last[event],
            )  # fmt: skip
        if to >= 0:
            to = put(out, to, _TO_SOURCE, 0, _TO_SOURCE.size)
        if to >= 0:
            to = _brief(
                data, spans[event, SOURCE], end, code, links, texts, wanted, nodes[SOURCE], out,
                to, doubles, holes, state, stack, nothing,
            )  # fmt: skip
        if to >= 0 and nodes[TRANSACTION] >= 0:
            to = put(out, to, _TO_TRANSACTION, 0, _TO_TRANSACTION.size)
            if to >= 0:
                to = _brief(
                    data, spans[event, TRANSACTION], end, code, links, texts, wanted,
                    nodes[TRANSACTION], out, to, doubles, holes, state, stack, nothing,
                )  # fmt: skip
        if to >= 0:
            to = put(out, to, _TO_OP, 0, _TO_OP.size)
        if to >= 0 and to + 1 > out.size:
            to = FULL
        if to >= 0:
            out[to] = op[event]
            to = put(out, to + 1, _TO_END, 0, _TO_END.size)
        if to == BAD:
            return BAD
        if to < 0:
            state[0] = kept
            return event
        offsets[event + 1] = to
    return ends.size
