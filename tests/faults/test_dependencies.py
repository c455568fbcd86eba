"""What lakemark needs goes away and comes back, while the shop goes on changing.

The tests share one pipeline that runs through all of them; each leaves everything running.
Each has a workload of another seed: the same one would write the same keys again.
"""

import os
import time
from collections.abc import Iterator

import pytest

from stack import every_type, shop
from stack.local import LocalStack
from stack.processes import StackError, wait_for
from stack.workload import Workload
from tests.kit.running import STATE_S, Running

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow]

# How long the broker hangs. Longer than the session and request timeouts that could give up: 60.
FREEZE_S = float(os.environ.get("LAKEMARK_TEST_FREEZE_S", "60"))


@pytest.fixture(scope="module")
def pipeline(stack: LocalStack, tmp_path_factory) -> Iterator[Running]:
    with stack.fresh_database() as database:
        with database.connect() as connection:
            shop.create(connection, every=every_type.Limits.of({}))
            shop.fill(connection, scale=0.02)
        database.start_connector()
        with Running(database, tmp_path_factory.mktemp("pipeline")) as running:
            yield running


@pytest.fixture
def running(pipeline: Running) -> Iterator[Running]:
    """The pipeline, streaming and equal before and after."""
    pipeline.lakemark.start()
    pipeline.wait_equal()
    pid = pipeline.lakemark.identity
    yield pipeline
    pipeline.wait_equal()
    assert pipeline.lakemark.identity == pid, "lakemark was started again"
    assert pipeline.dead_letters() == [], "what is away is no reason for a dead letter"


def revive(running: Running) -> None:
    """Wait until the connector streams; as an operator would, restart it if its task has failed."""
    database = running.database

    def streams() -> bool:
        try:
            database.wait_streaming(20)
        except StackError:
            database.stack.connect.restart_connector(database.name)
            return False
        return True

    wait_for(streams, STATE_S, "the connector to stream again")


def forget(running: Running, stack: LocalStack) -> None:
    """Delete the connector, its stored offsets and its slot: what comes next begins anew.

    With offsets but without the slot Debezium refuses to start, whatever snapshot.mode says.
    """
    name = running.database.name
    stack.connect._request("PUT", f"/connectors/{name}/stop", STATE_S)
    wait_for(
        lambda: stack.connect.status(name)["connector"]["state"] == "STOPPED",
        STATE_S,
        "the connector to stop",
    )
    stack.connect._request("DELETE", f"/connectors/{name}/offsets", STATE_S)
    stack.connect.delete_connector(name)
    query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    with stack.postgres.connect() as connection:
        wait_for(
            lambda: connection.execute(query, [name]).fetchall() == [(False,)],
            STATE_S,
            "the slot to be free",
        )
        connection.execute("SELECT pg_drop_replication_slot(%s)", [name])


def test_broker_killed(running: Running, stack: LocalStack):
    with Workload(running.database.dsn, writers=2, rows_per_s=300):
        running.lakemark.wait_for_batch(STATE_S)
        stack.kafka.kill()
        running.database.execute("UPDATE products SET name = 'while the broker was away'")
        stack.kafka.start()
        revive(running)


def test_broker_hangs(running: Running, stack: LocalStack):
    with Workload(running.database.dsn, writers=2, rows_per_s=300, seed=2):
        running.lakemark.wait_for_batch(STATE_S)
        stack.kafka.pause()
        time.sleep(FREEZE_S)  # the fault itself lasts this long
        stack.kafka.resume()
        revive(running)


def test_connect_killed(running: Running, stack: LocalStack):
    with Workload(running.database.dsn, writers=2, rows_per_s=300, seed=3):
        running.lakemark.wait_for_batch(STATE_S)
        stack.connect.kill()
        running.database.execute("DELETE FROM customers WHERE id % 7 = 0")
        stack.connect.start()
        revive(running)


def test_postgres_restarted(running: Running, stack: LocalStack):
    with Workload(running.database.dsn, writers=2, rows_per_s=300, seed=4):
        running.lakemark.wait_for_batch(STATE_S)
        stack.postgres.restart()
        running.database.execute("UPDATE products SET price = 1.25")
        revive(running)


def test_connector_created_anew_with_a_new_snapshot(pipeline: Running, stack: LocalStack):
    """Last, because rows deleted while no slot was there stay: no record of them exists."""
    running, database = pipeline, pipeline.database
    running.lakemark.start()
    running.wait_equal()
    assert not any(r.get("resnapshot") for r in running.lakemark.progress().values())
    config = dict(database.config)
    forget(running, stack)
    (key,) = database.execute("SELECT min(id) FROM orders")[0]
    database.execute("DELETE FROM orders WHERE id = %s", [key])
    database.execute("UPDATE orders SET note = 'while nobody looked' WHERE id > %s", [key])
    database.execute("INSERT INTO customers (name) VALUES ('born unseen')")

    database.start_connector(config)
    database.execute("UPDATE customers SET name = name || '.' WHERE name = 'born unseen'")

    state = running.wait_progress(
        "public.orders", "marked as taken again", lambda r: bool(r.get("resnapshot"))
    )
    assert state.get("state", "streaming") == "streaming"
    others = [table for table in running.tables() if table != "public.orders"]
    running.wait_equal(*others)

    def only_the_deleted_row_is_left() -> bool:
        found = running.compare("public.orders")["public.orders"]
        return (found.missing, found.different, found.duplicates, found.extra) == (0, 0, 0, 1)

    wait_for(only_the_deleted_row_is_left, STATE_S, "orders to hold the new snapshot")
    # The row that is left over can be deleted by hand, or by touching its key in the source.
    database.execute("INSERT INTO orders SELECT %s, 1, 'new', 0, NULL, now(), NULL", [key])
    database.execute("DELETE FROM orders WHERE id = %s", [key])
    running.wait_equal()
