"""Datums of Avro as the JSON that Connect's converter writes of the same values, compiled.

One loop follows the instructions of any schema (`instructions`). It is one function, as a call that
takes arrays takes longer than most values do. Nothing here makes a Python object, and nothing reads
past a datum's end, whatever the bytes are. Texts are copied as they are: who reads the JSON finds
those that are no UTF-8. Decimals, bytes and fixed are base64, as Connect has them. Numbers with a
fraction stand as a zero at first: their places are noted, and `filled` puts them in.
"""

from typing import Any, Final

import numpy as np

from lakemark.converters.avro.instructions import (
    ARGUMENT,
    BEGIN,
    CALL,
    COUNT,
    END,
    ENTRIES,
    FIRST,
    KIND,
    NEXT,
    NEXT_ITEM,
    NUMBERED,
    OP,
    PAST_BOOLEAN,
    PAST_ENUM,
    PAST_FIXED,
    PAST_INT,
    PAST_SIZED,
    PUT_BOOLEAN,
    PUT_BYTES,
    PUT_DOUBLE,
    PUT_ENUM,
    PUT_FIXED,
    PUT_FLOAT,
    PUT_INT,
    PUT_LONG,
    PUT_STRING,
    PUT_UNLESS,
    RETURN,
    SIZE,
    TEXT,
    UNION_OF,
    WRITTEN,
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
FRACTIONS: Final = 0
"""The place in `state` of the number of numbers with a fraction."""

_QUOTE, _BACKSLASH, _COMMA, _COLON = map(ord, '"\\,:')
_MINUS, _ZERO, _PAD = map(ord, "-0=")
_SPACE: Final = ord(" ")
_DIGITS: Final = 19  # of a whole number, at most
_WIDEST: Final = 6  # bytes of an escaped one
_SHORT: Final = 24  # bytes that a value has at most, or beside those of its text
_MOST: Final = (1 << 31) - 1
_MORE: Final = 0x80  # in a byte of a number: another one follows
_BITS: Final = np.uint64(70)  # of a number's bytes, at most


def _text(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8)


_TRUE, _FALSE = map(_text, (b"true", b"false"))
_HEX: Final = _text(b"0123456789abcdef")
_ESCAPE: Final = _text(b"\\u00")
_LETTERS: Final = _text(b"00000000btn0fr000000000000000000")
"""Behind the backslash, of the bytes below a space that have a letter."""
_BASE64: Final = _text(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
_TENS: Final = np.array([10**power for power in range(_DIGITS)], np.uint64)


@compiled
def _number(data: Bytes, at: int, end: int) -> tuple[Any, int]:
    """A whole number, and past it; -1 where there is none."""
    bits, shift, byte = np.uint64(0), np.uint64(0), np.uint64(_MORE)
    while at < end and byte >= np.uint64(_MORE) and shift < _BITS:
        byte = np.uint64(data[np.uint64(at)])
        at += 1
        bits |= (byte & np.uint64(0x7F)) << shift
        shift += np.uint64(7)
    if byte >= np.uint64(_MORE) or (shift == _BITS and byte > np.uint64(1)):
        at = -1
    return np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1)), at


@compiled
def _block(data: Bytes, at: int, end: int) -> tuple[Any, int]:
    """The number of items of a block, and where its first one begins; -1 where there is none."""
    count, at = _number(data, at, end)
    if at >= 0 and count < 0:
        count = -count
        size, at = _number(data, at, end)
        if at >= 0 and (size < 0 or size > end - at):
            return count, -1
    return count, -1 if count < 0 else at


@compiled
def _put_number(out: Bytes, to: int, value: int) -> int:
    """Past a whole number; there is room."""
    left = np.uint64(value)
    if value < 0:
        out[to] = _MINUS
        to += 1
        left = np.uint64(0) - left
    digits = 1
    while digits < _DIGITS and left >= _TENS[digits]:
        digits += 1
    last = np.uint64(to + digits - 1)
    for i in range(np.uint64(digits)):
        out[last - i] = _ZERO + left % np.uint64(10)
        left //= np.uint64(10)
    return to + digits


