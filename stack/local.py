"""Kafka, Connect and PostgreSQL together: the source that lakemark is deployed beside.

`LocalStack` runs them as child processes; `servers` has the other ways that tests can take.

Example:
    with LocalStack(name="try") as stack:
        database = stack.fresh_database("CREATE TABLE customers (id int PRIMARY KEY, name text)")
        database.start_connector()
        database.execute("INSERT INTO customers VALUES (1, 'Ada')")
        stack.kafka.read(database.topic("customers"), count=1)
"""

import itertools
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from stack.connect import Connect, Worker, debezium_plugins
from stack.database import CONFIGS, Database, SourceServer
from stack.java import find_java
from stack.kafka import Broker, Kafka, kafka_jars
from stack.mariadb import MariaDb
from stack.mysql_server import MySql
from stack.postgres import DatabaseServer, Postgres
from stack.processes import Identity, Server, StackError, start_together
from stack.registry import Registry

ROOT = Path(__file__).parents[1]
CONNECTOR = CONFIGS / "postgres.json"

SERVICES = ("kafka", "connect", "postgres")
"""The usual services, in the order in which they are stopped last to first."""

DATABASES: Final[Mapping[str, Callable[..., Postgres | MariaDb | MySql]]] = {
    "postgres": Postgres,
    "mariadb-11.4": partial(MariaDb, version="11.4"),
    "mariadb-10.11": partial(MariaDb, version="10.11"),
    "mysql-9.7": MySql,
}
"""The services that are database servers, and what makes each."""


def service_of(database: str) -> str:
    """Return the service of `DATABASES` that a product's name means: the usual one of its versions.

    Raises:
        StackError: there is none.
    """
    for service in DATABASES:
        if service == database or service.startswith(f"{database}-"):
            return service
    raise StackError(f"there is no database {database}: only {', '.join(DATABASES)}")


KEPT_RUNS = 5
"""Directories of earlier runs that keep their logs; older ones are removed."""


