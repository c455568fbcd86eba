"""A rebuild is killed at every point: readers have the old table or the new one, and nothing stays."""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakemark import failpoints
from lakemark.settings.config import load
from lakemark.sink.names import folder_of
from stack.local import Database
from tests.kit.nightly import NIGHTLY
from tests.kit.running import Running
from tests.kit.spark_session import session
from tests.kit.watched_table import READERS, Read, read_all_the_while, with_spark

pytestmark = [pytest.mark.faults, pytest.mark.slow]

CRASH_S = 480.0
TABLE, ROWS = "public.items", 2_000
KEPT = f"id <= {ROWS}"
SETTINGS = {"snapshot": {"incomplete": "auto", "chunk_rows": 500, "window_interval": "100ms"}}
POINTS = (
    *(failpoints.AFTER_DECODE, failpoints.BEFORE_COMMIT, failpoints.AFTER_COMMIT),
    *(failpoints.BEFORE_STATE, failpoints.BEFORE_CHECKPOINT),
    *failpoints.OF_REBUILDS,
)
# In the order in which a rebuild comes to them: one of each kind meets them all, each run in the
# wreck of the one before. Nightly each point has a rebuild to itself, which then ends undisturbed.
REBUILDS = [(point,) for point in POINTS] if NIGHTLY else [POINTS, POINTS]


def write(database: Database) -> None:
    """Changes of every kind, of rows beyond those that are always there too."""
    database.execute(f"UPDATE {TABLE} SET v = v || 'u' WHERE id % 9 = 0 AND {KEPT}")
    database.execute(
        f"INSERT INTO {TABLE} SELECT i, 'n' FROM generate_series({ROWS + 1}, {ROWS + 50}) i"
    )
    database.execute(f"DELETE FROM {TABLE} WHERE NOT ({KEPT})")


@contextmanager
def readers() -> Iterator[Mapping[str, Read]]:
    """Spark has read through rebuilds in tests/spark/test_rebuild_readers.py; here it does at night."""
    if not NIGHTLY:
        yield READERS
        return
    with session() as spark:
        yield {**READERS, "spark": with_spark(spark)}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engines", [("task-merge", "deletion-vectors")], ids="-and-".join)
def test_a_crash_at_each_point(database: Database, tmp_path, engines, java_home):
    database.execute(f"CREATE TABLE {TABLE} (id int PRIMARY KEY, v text)")
    database.execute(f"INSERT INTO {TABLE} SELECT i, 'o' FROM generate_series(1, {ROWS}) i")
    database.start_connector({"snapshot.mode": "no_data"})
    with Running(database, tmp_path, SETTINGS) as running, readers() as engines_that_read:
        lakemark = running.lakemark
        lakemark.start()
        running.wait_equal()
        path = folder_of(load(lakemark.config).lake, TABLE)
        lakemark.stop()
        with read_all_the_while(path, at_least=ROWS, readers=engines_that_read):
            for number, points in enumerate(REBUILDS):
                lakemark.environment["LAKEMARK_LAKE__ENGINE"] = engines[(number + 1) % 2]
                lakemark.command("table", "rebuild", TABLE, "--yes")
                for point in points:
                    write(database)
                    lakemark.crash_at(point)
                    lakemark.spawn()
                    code = lakemark.wait_ended(CRASH_S)
                    assert code == -signal.SIGKILL, (point, lakemark.log_tail(40))
                lakemark.no_crash()
                lakemark.start()
                write(database)
                running.wait_equal()
                lakemark.wait_for_event("table.rebuilt", CRASH_S)
                running.wait_progress(TABLE, "the rebuild's end", lambda r: not r.get("rebuild"))
                vectors = "deletionVectors" in (
                    running.table(TABLE).protocol().reader_features or ()
                )
                assert vectors == (engines[(number + 1) % 2] == "deletion-vectors")
                write(database)  # what is left of it goes with the next batch
                running.wait_equal()
                running.wait_progress(TABLE, "tidied", lambda r: not r.get("rebuild_over"))
                assert not list(Path(path).glob("_lakemark/rebuild-*"))
                lakemark.stop()
