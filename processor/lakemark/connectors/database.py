"""The source database, whichever connector it has: one protocol for each purpose. Pure.

Only a connector's own folder knows how its database names tables, writes queries or orders commits;
`registry` has the connectors. Others can do three things with the *proof* of a read: keep it, ask
which watermarks it shows, and ask for the server's life.

    Database       one source database: its catalog, where tables are cut, what serves the others
    ChunkReader    rows of chunks, typed as events have them, with the proof of what was seen
    WindowWriter   rows that open and close windows, which come back in the log
    TableQuestions questions for signals: filters, keys, the transaction that a read waits for
    LogWatch       the reader of the log and its place, for operators (`log_watch`)
    LogEnd         where the log ends now (`log_place`)
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol
from uuid import UUID

import pyarrow as pa

from lakemark.connectors.catalog_changes import (
    NO_KEYS,
    CatalogLook,
    Difference,
    SourceKeys,
    TableLook,
)
from lakemark.connectors.connector_traits import ConnectorTraits
from lakemark.connectors.log_place import LogEnd, LogPlace
from lakemark.connectors.log_watch import LogWatch
from lakemark.connectors.preparation import Script, ToPrepare
from lakemark.connectors.reached_place import NOWHERE, ReachedPlace
from lakemark.connectors.refusals import Refusal
from lakemark.connectors.table_choice import Choice
from lakemark.errors import TableError
from lakemark.model import positions
from lakemark.model.checksums import ChecksumPlan, NumberRanges, RangeSums, RefusedSums
from lakemark.model.columns import Column
from lakemark.model.findings import Finding
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key_ranges import WHOLE, Boundary, Condition, KeyRange
from lakemark.model.schema import TableSchema
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.layers import Mistake

STATEMENT_TIMEOUT: Final = timedelta(minutes=5)


# -- what a read saw -------------------------------------------------------------------------------


class Proof(Protocol):
    """The proof of what one read of the database saw, by its connector's means.

    It travels between processes, so it can be pickled.
    """

    @property
    def life(self) -> str:
        """The name of the server's life that was read, never empty.

        Proofs of two lives say nothing about each other, and what was seen in one life may be lost
        in the next.
        """

    @property
    def place(self) -> bytes:
        """The position, behind its epoch, of a read that knows its place in the log.

        All events up to it are in what was read. Some behind it may be, too: they are in the log
        before the read's window is closed. Empty where only open rows bound what was read.
        """

    def shows(self, watermark: "Watermark") -> bool:
        """Say whether the read provably saw the open row and all that precedes it in the log.

        Args:
            watermark: of the same database, of whichever life.
        """


@dataclass(frozen=True, slots=True)
class Watermark:
    """An open row whose commit was acknowledged, or a place in the log that was asked for.

    Attributes:
        window: the window's uuid.
        after: what was seen after the commit returned.
        bound: a position behind its epoch, which was known before the open row came back: all
            events up to it are in what a read saw that shows the open row. Empty = the lowest.
    """

    window: str
    after: Proof
    bound: bytes = b""

    def position(self, epoch: int) -> bytes:
        """A position for rows of a chunk that takes this open row as its `lo`."""
        return positions.of_epoch(epoch, self.bound)


def visible(proof: Proof, watermarks: Iterable[Watermark]) -> Watermark | None:
    """The newest open row that is provably visible to a read, with all that precedes it.

    Args:
        proof: of the read.
        watermarks: acknowledged open rows that may still be used, in the order they were written.

    Returns:
        the newest that qualifies. None if none does: the chunk must be read again.
    """
    found = None
    for watermark in watermarks:
        if proof.shows(watermark):
            found = watermark
    return found


# -- chunks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowsOfSnapshot:
    """Rows of a table, all as of one snapshot.

    Attributes:
        rows: the schema's columns with their canonical types; in no order.
        keys: canonical keys, one a row, never null.
        schema: the table's schema when it was read.
        proof: of what was seen.
        bad: (canonical key, reason code, message) of rows with a value that the connector cannot
            carry either, such as NaN in a numeric when decimals are precise. It is null, as in
            events.
        clamped: values clamped to what Delta can hold.
    """

    rows: pa.Table
    keys: pa.ChunkedArray
    schema: TableSchema
    proof: Proof
    bad: list[tuple[bytes, str, str]] = field(default_factory=list)
    clamped: int = 0


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """The result of one read of a chunk.

    Attributes:
        found: the rows.
        absent: keys of a list that the table does not have, with the key's columns; None without
            a list.
        source_ts: when they were read by the database's clock, microseconds since the epoch.
    """

    found: RowsOfSnapshot
    absent: RowsOfSnapshot | None
    source_ts: int


@dataclass(frozen=True, slots=True)
class SummedRows:
    """The sums of a table's rows by ranges, all as of one snapshot.

    Attributes:
        sums: in the order of the ranges.
        schema: the table's schema then.
    """

    sums: RangeSums
    schema: TableSchema


def not_summed(table: str, why: RefusedSums) -> TableError:
    """Return the error of `ChunkReader.sums` for a table whose rows the database does not sum."""
    return TableError(
        f"rows of {table} are not summed: {why.reason}",
        code="not-summed",
        hint="it goes on by itself: they are read",
        retried=True,
    )


class ChunkReader(Protocol):
    """Reads chunks, and keeps its session for the next one. For one thread at a time.

    Raises (all questions):
        TableError, DependencyError, ConfigError: in lakemark's words, without cell values. The
            codes ``statement-timeout`` and ``chunk-too-large`` ask for the range in halves.
    """

    def read(
        self,
        table: str,
        *,
        span: KeyRange = WHOLE,
        condition: Condition | None = None,
        keys: Sequence[Boundary] | None = None,
        surrogate: str | None = None,
    ) -> ChunkRows:
        """The rows of a range, all as of one snapshot.

        Types, values and canonical keys equal those of the same rows' events. The ranges of a
        `TableCut`, each read whenever, hold every row once that was there all the time.

        Args:
            table: its name, as events have it.
            span: which keys.
            condition: only rows for which it holds.
            keys: only rows with one of these keys, as `Database.key_texts` gives them; those that
                the table does not have are said to be absent.
            surrogate: column that spans are of; None = the key.

        Raises:
            TableError: also where the table must not be read beside its events.
        """

    def middle(
        self, table: str, span: KeyRange, *, condition: Condition | None, surrogate: str | None
    ) -> Boundary | None:
        """A key in the midst of a range, not its last; None if the range has no two keys."""

    def sums(self, table: str, kept: pa.Schema, ranges: NumberRanges) -> SummedRows:
        """The sums of the rows of ranges, which the database computes: no row leaves it.

        Args:
            table: its name, as events have it.
            kept: the columns that are hashed, in the types of the lake.
            ranges: of the plan's `order`.

        Raises:
            TableError: ``not-summed``: `Database.checksums` would refuse it now.
        """

    def close(self) -> None:
        """End the session: after an error nothing of it is trusted. Never raises."""


@dataclass(frozen=True, slots=True)
class TableCut:
    """A table as its run begins.

    Attributes:
        spans: the chunks, which cover every key once; at least one.
        schema: as its chunks will have it, if nothing changes.
        rows: about how many it has.
    """

    spans: tuple[KeyRange, ...]
    schema: TableSchema
    rows: int

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the schema, as that of a chunk's result."""
        return self.schema.fingerprint()


