"""Consistent reads: transfers between two tables, and every cut has them whole or not at all."""

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark.ops import cuts
from lakemark.ops.stored_state import newest_state
from lakemark.settings.config import load
from lakemark.sink import kept_cuts
from stack.database import Database
from stack.processes import wait_for
from tests.kit.going_on import going_on
from tests.kit.nightly import NIGHTLY, nightly
from tests.kit.running import Running
from tests.kit.servers import on
from tests.kit.spark_session import session
from tests.kit.watched_table import duckdb_with_delta

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EACH = on("postgres", *(pytest.param(one, marks=nightly) for one in ("mariadb-11.4", "mysql-9.7")))
ACCOUNTS, START = 40, 1000
TRANSFERS = 10_000 if NIGHTLY else 600
CUTS = 12
"""So many at least, of which each is read."""
WITHIN_S = 480.0
TOPICS = {
    "provide.transaction.metadata": "true",
    "topic.creation.default.partitions": "3",
    "topic.creation.default.replication.factor": "1",
    "topic.creation.groups": "transactions",
    "topic.creation.transactions.include": r".*\.transaction",
    "topic.creation.transactions.partitions": "1",
    "topic.creation.transactions.replication.factor": "1",
}


class Bank:
    """Two tables of accounts, and somebody who moves money between them."""

    def __init__(self, running: Running) -> None:
        self.running, self.database = running, running.database
        self.config = load(running.lakemark.config)
        self.tables = [self.database.identifier(name) for name in ("here", "there")]
        self.dice, self.done = random.Random(7), 0
        self.connection = self.database.connect()

    def transfer(self) -> None:
        """One transaction: it takes from an account of one table, and gives to one of the other."""
        one, other = self.dice.sample(("here", "there"), 2)
        amount = self.dice.randrange(1, 50)
        with self.connection.transaction():
            for table, more in ((one, -amount), (other, amount)):
                key = self.dice.randrange(ACCOUNTS)
                self.connection.execute(f"UPDATE {table} SET v = v + {more} WHERE id = {key}")
            if not self.dice.randrange(20):  # an account moves to another number and back
                key = self.dice.randrange(ACCOUNTS)
                for was, now in ((key, key + 9000), (key + 9000, key)):
                    self.connection.execute(f"UPDATE {one} SET id = {now} WHERE id = {was}")
        self.done += 1

    def known(self) -> list[cuts.SourceCut]:
        """All cuts so far."""
        stored = newest_state(self.config)
        found = {
            one.batch: one for one in kept_cuts.kept(self.config.lake, stored.query).get("", [])
        }
        if stored.state is not None:
            found |= {one.batch: one for one in stored.state.cutting.kept}
        return [found[batch] for batch in sorted(found)]

    def whole(self) -> list[cuts.SourceCut]:
        """Those that all tables have."""
        return [one for one in self.known() if not one.without]

    def total(self, versions: dict[str, int]) -> int:
        """The sum of all accounts in these versions."""
        return sum(
            sum(pa.table(DeltaTable(path, version=version).scan(columns=["v"]))["v"].to_pylist())
            for path, version in versions.items()
        )

    def views(self, engine: str, cut: cuts.SourceCut) -> list[str]:
        """The statements that the command prints for a cut, or another one of the same moment."""
        moment = datetime.fromtimestamp(cut.ended_ms / 1000, UTC).isoformat()
        said = self.running.lakemark.answer("cut", "--sql", engine, "--at", moment)
        assert said.returncode == 0, said.stdout + said.stderr
        return [line for line in said.stdout.splitlines() if line.startswith("CREATE")]

    def at(self, cut: cuts.SourceCut) -> dict[str, int]:
        """The versions of the tables at a cut, by folder."""
        found = [cuts.at_cut(self.config, table, cut) for table in self.tables]
        assert all(one.version is not None for one in found), found
        return {one.path: one.version or 0 for one in found}


def bank(database: Database, directory: Path) -> Running:
    for table in ("here", "there"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)")
        rows = ", ".join(f"({key}, {START})" for key in range(ACCOUNTS))
        database.execute(f"INSERT INTO {table} VALUES {rows}")
    database.start_connector({"snapshot.mode": "initial", **TOPICS})
    stream = {"trigger": "500ms", "shards": 2, "cuts": "transactions"}
    return Running(database, directory, {"stream": stream})


@EACH
@pytest.mark.usefixtures("java_home")
def test_every_cut_has_each_transfer_whole(any_database: Database, tmp_path: Path):
    with bank(any_database, tmp_path) as running:
        one = Bank(running)
        lakemark = running.lakemark
        lakemark.start()
        running.wait_equal()
        with going_on(one.transfer):
            wait_for(lambda: len(one.whole()) >= CUTS // 2, WITHIN_S, "cuts under load")
            lakemark.kill()
            lakemark.start()
            if NIGHTLY:  # no cut is made of their rows, and there are cuts again behind them
                lakemark.command("snapshot", "start", *one.tables, "--wait")
                lakemark.command("verify", *one.tables)
                before = len(one.whole())
                wait_for(lambda: len(one.whole()) > before, WITHIN_S, "a cut behind the runs")
            wait_for(lambda: one.done > TRANSFERS, WITHIN_S * 20, "transfers")
            wait_for(lambda: len(one.whole()) >= CUTS, WITHIN_S, "cuts after a restart")
        running.wait_equal()
        expected = 2 * ACCOUNTS * START
        found = one.whole()
        totals = {cut.transaction: one.total(one.at(cut)) for cut in found}
        assert set(totals.values()) == {expected}, totals
        # The newest one has everything, and the command's views are read by other engines.
        said = lakemark.answer("cut", "-o", "json")
        assert said.returncode == 0, said.stdout + said.stderr
        (newest,) = json.loads(said.stdout)["cuts"]
        assert {table["table"] for table in newest["tables"]} == set(one.tables)
        duckdb = duckdb_with_delta()
        sums = " + ".join(f'(SELECT sum(v) FROM "{table}")' for table in one.tables)
        for each in found if NIGHTLY else found[-1:]:
            for view in one.views("duckdb", each):
                duckdb.execute(view)
            assert duckdb.execute(f"SELECT {sums}").fetchall() == [(expected,)]
        if NIGHTLY:
            _read_by_spark(one, found, expected)


def _read_by_spark(one: Bank, found: Sequence[cuts.SourceCut], expected: int) -> None:
    """Spark sees the same sum in every cut."""
    sums = " + ".join(f"(SELECT sum(v) FROM `{table}`)" for table in one.tables)
    with session() as spark:
        for each in found:
            for view in one.views("spark", each):
                spark.sql(view)
            assert spark.sql(f"SELECT {sums} AS total").collect()[0]["total"] == expected
