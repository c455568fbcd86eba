"""MySQL and MariaDB: sessions that read alike everywhere, whatever the server's settings are."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from math import ceil
from typing import Any, Final, TypeAlias

import pymysql

from lakemark.connectors.database import STATEMENT_TIMEOUT
from lakemark.connectors.mysql.mysql_errors import translated, unavailable
from lakemark.connectors.mysql.mysql_url import DatabaseAddress
from lakemark.errors import ConfigError
from lakemark.settings.config import DatabaseConfig

# A table's metadata is locked only by DDL and LOCK TABLES. Behind them the chunk is better read
# later.
LOCK_TIMEOUT: Final = timedelta(seconds=10)
BRIEFLY: Final = timedelta(seconds=1)  # where somebody else waits meanwhile; MySQL's least
# The server ends a statement by itself; a silence that is longer by this is the network's.
_GRACE: Final = timedelta(seconds=30)
_WRITE_TIMEOUT_S: Final = 60  # for queries, which are short
# Seconds that the server waits for us to take rows, such as while other work has the processor.
_TAKEN_WITHIN_S: Final = 600
# What rows and their texts depend on. With a limit of rows a result set would end early, without a
# word; under another isolation a consistent snapshot would be none. A text that is a key has at
# most 3072 bytes, and a sort must not look at the first 1024 alone.
SESSION_SETTINGS: Final = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION time_zone = '+00:00', sql_mode = '', sql_auto_is_null = 0",
    "SET SESSION sql_select_limit = 18446744073709551615, sql_big_selects = 1",
    f"SET SESSION max_sort_length = 16384, net_write_timeout = {_TAKEN_WITHIN_S}",
)
_OF_MARIADB: Final = "SET SESSION query_cache_type = OFF"
_OF_MYSQL: Final = "SET SESSION information_schema_stats_expiry = 0"  # sizes are kept for a day
_VERSION: Final = re.compile(r"(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)", re.ASCII)
# MariaDB: the oldest that is maintained. MySQL: window functions, and CAST to a double.
_LEAST: Final = {True: (10, 6, 0), False: (8, 0, 17)}

Raw: TypeAlias = "pymysql.Connection[Any]"


class Session:
    """One connection; it commits each statement unless a transaction is begun. For one thread.

    Args:
        raw: the driver's connection.
        again: makes another one like it.

    Attributes:
        raw: the driver's connection.
        is_mariadb: what the server is; else it is MySQL.
        version: its three numbers.
    """

    def __init__(self, raw: Raw, again: Callable[[], Raw]) -> None:
        self.raw = raw
        self._again = again
        driver: Any = raw
        self._thread = int(driver.thread_id())
        text = str(driver.get_server_info())
        match = _VERSION.match(text)
        self.is_mariadb = "mariadb" in text.lower()
        self.version = tuple(map(int, match.groups())) if match else ()

    def execute(
        self, query: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Return all rows of a query, as Python's objects.

        Args:
            query: with ``%s`` or ``%(name)s`` for each parameter, and ``%%`` for a percent sign.
            parameters: their values.

        Raises:
            pymysql.MySQLError: as the server says.
        """
        with self.raw.cursor() as cursor:
            cursor.execute(query, parameters)
            return list(cursor.fetchall())

    def literally(self, query: str, parameters: Sequence[Any] = ()) -> str:
        """Return the SQL with its values as literals, quoted as this session's mode needs it."""
        return str(self.raw.cursor().mogrify(query, tuple(parameters)))

    @property
    def closed(self) -> bool:
        """Return whether it was closed, from here or by an error."""
        return not self.raw.open

    def cancel(self) -> None:
        """End what it waits for; from any thread. Never raises."""
        with suppress(pymysql.MySQLError, OSError), closing(self._again()) as other:
            other.query(f"KILL QUERY {self._thread}")

    def close(self) -> None:
        """End it, also in the midst of a result set. Never raises."""
        with suppress(pymysql.MySQLError, OSError):
            self.raw.close()


