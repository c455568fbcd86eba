"""From the database through Debezium, Kafka and lakemark into the lake, on real servers."""

import time
from collections.abc import Mapping
from typing import Any

import pytest

from stack import shop
from stack.local import Database
from stack.processes import wait_for
from stack.workload import Workload
from tests.kit.avro_pipeline import form_settings, source_section
from tests.kit.nightly import nightly
from tests.kit.running import Running, header
from tests.kit.servers import EACH_DATABASE

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

BIO = "x" * 5000
SCALE = 0.02
GROWS = {
    "postgres": (
        "ALTER TABLE orders ADD COLUMN tags text[] DEFAULT '{a}'",
        "UPDATE orders SET weight = 1.5, tags = '{b,NULL}' WHERE id <= 50",
        "ALTER TABLE line_items ALTER COLUMN quantity TYPE bigint",
        "UPDATE line_items SET quantity = 5000000000 WHERE order_id <= 20",
        "ALTER TABLE line_items ALTER COLUMN price TYPE numeric(20, 2)",
    ),
    "mysql": (
        "ALTER TABLE orders ADD COLUMN tags varchar(20) DEFAULT 'a'",
        "UPDATE orders SET weight = 1.5, tags = 'b' WHERE id <= 50",
        "ALTER TABLE line_items MODIFY quantity bigint NOT NULL",
        "UPDATE line_items SET quantity = 5000000000 WHERE order_id <= 20",
        "ALTER TABLE line_items MODIFY price decimal(20, 2) NOT NULL",
    ),
}
"""Columns that come and grow, in a product's words."""


def fill_shop(database: Database) -> None:
    shop.create(database)
    shop.fill(database, scale=SCALE)


def load(database: Database, seconds: float, seed: int = 1) -> None:
    """Write for so many seconds, on a slow machine for longer."""
    writing, end = Workload(database, writers=2, seed=seed), time.monotonic() + seconds
    writing.start()
    try:
        wait_for(
            lambda: time.monotonic() >= end and writing.written.transactions > 10,
            seconds + 60,
            "a workload of more than 10 transactions",
        )
    finally:
        writing.stop()


@EACH_DATABASE
def test_snapshot_live_changes_and_new_schemas_arrive(any_database: Database, tmp_path):
    """Plain JSON, columns known from the catalog; then drained and found unchanged by --once."""
    database = any_database
    orders, line_items = map(database.identifier, ("orders", "line_items"))
    fill_shop(database)
    database.start_connector()
    with Running(database, tmp_path) as running:
        running.lakemark.start()
        load(database, 6)
        found = running.wait_equal()
        assert found[orders].source_rows > 100

        # Columns come and grow while rows of both shapes are on their way.
        database.execute("ALTER TABLE orders ADD COLUMN weight numeric(8, 3)")
        kind = database.server.connector
        for statement in GROWS["postgres" if kind == "postgres" else "mysql"]:
            database.execute(statement)
        database.execute("UPDATE line_items SET price = 123456789012345678.25 WHERE order_id = 30")
        # Rows that nobody touched keep their value of a new column's default out of the log.
        database.execute("UPDATE orders SET note = 'after'")
        load(database, 3, seed=2)
        # All rows were written anew without a record of it: those tables are read again.
        for table in (orders, line_items):
            running.wait_progress(table, "whole again", lambda r: not r.get("resnapshot"))
        running.wait_equal()
        kept = running.lakemark.progress()
        assert {record.get("state", "streaming") for record in kept.values()} == {"streaming"}
        assert not any(record.get("dead_letters") for record in kept.values())

        running.lakemark.stop()
        load(database, 2, seed=3)
        database.execute("TRUNCATE carts")
        running.wait_drained()
        running.equal_after_once()

        before = {table: running.version(table) for table in running.tables()}
        running.once()
        assert {table: running.version(table) for table in running.tables()} == before


