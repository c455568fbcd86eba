"""The local stack itself: everything else that is tested with real servers stands on it."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stack.kafka import Kafka
from stack.local import Database, LocalStack, Servers
from stack.processes import Identity, StackError, wait_for
from stack.watchdog import started
from tests.kit.servers import ends_servers, on

pytestmark = pytest.mark.integration

CUSTOMERS = "CREATE TABLE customers (id int PRIMARY KEY, name text)"


def values(records) -> list[dict]:
    return [json.loads(record.value()) for record in records]


@on()
def test_a_row_written_to_any_database_arrives_in_kafka(any_database: Database):
    database = any_database
    database.execute(CUSTOMERS)
    database.execute("INSERT INTO customers VALUES (1, 'Ada')")
    database.start_connector()
    database.execute("INSERT INTO customers VALUES (2, 'Grace')")

    records = database.stack.kafka.read(database.topic("customers"), count=2)

    found = sorted((v["op"], v["after"]["id"], v["after"]["name"]) for v in values(records))
    assert found == [("c", 2, "Grace"), ("r", 1, "Ada")]


@on("postgres", "mariadb-11.4")
def test_a_stopped_connector_goes_on_where_it_was(any_database: Database):
    database = any_database
    database.execute(CUSTOMERS)
    database.start_connector()
    database.execute("INSERT INTO customers VALUES (1, 'Ada')")
    kafka, topic = database.stack.kafka, database.topic("customers")
    kafka.read(topic, count=1)

    database.stop_connector()
    wait_for(lambda: database._reader() is None, 60, "the server to send the log no longer")
    database.execute("INSERT INTO customers VALUES (2, 'Grace')")
    database.resume_connector()
    database.restart_connector()

    def found() -> dict[int, str]:  # what was sent may come again
        count = sum(kafka.end_offsets(topic).values())
        return {v["after"]["id"]: v["op"] for v in values(kafka.read(topic, count=count))}

    wait_for(lambda: found() == {1: "c", 2: "c"}, 60, "both rows to arrive")


def test_connect_serves_the_committed_offset_of_the_connector(database: Database):
    database.execute(CUSTOMERS)
    database.start_connector()
    database.execute("INSERT INTO customers VALUES (1, 'Ada')")
    ((end,),) = database.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")

    def passed() -> bool:
        offsets = database.stack.connect.offsets(database.name)
        return bool(offsets) and offsets[0]["offset"].get("lsn", 0) >= end

    wait_for(passed, 120, "the connector's offset to pass the row")


def test_a_killed_kafka_comes_back_on_its_port_with_its_data(strict: Kafka):
    """Not that of the session, whose connectors would all begin anew; `faults` kills that one."""
    kafka = strict
    kafka.create_topic("kept", partitions=2)
    producer = kafka.producer()
    producer.produce("kept", b"before", partition=1)
    assert producer.flush(10) == 0
    address = kafka.bootstrap

    kafka.kill()
    assert not kafka.is_running
    kafka.start()

    assert kafka.bootstrap == address
    assert [r.value() for r in kafka.read("kept", count=1, partition=1)] == [b"before"]


@ends_servers
def test_a_connector_goes_on_after_postgres_and_connect_were_killed(database: Database):
    stack = database.stack
    database.execute(CUSTOMERS)
    database.start_connector()

    stack.postgres.kill()
    stack.postgres.start()
    stack.connect.kill()
    database.execute("INSERT INTO customers VALUES (1, 'Ada')")
    stack.connect.start()
    database.wait_streaming()
    database.execute("INSERT INTO customers VALUES (2, 'Grace')")

    records = stack.kafka.read(database.topic("customers"), count=2, deadline_s=60)
    assert {v["after"]["id"] for v in values(records)} == {1, 2}


@ends_servers
def test_a_paused_server_hangs_and_goes_on_when_resumed(stack: Servers):
    postgres = stack.postgres
    connection = postgres.connect()
    try:
        postgres.pause()
        assert postgres.is_running
        connection.pgconn.send_query(b"SELECT 1")
        assert not answers(connection, within_s=0.5)

        postgres.resume()
        assert answers(connection, within_s=10)
    finally:
        postgres.resume()
        connection.close()


def answers(connection, *, within_s: float) -> bool:
    readable, _, _ = select.select([connection.pgconn.socket], [], [], within_s)
    return bool(readable)


def test_servers_end_with_a_parent_that_was_killed(tmp_path: Path):
    script = (
        "import sys, pathlib, time\n"
        "from stack.postgres import Postgres\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "server = Postgres(directory=place / 'pg', log=place / 'pg.log')\n"
        "server.start()\n"
        "print(server.identity.pid, server.identity.started, server.directory, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        pid, since, directory = parent.stdout.readline().split()
        server = Identity(int(pid), since)
        assert server.is_alive
        os.kill(parent.pid, signal.SIGKILL)
        wait_for(lambda: not server.is_alive, 10, "the orphan to be ended")
        shutil.rmtree(directory)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path):
    broken = LocalStack(
        directory=tmp_path / "broken",
        services=("postgres",),
        postgres_settings={"shared_buffers": "nonsense"},
    )
    with pytest.raises(StackError, match="shared_buffers") as caught:
        broken.start()
    assert str(broken.logs / "postgres.log") in str(caught.value)
    assert not any(server.is_running for server in broken.servers)


def test_an_identity_is_not_fooled_by_a_reused_pid():
    here = Identity(os.getpid(), started(os.getpid()))
    assert here.is_alive
    assert not Identity(os.getpid(), "1").is_alive
    assert not Identity(os.getpid(), "").is_alive
