"""MySQL and MariaDB, each as a `Database`: an object for each of its purposes."""

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
from lakemark.connectors.mysql import (
    catalog_differences,
    checks_server,
    checks_tables,
    chunk_reader,
    database_script,
    key_sql,
    mysql_catalog,
    mysql_facts,
)
from lakemark.connectors.mysql.binlog_place import WhoseLog
from lakemark.connectors.mysql.catalog_facts import SourceFacts, TableFacts
from lakemark.connectors.mysql.chunk_reader import MySqlReader
from lakemark.connectors.mysql.committed_offsets import committed_position
from lakemark.connectors.mysql.connector_settings import MARIADB_TRAITS, TRAITS
from lakemark.connectors.mysql.facts_database import DatabaseWatch, database_facts
from lakemark.connectors.mysql.log_place import BinlogEnd
from lakemark.connectors.mysql.mysql_errors import translated
from lakemark.connectors.mysql.mysql_session import BRIEFLY, LOCK_TIMEOUT, KeptSession
from lakemark.connectors.mysql.mysql_url import DatabaseAddress
from lakemark.connectors.mysql.mysql_windows import end_text, window_place
from lakemark.connectors.mysql.own_log import other_log, whose_log
from lakemark.connectors.mysql.planned_tables import planned_tables
from lakemark.connectors.mysql.positions import POSITIONS
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
from lakemark.settings.layers import InvalidConfig, Mistake

_BRIEF_TIMEOUT: Final = timedelta(seconds=30)


class MySqlDatabase(Database):
    """One MySQL server, asked as `access` says."""

    def __init__(self, access: DatabaseAccess) -> None:
        self._access = access

    traits = TRAITS
    look_form = SourceFacts
    table_form = TableFacts
    mended = catalog_differences.MENDED
    checks = tuple(dict.fromkeys((*checks_server.CHECKS, *checks_tables.CHECKS)))

    @staticmethod
    def check_url(database: DatabaseConfig) -> None:
        """See `Database`."""
        DatabaseAddress.of(database).ssl_context()

    @staticmethod
    def check_condition(text: str) -> None:
        """See `Database`."""
        from lakemark.connectors.mysql.conditions import check  # noqa: PLC0415 - slow, and seldom needed

        check(text)

    @staticmethod
    def check_file(file: Path) -> None:
        """See `Database`."""
        problem = f"{file.name}: tables of MySQL and MariaDB are not described by a file yet"
        hint = "name the database in the section database, or let records carry their schemas"
        raise InvalidConfig([Mistake("source.schema_file", problem, hint)])

    @staticmethod
    def schemas_of_file(file: Path, modes: HandlingModes) -> dict[str, TableSchema]:  # noqa: ARG004
        """See `Database`."""
        MySqlDatabase.check_file(file)
        return {}

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
        return BinlogEnd.parse(text)

    @staticmethod
    def ended_place(transaction: str) -> LogPlace | None:
        """See `Database`: by its GTID."""
        return BinlogEnd.parse(transaction) if POSITIONS.ended(transaction) is not None else None

    @staticmethod
    def wanted_settings(wanted: ToPrepare) -> list[Mistake]:
        """See `Database`."""
        return [*database_script.wanted_settings(wanted)]

    @staticmethod
    def script(wanted: ToPrepare) -> Script:
        """See `Database`."""
        return database_script.script(wanted, is_mariadb=False)

    def schemas(
        self, tables: Sequence[str] | None, *, captured: Container[str] | None = None
    ) -> dict[str, TableSchema]:
        """See `Database`."""
        ours = self._access
        return mysql_catalog.read_schemas(
            ours.config, tables, ours.modes, settings=ours.connector, captured=captured
        )

    def table_names(self) -> list[str]:
        """See `Database`."""
        return mysql_catalog.table_names(self._access.config)

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

    def checksums(self, table: str, kept: pa.Schema) -> ChecksumPlan | RefusedSums:  # noqa: ARG002
        """See `Database`: one of 64 bits costs more than it costs to send the rows."""
        return chunk_reader.NO_SUMS

    def reader(self) -> ChunkReader:
        """See `Database`."""
        return MySqlReader(self._access)

    def window_writer(self, table: str, *, name: str) -> WindowWriter:  # noqa: ARG002
        """See `Database`."""
        return MySqlWindows(self._access, name)

    def log_end(self, table: str, *, name: str) -> LogEnd:  # noqa: ARG002
        """See `Database`."""
        return MySqlLogEnd(self._access, name)

    def questions(self, *, name: str) -> TableQuestions:
        """See `Database`."""
        return MySqlQuestions(self._access, name)

    def examine(
        self,
        connector: CapturedTables | None,
        *,
        streams: bool,  # noqa: ARG002
        chosen: bool,
        offsets: Sequence[Mapping[str, Any]] = (),
    ) -> Examination:
        """See `Database`."""
        ours = self._access
        answers = database_facts(ours.config, connector, ours.modes, offsets)
        found = checks_server.findings(answers.database)
        if answers.relations is None:
            why = "which tables are captured is unknown without the connector"
            return Examination([*found, *unchecked(checks_tables.CHECKS, why)], None)
        server = answers.database.server
        found += checks_tables.findings(
            answers.relations,
            user=server.user,
            is_mariadb=server.is_mariadb,
            generated_lost=answers.generated_lost,
            chosen=chosen,
        )
        with_events = checks_tables.with_events(answers.relations)
        return Examination(found, [relation.table for relation in with_events])

    def planned_tables(self, connector: CapturedTables) -> PlannedTables:
        """See `Database`."""
        return planned_tables(self._access, connector)

    def log_watch(self, *, name: str, within: timedelta) -> LogWatch:
        """See `Database`."""
        return DatabaseWatch(self._access.config, name, within=within)

    def look(
        self,
        wanted: Callable[[str], bool],
        *,
        before: CatalogLook | None = None,  # noqa: ARG002
    ) -> SourceFacts:
        """See `Database`."""
        return mysql_facts.look(self._access.config, wanted)

    def differences(
        self, before: CatalogLook | None, now: CatalogLook, *, source_key: SourceKeys = NO_KEYS
    ) -> list[Difference]:
        """See `Database`."""
        former = None if before is None else _ours(before)
        return catalog_differences.differences(former, _ours(now), source_key=source_key)

    @staticmethod
    def are_fills(before: TableLook, now: TableLook, changes: Sequence[Difference]) -> bool:  # noqa: ARG004
        """See `Database`: the catalog proves it of no table."""
        return False

    def missing_values(
        self, table: TableLook, missing: Mapping[str, str]
    ) -> dict[str, pa.Array | None]:
        """See `Database`: as no change is a fill, there are none."""
        del table
        return dict.fromkeys(missing)


