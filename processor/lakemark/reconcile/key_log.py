"""Touches that a shard remembers, as Arrow columns: newest position and barrier of every key.

Pure. They are kept in segments, each at most half as large as the one before, so that a touch is
rewritten only a logarithmic number of times.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model import positions
from lakemark.source import changed_keys


def remembered(position: pa.DataType) -> pa.Schema:
    """The columns of remembered touches whose positions are of a type: a width of bytes."""
    return pa.schema(
        [
            pa.field("table", pa.dictionary(pa.int32(), pa.string()), nullable=False),
            pa.field("key", pa.binary(), nullable=False),
            pa.field("position", position, nullable=False),
            # Position of the newest c or d; zeros where none is remembered.
            pa.field("barrier", position, nullable=False),
        ]
    )


NOTHING: Final = pa.RecordBatch.from_pylist([], remembered(pa.binary(len(positions.LOWEST))))


def read(segment: bytes) -> pa.RecordBatch:
    """A segment's touches."""
    return changed_keys.unpack_touches(segment)


def fresh(blobs: Iterable[bytes], *, tables: Iterable[str], above: bytes) -> list[pa.RecordBatch]:
    """Packed touches of the log (`source.changed_keys`) that are worth remembering.

    Args:
        blobs: as they were packed.
        tables: only these.
        above: only positions above this one.
    """
    found = []
    for blob in blobs:
        batch = of_tables(changed_keys.unpack_touches(blob), tables)
        batch = batch.filter(is_above(batch.column("position"), above))
        if batch.num_rows:
            found.append(_as_remembered(batch))
    return found


def of_tables(batch: pa.RecordBatch, tables: Iterable[str]) -> pa.RecordBatch:
    """The touches of these tables."""
    column = batch.column("table")
    wanted = pc.is_in(column.dictionary, pa.array(sorted(tables), pa.string()))
    if pc.all(wanted).as_py():
        return batch
    return batch.filter(wanted.take(column.indices))


def newest(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One row per table and key: newest position, newest barrier."""
    if not batches:
        return NOTHING
    rows = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()[0]
    group = _groups(rows)
    by_position = rows.take(pa.array(_last_of_each(group, rows.column("position"))))
    barrier = rows.column("barrier").take(pa.array(_last_of_each(group, rows.column("barrier"))))
    return pa.RecordBatch.from_arrays(
        [*(by_position.column(name) for name in ("table", "key", "position")), barrier],
        schema=remembered(barrier.type),
    )


def highest(batch: pa.RecordBatch) -> bytes:
    """The highest position of a batch that has rows."""
    column = batch.column("position")
    zeros = np.zeros(len(column), np.int64)
    return bytes(column[int(_last_of_each(zeros, column)[0])].as_py())


def is_above(column: pa.FixedSizeBinaryArray, bound: bytes) -> pa.BooleanArray:
    """Mark the positions that are above a bound."""
    return pa.array(positions.which_above(column, bound))


def _as_remembered(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Touches of the log as remembered ones: the barrier is the position of a c or d."""
    kind = batch.column("position").type
    none = pa.scalar(bytes(kind.byte_width), kind)
    barrier = pc.if_else(batch.column("is_barrier"), batch.column("position"), none)
    return pa.RecordBatch.from_arrays(
        [*(batch.column(name) for name in ("table", "key", "position")), barrier],
        schema=remembered(kind),
    )


def _groups(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """A number per row, equal for equal table and key."""
    keys = rows.column("key").dictionary_encode()
    table = rows.column("table").indices.to_numpy().astype(np.int64)
    numbers: npt.NDArray[np.int64] = table * max(1, len(keys.dictionary)) + keys.indices.to_numpy()
    return numbers


def _last_of_each(
    group: npt.NDArray[np.int64], column: pa.FixedSizeBinaryArray
) -> npt.NDArray[np.int64]:
    """Row with the highest position of each group, groups in a fixed order."""
    order = np.lexsort((*reversed(positions.words(column)), group))
    ends = np.flatnonzero(np.diff(group[order], append=-1))
    last: npt.NDArray[np.int64] = order[ends]
    return last