# -- windows ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A window that is opened, or closed.

    Attributes:
        uuid: its own.
        run: the run it belongs to.
        oldest: uuid of the oldest window that any chunk, also a future one, may still use.
    """

    uuid: UUID
    run: str
    oldest: UUID


class WindowWriter(Protocol):
    """Opens and closes windows; keeps its session. For one thread.

    Window rows go into the connector's signal table, so that they come back in the log. A database
    that knows a read's place in the log (`Proof.place`) writes none: it says where the log ends.
    """

    def write(
        self,
        *,
        closes: OpenWindow | None,
        opens: OpenWindow | None,
        reached: ReachedPlace = NOWHERE,
    ) -> Watermark | Proof:
        """Close a window and open the next, in one transaction.

        A row's data are `run` and `oldest`, the name of the server's life as `server`, and as
        `bound` the hex of `Watermark.bound`, if there is one.

        Args:
            closes: the window that ends; None at the beginning of a run.
            opens: the window that begins; None at the end of a run.
            reached: in the log. Rows come back only in the log of the server that was written to;
                a database that writes none compares its log with this place.

        Returns:
            the acknowledged open row; what was seen afterwards when no window is opened. Where no
            rows are written, `bound` and `place` are the end of the log.

        Raises:
            ConfigError: the table takes no such rows, or they would not come back; the hint mends
                it.
            DependencyError: the database is away. A window may have been opened that nobody uses.
                ``other-log``: its log is not the connector's.
        """

    def drop(self) -> None:
        """End the session."""

    def cancel(self) -> None:
        """End what `write` waits for; from any thread."""


class TableQuestions(Protocol):
    """Questions about tables between their reads; keeps its session. For one thread.

    Raises (every question):
        DependencyError, ConfigError: the database is away, or refuses us.
    """

    def condition(self, table: str, text: str) -> Condition:
        """A user's filter, parsed for a table, and understood by the database.

        Raises:
            RefusedError: ``bad-condition``, ``unknown-column``, ``condition-not-allowed``.
        """

    def forget(self) -> None:
        """Forget what tables were like: they may have other columns now."""

    def key_columns(self, table: str) -> list[Column]:
        """Columns of a table's key; none if there is no such table, or a key does not say which
        row it is of.
        """

    def blocker(self, proof: Proof) -> str:
        """Return in words, without values, the transaction that a read waits for.

        The read shows no open row.
        """

    def drop(self) -> None:
        """End the session."""


# -- what operators are told -----------------------------------------------------------------------


class CapturedTables(Protocol):
    """The connector's configuration and tables, as a database needs them."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Its configuration."""

    @property
    def tables(self) -> Choice:
        """The tables that are captured and chosen."""

    @property
    def signal_table(self) -> str | None:
        """Its signal table."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of a look at the database.

    Attributes:
        findings: in the order of `Database.checks`.
        tables: that have events; None where the connector is unknown.
    """

    findings: list[Finding]
    tables: list[str] | None