@pytest.mark.parametrize(
    ("any_database", "form"),
    [
        ("postgres", "wrapped"),
        ("mariadb-11.4", "global"),
        *(
            pytest.param(service, form, marks=nightly)
            for service, form in (
                ("mariadb-11.4", "wrapped"),
                ("postgres", "confluent"),
                ("mariadb-11.4", "headers"),
                ("mariadb-10.11", "confluent"),
                ("mysql-9.7", "global"),
            )
        ),
    ],
    indirect=["any_database"],
)
def test_with_records_that_bring_their_schemas_no_catalog_is_needed(
    any_database: Database, tmp_path, form: str
):
    database = any_database
    fill_shop(database)
    # Without it nobody can tell what a bigint below zero was.
    settings = {**form_settings(form, database.stack), "column.propagate.source.type": ".*"}
    database.start_connector(settings)
    own = {"database": None, "source": source_section(database, tmp_path)}
    with Running(database, tmp_path, own) as running:
        running.lakemark.start()
        load(database, 5)
        database.execute("ALTER TABLE orders ADD COLUMN weight numeric(8, 3)")
        database.execute("UPDATE orders SET weight = 1.5")
        load(database, 2, seed=2)
        running.wait_equal()


# Each pair of tables has an engine of its own; all meet the same statements in the same batches.
LOCAL_ENGINES = {"": "task-merge", "_vectors": "deletion-vectors"}
SPARK_ENGINES = {"": "deletion-vectors", "_spark": "spark-merge"}


def chosen(engines: Mapping[str, str]) -> dict[str, Any]:
    tables = {
        f"public.{table}{pair}": {"engine": engine}
        for pair, engine in engines.items()
        for table in ("small", "big")
    }
    return {"lake": {"path": "./lake", "tables": tables}}


def merged_by(running: Running, engines: Mapping[str, str]) -> None:
    kept = running.lakemark.progress()
    for pair, engine in engines.items():
        assert {kept[f"public.{table}{pair}"]["engine"] for table in ("small", "big")} == {engine}


def test_truncate_and_moved_keys_and_columns_outside_the_row(database: Database, tmp_path):
    """Each the smallest case of its kind, in a transaction of its own and all in one."""
    for pair in LOCAL_ENGINES:
        small_and_big(database, pair)
    database.start_connector()
    with Running(database, tmp_path, chosen(LOCAL_ENGINES)) as running:
        running.equal_after_once()
        for step in (truncate_and_move_keys, truncate_within_and_grow):
            for pair in LOCAL_ENGINES:
                step(database, f"small{pair}", f"big{pair}")
            running.wait_drained()
            running.equal_after_once()
        merged_by(running, LOCAL_ENGINES)


def test_the_same_by_spark_and_its_own_engine(database: Database, tmp_path):
    """In batches of one process, which sleeps while the statements are made: they come at once."""
    for pair in SPARK_ENGINES:
        small_and_big(database, pair)
    other = f"not-{database.topic('small')}"  # in which the name of a topic of ours is found
    database.stack.kafka.create_topic(other)
    producer = database.stack.kafka.producer()
    producer.produce(other, b'{"id": 1}', b'{"id": 1}')
    producer.flush()
    database.start_connector()
    with Running(database, tmp_path, chosen(SPARK_ENGINES), spark=True) as running:
        running.lakemark.start()
        running.wait_equal()
        for step in (truncate_and_move_keys, truncate_within_and_grow):
            running.lakemark.pause()
            for pair in SPARK_ENGINES:
                step(database, f"small{pair}", f"big{pair}")
            running.wait_drained()
            running.lakemark.resume()
            running.wait_equal()
        merged_by(running, SPARK_ENGINES)
        assert [header(one, "topic") for one in running.dead_letters()] == []


