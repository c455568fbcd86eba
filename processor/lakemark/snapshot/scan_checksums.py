"""Hash functions of databases, compiled: each takes the hashes so far, by row, and goes on.

`lookup3` is Bob Jenkins' hash as PostgreSQL's `hash_bytes_extended` has it on machines with
little-endian words; hash partitioning depends on it, so that it stays.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from lakemark.converters.compiler import compiled

Hashes = npt.NDArray[np.uint64]

_LOW = np.uint64(0xFFFFFFFF)
_START = np.uint64(0x9E3779B9 + 3923095)


@compiled
def _turned(word: Any, by: Any) -> Any:
    return ((word << by) | (word >> (np.uint64(32) - by))) & _LOW


@compiled
def _mixed(a: Any, b: Any, c: Any) -> Any:
    a = ((a - c) & _LOW) ^ _turned(c, np.uint64(4))
    c = (c + b) & _LOW
    b = ((b - a) & _LOW) ^ _turned(a, np.uint64(6))
    a = (a + c) & _LOW
    c = ((c - b) & _LOW) ^ _turned(b, np.uint64(8))
    b = (b + a) & _LOW
    a = ((a - c) & _LOW) ^ _turned(c, np.uint64(16))
    c = (c + b) & _LOW
    b = ((b - a) & _LOW) ^ _turned(a, np.uint64(19))
    a = (a + c) & _LOW
    c = ((c - b) & _LOW) ^ _turned(b, np.uint64(4))
    b = (b + a) & _LOW
    return a, b, c


@compiled
def _final(a: Any, b: Any, c: Any) -> Any:
    c = ((c ^ b) - _turned(b, np.uint64(14))) & _LOW
    a = ((a ^ c) - _turned(c, np.uint64(11))) & _LOW
    b = ((b ^ a) - _turned(a, np.uint64(25))) & _LOW
    c = ((c ^ b) - _turned(b, np.uint64(16))) & _LOW
    a = ((a ^ c) - _turned(c, np.uint64(4))) & _LOW
    b = ((b ^ a) - _turned(a, np.uint64(14))) & _LOW
    c = ((c ^ b) - _turned(b, np.uint64(24))) & _LOW
    return (b << np.uint64(32)) | c


@compiled
def _word(word: Any, seed: Any) -> Any:
    a = b = c = (_START + np.uint64(4)) & _LOW
    if seed:
        a = (a + (seed >> np.uint64(32))) & _LOW
        b = (b + (seed & _LOW)) & _LOW
        a, b, c = _mixed(a, b, c)
    return _final((a + word) & _LOW, b, c)


@compiled
def _four(data: Any, at: Any, count: Any) -> Any:
    """Up to four bytes from a place, the first the lowest."""
    found = np.uint64(0)
    for n in range(min(count, 4)):
        found |= np.uint64(data[at + n]) << np.uint64(8 * n)
    return found


@compiled
def _bytes(data: Any, at: Any, count: Any, seed: Any) -> Any:
    a = b = c = (_START + np.uint64(count)) & _LOW
    if seed:
        a = (a + (seed >> np.uint64(32))) & _LOW
        b = (b + (seed & _LOW)) & _LOW
        a, b, c = _mixed(a, b, c)
    while count >= 12:
        a = (a + _four(data, at, 4)) & _LOW
        b = (b + _four(data, at + 4, 4)) & _LOW
        c = (c + _four(data, at + 8, 4)) & _LOW
        a, b, c = _mixed(a, b, c)
        at += 12
        count -= 12
    a = (a + _four(data, at, count)) & _LOW
    if count > 4:
        b = (b + _four(data, at + 4, count - 4)) & _LOW
    if count > 8:  # the lowest byte of c is the length's
        c = (c + (_four(data, at + 8, count - 8) << np.uint64(8))) & _LOW
    return _final(a, b, c)


@compiled
def lookup3_words(words: Any, hashes: Hashes) -> None:
    """`hashint4extended`: of numbers of 32 bits."""
    for row in range(len(words)):
        hashes[row] = _word(np.uint64(words[row]) & _LOW, hashes[row])


@compiled
def lookup3_folded(words: Any, hashes: Hashes) -> None:
    """`hashint8extended`: of numbers of 64 bits, whose halves it sees as one."""
    for row in range(len(words)):
        high = np.uint64(words[row] >> 32) & _LOW
        if words[row] < 0:
            high ^= _LOW
        hashes[row] = _word((np.uint64(words[row]) & _LOW) ^ high, hashes[row])


@compiled
def lookup3_texts(ends: Any, data: Any, hashes: Hashes) -> None:
    """`hashtextextended`: of texts by their bytes; `ends` has their beginning first."""
    for row in range(len(ends) - 1):
        hashes[row] = _bytes(data, ends[row], ends[row + 1] - ends[row], hashes[row])


@compiled
def added(ranges: Any, hashes: Hashes, counts: Any, sums: Hashes) -> None:
    """Add the hashes of rows up, by the rows' ranges."""
    for row in range(len(ranges)):
        counts[ranges[row]] += 1
        sums[ranges[row]] += hashes[row]


def example() -> None:
    """Calls each with one row.

    Raises:
        RuntimeError: something else is found.
    """
    hashes, numbers = np.array([7], np.uint64), np.array([5], np.int64)
    lookup3_words(numbers, hashes)
    lookup3_folded(numbers, hashes)
    text = np.frombuffer(b"lakemark", np.uint8)
    hashes[0] = 7
    lookup3_texts(np.array([0, len(text)], np.int64), text, hashes)
    counts, sums = np.zeros(1, np.int64), np.zeros(1, np.uint64)
    added(np.zeros(1, np.int64), hashes, counts, sums)
    if (int(sums[0]), int(counts[0])) != (2220460647771487440, 1):
        raise RuntimeError("texts are hashed otherwise")
