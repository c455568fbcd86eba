"""Databases of the stack and their connectors' settings, without any server."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from stack import connect, local
from stack.avro import avro_settings
from stack.connect import PLUGINS, Connect, Worker, connector_config
from stack.database import CONFIGS, Database
from stack.local import DATABASES, LocalStack
from stack.mariadb import VERSIONS, MariaDb
from stack.mysql import CONNECTOR_RIGHTS, MySqlDatabase
from stack.mysql_server import MySql
from stack.postgres import Postgres, PostgresDatabase
from stack.processes import StackError

KAFKA = SimpleNamespace(for_connect="kafka:19092")


def handle(kind: type, server: type, tmp_path: Path, name: str = "db1_7") -> Database:
    made = server(directory=tmp_path / "data", log=tmp_path / "log", port=4000)
    return kind(SimpleNamespace(kafka=KAFKA), made, name)


HANDLES = [(PostgresDatabase, Postgres), (MySqlDatabase, MariaDb), (MySqlDatabase, MySql)]


@pytest.mark.parametrize(("kind", "server"), HANDLES)
def test_every_placeholder_of_a_connector_has_a_value(kind, server, tmp_path):
    database = handle(kind, server, tmp_path)
    config = connector_config(
        CONFIGS / f"{database.server.connector}.json", database.placeholders()
    )
    assert config["connector.class"] == PLUGINS[database.server.connector].java_class
    assert config["skipped.operations"] == "none"
    assert not any("${" in value for value in config.values())
    assert config["database.port"] == "4000"


OWN_SETTINGS = {
    PostgresDatabase: {"topic.prefix", "slot.name", "publication.name"},
    MySqlDatabase: {
        "topic.prefix",
        "database.server.id",
        "schema.history.internal.kafka.topic",
    },
}


@pytest.mark.parametrize(("kind", "server"), HANDLES)
def test_connectors_share_no_name(kind, server, tmp_path):
    one, two = (handle(kind, server, tmp_path, name) for name in ("one", "two"))
    assert one._names().keys() == two._names().keys() == OWN_SETTINGS[kind]
    assert not set(one._names().values()) & set(two._names().values())
    template = json.loads((CONFIGS / f"{one.server.connector}.json").read_text())
    assert one._names().keys() <= template.keys()


@pytest.mark.parametrize("connector", ["mariadb", "mysql"])
def test_connectors_with_a_binary_log_say_the_order_in_a_transaction(connector):
    config = json.loads((CONFIGS / f"{connector}.json").read_text())
    assert config["provide.transaction.metadata"] == "true"
    assert config["include.schema.changes"] == "true"
    patterns = config["topic.creation.ordered.include"].split(",")

    def is_ordered(topic: str) -> bool:
        return any(re.fullmatch(pattern, topic) for pattern in patterns)

    assert is_ordered("shop")
    assert is_ordered("shop.transaction")
    assert not is_ordered("shop.shop.orders")
    assert config["topic.creation.ordered.partitions"] == "1"


def test_a_connectors_number_is_none_of_a_servers_and_fits(tmp_path):
    numbers = {handle(MySqlDatabase, MySql, tmp_path, f"db{n}").number for n in range(500)}
    assert len(numbers) == 500
    assert min(numbers) > 1 << 30
    assert max(numbers) < 1 << 32


def test_tables_are_called_as_their_topics_are(tmp_path):
    mariadb, postgres = handle(MySqlDatabase, MariaDb, tmp_path), handle(*HANDLES[0], tmp_path)
    assert mariadb.identifier("t") == "db1_7.t"
    assert mariadb.topic("t") == "db1_7.db1_7.t"
    assert mariadb.topic("other.t") == "db1_7.other.t"
    assert postgres.topic("t") == "db1_7.public.t"
    assert postgres.topic("own.t") == "db1_7.own.t"
    assert mariadb.dsn == "mariadb://root@127.0.0.1:4000/db1_7"


class FakeServer(MariaDb):
    """A server that keeps the statements that it is given."""

    def connect(self, *_, **__):
        self.statements = []
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def execute(self, statement):
        self.statements.append(statement)


def test_a_connector_has_its_own_user_whose_rights_end_at_its_database(tmp_path):
    server = FakeServer(directory=tmp_path / "data", log=tmp_path / "log")
    database = server.create(SimpleNamespace(kafka=KAFKA), "a_b%`c")
    user = f"'connector{database.number}'@'%'"
    assert database.placeholders()["DATABASE_USER"] == f"connector{database.number}"
    assert server.statements == [
        "CREATE DATABASE `a_b%``c`",
        f"CREATE USER {user} IDENTIFIED BY 'trusted'",
        f"GRANT {CONNECTOR_RIGHTS} ON *.* TO {user}",
        rf"GRANT INSERT, UPDATE, DELETE ON `a\_b\%``c`.* TO {user}",
    ]


def test_a_servers_settings_are_ours_with_those_of_its_user_on_top(tmp_path, monkeypatch):
    server = MariaDb(
        directory=tmp_path, log=tmp_path / "log", settings={"sync_binlog": "1"}, number=7, port=4001
    )
    monkeypatch.setattr(MariaDb, "fetch", lambda _: Path("/opt/mariadb"))
    command = server._command()
    assert command[:2] == ["/opt/mariadb/bin/mariadbd", "--no-defaults"]
    for option in (
        *("--sync-binlog=1", "--server-id=7", "--port=4001", "--bind-address=127.0.0.1"),
        *("--binlog-row-image=FULL", "--gtid-strict-mode=ON", f"--datadir={tmp_path}/data"),
    ):
        assert option in command


@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_has_a_list_that_pins_it(version):
    listed = json.loads((Path(local.__file__).with_name(f"mariadb-{version}.json")).read_text())
    assert [name.rpartition(":")[2].rpartition(".")[0] for name in listed] == [version]


# --- plugins of Connect -----------------------------------------------------------------------


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """A Connect worker whose process is not started; what happens to it is in `done`."""
    monkeypatch.setattr(connect, "debezium_plugins", lambda connector, *_: f"/plugins/{connector}")
    monkeypatch.setattr(Connect, "is_running", property(lambda self: self.up))
    monkeypatch.setattr(Connect, "start", lambda self: (self._prepare(), self.done.append("start")))
    monkeypatch.setattr(Connect, "kill", lambda self: self.done.append("kill"))
    made = Connect(bootstrap="b:1", directory=tmp_path, log=tmp_path / "log")
    made.up, made.done = True, []
    made._prepare()
    return made


def plugin_path(worker: Connect) -> str:
    return re.search("^plugin.path=(.*)$", worker._settings.read_text(), re.MULTILINE)[1]


def test_a_worker_has_what_was_asked_for_and_nothing_else(worker):
    assert plugin_path(worker) == "/plugins/postgres"
    worker.require_plugin("postgres")
    assert worker.done == []
    worker.require_plugin("mariadb")
    assert plugin_path(worker) == "/plugins/postgres,/plugins/mariadb"
    assert worker.done == ["kill", "start"]
    worker.require_plugin("mariadb")
    assert worker.done == ["kill", "start"]


def test_a_worker_that_is_down_is_left_down(worker):
    worker.up = False
    worker.require_plugin("mysql")
    assert worker.done == []
    assert worker.plugins == ["postgres", "mysql"]


def test_somebody_elses_worker_without_a_plugin_is_refused(monkeypatch):
    class Given(Worker):
        url = "http://connect:8083"

    Given.__abstractmethods__ = frozenset()
    there = [{"class": PLUGINS["postgres"].java_class}]
    monkeypatch.setattr(Given, "_request", lambda *_: SimpleNamespace(json=lambda: there))
    Given().require_plugin("postgres")
    with pytest.raises(StackError, match=r"connect:8083 has no io\.debezium.*MariaDbConnector"):
        Given().require_plugin("mariadb")


def test_a_stack_has_the_plugins_of_its_databases(tmp_path):
    def plugins(*services: str) -> list[str]:
        return LocalStack(
            directory=tmp_path, services=("kafka", "connect", *services)
        ).connect.plugins

    assert plugins("postgres") == ["postgres"]
    assert plugins() == ["postgres"], "Connect does not start without any"
    assert plugins("mariadb-10.11") == ["mariadb"]
    assert plugins(*DATABASES) == ["mariadb", "mysql", "postgres"]


def test_a_stack_names_the_databases_that_there_are(tmp_path):
    with pytest.raises(StackError, match="no database oracle: only postgres, mariadb-11"):
        LocalStack(directory=tmp_path, services=()).database_server("oracle")


@pytest.mark.parametrize("product", ["postgres", "mariadb", "mysql"])
def test_a_connector_s_file_for_avro_is_the_usual_one_with_other_converters(product):
    usual, avro = (
        json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
        for name in (product, f"{product}-avro")
    )
    rest = {name: text for name, text in usual.items() if not name.partition(".converter")[1]}
    names = {"column.propagate.source.type": ".*"}
    assert avro == {**rest, **avro_settings("${REGISTRY_URL}"), **names}