def small_and_big(database: Database, pair: str) -> None:
    database.execute(f"CREATE TABLE small{pair} (id int PRIMARY KEY, note text)")
    database.execute(f"CREATE TABLE big{pair} (id int PRIMARY KEY, note text, bio text)")
    database.execute(f"ALTER TABLE big{pair} ALTER COLUMN bio SET STORAGE EXTERNAL")
    for number in range(1, 30):
        database.execute(f"INSERT INTO small{pair} VALUES (%s, 'n')", [number])
        database.execute(f"INSERT INTO big{pair} VALUES (%s, 'n', %s)", [number, BIO + str(number)])


def truncate_and_move_keys(database: Database, small: str, big: str) -> None:
    database.execute(f"TRUNCATE {small}")
    database.execute(f"INSERT INTO {small} VALUES (1, 'after')")
    database.execute(f"UPDATE {big} SET id = 101 WHERE id = 1")  # bio is in no record
    for old, new in ((2, 102), (102, 202), (202, 302)):
        database.execute(f"UPDATE {big} SET id = %s WHERE id = %s", [new, old])
    with database.connect() as connection, connection.transaction():
        connection.execute(f"UPDATE {big} SET note = 'first' WHERE id = 3")
        connection.execute(f"UPDATE {big} SET id = 103 WHERE id = 3")
        connection.execute(f"UPDATE {big} SET id = 3 WHERE id = 4")
        connection.execute(f"UPDATE {big} SET id = 4 WHERE id = 103")
        connection.execute(f"DELETE FROM {big} WHERE id = 5")
        connection.execute(f"UPDATE {big} SET id = 5 WHERE id = 6")


def truncate_within_and_grow(database: Database, small: str, big: str) -> None:
    with database.connect() as connection, connection.transaction():
        connection.execute(f"INSERT INTO {small} SELECT n, 'gone' FROM generate_series(2, 50) n")
        connection.execute(f"TRUNCATE {small}")
        connection.execute(f"INSERT INTO {small} VALUES (7, 'same transaction')")
    database.execute(f"ALTER TABLE {small} ADD COLUMN more numeric(10, 2)")
    database.execute(f"INSERT INTO {small} VALUES (8, 'more', 2)")
    database.execute(f"UPDATE {big} SET note = 'plain' WHERE id > 10")
    database.execute(f"UPDATE {big} SET bio = NULL WHERE id = 11")
    database.execute(f"DELETE FROM {big} WHERE id = 12")
    database.execute(f"INSERT INTO {big} VALUES (12, 'again', 'short')")
    database.execute(f"UPDATE {big} SET id = 13 + 1000 WHERE id = 13")
    database.execute(f"DELETE FROM {big} WHERE id = 1013")


@nightly
def test_soft_deletes_keep_the_rows_and_mark_them(database: Database, tmp_path):
    database.execute("CREATE TABLE soft (id int PRIMARY KEY, note text)")
    database.execute("CREATE TABLE hard (id int PRIMARY KEY, note text)")
    for table in ("soft", "hard"):
        database.execute(f"INSERT INTO {table} SELECT n, 'n' FROM generate_series(1, 20) n")
    database.start_connector()
    lake = {
        "path": "./lake",
        "deletes": "soft",
        "tables": {"public.hard": {"deletes": "hard"}},
    }
    with Running(database, tmp_path, {"lake": lake}) as running:
        running.equal_after_once()
        for table in ("soft", "hard"):
            database.execute(f"DELETE FROM {table} WHERE id <= 5")
            database.execute(f"INSERT INTO {table} VALUES (1, 'again')")
            database.execute(f"UPDATE {table} SET id = 100 WHERE id = 6")
        running.wait_drained()
        running.equal_after_once()

        rows = running.rows("public.soft").to_pylist()
        marked = {row["id"]: row["note"] for row in rows if row["_cdc"]["deleted"]}
        assert marked == dict.fromkeys((2, 3, 4, 5, 6), "n"), "deleted rows keep their values"
        assert running.rows("public.hard").num_rows == 16
        assert "deleted" not in running.rows("public.hard").schema.field("_cdc").type

        database.execute("INSERT INTO soft VALUES (2, 'back')")
        database.execute("TRUNCATE hard")
        running.wait_drained()
        running.equal_after_once()
