"""lakemark is killed wherever it hurts, again and again, while the shop goes on changing."""

import signal
from collections.abc import Sequence

import pytest

from lakemark import failpoints
from stack import shop
from stack.local import Database
from stack.workload import Workload
from tests.kit.nightly import NIGHTLY, nightly
from tests.kit.running import Running

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow]

CRASH_S = 480.0  # from the start of a run to its crash: start of Spark, then a few batches
# The n-th time a point is reached: within a batch of several tables, not always before the first.
NTH = {failpoints.AFTER_DECODE: 5, failpoints.BEFORE_COMMIT: 3, failpoints.AFTER_COMMIT: 4}
ENGINES = dict.fromkeys(("customers", "line_items"), "deletion-vectors")
MORE_ENGINES = {**ENGINES, "orders": "spark-merge"}


# Where Spark's part in it differs most: in a worker that merges.
SPARKS = (failpoints.AFTER_COMMIT,)


@pytest.mark.timeout(3000)  # a dozen runs, one after the other
@pytest.mark.parametrize(
    ("any_database", "spark", "points"),
    [
        pytest.param("postgres", False, failpoints.POINTS, id="local"),
        pytest.param("postgres", True, failpoints.POINTS if NIGHTLY else SPARKS, id="spark"),
        pytest.param("mariadb-11.4", False, failpoints.POINTS, id="mariadb"),
        pytest.param("mysql-9.7", False, failpoints.POINTS, id="mysql", marks=nightly),
    ],
    indirect=["any_database"],
)
def test_a_crash_at_each_point_loses_and_repeats_nothing(
    any_database: Database, tmp_path, spark: bool, points: Sequence[str]
):
    """One pipeline, killed at all points one after the other: each run starts from the last wreck.

    In the end only driver and JVM are: Python workers end by themselves, after what they are at.
    """
    database = any_database
    shop.create(database)
    shop.fill(database, scale=0.02)
    database.start_connector()
    engines = MORE_ENGINES if spark else ENGINES
    tables = {database.identifier(name): {"engine": engine} for name, engine in engines.items()}
    lake = {"lake": {"path": "./lake", "tables": tables}}
    with Running(database, tmp_path, lake, spark=spark) as running:
        with Workload(database, writers=2, rows_per_s=100) as workload:
            for point in points:
                running.lakemark.crash_at(point, nth=NTH.get(point, 1))
                running.lakemark.spawn()
                code = running.lakemark.wait_ended(CRASH_S)
                assert code == -signal.SIGKILL, (point, running.lakemark.log_tail(40))
                reached = (tmp_path / "crash-count").read_text().split()
                assert reached.count(point) >= NTH.get(point, 1)
            running.lakemark.no_crash()
            running.lakemark.start()
            running.lakemark.kill_group()
            workload.stop()
        running.lakemark.start()
        running.wait_equal()
