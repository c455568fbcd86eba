"""Chunks of a verify run against a table: what is not alike, and the rows that mend it.

A table is looked at as it was before the batch: every event up to a chunk's close row is in it then
(the fence), and every key that a newer event has touched, this batch's events included, is none of
the rows that are compared. So a batch that is repeated finds the same, also where its rows were
mended the first time.
"""

from collections.abc import Sequence
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.errors import LakemarkError
from lakemark.model import change_batch
from lakemark.model.arrays import one_array
from lakemark.model.comparisons import ComparedChunk, Comparison, UnlikeRow
from lakemark.model.control import REPAIR
from lakemark.sink import comparison, formats
from lakemark.sink.lake_plan import STREAM, LakePlan
from lakemark.sink.names import CDC
from lakemark.sink.resolve import Part
from lakemark.sink.table_sink import TableVersion


def compared(
    table: str, comparisons: Sequence[Comparison], plan: LakePlan
) -> tuple[list[ComparedChunk], list[Part]]:
    """Compare chunks' rows with a table.

    Args:
        table: which.
        comparisons: at least one.
        plan: of the batch.

    Returns:
        what was found, one for each of them, and the rows to be merged where the run mends; a merge
        leaves duplicates as they are. Never raises: an error stands in the result, and stops a run
        and not the table.
    """
    try:
        version = _before(table, plan)
    except LakemarkError as error:
        return [_failed(one, error) for one in comparisons], []
    found: list[ComparedChunk] = []
    repairs: list[Part] = []
    for one in comparisons:
        try:
            done, mended = _compare(one, version)
        except LakemarkError as error:
            done, mended = _failed(one, error), None
        found.append(done)
        if mended is not None:
            repairs.append(Part(f"chunk/{one.attempt}", one.shard, mended, crc32(one.rows)))
    return found, repairs


def _before(table: str, plan: LakePlan) -> TableVersion | None:
    """Return the table as it was before the batch, if its log goes back that far."""
    own = plan.tables.get(table) or plan.new_table(table)
    made_by = formats.format_named(plan.format)
    sink = made_by.sink_of(own.path, own.engine, plan.options, query=plan.query)
    sink.open()
    ids = [plan.app_id(table), plan.app_id(table, STREAM), plan.cut_id(table)]
    return sink.before(list(dict.fromkeys(ids)), plan.batch)


def _compare(
    one: Comparison, version: TableVersion | None
) -> tuple[ComparedChunk, pa.Table | None]:
    packet = change_batch.decode(one.rows)
    packet = packet.filter(pc.equal(packet.column("record"), change_batch.NET))
    key = change_batch.key_columns_of(packet)
    names = packet.column("key").to_pylist()
    rows = _columns(packet.column("row"))
    columns = rows.schema if version is None else version.columns_of()
    typed = comparison.as_kept(rows, columns, key=key.names)
    kept = _nothing(rows) if version is None else version.rows_of(typed.select(list(key.names)))
    result = comparison.compare(
        typed, packet.column("action"), names, kept, key=key, position=one.position
    )
    findings = [_finding(found, typed, kept, values=one.values) for found in result.differences]
    done = ComparedChunk(
        one.run, one.table, one.chunk, one.attempt, one.shard, one.position, one.verify,
        len(names) - result.newer, one.newer + result.newer, findings,
    )  # fmt: skip
    mended = [found.row for found in result.differences if found.kind != comparison.DUPLICATE]
    if one.verify != REPAIR or not mended:
        return done, None
    return done, packet.take(pa.array(mended, pa.int64()))


def _columns(rows: pa.ChunkedArray) -> pa.Table:
    struct = one_array(rows)
    return pa.Table.from_arrays(struct.flatten(), names=[field.name for field in struct.type])


def _nothing(rows: pa.Table) -> pa.Table:
    """Return no row of a table that is not there, as it would be made."""
    cdc = pa.field(CDC, pa.struct([pa.field("position", pa.binary())]))
    return pa.schema([*rows.schema, cdc]).empty_table()


def _finding(
    found: comparison.RowDifference, rows: pa.Table, kept: pa.Table, *, values: bool
) -> UnlikeRow:
    source = kept_row = ""
    if values and found.kind != comparison.EXTRA:
        source = _shown(rows, found.row)
    if values and found.kept >= 0:
        kept_row = _shown(kept.drop_columns([CDC]), found.kept)
    return UnlikeRow(found.key.decode(), found.kind, found.columns, source, kept_row)


def _shown(rows: pa.Table, at: int) -> str:
    (row,) = rows.slice(at, 1).to_pylist()
    return msgspec.json.encode(row, enc_hook=str).decode()


def _failed(one: Comparison, error: LakemarkError) -> ComparedChunk:
    return ComparedChunk(
        one.run, one.table, one.chunk, one.attempt, one.shard, one.position, one.verify,
        0, one.newer, [], error.code, error.message, error.hint, error.retried,
    )  # fmt: skip
