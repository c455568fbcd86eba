"""Write sets on their way from the tasks that made them to Spark's MERGE.

A task writes its part as one Parquet file beside the table,
``<table>/_lakemark/staged/<app id>-<version>-<part>.parquet``, and hands the driver a small
`StagedPart`; Spark reads the files on the executors, so no row passes through the driver. A
repeated batch writes the same files again; `discard` removes them after the commit. Delta and its
VACUUM leave folders with a leading underscore alone.
"""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake._internal import DeltaFileSystemHandler

from lakemark.errors import TableError
from lakemark.sink.delta import merge_sql
from lakemark.sink.delta.commits import Options, open_table
from lakemark.sink.delta.failures import told
from lakemark.sink.names import folder_name
from lakemark.sink.write_set import Shape, prepare


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A part of a write set, waiting beside its table; small enough for the driver.

    Attributes:
        file: relative to the table's folder; empty if there were no rows.
        shape: what the SQL depends on.
        ranges: condition, in Spark's SQL, that all its keys meet; empty if there is none.
        rows: number of rows.
        note: what the commit says of itself.
    """

    file: str
    shape: Shape
    ranges: str
    rows: int
    note: str = ""


def stage(
    path: str,
    write_set: pa.Table,
    *,
    key: Sequence[str],
    app_id: str,
    version: int,
    part: int = 0,
    storage_options: Options = None,
    note: str = "",
) -> StagedPart:
    """Checks a write set and writes it beside its table. Runs in a task.

    Args:
        path: folder of the table.
        write_set: see `write_set`; one row per key over all parts.
        key: source names of the primary key's columns.
        app_id: as for the merge.
        version: as for the merge.
        part: number of the part within the batch.
        storage_options: of delta-rs.
        note: what the commit says of itself, see `commit_note`.

    Raises:
        TableError: as `write_set.prepare`, and `table-missing`.
        DependencyError: the lake does not answer or refuses.
    """
    table = open_table(path, storage_options)
    if table is None:
        raise TableError(f"{path} holds no Delta table", code="table-missing")
    staged = prepare(write_set, pa.schema(table.schema().to_arrow()), key=key)
    if not staged.table.num_rows:
        return StagedPart("", staged.shape, "", 0)
    file = f"_lakemark/staged/{folder_name(app_id)}-{version}-{part}.parquet"
    buffer = io.BytesIO()
    pq.write_table(staged.table, buffer, compression="zstd")
    with told(path):
        handler: Any = DeltaFileSystemHandler(path, dict(storage_options or {}))
        out = handler.open_output_stream(file, None)
        out.write(buffer.getvalue())
        out.close()
    ranges = merge_sql.key_ranges(staged.keys(), dialect=merge_sql.SPARK)
    return StagedPart(file, staged.shape, ranges, staged.table.num_rows, note)


def discard(path: str, parts: Iterable[StagedPart], storage_options: Options = None) -> None:
    """Removes staged files; those that are gone already do not matter.

    Raises:
        DependencyError: the lake does not answer or refuses.
    """
    with told(path):
        handler = DeltaFileSystemHandler(path, dict(storage_options or {}))
        for part in parts:
            try:
                handler.delete_file(part.file)
            except FileNotFoundError:
                continue