class MariaDbDatabase(MySqlDatabase):
    """One MariaDB server; what differs from MySQL is found in its answers."""

    traits = MARIADB_TRAITS

    @staticmethod
    def script(wanted: ToPrepare) -> Script:
        """See `Database`."""
        return database_script.script(wanted, is_mariadb=True)


def _ours(look: CatalogLook) -> SourceFacts:
    if not isinstance(look, SourceFacts):
        raise TypeError("a look at another kind of database")
    return look


class MySqlWindows:
    """The `WindowWriter`: it writes nothing, and says where the log ends."""

    def __init__(self, access: DatabaseAccess, name: str) -> None:
        self.kept = KeptSession(
            access.config, name=name, statement_timeout=_BRIEF_TIMEOUT, lock_timeout=LOCK_TIMEOUT
        )
        self._own: tuple[str, ReachedPlace] | None = None

    def write(
        self,
        *,
        closes: OpenWindow | None,
        opens: OpenWindow | None,
        reached: ReachedPlace = NOWHERE,
    ) -> Watermark | Proof:
        """See `WindowWriter`."""
        try:
            with translated():
                place = window_place(self.kept.get())
                self._require_own_log(place.life, reached)
        except LakemarkError:
            self.kept.drop()
            raise
        del closes  # nothing was written for it
        return place if opens is None else Watermark(str(opens.uuid), place, place.place)

    def _require_own_log(self, life: str, reached: ReachedPlace) -> None:
        """Raise DependencyError ``other-log`` unless the server's log may be the connector's."""
        if self._own == (life, reached):
            return
        found = whose_log(self.kept.get(), reached)
        if found is WhoseLog.OTHER:
            raise other_log(was_own=self._own is not None)
        if found is WhoseLog.OWN:
            self._own = life, reached

    def drop(self) -> None:
        """See `WindowWriter`."""
        self.kept.drop()

    def cancel(self) -> None:
        """See `WindowWriter`."""
        self.kept.cancel()


class MySqlLogEnd:
    """The `LogEnd`. Nothing is written: heartbeats show how far a silent connector is."""

    def __init__(self, access: DatabaseAccess, name: str) -> None:
        self.kept = KeptSession(
            access.config, name=name, statement_timeout=_BRIEF_TIMEOUT, lock_timeout=BRIEFLY,
            idle=timedelta(minutes=5),
        )  # fmt: skip

    def place(self) -> LogPlace:
        """See `LogEnd`."""
        with translated():
            return BinlogEnd.parse(end_text(self.kept.checked()))

    def move(self) -> bool:
        """See `LogEnd`."""
        return False

    def drop(self) -> None:
        """See `LogEnd`."""
        self.kept.drop()


class MySqlQuestions:
    """The `TableQuestions`."""

    def __init__(self, access: DatabaseAccess, name: str) -> None:
        self._access = access
        self.kept = KeptSession(
            access.config, name=name, statement_timeout=_BRIEF_TIMEOUT, lock_timeout=BRIEFLY
        )
        self._tried: dict[tuple[str, str], Condition] = {}

    def condition(self, table: str, text: str) -> Condition:
        """See `TableQuestions`."""
        from lakemark.connectors.mysql.conditions import rebuilt  # noqa: PLC0415 - slow, and seldom needed

        found = self._tried.get((table, text))
        if found is None:
            with translated(table):
                names = mysql_catalog.column_names(self.kept.get(), table)
                found = rebuilt(text, table=table, columns=names)
                mysql_catalog.try_condition(self.kept.get(), table, found)
            self._tried[table, text] = found
        return found

    def forget(self) -> None:
        """See `TableQuestions`."""
        self._tried.clear()

    def key_columns(self, table: str) -> list[Column]:
        """See `TableQuestions`."""
        ours = self._access
        with translated(table):
            found = mysql_catalog.schemas_of(
                self.kept.get(), [table], ours.modes, settings=ours.connector
            ).get(table)
        if found is None or found.key_fault(ours.modes):
            return []
        return [found.column(name) for name in found.key]

    def blocker(self, proof: Proof) -> str:  # noqa: ARG002
        """See `TableQuestions`: a read waits by itself, and says for what."""
        return "none"

    def drop(self) -> None:
        """See `TableQuestions`."""
        self.kept.drop()
