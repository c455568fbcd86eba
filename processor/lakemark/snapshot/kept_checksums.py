"""Sums of a table's rows in the lake, as its database computes them: see `model.checksums`. Pure.

Hashing goes from column to column: the hash so far is the seed of the next one. Where a row has
null its form's nothing is hashed, and which columns are null is hashed first. A null of a column in
which the database allows none makes a hash that no row of the database has.
"""

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model.arrays import one_array
from lakemark.model.checksums import (
    DAY,
    DIGITS,
    DOUBLE,
    HEX,
    LONG,
    MASK_BITS,
    MOMENT,
    TEXT,
    WORD,
    ChecksumPlan,
    Hashes,
    NumberRanges,
    Numbers,
    RangeSums,
)

_TO_2000: Final = 946_684_800_000_000  # microseconds; PostgreSQL counts from there
_STRANGE: Final = np.uint64(0x5851F42D4C957F2D)


@cache
def _scan() -> Any:
    """Return what is compiled; importing it is slow, and most processes hash nothing."""
    from lakemark.snapshot import scan_checksums  # noqa: PLC0415

    return scan_checksums


def ready() -> bool:
    """Say whether this process can hash rows: what that takes is compiled, or in the cache."""
    from lakemark.converters import compiler  # noqa: PLC0415 - as above

    return compiler.ready(_scan().example)


def summed(rows: Iterable[pa.Table], plan: ChecksumPlan, ranges: NumberRanges) -> RangeSums:
    """Return the sums of a table's rows by range.

    Args:
        rows: with the plan's columns, under the source's names.
        plan: how they are hashed.
        ranges: of the plan's `order`.
    """
    found = RangeSums.of(len(ranges))
    for stretch in rows:
        numbers = numbers_of(stretch.column(plan.order))
        _scan().added(ranges.of(numbers), hashes(stretch, plan), found.counts, found.sums)
    return found


def numbers_of(column: pa.ChunkedArray) -> Numbers:
    """Return whole numbers as such; null is 0."""
    whole: Any = pc.fill_null(one_array(column).cast(pa.int64()), 0)
    found: Numbers = whole.to_numpy(zero_copy_only=False)
    return found


def hashes(rows: pa.Table, plan: ChecksumPlan) -> Hashes:
    """Return the hash of each row."""
    columns = [one_array(rows.column(one.name)) for one in plan.columns]
    found = np.zeros(rows.num_rows, np.uint64)
    mask, bit = np.zeros(rows.num_rows, np.int64), 0
    strange = np.zeros(rows.num_rows, bool)
    for one, column in zip(plan.columns, columns, strict=True):
        nulls = np.asarray(pc.is_null(column)) if column.null_count else None
        if one.nullable:
            if nulls is not None:
                mask |= nulls.astype(np.int64) << bit
            bit += 1
        elif nulls is not None:
            strange |= nulls
        if bit == MASK_BITS:
            _scan().lookup3_words(mask, found)
            mask, bit = np.zeros(rows.num_rows, np.int64), 0
    if bit:
        _scan().lookup3_words(mask, found)
    for one, column in zip(plan.columns, columns, strict=True):
        LOOKUP3_FORMS[one.form](column, found)
    found[strange] ^= _STRANGE
    return found


# -- forms ----------------------------------------------------------------------------------------


def _word(column: pa.Array, found: Hashes) -> None:
    _scan().lookup3_words(numbers_of(column), found)


def _long(column: pa.Array, found: Hashes) -> None:
    numbers = numbers_of(column)
    _scan().lookup3_folded(numbers, found)
    _scan().lookup3_words(numbers >> 32, found)


def _text(column: pa.Array, found: Hashes) -> None:
    texts = pc.fill_null(column, b"" if pa.types.is_binary(column.type) else "")
    _scan().lookup3_texts(*_cells(texts), found)


def _digits(column: pa.Array, found: Hashes) -> None:
    _text(_plain(column.cast(pa.string())), found)


def _plain(texts: pa.Array) -> pa.Array:
    """Write decimals that Arrow writes with an exponent, 0E-10, with all their digits."""
    short = np.flatnonzero(np.asarray(pc.fill_null(pc.match_substring(texts, "E"), False)))  # noqa: FBT003
    if not len(short):
        return texts
    cells = texts.to_numpy(zero_copy_only=False).copy()
    cells[short] = [f"{Decimal(cells[one]):f}" for one in short]
    return pa.array(cells, pa.string())


def _hex(column: pa.Array, found: Hashes) -> None:
    ends, data = _cells(pc.fill_null(column, b""))
    digits = np.frombuffer(data.tobytes().hex().encode(), np.uint8)
    _scan().lookup3_texts(ends * 2, digits, found)


def _moment(column: pa.Array, found: Hashes) -> None:
    micros = numbers_of(pc.cast(column, pa.int64()))
    _scan().lookup3_folded(micros - _TO_2000, found)
    _doubles(micros / 1_000_000.0, found)


def _double(column: pa.Array, found: Hashes) -> None:
    numbers = pc.fill_null(column, 0.0).cast(pa.float64()).to_numpy(zero_copy_only=False).copy()
    numbers[np.isnan(numbers)] = np.nan
    _scan().lookup3_words(((numbers == 0) & np.signbit(numbers)).astype(np.int64), found)
    _doubles(numbers, found)


def _doubles(numbers: Any, found: Hashes) -> None:
    """`hashfloat8extended`, which leaves the seed of a zero as it is."""
    some = np.flatnonzero(numbers != 0)
    part, cells = found[some], np.ascontiguousarray(numbers[some])
    _scan().lookup3_texts(np.arange(len(some) + 1) * 8, cells.view(np.uint8), part)
    found[some] = part


def _cells(texts: pa.Array) -> tuple[Numbers, Any]:
    """Return where each text ends, the first one's beginning before, and their bytes."""
    _, ends, data = texts.buffers()
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    of_all = np.frombuffer(ends, width, len(texts) + 1, texts.offset * np.dtype(width).itemsize)
    cells = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    ends = of_all.astype(np.int64)
    return ends - ends[0], cells[ends[0] : ends[-1]]


LOOKUP3_FORMS: Final[Mapping[str, Callable[[pa.Array, Hashes], None]]] = {
    WORD: _word,
    LONG: _long,
    TEXT: _text,
    DIGITS: _digits,
    DAY: lambda column, found: _text(column.cast(pa.string()), found),
    HEX: _hex,
    MOMENT: _moment,
    DOUBLE: _double,
}
