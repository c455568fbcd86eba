"""Datums of Avro as the JSON that Connect's converter writes of the same values, compiled.

One loop follows the program of any schema (`program`); nothing here makes a Python object, and
nothing reads past a datum's end, whatever the bytes are. Texts are copied as they are: who reads
the JSON finds those that are no UTF-8. Decimals, bytes and fixed are base64, as Connect has them.
Numbers with a fraction stand as a zero at first: their places are noted, and `filled` puts them in.
"""

from typing import Any, Final

import numpy as np

from lakemark.converters.avro.program import (
    ARRAY,
    BOOLEAN,
    BYTES,
    DOUBLE,
    ENUM,
    FIXED,
    FLOAT,
    INT,
    LONG,
    MAP,
    NULL,
    RECORD,
    STRING,
    UNION,
)
from lakemark.converters.compiler import Bytes, Whole, compiled

BAD: Final = -1
"""The bytes are no datum of the schema."""
FULL: Final = -2
"""There is no room for what comes."""
DEEPEST: Final = 64
"""So many values may stand in each other."""
ITEMS: Final = 1 << 16
"""So many items more than the datum has bytes are read: items may have none."""
DOUBLES: Final = 0
"""The place in `state` of the number of numbers with a fraction."""

_QUOTE, _BACKSLASH, _COMMA, _COLON = map(ord, '"\\,:')
_OPEN, _CLOSE, _LIST, _END, _MINUS, _ZERO, _PAD = map(ord, "{}[]-0=")
_SPACE: Final = ord(" ")
_NUMBER: Final = 20  # digits and a sign, at most
_WIDEST: Final = 6  # bytes of an escaped one
_MOST: Final = (1 << 31) - 1


def _text(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8)


