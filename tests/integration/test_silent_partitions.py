"""Rows that come and go with partitions; what a publication or an identity keeps out of the log."""

from collections.abc import Iterator

import pytest

from stack.local import Database
from tests.kit.nightly import nightly
from tests.kit.running import Running

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.parametrize(
        "either_database", ["postgres", pytest.param("newest", marks=nightly)], indirect=True
    ),
]

ROOT, PLAIN, NAMED, OTHER = "public.parted", "public.plain", "public.named", "public.other"
ROWS = 30
SETTINGS = {"snapshot": {"incomplete": "auto", "chunk_rows": 10, "window_interval": "100ms"}}


def insert(database: Database, table: str, first: int) -> None:
    rows = f"generate_series({first}, {first + ROWS}) i"
    database.execute(f"INSERT INTO {table} (id, v) SELECT i, 'v' || i FROM {rows}")


@pytest.fixture
def running(either_database: Database, tmp_path) -> Iterator[Running]:
    database = either_database
    database.execute("CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    for n in range(4):
        bounds = f"FROM ({n * 100}) TO ({n * 100 + 100})"
        database.execute(f"CREATE TABLE parted_{n} PARTITION OF parted FOR VALUES {bounds}")
        insert(database, "parted", n * 100)
    for table in (PLAIN, NAMED, OTHER):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text NOT NULL UNIQUE)")
        insert(database, table, 1)
    database.execute(
        f"CREATE PUBLICATION {database.name} FOR TABLE parted, {PLAIN}, {NAMED}, {OTHER}, debezium_signal"
        " WITH (publish_via_partition_root = true)"
    )
    captured = f"{ROOT},{PLAIN},{NAMED},{OTHER},public.debezium_signal"
    database.start_connector({"snapshot.mode": "no_data", "table.include.list": captured})
    with Running(database, tmp_path, SETTINGS) as found:
        found.lakemark.environment["LAKEMARK_SOURCE__WATCH_INTERVAL"] = "1s"
        found.lakemark.start()
        found.wait_equal(ROOT, PLAIN, NAMED, OTHER)
        yield found


def test_all_of_it_while_it_streams_and_partitions_while_it_is_down(running: Running):
    database, publication = running.database, f"ALTER PUBLICATION {running.database.name}"
    database.execute("CREATE TABLE loose (id int PRIMARY KEY, v text)")
    insert(database, "loose", 400)
    database.execute(f"{publication} DROP TABLE {PLAIN}")
    database.execute(f"ALTER TABLE {NAMED} REPLICA IDENTITY USING INDEX named_v_key")
    assert running.wait_state(PLAIN, "errored")["code"] == "not-published"
    stopped = running.wait_state(NAMED, "errored")
    assert stopped["code"] == "identity-without-key"

    # Of all this no event tells, or none of which row it is.
    for change in (
        "ALTER TABLE parted ATTACH PARTITION loose FOR VALUES FROM (400) TO (500)",
        "TRUNCATE parted_0",
        "ALTER TABLE parted DETACH PARTITION parted_1",
        "DROP TABLE parted_2",
        f"UPDATE {PLAIN} SET v = v || '!' WHERE id < 10",
        f"DELETE FROM {PLAIN} WHERE id > 20",
        f"DELETE FROM {NAMED} WHERE id % 2 = 0",
    ):
        database.execute(change)
    insert(database, OTHER, 1001)
    running.wait_equal(OTHER)
    database.execute(f"{publication} ADD TABLE {PLAIN}")
    database.execute(stopped["hint"])
    running.wait_equal(ROOT, PLAIN, NAMED, OTHER)
    running.wait_state(PLAIN, "streaming")
    running.wait_state(NAMED, "streaming")

    running.lakemark.stop()
    for change in (
        "ALTER TABLE parted DETACH PARTITION loose",
        "ALTER TABLE parted ATTACH PARTITION parted_1 FOR VALUES FROM (100) TO (200)",
        "TRUNCATE parted_3",
    ):
        database.execute(change)
    insert(database, "parted", 50)
    running.lakemark.start()
    running.wait_equal(ROOT, PLAIN, NAMED, OTHER)
    assert running.rows(ROOT).num_rows == 2 * (ROWS + 1)


@nightly
def test_a_row_filter_that_comes_and_goes(running: Running):
    database, publication = running.database, f"ALTER PUBLICATION {running.database.name}"
    others = f"{ROOT}, {NAMED}, {OTHER}, debezium_signal"
    database.execute(f"{publication} SET TABLE {others}, {PLAIN} WHERE (id > 5)")
    running.lakemark.wait_for_event("snapshot.refused", 480)
    database.execute(f"DELETE FROM {PLAIN} WHERE id < 4")
    database.execute(f"{publication} SET TABLE {others}, {PLAIN}")
    running.wait_equal(PLAIN)
