"""PostgreSQL, as a `Database`: an object for each of its purposes."""

from collections.abc import Callable, Container, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from lakemark.connectors.catalog_changes import (
    NO_KEYS,
    CatalogLook,
    Difference,
    SourceKeys,
    TableLook,
)
from lakemark.connectors.database import (
    CapturedTables,
    ChunkReader,
    Database,
    DatabaseAccess,
    Examination,
    OpenWindow,
    PlannedTables,
    Proof,
    TableCut,
    TableQuestions,
    Watermark,
    WindowWriter,
)
from lakemark.connectors.log_place import LogEnd, LogPlace
from lakemark.connectors.log_watch import LogWatch
from lakemark.connectors.postgres import (
    catalog_differences,
    checks_database,
    checks_tables,
    chunk_reader,
    database_script,
    key_sql,
    postgres,
    postgres_facts,
    postgres_windows,
    schema_file,
)
from lakemark.connectors.postgres.catalog_facts import SourceFacts, TableFacts
from lakemark.connectors.postgres.chunk_reader import PostgresReader
from lakemark.connectors.postgres.committed_offsets import committed_position
from lakemark.connectors.postgres.connector_settings import SLOT, TRAITS, sends_truncates, slot_of
from lakemark.connectors.postgres.facts_database import DatabaseWatch, database_facts
from lakemark.connectors.postgres.log_place import Lsn
from lakemark.connectors.postgres.planned_tables import planned_tables
from lakemark.connectors.postgres.positions import POSITIONS
from lakemark.connectors.postgres.postgres_fills import read_values
from lakemark.connectors.postgres.postgres_keys import column_types, key_columns, try_condition
from lakemark.connectors.postgres.postgres_publication import publication_of
from lakemark.connectors.postgres.postgres_session import BRIEFLY, LOCK_TIMEOUT, KeptSession
from lakemark.connectors.preparation import Script, ToPrepare
from lakemark.connectors.reached_place import NOWHERE, ReachedPlace
from lakemark.connectors.refusals import Refusal
from lakemark.errors import LakemarkError
from lakemark.model.checksums import ChecksumPlan, RefusedSums
from lakemark.model.columns import Column
from lakemark.model.findings import unchecked
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key_ranges import WHOLE, Boundary, Condition, KeyRange
from lakemark.model.schema import TableSchema
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.layers import Mistake

# A window row is one short insert; what waits longer waits for somebody's lock.
_BRIEF_TIMEOUT: Final = timedelta(seconds=30)


