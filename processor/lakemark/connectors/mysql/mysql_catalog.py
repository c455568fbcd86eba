"""MySQL and MariaDB: the catalog, for the exact types of the columns."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pymysql
import structlog

from lakemark.connectors.mysql.catalog import (
    CATALOG_SQL,
    CatalogColumn,
    from_catalog,
    key_of,
    tables_of,
)
from lakemark.connectors.mysql.catalog_facts import Cascade
from lakemark.connectors.mysql.connector_settings import MARIADB, MYSQL
from lakemark.connectors.mysql.mysql_errors import number_of, translated
from lakemark.connectors.mysql.mysql_session import Session, connect
from lakemark.connectors.mysql.names import table_name
from lakemark.connectors.table_choice import key_columns, wants_column
from lakemark.errors import RefusedError, TableError
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key_ranges import Condition
from lakemark.model.schema import TableSchema
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.table_id import pair_of, text_of

log = structlog.get_logger(__name__)

SYSTEM: Final = ("information_schema", "mysql", "performance_schema", "sys")
"""Databases of the servers themselves."""

# Looks at the catalog take milliseconds; behind a lock they are better given up.
_STATEMENT_TIMEOUT: Final = timedelta(seconds=30)
_KINDS: Final = ("BASE TABLE", "SYSTEM VERSIONED")
_ALL_TABLES: Final = """
SELECT table_schema, table_name FROM information_schema.tables
WHERE table_schema NOT IN %s AND table_type IN %s ORDER BY table_schema, table_name
"""
_ENGINE: Final = """
SELECT COALESCE(engine, '') FROM information_schema.tables
WHERE table_schema = %s AND table_name = %s
"""
_SIZE: Final = """
SELECT COALESCE(table_rows, 0), COALESCE(data_length, 0)
FROM information_schema.tables WHERE table_schema = %s AND table_name = %s
"""
_COUNTER: Final = re.compile(r" AUTO_INCREMENT=\d+")
_CASCADES: Final = """
SELECT constraint_schema, table_name, constraint_name, unique_constraint_schema,
       referenced_table_name,
       update_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT')
       AND COALESCE(unique_constraint_name, '') <> 'PRIMARY'
