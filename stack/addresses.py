"""Kafka, Connect and PostgreSQL that somebody else runs, by their addresses in the environment.

They are used and never ended. A run leaves its topics behind and takes names that no other run has.
"""

import secrets
from collections.abc import Collection, Mapping
from typing import Final, NoReturn
from urllib.parse import urlsplit

from stack.connect import Worker
from stack.kafka import Broker
from stack.local import ROOT, SERVICES, Servers
from stack.postgres import DatabaseServer
from stack.processes import Controlled, StackError, wait_for

VARIABLES: Final[Mapping[str, str]] = {
    "kafka": "LAKEMARK_TEST_KAFKA",
    "connect": "LAKEMARK_TEST_CONNECT",
    "postgres": "LAKEMARK_TEST_POSTGRES",
}
"""The variable with the address of each service."""

FOR_CONNECT: Final = "LAKEMARK_TEST_POSTGRES_FOR_CONNECT"
"""The variable with `host:port` of PostgreSQL as Connect reaches it, where that is another."""

FORMS: Final[Mapping[str, str]] = {
    "LAKEMARK_TEST_KAFKA": "host:port",
    "LAKEMARK_TEST_CONNECT": "http://host:port",
    "LAKEMARK_TEST_POSTGRES": "postgresql://superuser@host:port",
    FOR_CONNECT: "host:port",
}
"""What a variable has to look like."""

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
ANSWERS_WITHIN_S: Final = 15.0
"""Deadline of a first answer: the servers run already, so that only the way to them takes time."""


class UnsuitableServerError(StackError):
    """A server has not the setting that some tests need."""


class _Given(Controlled):
    """A server that is only known by its address."""

    host: str
    address: str

    @property
    def is_running(self) -> bool:
        """Whether the server answers."""
        return self.answers()

    @property
    def log_place(self) -> str:
        """The place of its log, which is not known here."""
        return "see its own log"

    def start(self) -> None:
        """Return when the server answers.

        Raises:
            StackError: it does not.
        """
        wait_for(self.answers, ANSWERS_WITHIN_S, f"{self.name} at {self.address} to answer")

    def stop(self) -> NoReturn:
        """Refuse to end what was not started here."""
        self._refuse()

    def kill(self) -> NoReturn:
        """Refuse to end what was not started here."""
        self._refuse()

    def pause(self) -> NoReturn:
        """Refuse to hold what was not started here."""
        self._refuse()

    def resume(self) -> NoReturn:
        """Refuse to hold what was not started here."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StackError(
            f"{self.name} at {self.address} is not ours to be ended or held:"
            " the test lacks the mark `ends_servers` of tests/kit/servers.py"
        )


class GivenBroker(_Given, Broker):
    """A broker by its address."""

    def __init__(self, bootstrap: str) -> None:
        self.address = bootstrap
        self.host, _ = _host_and_port(bootstrap.partition(",")[0])

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`."""
        return self.address


class GivenWorker(_Given, Worker):
    """A Connect worker by its address."""

    def __init__(self, url: str) -> None:
        self.address = url.rstrip("/")
        self.host = urlsplit(url).hostname or ""

    @property
    def url(self) -> str:
        """The address of the REST API."""
        return self.address


class GivenDatabaseServer(_Given, DatabaseServer):
    """A PostgreSQL server by its address, which trusts whoever connects.

    Args:
        url: the address, with a superuser and without a password.
        for_connect: host and port under which Connect reaches it, if not the same.
    """

    def __init__(self, url: str, for_connect: tuple[str, int] | None = None) -> None:
        parts = urlsplit(url)
        self.user, self.host = parts.username or "", parts.hostname or ""
        self.port = parts.port or 5432
        self.address = f"{self.host}:{self.port}"
        self._for_connect = for_connect or (self.host, self.port)

    @property
    def for_connect(self) -> tuple[str, int]:
        """Host and port under which Connect reaches it."""
        return self._for_connect

    def require(self, settings: Mapping[str, str]) -> None:
        """Return if the server's settings are these; numbers may be larger.

        Raises:
            UnsuitableServerError: one is not; the message says which.
            StackError: the user is no superuser.
        """
        with self.connect() as connection:
            rows = connection.execute("SELECT name, setting FROM pg_settings").fetchall()
            superuser = connection.execute("SHOW is_superuser").fetchone()
        if superuser != ("on",):
            raise StackError(f"{VARIABLES['postgres']}: {self.user} is no superuser")
        there = dict(rows)
        for name, wanted in settings.items():
            setting = there.get(name, "")
            enough = setting.isdecimal() and wanted.isdecimal() and int(setting) >= int(wanted)
            if setting != wanted and not enough:
                raise UnsuitableServerError(
                    f"PostgreSQL at {self.address} has {name} = {setting}, and {wanted} is needed"
                )


