"""Delta as a `TableFormat`, and its `TableSink`s: one for each of the engines that write tables.

| engine | a merge | rows of chunks in files |
|---|---|---|
| `task-merge` | delta-rs rewrites the files that have rows of the batch | are read |
| `deletion-vectors` | rows are marked, new versions appended | stay where they are |
| `spark-merge` | the task stages rows, Spark's MERGE takes them | are read |
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from lakemark.model import commit_note
from lakemark.model.change_batch import ChunkFile
from lakemark.model.evolution import Evolution
from lakemark.model.fills import Fill
from lakemark.settings.config import Config
from lakemark.sink.delta import (
    commits,
    deletion_vectors,
    deletion_vectors_rows,
    delta_rs,
    maintenance,
    own_tables,
    rebuild,
    schema_evolution,
    staging,
    table_log,
    table_notes,
    table_store,
)
from lakemark.sink.delta.chunk_files import ChunkFileWriter, InFile, fits, loader, placed
from lakemark.sink.delta.engines import DELETION_VECTORS, SPARK_MERGE, TASK_MERGE
from lakemark.sink.delta.failures import told
from lakemark.sink.delta.pending import Halves
from lakemark.sink.delta.table_log import LogTable, Opened
from lakemark.sink.delta.table_reader import DeltaReader
from lakemark.sink.delta.table_store import TableStore
from lakemark.sink.lake_plan import LakePlan, TableOutcome, TablePlan
from lakemark.sink.names import source_schema, sources_of
from lakemark.sink.resolve import Part
from lakemark.sink.table_format import Replaced
from lakemark.sink.table_sink import MergeResult, SchemaPlan, TableSink, TableSize, schema_plan


@dataclass(frozen=True, slots=True)
class DeltaVersion:
    """A version of a Delta table, as delta-rs or its log has it."""

    table: Opened
    path: str
    options: dict[str, str]
    by_log: bool

    def version(self) -> int:
        """Its number."""
        return int(self.table.version())

    def size(self) -> TableSize:
        """Rows that count, bytes and files, from the log alone."""
        if self.by_log or isinstance(self.table, LogTable):
            return deletion_vectors.size_of(self.table, self.path, self.options)
        return delta_rs.size_of(self.table)

    def columns_of(self) -> pa.Schema:
        """Return its columns under the source's names, without `_cdc`."""
        return source_schema(pa.schema(self.table.schema().to_arrow()))

    def rows_of(self, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys, and `_cdc`, under the source's names, in no order."""
        if self.by_log or isinstance(self.table, LogTable):
            return deletion_vectors_rows.read_rows(self.path, keys, None, self.options, self.table)
        return delta_rs.rows_of(self.table, keys, self.path)


@dataclass(slots=True)
class TaskMergeSink:
    """A table that delta-rs merges, which rewrites the files that have rows of the batch.

    Attributes:
        path: the table's folder.
        options: storage options of delta-rs.
        query: the query's id.
        note: what its commits say of themselves; empty = nothing.
        opened: see `TableSink.opened`.
    """

    path: str
    options: dict[str, str]
    query: str
    note: str = ""
    opened: DeltaVersion | None = None

    engine = TASK_MERGE
    merges = True

    @property
    def pending(self) -> Halves:
        """The halves of key changes beside the table, read and written as the engine does it."""
        return Halves(self.path, self.query, self.options, self.engine)

    def open(self) -> None:
        """Look at the newest version."""
        found = commits.reopened(self.path, self.options, engine=self.engine)
        self.opened = self._as(found)

    def _as(self, table: Opened | None) -> DeltaVersion | None:
        by_log = self.engine == DELETION_VECTORS
        return None if table is None else DeltaVersion(table, self.path, self.options, by_log)

    @property
    def _table(self) -> Opened | None:
        return None if self.opened is None else self.opened.table

    def before(self, app_ids: Sequence[str], batch: int) -> DeltaVersion | None:
        """See `TableSink.before`: if the log goes back that far."""
        found = commits.before(self._table, self.path, app_ids, batch, self.options)
        return self._as(found)

    def recorded(self, app_id: str) -> int | None:
        """Return the highest version that is recorded for an app id."""
        return commits.recorded(self._table, self.path, app_id)

    def forgets(self) -> bool:
        """Return whether somebody lets the table forget what was recorded, after some time."""
        table = self._table
        return table is not None and commits.FORGETS in table.metadata().configuration

    def columns(self) -> Collection[str]:
        """Return the source names of its columns."""
        return set(sources_of(self._schema()).values())

    def _schema(self) -> pa.Schema:
        table = self._table
        return pa.schema([]) if table is None else pa.schema(table.schema().to_arrow())

    def plan(self, schema: pa.Schema, table: str) -> SchemaPlan:
        """Return what it needs for rows of a schema."""
        target = self._table or commits.existing(self.path, self.options, engine=self.engine)
        now, owner = pa.schema(target.schema().to_arrow()), target.metadata().name
        return schema_plan(now, owner, schema, path=self.path, table=table)

    def fits(self) -> bool:
        """Return whether it is one of the engine's: all tables become so by being written."""
        return True

    def require_writable(self) -> None:
        """Find that no feature or other engine forbids it."""
        commits.existing(self.path, self.options, self._table, engine=self.engine)

    def ensure(self, schema: pa.Schema, *, key: Sequence[str], table: str) -> Evolution:
        """Create it, or give it what it lacks."""
        changed = schema_evolution.ensure(
            self.path,
            schema,
            key=key,
            table=table,
            storage_options=self.options,
            engine=self.engine,
        )
        since = -1 if self.opened is None else self.opened.version()
        self.opened = self._as(delta_rs.open_table(self.path, self.options))
        if self.opened is not None:
            self.keep(*range(since + 1, self.opened.version() + 1))
        return changed

    def keep(self, *versions: int) -> None:
        """Make these versions durable, which delta-rs has committed; -1 is none."""
        with told(self.path):
            store = TableStore(self.path, self.options)
            table_log.keep(store, [version for version in versions if version >= 0])

    def place(
        self,
        parts: Sequence[Part],
        *,
        deletes: str,
        pending: pa.Table | None,
        truncated_at: bytes | None,
        fills: bool,
    ) -> tuple[Sequence[Part], Sequence[InFile]]:
        """See `TableSink.place`; without rows in files, as nearly always, no log is asked."""
        if not any(part.filed for part in parts):
            return parts, ()
        return placed(
            parts,
            loader(self.path, self.options),
            may_stay=self._may_stay(deletes),
            pending=pending,
            truncated_at=truncated_at,
            fills=fills,
        )

    def _may_stay(self, deletes: str) -> Callable[[ChunkFile], bool]:  # noqa: ARG002
        return lambda _: False

    def truncate(self, position: bytes, *, deletes: str, app_id: str, version: int) -> MergeResult:
        """Remove the rows below a position."""
        gone = delta_rs.truncate(
            self.path,
            position,
            deletes=deletes,
            app_id=app_id,
            version=version,
            storage_options=self.options,
            engine=self.engine,
            note=commit_note.of_truncate(self.note),
        )
        self.keep(gone.at)
        self.opened = None
        return gone

    def read_rows(self, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys."""
        return delta_rs.read_rows(self.path, keys, storage_options=self.options)

    def merge(
        self,
        write_set: pa.Table,
        *,
        key: Sequence[str],
        deletes: str,
        app_id: str,
        version: int,
        files: Sequence[InFile],  # noqa: ARG002 - none stays in its file
    ) -> MergeResult:
        """Apply a write set in one commit."""
        table = self._table
        merged = delta_rs.merge(
            self.path,
            write_set,
            key=key,
            deletes=deletes,
            app_id=app_id,
            version=version,
            storage_options=self.options,
            opened=None if isinstance(table, LogTable) else table,
            note=self.note,
        )
        self.keep(merged.at)
        return merged

    def stage(self, write_set: pa.Table, *, key: Sequence[str], app_id: str, version: int) -> bytes:
        """Keep a write set beside the table for the driver, which gets a `StagedPart`."""
        staged = staging.stage(
            self.path,
            write_set,
            key=key,
            app_id=app_id,
            version=version,
            storage_options=self.options,
            note=self.note,
        )
        return msgspec.msgpack.encode(staged)

    def maintain(self, merged: MergeResult, *, key: Sequence[str]) -> None:
        """Join small files and vacuum, where the newest commit says that anything may be due."""
        if maintenance.wants_upkeep(self.path, merged):
            self._maintain(key)

    def _maintain(self, key: Sequence[str]) -> None:
        maintenance.maintain(self.path, key=key, engine=self.engine, storage_options=self.options)


@dataclass(slots=True)
class DeletionVectorsSink(TaskMergeSink):
    """A table whose rows are marked in deletion vectors: no file is rewritten."""

    engine = DELETION_VECTORS

    def _may_stay(self, deletes: str) -> Callable[[ChunkFile], bool]:
        if self.opened is None:
            return lambda _: False
        store, schema = TableStore(self.path, self.options), self._schema()
        files = deletion_vectors_rows.files_of(self.opened.table, store).files
        there = {file.path for file in files.values()}
        return lambda file: file.path not in there and fits(file, schema, deletes=deletes)

    def read_rows(self, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys, found by the files' indexes."""
        return deletion_vectors_rows.read_rows(self.path, keys, None, self.options, self._table)

    def merge(
        self,
        write_set: pa.Table,
        *,
        key: Sequence[str],
        deletes: str,
        app_id: str,
        version: int,
        files: Sequence[InFile],
    ) -> MergeResult:
        """Apply a write set, and rows in files, in one commit."""
        merged = deletion_vectors.merge(
            self.path,
            write_set,
            key=key,
            deletes=deletes,
            app_id=app_id,
            version=version,
            storage_options=self.options,
            opened=self._table,
            files=files,
            note=self.note,
        )
        self.keep(merged.at)
        return merged

    def maintain(self, merged: MergeResult, *, key: Sequence[str]) -> None:  # noqa: ARG002
        """Do what is due: looking costs nothing after a batch in the same process."""
        self._maintain(key)


@dataclass(slots=True)
class SparkMergeSink(TaskMergeSink):
    """A table beyond one task: rows are staged, and Spark's MERGE takes them."""

    engine = SPARK_MERGE
    merges = False

    def fits(self) -> bool:
        """Return whether Spark has made it its own."""
        table = self._table
        return table is not None and commits.is_adopted(table)


_SINKS: dict[str, type[TaskMergeSink]] = {
    TASK_MERGE: TaskMergeSink,
    DELETION_VECTORS: DeletionVectorsSink,
    SPARK_MERGE: SparkMergeSink,
}


TASK_MERGE_BYTES: Final = 2 << 30
"""Of data files: beyond that one task is too slow to rewrite them.

delta-rs rewrites the files that a batch touches, in one task: about 8 s and 3 GB for 10 million
rows (0.7 GB) with keys everywhere. Beyond this size Spark's MERGE with deletion vectors wins.
"""


class DeltaFormat:
    """See `TableFormat`."""

    def engine_for(self, chosen: str, now: str | None, size: int) -> str:
        """Return the engine of a table: as set, else by its size.

        Never back to one that cannot write what the table has: from Spark MERGE to none, from
        deletion vectors to Spark MERGE alone.
        """
        if now == SPARK_MERGE or (now == DELETION_VECTORS and chosen != SPARK_MERGE):
            return now
        if chosen != "auto":
            return chosen
        return SPARK_MERGE if size > TASK_MERGE_BYTES else TASK_MERGE

    def merges_in_tasks(self, engine: str) -> bool:
        """Return whether an engine needs nobody but the task."""
        return engine in _SINKS and _SINKS[engine].merges

    def sink_of(
        self, path: str, engine: str, options: dict[str, str], *, query: str, note: str = ""
    ) -> TableSink:
        """Return the sink of one table; the options are those of delta-rs."""
        return _SINKS[engine or TASK_MERGE](path, options, query, note)

    def reader_of(self, path: str, options: dict[str, str]) -> DeltaReader:
        """Return what reads one table."""
        return DeltaReader(path, options)

    def finish(self, spark: Any, own: TablePlan, outcome: TableOutcome, plan: LakePlan) -> None:
        """Do what a task has left to Spark's MERGE."""
        from lakemark.sink.delta import spark_merge_driver  # noqa: PLC0415 - not without Spark

        spark_merge_driver.finish(spark, own, outcome, plan)

    def settle(self) -> None:
        """Make durable what this process has written."""
        with told("the lake"):
            table_store.settle()

    def append(self, path: str, rows: pa.Table, *, app_id: str, options: dict[str, str]) -> None:
        """Add rows to a table of lakemark's own, in one commit."""
        own_tables.append(path, rows, app_id=app_id, storage_options=options)

    def chunk_files(self, config: Config) -> ChunkFileWriter | None:
        """Return what writes rows of chunks to files; None without tables that have them."""
        return ChunkFileWriter.of(config)

    def can_replace(self, path: str, options: dict[str, str]) -> bool:
        """Return whether a commit in this store has a condition of its own."""
        return TableStore(path, options).is_conditional

    def replace(
        self, path: str, name: str, *, table: str, options: dict[str, str]
    ) -> Replaced | None:
        """Bring a table that was made anew into its place, see `rebuild`."""
        return rebuild.replace(path, name, table=table, storage_options=options)

    def empty(self, path: str, name: str, *, options: dict[str, str]) -> None:
        """Take all rows out of a table whose source has none."""
        rebuild.empty(path, name, storage_options=options)

    def discard(self, path: str, name: str, *, options: dict[str, str]) -> None:
        """Delete all that a rebuild has written beside its table."""
        rebuild.discard(path, name, storage_options=options)

    def note(self, path: str, name: str, text: str, *, options: dict[str, str]) -> bool:
        """Have a table say something of itself, by a property and the commit's message."""
        return table_notes.note(path, name, text, storage_options=options)

    def fill(
        self,
        path: str,
        fills: Sequence[Fill],
        *,
        app_id: str,
        table: str,
        options: dict[str, str],
        engine: str,
    ) -> bool:
        """Add columns with what the rows that are there have in them."""
        return schema_evolution.fill(
            path, fills, app_id=app_id, table=table, storage_options=options, engine=engine
        )