FROM information_schema.referential_constraints
WHERE constraint_schema NOT IN %s
  AND (delete_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT')
       OR update_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT'))
ORDER BY constraint_schema, table_name, constraint_name
"""
_LOGGED_CASCADES: Final = "SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'"
"""Of MySQL from 9.6 on; where it is OFF, what foreign keys do is in the log."""
_NAMES: Final = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table as the catalog has it.

    Attributes:
        schema: as events have it.
        columns: the catalog's, in the order of the schema.
        engine: the storage engine.
    """

    schema: TableSchema
    columns: tuple[CatalogColumn, ...]
    engine: str


def read_schemas(
    database: DatabaseConfig,
    tables: Sequence[str] | None,
    modes: HandlingModes,
    *,
    settings: Mapping[str, str],
    captured: Container[str] | None = None,
) -> dict[str, TableSchema]:
    """Schemas from the server's catalog.

    Args:
        database: where it is.
        tables: ``database.table`` names; None for all but the system's own.
        modes: how the connector writes values.
        settings: the connector's configuration: its column lists and ``message.key.columns`` are
            honoured, so that the schema is that of its events.
        captured: of all tables only these are looked at.

    Returns:
        by ``database.table``; a table that does not exist is left out, as is one that cannot be
        described (`schemas_of`). A table without a key has an empty one.

    Raises:
        DependencyError, LoginRefused, InvalidConfig: as `connect` says.
    """
    with (
        connect(database, statement_timeout=_STATEMENT_TIMEOUT, name="lakemark") as session,
        translated(),
    ):
        names = tables
        if names is None:
            names = [t for t in _all_tables(session) if captured is None or t in captured]
        return schemas_of(session, names, modes, settings=settings)


def table_names(database: DatabaseConfig) -> list[str]:
    """Return the ``database.table`` names of all tables but the system's own.

    Raises:
        DependencyError, LoginRefused, InvalidConfig: as `connect` says.
    """
    with (
        connect(database, statement_timeout=_STATEMENT_TIMEOUT, name="lakemark") as session,
        translated(),
    ):
        return _all_tables(session)


def schemas_of(
    session: Session, tables: Sequence[str], modes: HandlingModes, *, settings: Mapping[str, str]
) -> dict[str, TableSchema]:
    """Schemas, as `read_schemas` gives them.

    A table of which the catalog says something that nobody understands is left out and logged: it
    is then unknown, and keeps no other one from being read.

    Raises:
        pymysql.MySQLError: whatever the session raises.
    """
    found = {}
    for table, columns, key in _kept(session, tables, settings):
        try:
            found[table] = from_catalog(table, columns, key, modes, connector=_connector(session))
        except TableError as error:
            log.warning("catalog.unreadable", table=table, code=error.code, reason=error.message)
    return found


class KnownTables:
    """Tables as the catalog has described them, for as long as their definitions are the same.

    Args:
        modes: how the connector writes values.
        settings: the connector's configuration.
    """

    def __init__(self, modes: HandlingModes, settings: Mapping[str, str]) -> None:
        self.modes, self._settings = modes, settings
        self._known: dict[str, tuple[str, DescribedTable]] = {}

    def get(self, session: Session, table: str, definition: str) -> DescribedTable:
        """Return a table, its schema as `read_schemas` gives it.

        Args:
            session: whose transaction keeps others from changing the table.
            table: its text.
            definition: see `definition`.

        Raises:
            TableError: ``table-gone``, ``not-a-table``; as `from_catalog` says.
            pymysql.MySQLError: whatever the session raises.
        """
        known = self._known.get(table)
        if known is None or known[0] != definition:
            found = _described(session, table, self.modes, self._settings)
            known = self._known[table] = definition, found
        return known[1]


def definition(session: Session, table: str) -> str:
    """Return the statement that would make a table, without the counter of its rows.

    Raises:
        TableError: ``not-a-table``: it is a view, or a sequence.
        pymysql.MySQLError: whatever the session raises.
    """
    name = table_name(*pair_of(table)).replace("%", "%%")
    ((_, text, *_),) = session.execute(f"SHOW CREATE TABLE {name}")
    if not str(text).startswith("CREATE TABLE"):
        raise not_a_table(table)
    return _COUNTER.sub("", str(text))


def not_a_table(table: str) -> TableError:
    """Return the error for a view, a sequence, and whatever else has no events."""
    return TableError(
        f"{table} is no table",
        code="not-a-table",
        hint="name the table behind it: only tables have events",
    )


def sizes(session: Session, table: str) -> tuple[int, int]:
    """Return about how many rows a table has, and about how large they are in bytes."""
    rows = session.execute(_SIZE, pair_of(table))
    return (int(rows[0][0]), int(rows[0][1])) if rows else (0, 0)


def _described(
    session: Session, table: str, modes: HandlingModes, settings: Mapping[str, str]
) -> DescribedTable:
    kept = list(_kept(session, [table], settings))
    engines = session.execute(_ENGINE, pair_of(table))
    if engines and not kept:
        raise not_a_table(table)
    if not engines:
        raise _gone(table)
    ((_, columns, key),) = kept
    schema = from_catalog(table, columns, key, modes, connector=_connector(session))
    by_name = {column.name: column for column in columns}
    ours = tuple(by_name[column.name] for column in schema.columns)
    return DescribedTable(schema, ours, str(engines[0][0]))


def _connector(session: Session) -> str:
    return MARIADB if session.is_mariadb else MYSQL


def column_names(session: Session, table: str) -> list[str]:
    """Return the names of a table's columns, in its order.

    Raises:
        TableError: ``table-gone``: there is none.
        pymysql.MySQLError: whatever the session raises.
    """
    names = [name for (name,) in session.execute(_NAMES, pair_of(table))]
    if not names:
        raise _gone(table)
    return names


def try_condition(session: Session, table: str, condition: Condition) -> None:
    """Let the server plan a read of the rows for which a condition holds.

    Raises:
        RefusedError: ``bad-condition``: it refuses it.
        pymysql.MySQLError: whatever else the session raises.
    """
    source = table_name(*pair_of(table)).replace("%", "%%")
    query = f"SELECT 1 FROM {source} WHERE {condition.sql} LIMIT 0"  # noqa: S608 (quoted, bound)
    try:
        session.execute(query, condition.parameters)
    except (pymysql.ProgrammingError, pymysql.DataError) as error:
        raise RefusedError(
            f"the database does not take the filter for {table}: error {number_of(error)}",
            code="bad-condition",
            hint="compare each column with literals of its type",
        ) from error


def _gone(table: str) -> TableError:
    return TableError(
        f"{table} cannot be read: table-gone",
        code="table-gone",
        hint="correct the name, or take the table out of the configuration",
    )


def columns_of(session: Session, tables: Sequence[str]) -> dict[str, list[CatalogColumn]]:
    """Return all columns of tables, in their order, with their places in the key.

    Args:
        session: of `connect`.
        tables: their texts; one that does not exist is left out, as is a view.

    Raises:
        pymysql.MySQLError: whatever the session raises.
    """
    pairs = [pair_of(table) for table in tables]
    rows = session.execute(CATALOG_SQL, {"tables": pairs}) if pairs else []
    return tables_of(rows, mariadb=session.is_mariadb)


def cascades(session: Session) -> dict[str, list[Cascade]]:
    """Return the foreign keys that change or delete rows without an event, by their table.

    MariaDB does so, and MySQL where InnoDB itself takes care of foreign keys.

    Raises:
        pymysql.MySQLError: whatever the session raises.
    """
    found: dict[str, list[Cascade]] = {}
    if any(value == "OFF" for _, value in session.execute(_LOGGED_CASCADES)):
        return found
    for database, name, constraint, *parent, updates in session.execute(_CASCADES, [SYSTEM]):
        one = Cascade(constraint, text_of(*parent), bool(int(updates)))
        found.setdefault(text_of(database, name), []).append(one)
    return found


def _all_tables(session: Session) -> list[str]:
    return [text_of(*row) for row in session.execute(_ALL_TABLES, [SYSTEM, _KINDS])]


def _kept(
    session: Session, tables: Sequence[str], settings: Mapping[str, str]
) -> list[tuple[str, list[CatalogColumn], list[str]]]:
    """Return tables, their columns that the connector sends, and their keys."""
    found = []
    for table, columns in columns_of(session, tables).items():
        key = key_columns(settings, table, [c.name for c in columns]) or key_of(columns)
        kept = [c for c in columns if c.name in key or wants_column(settings, table, c.name)]
        found.append((table, kept, list(key)))
    return found
