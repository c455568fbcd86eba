r"""JSON in Arrow's buffers, compiled: where values end, and what numbers they are.

Nothing here makes a Python object. The functions get the bytes, where to begin and where the bytes
end, and return where they came to, or -1 for what they leave to the general way: what is no JSON,
white space between tokens, escapes from \ud000 on (surrogates), nesting beyond 60 levels, long
numbers.

How they are compiled says `compiler`.
"""

from typing import Any, Final

import numpy as np

from lakemark.converters.compiler import Bytes, compiled

QUOTE, BACKSLASH, COLON, COMMA = map(ord, '"\\:,')
OPEN, CLOSE, LIST, END = map(ord, "{}[]")
MINUS, PLUS, POINT, ZERO, NINE = map(ord, "-+.09")
SMALL_U, SMALL_N, SMALL_T = map(ord, "unt")
_SMALL_E, _LARGE_E, _SMALL_D, _LARGE_D = map(ord, "eEdD")
_SPACE: Final = ord(" ")
_DEEPEST: Final = 60
DIGITS: Final = 18
"""So many fit 64 bits for sure."""


def named(text: bytes) -> Bytes:
    """The text as an array."""
    return np.frombuffer(text, np.uint8)


_TRUE, _FALSE, _NULL = map(named, (b"true", b"false", b"null"))
_ESCAPED: Final = named(b'"\\/bfnrt')
_HEX: Final = named(b"0123456789abcdefABCDEF")


@compiled
def stands(data: Bytes, at: int, end: int, text: Bytes) -> bool:
    """Say whether `text` stands here."""
    if at + text.size > end:
        return False
    for i in range(text.size):
        if data[at + i] != text[i]:
            return False
    return True


@compiled
def equals(data: Bytes, at: int, size: int, text: Bytes) -> bool:
    """Say whether these bytes are `text`."""
    if size != text.size:
        return False
    for i in range(size):
        if data[at + i] != text[i]:
            return False
    return True


@compiled
def differ(data: Bytes, at: int, text: Bytes) -> bool:
    """Say whether other bytes than a long `text` stand here; there are as many."""
    found = np.uint8(0)
    here = data[at : at + text.size]
    for i in range(text.size):  # to the end: so the compiler takes many at a time
        found |= here[i] ^ text[i]
    return bool(found)


@compiled
def _one_of(byte: int, some: Bytes) -> bool:
    for one in some:
        if byte == one:
            return True
    return False


@compiled
def string(data: Bytes, at: int, end: int) -> int:
    """Past the closing quote of the string whose opening quote is before `at`."""
    while at < end:
        c = data[at]
        if c == QUOTE:
            return at + 1
        if c < _SPACE:
            return -1
        if c == BACKSLASH:
            at += 1
            if at >= end:
                return -1
            if data[at] == SMALL_U:
                if at + 4 >= end or data[at + 1] == _SMALL_D or data[at + 1] == _LARGE_D:
                    return -1
                for i in range(1, 5):
                    if not _one_of(data[at + i], _HEX):
                        return -1
                at += 4
            elif not _one_of(data[at], _ESCAPED):
                return -1
        at += 1
    return -1


@compiled
def bare(data: Bytes, at: int, end: int) -> int:
    """The closing quote of a string without escapes whose opening quote is before `at`."""
    while at < end:
        c = data[at]
        if c == QUOTE:
            return at
        if c < _SPACE or c == BACKSLASH:
            return -1
        at += 1
    return -1


@compiled
def name(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """The beginning and the size of a member's name; its value begins two bytes behind it."""
    if at >= end or data[at] != QUOTE:
        return 0, -1
    begin = at + 1
    past = bare(data, begin, end)
    if past < 0 or past + 2 >= end or data[past + 1] != COLON:
        return 0, -1
    return begin, past - begin


@compiled
def _past_digits(data: Bytes, at: int, end: int) -> int:
    begin = at
    while at < end and ZERO <= data[at] <= NINE:
        at += 1
    return at if at > begin else -1


@compiled
def number(data: Bytes, at: int, end: int) -> int:
    """Past a number."""
    if at < end and data[at] == MINUS:
        at += 1
    begin = at
    at = _past_digits(data, at, end)
    if at < 0 or (data[begin] == ZERO and at > begin + 1):
        return -1
    if at < end and data[at] == POINT:
        at = _past_digits(data, at + 1, end)
        if at < 0:
            return -1
    if at < end and (data[at] == _SMALL_E or data[at] == _LARGE_E):
        at += 1
        if at < end and (data[at] == PLUS or data[at] == MINUS):
            at += 1
        at = _past_digits(data, at, end)
    return at


@compiled
def literal(data: Bytes, at: int, end: int) -> int:
    """Past true, false or null."""
    if stands(data, at, end, _NULL) or stands(data, at, end, _TRUE):
        return at + 4
    return at + 5 if stands(data, at, end, _FALSE) else -1


@compiled
def value(data: Bytes, at: int, end: int) -> int:
    """Past any value."""
    depth = 0
    objects = np.uint64(0)  # a bit for each level that is open, the lowest for the innermost
    one = np.uint64(1)
    while True:
        if at >= end:
            return -1
        c = data[at]
        opened = False
        if c == QUOTE:
            at = string(data, at + 1, end)
        elif c == OPEN or c == LIST:
            if depth == _DEEPEST:
                return -1
            depth += 1
            objects = (objects << one) | np.uint64(c == OPEN)
            at += 1
            opened = not (at < end and data[at] == (CLOSE if c == OPEN else END))
        elif c == MINUS or ZERO <= c <= NINE:
            at = number(data, at, end)
        else:
            at = literal(data, at, end)
        if at < 0:
            return -1
        while not opened:  # what may come after a value
            if depth == 0:
                return at
            if at >= end:
                return -1
            c = data[at]
            at += 1
            if c == COMMA:
                opened = True
            elif c == (CLOSE if objects & one else END):
                depth -= 1
                objects >>= one
            else:
                return -1
        if objects & one:
            if at >= end or data[at] != QUOTE:
                return -1
            at = string(data, at + 1, end)
            if at < 0 or at >= end or data[at] != COLON:
                return -1
            at += 1


@compiled
def digits(data: Bytes, at: int, end: int) -> tuple[Any, int]:
    """A number of at most `DIGITS` digits, and past it."""
    past = _past_digits(data, at, end)
    found = np.int64(0)
    if past < 0 or past - at > DIGITS:
        return found, -1
    for i in range(at, past):
        found = found * 10 + np.int64(data[i] - ZERO)
    return found, past


@compiled
def whole(data: Bytes, at: int, end: int) -> tuple[Any, int]:
    """A number that is whole, and past it."""
    minus = at < end and data[at] == MINUS
    begin = at + 1 if minus else at
    found, past = digits(data, begin, end)
    if past > 0 and data[begin] == ZERO and (minus or past > begin + 1):
        return found, -1
    return -found if minus else found, past
