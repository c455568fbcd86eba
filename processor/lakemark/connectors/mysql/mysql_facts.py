"""Looks at the catalog of MySQL or MariaDB; read only."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import pymysql

from lakemark.connectors.mysql.catalog import CatalogColumn, key_of
from lakemark.connectors.mysql.catalog_facts import ColumnFacts, SourceFacts, TableFacts
from lakemark.connectors.mysql.mariadb_snapshot import consistent_snapshot
from lakemark.connectors.mysql.mysql_catalog import SYSTEM, cascades, columns_of
from lakemark.connectors.mysql.mysql_errors import number_of as number_in
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
_PARTITIONS: Final = """
SELECT table_schema, table_name, partition_name
FROM information_schema.partitions
WHERE table_schema NOT IN %s AND partition_name IS NOT NULL
GROUP BY table_schema, table_name, partition_name
ORDER BY table_schema, table_name, MIN(partition_ordinal_position)
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
    columns, changing = columns_of(session, [*made]), cascades(session)
    partitions: dict[str, list[str]] = {}
    for database, name, partition in session.execute(_PARTITIONS, [SYSTEM]):
        partitions.setdefault(text_of(database, name), []).append(partition)
    return {
        table: TableFacts(
            table,
            made[table],
            tuple(map(_column, found)),
            tuple(key_of(found)),
            tuple(partitions.get(table, ())),
            tuple(changing.get(table, ())),
        )
        for table, found in columns.items()
    }


def _column(column: CatalogColumn) -> ColumnFacts:
    return ColumnFacts(
        column.name,
        column.column_type,
        column.kind.base,
        nullable=not column.not_null,
        charset=column.charset or "",
        generated=column.generated,
    )


def _uuid(session: Session) -> str:
    """Return MySQL's server_uuid; MariaDB has none."""
    if session.is_mariadb:
        return ""
    ((uuid,),) = session.execute("SELECT @@server_uuid")
    return str(uuid)


def _end(session: Session) -> tuple[int, int]:
    """Return the file and place at which the log ends; of MySQL 0 where we must not ask."""
    if session.is_mariadb:
        with consistent_snapshot(session) as place:  # takes no right that we might lack
            return place.file, place.pos
    for statement in ("SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"):  # the latter before 8.2
        try:
            rows = session.execute(statement)
        except pymysql.MySQLError as error:
            if number_in(error) in {_NOT_ALLOWED, _NO_SUCH_STATEMENT}:
                continue
            raise
        for file, pos, *_ in rows:
            return number_of(file) or 0, int(pos)
    return 0, 0
