"""Kafka Connect: one distributed worker with the Debezium connectors that somebody asked for.

Distributed rather than standalone, because only a distributed worker keeps its offsets in Kafka and
serves them at `/connectors/NAME/offsets`.
"""

import hashlib
import json
import re
import shutil
import zipfile
from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from lakemark.settings.cache import cache_dir
from lakemark.spark.jars import Progress, fetch
from stack import avro
from stack.archives import made_once, unpacked
from stack.java import java_command
from stack.kafka import MAX_MESSAGE_BYTES, kafka_jars
from stack.processes import Controlled, Server, StackError, free_port, wait_for


@dataclass(frozen=True, slots=True)
class Plugin:
    """A Debezium connector, or a converter.

    Attributes:
        java_class: its class, as `connector.class` or `value.converter` has it.
        jar_list: the file that pins its archive, beside this module; its jars if it is `service`.
        service: the interface that it implements, where its jars do not say so themselves.
    """

    java_class: str
    jar_list: str
    service: str = ""


PLUGINS: Final[Mapping[str, Plugin]] = {
    "postgres": Plugin("io.debezium.connector.postgresql.PostgresConnector", "debezium.json"),
    "mariadb": Plugin("io.debezium.connector.mariadb.MariaDbConnector", "debezium-mariadb.json"),
    "mysql": Plugin("io.debezium.connector.mysql.MySqlConnector", "debezium-mysql.json"),
    "jdbc": Plugin("io.debezium.connector.jdbc.JdbcSinkConnector", "debezium-jdbc.json"),
    "avro": Plugin(
        avro.CONVERTER, "apicurio-converter.json", "org.apache.kafka.connect.storage.Converter"
    ),
}
"""Plugins by name; each has a directory of its own on the worker's `plugin.path`."""

_ADDRESSES = """
bootstrap.servers={bootstrap}
group.id=connect
listeners=http://127.0.0.1:{port}
rest.advertised.host.name=127.0.0.1
rest.advertised.port={port}
plugin.path={plugins}
"""

SETTINGS: Final[Mapping[str, str]] = {
    # Plugins say what they are; without this every jar is searched, ten seconds on two cores.
    "plugin.discovery": "service_load",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "value.converter.replace.null.with.default": "false",
    "config.storage.topic": "connect-configs",
    "config.storage.replication.factor": "1",
    "offset.storage.topic": "connect-offsets",
    "offset.storage.replication.factor": "1",
    "offset.storage.partitions": "1",
    "status.storage.topic": "connect-status",
    "status.storage.replication.factor": "1",
    "status.storage.partitions": "1",
    "offset.flush.interval.ms": "1000",
    # A killed worker's tasks come back as soon as its session has ended, not five minutes later.
    "scheduled.rebalance.max.delay.ms": "0",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "2000",
    # Its three logs are asked for news that often when there are none; what is new comes at once.
    "fetch.max.wait.ms": "2500",
    "producer.max.request.size": str(MAX_MESSAGE_BYTES),
    "producer.buffer.memory": "33554432",
}
"""Settings of a worker for tests, wherever it runs; its addresses are its own."""

_FLAT = re.compile(r"\$\{([A-Z_]+)\}")

_CLIENT = httpx.Client(timeout=30, trust_env=False, verify=False)
"""One for all questions, in plain HTTP: to make one takes longer than they do."""


def debezium_plugins(connector: str = "postgres", progress: Progress | None = None) -> Path:
    """Return the directory of one of `PLUGINS`, fetching and unpacking it if needed."""
    plugin = PLUGINS[connector]
    jar_list = Path(__file__).with_name(plugin.jar_list)
    if not plugin.service:
        return unpacked(jar_list, "plugins", progress=progress)

    def gather(scratch: Path) -> None:
        together = scratch / jar_list.stem  # what is in the directory itself is a plugin each
        together.mkdir()
        for jar in fetch(jar_list, progress=progress):
            shutil.copy(jar, together)
        with zipfile.ZipFile(together / "service.jar", "w") as made:
            made.writestr(f"META-INF/services/{plugin.service}", f"{plugin.java_class}\n")

    digest = hashlib.sha256(jar_list.read_bytes()).hexdigest()[:12]
    return made_once(cache_dir() / "plugins" / f"{jar_list.stem}-{digest}", gather)


