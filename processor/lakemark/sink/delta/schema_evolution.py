"""Creates a table, and lets it follow its source: columns added, columns widened.

Task-merge tables never get Delta features that delta-rs cannot write or pyarrow readers refuse
(type widening, column mapping, deletion vectors, clustering), so widening rewrites the table: one
commit, streamed, so that memory holds a few batches at a time.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from queue import Full, Queue
from threading import Event, Thread
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake

from lakemark.model.evolution import Evolution
from lakemark.model.fills import Fill, by_both_names
from lakemark.sink import schema_changes
from lakemark.sink.delta import table_log
from lakemark.sink.delta.commits import Options, conditional, existing, open_table, retried
from lakemark.sink.delta.engines import TASK_MERGE
from lakemark.sink.delta.failures import told
from lakemark.sink.delta.table_log import Opened
from lakemark.sink.delta.table_store import TableStore
from lakemark.sink.names import CDC, column_names, field_named, quoted, sources_of
from lakemark.sink.table_sink import SchemaPlan, schema_plan

# Files small enough that a merge of few keys rewrites little, large enough to read fast.
TARGET_FILE_BYTES: Final = 33_554_432
# Batches of 8,192 rows that are read before the writer asks for them.
_AHEAD: Final = 4
T = TypeVar("T")
_CONDITIONAL: Final = CommitProperties(max_commit_retries=0)


def ensure(
    path: str,
    schema: pa.Schema,
    *,
    key: Sequence[str] = (),
    table: str = "",
    storage_options: Options = None,
    engine: str = TASK_MERGE,
) -> Evolution:
    """Creates the table, or adds and widens columns, so that it can hold rows of `schema`.

    Idempotent, and safe against others doing the same at once.

    Args:
        path: folder of the table.
        schema: source columns under their own names, and `_cdc`.
        key: source names of the key columns: these get statistics for pruning.
        table: ``schema.table`` of the source, kept as the Delta table's name.
        storage_options: of delta-rs.
        engine: whose table it is: `task-merge` or `deletion-vectors`.

    Returns:
        What was added and widened, under the source's names; nothing for a table just created.

    Raises:
        TableError: `schema-incompatible` names each column, its old and its new type;
            `column-name-taken`; `path-clash` when the folder belongs to another source table;
            `engine-mismatch` …
        DependencyError: the lake does not answer or refuses.
    """
    sources = list(schema.names)
    sources.remove(CDC)
    schema_changes.require_free(sources, table)
    applied = Evolution()

    def attempt() -> None:
        with told(path):
            if open_table(path, storage_options) is None:
                _create(path, schema, key, table, storage_options)
            else:
                _evolve(
                    existing(path, storage_options, engine=engine), path, schema, table, applied
                )

    retried(path, attempt)
    return applied


def _create(
    path: str, schema: pa.Schema, key: Sequence[str], table: str, storage_options: Options
) -> None:
    names = column_names(n for n in schema.names if n != CDC)
    fields = [f if f.name == CDC else field_named(f, names[f.name]) for f in schema]
    DeltaTable.create(
        path,
        pa.schema(fields),
        mode="error",
        name=table or None,
        configuration=properties([schema.field(k).with_name(names[k]) for k in key]),
        storage_options=dict(storage_options or {}) or None,
        commit_properties=_CONDITIONAL,
    )


def properties(key: Sequence[pa.Field]) -> dict[str, str]:
    """Delta table properties of a new table.

    Statistics for the key only: they prune merges, and the others would make every commit longer.
    Spark refuses statistics on columns of types that it does not skip by.

    Args:
        key: key columns under their column names.
    """
    found = {
        "delta.targetFileSize": str(TARGET_FILE_BYTES),
        "delta.checkpointInterval": "50",
        "delta.logRetentionDuration": "interval 2 days",
    }
    columns = ",".join(quoted(f.name) for f in key if _skipped_by(f.type))
    if columns:
        found["delta.dataSkippingStatsColumns"] = columns
    elif key:
        found["delta.dataSkippingNumIndexedCols"] = "0"
    return found


def _skipped_by(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_date,
             pa.types.is_timestamp, pa.types.is_string)  # fmt: skip
    return any(matches(kind) for matches in kinds)


def plan(target: Opened, path: str, schema: pa.Schema, table: str = "") -> SchemaPlan:
    """Return the changes that `target` needs to hold rows of `schema`, see `schema_plan`."""
    old = pa.schema(target.schema().to_arrow())
    return schema_plan(old, target.metadata().name, schema, path=path, table=table)


def _evolve(
    target: DeltaTable, path: str, schema: pa.Schema, table: str, applied: Evolution
) -> None:
    needed = plan(target, path, schema, table)
    added = list(needed.added)
    if needed.members:
        added.append(pa.field(CDC, pa.struct(needed.members)))
    if added:
        target.alter.add_columns(
            [Field.from_arrow(f) for f in added], commit_properties=_CONDITIONAL
        )
    if needed.widened:
        kinds = {name: kind for name, _, kind in needed.widened}
        old = pa.schema(target.schema().to_arrow())
        new = pa.schema([f.with_type(kinds.get(f.name, f.type)) for f in old])
        _rewrite(target, new, partial(_checked, schema=new), _CONDITIONAL)
    needed.note(applied)


def fill(
    path: str,
    fills: Sequence[Fill],
    *,
    app_id: str,
    table: str = "",
    storage_options: Options = None,
    engine: str = TASK_MERGE,
) -> bool:
    """Adds columns with the values that the rows which are there have in them, in one commit.

    Args:
        path: folder of the table.
        fills: the columns.
        app_id: under which the commit is recorded: done again it changes nothing.
        table: ``schema.table`` of the source.
        storage_options: of delta-rs.
        engine: whose table it is: `task-merge` or `deletion-vectors`.

    Returns:
        False if the table has one of the columns already, so that nobody knows which of its rows
        are older than that; or lacks what it was called before; or is not there. Nothing was done.

    Raises:
        TableError, DependencyError: as `ensure`.
    """

    def attempt() -> bool:
        with told(path):
            target = open_table(path, storage_options)
            if target is None:
                return False
            store = TableStore(path, dict(storage_options or {}))
            if target.transaction_version(app_id) is not None:
                table_log.keep(store, [target.version()])
                return True
            target = existing(path, storage_options, target, engine=engine)
            old = pa.schema(target.schema().to_arrow())
            columns = _filled_columns(old, fills)
            if columns is None:
                return False
            added = plan(target, path, pa.schema([field for field, _ in columns]), table).added
            if len(added) < len(columns):
                return False

            former = {one.source: one.column for one in fills if one.source}

            def with_values(batch: pa.RecordBatch) -> pa.RecordBatch:
                batch = _checked(batch, old)
                batch = _unknown_by_both(batch, former) if former else batch
                cells = [
                    make(batch).cast(f.type) for (_, make), f in zip(columns, added, strict=True)
                ]
                return pa.RecordBatch.from_arrays([*batch.columns, *cells], schema=new)

            new, version = pa.schema([*old, *added]), target.version()
            _rewrite(target, new, with_values, conditional(app_id, 0))
            table_log.keep(store, [version + 1])
            return True

    return retried(path, attempt)


_Cells = Callable[[pa.RecordBatch], pa.Array]


def _filled_columns(old: pa.Schema, fills: Sequence[Fill]) -> list[tuple[pa.Field, _Cells]] | None:
    """The new columns under the source's names, and what the rows of a batch have in them."""
    known = {source: name for name, source in sources_of(old).items()}
    columns: list[tuple[pa.Field, _Cells]] = []
    for one in fills:
        if one.column in known:
            return None
        if one.value:
            cell = one.cell()
            columns.append((pa.field(one.column, cell.type), partial(_repeated, cell)))
        elif one.source in known:
            kind = old.field(known[one.source]).type
            columns.append((pa.field(one.column, kind), partial(_column, known[one.source])))
        else:
            return None
    return columns


