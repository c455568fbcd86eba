"""Single tables stop and go on, and the others never wait for them.

The tests share one pipeline that runs through all of them. Each has a workload of another seed: the same one would write the same keys again.
"""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from stack import every_type, shop
from stack.local import LocalStack
from stack.processes import wait_for
from stack.workload import Workload
from tests.kit.running import STATE_S, Running

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow]

ORDERS, PRODUCTS = "public.orders", "public.products"


@pytest.fixture(scope="module")
def pipeline(stack: LocalStack, tmp_path_factory) -> Iterator[Running]:
    with stack.fresh_database() as database:
        with database.connect() as connection:
            shop.create(connection, every=every_type.Limits.of({}))
            shop.fill(connection, scale=0.02)
        database.start_connector({"producer.override.metadata.max.age.ms": "500"})
        with Running(database, tmp_path_factory.mktemp("pipeline")) as running:
            yield running


@pytest.fixture
def running(pipeline: Running) -> Running:
    """The pipeline, streaming and equal."""
    pipeline.lakemark.start()
    pipeline.wait_equal()
    return pipeline


def test_a_paused_table_misses_nothing_even_over_a_restart(running: Running):
    with Workload(running.database.dsn, writers=2, rows_per_s=300) as workload:
        running.lakemark.wait_for_batch(STATE_S)
        running.lakemark.command("table", "pause", ORDERS)
        running.wait_state(ORDERS, "paused")
        version = running.version(ORDERS)
        running.lakemark.wait_for_batch(STATE_S)
        running.lakemark.kill()
        running.lakemark.start()
        running.lakemark.wait_for_batch(STATE_S)
        workload.stop()
    others = [table for table in running.tables() if table != ORDERS]
    running.wait_equal(*others)
    assert running.version(ORDERS) == version, "a paused table was written"
    assert not running.compare(ORDERS).is_equal, "nothing happened while it was paused"
    assert "paused" in running.lakemark.command("status")

    running.lakemark.command("table", "resume", ORDERS)
    running.wait_state(ORDERS, "streaming")
    running.wait_equal()


def test_more_partitions_keep_the_order_of_each_key(running: Running):
    database, topic = running.database, running.database.topic("orders")
    with Workload(database.dsn, writers=2, rows_per_s=300, seed=2) as workload:
        running.lakemark.wait_for_batch(STATE_S)
        admin = database.stack.kafka.admin()
        admin.create_partitions([NewPartitions(topic, 8)])[topic].result(30)

        def used() -> bool:
            ends = database.stack.kafka.end_offsets(topic)
            return len(ends) == 8 and all(ends.values())

        wait_for(used, STATE_S, "the connector to use the new partitions")
        workload.stop()
    running.wait_equal()
    event = running.lakemark.wait_for_event("table.repartitioned", STATE_S)
    assert (event["table"], event["topic"]) == (ORDERS, topic)
    running.wait_state(ORDERS, "streaming")
    running.wait_equal()


def test_a_table_that_cannot_be_written_waits_alone(running: Running):
    folder = Path(running.table(ORDERS).table_uri.removeprefix("file://"))
    others = [table for table in running.tables() if table != ORDERS]
    with unwritable(folder, folder / "_delta_log"):
        Workload(running.database.dsn, writers=2, seed=4).run_for(2)
        event = running.lakemark.wait_for_event(
            "table.degraded", STATE_S, where=lambda e: e["table"] == ORDERS
        )
        assert event["code"] == "lake-forbidden"
        running.wait_drained()
        running.wait_equal(*others)
        state = running.wait_state(ORDERS, "errored")
        assert state["retried"]
        assert state["hint"]
        assert not running.compare(ORDERS).is_equal
    running.wait_state(ORDERS, "streaming")
    running.wait_equal()


@contextmanager
def unwritable(*folders: Path) -> Iterator[None]:
    """Nothing can be made or removed in the folders, not even by root."""
    change = shutil.which("chattr")
    try:
        for folder in folders:
            done = subprocess.run([str(change), "+i", str(folder)], check=False)
            if done.returncode:
                pytest.skip("files cannot be made immutable here")
        yield
    finally:
        for folder in folders:
            subprocess.run([str(change), "-i", str(folder)], check=False)


def test_others_that_write_to_a_table_do_no_harm(running: Running):
    """Somebody's OPTIMIZE and DELETE in a loop; what they deleted comes back with its next change."""
    database, path = running.database, running.table(ORDERS).table_uri
    gone: list[int] = []
    over = threading.Event()

    def meddle() -> None:
        keys = [key for (key,) in database.execute("SELECT id FROM orders ORDER BY id LIMIT 50")]
        while not over.wait(0.05):
            with suppress(DeltaError):
                DeltaTable(path).optimize.compact()
            with suppress(DeltaError):
                key = keys[len(gone) % len(keys)]
                DeltaTable(path).delete(f"id = {key}")
                gone.append(key)

    meddler = threading.Thread(target=meddle)
    meddler.start()
    try:
        with Workload(database.dsn, writers=2, rows_per_s=300, seed=5) as workload:
            for _ in range(5):
                running.lakemark.wait_for_batch(STATE_S)
            workload.stop()
    finally:
        over.set()
        meddler.join()
    assert gone
    database.execute("UPDATE orders SET id = id WHERE id = ANY(%s)", [gone])
    running.wait_drained()
    running.wait_equal()


def test_an_incompatible_change_stops_its_table_only_and_its_hint_leads_on(running: Running):
    database, products = running.database, Path(running.table(PRODUCTS).table_uri.split("://")[-1])
    before = running.version(PRODUCTS)

    database.execute("ALTER TABLE products ALTER COLUMN name TYPE integer USING length(name)")
    database.execute("UPDATE products SET name = 7")
    Workload(database.dsn, writers=2, seed=3).run_for(3)

    state = running.wait_state(PRODUCTS, "errored")
    assert state["code"] == "schema-incompatible"
    assert "name" in state["reason"], "the column must be named"
    assert f"move the folder {products} away" in state["hint"]
    assert f"lakemark table skip {PRODUCTS}" in state["hint"]
    others = [table for table in running.tables() if table != PRODUCTS]
    running.wait_equal(*others)
    assert running.version(PRODUCTS) == before

    # the column as it was
    database.execute("ALTER TABLE products ALTER COLUMN name TYPE text USING 'seven ' || name")
    database.execute("UPDATE products SET name = name || '!' WHERE sku < 'SKU-00005'")
    skipped(running)
    assert running.version(PRODUCTS) > before

    # the new type
    database.execute("ALTER TABLE products ALTER COLUMN name TYPE integer USING length(name)")
    database.execute("UPDATE products SET name = name + 1 WHERE sku < 'SKU-00005'")
    running.wait_state(PRODUCTS, "errored")
    shutil.move(products, running.directory / "away")
    skipped(running)
    assert running.rows(PRODUCTS).schema.field("name").type == "int32"


def skipped(running: Running) -> None:
    """What the hint says last: the table is whole again by one command."""
    running.lakemark.command("table", "skip", PRODUCTS, "--yes")
    running.wait_progress(
        PRODUCTS,
        "streaming and whole",
        lambda r: r.get("state", "streaming") == "streaming" and not r.get("resnapshot"),
    )
    running.wait_equal()
