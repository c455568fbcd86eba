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
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql

from stack.connect import Connect, Worker, connector_config, debezium_plugins
from stack.java import find_java
from stack.kafka import Broker, Kafka, kafka_jars
from stack.postgres import DatabaseServer, Postgres
from stack.processes import Identity, Server, StackError, start_together, wait_for

ROOT = Path(__file__).parents[1]
CONNECTOR = ROOT / "connect-configs" / "postgres.json"

SERVICES = ("kafka", "connect", "postgres")
"""All services, in the order in which they are stopped last to first."""

SIGNAL_TABLE = "CREATE TABLE debezium_signal (id text PRIMARY KEY, type text NOT NULL, data text)"

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
        self, *statements: str, name: str = "", server: DatabaseServer | None = None
    ) -> "Database":
        """Create a database with a signal table, and run statements in it.

        Args:
            statements: SQL to run, e.g. CREATE TABLE.
            name: the database's name; unless given, one that was not used before.
            server: that it is in, instead of the stack's.
        """
        name = name or f"db{next(self._numbers)}_{self._run}"
        server = server or self.postgres
        with server.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        database = Database(self, server, name)
        database.execute(SIGNAL_TABLE)
        for statement in statements:
            database.execute(statement)
        return database


class LocalStack(Servers):
    """Chosen servers as child processes, started together and stopped together.

    Everything lives in `.lakemark/<name>-<pid>/` of the repository (`.lakemark/<name>/` when
    detached). A proper end removes the data and keeps the logs.

    Args:
        name: names the directory.
        services: which of `kafka`, `connect` and `postgres` (Connect needs Kafka).
        quick: start fast rather than run fast for hours; benchmarks say False.
        detached: whether the servers outlive this process (`./dev up`).
        directory: where everything lives, instead of below `.lakemark`.
        postgres_settings: server settings for PostgreSQL on top of ours.
        progress: told in a few words what takes time.
    """

    kafka: Kafka
    connect: Connect
    postgres: Postgres

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
        if unknown := set(services) - set(SERVICES):
            raise StackError(f"no such services: {', '.join(sorted(unknown))}")
        if "connect" in services and "kafka" not in services:
            raise StackError("Connect needs Kafka")
        run = name if detached else f"{name}-{os.getpid()}"
        super().__init__(name, directory or ROOT / ".lakemark" / run)
        self.detached = detached
        self._progress = progress or (lambda _: None)
        self._servers: dict[str, Server] = {}

        def place(service: str) -> dict[str, Any]:
            return {
                "directory": self.directory / service,
                "log": self.logs / f"{service}.log",
                "detached": detached,
            }

        if "kafka" in services:
            self.kafka = Kafka(**place("kafka"), quick=quick)
            self._servers["kafka"] = self.kafka
        if "connect" in services:
            self.connect = Connect(**place("connect"), bootstrap=self.kafka.bootstrap, quick=quick)
            self._servers["connect"] = self.connect
        if "postgres" in services:
            self.postgres = Postgres(**place("postgres"), settings=postgres_settings)
            self._servers["postgres"] = self.postgres

    @property
    def are_here(self) -> bool:
        """True: they are child processes."""
        return True

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
            debezium_plugins(self._progress)
        self.logs.mkdir(parents=True, exist_ok=True)
        self._progress(f"starting {', '.join(s.name for s in self.servers)}; logs: {self.logs}")
        start_together(self.servers, stop=self.stop)
        if self.detached:
            self._write_state()

    def stop(self) -> None:
        """Stop all servers, last to first, and remove their data; logs are kept."""
        for server in reversed(self.servers):
            if isinstance(server, Connect | Kafka):
                server.kill()  # nothing of theirs is kept, and an orderly stop takes seconds
            else:
                server.stop()
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


@dataclass
class Database:
    """A database, and the connector of a stack that captures it.

    Names follow the database's: topic prefix, connector, slot and publication are all `name`.

    Attributes:
        stack: whose Connect and Kafka it uses.
        server: where it lives.
        name: the database's name.
        config: the connector's configuration, as last given to `start_connector`.
    """

    stack: Servers
    server: DatabaseServer
    name: str
    config: dict[str, str] = field(default_factory=dict)

    @property
    def dsn(self) -> str:
        """The database's address."""
        return self.server.dsn(self.name)

    def topic(self, table: str) -> str:
        """Return the topic of a table, of schema `public` unless the name says another."""
        return f"{self.name}.{table if '.' in table else f'public.{table}'}"

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Return a new connection that commits each statement."""
        return self.server.connect(self.name, **options)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement in a connection of its own and return its rows, if it has any."""
        with self.connect() as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def start_connector(self, overrides: Mapping[str, str | None] | None = None) -> None:
        """Register the connector of connect-configs/postgres.json and return when it streams.

        Args:
            overrides: settings to change or, with None, to leave out.
        """
        changes = {
            "topic.prefix": self.name,
            "slot.name": self.name,
            "publication.name": self.name,
            **self.stack.connector_settings,
            **(overrides or {}),
        }
        config: dict[str, str | None] = {
            **connector_config(CONNECTOR, self.placeholders()),
            **changes,
        }
        before, self.config = self.config, {k: v for k, v in config.items() if v is not None}
        reader = self._reader()
        self.stack.connect.put_connector(self.name, self.config)
        if reader is not None and self.config != before:
            # Connect has the task with the old settings read on for a while.
            wait_for(lambda: self._reader() not in (None, reader), 60, "the task to start again")
        self.wait_streaming()

    def wait_streaming(self, deadline_s: float = 180) -> None:
        """Return when the connector reads the log: its tasks run and its slot is in use.

        Connect alone may still show as running what died with a killed worker.
        """
        self.stack.connect.wait_running(self.name, deadline_s)
        wait_for(self._is_streaming, deadline_s, f"connector {self.name} to stream")

    def revive(self, deadline_s: float = 480) -> None:
        """Return when the connector streams again; restart what has failed, as an operator would.

        A connector that is slow is left alone.

        Raises:
            StackError: it does not stream at the deadline.
        """

        def streams() -> bool:
            try:
                status = self.stack.connect.status(self.name)
                parts = [status["connector"], *status["tasks"]] if status else []
                states = {part["state"] for part in parts}
                if "FAILED" in states:
                    self.stack.connect.restart_failed(self.name)
                return len(parts) > 1 and states == {"RUNNING"} and self._reader() is not None
            except (StackError, psycopg.Error):
                return False  # it is away, or not back yet

        wait_for(streams, deadline_s, f"connector {self.name} to stream again")

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

    def _is_streaming(self) -> bool:
        self.stack.connect.wait_running(self.name)  # raises if the task has failed meanwhile
        return self._reader() is not None

    def _reader(self) -> int | None:
        """The process of the server that has the connector's slot; None without any."""
        query = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
        found = self.execute(query, [self.config["slot.name"]])
        return found[0][0] if found else None

    def close(self) -> None:
        """Delete the connector, its slot and the database."""
        if self.config:
            self.stack.connect.delete_connector(self.name)
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
            self.config = {}
        with self.server.connect() as connection:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(self.name))
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


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
