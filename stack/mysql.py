"""MariaDB and MySQL as tests and tools use them: servers with a binary log, and their databases."""

import os
import shutil
import ssl
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self
from zlib import crc32

import pymysql
from pymysql.constants import ER
from pymysql.cursors import Cursor

from stack import mysql_rows
from stack.archives import made_once
from stack.database import Database, SourceServer
from stack.expected import Source
from stack.mysql_rows import quoted
from stack.processes import Server, StackError, free_port, wait_for

if TYPE_CHECKING:
    from stack.local import Servers

SETTINGS: Final[Mapping[str, str]] = {
    "log_bin": "binlog",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "sync_binlog": "0",  # a killed server loses nothing of it, a machine without power may
    "default_time_zone": "+00:00",
    "character_set_server": "utf8mb4",
    "max_connections": "200",
    "max_allowed_packet": "64M",
    "skip_name_resolve": "ON",
    # Small and fast to start: several servers share a machine with Kafka and Spark.
    "performance_schema": "OFF",
    "innodb_buffer_pool_size": "64M",
    "innodb_buffer_pool_load_at_startup": "OFF",
    "innodb_buffer_pool_dump_at_shutdown": "OFF",
    "innodb_log_buffer_size": "4M",
    "key_buffer_size": "4M",
}
"""Settings of a server for tests that both products have; each has others of its own."""

USER: Final = "root"
"""The user with all rights; it needs no password from loopback."""

PASSWORD: Final = "trusted"
"""The password of the users that connectors have; it is no secret."""

CONNECTOR_RIGHTS: Final = (
    "SELECT, RELOAD, SHOW DATABASES, LOCK TABLES, REPLICATION SLAVE, REPLICATION CLIENT"
)
"""The rights on all databases that Debezium's connectors ask for."""

_CONFLICTS: Final = frozenset(
    (number,)
    for number in (*(ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, ER.DUP_ENTRY, ER.TABLE_DEF_CHANGED),)
)

_CONNECTORS: Final = 1 << 31  # the bit of a `server_id`, which has 32, that no server has


@dataclass(frozen=True, slots=True)
class LogStatements:
    """The statements about a server's log, which the products call by different words.

    Attributes:
        end: returns the file and the position at which the log ends, first.
        gtids: returns the transactions of the log.
        wait: returns 0 when all of these transactions are there; parameters: they, and seconds.
        follow: begin to replicate another server; parameters of the one with `%s`: its host,
            port and user.
        promote: end that.
    """

    end: str
    gtids: str
    wait: str
    follow: tuple[str, ...]
    promote: tuple[str, ...]


@cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Session(pymysql.connections.Connection):
    """A connection that is used like one of psycopg."""

    def _create_ssl_ctx(self, sslp: Mapping[str, Any]) -> ssl.SSLContext:
        """Return one context for all where no certificate is asked for.

        The default one loads the machine's certificates, which takes longer than the statements do.
        """
        context: ssl.SSLContext = (
            super()._create_ssl_ctx(sslp) if sslp else _unverified()  # type: ignore[misc]
        )
        return context

    def execute(self, statement: str, parameters: Sequence[Any] | None = None) -> Cursor:
        """Run one statement and return its cursor."""
        cursor = self.cursor()
        cursor.execute(statement, parameters)
        return cursor

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end of the context, or roll back what raised."""
        self.begin()
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()


class BinlogServer(SourceServer):
    """A MariaDB or MySQL server as its clients see it; who connects as root is trusted."""

    user = USER
    statements: ClassVar[LogStatements]

    def dsn(self, dbname: str = "") -> str:
        """Return the address of a database, as lakemark takes it."""
        return f"{self.connector}://{self.user}@{self.host}:{self.port}/{dbname}"

    def connect(self, dbname: str | None = None, **options: Any) -> Session:
        """Return a connection that commits each statement."""
        given = {"user": self.user, "autocommit": True, "connect_timeout": 10, **options}
        return Session(host=self.host, port=self.port, database=dbname, charset="utf8mb4", **given)

    def answers(self) -> bool:
        """Tell whether the server answers a query."""
        try:
            with self.connect() as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except (pymysql.Error, OSError):
            return False

    def position(self) -> tuple[str, int]:
        """Return the file and the position at which the binary log ends."""
        with self.connect() as connection:
            row = connection.execute(self.statements.end).fetchone()
        assert row is not None, "the server has a binary log"
        return str(row[0]), int(row[1])

    def follow(self, primary: "BinlogServer") -> None:
        """Replicate another server by its GTIDs, from where this one's data ends."""
        with self.connect() as connection:
            for statement in self.statements.follow:
                values = [primary.host, primary.port, primary.user] if "%s" in statement else None
                connection.execute(statement, values)

    def wait_for(self, primary: "BinlogServer", deadline_s: int = 60) -> None:
        """Return when this server has all that the other one has now.

        Raises:
            StackError: it has not in time.
        """
        with primary.connect() as connection:
            row = connection.execute(self.statements.gtids).fetchone()
        assert row is not None, "a variable has a value"
        with self.connect() as connection:
            found = connection.execute(self.statements.wait, [row[0], deadline_s]).fetchone()
        if found != (0,):
            raise StackError(f"{self.name} has not all of {row[0]} after {deadline_s} s")

    def promote(self) -> None:
        """End `follow`: the server stands for itself."""
        with self.connect() as connection:
            for statement in self.statements.promote:
                connection.execute(statement)

    def create(self, stack: "Servers", name: str) -> "MySqlDatabase":
        """Create an empty database and the user of its connector, and return its handle."""
        database = MySqlDatabase(stack, self, name)
        user = f"'{database.reader}'@'%'"
        pattern = name.replace("_", r"\_").replace("%", r"\%")
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {quoted(name)}")
            connection.execute(f"CREATE USER {user} IDENTIFIED BY '{PASSWORD}'")
            connection.execute(f"GRANT {CONNECTOR_RIGHTS} ON *.* TO {user}")
            rights = f"GRANT INSERT, UPDATE, DELETE ON {quoted(pattern)}.* TO {user}"
            connection.execute(rights)
        return database


