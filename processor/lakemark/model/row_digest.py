"""Digests of rows: 64 bits for a row's key and 64 for all of its values. Pure.

Rows of the source and of a table are told alike, or not, by their digests alone, so that neither
side's rows have to be kept. Equal rows always have equal digests, as long as both sides have their
columns in the same types. Rows that differ have equal ones by chance, once in 2^64 pairs: two of a
million million rows that differ are found with a certainty that a disk does not have.

Values are equal as a table shows them: 0.0 is not -0.0, NaN is NaN, `1.0` of a decimal with one
digit is not compared with `1.00`, since a column has one scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model.arrays import one_array

Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

# Arbitrary; both sides of a comparison are digested by the same process or version.
_HASH_KEY: Final = "lakemark row one"
_NULL: Final = np.uint64(0xD6E8FEB86659FD93)
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_TURN: Final = np.uint64(29)
_STRETCH: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RowDigests:
    """The digests of some rows, one of each kind a row."""

    keys: Words
    rows: Words

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def joined(cls, parts: Sequence["RowDigests"]) -> "RowDigests":
        """Return the digests of all parts, in their order."""
        none = [np.empty(0, np.uint64)]
        return cls(
            np.concatenate([*(part.keys for part in parts), *none]),
            np.concatenate([*(part.rows for part in parts), *none]),
        )


def digests(rows: pa.Table, key: Sequence[str]) -> RowDigests:
    """Return the digests of rows.

    Args:
        rows: columns in any order; which ones, and their types, decide what is alike.
        key: names of the key's columns.
    """
    cells = {name: _words(one_array(rows.column(name))) for name in sorted(rows.column_names)}
    count = rows.num_rows
    return RowDigests(
        _folded([cells[name] for name in key], count), _folded([*cells.values()], count)
    )


def among(some: Words, others: Words) -> Flags:
    """Mark those of some digests that are among others, which are sorted."""
    found = np.zeros(len(some), bool)
    for begin in range(0, len(some) if len(others) else 0, _STRETCH):
        part = some[begin : begin + _STRETCH]
        order = np.argsort(part)  # looked up in their order they are found sixteen times as fast
        part = part[order]
        at = np.minimum(np.searchsorted(others, part), len(others) - 1)
        found[begin : begin + _STRETCH][order] = others[at] == part
    return found


def _folded(columns: Sequence[Words], count: int) -> Words:
    found = np.zeros(count, np.uint64)
    for column in columns:
        found = (found ^ column) * _MIX
        found ^= found >> _TURN
    return found


def _words(column: pa.Array) -> Words:
    """One number for each value of a column, also for null."""
    kind = column.type
    nulls = column.null_count
    if pa.types.is_decimal128(kind):
        found = _folded([*_halves(pc.fill_null(column, 0))], len(column))
    elif (numbers := _numbers(column)) is not None:
        found = numbers
    else:
        found = _hashed(column)
    if nulls:
        found = np.where(np.asarray(pc.is_null(column)), _NULL, found)
    return found


def _numbers(column: pa.Array) -> Words | None:
    kind = column.type
    if pa.types.is_floating(kind):
        filled: Any = pc.fill_null(column, 0.0)
        # As a double: its own bits tell every value of a narrower one.
        cells = filled.cast(pa.float64()).to_numpy(zero_copy_only=False).copy()
        cells[np.isnan(cells)] = np.nan  # it has many forms
        found: Words = cells.view(np.uint64)
        return found
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif not pa.types.is_integer(kind):
        return None
    whole: Any = pc.fill_null(column, 0)
    signed: Words = (
        whole.cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False).view(np.uint64)
    )
    return signed


def _halves(column: pa.Array) -> tuple[Words, Words]:
    halves = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, 2)
    halves = halves[column.offset : column.offset + len(column)]
    return halves[:, 0], halves[:, 1]


def _hashed(column: pa.Array) -> Words:
    from pandas.util import hash_array  # noqa: PLC0415 - slow, and most processes hash nothing

    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        cells = column.to_numpy(zero_copy_only=False)
    else:
        cells = np.array([None, *map(repr, column.to_pylist())], object)[1:]
    cells = np.where(np.asarray(pc.is_null(column)), "", cells)
    found: Words = hash_array(cells, hash_key=_HASH_KEY, categorize=False)
    return found
