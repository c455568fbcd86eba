"""The three ways in which tests get their servers: which is chosen, and what two of them are made of."""

import inspect
from types import SimpleNamespace

import pytest
import yaml

from stack import connect, kafka, postgres
from stack.addresses import FOR_CONNECT, FORMS, GivenServers, UnsuitableServerError
from stack.connect import Worker
from stack.containers import COMPOSE, ContainerServers
from stack.kafka import Broker
from stack.local import ROOT, LocalStack, Servers
from stack.postgres import DatabaseServer, PostgresDatabase
from stack.processes import StackError
from stack.servers import VARIABLE, Way, servers_of, way_of

GIVEN = {
    VARIABLE: "addresses",
    "LAKEMARK_TEST_KAFKA": "broker-1:9092,broker-2:9092",
    "LAKEMARK_TEST_CONNECT": "https://connect:8083/",
    "LAKEMARK_TEST_POSTGRES": "postgresql://root@db:5433",
}
COMPOSED = yaml.safe_load(COMPOSE.read_text())


# --- which way -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "way", "kind"),
    [
        ({}, Way.PROCESSES, LocalStack),
        ({VARIABLE: ""}, Way.PROCESSES, LocalStack),
        ({VARIABLE: "processes"}, Way.PROCESSES, LocalStack),
        ({VARIABLE: "containers"}, Way.CONTAINERS, ContainerServers),
        (GIVEN, Way.ADDRESSES, GivenServers),
    ],
)
def test_the_variable_says_which_servers_there_are(asked, way, kind):
    assert way_of(asked) is way
    assert type(servers_of(asked, name="x")) is kind


def test_another_value_is_refused_and_the_three_are_named():
    with pytest.raises(StackError, match="'docker': it may be processes, containers, addresses"):
        servers_of({VARIABLE: "docker"}, name="x")


def test_contributing_names_every_value_and_every_variable():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert {way for way in Way if f"| `{way}`" not in text} == set()
    assert {
        f"{name}={form}" for name, form in FORMS.items() if f"`{name}={form}`" not in text
    } == set()


# --- addresses -------------------------------------------------------------------------------


def test_given_servers_have_the_addresses_of_the_environment():
    given = servers_of(GIVEN, name="x")
    assert given.kafka.bootstrap == "broker-1:9092,broker-2:9092"
    assert given.connect.url == "https://connect:8083"
    assert given.postgres.dsn("shop") == "postgresql://root@db:5433/shop"
    assert placeholders(given) == ("db", "5433", "root")
    assert not given.are_here


def test_connect_may_reach_the_database_elsewhere():
    given = servers_of({**GIVEN, FOR_CONNECT: "postgres:5432"}, name="x")
    assert given.postgres.dsn() == "postgresql://root@db:5433/postgres"
    assert placeholders(given) == ("postgres", "5432", "root")


def placeholders(servers: Servers) -> tuple[str, str, str]:
    """What the connector is told of its database: host, port and user."""
    values = PostgresDatabase(servers, servers.postgres, "shop").placeholders()
    return values["DATABASE_HOST"], values["DATABASE_PORT"], values["DATABASE_USER"]


def test_two_runs_against_the_same_servers_have_names_of_their_own(monkeypatch):
    monkeypatch.setattr(PostgresDatabase, "execute", lambda *_: [])
    monkeypatch.setattr(DatabaseServer, "connect", lambda *_: SimpleNamespaceContext())
    names = {servers_of(GIVEN, name="x").fresh_database().name for _ in range(20)}
    assert len(names) == 20


class SimpleNamespaceContext(SimpleNamespace):
    """A connection that takes everything."""

    def __enter__(self):
        return SimpleNamespace(execute=lambda *_: None)

    def __exit__(self, *_):
        return None


