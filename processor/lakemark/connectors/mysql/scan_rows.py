"""Rows of a result set, compiled: from the server's packets into Arrow's buffers.

A packet is three bytes of length (the least significant first), one of its number, and its payload.
The payload of a row holds the text of each column behind its length, as one byte, or as two, three
or eight behind 0xFC, 0xFD and 0xFE; 0xFB is null (the text protocol of MySQL and MariaDB).
"""

from typing import Any, Final

import numpy as np

from lakemark.converters.compiler import Bytes, Offsets, Whole, compiled

ROWS, END, SPLIT, CLOSED, FULL = 0, 1, 2, 3, 4
"""Why a walk ended: nothing is left, no whole packet is left, a row of several packets begins, the
result set has ended (or failed), there is no room for more rows."""

HEADER: Final = 4
_LENGTH: Final = 3
LONGEST: Final = 0xFFFFFF
"""The length of a packet that another one continues."""
NULL, TWO, THREE, EIGHT = 0xFB, 0xFC, 0xFD, 0xFE
EOF, ERROR = 0xFE, 0xFF
_EOF_BYTES: Final = 9  # a packet that begins with 0xFE and is shorter than this is no row
_SHORT: Final = 16  # bytes up to which a loop is faster than a copy of a slice


@compiled
def _whole(data: Bytes, at: int, count: int) -> int:
    """Return the whole number that so many bytes are, the least significant first."""
    found = np.int64(0)
    for byte in range(count):
        found |= np.int64(data[at + byte]) << (8 * byte)
    return found  # type: ignore[return-value]


@compiled
def walk(data: Bytes, begin: int, end: int, starts: Whole, ends: Whole, count: int) -> Any:
    """Find the rows that begin in the data.

    Args:
        data: packets.
        begin: where the first packet begins.
        end: where what was received ends.
        starts, ends: of the rows' payloads; filled from `count` on.
        count: rows that they have.

    Returns:
        why it ended, where the packet behind the last row begins, rows that there are now.
    """
    at = begin
    most = len(starts)
    while True:
        if at == end:
            return ROWS, at, count
        if at + HEADER > end:
            return END, at, count
        size = _whole(data, at, _LENGTH)
        if size == LONGEST:
            return SPLIT, at, count
        behind = at + HEADER + size
        if behind > end:
            return END, at, count
        if size:
            first = data[at + HEADER]
            if first == ERROR or (first == EOF and size < _EOF_BYTES):
                return CLOSED, at, count
        if count == most:
            return FULL, at, count
        starts[count] = at + HEADER
        ends[count] = behind
        count += 1
        at = behind


@compiled
def measure(data: Bytes, starts: Whole, ends: Whole, count: int, sizes: Whole) -> int:
    """Add up the bytes of each column.

    Args:
        data: packets.
        starts, ends: of the rows' payloads.
        count: rows.
        sizes: by column, of zeros; filled.

    Returns:
        the first row that has not these columns; `count` if all have.
    """
    columns = len(sizes)
    for row in range(count):
        at, end = starts[row], ends[row]
        for column in range(columns):
            if at >= end:
                return row
            size = _whole(data, at, 1)
            at += 1
            if size >= NULL:
                if size == NULL:
                    continue
                if size == TWO:
                    more = 2
                elif size == THREE:
                    more = 3
                elif size == EIGHT:
                    more = 8
                else:
                    return row
                if at + more > end:
                    return row
                size = _whole(data, at, more)
                at += more
            if size < 0 or at + size > end:
                return row
            sizes[column] += size
            at += size
        if at != end:
            return row
    return count


@compiled
def cut(
    data: Bytes,
    starts: Whole,
    count: int,
    texts: Bytes,
    begins: Whole,
    offsets: Offsets,
    valid: Bytes,
) -> None:
    """Copy the texts of all columns to where Arrow wants them; after `measure`, of the same rows.

    Args:
        data: packets.
        starts: of the rows' payloads.
        count: rows.
        texts: of all columns, one behind the other.
        begins: where each column begins in them.
        offsets: by column those of its rows, one behind the other, from 0; filled.
        valid: by column and row 1 for a text, 0 for null; filled.
    """
    columns = len(begins)
    places = np.zeros(columns, np.int64)
    for column in range(columns):
        offsets[column, 0] = 0
    for row in range(count):
        at = starts[row]
        for column in range(columns):
            size = _whole(data, at, 1)
            at += 1
            there = 1
            if size >= NULL:
                if size == NULL:
                    size = 0
                    there = 0
                else:
                    more = 2 if size == TWO else 3 if size == THREE else 8
                    size = _whole(data, at, more)
                    at += more
            place = places[column]
            to = begins[column] + place
            if size <= _SHORT:
                for byte in range(size):
                    texts[to + byte] = data[at + byte]
            else:
                texts[to : to + size] = data[at : at + size]
            at += size
            places[column] = place + size
            offsets[column, row + 1] = place + size
            valid[column, row] = there


def example() -> None:
    """Calls each with one row, a text and a null, and what ends the rows.

    Raises:
        RuntimeError: something else is found.
    """
    data = np.frombuffer(b"\3\0\0\1\1x\xfb\5\0\0\2\xfe\0\0\0\0", np.uint8).copy()
    starts, ends, sizes = (np.zeros(2, np.int64) for _ in range(3))
    found = walk(data, 0, len(data), starts, ends, 0)
    if found != (CLOSED, 7, 1) or measure(data, starts, ends, 1, sizes) != 1:
        raise RuntimeError("rows are not found")
    texts, valid = np.zeros(1, np.uint8), np.zeros((2, 1), np.uint8)
    cut(data, starts, 1, texts, sizes.cumsum() - sizes, np.zeros((2, 2), np.int32), valid)
    if texts.tobytes() + valid.tobytes() != b"x\1\0":
        raise RuntimeError("texts are not found")
