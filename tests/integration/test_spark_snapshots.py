"""Snapshots of a pipeline whose batches Spark runs; what all have is in `test_snapshots`."""

from collections.abc import Iterator

import pytest

from stack.local import Database, Servers
from stack.processes import wait_for
from tests.kit.running import STATE_S, Running
from tests.kit.snapshots import SNAPSHOT, Snapshots

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def pipeline(stack: Servers, tmp_path_factory) -> Iterator[Running]:
    with stack.fresh_database("CREATE TABLE over (pk int PRIMARY KEY, aa int)") as database:
        database.execute("INSERT INTO over SELECT n, n FROM generate_series(1, 1000) n")
        database.start_connector({"snapshot.mode": "no_data"})
        with Running(
            database, tmp_path_factory.mktemp("pipeline"), SNAPSHOT, spark=True
        ) as running:
            running.lakemark.start()
            yield running


def test_the_query_goes_over_to_the_stages_of_runs_and_back(
    pipeline: Running, snapshots: Snapshots
):
    """The log goes on before, meanwhile and afterwards: no row is lost or applied twice."""
    database = pipeline.database

    def gone_over() -> int:
        found = pipeline.lakemark.events("query.other_stages")
        return [event["armed"] for event in found].count(True)

    def rests() -> bool:
        return not pipeline.lakemark.events("query.other_stages")[-1]["armed"]

    snapshots.run("public.over")
    wait_for(lambda: touched(database) and rests(), STATE_S, "the stages without runs")
    before = gone_over()
    database.execute("INSERT INTO over SELECT n, n FROM generate_series(1001, 4000) n")
    pipeline.wait_equal("public.over")
    assert gone_over() == before, "the log alone needs no other stages"
    run = snapshots.start("public.over", chunk_rows=300)
    for aa in range(20):
        database.execute(f"UPDATE over SET aa = {aa} WHERE pk % 20 = {aa}")
    snapshots.completed(run)
    pipeline.wait_equal("public.over")
    assert gone_over() == before + 1
    wait_for(lambda: touched(database) and rests(), STATE_S, "the way back")
    database.execute("DELETE FROM over WHERE pk % 3 = 0")
    pipeline.wait_equal("public.over")


def touched(database: Database) -> bool:
    """Something happens, or there is no batch."""
    database.execute("UPDATE over SET aa = aa + 1 WHERE pk = 1")
    return True