def test_all_missing_addresses_are_named_at_once_with_their_form():
    with pytest.raises(StackError) as caught:
        servers_of({VARIABLE: "addresses", "LAKEMARK_TEST_KAFKA": "b:1"}, name="x")
    said = str(caught.value)
    assert "LAKEMARK_TEST_CONNECT is missing; LAKEMARK_TEST_POSTGRES is missing" in said
    assert "LAKEMARK_TEST_CONNECT=http://host:port" in said
    assert "LAKEMARK_TEST_KAFKA" not in said


def test_only_the_addresses_of_what_is_asked_for_are_needed():
    alone = {name: GIVEN[name] for name in (VARIABLE, "LAKEMARK_TEST_POSTGRES")}
    assert servers_of(alone, name="x", services=("postgres",)).postgres.port == 5433


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("LAKEMARK_TEST_KAFKA", "broker"),
        ("LAKEMARK_TEST_KAFKA", "broker:nine"),
        ("LAKEMARK_TEST_CONNECT", "connect:8083"),
        ("LAKEMARK_TEST_POSTGRES", "postgresql://db:5432"),
        ("LAKEMARK_TEST_POSTGRES", "postgresql://root:secret@db:5432"),
        ("LAKEMARK_TEST_POSTGRES", "postgresql://root@db:port"),
        ("LAKEMARK_TEST_POSTGRES", "db:5432"),
        (FOR_CONNECT, "postgres"),
    ],
)
def test_what_is_no_address_is_refused(name, text):
    with pytest.raises(StackError, match=f"{name} is {text!r}"):
        servers_of({**GIVEN, name: text}, name="x")


def test_a_server_that_does_not_answer_is_named_with_its_variable(monkeypatch):
    monkeypatch.setattr("stack.addresses.ANSWERS_WITHIN_S", 0.1)
    monkeypatch.setattr(Broker, "answers", lambda _: True)
    monkeypatch.setattr(Worker, "answers", lambda _: False)
    with (
        pytest.raises(StackError, match=r"LAKEMARK_TEST_CONNECT: .*https://connect:8083"),
        servers_of(GIVEN, name="x"),
    ):
        pass


def test_a_server_that_is_given_is_not_ended():
    given = servers_of(GIVEN, name="x")
    for server in (given.kafka, given.connect, given.postgres):
        for act in (server.stop, server.kill, server.restart, server.pause, server.resume):
            with pytest.raises(StackError, match=r"not ours to be ended or held.*ends_servers"):
                act()
    given.stop()


@pytest.mark.parametrize(
    ("there", "error"),
    [
        ({"wal_level": "logical", "max_prepared_transactions": "64"}, None),
        ({"wal_level": "logical", "max_prepared_transactions": "0"}, UnsuitableServerError),
        ({"wal_level": "replica", "max_prepared_transactions": "64"}, UnsuitableServerError),
    ],
)
def test_a_database_without_the_settings_is_refused(monkeypatch, there, error):
    answer_all(monkeypatch)
    monkeypatch.setattr(DatabaseServer, "connect", lambda *_: Session(there))
    given = servers_of(GIVEN, name="x", postgres_settings={"max_prepared_transactions": "5"})
    if error is None:
        given.start()
        return
    with pytest.raises(error, match="db:5433 has"):
        given.start()


class Session:
    """A connection of a superuser to a server with these settings."""

    def __init__(self, settings):
        self.rows = list(settings.items())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def execute(self, _statement):
        return SimpleNamespace(fetchall=lambda: self.rows, fetchone=lambda: ("on",))


def answer_all(monkeypatch):
    for kind in (Broker, Worker, DatabaseServer):
        monkeypatch.setattr(kind, "answers", lambda _: True)


# --- containers ------------------------------------------------------------------------------