@compiled
def _put_text(out: Bytes, to: int, data: Bytes, at: int, end: int) -> int:
    """Past a text; there is room."""
    out[to] = _QUOTE
    to += 1
    for i in range(np.uint64(at), np.uint64(end)):
        byte = data[i]
        if byte >= _SPACE and byte != _QUOTE and byte != _BACKSLASH:
            out[np.uint64(to)] = byte
            to += 1
        elif byte >= _SPACE or _LETTERS[byte] != _ZERO:
            out[to] = _BACKSLASH
            out[to + 1] = byte if byte >= _SPACE else _LETTERS[byte]
            to += 2
        else:
            for k in range(_ESCAPE.size):
                out[to + k] = _ESCAPE[k]
            out[to + 4] = _HEX[byte >> 4]
            out[to + 5] = _HEX[byte & 15]
            to += _WIDEST
    out[to] = _QUOTE
    return to + 1


@compiled
def _put_base64(out: Bytes, to: int, data: Bytes, at: int, end: int) -> int:
    """Past bytes; there is room."""
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
def _put_boolean(out: Bytes, to: int, truth: Any) -> int:
    """Past a truth value; there is room."""
    text = _TRUE if truth else _FALSE
    for i in range(text.size):
        out[to + i] = text[i]
    return to + text.size


@compiled
def _bits(data: Bytes, at: int, size: int) -> Any:
    """Bytes as a number without a sign, the lowest first."""
    found = np.uint64(0)
    for i in range(size):
        found |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return found


