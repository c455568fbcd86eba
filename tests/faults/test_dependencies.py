"""What lakemark needs goes away and comes back, while the shop goes on changing.

The tests share one pipeline that runs through all of them; each leaves everything running.
Each has a workload of another seed: the same one would write the same keys again.
"""

import json
import os
import time
from collections.abc import Iterator

import pytest

from stack import every_type, shop
from stack.local import LocalStack
from stack.processes import wait_for
from stack.workload import Workload
from tests.kit.broken import revive
from tests.kit.browser import badge
from tests.kit.http_side import HttpSide
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


def test_broker_killed(running: Running, stack: LocalStack):
    with Workload(running.database.dsn, writers=2, rows_per_s=300):
        running.lakemark.wait_for_batch(STATE_S)
        stack.kafka.kill()
        running.database.execute("UPDATE products SET name = 'while the broker was away'")
        stack.kafka.start()
        revive(running)


def test_a_broker_that_is_gone_shows_everywhere_until_it_is_back(
    running: Running, stack: LocalStack
):
    side = HttpSide(running)
    wait_for(lambda: side.probes() == (200, 200), STATE_S, "both probes to be well")
    stack.kafka.kill()
    try:
        wait_for(lambda: side.probes() == (503, 503), STATE_S, "both probes to tell")
        now = side.status()
        assert now["pipeline"]["state"] == "degraded"
        assert now["pipeline"]["code"] in {"kafka-unavailable", "query-failed"}
        assert now["pipeline"]["hint"]
        assert now["lag"] == {"seconds": None, "records": None}
        health, ready = (json.loads(side.ask(path)[1]) for path in ("/healthz", "/readyz"))
        assert health["code"] == now["pipeline"]["code"]
        assert health["reason"] == now["pipeline"]["reason"]
        assert {"lag-unknown", health["code"]} <= {one["code"] for one in ready["reasons"]}
        assert 'lakemark_pipeline_state{state="degraded"} 1.0' in side.ask("/metrics")[1]
        assert badge(side.address) in {"degraded", None}
    finally:
        stack.kafka.start()
    revive(running)
    running.database.execute("UPDATE products SET name = 'after the broker came back'")
    running.wait_equal()
    wait_for(lambda: side.probes() == (200, 200), STATE_S, "both probes to be well again")
    assert side.status()["pipeline"]["state"] == "streaming"
    assert side.status()["pipeline"]["reason"] == ""
    assert badge(side.address) in {"streaming", None}


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