class GivenServers(Servers):
    """Servers by their addresses; `start` sees whether they answer, `stop` leaves them alone.

    Args:
        environ: has the addresses, see `VARIABLES` and `FOR_CONNECT`.
        name: names the directory of what runs beside them.
        services: which are needed.
        postgres_settings: server settings that PostgreSQL must have.

    Raises:
        StackError: an address is missing, or is none; the message names all of them.
    """

    kafka: GivenBroker
    connect: GivenWorker
    postgres: GivenDatabaseServer

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        name: str = "given",
        services: Collection[str] = SERVICES,
        postgres_settings: Mapping[str, str] | None = None,
    ) -> None:
        run = secrets.token_hex(4)
        super().__init__(name, ROOT / ".lakemark" / f"{name}-{run}", run)
        self._postgres_settings = {"wal_level": "logical", **(postgres_settings or {})}
        self._given: dict[str, _Given] = {}
        addresses = _addresses(environ, services)
        if "kafka" in services:
            self._given["kafka"] = self.kafka = GivenBroker(addresses["kafka"])
        if "connect" in services:
            self._given["connect"] = self.connect = GivenWorker(addresses["connect"])
        if "postgres" in services:
            there = environ.get(FOR_CONNECT)
            self._given["postgres"] = self.postgres = GivenDatabaseServer(
                addresses["postgres"], _host_and_port(there) if there else None
            )

    @property
    def are_here(self) -> bool:
        """Whether all addresses are loopback ones."""
        return all(server.host in _LOOPBACK for server in self._given.values())

    def start(self) -> None:
        """Return when all servers answer and have the settings that are needed.

        Raises:
            UnsuitableServerError: PostgreSQL lacks a setting.
            StackError: a server does not answer; the message names its address and variable.
        """
        for service, server in self._given.items():
            try:
                server.start()
            except StackError as error:
                raise StackError(f"{VARIABLES[service]}: {error}") from error
        if "postgres" in self._given:
            self.postgres.require(self._postgres_settings)

    def stop(self) -> None:
        """Leave the servers alone."""


def _addresses(environ: Mapping[str, str], services: Collection[str]) -> dict[str, str]:
    """Return the addresses that are needed, by service.

    Raises:
        StackError: some are missing or are none.
    """
    needed = [variable for service, variable in VARIABLES.items() if service in services]
    optional = [FOR_CONNECT] if environ.get(FOR_CONNECT) else []
    wrong = {
        name: f"{name} is {environ[name]!r}" if environ.get(name) else f"{name} is missing"
        for name in (*needed, *optional)
        if not _fits(name, environ.get(name, ""))
    }
    if wrong:
        forms = ", ".join(f"{name}={FORMS[name]}" for name in wrong)
        raise StackError(f"addresses of the servers: {'; '.join(wrong.values())}; set {forms}")
    return {service: environ[VARIABLES[service]] for service in services}


def _fits(variable: str, text: str) -> bool:
    """Tell whether a text has the form of a variable's address."""
    try:
        parts = urlsplit(text)
        if variable == VARIABLES["connect"]:
            return parts.scheme in {"http", "https"} and bool(parts.hostname)
        if variable == VARIABLES["postgres"]:
            whole = parts.scheme == "postgresql" and parts.hostname and parts.username
            return bool(whole) and parts.password is None and parts.port != 0
        return all(_host_and_port(address) for address in text.split(","))
    except ValueError:  # of a port that is no number
        return False


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.strip().rpartition(":")
    if not host:
        raise ValueError(text)
    return host, int(port)
