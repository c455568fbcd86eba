"""PostgreSQL: sessions that read alike everywhere, and its errors in our words."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.conninfo import make_conninfo
from psycopg.rows import tuple_row

from lakemark.connectors.database import STATEMENT_TIMEOUT
from lakemark.connectors.postgres.column_sql import SESSION_SETTINGS, quoted
from lakemark.connectors.postgres.postgres import conninfo, unavailable
from lakemark.connectors.postgres.visibility import Server, Snapshot
from lakemark.errors import ConfigError, DependencyError, LakemarkError, TableError
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.table_id import pair_of

Session = psycopg.Connection[Any]

# ACCESS SHARE waits only for DDL. Behind a long one the chunk is better read later.
LOCK_TIMEOUT: Final = timedelta(seconds=10)
BRIEFLY: Final = timedelta(milliseconds=200)  # where somebody else waits meanwhile
_ROW_SECURITY: Final = " (with row-level security also ALTER ROLE <lakemark's user> BYPASSRLS)"
_LEAST_VERSION: Final = 130_000  # pg_current_snapshot
_IDLE_VERSION: Final = 140_000  # idle_session_timeout
# A server one of whose processes crashed goes on; its statistics begin anew with the recovery.
_PROOF: Final = """
SELECT pg_current_snapshot()::text,
       to_char(greatest(pg_postmaster_start_time(),
                        (SELECT stats_reset FROM pg_catalog.pg_stat_archiver))
               AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
       CASE WHEN pg_is_in_recovery() THEN NULL
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END
"""


@contextmanager
def connect(
    database: DatabaseConfig,
    *,
    statement_timeout: timedelta = STATEMENT_TIMEOUT,
    lock_timeout: timedelta = LOCK_TIMEOUT,
    application_name: str = "lakemark snapshot",
) -> Iterator[Session]:
    """A session for snapshots; it commits each statement unless a transaction is begun.

    Its time zone and output styles are set, whatever the user's or the database's own are.

    Args:
        database: where it is.
        statement_timeout: of every statement; 0 for none.
        lock_timeout: how long it waits for a lock.
        application_name: as pg_stat_activity shows it.

    Raises:
        DependencyError: ``database-unavailable``.
        LoginRefused: it does not let us in; retried by a pipeline that runs.
        ConfigError: it is older than PostgreSQL 13, or ``database.url`` is wrong.
    """
    timeouts = {
        "statement_timeout": f"{round(statement_timeout.total_seconds() * 1000)}",
        "lock_timeout": f"{round(lock_timeout.total_seconds() * 1000)}",
    }
    with translated():
        session = psycopg.connect(
            make_conninfo(conninfo(database), application_name=application_name),
            autocommit=True,
            row_factory=tuple_row,
        )
    with closing(session):
        with translated():
            for name, value in {**SESSION_SETTINGS, **timeouts}.items():
                session.execute("SELECT set_config(%s, %s, false)", [name, value])
        if session.info.server_version < _LEAST_VERSION:
            raise ConfigError(
                "snapshots need PostgreSQL 13 or later",
                hint="update the database, or leave snapshots to the connector",
            )
        yield session


class KeptSession:
    """A session of one thread, made when it is needed and kept; for `get` of `connect`'s errors.

    Args:
        database: where it is.
        name: of the application, as pg_stat_activity shows it.
        statement_timeout, lock_timeout: as for `connect`.
        idle: the server ends it when it was not used for so long, where it can; "" = never.
    """

    def __init__(
        self,
        database: DatabaseConfig,
        *,
        name: str,
        statement_timeout: timedelta = STATEMENT_TIMEOUT,
        lock_timeout: timedelta = LOCK_TIMEOUT,
        idle: str = "",
    ) -> None:
        self._database, self._name, self._idle = database, name, idle
        self._statement_timeout, self._lock_timeout = statement_timeout, lock_timeout
        self._open = ExitStack()
        self.session: Session | None = None

    def get(self) -> Session:
        """The session, or a new one in place of a broken one."""
        if self.session is None or self.session.broken or self.session.closed:
            self.drop()
            session = self._open.enter_context(
                connect(
                    self._database,
                    statement_timeout=self._statement_timeout,
                    lock_timeout=self._lock_timeout,
                    application_name=self._name,
                )
            )
            if self._idle and session.info.server_version >= _IDLE_VERSION:
                session.execute(
                    "SELECT pg_catalog.set_config('idle_session_timeout', %s, false)", [self._idle]
                )
            self.session = session
        return self.session

    def checked(self) -> Session:
        """Return a session as `get` does, and check that it answers."""
        if self.session is not None:
            try:
                self.session.execute("SELECT 1")
            except psycopg.Error:  # it was closed meanwhile
                self.drop()
        return self.get()

    def drop(self) -> None:
        """Close it. Never raises."""
        stack, self._open, self.session = self._open, ExitStack(), None
        with suppress(psycopg.Error):  # it is gone already
            stack.close()

    def cancel(self) -> None:
        """End what it waits for; from any thread."""
        session = self.session
        if session is not None and not session.closed:
            with suppress(psycopg.Error):
                session.cancel()


def current_snapshot(session: Session) -> Snapshot:
    """The snapshot of this statement, or of the transaction if it has one for all statements.

    Raises:
        DependencyError: ``database-is-standby``: transaction ids of a standby prove nothing here.
    """
    row = session.execute(_PROOF).fetchone()
    if row is None or row[2] is None:
        raise DependencyError(
            "the database is a standby",
            code="database-is-standby",
            hint="set database.url to the primary; after a failover it is tried again",
        )
    return Snapshot.parse(row[0], Server(row[1], row[2]))


@contextmanager
def translated(table: str = "") -> Iterator[None]:
    """Turn the database's errors into ours, which never hold values.

    Args:
        table: ``schema.table`` that was worked on, for the messages.

    Raises:
        DependencyError: ``statement-timeout`` (halve the chunk), ``table-locked``,
            ``database-unavailable``.
        TableError: ``table-gone``, ``schema-changed``, ``not-a-table``, ``text-unreadable``,
            ``query-failed``.
        ConfigError: a privilege is missing; the hint is the SQL that grants it.
    """
    try:
        yield
    except psycopg.Error as error:
        raise _ours(error, table) from error


def grant(privilege: str, table: str) -> str:
    """SQL that grants a privilege on a table to lakemark's user."""
    schema, name = pair_of(table)
    return (
        f"GRANT USAGE ON SCHEMA {quoted(schema)} TO <lakemark's user>;"
        f" GRANT {privilege} ON {quoted(schema, name)} TO <lakemark's user>;"
    )


def _ours(error: psycopg.Error, table: str) -> LakemarkError:
    what = table or "the database"
    if isinstance(error, errors.QueryCanceled):
        return DependencyError(
            f"reading {what} took longer than the statement timeout",
            code="statement-timeout",
            hint="make chunks smaller, or raise the timeout",
        )
    if isinstance(error, errors.LockNotAvailable):
        return DependencyError(
            f"{what} is locked by somebody else",
            code="table-locked",
            hint="wait for the schema change (ALTER TABLE, VACUUM FULL ...) to end",
        )
    if isinstance(error, errors.InsufficientPrivilege) and table:
        hint = grant("SELECT", table) + _ROW_SECURITY
        return ConfigError(f"lakemark's user may not read all rows of {what}", hint=hint)
    of_statement = bool(table) and (error.sqlstate or "")[:2] in _OF_A_STATEMENT
    away = isinstance(error, psycopg.OperationalError | errors.InsufficientPrivilege)
    # The client's own result, without a state: the connection has ended.
    ended = type(error) is psycopg.DatabaseError and error.sqlstate is None
    if ended or (away and not of_statement):
        return unavailable(error)
    return _of_the_table(error, what)


# The database has answered, though psycopg counts these among the errors of its operation: limits
# of a statement, objects that are not ready, files that cannot be read.
_OF_A_STATEMENT: Final = frozenset({"54", "55", "58"})
_KNOWN: Final[tuple[tuple[tuple[type[psycopg.Error], ...], str, str], ...]] = (
    (
        (errors.UndefinedTable, errors.InvalidSchemaName),
        "table-gone",
        "correct the name, or take the table out of the configuration",
    ),
    (
        (errors.WrongObjectType,),
        "not-a-table",
        "name the table behind it: only tables have events",
    ),
    (
        (errors.UndefinedColumn, errors.UndefinedObject, errors.DatatypeMismatch),
        "schema-changed",
        "the chunk is read again with the new schema",
    ),
    (
        (errors.CharacterNotInRepertoire, errors.UntranslatableCharacter),
        "text-unreadable",
        "the database's encoding is SQL_ASCII: mend the text, or leave the column out",
    ),
)


def _of_the_table(error: psycopg.Error, what: str) -> TableError:
    for kinds, code, hint in _KNOWN:
        if isinstance(error, kinds):
            return TableError(f"{what} cannot be read: {code}", code=code, hint=hint)
    state = error.sqlstate or type(error).__name__
    return TableError(
        f"{what} cannot be read: the database answers with error {state}",
        code="query-failed",
        hint="see the database's log for the statement",
    )
