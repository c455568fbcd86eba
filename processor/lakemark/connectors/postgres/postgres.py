"""PostgreSQL: the catalog, for the exact types of the columns."""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Final

import psycopg
import structlog
from psycopg import errors
from psycopg.conninfo import make_conninfo
from psycopg.rows import tuple_row

from lakemark.connectors.postgres.catalog import (
    POSTGRES_CATALOG_SQL,
    CatalogColumn,
    from_catalog,
)
from lakemark.connectors.table_choice import key_columns, wants_column
from lakemark.errors import DependencyError, LakemarkError, TableError
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.layers import InvalidConfig, LoginRefused, Mistake
from lakemark.settings.masking import foreign
from lakemark.settings.table_id import pair_of, text_of

log = structlog.get_logger(__name__)

# Catalog reads take milliseconds; a lock on the catalog (a long DDL) must not hang us.
_STATEMENT_TIMEOUT_MS: Final = 30_000
# libpq says these without a code; asking again does not mend them.
_REFUSED: Final = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "not permitted to log in",
)
# libpq says these of database.url before it reaches a server.
_WRONG: Final = re.compile(r'invalid (?:integer value|"?\w+"? value|port number)')
_MEND: Final = "check database.url, database.password and the user's rights"
_ALL_TABLES: Final = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
ORDER BY 1, 2
"""

_GENERATED_VERSION: Final = 180_000
_GENERATED: Final = "SELECT FROM pg_catalog.pg_publication WHERE pubname = %s AND pubgencols = 's'"


def conninfo(database: DatabaseConfig) -> str:
    """Return libpq's connection string, the password included.

    Raises:
        InvalidConfig: ``database.url`` has a parameter that libpq does not know.
    """
    password = database.password.get_secret_value() if database.password else None
    seconds = max(2, round(database.connect_timeout.total_seconds()))  # libpq's least
    options: dict[str, str | int] = {"connect_timeout": seconds, "application_name": "lakemark"}
    if password is not None:
        options["password"] = password
    try:
        return make_conninfo(database.url, **options)
    except psycopg.ProgrammingError as error:
        raise _wrong(error) from None  # its text may hold a part of a password


def read_schemas(
    database: DatabaseConfig,
    tables: Sequence[str] | None,
    modes: HandlingModes,
    *,
    settings: Mapping[str, str],
    captured: Container[str] | None = None,
) -> dict[str, TableSchema]:
    """Schemas from the database's catalog, as of one moment.

    Args:
        database: where it is.
        tables: ``schema.table`` names; None for all tables outside the system's schemas.
        modes: how the connector writes values.
        settings: the connector's configuration: its column lists and ``message.key.columns`` are
            honoured, so that the schema is that of its events.
        captured: of all tables only these are looked at.

    Returns:
        by ``schema.table``; a table that does not exist is left out, as is one that cannot be
        described (`schemas_of`). A table without a key has an empty one.

    Raises:
        DependencyError: the database does not answer.
        LoginRefused: it refuses us.
        InvalidConfig: ``database.url`` is wrong.
    """
    with _moment(database) as session:
        names = tables
        if names is None:
            names = [t for t in _all_tables(session) if captured is None or t in captured]
        found = schemas_of(session, names, modes, settings=settings)
    return {table: schema for table, (schema, _) in found.items()}


def table_names(database: DatabaseConfig) -> list[str]:
    """Return the ``schema.table`` names of all tables outside the system's schemas.

    Raises:
        DependencyError, LoginRefused, InvalidConfig: as `read_schemas` says.
    """
    with _moment(database) as session:
        return _all_tables(session)


@contextmanager
def catalog_session(database: DatabaseConfig) -> Iterator[psycopg.Connection[Any]]:
    """A session for questions to the catalog, without a transaction.

    Raises:
        DependencyError, LoginRefused, InvalidConfig: as `read_schemas` says.
    """
    try:
        with psycopg.connect(conninfo(database), autocommit=True, row_factory=tuple_row) as session:
            yield session
    except psycopg.Error as error:
        raise unavailable(error) from error


@contextmanager
def _moment(database: DatabaseConfig) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that sees one moment of the catalog."""
    try:
        with psycopg.connect(
            conninfo(database), autocommit=False, row_factory=tuple_row
        ) as session:
            session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            session.execute(f"SET LOCAL statement_timeout = {_STATEMENT_TIMEOUT_MS}")
            yield session
    except psycopg.Error as error:
        raise unavailable(error) from error