def _unknown_by_both(batch: pa.RecordBatch, former: Mapping[str, str]) -> pa.RecordBatch:
    """A value that is not known yet is known by neither of its column's names."""
    at = batch.schema.get_field_index(CDC)
    cdc = batch.column(at)
    lists = pc.struct_field(cdc, "unavailable")
    if lists.null_count == len(lists):
        return batch
    named = by_both_names(lists.to_pylist(), former)
    cells = [
        pa.array(named, field.type) if field.name == "unavailable" else pc.struct_field(cdc, [n])
        for n, field in enumerate(cdc.type)
    ]
    made = pa.StructArray.from_arrays(cells, fields=list(cdc.type), mask=cdc.is_null())
    return batch.set_column(at, batch.schema.field(at), made)


def _repeated(cell: pa.Array, batch: pa.RecordBatch) -> pa.Array:
    return cell.take(pa.array(np.zeros(batch.num_rows, np.int32)))


def _column(name: str, batch: pa.RecordBatch) -> pa.Array:
    return batch.column(batch.schema.get_field_index(name))


def _rewrite(
    table: DeltaTable,
    new: pa.Schema,
    change: Callable[[pa.RecordBatch], pa.RecordBatch],
    properties: CommitProperties,
) -> None:
    """The whole table with every batch of its rows changed to another schema, as one commit."""

    def changed() -> Iterator[pa.RecordBatch]:
        for batch in pa.RecordBatchReader.from_stream(table.scan()):
            yield change(batch)

    with closing(_elsewhere(changed)) as batches:
        write_deltalake(
            table,
            pa.RecordBatchReader.from_batches(new, batches),
            mode="overwrite",
            schema_mode="overwrite",
            commit_properties=properties,
        )


def _checked(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in the types of a schema; a value that does not fit raises."""
    return batch.select(schema.names).cast(schema)


def _elsewhere(make: Callable[[], Iterator[T]]) -> Generator[T]:
    """Iterates in a thread of its own, a few items ahead.

    delta-rs pulls a writer's input on a thread of its runtime, where its scan may not block.
    """
    ready: Queue[T | BaseException | None] = Queue(_AHEAD)
    stopped = Event()

    def put(item: T | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
            except Full:
                continue
            return True
        return False

    def run() -> None:
        try:
            for item in make():
                if not put(item):
                    return
            put(None)
        except BaseException as error:  # noqa: BLE001 - raised again by the reader
            put(error)

    thread = Thread(target=run, name="lakemark-rewrite", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()
