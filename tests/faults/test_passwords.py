"""Passwords are changed while a pipeline runs, and with them the files that hold them; rights."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from psycopg import sql

from lakemark.kafka.client_settings import librdkafka_options
from lakemark.settings.config import load
from stack.kafka import Kafka
from stack.lakemark_process import write_config
from stack.local import Database, LocalStack, Servers
from stack.processes import free_port, wait_for
from tests.kit.broken import revive
from tests.kit.http_side import HttpSide
from tests.kit.nightly import NIGHTLY, nightly
from tests.kit.output_topics import settled
from tests.kit.page_shell import PageShell, lines, with_names
from tests.kit.running import SPARK, STATE_S, STREAM, Running
from tests.kit.servers import own_processes
from tests.kit.snapshots import SNAPSHOT, Snapshots
from tests.kit.strict_kafka import AUTHORIZER

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow]

ORDERS, OTHER = "public.orders", "public.other"
ROWS = 3000
ROLE = "rotating"
FIRST, SECOND, THIRD = "first-of-three", "second-of-three", "third-of-three"


class Login:
    """The role that lakemark connects as, its password and the file that names it."""

    def __init__(self, database: Database, file: Path) -> None:
        self.database, self.file = database, file
        self.in_database(FIRST)
        self.in_file(FIRST)

    def in_database(self, password: str) -> None:
        """The role has this password from now on, and its sessions are over."""
        made = self.database.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE])
        verb = "ALTER" if made else "CREATE"
        statement = sql.SQL(verb + " ROLE {} SUPERUSER LOGIN PASSWORD {}").format(
            sql.Identifier(ROLE), sql.Literal(password)
        )
        with self.database.connect() as connection:
            connection.execute(statement)
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [ROLE]
            )

    def in_file(self, password: str) -> None:
        """The file has this one, in one go."""
        scratch = self.file.with_suffix(".new")
        scratch.write_text(f"{password}\n")
        scratch.replace(self.file)


@pytest.fixture
def asked_for(stack: Servers) -> Iterator[None]:
    """PostgreSQL wants a password of this role, and trusts all others as before."""
    rules = stack.postgres.data / "pg_hba.conf"
    before = rules.read_text()

    def put(text: str) -> None:
        rules.write_text(text)
        with stack.postgres.connect() as connection:
            connection.execute("SELECT pg_reload_conf()")

    put(f"host all {ROLE} 127.0.0.1/32 scram-sha-256\n{before}")
    yield
    put(before)
    with stack.postgres.connect() as connection:
        connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(ROLE)))


@own_processes
def test_the_next_connection_has_the_new_password(database: Database, tmp_path: Path, asked_for):
    for table in ("orders", "other"):
        database.execute(f"CREATE TABLE {table} (id serial PRIMARY KEY, note text)")
        database.execute(f"INSERT INTO {table} (note) SELECT 'n' FROM generate_series(1, {ROWS})")
    database.start_connector({"snapshot.mode": "no_data"})
    login = Login(database, tmp_path / "password")
    url = database.dsn.replace("postgres@", f"{ROLE}@")
    settings = {**SNAPSHOT, "database": {"url": url, "password": "${file:password}"}}
    with (
        Running(database, tmp_path, settings) as running,
        Snapshots(running) as snapshots,
    ):
        running.lakemark.start()
        side = HttpSide(running)
        identity = running.lakemark.identity

        # 1. The database has another one: snapshots wait and say why, the log goes on.
        run = snapshots.start(ORDERS, OTHER, delay="50ms")
        snapshots.wait_settled(run, ORDERS, 3)
        login.in_database(SECOND)
        said = running.lakemark.wait_for_event(
            "snapshot.delayed", STATE_S, where=lambda e: e["code"] == "database-refused"
        )
        assert "password authentication failed" in said["reason"]
        assert "database.password" in said["hint"]

        def delayed() -> bool:
            return (side.status()["snapshot_delay"] or {}).get("code") == "database-refused"

        wait_for(delayed, STATE_S, "/v1/status to say why snapshots wait")
        before = side.table(ORDERS)["events"]
        database.execute("UPDATE orders SET note = 'while refused' WHERE id <= 10")
        wait_for(lambda: side.table(ORDERS)["events"] >= before + 10, STATE_S, "the log to go on")
        assert side.status()["pipeline"]["state"] == "streaming"
        assert snapshots.notes(run)[-1].type != "ABORTED"

        # 2. The file follows: the run goes on where it was.
        login.in_file(SECOND)
        assert snapshots.completed(run)["total_rows_scanned"] == str(2 * ROWS)
        running.wait_equal()
        wait_for(
            lambda: side.status()["snapshot_delay"] is None, STATE_S, "nothing to delay snapshots"
        )

        # 3. The file goes first, while nothing is read: nobody notices.
        login.in_file(THIRD)
        login.in_database(THIRD)
        assert snapshots.run(OTHER)
        running.wait_equal()
        assert running.lakemark.identity == identity, "lakemark was started again"
        log = running.lakemark.log.read_text()
        assert not [word for word in (FIRST, SECOND, THIRD) if word in log]

        # 4. A start with a wrong one ends, and says so.
        running.lakemark.stop()
        login.in_file(FIRST)
        assert running.lakemark.run_once() == 3
        assert "the database refuses us" in running.lakemark.log.read_text()


# --- the brokers' -----------------------------------------------------------------------------

MECHANISM = "SCRAM-SHA-256"
SHOP, CLEAN, PRINCIPAL = "shop", "shop.clean", "lakemark"  # as the pages have them
OWN = ("signals", "notifications", "control", "progress", "chunks", "dead-letters")


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[LocalStack, str]]:
    """A stack of its own whose brokers have a second address, for passwords and for rights."""
    stack = LocalStack(name="guarded")
    kafka, port = stack.kafka, free_port()
    address = f"127.0.0.1:{port}"
    kafka.settings = {
        "listeners": f"PLAINTEXT://{kafka.bootstrap},SASL_PLAINTEXT://{address},"
        f"CONTROLLER://127.0.0.1:{kafka.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{kafka.bootstrap},SASL_PLAINTEXT://{address}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": MECHANISM,
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": "org.apache.kafka.common."
        "security.scram.ScramLoginModule required;",
        **AUTHORIZER,
        "super.users": "User:ANONYMOUS",  # whoever comes by the first address
    }
    with stack:
        yield stack, address


def let_in(stack: Servers, password: str) -> None:
    """The brokers know the principal by this password from now on."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion(PRINCIPAL, info, password.encode())
    admin = stack.kafka.admin()
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(STATE_S)