def schemas_of(
    session: psycopg.Connection[Any],
    tables: Sequence[str],
    modes: HandlingModes,
    *,
    settings: Mapping[str, str],
) -> dict[str, tuple[TableSchema, tuple[CatalogColumn, ...]]]:
    """Schemas as the session's transaction sees them, and the catalog's columns behind them.

    Args and returns as `read_schemas`; the catalog's columns are those of the schema, in its order.
    A table of which the catalog says something that nobody understands is left out and logged: it
    is then unknown, and keeps no other one from being read.

    Raises:
        psycopg.Error: whatever the session raises.
    """
    pairs = [pair_of(table) for table in tables]
    parameters = {"schemas": [s for s, _ in pairs], "tables": [t for _, t in pairs]}
    rows = session.execute(POSTGRES_CATALOG_SQL, parameters).fetchall()
    schemas = {}
    generated = any(CatalogColumn(*row[2:]).generated for row in rows)
    sent = generated and _sends_generated(session, settings)
    for table, columns, key in _kept(rows, settings, generated=sent):
        try:
            schema = from_catalog(table, columns, key, modes)
        except TableError as error:
            log.warning("catalog.unreadable", table=table, code=error.code, reason=error.message)
            continue
        schemas[table] = schema, tuple(c for c in columns if c.name in schema.by_name)
    return schemas


def columns_of(
    session: psycopg.Connection[Any], tables: Sequence[str], *, settings: Mapping[str, str]
) -> dict[str, tuple[CatalogColumn, ...]]:
    """All columns that the connector's lists leave in, those too that it cannot write.

    Raises:
        psycopg.Error: whatever the session raises.
    """
    pairs = [pair_of(table) for table in tables]
    parameters = {"schemas": [s for s, _ in pairs], "tables": [t for _, t in pairs]}
    rows = session.execute(POSTGRES_CATALOG_SQL, parameters).fetchall()
    return {table: tuple(kept) for table, kept, _ in _kept(rows, settings, generated=True)}


def _all_tables(session: psycopg.Connection[Any]) -> list[str]:
    return [text_of(*row) for row in session.execute(_ALL_TABLES).fetchall()]


def _kept(
    rows: Sequence[tuple[Any, ...]], settings: Mapping[str, str], *, generated: bool
) -> Iterator[tuple[str, list[CatalogColumn], list[str]]]:
    for table, group in groupby(rows, key=lambda row: text_of(row[0], row[1])):
        found = [CatalogColumn(*row[2:]) for row in group]
        columns = [c for c in found if generated or not c.generated]
        placed = [(c.key_position, c.name) for c in columns if c.key_position]
        key = key_columns(settings, table, [c.name for c in columns])
        key = key or [name for _, name in sorted(placed)]
        kept = [c for c in columns if c.name in key or wants_column(settings, table, c.name)]
        yield table, kept, list(key)


def _sends_generated(session: psycopg.Connection[Any], settings: Mapping[str, str]) -> bool:
    """Say whether generated columns are in the log: from PostgreSQL 18 on, if published.

    Otherwise they are in rows of the connector's own snapshot and in no other event.
    """
    if session.info.server_version < _GENERATED_VERSION:
        return False
    name = settings.get("publication.name", "dbz_publication")
    return session.execute(_GENERATED, [name]).fetchone() is not None


def unavailable(error: psycopg.Error) -> LakemarkError:
    """Translate a connection's error: the database is away, refuses us, or is misnamed."""
    if error.sqlstate is None and _WRONG.search(str(error)):
        return _wrong(error)
    refused = isinstance(error, errors.InsufficientPrivilege | errors.InvalidPassword)
    if refused or any(sign in str(error) for sign in _REFUSED):
        return _refused(error)
    return DependencyError(
        f"the database is away: {_one_line(error)}",
        code="database-unavailable",
        hint="start it, or correct the section database",
    )


def _wrong(error: psycopg.Error) -> InvalidConfig:
    said = _one_line(error).removeprefix("connection is bad: ")
    if isinstance(error, psycopg.ProgrammingError) and "query parameter" not in said:
        said = said.partition(":")[0]
    hint = "correct it: behind the ? stand parameters of libpq, such as sslmode=verify-full"
    return InvalidConfig([Mistake("database.url", said, hint)])


def _refused(error: psycopg.Error) -> InvalidConfig:
    if isinstance(error, errors.InsufficientPrivilege):
        return InvalidConfig([Mistake("database", f"it refuses us: {_one_line(error)}", _MEND)])
    problem = Mistake("database", f"the database refuses us: {_one_line(error)}", _MEND)
    return LoginRefused(problem, code="database-refused")


def _one_line(error: psycopg.Error) -> str:
    lines = [line.strip() for line in foreign(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
