"""One pipeline over PostgreSQL and MariaDB: each database is for itself, whatever the other does."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.request import urlopen

import pytest

from stack import shop
from stack.compare import Comparer
from stack.database import Database
from stack.local import Servers
from stack.mysql import LocalBinlogServer
from stack.processes import wait_for
from stack.servers import Way
from stack.workload import Workload
from tests.kit.nightly import NIGHTLY
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

    def snapshot(self, name: str, *patterns: str) -> None:
        """Ask for a run, and wait until every connector concerned has ended its part."""
        self.running.lakemark.command("snapshot", "start", *patterns, "--id", name, "--wait")

    def status(self) -> dict[str, Any]:
        address = self.running.lakemark.events("http.listening")[-1]["address"]
        with urlopen(f"{address}/v1/status", timeout=20) as answer:
            found: dict[str, Any] = json.load(answer)
        return {one["name"]: one for one in found["connectors"]}

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
    answers = several.running.lakemark.command("snapshot", "status", "--output", "json")
    runs = {run["id"]: run["type"] for run in json.loads(answers)}
    for name in (
        f"all@{several.stays.name}",
        f"all@{several.dies.name}",
        f"mine@{several.stays.name}",
    ):
        assert runs[name] == "COMPLETED", runs
    assert f"mine@{several.dies.name}" not in runs


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


def test_a_start_does_not_wait_for_a_database_that_is_away(several: Several):
    lakemark = several.running.lakemark
    lakemark.kill()
    several.server.kill()
    several.stays.execute("UPDATE orders SET note = 'while it is away'")
    lakemark.start()
    several.wait_equal(several.stays)
    away = several.status()[several.dies.name]
    assert (away["state"], away["code"]) == ("away", "database-unavailable")

    several.server.start()
    several.dies.revive()
    several.dies.execute("UPDATE orders SET note = 'it is back'")
    lakemark.wait_for_event("connector.back", STATE_S)
    several.wait_equal(several.dies, several.stays)
    assert several.status()[several.dies.name]["state"] == "streaming"
