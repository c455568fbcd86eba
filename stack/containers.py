"""Kafka, Connect and PostgreSQL in containers, by testcontainers.

Images, versions and environment are those of docker-compose.yml, the settings that make tests fast
those of the child processes. Connect reaches the other two by the names of their services, this
machine all three by ports that are chosen once: a killed container comes back where it was.
"""

import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import yaml

from stack import connect, kafka, postgres
from stack.connect import Worker
from stack.kafka import Broker
from stack.local import ROOT, SERVICES, Servers
from stack.postgres import USER, DatabaseServer
from stack.processes import Controlled, StackError, free_port, wait_for

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.network import Network

COMPOSE: Final = ROOT / "docker-compose.yml"

READY_WITHIN_S: Final = 300.0
"""Deadline of a start: the image may have to be fetched or built first."""
STOP_WITHIN_S: Final = 20
"""Seconds after which an orderly stop is no longer waited for."""

_LOOPBACK: Final = "127.0.0.1"
# The ports inside the containers.
_POSTGRES: Final = 5432
_KAFKA: Final = 9092
_KAFKA_INSIDE: Final = 19092
_CONNECT: Final = 8083

T = TypeVar("T")


class Engine(Protocol):
    """What makes containers: that of testcontainers, or a test's own."""

    def container(self, image: str) -> "DockerContainer":
        """Return a container of an image; it is not started yet."""

    def network(self) -> "Network":
        """Return a network; it is not made yet."""

    def build(self, target: str, tag: str) -> None:
        """Build an image from the Dockerfile; what has not changed is not built again."""


class Docker:
    """The engine that testcontainers finds: Docker, or what `DOCKER_HOST` names."""

    def container(self, image: str) -> "DockerContainer":
        """Return a container of an image.

        Raises:
            StackError: there is no engine, or no testcontainers.
        """
        from testcontainers.core.container import DockerContainer

        return _engine_of(lambda: DockerContainer(image))

    def network(self) -> "Network":
        """Return a network.

        Raises:
            StackError: there is no engine, or no testcontainers.
        """
        from testcontainers.core.network import Network

        return _engine_of(Network)

    def build(self, target: str, tag: str) -> None:
        """Build an image from the Dockerfile and keep it for the next run."""
        from testcontainers.core.image import DockerImage

        image = _engine_of(lambda: DockerImage(ROOT, tag=tag, clean_up=False, target=target))
        _engine_of(image.build)


class _Contained(Controlled):
    """A server in a container.

    Args:
        container: what it runs in; not started yet.
        service: the service of docker-compose.yml, which is its name in the network too.
        inside: the port it listens on in the container.
    """

    def __init__(self, container: "DockerContainer", service: str, inside: int) -> None:
        self.container = container
        self.port = free_port()
        self.host = container.get_docker_client().host()
        self._service = service
        self._is_made = False
        # An engine elsewhere is reached by its name. One on this machine opens ports of its
        # loopback address alone, which the types of testcontainers do not know and Docker does.
        ports: dict[str, Any] = container.ports
        here = self.host in {"localhost", _LOOPBACK}
        ports[f"{inside}/tcp"] = (_LOOPBACK, self.port) if here else self.port
        if here:
            self.host = _LOOPBACK

    @property
    def is_running(self) -> bool:
        """Whether the container runs (it may be paused)."""
        return self._status in {"running", "paused"}

    @property
    def log_place(self) -> str:
        """The command that shows its log."""
        name = self.container.get_wrapped_container().name if self._is_made else self._service
        return f"docker logs {name}"

    def start(self) -> None:
        """Start the container, the same one as before, and return when the server answers.

        Raises:
            StackError: it ends or does not answer in time; the message has its last log lines.
        """
        if not self._is_made:
            self.container.start()
            self._is_made = True
        elif not self.is_running:
            self.container.get_wrapped_container().start()

        def settled() -> bool:
            return not self.is_running or self.answers()

        try:
            wait_for(settled, READY_WITHIN_S, f"{self.name} to answer")
        except StackError as error:
            raise StackError(f"{error}\n{self._log_tail()}") from error
        if not self.is_running:
            raise StackError(f"{self.name} has ended\n{self._log_tail()}")

    def stop(self) -> None:
        """Ask the server to stop and wait for it."""
        if self.is_running:
            self.resume()
            self.container.get_wrapped_container().stop(timeout=STOP_WITHIN_S)

    def kill(self) -> None:
        """SIGKILL for the server's processes; the container and its data stay."""
        if self.is_running:
            self.container.get_wrapped_container().kill()
            wait_for(lambda: not self.is_running, 10, f"the killed {self.name} to be gone")

    def pause(self) -> None:
        """Hold all processes of the container."""
        if self._status == "running":
            self.container.get_wrapped_container().pause()

    def resume(self) -> None:
        """End `pause`; harmless without one."""
        if self._status == "paused":
            self.container.get_wrapped_container().unpause()

    def remove(self) -> None:
        """Remove the container with its data."""
        self.container.stop()

    @property
    def _status(self) -> str:
        """The engine's word for the container's state; empty before the first start."""
        if not self._is_made:
            return ""
        self.container.reload()
        return str(self.container.status)

    def _log_tail(self) -> str:
        """Return the last lines of the server's log under a line that says where it is."""
        tail: bytes = self.container.get_wrapped_container().logs(tail=20)
        return f"--- last lines of {self.log_place}\n{tail.decode(errors='replace')}"