def connector_config(template: Path, values: Mapping[str, str]) -> dict[str, str]:
    """Read a connector configuration and put values in the place of its `${NAME}`.

    Raises:
        StackError: if a placeholder has no value.
    """

    def value(match: re.Match[str]) -> str:
        if match.group(1) not in values:
            raise StackError(f"{template} has {match.group(0)}, and no value was given for it")
        return values[match.group(1)]

    config = json.loads(template.read_text(encoding="utf-8"))
    return {key: _FLAT.sub(value, text) for key, text in config.items()}


class Worker(Controlled):
    """A Connect worker as its clients see it: connectors, their states and offsets."""

    name = "Kafka Connect"

    @property
    @abstractmethod
    def url(self) -> str:
        """The address of the REST API."""

    def answers(self) -> bool:
        """Tell whether the worker lists its connectors."""
        try:
            answer = _CLIENT.get(f"{self.url}/connectors", timeout=2)
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK

    def require_plugin(self, connector: str) -> None:
        """Return if the worker has one of `PLUGINS`.

        Raises:
            StackError: it has not.
        """
        java_class = PLUGINS[connector].java_class
        there = self._request("GET", "/connector-plugins?connectorsOnly=false", 30).json()
        if java_class not in {plugin["class"] for plugin in there}:
            raise StackError(f"Connect at {self.url} has no {java_class}: put it on plugin.path")

    def put_connector(self, name: str, config: Mapping[str, str], deadline_s: float = 480) -> None:
        """Create a connector or change its configuration.

        Raises:
            StackError: if Connect refuses the configuration or stays busy until the deadline.
        """
        self._request("PUT", f"/connectors/{name}/config", deadline_s, json=dict(config))

    def delete_connector(self, name: str, deadline_s: float = 480) -> None:
        """Delete a connector; nothing if there is none."""
        self._request("DELETE", f"/connectors/{name}", deadline_s, accept=(404,))

        def gone() -> bool:
            response = self._request("GET", f"/connectors/{name}/status", deadline_s, accept=(404,))
            return response.status_code == httpx.codes.NOT_FOUND

        wait_for(gone, deadline_s, f"connector {name} to be gone")

    def pause_connector(self, name: str, deadline_s: float = 480) -> None:
        """Stop a connector's task from reading; `resume_connector` ends it."""
        self._request("PUT", f"/connectors/{name}/pause", deadline_s)
        self._wait_state(name, "PAUSED", deadline_s)

    def stop_connector(self, name: str, deadline_s: float = 480) -> None:
        """End a connector's tasks, which frees its slot; `resume_connector` begins them again."""
        self._request("PUT", f"/connectors/{name}/stop", deadline_s)

        def stopped() -> bool:
            status = self.status(name)
            return status["connector"]["state"] == "STOPPED" and not status["tasks"]

        wait_for(stopped, deadline_s, f"connector {name} to be STOPPED ({self.log_place})")

    def resume_connector(self, name: str, deadline_s: float = 480) -> None:
        """End `pause_connector` and return when the connector runs."""
        self._request("PUT", f"/connectors/{name}/resume", deadline_s)
        self.wait_running(name, deadline_s)

    def restart_connector(self, name: str, deadline_s: float = 480) -> None:
        """Restart a connector and its tasks, failed ones too."""
        self._request("POST", f"/connectors/{name}/restart?includeTasks=true", deadline_s)
        self.wait_running(name, deadline_s)

    def restart_failed(self, name: str, deadline_s: float = 480) -> None:
        """Ask for a restart of what has failed of a connector; Connect does it a little later."""
        path = f"/connectors/{name}/restart?includeTasks=true&onlyFailed=true"
        self._request("POST", path, deadline_s)

    def status(self, name: str) -> dict[str, Any]:
        """Return what Connect says about a connector; empty if it knows none of that name."""
        response = self._request("GET", f"/connectors/{name}/status", 30, accept=(404,))
        return response.json() if response.status_code == httpx.codes.OK else {}

    def wait_running(self, name: str, deadline_s: float = 480) -> None:
        """Return when a connector and all its tasks run.

        Raises:
            StackError: at once if a task has failed, with its trace; else at the deadline.
        """
        self._wait_state(name, "RUNNING", deadline_s)

    def offsets(self, name: str) -> list[dict[str, Any]]:
        """Return the committed source offsets: objects with `partition` and `offset`."""
        response = self._request("GET", f"/connectors/{name}/offsets", 30)
        found: list[dict[str, Any]] = response.json()["offsets"]
        return found

    def reset_offsets(self, name: str, deadline_s: float = 480) -> None:
        """Forget the source offsets of a stopped connector."""
        self._request("DELETE", f"/connectors/{name}/offsets", deadline_s)

    def _wait_state(self, name: str, state: str, deadline_s: float) -> None:
        def reached() -> bool:
            status = self.status(name)
            parts = [status["connector"], *status["tasks"]] if status else []
            for part in parts:
                if part["state"] == "FAILED":
                    raise StackError(f"connector {name} has failed:\n{part.get('trace', '')}")
            return len(parts) > 1 and all(part["state"] == state for part in parts)

        wait_for(reached, deadline_s, f"connector {name} to be {state} ({self.log_place})")

    def _request(
        self,
        method: str,
        path: str,
        deadline_s: float,
        *,
        json: Any = None,
        accept: tuple[int, ...] = (),
    ) -> httpx.Response:
        """Ask Connect, again while it is away or rebalances (409, 500 and 503)."""
        answers: list[str] = []

        def answer() -> httpx.Response | None:
            try:
                response = _CLIENT.request(method, f"{self.url}{path}", json=json)
            except httpx.TransportError as error:
                answers.append(repr(error))
                return None
            if response.is_success or response.status_code in accept:
                return response
            answers.append(f"{response.status_code} {response.text}")
            if response.status_code in {409, 500, 503}:
                return None
            raise StackError(f"Connect refused {method} {path}: {answers[-1]}")

        try:
            found = wait_for(lambda: [r] if (r := answer()) is not None else [], deadline_s, path)
        except StackError as error:
            raise StackError(f"{error}: {answers[-1] if answers else ''}") from error
        return found[0]