class FakeContainer:
    """A container of testcontainers and of Docker at once, without an engine."""

    name = "fake"

    def __init__(self, image, engine):
        self.image, self.engine = image, engine
        self.ports, self.env, self.files = {}, {}, {}
        self.command, self.network, self.aliases = [], None, ()
        self.status, self.acts = "", []

    def with_command(self, command):
        self.command = command
        return self

    def with_envs(self, **variables):
        self.env |= variables
        return self

    def with_network(self, network):
        self.network = network
        return self

    def with_network_aliases(self, *aliases):
        self.aliases = aliases
        return self

    def with_copy_into_container(self, transferable, destination_in_container):
        self.files[destination_in_container] = transferable.decode()
        return self

    def get_docker_client(self):
        return SimpleNamespace(host=lambda: self.engine.host)

    def get_wrapped_container(self):
        return FakeDocker(self)

    def start(self):
        self.acts.append("made")
        self.engine.started.append(self.aliases[0])
        self.status = self.engine.first_status

    def reload(self):
        """Nothing to do: the state is this object's own."""

    def stop(self):
        self.engine.removed.append(self.aliases[0])


class FakeDocker:
    """The same container as Docker's own client has it."""

    name = "fake"

    def __init__(self, container):
        self.container = container

    def _become(self, act, status):
        self.container.acts.append(act)
        self.container.status = status

    def start(self):
        self._become("started", "running")

    def stop(self, timeout):
        assert timeout > 0
        self._become("stopped", "exited")

    def kill(self):
        self._become("killed", "exited")

    def pause(self):
        self._become("paused", "paused")

    def unpause(self):
        self._become("resumed", "running")

    def logs(self, tail):
        return b"what it said last"


class FakeNetwork:
    """A network that remembers whether it is there."""

    is_there = False

    def create(self):
        self.is_there = True
        return self

    def remove(self):
        self.is_there = False


class FakeEngine:
    """Makes fakes, and remembers all of them."""

    def __init__(self, host="localhost", first_status="running"):
        self.host, self.first_status = host, first_status
        self.made, self.built, self.started, self.removed = {}, {}, [], []
        self.the_network = FakeNetwork()

    def container(self, image):
        self.made[image] = FakeContainer(image, self)
        return self.made[image]

    def network(self):
        return self.the_network

    def build(self, target, tag):
        self.built[tag] = target


@pytest.fixture
def engine(monkeypatch):
    for kind in (Broker, Worker, DatabaseServer):
        monkeypatch.setattr(kind, "answers", lambda self: self.container.status == "running")
    return FakeEngine()


@pytest.fixture
def started(engine):
    with ContainerServers(engine=engine) as servers:
        yield servers


def of(server) -> FakeContainer:
    return server.container


def test_containers_have_the_images_of_docker_compose(started, engine):
    services = COMPOSED["services"]
    assert of(started.postgres).image == services["postgres"]["image"]
    assert of(started.kafka).image == services["kafka"]["image"]
    assert engine.built == {of(started.connect).image: services["connect"]["build"]["target"]}
    assert of(started.connect).image == f"{COMPOSED['name']}-connect", "as compose names it"


def test_containers_reach_each_other_by_the_names_of_their_services(started, engine):
    for name in ("postgres", "kafka", "connect"):
        container = of(getattr(started, name))
        assert container.aliases == (name,)
        assert container.network is engine.the_network
    assert placeholders(started) == ("postgres", "5432", "postgres")
    assert not started.are_here


def test_the_broker_is_that_of_docker_compose_with_an_address_of_its_own(started):
    env = of(started.kafka).env
    theirs = {k: str(v) for k, v in COMPOSED["services"]["kafka"]["environment"].items()}
    changed = {name for name, value in theirs.items() if env[name] != value}
    assert changed == {"KAFKA_ADVERTISED_LISTENERS"}
    assert env["KAFKA_ADVERTISED_LISTENERS"] == (
        f"INSIDE://kafka:19092,OUTSIDE://{started.kafka.bootstrap}"
    )
    for setting, value in kafka.SETTINGS.items():
        assert env["KAFKA_" + setting.replace(".", "_").upper()] == value


def test_connect_is_that_of_docker_compose_with_the_settings_of_the_tests(started):
    (config,) = COMPOSED["services"]["connect"]["configs"]
    text = of(started.connect).files[config["target"]]
    settings = dict(line.split("=", 1) for line in text.splitlines())
    assert settings["bootstrap.servers"] == "kafka:19092"
    assert settings["plugin.path"] == "/opt/kafka/plugins"
    assert connect.SETTINGS.items() <= settings.items()
    assert of(started.connect).env == COMPOSED["services"]["connect"]["environment"]