@pytest.fixture(scope="module")
def shop(
    guarded: tuple[LocalStack, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A pipeline with output topics that has a password, the rights of the pages, and no others."""
    stack, address = guarded
    folder = tmp_path_factory.mktemp("shop")
    shell = PageShell(folder / "shell", here=folder)
    pages = ("docs/security.md", "docs/outputs.md")
    block = "\n".join(lines(page, "kafka-acls.sh") for page in pages)
    granted = shell.begin(with_names(block, {"localhost:9092": stack.kafka.bootstrap}))
    let_in(stack, FIRST)
    (folder / "password").write_text(FIRST)
    security = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": MECHANISM,
        "sasl_username": PRINCIPAL,
        "sasl_password": "${file:password}",
    }
    kafka = {"bootstrap_servers": address, "timeout": "10s", "security": security}
    sections = {**SNAPSHOT, "kafka": kafka, "output": {"topic_prefix": CLEAN}}
    try:
        with stack.fresh_database(
            "CREATE TABLE orders (id serial PRIMARY KEY)", name=SHOP
        ) as database:
            database.execute("INSERT INTO orders SELECT FROM generate_series(1, 100)")
            database.start_connector()
            granted.wait()
            with Running(database, folder, sections, spark=NIGHTLY) as running:
                running.lakemark.start()
                yield running
    finally:
        shell.close()


def denied(kafka: Kafka) -> set[str]:
    """What the brokers have kept from the principal so far, in the words of their log."""
    said = rf"User:{PRINCIPAL} is Denied operation = (\w+) from host = \S+ on resource = (\S+)"
    return {" ".join(found) for found in re.findall(said, kafka.log.read_text())}


def refused(asked: Callable[[], object]) -> str:
    """The name of the error by which the brokers keep something from us."""
    with pytest.raises(KafkaException) as found:
        asked()
    return str(found.value.args[0].name())


@nightly
def test_the_rights_of_the_page_are_enough_and_there_are_no_others(shop: Running):
    kafka, changes = shop.database.stack.kafka, shop.database.topic("orders")
    foreign = "shop.publicity"
    kafka.create_topic(foreign)
    shop.wait_equal()
    with Snapshots(shop) as snapshots:
        assert snapshots.run(ORDERS)
    assert len(settled(shop, ORDERS).newest()) == 100
    assert denied(kafka) == set()
    assert shop.lakemark.command("doctor").splitlines()[-1].startswith("0 ✗")
    assert ORDERS in shop.lakemark.command("plan")
    # these two ask after the cluster itself as well, and do without
    assert {what for what in denied(kafka) if "Cluster:" not in what} == set()

    client = librdkafka_options(load(shop.lakemark.config))
    admin, producer = AdminClient(client), Producer(client)
    captured = {name for name in kafka.topics() if name.startswith(f"{SHOP}.public.")}
    seen = set(admin.list_topics(timeout=STATE_S).topics)
    told = {name for name in kafka.topics() if name.startswith(f"{CLEAN}.")}
    assert told >= {f"{CLEAN}.{ORDERS}"}
    heartbeats = f"__debezium-heartbeat.{SHOP}"
    assert seen == {*captured, *told, heartbeats, *(f"{SHOP}.{name}" for name in OWN)}

    def write(topic: str) -> None:
        said: list[KafkaError | None] = []
        producer.produce(topic, b"{}", SHOP, on_delivery=lambda error, _: said.append(error))
        assert producer.flush(STATE_S) == 0
        if said[0] is not None:
            raise KafkaException(said[0])

    def join(group: str) -> None:
        consumer = Consumer({**client, "group.id": group, "enable.auto.commit": False})
        consumer.subscribe([changes])
        try:
            message = wait_for(lambda: consumer.poll(0.2), STATE_S, f"a word of {group}")
            if message.error() is not None:
                raise KafkaException(message.error())
        finally:
            consumer.close()

    def make(topic: str) -> None:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(STATE_S)

    def remove(topic: str) -> None:
        admin.delete_topics([topic])[topic].result(STATE_S)

    write(f"{SHOP}.signals")
    topic, group = "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED"
    for asked, error in {
        partial(write, changes): topic,
        partial(write, foreign): topic,
        partial(join, f"{SHOP}.owners"): group,
        partial(join, f"{SHOP}.outputs"): group,
        partial(make, f"{SHOP}.cleaner"): topic,
        partial(make, f"{SHOP}.public.more"): topic,
        partial(make, f"{SHOP}.more"): topic,
        partial(remove, changes): topic,
        partial(remove, f"{SHOP}.control"): topic,
    }.items():
        assert refused(asked) == error, asked


def test_the_brokers_get_the_new_password(shop: Running):
    database = shop.database
    stack, file = database.stack, shop.directory / "password"
    with Snapshots(shop) as snapshots:
        shop.wait_equal()
        side = HttpSide(shop)
        identity = shop.lakemark.identity

        # 1. The brokers have another one, and all connections are over.
        let_in(stack, SECOND)
        stack.kafka.kill()
        stack.kafka.start()

        def refused() -> dict[str, Any]:
            now = side.status()["pipeline"]
            return now if now["code"] == "kafka-refused" else {}

        told = wait_for(refused, STATE_S, "/v1/status to say that the brokers refuse us")
        assert "kafka.security" in told["hint"]
        wait_for(lambda: side.probes() == (503, 503), STATE_S, "both probes to tell")

        # 2. The file follows: stream, signals and snapshots go on.
        file.write_text(SECOND)
        wait_for(lambda: side.probes() == (200, 200), STATE_S, "both probes to be well again")
        revive(shop)
        database.execute("INSERT INTO orders SELECT FROM generate_series(1, 10)")
        shop.wait_equal()
        assert snapshots.run(ORDERS, name="after")
        wait_for(
            lambda: any(s["answer"] for s in side.status()["signals"] if s["id"] == "after"),
            STATE_S,
            "the page to hear of the answer",
        )
        assert shop.lakemark.identity == identity, "lakemark was started again"
        log = shop.lakemark.log.read_text()
        assert not [word for word in (FIRST, SECOND) if word in log]


@nightly
def test_output_topics_are_not_read_once_they_are_taken_out_of_the_configuration(shop: Running):
    """Their names begin as those of change topics do, and hold events of the same connector."""
    kafka = shop.database.stack.kafka
    shop.lakemark.stop()
    before = denied(kafka)
    sections = {"spark": SPARK, "stream": STREAM, **shop.overrides, "output": None}
    write_config(shop.database, shop.directory, sections)
    shop.lakemark.start()
    shop.database.execute("INSERT INTO orders SELECT FROM generate_series(1, 10)")
    shop.wait_equal()
    assert {what for what in denied(kafka) - before if CLEAN in what} == set()