@dataclass
class MySqlDatabase(Database):
    """A database of MariaDB or MySQL; its connector has a user of its own."""

    server: BinlogServer

    SIGNAL_TABLE = (
        "CREATE TABLE debezium_signal"
        " (id varchar(100) PRIMARY KEY, type varchar(100) NOT NULL, data text)"
    )
    CLIENT_ERROR = pymysql.Error
    INSTANT = "timestamp(6)"

    @property
    def number(self) -> int:
        """The connector's `database.server.id`, which follows the name; servers have lower ones."""
        return _CONNECTORS | crc32(self.name.encode())

    @property
    def reader(self) -> str:
        """The user as which the connector reads the log."""
        return f"connector{self.number}"

    @property
    def dsn(self) -> str:
        """The database's address."""
        return self.server.dsn(self.name)

    def identifier(self, table: str) -> str:
        """Return a table with its database, which is this one unless the name says another."""
        return table if "." in table else f"{self.name}.{table}"

    def connect(self, **options: Any) -> Session:
        """Return a new connection that commits each statement."""
        return self.server.connect(self.name, **options)

    def tables(self) -> list[str]:
        """Return the tables of this database, but for the signal table."""
        query = (
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s"
            " AND table_type = 'BASE TABLE' AND table_name <> 'debezium_signal' ORDER BY 1"
        )
        return [self.identifier(name) for (name,) in self.execute(query, [self.name])]

    def quoted(self, name: str) -> str:
        """Return a name as statements have it."""
        return quoted(name)

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
        """Insert rows in one transaction, many by a statement, and return how many."""
        names = f"{quoted(table)} ({', '.join(map(quoted, columns))})".replace("%", "%%")
        values = ", ".join(["%s"] * len(columns))
        with self.connect() as connection, connection.transaction():
            cursor = connection.cursor()
            return cursor.executemany(f"INSERT INTO {names} VALUES ({values})", list(rows)) or 0

    def source(self) -> AbstractContextManager[Source]:
        """Open the database to compare a lake with it."""
        return mysql_rows.source(self.connect, self.modes)

    def is_conflict(self, error: BaseException) -> bool:
        """Tell whether others took a lock or a key, or changed the table meanwhile."""
        return isinstance(error, pymysql.MySQLError) and error.args[:1] in _CONFLICTS

    def is_deadlock(self, error: BaseException) -> bool:
        """Tell whether a transaction was taken back so that others could go on."""
        return isinstance(error, pymysql.MySQLError) and error.args[:1] == (ER.LOCK_DEADLOCK,)

    def is_away(self, error: BaseException) -> bool:
        """Tell whether the server is down, or has ended the session."""
        lost = (pymysql.OperationalError, pymysql.InterfaceError, OSError)
        return isinstance(error, lost) and not self.is_conflict(error)

    def placeholders(self) -> dict[str, str]:
        """Return the values for the placeholders of the connector's file in connect-configs."""
        host, port = self.server.for_connect
        return {
            "DATABASE_HOST": host,
            "DATABASE_PORT": str(port),
            "DATABASE_USER": self.reader,
            "DATABASE_PASSWORD": PASSWORD,
            "DATABASE_NAME": self.name,
            "KAFKA_BOOTSTRAP": self.stack.kafka.for_connect,
        }

    def _names(self) -> dict[str, str]:
        return {
            "topic.prefix": self.name,
            "database.server.id": str(self.number),
            "schema.history.internal.kafka.topic": f"{self.name}.schema-history",
        }

    def _reader(self) -> int | None:
        """The thread of the server that sends the log to the connector; None without any.

        One whose client was killed is there until its next heartbeat cannot be sent, for some
        seconds.
        """
        query = (
            "SELECT id FROM information_schema.processlist WHERE user = %s"
            " AND command LIKE 'Binlog Dump%%' ORDER BY id DESC"
        )
        found = self.execute(query, [self.reader])
        return int(found[0][0]) if found else None

    def _release(self) -> None:
        """End the thread that still sends the log."""
        with self.server.connect() as connection:
            self._end_sessions(connection, "user = %s", self.reader)

    def _drop(self) -> None:
        """Drop the database and the connector's user; open transactions on it are ended."""
        with self.server.connect() as connection:
            self._end_sessions(connection, "db = %s", self.name)
            connection.execute(f"DROP DATABASE IF EXISTS {quoted(self.name)}")
            connection.execute("DROP USER IF EXISTS %s@%s", [self.reader, "%"])

    def _end_sessions(self, connection: Session, condition: str, value: str) -> None:
        query = f"SELECT id FROM information_schema.processlist WHERE {condition}"

        def gone() -> bool:
            cursor = connection.execute(f"{query} AND id <> connection_id()", [value])
            sessions = cursor.fetchall()
            for (session,) in sessions:
                try:
                    connection.execute(f"KILL {session}")
                except pymysql.err.OperationalError as error:
                    if error.args[0] != ER.NO_SUCH_THREAD:
                        raise
            return not sessions

        wait_for(gone, 60, f"sessions of {value} to end")


