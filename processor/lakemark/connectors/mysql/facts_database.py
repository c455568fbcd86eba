"""Questions to MySQL and MariaDB for `checks_server` and `checks_tables`; read only."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pymysql

from lakemark.connectors.database import CapturedTables
from lakemark.connectors.log_watch import LogReader
from lakemark.connectors.mysql.binlog_snapshot import may_ask
from lakemark.connectors.mysql.checks_server import (
    VARIABLES,
    DatabaseFacts,
    ServerFacts,
)
from lakemark.connectors.mysql.checks_tables import Relation
from lakemark.connectors.mysql.committed_offsets import committed_place
from lakemark.connectors.mysql.connector_settings import server_id_of
from lakemark.connectors.mysql.mysql_catalog import SYSTEM, cascades, columns_of, schemas_of
from lakemark.connectors.mysql.mysql_errors import translated
from lakemark.connectors.mysql.mysql_session import KeptSession, Session, connect
from lakemark.connectors.mysql.mysql_url import DatabaseAddress
from lakemark.connectors.mysql.names import table_name
from lakemark.connectors.mysql.own_log import whose_log
from lakemark.errors import LakemarkError
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.table_id import pair_of, text_of

# Looks at the catalog take milliseconds; behind a lock they are better given up.
_STATEMENT_TIMEOUT: Final = timedelta(seconds=20)
_NO_GENERATED: Final = (11, 8, 0)
"""The version of MariaDB from which on generated columns are not in its log."""

_TABLES: Final = """
SELECT table_schema, table_name, table_type FROM information_schema.tables
WHERE table_schema NOT IN %s AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED', 'VIEW')
ORDER BY table_schema, table_name
"""
_NAMES: Final = "SELECT table_schema, table_name FROM information_schema.tables"
_REFUSED: Final = frozenset({1044, 1142, 1143, 1227})
"""Errors that say that we may not."""


@dataclass(frozen=True, slots=True)
class AllFacts:
    """All facts of one look.

    Attributes:
        database: server and log.
        relations: None where the connector is unknown.
        generated_lost: whether generated columns are not in the log.
    """

    database: DatabaseFacts
    relations: tuple[Relation, ...] | None
    generated_lost: bool


def database_facts(
    database: DatabaseConfig,
    connector: CapturedTables | None,
    modes: HandlingModes,
    offsets: Sequence[Mapping[str, Any]] = (),
) -> AllFacts:
    """Ask the server for everything that the checks judge.

    Args:
        database: where it is.
        connector: None when it is unknown.
        modes: how the connector writes values.
        offsets: what Connect has committed for the connector.

    Raises:
        DependencyError: it does not answer.
        ConfigError, LoginRefused, InvalidConfig: it refuses us, or is misnamed.
    """
    with (
        connect(database, statement_timeout=_STATEMENT_TIMEOUT, name="lakemark doctor") as session,
        translated(),
    ):
        server = _server(session, database)
        lost = session.is_mariadb and session.version >= _NO_GENERATED
        if connector is None:
            return AllFacts(DatabaseFacts(server), None, lost)
        prefix = connector.settings.get("topic.prefix", "")
        log = whose_log(session, committed_place(offsets, 0, server=prefix))
        facts = DatabaseFacts(server, server_id_of(connector.settings), log)
        return AllFacts(facts, _relations(session, connector, modes), lost)


def _server(session: Session, database: DatabaseConfig) -> ServerFacts:
    begun = time.time()
    ((now, version, user),) = session.execute(
        "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) AS DOUBLE), VERSION(), CURRENT_USER()"
    )
    skew = float(now) - (begun + time.time()) / 2
    names = ", ".join(["%s"] * len(VARIABLES))
    query = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"
    variables = {name.lower(): value for name, value in session.execute(query, VARIABLES)}
    address = DatabaseAddress.of(database)
    return ServerFacts(
        f"{address.host}:{address.port}",
        user,
        version,
        session.is_mariadb,
        variables,
        skew,
        may_ask(session),
    )


def _relations(
    session: Session, connector: CapturedTables, modes: HandlingModes
) -> tuple[Relation, ...]:
    kinds = {
        text_of(database, name): kind for database, name, kind in session.execute(_TABLES, [SYSTEM])
    }
    names = [
        table for table in kinds if table in connector.tables and table != connector.signal_table
    ]
    columns, changing = columns_of(session, names), cascades(session)
    schemas = schemas_of(session, names, modes, settings=connector.settings)
    return tuple(
        Relation(
            table,
            is_view=kinds[table] == "VIEW",
            select=_may_read(session, table),
            key=_key(schemas.get(table)),
            types=tuple((column.name, column.kind.base) for column in columns.get(table, ())),
            generated=tuple(column.name for column in columns.get(table, ()) if column.generated),
            cascades=tuple(changing.get(table, ())),
        )
        for table in names
    )


def _key(schema: TableSchema | None) -> tuple[str, ...]:
    return tuple(schema.key) if schema else ()


def _may_read(session: Session, table: str) -> bool:
    try:
        session.execute(f"SELECT 1 FROM {table_name(*pair_of(table))} LIMIT 0")  # noqa: S608
    except pymysql.MySQLError as error:
        if error.args and error.args[0] in _REFUSED:
            return False
        raise
    return True


class DatabaseWatch:
    """One session that is asked again and again: MySQL's and MariaDB's `LogWatch`."""

    def __init__(self, database: DatabaseConfig, name: str, *, within: timedelta) -> None:
        self._kept = KeptSession(
            database, name=f"lakemark {name} watch", statement_timeout=within, lock_timeout=within
        )

    def reader(self) -> LogReader | None:
        """See `LogWatch`: the server keeps its log for nobody."""
        return None

    def there(self, tables: frozenset[str]) -> frozenset[str]:
        """See `LogWatch`."""
        pairs = [pair_of(table) for table in sorted(tables)]
        if not pairs:
            return frozenset()
        places = ", ".join(["(%s, %s)"] * len(pairs))
        query = f"{_NAMES} WHERE (table_schema, table_name) IN ({places})"
        rows = self._rows(query, [part for pair in pairs for part in pair])
        return frozenset(text_of(*row) for row in rows)

    def close(self) -> None:
        """See `LogWatch`."""
        self._kept.drop()

    def _rows(self, query: str, parameters: Sequence[object]) -> list[tuple[str, ...]]:
        try:
            with translated():
                return self._kept.get().execute(query, parameters)
        except LakemarkError:
            self._kept.drop()
            raise
