"""Tables are compared again and again while everything happens to them.

Only what was planted is found: in each round one row of a table that nobody else touches.
"""

import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from stack import shop
from stack.database import Database
from stack.workload import Workload
from tests.kit.going_on import going_on
from tests.kit.nightly import nightly
from tests.kit.number_rows import numbers_of
from tests.kit.planting import change
from tests.kit.running import Running
from tests.kit.servers import on

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.slow]

MINUTES: Final = float(os.environ.get("LAKEMARK_TEST_VERIFY_MINUTES", "5"))
SEED: Final = int(os.environ.get("LAKEMARK_TEST_VERIFY_SEED", "1"))
SCALE: Final = 0.05
LEDGER, ROWS = "ledger", 3000
CALM_S: Final = 10.0
"""Between two troubles."""
SECTIONS: Final[dict[str, Any]] = {
    "snapshot": {"chunk_rows": 500, "parallelism": 2, "window_interval": "250ms"},
    "stream": {"trigger": "500ms", "shards": 2},
}


class Troubles:
    """What happens beside the comparisons, one thing after the other, by dice."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.done = Counter[str]()
        self._dice = random.Random(SEED)
        self._added: list[tuple[str, str]] = []

    def step(self) -> None:
        trouble = self._dice.choice([self.kill, self.snapshot, self.column, self.column])
        trouble()
        self.done[trouble.__name__] += 1

    def kill(self) -> None:
        self.running.lakemark.kill()
        self.running.lakemark.start()

    def snapshot(self) -> None:
        table = self._dice.choice(["customers", "orders", "line_items", "shelves"])
        name = self.running.database.identifier(table)
        self.running.lakemark.command(
            "snapshot", "start", name, "--no-wait", "--answer-within", "10m"
        )

    def column(self) -> None:
        """A column more, with a default that old rows have too, or the one before less."""
        if self._added:
            table, name = self._added.pop()
            self._alter(f"ALTER TABLE {table} DROP COLUMN {name}")
            return
        table = self._dice.choice(["customers", "orders", "shelves"])
        name = f"more_{sum(self.done.values())}"
        self._alter(f"ALTER TABLE {table} ADD COLUMN {name} int DEFAULT 7")
        self._added.append((table, name))

    def _alter(self, statement: str) -> None:
        database = self.running.database
        for _ in range(50):  # a writer has the table for seconds; one of both gives way
            try:
                database.execute(statement)
            except database.CLIENT_ERROR as error:
                if not database.is_conflict(error):
                    raise
            else:
                return
        raise AssertionError(f"no room for {statement}")


@nightly
@on("postgres", "mariadb-11.4", "mysql-9.7")
@pytest.mark.timeout(MINUTES * 60 + 2400)
def test_nothing_is_found_but_what_was_planted(any_database: Database, tmp_path: Path):
    database = any_database
    shop.create(database)
    shop.fill(database, scale=SCALE)
    database.execute(f"CREATE TABLE {LEDGER} (id int PRIMARY KEY, v varchar(40))")
    rows = numbers_of(database, 1, ROWS)
    database.execute(f"INSERT INTO {LEDGER} (id, v) SELECT seq, CONCAT('v', seq) FROM {rows}")
    database.start_connector({"snapshot.mode": "initial"})
    with Running(database, tmp_path, SECTIONS) as running:
        running.lakemark.start()
        running.wait_equal()
        names = {table: database.identifier(table) for table in (*shop.TABLES, LEDGER)}
        path = str(running.table(names[LEDGER]).table_uri)
        troubles = Troubles(running)
        seen = Counter[str]()
        end = time.monotonic() + 60 * MINUTES
        writing = Workload(database, writers=2, seed=SEED, rows_per_s=400)
        with writing, going_on(troubles.step, pause_s=CALM_S):
            while time.monotonic() < end:
                seen["rounds"] += 1
                key = seen["rounds"] % ROWS + 1
                change(path, lambda t, k=key: t.update({"v": "'other'"}, predicate=f"id = {k}"))
                repairs = seen["rounds"] % 2 == 0
                planted = [key - 1, key] if repairs else [key]
                said = _verified(running, names, repair=repairs)
                found = {(one["table"], one["key"], one["kind"]) for one in said["found"]}
                print(json.dumps({"round": seen["rounds"], "said": said["tables"]}), flush=True)
                assert found == {(names[LEDGER], f"[{k}]", "differing") for k in planted}
                for told in said["tables"].values():
                    assert told["status"] in {"SUCCEEDED", "EMPTY"}, said
                    seen.update({n: told.get(n, 0) for n in ("rows", "newer", "left")})
        running.wait_equal(*shop.TABLES)
        print(json.dumps({**seen, **troubles.done, "written": str(writing.written)}), flush=True)
        assert min(troubles.done[name] for name in ("kill", "snapshot", "column")) > 0
        assert seen["newer"] > 0, "nobody wrote where it was compared"


def _verified(running: Running, names: dict[str, str], *, repair: bool) -> dict[str, Any]:
    more = ["--repair"] if repair else []
    done = running.lakemark.answer(
        "verify", *names.values(), *more, "--answer-within", "10m", "-o", "json"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["state"] == "completed", said
    return said