class PostgresDatabase(Database):
    """One PostgreSQL database, asked as `access` says."""

    def __init__(self, access: DatabaseAccess) -> None:
        self._access = access

    traits = TRAITS
    look_form = SourceFacts
    table_form = TableFacts
    mended = catalog_differences.MENDED
    checks = tuple(dict.fromkeys((*checks_database.CHECKS, *checks_tables.CHECKS)))

    @staticmethod
    def check_url(database: DatabaseConfig) -> None:
        """See `Database`."""
        postgres.conninfo(database)

    @staticmethod
    def check_condition(text: str) -> None:
        """See `Database`."""
        from lakemark.connectors.postgres.conditions import check  # noqa: PLC0415 - slow, and seldom needed

        check(text)

    @staticmethod
    def check_file(file: Path) -> None:
        """See `Database`."""
        schema_file.read_schema_file(file)

    @staticmethod
    def schemas_of_file(file: Path, modes: HandlingModes) -> dict[str, TableSchema]:
        """See `Database`."""
        return schema_file.schemas_from_file(file, modes)

    @staticmethod
    def key_texts(keys: Sequence[bytes], columns: Sequence[Column]) -> list[Boundary]:
        """See `Database`."""
        return key_sql.key_texts(keys, columns)

    @staticmethod
    def committed_position(
        entries: Sequence[Mapping[str, Any]], epoch: int, *, server: str
    ) -> bytes:
        """See `Database`."""
        return committed_position(entries, epoch, server=server)

    @staticmethod
    def log_place(text: str) -> LogPlace:
        """See `Database`."""
        return Lsn.parse(text)

    @staticmethod
    def ended_place(transaction: str) -> LogPlace | None:
        """See `Database`: its commit."""
        ended = POSITIONS.ended(transaction)
        return Lsn(ended.number) if ended is not None else None

    @staticmethod
    def wanted_settings(wanted: ToPrepare) -> list[Mistake]:
        """See `Database`."""
        return [*database_script.wanted_settings(wanted)]

    @staticmethod
    def script(wanted: ToPrepare) -> Script:
        """See `Database`."""
        return database_script.script(wanted)

    def schemas(
        self, tables: Sequence[str] | None, *, captured: Container[str] | None = None
    ) -> dict[str, TableSchema]:
        """See `Database`."""
        ours = self._access
        return postgres.read_schemas(
            ours.config, tables, ours.modes, settings=ours.connector, captured=captured
        )

    def table_names(self) -> list[str]:
        """See `Database`."""
        return postgres.table_names(self._access.config)

    def reasons_against(self, table: str) -> list[Refusal]:
        """See `Database`."""
        return chunk_reader.reasons_against(self._access, table)

    def cut(
        self,
        table: str,
        chunk_rows: int,
        *,
        condition: Condition | None = None,
        surrogate: str | None = None,
        within: KeyRange = WHOLE,
    ) -> TableCut:
        """See `Database`."""
        return chunk_reader.cut(
            self._access, table, chunk_rows, condition=condition, surrogate=surrogate, within=within
        )

    def checksums(self, table: str, kept: pa.Schema) -> ChecksumPlan | RefusedSums:
        """See `Database`."""
        return chunk_reader.checksums(self._access, table, kept)

    def reader(self) -> ChunkReader:
        """See `Database`."""
        return PostgresReader(self._access)

    def window_writer(self, table: str, *, name: str) -> WindowWriter:
        """See `Database`."""
        return PostgresWindows(self._access, table, name)

    def log_end(self, table: str, *, name: str) -> LogEnd:
        """See `Database`."""
        return PostgresLogEnd(self._access, table, name)

    def questions(self, *, name: str) -> TableQuestions:
        """See `Database`."""
        return PostgresQuestions(self._access, name)

    def examine(
        self,
        connector: CapturedTables | None,
        *,
        streams: bool,
        chosen: bool,
        offsets: Sequence[Mapping[str, Any]] = (),  # noqa: ARG002 - the server knows its reader
    ) -> Examination:
        """See `Database`."""
        ours = self._access
        answers = database_facts(ours.config, connector, ours.modes, streams=streams)
        found = checks_database.findings(answers.database)
        if answers.relations is None:
            asked = dict.fromkeys((*checks_database.CHECKS[2:], *checks_tables.CHECKS))
            why = "which tables are captured is unknown without the connector"
            return Examination([*found, *unchecked(asked, why)], None)
        publication = answers.database.publication
        found += checks_tables.findings(
            answers.relations,
            user=answers.database.server.user,
            publication=publication.name if publication and publication.exists else "",
            chosen=chosen,
            modes=ours.modes,
        )
        with_events = checks_tables.with_events(answers.relations)
        return Examination(found, [relation.table for relation in with_events])

    def planned_tables(self, connector: CapturedTables) -> PlannedTables:
        """See `Database`."""
        return planned_tables(self._access, connector)

    def log_watch(self, *, name: str, within: timedelta) -> LogWatch:
        """See `Database`."""
        slot = slot_of(self._access.connector)
        return DatabaseWatch(self._access.config, name, slot=slot, within=within)

    def look(
        self, wanted: Callable[[str], bool], *, before: CatalogLook | None = None
    ) -> SourceFacts:
        """See `Database`."""
        settings = self._access.connector
        known = _ours(before).tables.values() if before is not None else ()
        found = postgres_facts.look(
            self._access.config,
            wanted,
            publication=publication_of(settings),
            slot=settings.get(SLOT, "debezium"),
            known=[table.oid for table in known],
        )
        return catalog_differences.named(found)

    def differences(
        self, before: CatalogLook | None, now: CatalogLook, *, source_key: SourceKeys = NO_KEYS
    ) -> list[Difference]:
        """See `Database`."""
        former = None if before is None else _ours(before)
        truncates = sends_truncates(self._access.connector or {})
        return catalog_differences.differences(
            former, _ours(now), source_key=source_key, truncates_come=truncates
        )

    @staticmethod
    def are_fills(before: TableLook, now: TableLook, changes: Sequence[Difference]) -> bool:
        """See `Database`."""
        return catalog_differences.are_fills(_our_table(before), _our_table(now), changes)

    def missing_values(
        self, table: TableLook, missing: Mapping[str, str]
    ) -> dict[str, pa.Array | None]:
        """See `Database`."""
        ours, facts = self._access, _our_table(table)
        return read_values(
            ours.config, facts.name, facts.oid, missing, ours.modes, settings=ours.connector
        )


