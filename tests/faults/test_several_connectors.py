"""One pipeline over PostgreSQL and MariaDB: each database is for itself, whatever the other does."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml
from confluent_kafka import Message

from stack import shop
from stack.compare import Comparer
from stack.database import Database
from stack.local import Servers
from stack.mysql import LocalBinlogServer
from stack.processes import StackError, wait_for
from stack.servers import Way
from stack.workload import Workload
from tests.kit.nightly import NIGHTLY, nightly
from tests.kit.running import EQUAL_S, STATE_S, Running
from tests.kit.servers import WAY, own_server

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.slow]

SCALE = 0.02


@dataclass
class Several:
    """A pipeline over the databases of two servers, of which one may be killed.

    Attributes:
        running: the pipeline.
        stays: the database of a server that is left alone.
        dies: that of the other server.
        server: it.
    """

    running: Running
    stays: Database
    dies: Database
    server: LocalBinlogServer

    def comparer(self, database: Database) -> Comparer:
        config = self.running.lakemark.config
        return Comparer(database, config=config, tables=database.tables(), qualifier=database.name)

    def wait_equal(self, *databases: Database) -> None:
        for database in databases:
            self.comparer(database).wait_until_equal(self.running.lakemark, deadline_s=EQUAL_S)

    def table(self, database: Database, name: str) -> str:
        """The name that a database's table has in the pipeline."""
        return f"{database.name}.{database.identifier(name)}"

    def snapshot(self, name: str, *patterns: str) -> None:
        """Ask for a run, and wait until every connector concerned has ended its part."""
        self.running.lakemark.command("snapshot", "start", *patterns, "--id", name, "--wait")

    def runs(self) -> dict[str, str]:
        """What was said last of each run."""
        answers = self.running.lakemark.command("snapshot", "status", "--output", "json")
        return {run["id"]: run["type"] for run in json.loads(answers)}

    def status(self) -> dict[str, Any]:
        address = self.running.lakemark.events("http.listening")[-1]["address"]
        with urlopen(f"{address}/v1/status", timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return {one["name"]: one for one in found["connectors"]}

    def visible(self, asked: str) -> dict[str, Any]:
        """Wait until all that is asked for is visible; the answer."""
        address = self.running.lakemark.events("http.listening")[-1]["address"]

        def answer() -> dict[str, Any]:
            with urlopen(f"{address}/v1/wait?{asked}&timeout=20", timeout=120) as said:
                found: dict[str, Any] = json.load(said)
            return found if found["visible"] else {}

        return wait_for(answer, STATE_S, f"{asked} to be visible")

    def problems(self, database: Database) -> list[Any]:
        """What the status says of a database's connector."""
        found: list[Any] = self.status()[database.name]["source"]["problems"]
        return found


def _entry(database: Database) -> dict[str, Any]:
    connect = {"url": database.stack.connect.url, "connector": database.name}
    return {"connect": connect, "database": {"url": database.dsn}}


@pytest.fixture(scope="module")
def several(stack: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    if WAY is not Way.PROCESSES:
        pytest.skip("it kills a database server of its own")
    folder = tmp_path_factory.mktemp("several")
    with (
        own_server("mariadb-11.4", folder / "mariadb") as server,
        stack.fresh_database() as stays,
        stack.fresh_database(server=server) as dies,
    ):
        for database in (stays, dies):
            shop.create(database)
            shop.fill(database, scale=SCALE)
            database.start_connector()
        source = {"connectors": [_entry(stays), _entry(dies)]}
        sections = {"source": source, "database": None}
        with Running(stays, folder, sections, spark=NIGHTLY) as running:
            running.lakemark.start()
            yield Several(running, stays, dies, server)


def test_both_are_equal_after_snapshots_under_load(several: Several):
    with Workload(several.stays, writers=1), Workload(several.dies, writers=1, seed=2):
        several.snapshot("all", ".*")
        several.snapshot("mine", f"{several.stays.name}.public.orders")
    several.wait_equal(several.stays, several.dies)
    runs = several.runs()
    for name in (
        f"all@{several.stays.name}",
        f"all@{several.dies.name}",
        f"mine@{several.stays.name}",
    ):
        assert runs[name] == "COMPLETED", runs
    assert f"mine@{several.dies.name}" not in runs


@nightly
def test_a_wait_is_for_a_place_of_each_database(several: Several):
    stays, dies = several.stays, several.dies
    with Workload(stays, writers=1, seed=5), Workload(dies, writers=1, seed=6):
        several.running.lakemark.wait_for_batch(STATE_S)
    answer = several.visible("now=true")
    places = {one["connector"]: one["position"] for one in answer["positions"]}
    assert places.keys() == {stays.name, dies.name}
    for database in (stays, dies):
        assert several.comparer(database).compare().is_equal
        own = several.visible(
            urlencode({"connector": database.name, "position": places[database.name]})
        )
        tables = {one["table"] for one in own["tables"]}
        assert tables == {several.table(database, name) for name in database.tables()}


def test_a_database_that_is_killed_is_waited_for_by_its_own_tables_alone(several: Several):
    stays, dies = several.stays, several.dies
    with Workload(dies, writers=1, seed=3):
        with Workload(stays, writers=1, seed=4):
            several.running.lakemark.wait_for_batch(STATE_S)
            several.server.kill()
            several.snapshot("while", f"{stays.name}\\..*")
        several.wait_equal(stays)
        wait_for(lambda: several.problems(dies), STATE_S, "the status to say it")
        assert not several.problems(stays)

        several.server.start()
        dies.revive()
        several.snapshot("after", f"{dies.name}\\..*")
    several.wait_equal(dies, stays)


@nightly
def test_a_start_does_not_wait_for_a_database_that_is_away(several: Several):
    """What is asked of its tables meanwhile waits for it."""
    lakemark, stays, dies = several.running.lakemark, several.stays, several.dies
    orders = several.table(dies, "orders")
    several.wait_equal(dies, stays)
    lakemark.kill()
    several.server.kill()
    stays.execute("UPDATE orders SET note = 'while it is away'")
    lakemark.start()
    several.wait_equal(stays)
    away = several.status()[dies.name]
    assert (away["state"], away["code"]) == ("away", "database-unavailable")
    with pytest.raises(StackError, match="no-answer"):
        several.snapshot("waits", orders, "--answer-within", "2s")
    assert "is not read now" in lakemark.command("table", "pause", orders)

    several.server.start()
    dies.revive()
    dies.execute("UPDATE orders SET note = 'it is back'")
    lakemark.wait_for_event("connector.back", STATE_S)
    several.running.wait_state(orders, "paused")
    lakemark.command("table", "resume", orders)
    several.wait_equal(dies, stays)
    assert several.status()[dies.name]["state"] == "streaming"
    wait_for(
        lambda: several.runs().get(f"waits@{dies.name}") == "COMPLETED", STATE_S, "its snapshot"
    )
    assert f"waits@{stays.name}" not in several.runs(), "it answered for a table of another one"


def test_a_new_epoch_of_one_connector_is_none_of_the_other(several: Several):
    """As after a restore: an event that is newer, at a position that was applied long ago."""
    lakemark, stays, dies = several.running.lakemark, several.stays, several.dies
    orders = several.table(dies, "orders")
    stays.execute("UPDATE orders SET note = 'it goes on'")
    dies.execute("UPDATE orders SET note = 'before the restore'")
    several.wait_equal(dies)
    write_older(dies, "orders", b"before the restore")
    several.running.wait_state(orders, "errored")
    assert "position-regressed" in lakemark.command("status")
    several.wait_equal(stays)

    queued = len(lakemark.events("snapshot.queued"))
    lakemark.command("recover", "--new-epoch", "--connector", dies.name)
    lakemark.wait_for_event("pipeline.new_epoch", STATE_S)
    (begun,) = lakemark.events("pipeline.new_epoch")
    assert begun["connector"] == dies.name
    several.running.wait_state(orders, "streaming")
    several.wait_equal(dies, stays)  # by snapshots that come by themselves
    tables = {event["table"] for event in lakemark.events("snapshot.queued")[queued:]}
    assert orders in tables
    assert all(table.startswith(f"{dies.name}.") for table in tables)


@nightly
def test_one_that_is_named_again_has_no_part_in_what_was_asked_meanwhile(several: Several):
    lakemark, stays, dies = several.running.lakemark, several.stays, several.dies
    whole = lakemark.config.read_text(encoding="utf-8")
    alone = yaml.safe_load(whole)
    alone["source"]["connectors"].pop()
    lakemark.kill()
    lakemark.config.write_text(yaml.safe_dump(alone), encoding="utf-8")
    lakemark.start()
    several.snapshot("meanwhile", ".*")
    dies.execute("UPDATE orders SET note = 'it was left out'")
    lakemark.kill()
    lakemark.config.write_text(whole, encoding="utf-8")
    lakemark.start()
    several.snapshot("since", f"{dies.name}\\..*")
    several.wait_equal(dies, stays)
    assert several.runs()[f"meanwhile@{stays.name}"] == "COMPLETED"
    assert f"meanwhile@{dies.name}" not in several.runs()


def write_older(database: Database, table: str, mark: bytes) -> None:
    """Write an event of MariaDB once more: of a second later, at the beginning of its log."""
    kafka, topic = database.stack.kafka, database.topic(table)
    written = kafka.read(topic, count=sum(kafka.end_offsets(topic).values()))
    last = max((one for one in written if mark in (one.value() or b"")), key=Message.offset)
    event = json.loads(last.value() or b"")
    event["source"] |= {"file": "binlog.000001", "pos": 4}
    for unit, second in {"ts_ms": 10**3, "ts_us": 10**6, "ts_ns": 10**9}.items():
        event["source"][unit] += second
    producer = kafka.producer()
    producer.produce(topic, json.dumps(event), last.key(), partition=last.partition() or 0)
    assert producer.flush(30) == 0
