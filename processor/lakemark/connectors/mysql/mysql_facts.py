"""Looks at the catalog of MySQL or MariaDB; read only."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

import pymysql

from lakemark.connectors.mysql.catalog_facts import ColumnFacts, SourceFacts, TableFacts
from lakemark.connectors.mysql.mysql_catalog import SYSTEM
from lakemark.connectors.mysql.mysql_errors import translated
from lakemark.connectors.mysql.mysql_session import Session, connect
from lakemark.connectors.mysql.positions import number_of
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.table_id import text_of

_STATEMENT_TIMEOUT: Final = timedelta(seconds=20)
_TABLES: Final = """
SELECT table_schema, table_name, COALESCE(CAST(create_time AS CHAR), '')
FROM information_schema.tables
WHERE table_schema NOT IN %s AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')
"""
_COLUMNS: Final = """
SELECT table_schema, table_name, column_name, column_type, data_type, is_nullable, column_default,
       COALESCE(character_set_name, ''), COALESCE(generation_expression, '') <> ''
FROM information_schema.columns WHERE table_schema NOT IN %s
ORDER BY table_schema, table_name, ordinal_position
"""
_KEYS: Final = """
SELECT table_schema, table_name, index_name, column_name, nullable
FROM information_schema.statistics
WHERE table_schema NOT IN %s AND non_unique = 0
ORDER BY table_schema, table_name, index_name <> 'PRIMARY', index_name, seq_in_index
"""
_PARTITIONS: Final = """
SELECT table_schema, table_name, partition_name
FROM information_schema.partitions
WHERE table_schema NOT IN %s AND partition_name IS NOT NULL
GROUP BY table_schema, table_name, partition_name
ORDER BY table_schema, table_name, MIN(partition_ordinal_position)
"""
_CASCADES: Final = """
SELECT constraint_schema, table_name, constraint_name
FROM information_schema.referential_constraints
WHERE constraint_schema NOT IN %s
  AND (delete_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT')
       OR update_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT'))
ORDER BY constraint_schema, table_name, constraint_name
"""
_NOT_ALLOWED: Final = 1227
_NO_SUCH_STATEMENT: Final = 1064


def look(database: DatabaseConfig, wanted: Callable[[str], bool]) -> SourceFacts:
    """Return what the catalog says of the tables that are wanted.

    Args:
        database: where it is.
        wanted: which tables, by their texts.

    Raises:
        DependencyError, ConfigError, LoginRefused, InvalidConfig: as `connect` says.
    """
    with (
        connect(database, statement_timeout=_STATEMENT_TIMEOUT, name="lakemark watch") as session,
        translated(),
    ):
        tables = _tables(session, wanted)
        ((server_id, version),) = session.execute("SELECT @@server_id, VERSION()")
        file, pos = _end(session)
        return SourceFacts(int(server_id), _uuid(session), version, file, pos, tables)


def _tables(session: Session, wanted: Callable[[str], bool]) -> dict[str, TableFacts]:
    made = {
        table: when
        for database, name, when in session.execute(_TABLES, [SYSTEM])
        if wanted(table := text_of(database, name))
    }
    columns = _by_table(session.execute(_COLUMNS, [SYSTEM]))
    keys = _by_table(session.execute(_KEYS, [SYSTEM]))
    partitions = _by_table(session.execute(_PARTITIONS, [SYSTEM]))
    cascades = _by_table(session.execute(_CASCADES, [SYSTEM]))
    return {
        table: TableFacts(
            table,
            when,
            tuple(map(_column, columns[table])),
            _key(keys[table]),
            tuple(name for (name,) in partitions[table]),
            tuple(name for (name,) in cascades[table]),
        )
        for table, when in made.items()
    }


def _by_table(rows: Iterable[tuple[Any, ...]]) -> Mapping[str, list[tuple[Any, ...]]]:
    found: Mapping[str, list[tuple[Any, ...]]] = defaultdict(list)
    for database, name, *rest in rows:
        found[text_of(database, name)].append(tuple(rest))
    return found


def _column(row: tuple[Any, ...]) -> ColumnFacts:
    name, kind, base, nullable, default, charset, generated = row
    text = default.decode("utf-8", "replace") if isinstance(default, bytes) else default
    if text == "NULL":  # MariaDB's way to say that there is none
        text = None
    return ColumnFacts(name, kind, base.lower(), nullable == "YES", text, charset, bool(generated))


def _key(rows: Iterable[tuple[Any, ...]]) -> tuple[str, ...]:
    """Return the columns of the primary key, else of the first unique index without NULL."""
    indexes: dict[str, list[tuple[str, str]]] = {}
    for index, column, nullable in rows:
        indexes.setdefault(index, []).append((column, nullable or ""))
    for columns in indexes.values():
        if all(column and nullable != "YES" for column, nullable in columns):
            return tuple(column for column, _ in columns)
    return ()


def _uuid(session: Session) -> str:
    """Return MySQL's server_uuid; MariaDB has none."""
    if session.is_mariadb:
        return ""
    ((uuid,),) = session.execute("SELECT @@server_uuid")
    return str(uuid)


def _end(session: Session) -> tuple[int, int]:
    """Return the file and place at which the log ends; 0 where we must not ask."""
    statements = ["SHOW MASTER STATUS"] if session.is_mariadb else ["SHOW BINARY LOG STATUS"]
    statements += [] if session.is_mariadb else ["SHOW MASTER STATUS"]  # before 8.2
    for statement in statements:
        try:
            rows = session.execute(statement)
        except pymysql.MySQLError as error:
            if error.args and error.args[0] in {_NOT_ALLOWED, _NO_SUCH_STATEMENT}:
                continue
            raise
        for file, pos, *_ in rows:
            return number_of(file) or 0, int(pos)
    return 0, 0
