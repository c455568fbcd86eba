"""Row images, compiled: the cells of each column, and the columns of the usual forms.

See `scan_json`. A cell is where a value begins and where it ends; it begins at -1 where the image
has null or nothing at all. What cannot be read as it is makes the functions say so: the column, or
the stretch, goes the general way.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from lakemark.converters.compiler import Bytes, Offsets, Whole, compiled
from lakemark.converters.json.compiled.scan_json import (
    BACKSLASH,
    CLOSE,
    COMMA,
    DIGITS,
    END,
    LIST,
    MINUS,
    NINE,
    POINT,
    QUOTE,
    SMALL_N,
    SMALL_T,
    SMALL_U,
    ZERO,
    equals,
    literal,
    name,
    named,
    number,
    string,
    value,
)

Flags = npt.NDArray[np.bool_]

_UNSEEN = -2
_HIGHEST = 2**63 - 1
_NULL = named(b"null")
_PADDING = ord("=")
_ALPHABET = named(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
_PLACES = np.full(256, -1, np.int64)  # of base64's letters
_PLACES[_ALPHABET] = np.arange(64)
_SHORT = named(b"bfnrt")  # escapes with a letter, and what they mean
_MEANT = named(b"\b\f\n\r\t")


@compiled
def cells(data: Bytes, spans: Whole, names: Bytes, ends: Whole, out: Any) -> bool:
    """The cells of images.

    Args:
        data: bytes that hold the images.
        spans: begin and end of each; they are JSON objects for certain.
        names: the columns' names, one behind the other.
        ends: where the names begin, and the end of the last one.
        out: gets begin and end, by column and image.

    Returns:
        False where an image has another member, or one twice.
    """
    columns = ends.size - 1
    for row in range(spans.shape[0]):
        at, end = spans[row, 0] + 1, spans[row, 1]
        for column in range(columns):
            out[column, row, 0] = _UNSEEN
        more = at < end and data[at] != CLOSE
        near = 0  # members mostly come in the order of the columns
        while more:
            begin, size = name(data, at, end)
            if size < 0:
                return False
            found = -1
            for step in range(columns):
                column = (near + step) % columns
                if equals(data, begin, size, names[ends[column] : ends[column + 1]]):
                    found = column
                    break
            if found < 0 or out[found, row, 0] != _UNSEEN:
                return False
            near = found + 1
            begin += size + 2
            at = value(data, begin, end)
            if at < 0 or at >= end:
                return False
            out[found, row, 0] = -1 if data[begin] == SMALL_N else begin
            out[found, row, 1] = at
            more = data[at] == COMMA
            at += 1
        for column in range(columns):
            if out[column, row, 0] == _UNSEEN:
                out[column, row, 0] = -1
    return True


@compiled
def _integer(data: Bytes, at: int, end: int) -> tuple[Any, bool]:
    """A number that is whole, and whether it is one and fits 64 bits."""
    minus = data[at] == MINUS
    begin = at + 1 if minus else at
    size = end - begin
    found = np.uint64(0)
    if size < 1 or size > DIGITS + 1 or (data[begin] == ZERO and (minus or size > 1)):
        return np.int64(0), False
    for i in range(begin, end):
        if not ZERO <= data[i] <= NINE:
            return np.int64(0), False
        found = found * np.uint64(10) + np.uint64(data[i] - ZERO)
    if found > np.uint64(_HIGHEST) + np.uint64(minus):
        return np.int64(0), False
    return -np.int64(found) if minus else np.int64(found), True


@compiled
def integers(data: Bytes, cells: Whole, out: Whole, valid: Flags) -> bool:
    """Numbers that are whole; False where one is something else, or may not fit 64 bits."""
    for row in range(cells.shape[0]):
        begin, end = cells[row]
        valid[row] = begin >= 0
        out[row] = 0
        if begin >= 0:
            out[row], fits = _integer(data, begin, end)
            if not fits:
                return False
    return True


@compiled
def booleans(data: Bytes, cells: Whole, out: Flags, valid: Flags) -> bool:
    """True and false; False where one is something else."""
    for row in range(cells.shape[0]):
        begin, end = cells[row]
        valid[row] = begin >= 0
        out[row] = begin >= 0 and data[begin] == SMALL_T
        if begin >= 0 and (data[begin] == SMALL_N or literal(data, begin, end) != end):
            return False
    return True


@compiled
def decimals(data: Bytes, cells: Whole, scale: int, most: int, out: Whole, valid: Flags) -> bool:
    """Numbers with a fraction, as two words of 64 bits each.

    Args:
        data, cells: where they are.
        scale: digits behind the point.
        most: digits in all.
        out: gets the numbers times ten to the power of the scale, two words a row.
        valid: gets which are not null.

    Returns:
        False where one is something else, does not fit, or would have to be rounded.
    """
    for row in range(cells.shape[0]):
        begin, end = cells[row]
        valid[row] = begin >= 0
        out[2 * row] = out[2 * row + 1] = 0
        if begin < 0:
            continue
        minus = data[begin] == MINUS
        if number(data, begin, end) != end:
            return False
        found: Any = np.int64(0)
        count, behind, pointed = 0, 0, False
        for at in range(begin + 1 if minus else begin, end):
            if data[at] == POINT:
                pointed = True
                continue
            if not ZERO <= data[at] <= NINE:  # an exponent
                return False
            found = found * 10 + np.int64(data[at] - ZERO)
            count += 1
            behind += pointed
            if count > DIGITS:
                return False
        if behind > scale or count + scale - behind > min(most, DIGITS):
            return False
        for _ in range(scale - behind):
            found *= 10
        found = -found if minus else found
        out[2 * row] = found
        out[2 * row + 1] = -1 if found < 0 else 0
    return True


@compiled
def _hex(data: Bytes, at: int) -> Any:
    found: Any = 0
    for i in range(4):
        c = data[at + i]
        digit = c - 48 if c < 58 else (c - 55 if c < 71 else c - 87)
        found = found * 16 + np.int64(digit)
    return found


@compiled
def strings(data: Bytes, cells: Whole, out: Bytes, offsets: Offsets, valid: Flags) -> bool:
    """Texts without their escapes; `out` has room for all cells. False where one is no string."""
    to = 0
    offsets[0] = 0
    for row in range(cells.shape[0]):
        begin, end = cells[row]
        valid[row] = begin >= 0
        if begin >= 0:
            if data[begin] != QUOTE or string(data, begin + 1, end) != end:
                return False
            at = begin + 1
            while at < end - 1:
                c = data[at]
                at += 1
                if c != BACKSLASH:
                    out[to] = c
                    to += 1
                    continue
                c = data[at]
                at += 1
                if c != SMALL_U:
                    for i in range(_SHORT.size):
                        if c == _SHORT[i]:
                            c = _MEANT[i]
                            break
                    out[to] = c
                    to += 1
                    continue
                point = _hex(data, at)
                at += 4
                if point < 0x80:
                    out[to] = point
                    to += 1
                elif point < 0x800:
                    out[to] = 0xC0 | point >> 6
                    out[to + 1] = 0x80 | point & 0x3F
                    to += 2
                else:
                    out[to] = 0xE0 | point >> 12
                    out[to + 1] = 0x80 | point >> 6 & 0x3F
                    out[to + 2] = 0x80 | point & 0x3F
                    to += 3
        offsets[row + 1] = to
    return True


@compiled
def binaries(data: Bytes, cells: Whole, out: Bytes, offsets: Offsets, valid: Flags) -> bool:
    """Bytes written as base64; False where one is something else."""
    to = 0
    offsets[0] = 0
    for row in range(cells.shape[0]):
        begin, end = cells[row]
        valid[row] = begin >= 0
        if begin >= 0:
            last = end - 1
            if data[begin] != QUOTE or (last - begin - 1) % 4:
                return False
            at = begin + 1
            while at < last:
                padded = 0
                if at + 4 == last and data[at + 3] == _PADDING:
                    padded = 2 if data[at + 2] == _PADDING else 1
                bits = 0
                for i in range(4 - padded):
                    place = _PLACES[data[at + i]]
                    if place < 0:
                        return False
                    bits = bits << 6 | place
                bits <<= 6 * padded
                if padded and bits & ((1 << 8 * padded) - 1):
                    return False
                for i in range(3 - padded):
                    out[to] = bits >> (16 - 8 * i) & 0xFF
                    to += 1
                at += 4
        offsets[row + 1] = to
    return True


@compiled
def listed(data: Bytes, cells: Whole, out: Bytes) -> int:
    """The cells as one JSON list; `out` has room for all, with five bytes more each. Its size."""
    out[0] = LIST
    to = 1
    for row in range(cells.shape[0]):
        begin, end = cells[row]
        if row:
            out[to] = COMMA
            to += 1
        if begin < 0:
            for c in _NULL:
                out[to] = c
                to += 1
        for at in range(begin, end if begin >= 0 else begin):
            out[to] = data[at]
            to += 1
    out[to] = END
    return to + 1
