"""A format of tables as a whole, as the pipeline needs it; one table of it is a `TableSink`.

A format is made by its name (`formats`), which is what travels to the tasks. It keeps nothing of a
batch, and is for any number of threads.

Its engines are ways of writing a table, by name. Which one a table has is asked for or follows from
the table's size; a batch ends in the task (`merges_in_tasks`), or the driver does the rest of it
(`finish`). What else a format may leave out, it says: it has no files of chunks, so rows of
snapshots come as all others do (`chunk_files`), it cannot give a table another's place
(`can_replace`), or older rows no new columns (`fill`), so that they are read again.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from lakemark.model.change_batch import WriteFile
from lakemark.model.columns import Column
from lakemark.model.commit_note import CommitNote
from lakemark.model.fills import Fill
from lakemark.settings.config import Config
from lakemark.sink.lake_plan import LakePlan, TableOutcome, TablePlan
from lakemark.sink.table_sink import TableSink


@dataclass(frozen=True, slots=True)
class Replaced:
    """The result of a rebuild.

    Attributes:
        rows: live rows of the table now; -1 if its log does not say.
        bytes: bytes of its data files.
    """

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A commit in a table's history.

    Attributes:
        version: of the table that it made.
        ts_ms: when, in milliseconds since the epoch.
        operation: in the format's words.
        note: what it says of the batch that made it; None where it says nothing.
    """

    version: int
    ts_ms: int
    operation: str
    note: CommitNote | None = None


class TableReader(Protocol):
    """A table as it is at each question, whichever engine writes it.

    All raise `DependencyError` where the lake is away, and `TableError` where the folder holds
    something else than such a table.
    """

    def columns(self) -> Collection[str] | None:
        """Return the source names of its columns; None without a table."""

    def schema(self) -> pa.Schema | None:
        """Return its columns under the source's names, without `_cdc`; None without a table."""

    def version(self) -> int | None:
        """Return the number of its newest version; None without a table."""

    def rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows that are not marked deleted, in pieces of some size and in no order.

        Of a table of lakemark's own (`TableFormat.append`) all of them.

        All are of one version of the table.

        Args:
            columns: source names of those that are wanted: the columns of each piece.
        """

    def read_rows(self, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys, and `_cdc`, under the source's names, in no order.

        Args:
            keys: the key columns under the source's names.

        Returns:
            Without a table: no rows, and `_cdc` is missing.
        """

    def rows_at(self, version: int, keys: pa.Table) -> pa.Table | None:
        """Return as `read_rows` the rows of an earlier version; None if that cannot be read now."""

    def history(self) -> list[TableCommit]:
        """Return the commits that the table still knows, the newest first; none without a table."""

    def keys_below(self, position: bytes, *, key: Sequence[str]) -> pa.Table:
        """Return the keys of the rows that a truncate at a position removes or marks deleted.

        Args:
            position: of the truncate.
            key: source names of the key's columns: those of the result.
        """

    def incomplete_keys(self, key: Sequence[Column]) -> list[bytes]:
        """Return canonical keys of rows with unavailable columns, 100,000 at most, in no order.

        Args:
            key: columns of the key under the source's names, in key order.
        """


class TableFormat(Protocol):
    """A format of tables."""

    def engine_for(self, chosen: str, now: str | None, size: int) -> str:
        """Return the engine of a table: as set, else by its size.

        Never one that cannot write what the table has.

        Args:
            chosen: by the configuration; `auto` leaves it to the format.
            now: that it has; None for a table that is not known.
            size: bytes of its data files.
        """

    def merges_in_tasks(self, engine: str) -> bool:
        """Return whether an engine needs nobody but the task, see `TableSink.merges`."""

    def sink_of(
        self, path: str, engine: str, options: dict[str, str], *, query: str, note: str = ""
    ) -> TableSink:
        """Return the sink of one table.

        Args:
            path: the table's folder.
            engine: one of its engines; empty = the one that small tables have.
            options: storage options of the lake.
            query: id of the streaming query, which names what waits beside the table.
            note: what its commits say of themselves, see `commit_note`; empty = nothing.
        """

    def reader_of(self, path: str, options: dict[str, str]) -> TableReader:
        """Return what reads one table."""

    def finish(self, spark: Any, own: TablePlan, outcome: TableOutcome, plan: LakePlan) -> None:
        """Do what a task has left to the driver: make the table fit, or truncate and merge.

        Exactly once per (app id, version), like `apply`; fills in the outcome.

        Args:
            spark: the session.
            own: the table's plan.
            outcome: as the task left it.
            plan: of the batch.

        Raises:
            TableError: this table cannot go on.
            DependencyError: the lake is away; the batch is tried again.
        """

    def settle(self) -> None:
        """Make durable what this process has written, at the end of a task.

        Raises:
            DependencyError: the lake does not answer or refuses.
        """

    def append(self, path: str, rows: pa.Table, *, app_id: str, options: dict[str, str]) -> None:
        """Add rows to a table of lakemark's own, which is made if there is none, in one commit.

        Args:
            path: folder of the table.
            rows: in its columns.
            app_id: what the rows are of: where it is recorded already, nothing is done.
            options: storage options of the lake.

        Raises:
            TableError: the folder holds something else.
            DependencyError: the lake does not answer or refuses.
        """

    def chunk_files(self, config: Config) -> WriteFile | None:
        """Return what writes rows of chunks to files; None where rows of no table go to any."""

    def can_replace(self, path: str, options: dict[str, str]) -> bool:
        """Return whether one commit can give the table in a folder another one's place."""

    def replace(
        self, path: str, name: str, *, table: str, options: dict[str, str]
    ) -> Replaced | None:
        """Bring a table that was made anew into its place; done again it changes nothing.

        Args:
            path: folder of the table; the new one is in `names.rebuild_path`.
            name: of the rebuild; none is used twice for a table.
            table: ``schema.table`` of the source.
            options: storage options of the lake.

        Returns:
            None if there is no new table; nothing was done.

        Raises:
            TableError: it cannot be done, see `can_replace`.
            DependencyError: the lake does not answer or refuses; the same call later goes on.
        """

    def empty(self, path: str, name: str, *, options: dict[str, str]) -> None:
        """Take all rows out of a table whose source has none; raises as `replace`."""

    def discard(self, path: str, name: str, *, options: dict[str, str]) -> None:
        """Delete all that a rebuild has written beside its table.

        Raises:
            DependencyError: the lake does not answer or refuses.
        """

    def note(self, path: str, name: str, text: str, *, options: dict[str, str]) -> bool:
        """Have a table say something of itself, in a commit of its own that changes no row.

        Args:
            path: folder of the table.
            name: of the property.
            text: its value, which the commit has as its message, too.
            options: storage options of the lake.

        Returns:
            False if there is no table, or its store has no commits with a condition: nothing was
            done. Done again it changes nothing.

        Raises:
            TableError: its log cannot be read.
            DependencyError: the lake is away.
        """

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
        """Add columns with what the rows that are there have in them, in one commit.

        Args:
            path: folder of the table.
            fills: the columns.
            app_id: under which it is recorded: done again it changes nothing.
            table: ``schema.table`` of the source.
            options: storage options of the lake.
            engine: of the table, one that merges in tasks.

        Returns:
            False if that cannot be done, and nothing was: its rows are to be read again.

        Raises:
            TableError: this table cannot be changed.
            DependencyError: the lake is away.
        """