class ContainedBroker(_Contained, Broker):
    """A Kafka broker in a container."""

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`, on this machine."""
        return f"{self.host}:{self.port}"

    @property
    def for_connect(self) -> str:
        """The name of the service in the network, and the port of its listener there."""
        return f"{self._service}:{_KAFKA_INSIDE}"


class ContainedWorker(_Contained, Worker):
    """A Connect worker in a container."""

    @property
    def url(self) -> str:
        """The address of the REST API, on this machine."""
        return f"http://{self.host}:{self.port}"


class ContainedDatabaseServer(_Contained, DatabaseServer):
    """A PostgreSQL server in a container."""

    @property
    def for_connect(self) -> tuple[str, int]:
        """The name of the service in the network, and the port there."""
        return self._service, _POSTGRES


C = TypeVar("C", bound=_Contained)


class ContainerServers(Servers):
    """Chosen servers in containers of one network, removed with their data at the end.

    Args:
        name: names the directory of what runs beside them.
        services: which of `kafka`, `connect` and `postgres` (Connect needs Kafka).
        postgres_settings: server settings for PostgreSQL on top of ours.
        engine: what makes containers; Docker unless given.
    """

    kafka: ContainedBroker
    connect: ContainedWorker
    postgres: ContainedDatabaseServer

    def __init__(
        self,
        *,
        name: str = "containers",
        services: Collection[str] = SERVICES,
        postgres_settings: Mapping[str, str] | None = None,
        engine: Engine | None = None,
    ) -> None:
        super().__init__(name, ROOT / ".lakemark" / f"{name}-{os.getpid()}")
        self._services = frozenset(services)
        self._settings = {**postgres.SETTINGS, **(postgres_settings or {})}
        self._engine = engine or Docker()
        self._compose: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
        self._network: Network | None = None
        self._contained: list[_Contained] = []

    @property
    def are_here(self) -> bool:
        """False: a container does not reach what listens on this machine's loopback address."""
        return False

    def start(self) -> None:
        """Make the network and the containers, and return when all servers answer.

        Raises:
            StackError: there is no engine, or a server does not answer in time.
        """
        try:
            self._network = self._engine.network().create()
            if "postgres" in self._services:
                self.postgres = self._made(self._postgres())
            if "kafka" in self._services:
                self.kafka = self._made(self._kafka())
            if "connect" in self._services:  # it ends where it finds no broker
                self.connect = self._made(self._connect())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Remove the containers, last to first, and the network."""
        while self._contained:
            self._contained.pop().remove()
        if self._network is not None:
            self._network.remove()
            self._network = None

    def _made(self, server: C) -> C:
        """Start a server that is removed at the end, and return it."""
        self._contained.append(server)
        server.start()
        return server

    def _postgres(self) -> ContainedDatabaseServer:
        server = ContainedDatabaseServer(self._container("postgres"), "postgres", _POSTGRES)
        words = [
            word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")
        ]
        server.container.with_command(["postgres", *words])
        server.container.with_envs(
            POSTGRES_USER=USER,
            POSTGRES_HOST_AUTH_METHOD="trust",
            POSTGRES_INITDB_ARGS="--encoding=UTF8 --locale=C.UTF-8",
        )
        return server

    def _kafka(self) -> ContainedBroker:
        server = ContainedBroker(self._container("kafka"), "kafka", _KAFKA)
        environment = {name: str(v) for name, v in self._service("kafka")["environment"].items()}
        listeners = environment["KAFKA_ADVERTISED_LISTENERS"]
        environment |= {_variable(name): value for name, value in kafka.SETTINGS.items()}
        environment["KAFKA_ADVERTISED_LISTENERS"] = listeners.replace(
            f"OUTSIDE://localhost:{_KAFKA}", f"OUTSIDE://{server.bootstrap}"
        )
        server.container.with_envs(**environment)
        return server

    def _connect(self) -> ContainedWorker:
        service = self._service("connect")
        self._engine.build(service["build"]["target"], _image("connect", service))
        server = ContainedWorker(self._container("connect"), "connect", _CONNECT)
        (config,) = service["configs"]
        content: str = self._compose["configs"][config["source"]]["content"]
        settings = {
            **dict(line.split("=", 1) for line in content.split()),
            **connect.SETTINGS,
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        server.container.with_copy_into_container(text.encode(), config["target"])
        server.container.with_envs(**service["environment"])
        return server

    def _service(self, name: str) -> dict[str, Any]:
        service: dict[str, Any] = self._compose["services"][name]
        return service

    def _container(self, service: str) -> "DockerContainer":
        """Return a container of a service's image, known in the network by the service's name."""
        assert self._network is not None
        container = self._engine.container(_image(service, self._service(service)))
        return container.with_network(self._network).with_network_aliases(service)


def _image(name: str, service: Mapping[str, Any]) -> str:
    """Return the image of a service; one that is built has the name that compose gives it."""
    return str(service.get("image", f"lakemark-{name}"))


def _variable(setting: str) -> str:
    """Return the environment variable that the image of Kafka takes for a broker's setting."""
    return "KAFKA_" + setting.upper().replace(".", "_")


def _engine_of(make: Callable[[], T]) -> T:
    """Return what an engine makes.

    Raises:
        StackError: no engine answers.
    """
    from docker.errors import DockerException

    try:
        return make()
    except DockerException as error:
        raise StackError(
            f"no Docker engine answers ({error}): start one, name it in DOCKER_HOST,"
            " or leave LAKEMARK_TEST_SERVERS out: the servers are child processes then"
        ) from error