@dataclass(frozen=True, slots=True)
class PlannedTables:
    """The captured tables, and the conditions that a snapshot would find.

    Attributes:
        schemas: by table.
        sizes: table, about how many rows, bytes; in the order of a run.
        refused: why a table cannot be read.
        chunk_bytes: that a chunk may have.
    """

    schemas: Mapping[str, TableSchema]
    sizes: list[tuple[str, int, int]] = field(default_factory=list)
    refused: Mapping[str, str] = field(default_factory=dict)
    chunk_bytes: int = 0


# -- the database ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DatabaseAccess:
    """The settings for sessions of a database; they hold secrets, so they are never shown.

    Attributes:
        config: where it is.
        modes: how the connector writes values.
        connector: the connector's configuration.
        statement_timeout: of every statement that reads rows.
        qualifier: before the names of its tables, see `table_id`.
    """

    config: DatabaseConfig = field(repr=False)
    modes: HandlingModes
    connector: Mapping[str, str] = field(repr=False)
    statement_timeout: timedelta = STATEMENT_TIMEOUT
    qualifier: str = ""


class Database(Protocol):
    """One source database; stateless, so any thread may ask. Tables have the names of events.

    Raises (whatever talks):
        DependencyError: the database does not answer.
        ConfigError, LoginRefused, InvalidConfig: it refuses us, or is misnamed.
    """

    def __init__(self, access: DatabaseAccess) -> None: ...

    traits: ClassVar[ConnectorTraits]
    """What is peculiar to its connector."""

    # -- what is known without asking it

    @staticmethod
    def check_url(database: DatabaseConfig) -> None:
        """Raise InvalidConfig if ``database.url`` is none that can be connected to."""

    @staticmethod
    def check_condition(text: str) -> None:
        """Raise RefusedError for a filter that no table's columns could make a valid one."""

    @staticmethod
    def check_file(file: Path) -> None:
        """Raise InvalidConfig with every mistake in a file that describes tables."""

    @staticmethod
    def schemas_of_file(file: Path, modes: HandlingModes) -> dict[str, TableSchema]:
        """The schemas of the tables that a file describes; raises as `check_file`."""

    @staticmethod
    def key_texts(keys: Sequence[bytes], columns: Sequence[Column]) -> list[Boundary]:
        """Canonical keys as texts that the database understands.

        Raises:
            TableError: ``key-unreadable``: a key is none that it can be asked for.
        """

    @staticmethod
    def committed_position(
        entries: Sequence[Mapping[str, Any]], epoch: int, *, server: str
    ) -> bytes:
        """The position up to which all events are in Kafka, by what Connect has committed.

        Args:
            entries: as Connect gives them: ``[{"partition": {…}, "offset": {…}}]``.
            epoch: of the positions.
            server: the connector's `topic.prefix`.

        Returns:
            empty if the connector has committed none, or is in a snapshot of its own.
        """

    @staticmethod
    def log_place(text: str) -> LogPlace:
        """Return the place in the log that a text names, as the database prints it.

        Raises:
            RefusedError: ``bad-value``: none.
        """

    @staticmethod
    def ended_place(transaction: str) -> LogPlace | None:
        """Return the place behind a transaction, by its id in the connector's transaction topic.

        None where the id does not tell it.
        """

    # -- before the first start

    @staticmethod
    def wanted_settings(wanted: ToPrepare) -> list[Mistake]:
        """Settings that a prepared connector has beside what the doctor says, with their reasons.

        A hint that is a `SetTo` has the value; any other one is for the reader. None of them is
        about a setting that is as it has to be.
        """

    @staticmethod
    def script(wanted: ToPrepare) -> Script:
        """Statements after which connector and lakemark work with the least rights. Pure.

        They say nothing that the doctor does not ask for, and no password.
        """

    # -- its catalog

    def schemas(
        self, tables: Sequence[str] | None, *, captured: Container[str] | None = None
    ) -> dict[str, TableSchema]:
        """Schemas of tables as their events have them, as of one moment.

        Args:
            tables: which; None for all but the system's own.
            captured: of all tables only these are looked at.

        Returns:
            by table; one that does not exist, or that nobody understands, is left out. A table
            without a key has an empty one.
        """

    def table_names(self) -> list[str]:
        """The names of all tables but the system's own."""

    # -- its tables' rows

    def reasons_against(self, table: str) -> list[Refusal]:
        """Return why a table must not be read beside its events; empty if it may.

        Waits for no lock.

        Raises:
            TableError: there is no such table, or the name is not a table's.
        """

    def cut(
        self,
        table: str,
        chunk_rows: int,
        *,
        condition: Condition | None = None,
        surrogate: str | None = None,
        within: KeyRange = WHOLE,
    ) -> TableCut:
        """Cut a table into chunks; reads keys only and keeps boundaries only.

        Args:
            table: which.
            chunk_rows: rows a chunk should have.
            condition: only rows for which it holds are read.
            surrogate: column that the chunks are ranges of; None = the key.
            within: only keys of this range are cut.

        Raises:
            TableError: as `ChunkReader.read`.
            DependencyError: also ``cut-timeout``.
        """

    def checksums(self, table: str, kept: pa.Schema) -> ChecksumPlan | RefusedSums:
        """Return how the database and the lake hash a table's rows alike, or why they cannot.

        Args:
            table: which.
            kept: the columns that are compared, in the types of the lake.

        Raises:
            TableError: as `ChunkReader.read`.
        """

    def reader(self) -> ChunkReader:
        """Return a reader of chunks."""

    def window_writer(self, table: str, *, name: str) -> WindowWriter:
        """Return a writer of window rows.

        Args:
            table: the connector's signal table.
            name: of the session, as the database shows it.
        """

    def log_end(self, table: str, *, name: str) -> LogEnd:
        """Return what tells where the log ends.

        Args:
            table: the connector's signal table; empty if it has none.
            name: of the session, as the database shows it.
        """

    def questions(self, *, name: str) -> TableQuestions:
        """Return the session for signals' questions; `name` is the session's."""

    # -- what operators are told

    checks: ClassVar[tuple[str, ...]]
    """Names of the checks of `examine`; the first is that it answers."""

    def examine(
        self,
        connector: CapturedTables | None,
        *,
        streams: bool,
        chosen: bool,
        offsets: Sequence[Mapping[str, Any]] = (),
    ) -> Examination:
        """Check everything that the connector needs of the database. Read only.

        Args:
            connector: None when it is unknown: then only the server is looked at.
            streams: whether the connector runs.
            chosen: whether tables are named, by the connector or by us.
            offsets: what Connect has committed for it, see `committed_position`.
        """

    def planned_tables(self, connector: CapturedTables) -> PlannedTables:
        """Return the tables of a snapshot of all captured tables, and its conditions. Read only."""

    def log_watch(self, *, name: str, within: timedelta) -> LogWatch:
        """Return a watch on the reader of the log.

        Args:
            name: the pipeline's.
            within: how long connecting, and each statement, may take.
        """

    # -- its catalog, then and now

    look_form: ClassVar[type[CatalogLook]]
    """What `look` gives."""

    table_form: ClassVar[type[TableLook]]
    """What a look has of a table."""

    mended: ClassVar[Mapping[str, str]]
    """Kinds of differences that stop a table for as long as looks give them; why it is read again
    when they no longer do."""

    def look(
        self, wanted: Callable[[str], bool], *, before: CatalogLook | None = None
    ) -> CatalogLook:
        """Return what the catalog says of the tables that are wanted, under their events' names.

        Args:
            wanted: which, by name.
            before: the last look, if there was one: its tables are followed to other names.
        """

    def differences(
        self, before: CatalogLook | None, now: CatalogLook, *, source_key: SourceKeys = NO_KEYS
    ) -> list[Difference]:
        """Return what has changed, that of the server first, then by table. Pure.

        What events tell is not among it: which they are, the connector's settings say.

        Some entries are about a state and not about a change: they come with every look as long as
        it lasts, also with the first.

        Args:
            before: the last look; None for none.
            now: the look of now, at the same tables.
            source_key: by table the key's columns as the connector sends them, where the
                connector's settings say it.
        """

    @staticmethod
    def are_fills(before: TableLook, now: TableLook, changes: Sequence[Difference]) -> bool:
        """Say whether rows of a copy lack one value only, or what they have by another name.

        Pure. Yes only where it is proved.

        Args:
            before: the last look at the table.
            now: the look of now.
            changes: of the table, as the policies have them.
        """

    def missing_values(
        self, table: TableLook, missing: Mapping[str, str]
    ) -> dict[str, pa.Array | None]:
        """Values that older rows have in columns, as events would bring them.

        Args:
            table: as it was looked at.
            missing: the values' texts by column, see `Difference.fill`.

        Returns:
            by column of events an array of one row; None for those without a value in `missing`, or
            with one that no event could bring. Columns that the connector leaves out are left out.
        """