class Connect(Server, Worker):
    """A Connect worker on a free loopback port.

    `stop` and `kill` keep the port; connectors and offsets are in Kafka, so `start` resumes them.

    Args:
        bootstrap: the broker.
        directory: where the settings live.
        log: the log file.
        detached: whether it may outlive this process.
        heap: the largest heap.
        quick: start fast rather than run fast for hours; benchmarks say False.
        port: the port, a free one unless given.
        plugins: the connectors of `PLUGINS` that it has; `require_plugin` adds to them.
    """

    def __init__(
        self,
        *,
        bootstrap: str,
        directory: Path,
        log: Path,
        detached: bool = False,
        heap: str = "512m",
        quick: bool = True,
        port: int | None = None,
        plugins: Collection[str] = ("postgres",),
    ) -> None:
        super().__init__(directory=directory, log=log, detached=detached)
        self.port = port or free_port()
        self.plugins = list(plugins)
        self._bootstrap = bootstrap
        self._heap = heap
        self._quick = quick

    @property
    def url(self) -> str:
        """The address of the REST API."""
        return f"http://127.0.0.1:{self.port}"

    def require_plugin(self, connector: str) -> None:
        """Have a connector; a worker that runs without it is started again with it.

        Its other connectors go on after that, as after a worker's crash.
        """
        if connector in self.plugins:
            return
        self.plugins.append(connector)
        if self.is_running:
            debezium_plugins(connector)  # the worker is not down while this is fetched
            self.kill()
            self.start()

    def _prepare(self) -> None:
        plugins = ",".join(str(debezium_plugins(connector)) for connector in self.plugins)
        self._settings.write_text(
            _ADDRESSES.format(bootstrap=self._bootstrap, port=self.port, plugins=plugins)
            + "".join(f"{name}={value}\n" for name, value in SETTINGS.items()),
            encoding="utf-8",
        )

    @property
    def _settings(self) -> Path:
        return self.directory / "connect.properties"

    def _command(self) -> list[str]:
        return java_command(
            "org.apache.kafka.connect.cli.ConnectDistributed",
            str(self._settings),
            classpath=kafka_jars(),
            heap=self._heap,
            quick=self._quick,
        )

    def _is_ready(self) -> bool:
        return Worker.answers(self)
