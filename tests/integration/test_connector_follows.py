"""A connector that is given another table while lakemark runs.

It writes no window rows and listens to no signals itself; lakemark's come back all the same.
"""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from stack.local import Servers
from tests.kit.running import STATE_S, Running
from tests.kit.snapshots import SNAPSHOT, Snapshots

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

SIGNALS = "public.debezium_signal"


@pytest.fixture
def running(stack: Servers, tmp_path) -> Iterator[Running]:
    with stack.fresh_database() as database:
        for table in ("a", "b"):
            database.execute(f"CREATE TABLE {table} (pk int PRIMARY KEY, aa int)")
            database.execute(f"INSERT INTO {table} SELECT n, n FROM generate_series(1, 500) n")
        database.start_connector(captures("public.b"))
        with Running(database, tmp_path, SNAPSHOT) as found:
            found.lakemark.environment["LAKEMARK_SOURCE__WATCH_INTERVAL"] = "1s"
            found.lakemark.start()
            yield found


def captures(*tables: str) -> dict[str, str]:
    return {
        "snapshot.mode": "no_data",
        "table.include.list": ",".join((*tables, SIGNALS)),
        "read.only": "true",
        "signal.enabled.channels": "",
    }


def test_a_table_that_is_added_comes_from_its_first_event(running: Running):
    database = running.database
    with Snapshots(running) as snapshots:
        refused = snapshots.ended(snapshots.start("public.a"))
        assert (refused.type, refused.additional_data["code"]) == ("REJECTED", "unknown-table")
        assert "table.include.list" in refused.additional_data["reason"]

        database.start_connector(captures("public.a", "public.b"))
        database.execute("UPDATE a SET aa = -pk WHERE pk <= 10")
        running.wait_state("public.a", "streaming")
        snapshots.run("public.a", "public.b")
        running.wait_equal("public.a", "public.b")

        changed = running.lakemark.wait_for_event("connector.changed", STATE_S)
        assert changed["settings"] == ["table.include.list"]
        database.execute("DELETE FROM a WHERE pk = 11")
        running.wait_equal("public.a", "public.b")
        running.lakemark.wait_for_event(
            "pipeline.streaming",
            STATE_S,
            where=lambda event: event is not running.lakemark.events("pipeline.streaming")[0],
        )


def test_a_column_whose_values_are_written_in_another_way_is_read_again(running: Running):
    """An event does not say so: 1.5 may be 150, and today the year 9999, until it is noticed."""
    database = running.database
    settings = captures("public.b") | {
        "decimal.handling.mode": "precise", "time.precision.mode": "adaptive",
    }  # fmt: skip
    database.execute("ALTER TABLE b ADD price numeric(10,2), ADD at timestamp(3)")
    database.start_connector(settings)
    database.execute("UPDATE b SET price = 1.5, at = '2026-01-01' WHERE pk <= 10")
    running.lakemark.wait_for_event(
        "batch.done", STATE_S
    )  # the command waits less than a first one
    running.lakemark.command("snapshot", "start", "public.b", "--wait")
    running.wait_equal("public.b")
    assert running.rows("public.b").schema.field("price").type == pa.decimal128(10, 2)

    database.execute("ALTER TABLE b ALTER price TYPE numeric(12,4), ALTER at TYPE timestamp(6)")
    database.execute("UPDATE b SET price = 2.5, at = '2026-02-02' WHERE pk BETWEEN 5 AND 15")
    said = running.lakemark.wait_for_event("table.written_otherwise", STATE_S)
    assert said["tables"] == ["public.b"]
    running.wait_equal("public.b")


def test_a_column_that_was_dropped_and_is_there_again_is_read_again(running: Running):
    """Its events came when the catalog had no such column: it was left out of all from then on."""
    database, lakemark = running.database, running.lakemark
    database.execute("UPDATE b SET aa = -1 WHERE pk = 1")
    running.wait_state("public.b", "streaming")
    lakemark.stop()
    database.execute("ALTER TABLE b ADD note text")
    database.execute("UPDATE b SET note = 'old' WHERE pk <= 10")
    database.execute("ALTER TABLE b DROP note")
    lakemark.start()
    gone = lakemark.wait_for_event("table.columns_gone", STATE_S)
    assert (gone["table"], gone["columns"]) == ("public.b", ["note"])

    database.execute("ALTER TABLE b ADD note text")
    database.execute("UPDATE b SET note = 'new' WHERE pk BETWEEN 5 AND 15")
    said = lakemark.wait_for_event("table.written_otherwise", STATE_S)
    assert said["tables"] == ["public.b"]
    running.wait_equal("public.b")