_NULL_TEXT, _TRUE, _FALSE, _EMPTY = map(_text, (b"null", b"true", b"false", b"{}"))
_HEX: Final = _text(b"0123456789abcdef")
_ESCAPE: Final = _text(b"\\u00")
_LETTERS: Final = _text(b"00000000btn0fr000000000000000000")
"""Behind the backslash, of the bytes below a space that have a letter."""
_BASE64: Final = _text(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")


@compiled
def number(data: Bytes, at: int, end: int) -> tuple[Any, int]:
    """A whole number, and past it."""
    found = np.uint64(0)
    shift = np.uint64(0)
    while at < end:
        byte = np.uint64(data[at])
        at += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            return np.int64(0), -1
        found |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            half = np.int64(found >> np.uint64(1))
            return (half ^ -np.int64(found & np.uint64(1))), at
        shift += np.uint64(7)
        if shift > np.uint64(63):
            break
    return np.int64(0), -1


@compiled
def _block(data: Bytes, at: int, end: int) -> tuple[Any, int]:
    """The number of items of a block, and where its first one begins."""
    count, at = number(data, at, end)
    if at >= 0 and count < 0:
        count = -count
        size, at = number(data, at, end)
        if at >= 0 and (size < 0 or size > end - at):
            return count, -1
    return count, -1 if count < 0 else at


@compiled
def _past(data: Bytes, at: int, end: int, kind: int, size: int, links: int) -> int:
    """Past a value that has no others in it."""
    if kind == NULL:
        return at
    if kind == BOOLEAN:
        return at + 1 if at < end and data[at] <= 1 else BAD
    if kind == FLOAT:
        return at + 4 if end - at >= 4 else BAD
    if kind == DOUBLE:
        return at + 8 if end - at >= 8 else BAD
    if kind == FIXED:
        return at + size if end - at >= size else BAD
    count, at = number(data, at, end)
    if at < 0:
        return BAD
    if kind == INT:
        return at if -_MOST - 1 <= count <= _MOST else BAD
    if kind == LONG:
        return at
    if kind == ENUM:
        return at if 0 <= count < links else BAD
    return at + count if 0 <= count <= end - at else BAD


@compiled
def put(out: Bytes, to: int, text: Bytes, begin: int, size: int) -> int:
    """Past a piece of `text` that is put here; `FULL` where there is no room."""
    if out.size - to < size:
        return FULL
    for i in range(size):
        out[to + i] = text[begin + i]
    return to + size


@compiled
def _put_number(out: Bytes, to: int, value: int) -> int:
    if out.size - to < _NUMBER:
        return FULL
    left = np.uint64(value)
    if value < 0:
        out[to] = _MINUS
        to += 1
        left = np.uint64(0) - left
    digits = 1
    more = left // np.uint64(10)
    while more:
        digits += 1
        more //= np.uint64(10)
    for i in range(digits):
        out[to + digits - 1 - i] = _ZERO + left % np.uint64(10)
        left //= np.uint64(10)
    return to + digits


@compiled
def _put_text(out: Bytes, to: int, data: Bytes, at: int, end: int) -> int:
    if out.size - to < _WIDEST * (end - at) + 2:
        return FULL
    out[to] = _QUOTE
    to += 1
    for i in range(at, end):
        byte = data[i]
        if byte == _QUOTE or byte == _BACKSLASH:
            out[to] = _BACKSLASH
            out[to + 1] = byte
            to += 2
        elif byte < _SPACE and _LETTERS[byte] != _ZERO:
            out[to] = _BACKSLASH
            out[to + 1] = _LETTERS[byte]
            to += 2
        elif byte < _SPACE:
            for k in range(_ESCAPE.size):
                out[to + k] = _ESCAPE[k]
            out[to + 4] = _HEX[byte >> 4]
            out[to + 5] = _HEX[byte & 15]
            to += _WIDEST
        else:
            out[to] = byte
            to += 1
    out[to] = _QUOTE
    return to + 1


@compiled
def _put_base64(out: Bytes, to: int, data: Bytes, at: int, end: int) -> int:
    if out.size - to < (end - at + 2) // 3 * 4 + 2:
        return FULL
    out[to] = _QUOTE
    to += 1
    while at < end:
        some = min(3, end - at)
        bits = np.int64(data[at]) << 16
        if some > 1:
            bits |= np.int64(data[at + 1]) << 8
        if some > 2:
            bits |= np.int64(data[at + 2])
        for i in range(4):
            out[to + i] = _BASE64[bits >> (18 - 6 * i) & 63] if i <= some else _PAD
        at += 3
        to += 4
    out[to] = _QUOTE
    return to + 1


@compiled
def _put_scalar(
    data: Bytes,
    at: int,
    past: int,
    kind: int,
    first: int,
    links: Whole,
    texts: Bytes,
    out: Bytes,
    to: int,
    doubles: Any,
    holes: Whole,
    state: Whole,
) -> Any:
    """The value between two places, which is one that has no others in it."""
    if kind == NULL:
        return put(out, to, _NULL_TEXT, 0, 4)
    if kind == BOOLEAN:
        return put(out, to, _TRUE, 0, 4) if data[at] else put(out, to, _FALSE, 0, 5)
    if kind == INT or kind == LONG:
        value, _ = number(data, at, past)
        return _put_number(out, to, value)
    if kind == STRING or kind == BYTES:
        _, at = number(data, at, past)
        if kind == STRING:
            return _put_text(out, to, data, at, past)
        return _put_base64(out, to, data, at, past)
    if kind == FIXED:
        return _put_base64(out, to, data, at, past)
    if kind == ENUM:
        which, at = number(data, at, past)
        return put(out, to, texts, links[first + which, 1], links[first + which, 2])
    count = state[DOUBLES]
    if count >= holes.size:
        return FULL
    if to == out.size:
        return FULL
    raw = data[at:past].copy()
    doubles[count] = raw.view(np.float64)[0] if kind == DOUBLE else raw.view(np.float32)[0]
    holes[count] = 2 * to + (kind == FLOAT)
    state[DOUBLES] = count + 1
    out[to] = _ZERO
    return to + 1


@compiled
def datum(
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
) -> tuple[int, int]:
    """Past a datum, and past its JSON.

    Args:
        data, at, end: where it is.
        code, links, texts: of its program.
        node: its type.
        out, to: get the JSON, and where; an `out` without room for a byte gets nothing.
        doubles, holes: get the numbers with a fraction, and twice the place in `out` of the zero
            of each, one more for those of four bytes, which have fewer digits.
        state: has the number of those.
        stack: a row for each of the `DEEPEST` values that may stand in each other.

    Returns:
        `BAD` first where this is no such datum, `FULL` where there is no room.
    """
    quiet = out.size == 0
    depth = 0
    items = end - at + ITEMS
    while True:
        kind = code[node, 0]
        first = code[node, 1]
        if kind == UNION:
            branch, at = number(data, at, end)
            if at < 0 or branch < 0 or branch >= code[node, 2]:
                return BAD, to
            node = links[first + branch, 0]
            continue
        if kind >= RECORD and not (kind == RECORD and code[node, 2] == 0):
            if depth == DEEPEST:
                return BAD, to
            stack[depth, 0] = node
            stack[depth, 1] = 0
            depth += 1
            if kind != RECORD and not quiet:
                if to == out.size:
                    return FULL, to
                out[to] = _LIST if kind == ARRAY else _OPEN
                to += 1
        elif kind == RECORD:
            if not quiet:
                to = put(out, to, _EMPTY, 0, 2)
                if to < 0:
                    return FULL, to
        else:
            past = _past(data, at, end, kind, code[node, 3], code[node, 2])
            if past < 0:
                return BAD, to
            if not quiet:
                to = _put_scalar(
                    data, at, past, kind, first, links, texts, out, to, doubles, holes, state
                )
                if to < 0:
                    return FULL, to
            at = past
        # A value has ended, or one that has others in it has begun: what comes next?
        while depth:
            node = stack[depth - 1, 0]
            first = code[node, 1]
            kind = code[node, 0]
            done = stack[depth - 1, 1]
            if kind == RECORD:
                if done < code[node, 2]:
                    stack[depth - 1, 1] = done + 1
                    if not quiet:
                        to = put(out, to, texts, links[first + done, 1], links[first + done, 2])
                        if to < 0:
                            return FULL, to
                    node = links[first + done, 0]
                    break
            else:
                # Twice the items that are left of the block, one more after the first of all.
                left = done >> 1
                if left == 0:
                    left, at = _block(data, at, end)
                    if at < 0 or left > items:
                        return BAD, to
                    items -= left
                if left > 0:
                    stack[depth - 1, 1] = 2 * (left - 1) + 1
                    if done & 1 and not quiet:
                        if to == out.size:
                            return FULL, to
                        out[to] = _COMMA
                        to += 1
                    if kind == MAP:
                        size, at = number(data, at, end)
                        if at < 0 or size < 0 or size > end - at:
                            return BAD, to
                        if not quiet:
                            to = _put_text(out, to, data, at, at + size)
                            if to < 0 or to == out.size:
                                return FULL, to
                            out[to] = _COLON
                            to += 1
                        at += size
                    node = links[first, 0]
                    break
            depth -= 1
            if not quiet:
                if to == out.size:
                    return FULL, to
                out[to] = _END if kind == ARRAY else _CLOSE
                to += 1
        else:
            return at, to


@compiled
def datums(
    data: Bytes,
    begins: Whole,
    ends: Whole,
    code: Whole,
    links: Whole,
    texts: Bytes,
    begun: int,
    out: Bytes,
    offsets: Whole,
    doubles: Any,
    holes: Whole,
    state: Whole,
    bad: Any,
) -> int:
    """The JSON of datums of one schema, one behind the other.

    Args:
        data, begins, ends: where they are.
        code, links, texts: of their program.
        begun: the first one to read; all before it are in `out`.
        out: gets the JSON.
        offsets: gets where the JSON of each begins, and the end of the last; has that of `begun`.
        doubles, holes, state: see `datum`.
        bad: gets True for those that are no datums; they have no JSON.

    Returns:
        The number of those that are read: where there was no room, one comes next.
    """
    stack = np.empty((DEEPEST, 2), np.int64)
    for one in range(begun, begins.size):
        kept = state[DOUBLES]
        at, to = datum(
            data, begins[one], ends[one], code, links, texts, 0, out, offsets[one], doubles, holes,
            state, stack,
        )  # fmt: skip
        if at == FULL:
            state[DOUBLES] = kept
            return one
        bad[one] = at != ends[one]
        if bad[one]:
            state[DOUBLES] = kept
            to = offsets[one]
        offsets[one + 1] = to
    return begins.size


@compiled
def filled(
    text: Bytes, offsets: Whole, holes: Whole, pieces: Bytes, ends: Whole, out: Bytes
) -> None:
    """Put numbers with a fraction where zeros stand for them.

    Args:
        text, offsets: see `datums`; the latter are those of `out` afterwards.
        holes: the places of the zeros, rising.
        pieces, ends: the JSON of the numbers, one behind the other, and where each ends.
        out: gets all; it has the size for it.
    """
    at = to = piece = record = 0
    for hole in range(holes.size + 1):
        last = hole == holes.size
        upto = offsets[offsets.size - 1] if last else holes[hole]
        begun = to - at
        for i in range(at, upto):
            out[begun + i] = text[i]
        to += upto - at
        at = upto + 1
        if not last:
            for i in range(piece, ends[hole]):
                out[to + i - piece] = pieces[i]
            to += ends[hole] - piece
            piece = ends[hole]
        while record < offsets.size and offsets[record] <= upto:
            offsets[record] += begun
            record += 1
