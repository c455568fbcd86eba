"""Reading one's own writes: what was committed before a wait is in the lake when it returns."""

import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from lakemark.settings.config import load
from lakemark.sink.names import folder_of
from stack.database import Database
from stack.processes import free_port
from tests.kit.going_on import going_on
from tests.kit.http_side import HttpSide
from tests.kit.nightly import NIGHTLY, nightly
from tests.kit.running import Running
from tests.kit.servers import on
from tests.kit.watched_table import duckdb_with_delta

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EACH = on("postgres", *(pytest.param(one, marks=nightly) for one in ("mariadb-11.4", "mysql-9.7")))
READERS = 4
WAITS = 60 if NIGHTLY else 6  # of each reader
WITHIN_S = 300.0
PARTITIONS = 3


class Waiting:
    """A pipeline over two tables, one of which is silent, and who waits for it."""

    def __init__(self, running: Running) -> None:
        self.running, self.database = running, running.database
        self.site = HttpSide(running)
        self.keys = itertools.count(1_000_000)
        self.table = self.database.identifier("t")
        self.duckdb = duckdb_with_delta()
        self.path = folder_of(load(running.lakemark.config).lake, self.table)

    def insert(self) -> int:
        """Commit a row; its key."""
        key = next(self.keys)
        self.database.execute(f"INSERT INTO t VALUES ({key}, 0)")
        return key

    def wait(self, **asked: Any) -> dict[str, Any]:
        """Wait as a client does, until everything is visible; the last answer."""
        until = time.monotonic() + WITHIN_S
        while time.monotonic() < until:
            query = urlencode({"timeout": 20, **asked}, doseq=True)
            status, text = self.site.ask(f"/v1/wait?{query}")
            answer: dict[str, Any] = json.loads(text)
            if status == 200:
                assert answer["visible"]
                return answer
            if answer.get("code") == "cannot-wait":
                time.sleep(0.2)  # it starts anew, or is degraded for a moment
                continue
            assert status == 202, answer
            asked.pop("now", None)
            asked["position"] = [one["position"] for one in answer["positions"]]
        raise AssertionError(f"not visible in time: {answer}")

    def has(self, key: int, version: int) -> bool:
        """Whether DuckDB finds a row in a version of the table."""
        rows = f"delta_scan('{self.path}', version => {version})"
        with self.duckdb.cursor() as reader:
            return reader.execute(f"SELECT n FROM {rows} WHERE id = {key}").fetchall() == [(0,)]

    def reads_its_writes(self) -> float:
        """Write, wait, and read; how long it took to be visible."""
        key, begun = self.insert(), time.monotonic()
        (one,) = self.wait(now="true", table=self.table)["tables"]
        took = time.monotonic() - begun
        assert self.has(key, one["version"]), (key, one)
        return took

    def by_command(self) -> None:
        """The command, for all tables: the silent one has nothing new, and is visible, too."""
        key, command = self.insert(), self.running.lakemark.answer
        done = command("wait", "--now", "--timeout", f"{WITHIN_S:g}s", "-o", "json")
        assert done.returncode == 0, done.stdout + done.stderr
        said = json.loads(done.stdout)
        versions = {one["table"]: one["version"] for one in said["tables"]}
        assert versions.keys() == {self.table, self.database.identifier("quiet")}
        assert self.has(key, versions[self.table])
        (place,) = said["positions"]
        again = command("wait", "--position", place["position"], "--timeout", "20s")
        assert again.returncode == 0, again.stdout + again.stderr

    def names_a_table_that_stands_still(self) -> None:
        """What is paused is not visible, and is no reason that others are not."""
        assert self.site.ask(f"/v1/tables/{self.table}/pause", {})[0] == 202
        self.running.wait_state(self.table, "paused")
        self.insert()
        done = self.running.lakemark.answer("wait", "--now", "--timeout", "8s")
        assert done.returncode == 4, done.stdout + done.stderr
        lines = {line.split()[0]: line for line in done.stdout.splitlines()}
        assert "lakemark table resume" in lines[self.table]
        assert " visible " in lines[self.database.identifier("quiet")]


@contextmanager
def waiting(database: Database, directory: Path) -> Iterator[Waiting]:
    for table in ("t", "quiet"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)")
        database.execute(f"INSERT INTO {table} VALUES (1, 1), (2, 2), (3, 3)")
    more = {
        "topic.creation.default.partitions": str(PARTITIONS),
        "topic.creation.default.replication.factor": "1",
    }
    database.start_connector({"snapshot.mode": "initial", **more})
    with Running(database, directory, {"http": {"bind": f"127.0.0.1:{free_port()}"}}) as running:
        running.lakemark.start()
        running.wait_equal()
        yield Waiting(running)


def written(database: Database) -> AbstractContextManager[None]:
    """Somebody else changes rows of a table all the time."""
    keys = itertools.count(10)

    def write() -> None:
        key = next(keys)
        database.execute(f"INSERT INTO t VALUES ({key}, 0)")
        database.execute(f"UPDATE t SET n = n + 1 WHERE id = {key - 1}")

    return going_on(write)


@EACH
def test_what_is_committed_before_a_wait_is_read_after_it(any_database: Database, tmp_path: Path):
    with waiting(any_database, tmp_path) as one:
        silent = sorted(one.reads_its_writes() for _ in range(3))
        with written(any_database), ThreadPoolExecutor(READERS) as readers:
            work = [readers.submit(one.reads_its_writes) for _ in range(READERS * WAITS)]
            took = sorted(done.result() for done in work)
        print(f"silent {silent[1]:.1f} s; {len(took)} under load: {took[len(took) // 2]:.1f} s")
        one.by_command()
        any_database.restart_connector()
        one.reads_its_writes()
        one.names_a_table_that_stands_still()
