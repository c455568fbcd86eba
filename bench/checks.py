"""Whether a table holds the rows that must be left."""

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from bench.events import ARROW


def read_delta(path: str | Path) -> tuple[pa.Table, float]:
    """A whole Delta table as delta-rs reads it, and the seconds it took."""
    begun = time.perf_counter()
    stream = DeltaTable(path).scan(columns=ARROW.names)
    found = pa.RecordBatchReader.from_stream(stream).read_all()
    return found, time.perf_counter() - begun


def compare(path: str, expected: pa.Table) -> str:
    """What differs between a Delta table and the expected rows; empty if nothing does."""
    try:
        return differences(read_delta(path)[0], expected)
    except Exception as error:  # noqa: BLE001 (no table at all is a wrong result, not a crash)
        return f"{type(error).__name__}: {error}"


def differences(found: pa.Table, expected: pa.Table) -> str:
    """What differs between rows as they were read and the expected ones; empty if nothing does.

    Values count, not types: a table of texts is right if they are those of the values.
    """
    if found.num_rows != expected.num_rows:
        return f"{found.num_rows} rows, expected {expected.num_rows}"
    found = pa.table({name: plain(found.column(name), ARROW.field(name).type)
                      for name in ARROW.names}).sort_by("id")  # fmt: skip
    wrong = []
    for name in ARROW.names:
        one, other = found.column(name), expected.column(name)
        if not one.equals(other):
            # Two nulls are equal here, which they are not to Arrow's comparison.
            same = pc.fill_null(pc.equal(one, other), pc.and_(one.is_null(), other.is_null()))
            count = found.num_rows - pc.sum(same).as_py()
            wrong.append(f"column {name} differs in {count:,} of {found.num_rows:,} rows")
    return "; ".join(wrong)


def plain(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column with the type that is expected, whatever type has its values."""
    if pa.types.is_timestamp(column.type):  # with zone or without: the same microseconds
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).cast(kind)
    if pa.types.is_timestamp(kind):  # a text of microseconds
        return column.cast(pa.int64()).cast(kind)
    return column.cast(kind)