@contextmanager
def connect(
    database: DatabaseConfig,
    *,
    statement_timeout: timedelta = STATEMENT_TIMEOUT,
    lock_timeout: timedelta = LOCK_TIMEOUT,
    name: str = "lakemark snapshot",
    idle: timedelta | None = None,
) -> Iterator[Session]:
    """A session for snapshots, in UTC and UTF-8, whatever the server's own settings are.

    Args:
        database: where it is.
        statement_timeout: of every statement that reads; 0 for none.
        lock_timeout: how long it waits for a table that is changed; whole seconds.
        name: of the application, as performance_schema.session_connect_attrs shows it.
        idle: the server ends it when it was not used for so long; None = as the server does.

    Raises:
        DependencyError: ``database-unavailable``.
        LoginRefused: it does not let us in; retried by a pipeline that runs.
        ConfigError: it is too old, or ``database.url`` is wrong.
    """
    address = DatabaseAddress.of(database)
    context = address.ssl_context()

    silence = (statement_timeout + _GRACE).total_seconds() if statement_timeout else None

    def made() -> Raw:
        try:
            return pymysql.Connection(
                host=address.host,
                port=address.port,
                user=address.user or None,
                password=address.password.encode(),
                database=address.database or None,
                charset="utf8mb4",
                autocommit=True,
                program_name=name,
                connect_timeout=max(1, ceil(database.connect_timeout.total_seconds())),
                read_timeout=silence,
                write_timeout=_WRITE_TIMEOUT_S,
                ssl=context,
                ssl_disabled=address.ssl_mode == "disabled",
            )
        except (pymysql.MySQLError, OSError, RuntimeError) as error:
            raise unavailable(error) from error

    session = Session(made(), made)
    with closing(session):
        with translated():
            least = _LEAST[session.is_mariadb]
            if session.version < least:
                raise _too_old(session, least)
            for statement in _settings(session, statement_timeout, lock_timeout, idle):
                session.execute(statement)
        yield session


def _settings(
    session: Session, statement: timedelta, lock: timedelta, idle: timedelta | None
) -> Iterator[str]:
    """Yield the statements that make a session's settings."""
    yield from SESSION_SETTINGS
    seconds = statement.total_seconds()
    if session.is_mariadb:
        yield _OF_MARIADB
        yield f"SET SESSION max_statement_time = {seconds:f}"
    else:
        yield _OF_MYSQL
        yield f"SET SESSION max_execution_time = {round(seconds * 1000)}"
    yield f"SET SESSION lock_wait_timeout = {max(1, ceil(lock.total_seconds()))}"
    if idle is not None:
        yield f"SET SESSION wait_timeout = {max(1, ceil(idle.total_seconds()))}"


def _too_old(session: Session, least: tuple[int, ...]) -> ConfigError:
    name = "MariaDB" if session.is_mariadb else "MySQL"
    return ConfigError(
        f"snapshots need {name} {'.'.join(map(str, least))} or later",
        hint="update the database, or leave snapshots to the connector",
    )


class KeptSession:
    """A session of one thread, made when it is needed and kept; `get` has `connect`'s errors.

    Args:
        database: where it is.
        name: of the application, as the server shows it.
        statement_timeout, lock_timeout, idle: as for `connect`.
    """

    def __init__(
        self,
        database: DatabaseConfig,
        *,
        name: str,
        statement_timeout: timedelta = STATEMENT_TIMEOUT,
        lock_timeout: timedelta = LOCK_TIMEOUT,
        idle: timedelta | None = None,
    ) -> None:
        self._database, self._name, self._idle = database, name, idle
        self._statement_timeout, self._lock_timeout = statement_timeout, lock_timeout
        self._open = ExitStack()
        self.session: Session | None = None

    def get(self) -> Session:
        """Return the session, or a new one in place of a broken one."""
        if self.session is None or self.session.closed:
            self.drop()
            self.session = self._open.enter_context(
                connect(
                    self._database,
                    statement_timeout=self._statement_timeout,
                    lock_timeout=self._lock_timeout,
                    name=self._name,
                    idle=self._idle,
                )
            )
        return self.session

    def checked(self) -> Session:
        """Return a session as `get` does, and check that it answers."""
        if self.session is not None:
            try:
                self.session.raw.ping()
            except pymysql.MySQLError:  # it was closed meanwhile
                self.drop()
        return self.get()

    def drop(self) -> None:
        """Close it. Never raises."""
        stack, self._open, self.session = self._open, ExitStack(), None
        stack.close()

    def cancel(self) -> None:
        """End what it waits for; from any thread."""
        session = self.session
        if session is not None and not session.closed:
            session.cancel()