class Servers(ABC):
    """Kafka, Connect and PostgreSQL as tests and tools use them, wherever they run.

    Attributes:
        kafka: the broker; there if it was asked for, as the other two.
        connect: the Connect worker.
        postgres: the database server.
        directory: where what belongs to these servers, or runs beside them, is kept.
        name: names the directory.
        connector_settings: of every connector, on top of connect-configs/postgres.json.
    """

    kafka: Broker
    connect: Worker
    postgres: DatabaseServer

    def __init__(self, name: str, directory: Path, run: str = "") -> None:
        self.name = name
        self.directory = directory
        self.connector_settings: dict[str, str] = {}
        self._run = run or str(os.getpid())
        self._numbers = itertools.count(1)

    @property
    def logs(self) -> Path:
        """The directory of the logs of what runs on this machine."""
        return self.directory / "logs"

    @property
    @abstractmethod
    def are_here(self) -> bool:
        """Whether they run on this machine and reach what listens on its loopback address."""

    @abstractmethod
    def start(self) -> None:
        """Return when all servers answer, started if that is possible.

        Raises:
            StackError: if one does not answer in time; nothing that was started runs on then.
        """

    @abstractmethod
    def stop(self) -> None:
        """End what `start` has started."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def fresh_database(
        self, *statements: str, name: str = "", server: SourceServer | None = None
    ) -> Database:
        """Create a database with a signal table, and run statements in it.

        Args:
            statements: SQL to run, e.g. CREATE TABLE.
            name: the database's name; unless given, one that was not used before.
            server: that it is in, instead of the stack's.
        """
        name = name or f"db{next(self._numbers)}_{self._run}"
        database = (server or self._usual_server()).create(self, name)
        database.execute(database.SIGNAL_TABLE)
        for statement in statements:
            database.execute(statement)
        return database

    def database_server(self, service: str) -> SourceServer:
        """Return a database server of `DATABASES`; a local stack starts it if it does not run.

        Raises:
            StackError: these servers have none of that name.
        """
        if service != "postgres":
            raise StackError(f"there is no {service} among these servers: only PostgreSQL")
        return self.postgres

    def require_registry(self) -> Registry:
        """Return a registry of schemas that answers; Connect has the converter for it then.

        Raises:
            StackError: these servers have none.
        """
        raise StackError("there is no registry of schemas among these servers")

    def _usual_server(self) -> SourceServer:
        """Return the server of the databases of who does not say another."""
        return self.postgres


class LocalStack(Servers):
    """Chosen servers as child processes, started together and stopped together.

    Everything lives in `.lakemark/<name>-<pid>/` of the repository (`.lakemark/<name>/` when
    detached). A proper end removes the data and keeps the logs.

    Args:
        name: names the directory.
        services: which of `kafka`, `connect`, `registry` and those of `DATABASES` (Connect needs
            Kafka); the first database is the one of who does not say another. With a registry
            Connect can write Avro.
        quick: start fast rather than run fast for hours; benchmarks say False.
        detached: whether the servers outlive this process (`./dev up`).
        directory: where everything lives, instead of below `.lakemark`.
        postgres_settings: server settings for PostgreSQL on top of ours.
        progress: told in a few words what takes time.
    """

    kafka: Kafka
    connect: Connect
    postgres: Postgres
    registry: Registry

    def __init__(
        self,
        *,
        name: str = "local",
        services: Sequence[str] = SERVICES,
        quick: bool = True,
        detached: bool = False,
        directory: Path | None = None,
        postgres_settings: dict[str, str] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        if unknown := set(services) - {"kafka", "connect", "registry", *DATABASES}:
            raise StackError(f"no such services: {', '.join(sorted(unknown))}")
        if "connect" in services and "kafka" not in services:
            raise StackError("Connect needs Kafka")
        run = name if detached else f"{name}-{os.getpid()}"
        super().__init__(name, directory or ROOT / ".lakemark" / run)
        self.detached = detached
        self._progress = progress or (lambda _: None)
        self._servers: dict[str, Server] = {}

        databases = {
            service: DATABASES[service](
                **self._place(service),
                settings=postgres_settings if service == "postgres" else None,
            )
            for service in services
            if service in DATABASES
        }
        if "kafka" in services:
            self.kafka = Kafka(**self._place("kafka"), quick=quick)
            self._servers["kafka"] = self.kafka
        if "registry" in services:
            self.registry = Registry(**self._place("registry"))
            self._servers["registry"] = self.registry
        if "connect" in services:
            plugins = {server.connector for server in databases.values()} or {"postgres"}
            if "registry" in services:
                plugins.add("avro")
            self.connect = Connect(
                **self._place("connect"),
                bootstrap=self.kafka.bootstrap,
                quick=quick,
                plugins=sorted(plugins),
            )
            self._servers["connect"] = self.connect
        for service, server in databases.items():
            if isinstance(server, Postgres):
                self.postgres = server
            self._servers[service] = server

    def _place(self, service: str) -> dict[str, Any]:
        """Return where a service keeps what it has, as its class takes it."""
        return {
            "directory": self.directory / service,
            "log": self.logs / f"{service}.log",
            "detached": self.detached,
        }

    def database_server(self, service: str) -> SourceServer:
        """Return a database server of `DATABASES`, made and started if it does not run."""
        service = service_of(service)
        server = self._servers.get(service)
        if server is None:
            server = self._servers[service] = DATABASES[service](**self._place(service))
        if not server.is_running:
            server.start()
            if self.detached:
                self._write_state()
        assert isinstance(server, SourceServer)
        return server

    def require_registry(self) -> Registry:
        """Return the registry, made and started if it does not run; Connect gets its converter."""
        server = self._servers.get("registry")
        if server is None:
            self.registry = Registry(**self._place("registry"))
            server = self._servers["registry"] = self.registry
        if not server.is_running:
            server.start()
            if self.detached:
                self._write_state()
        self.connect.require_plugin("avro")
        return self.registry

    def _usual_server(self) -> SourceServer:
        return self.source_server

    @property
    def are_here(self) -> bool:
        """True: they are child processes."""
        return True

    @property
    def services(self) -> list[str]:
        """The services of this stack."""
        return list(self._servers)

    @property
    def source_server(self) -> SourceServer:
        """The first of its databases."""
        return next(s for s in self.servers if isinstance(s, SourceServer))

    @property
    def servers(self) -> list[Server]:
        """The servers of this stack."""
        return list(self._servers.values())

    def start(self) -> None:
        """Start all servers at once and return when all are ready.

        Raises:
            StackError: if one is not ready in time; nothing is left running then.
        """
        if not self.detached and self.directory.parent == ROOT / ".lakemark":
            _remove_old_runs(self.name)
        if "kafka" in self._servers:
            find_java()
            kafka_jars(self._progress)
        if "connect" in self._servers:
            for connector in self.connect.plugins:
                debezium_plugins(connector, self._progress)
        if "registry" in self._servers:
            self.registry.fetch(self._progress)
        self.logs.mkdir(parents=True, exist_ok=True)
        self._progress(f"starting {', '.join(s.name for s in self.servers)}; logs: {self.logs}")
        start_together(self.servers, stop=self.stop)
        if self.detached:
            self._write_state()

    def stop(self) -> None:
        """Stop all servers, last to first, and remove their data; logs are kept."""
        for server in reversed(self.servers):
            if isinstance(server, Postgres):
                server.stop()
            else:
                server.kill()  # nothing of it is kept, and an orderly stop takes seconds
        for service, server in self._servers.items():
            for place in (server.directory, self.directory / service):
                shutil.rmtree(place, ignore_errors=True)
        self._state.unlink(missing_ok=True)

    @property
    def _state(self) -> Path:
        return self.directory / "state.json"

    def _write_state(self) -> None:
        entries = {}
        for service, server in self._servers.items():
            assert server.identity is not None
            ports = [
                getattr(server, key) for key in ("port", "controller_port") if hasattr(server, key)
            ]
            entries[service] = {
                "pid": server.identity.pid,
                "started": server.identity.started,
                "ports": ports,
                "directory": str(server.directory),
            }
        scratch = self._state.with_suffix(".new")
        scratch.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
        scratch.replace(self._state)

    @classmethod
    def attach(cls, name: str = "up") -> "LocalStack | None":
        """Return the detached stack of that name, None if none was started.

        Its servers may have ended since; each one's `is_running` tells.
        """
        path = ROOT / ".lakemark" / name / "state.json"
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        stack = cls(name=name, services=tuple(entries), detached=True)
        for service, entry in entries.items():
            server = stack._servers[service]
            server.identity = Identity(entry["pid"], entry["started"])
            server.directory = Path(entry["directory"])
            for key, port in zip(("port", "controller_port"), entry["ports"], strict=False):
                setattr(server, key, port)
        return stack


def _remove_old_runs(name: str) -> None:
    """Remove the directories of ended runs of this name, but for the newest few."""
    runs = [
        path
        for path in (ROOT / ".lakemark").glob(f"{name}-*")
        if (pid := path.name.rpartition("-")[2]).isdigit() and not Path(f"/proc/{pid}").exists()
    ]
    runs.sort(key=_changed, reverse=True)
    for run in runs[KEPT_RUNS:]:
        shutil.rmtree(run, ignore_errors=True)


def _changed(path: Path) -> float:
    """When a directory was changed last; 0 if another process has just removed it."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