@compiled
def datums(
    data: Bytes,
    begins: Whole,
    ends: Whole,
    entries: Whole,
    code: Whole,
    links: Whole,
    texts: Bytes,
    begun: int,
    out: Bytes,
    offsets: Whole,
    fractions: Any,
    holes: Whole,
    state: Whole,
    bad: Any,
) -> int:
    """Write the JSON of datums of one schema, one behind the other.

    Args:
        data, begins, ends: where they are.
        entries: the first instruction of each.
        code, links, texts: see `Instructions`.
        begun: the first one to read; all before it are in `out`.
        out: gets the JSON.
        offsets: gets where the JSON of each begins, and the end of the last; has that of `begun`.
        fractions, holes: get the numbers with a fraction, as bits, and twice the place in `out` of
            the zero of each, one more for those of four bytes, which have fewer digits.
        state: has the number of those.
        bad: gets True for those that are no datums; they have no JSON.

    Returns:
        The number of those that are read: where there was no room, one comes next.
    """
    stack = np.empty((DEEPEST, 2), np.int64)
    room = out.size
    for one in range(begun, begins.size):
        at, end, to = begins[one], ends[one], offsets[one]
        step = np.uint64(entries[one])
        items, depth, kept = end - at + ITEMS, 0, state[FRACTIONS]
        while True:
            op = code[step, OP]
            size = code[step, SIZE]
            if room - to < size + _SHORT:
                to = FULL
                break
            here, there = np.uint64(to), np.uint64(code[step, TEXT])
            for i in range(np.uint64(size)):
                out[here + i] = texts[there + i]
            to += size
            value: Any = np.int64(0)
            if op <= NUMBERED:
                if at < end and data[np.uint64(at)] < _MORE:
                    value = np.int64(data[np.uint64(at)])
                    value = (value >> 1) ^ -(value & 1)
                    at += 1
                else:
                    value, at = _number(data, at, end)
                    if at < 0:
                        to = BAD
                        break
            following: Any = code[step, NEXT]
            if op == UNION_OF:
                if value < 0 or value >= code[step, COUNT]:
                    to = BAD
                    break
                following = links[code[step, FIRST] + value, 0]
            elif op == PAST_SIZED:
                if value < 0 or value > end - at:
                    to = BAD
                    break
                at += value
            elif op == PUT_LONG or op == PUT_INT or op == PAST_INT:
                if op != PUT_LONG and (value < -_MOST - 1 or value > _MOST):
                    to = BAD
                    break
                if op != PAST_INT:
                    to = _put_number(out, to, value)
            elif op == PUT_STRING or op == PUT_UNLESS or op == PUT_BYTES:
                if value < 0 or value > end - at:
                    to = BAD
                    break
                if op == PUT_UNLESS and value == 1 and data[at] == code[step, KIND]:
                    following = code[step, ARGUMENT]
                    at, to, depth = begins[one], offsets[one], 0
                    items = end - at + ITEMS
                    state[FRACTIONS] = kept
                else:
                    if room - to < _WIDEST * value + _SHORT:
                        to = FULL
                        break
                    if op == PUT_BYTES:
                        to = _put_base64(out, to, data, at, at + value)
                    else:
                        to = _put_text(out, to, data, at, at + value)
                    at += value
            elif op == PAST_ENUM or op == PUT_ENUM:
                if value < 0 or value >= code[step, COUNT]:
                    to = BAD
                    break
                if op == PUT_ENUM:
                    first, size = links[code[step, FIRST] + value]
                    if room - to < size:
                        to = FULL
                        break
                    for i in range(size):
                        out[to + i] = texts[first + i]
                    to += size
            elif op == PAST_BOOLEAN or op == PUT_BOOLEAN:
                if at == end or data[at] > 1:
                    to = BAD
                    break
                if op == PUT_BOOLEAN:
                    to = _put_boolean(out, to, data[at])
                at += 1
            elif PAST_FIXED <= op <= PUT_DOUBLE:
                size = code[step, ARGUMENT]
                if end - at < size:
                    to = BAD
                    break
                if op == PUT_FIXED:
                    if room - to < _WIDEST * size + _SHORT:
                        to = FULL
                        break
                    to = _put_base64(out, to, data, at, at + size)
                elif op != PAST_FIXED:
                    count = state[FRACTIONS]
                    if count == holes.size:
                        to = FULL
                        break
                    fractions[count] = _bits(data, at, size)
                    holes[count] = 2 * to + (op == PUT_FLOAT)
                    state[FRACTIONS] = count + 1
                    out[to] = _ZERO
                    to += 1
                at += size
            elif op == CALL or op == BEGIN:
                if depth == DEEPEST:
                    to = BAD
                    break
                # Where to go on after a routine, or the items left of a block; whether one came.
                stack[depth, 0], stack[depth, 1] = following if op == CALL else 0, 0
                following = code[step, ARGUMENT] if op == CALL else following
                depth += 1
            elif op == RETURN:
                depth -= 1
                following = stack[depth, 0]
            elif op == NEXT_ITEM:
                left, some = stack[depth - 1]
                kind = code[step, KIND]
                if left == 0:
                    left, at = _block(data, at, end)
                    if at < 0 or left > items:
                        to = BAD
                        break
                    items -= left
                if left == 0:
                    depth -= 1
                    following = code[step, ARGUMENT]
                else:
                    stack[depth - 1, 0], stack[depth - 1, 1] = left - 1, 1
                    if some and kind & WRITTEN:
                        out[to] = _COMMA
                        to += 1
                    if kind & ENTRIES:
                        size, at = _number(data, at, end)
                        if at < 0 or size < 0 or size > end - at:
                            to = BAD
                            break
                        if kind & WRITTEN:
                            if room - to < _WIDEST * size + _SHORT:
                                to = FULL
                                break
                            to = _put_text(out, to, data, at, at + size)
                            out[to] = _COLON
                            to += 1
                        at += size
            elif op == END:
                to = to if at == end else BAD
                break
            step = np.uint64(following)
        if to < 0:
            state[FRACTIONS] = kept
        if to == FULL:
            return one
        bad[one] = to == BAD
        offsets[one + 1] = max(to, offsets[one])
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
