"""Sums of rows by ranges of their keys: what two sides can compare without sending rows. Pure.

A row is hashed to 64 bits, and the hashes of a range's rows are added up. The database does so in
SQL, with hash functions of its own; for a table of the lake the same is computed. So the two have
to agree about the text or number that is hashed of each column, its *form*. A connector has a form
for those of its types for which equal forms always mean equal values of the lake; tables with any
other column are read, as before there were sums.

Ranges are of the first column of the key, which is a whole number: both sides order those alike,
which can be said of no text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemark.model.key_ranges import KeyRange

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

WORD: Final = "word"  # a whole number of 32 bits, or a truth value as 0 and 1
LONG: Final = "long"  # of 64 bits
TEXT: Final = "text"  # UTF-8
DIGITS: Final = "digits"  # a decimal with all digits of its scale, as text
DAY: Final = "day"  # a date as text: 2026-11-29
HEX: Final = "hex"  # bytes as text
MOMENT: Final = "moment"  # microseconds since 1970
DOUBLE: Final = "double"  # a number of 64 bits with a point; 0.0 is not -0.0

LOOKUP3: Final = "lookup3"
"""A function of hashing: that of PostgreSQL."""
MASK_BITS: Final = 30
"""Columns whose nulls are hashed together."""

LEAST: Final = -(1 << 63)
GREATEST: Final = (1 << 63) - 1
RANGE_ROWS: Final = 1000
_LEAST_ROWS: Final = 10
_LEAST_RANGES: Final = 50
_SAMPLED: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class SummedColumn:
    """A column as it is hashed.

    Attributes:
        name: the source's.
        form: what of it is hashed.
        nullable: whether the database allows null.
    """

    name: str
    form: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class ChecksumPlan:
    """The way in which both sides hash the rows of a table.

    Attributes:
        function: of the database, see `kept_checksums.FOLDS`.
        columns: all that are compared, in the order of hashing.
        order: the column that ranges are of.
    """

    function: str
    columns: tuple[SummedColumn, ...]
    order: str


@dataclass(frozen=True, slots=True)
class RefusedSums:
    """The reason for which a table's rows are read and not summed."""

    reason: str


@dataclass(frozen=True, slots=True)
class NumberRanges:
    """Ranges of whole numbers, each of which ends where the next one begins.

    Attributes:
        ends: the greatest number of each range, rising.
        least: the least number of the first range.
    """

    ends: Numbers
    least: int = LEAST

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def begins(self) -> Numbers:
        """The least number of each range."""
        return np.concatenate([np.array([self.least], np.int64), self.ends[:-1] + 1])

    def part(self, first: int, last: int) -> "NumberRanges":
        """Return some of them, by the numbers of the first and the last one."""
        return NumberRanges(self.ends[first : last + 1], int(self.begins[first]))

    def span(self, first: int, last: int) -> KeyRange:
        """Return some of them as one range of the column, open where they begin or end all."""
        begin, end = int(self.begins[first]), int(self.ends[last])
        after = None if begin == LEAST else (str(begin - 1),)
        return KeyRange(after, None if end == GREATEST else (str(end),))

    def of(self, numbers: Numbers) -> Numbers:
        """Return the range of each number, if it is in one."""
        return np.searchsorted(self.ends, numbers).astype(np.int64)


@dataclass(slots=True)
class RangeSums:
    """By range: how many rows it has, and the sum of their hashes, modulo 2^64."""

    counts: Numbers
    sums: Hashes

    @classmethod
    def of(cls, ranges: int) -> "RangeSums":
        """Return the sums of ranges that have no row."""
        return cls(np.zeros(ranges, np.int64), np.zeros(ranges, np.uint64))

    @property
    def nbytes(self) -> int:
        """The bytes that it has."""
        return self.counts.nbytes + self.sums.nbytes

    def unlike(self, other: "RangeSums") -> Numbers:
        """Return the numbers of the ranges that are not alike."""
        return np.flatnonzero((self.counts != other.counts) | (self.sums != other.sums))

    def put(self, at: int, part: "RangeSums") -> None:
        """Take the sums of neighbouring ranges, the first of them at a place."""
        self.counts[at : at + len(part.counts)] = part.counts
        self.sums[at : at + len(part.sums)] = part.sums


def even_ranges(numbers: Iterable[Numbers], rows: int | None = None) -> NumberRanges:
    """Return ranges that have about so many of the numbers each.

    Args:
        numbers: in stretches and any order; of more than some millions only every n-th counts.
        rows: of a range; None = `RANGE_ROWS`, and fewer where there are few.
    """
    parts, step = [np.empty(0, np.int64)], 1
    for stretch in numbers:
        parts.append(stretch[::step])
        while sum(map(len, parts)) > _SAMPLED:
            parts, step = [np.concatenate(parts)[::2]], step * 2
    kept = np.sort(np.concatenate(parts))
    if rows is None:
        rows = max(_LEAST_ROWS, min(RANGE_ROWS, len(kept) * step // _LEAST_RANGES))
    each = max(1, rows // step)
    ends = np.unique(kept[each - 1 :: each])
    return NumberRanges(np.append(ends[ends < GREATEST], GREATEST))


def joined(which: Sequence[int] | Numbers, counts: Numbers, most: int) -> list[tuple[int, int]]:
    """Return neighbouring ranges as one, as long as it has no more rows than a chunk.

    Args:
        which: numbers of ranges, rising.
        counts: rows by range.
        most: rows that ranges together may have, unless it is one alone.

    Returns:
        the numbers of the first and the last range of each.
    """
    found: list[tuple[int, int]] = []
    rows = 0
    for one in map(int, which):
        more = int(counts[one])
        if found and found[-1][1] == one - 1 and rows + more <= most:
            found[-1] = found[-1][0], one
            rows += more
        else:
            found.append((one, one))
            rows = more
    return found


def is_whole(kind: pa.DataType) -> bool:
    """Say whether a type of the lake has whole numbers that fit 64 bits with a sign."""
    return bool(pa.types.is_signed_integer(kind))
