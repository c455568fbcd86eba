"""Looks at the catalog of MySQL or MariaDB; read only."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from lakemark.connectors.mysql.binlog_snapshot import NO_PRIVILEGE, log_end
from lakemark.connectors.mysql.catalog import CatalogColumn, key_of
from lakemark.connectors.mysql.catalog_facts import ColumnFacts, SourceFacts, TableFacts
from lakemark.connectors.mysql.mysql_catalog import SYSTEM, cascades, columns_of
from lakemark.connectors.mysql.mysql_errors import translated
from lakemark.connectors.mysql.mysql_session import Session, connect
from lakemark.errors import ConfigError
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
    """Return the file and place at which the log ends; 0 where we must not ask MySQL for it."""
    try:
        place = log_end(session)
    except ConfigError as error:
        if error.code != NO_PRIVILEGE:
            raise
        return 0, 0
    return place.file, place.pos