def test_the_database_has_the_settings_of_the_tests_and_trusts_whoever_connects(engine):
    mine = {"max_prepared_transactions": "5"}
    with ContainerServers(engine=engine, services=("postgres",), postgres_settings=mine) as servers:
        command = of(servers.postgres).command
        assert engine.started == ["postgres"]
    assert command[0] == "postgres"
    assert set(command[1::2]) == {"-c"}
    settings = dict(word.split("=", 1) for word in command[2::2])
    assert settings == {**postgres.SETTINGS, **mine}
    asked = COMPOSED["services"]["postgres"]["command"]
    assert {word.partition("=")[0] for word in asked[2::2]} <= settings.keys()
    assert of(servers.postgres).env["POSTGRES_HOST_AUTH_METHOD"] == "trust"
    assert of(servers.postgres).env["POSTGRES_USER"] == postgres.USER


def test_ports_are_open_on_this_machine_alone(started):
    for server, inside in (
        (started.kafka, 9092),
        (started.connect, 8083),
        (started.postgres, 5432),
    ):
        assert of(server).ports == {f"{inside}/tcp": ("127.0.0.1", server.port)}
    assert started.kafka.bootstrap == f"127.0.0.1:{started.kafka.port}"
    assert started.connect.url == f"http://127.0.0.1:{started.connect.port}"


def test_an_engine_elsewhere_is_reached_by_its_name(engine):
    engine.host = "builder.example"
    with ContainerServers(engine=engine) as servers:
        assert of(servers.kafka).ports == {"9092/tcp": servers.kafka.port}
        assert servers.kafka.bootstrap == f"builder.example:{servers.kafka.port}"
        listeners = of(servers.kafka).env["KAFKA_ADVERTISED_LISTENERS"]
        assert listeners.endswith(f"OUTSIDE://builder.example:{servers.kafka.port}")
        assert servers.postgres.dsn().startswith("postgresql://postgres@builder.example:")


def test_a_container_that_was_killed_is_the_same_one_afterwards(started):
    broker = started.kafka
    before = broker.bootstrap
    broker.kill()
    assert not broker.is_running
    broker.start()
    assert broker.is_running
    broker.pause()
    assert broker.is_running
    assert not broker.answers()
    broker.resume()
    broker.resume()
    broker.restart()
    assert of(broker).acts == (
        ["made", "killed", "started", "paused", "resumed", "stopped", "started"]
    )
    assert broker.bootstrap == before


def test_connect_starts_when_the_broker_answers_and_all_is_removed_at_the_end(engine):
    with ContainerServers(engine=engine):
        assert engine.the_network.is_there
    assert engine.started.index("kafka") < engine.started.index("connect")
    assert engine.removed == engine.started[::-1]
    assert not engine.the_network.is_there


def test_a_container_that_ends_at_its_start_is_shown_with_its_log_and_removed(engine):
    engine.first_status = "exited"
    with (
        pytest.raises(StackError, match=r"(?s)PostgreSQL has ended.*docker logs fake.*said last"),
        ContainerServers(engine=engine),
    ):
        pass
    assert engine.removed == ["postgres"]
    assert not engine.the_network.is_there


def test_the_fakes_are_like_what_they_stand_for():
    container = pytest.importorskip("testcontainers.core.container").DockerContainer
    theirs = pytest.importorskip("docker.models.containers").Container
    for fake, real in ((FakeContainer, container), (FakeDocker, theirs)):
        for name, method in vars(fake).items():
            if name.startswith("_") or not inspect.isfunction(method):
                continue
            taken = inspect.signature(getattr(real, name)).parameters
            loose = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
            mine = set(inspect.signature(method).parameters)
            assert loose or mine <= set(taken) | {"variables", "aliases"}, name