class LocalBinlogServer(Server, BinlogServer):
    """A MariaDB or MySQL server as a child process on a free loopback port.

    `stop` and `kill` keep port and data. The data directory of a first start is a copy of one that
    was initialised once and is kept in the cache.

    Args:
        directory: where the data lives.
        log: the log file.
        detached: whether it may outlive this process.
        settings: server settings on top of ours, e.g. `{"sync_binlog": "1"}`.
        number: the server's `server_id`; servers of one replication topology differ in it.
        port: the port, a free one unless given.
    """

    product_settings: Mapping[str, str]
    """Settings that only this product has."""

    def __init__(
        self,
        *,
        directory: Path,
        log: Path,
        detached: bool = False,
        settings: Mapping[str, str] | None = None,
        number: int = 1,
        port: int | None = None,
    ) -> None:
        super().__init__(directory=directory, log=log, detached=detached)
        self.number = number
        self.port = port or free_port()
        self.settings = {**SETTINGS, **self.product_settings, **(settings or {})}

    @abstractmethod
    def sibling(self, directory: Path, number: int) -> Self:
        """Return another server of the same version and settings, which is not started.

        Args:
            directory: where its data and its log live.
            number: its `server_id`.
        """

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.directory / "data"

    @abstractmethod
    def _program(self) -> list[str]:
        """Return the server's program with what it needs to find its own files."""

    @property
    @abstractmethod
    def _initialised(self) -> Path:
        """The data directory that is copied; need not exist."""

    @abstractmethod
    def _initialise(self, data: Path) -> None:
        """Make a data directory in an empty one."""

    def _prepare(self) -> None:
        if not self.data.exists():
            pattern = made_once(self._initialised, self._initialise)
            scratch = self.directory / ".data"
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(pattern, scratch)
            scratch.rename(self.data)
        # Of a killed server; it would be believed if another process had got that one's pid.
        (self.data / "server.sock.lock").unlink(missing_ok=True)

    def _command(self) -> list[str]:
        settings = {
            **self.settings,
            "datadir": str(self.data),
            "server_id": str(self.number),
            "bind_address": self.host,
            "port": str(self.port),
            "socket": "server.sock",  # in the data directory: a longer path may not fit
            "pid_file": "server.pid",
        }
        options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        return [*self._program(), *options]

    def _is_ready(self) -> bool:
        return BinlogServer.answers(self)


def as_root() -> list[str]:
    """Return the option without which these servers refuse to run as root."""
    return ["--user=root"] if os.geteuid() == 0 else []