def _ours(look: CatalogLook) -> SourceFacts:
    if not isinstance(look, SourceFacts):
        raise TypeError("a look at another kind of database")
    return look


def _our_table(table: TableLook) -> TableFacts:
    if not isinstance(table, TableFacts):
        raise TypeError("a table of another kind of database")
    return table


class PostgresWindows:
    """PostgreSQL's `WindowWriter`."""

    def __init__(self, access: DatabaseAccess, table: str, name: str) -> None:
        self._access, self._table = access, table
        self.kept = KeptSession(
            access.config, name=name, statement_timeout=_BRIEF_TIMEOUT, lock_timeout=LOCK_TIMEOUT
        )

    def write(
        self,
        *,
        closes: OpenWindow | None,
        opens: OpenWindow | None,
        reached: ReachedPlace = NOWHERE,  # noqa: ARG002 - rows come back, or nothing is read
    ) -> Watermark | Proof:
        """See `WindowWriter`."""
        try:
            session = self.kept.get()
            if closes is None:  # the first of a run
                settings = self._access.connector
                postgres_windows.require_published(session, self._table, settings)
            return postgres_windows.write_window(session, self._table, closes=closes, opens=opens)
        except LakemarkError:
            self.kept.drop()
            raise

    def drop(self) -> None:
        """See `WindowWriter`."""
        self.kept.drop()

    def cancel(self) -> None:
        """See `WindowWriter`."""
        self.kept.cancel()


class PostgresLogEnd:
    """PostgreSQL's `LogEnd`; it moves by a row of the signal table."""

    def __init__(self, access: DatabaseAccess, table: str, name: str) -> None:
        self._access, self._table = access, table
        self.kept = KeptSession(
            access.config, name=name, statement_timeout=_BRIEF_TIMEOUT, lock_timeout=BRIEFLY,
            idle="5min",
        )  # fmt: skip

    def place(self) -> LogPlace:
        """See `LogEnd`."""
        return postgres_windows.log_end(self.kept.checked())

    def move(self) -> bool:
        """See `LogEnd`."""
        if not self._table:
            return False
        session = self.kept.checked()
        postgres_windows.require_published(session, self._table, self._access.connector)
        postgres_windows.write_mark(session, self._table)
        return True

    def drop(self) -> None:
        """See `LogEnd`."""
        self.kept.drop()


class PostgresQuestions:
    """PostgreSQL's `TableQuestions`."""

    def __init__(self, access: DatabaseAccess, name: str) -> None:
        self._access = access
        self.kept = KeptSession(
            access.config, name=name, statement_timeout=_BRIEF_TIMEOUT, lock_timeout=BRIEFLY
        )
        self._types: dict[str, dict[str, str]] = {}
        self._tried: set[tuple[str, str]] = set()

    def condition(self, table: str, text: str) -> Condition:
        """See `TableQuestions`."""
        from lakemark.connectors.postgres.conditions import rebuilt  # noqa: PLC0415 - slow, and seldom needed

        types = self._types.get(table)
        if types is None:
            types = self._types[table] = column_types(self.kept.get(), table)
        condition = rebuilt(text, table=table, types=types)
        if (table, text) not in self._tried:
            try_condition(self.kept.get(), table, condition)
            self._tried.add((table, text))
        return condition

    def forget(self) -> None:
        """See `TableQuestions`."""
        self._types.clear()
        self._tried.clear()

    def key_columns(self, table: str) -> list[Column]:
        """See `TableQuestions`."""
        ours = self._access
        return key_columns(self.kept.get(), table, ours.modes, settings=ours.connector)

    def blocker(self, proof: Proof) -> str:
        """See `TableQuestions`."""
        return str(postgres_windows.blocker(self.kept.get(), proof))

    def drop(self) -> None:
        """See `TableQuestions`."""
        self.kept.drop()
