"""What lakemark needs goes away and comes back, while the shop goes on changing.

The tests share one pipeline that runs through all of them; each leaves everything running.
Each has a workload of another seed: the same one would write the same keys again.
"""

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stack import shop
from stack.lakemark_process import Event
from stack.local import Servers
from stack.processes import wait_for
from stack.small_disk import SmallDisk, small_disk
from stack.workload import Workload
from tests.kit.broken import alone, revive
from tests.kit.browser import badge
from tests.kit.http_side import HttpSide
from tests.kit.nightly import NIGHTLY, nightly
from tests.kit.running import STATE_S, Running
from tests.kit.servers import ends_servers

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow]

# How long the broker hangs: longer than our requests wait; at night than sessions of consumers, too.
FREEZE_S = float(os.environ.get("LAKEMARK_TEST_FREEZE_S", "60" if NIGHTLY else "25"))
PRODUCTS = "public.products"
AGAIN_S = 5.0
"""After this long a change has come through, or was refused."""


@pytest.fixture(scope="module")
def disk(tmp_path_factory) -> Iterator[SmallDisk]:
    """Where the lake is."""
    with small_disk(tmp_path_factory.mktemp("pipeline") / "lake") as mounted:
        yield mounted


@pytest.fixture(scope="module")
def pipeline(stack: Servers, disk: SmallDisk) -> Iterator[Running]:
    with stack.fresh_database() as database:
        shop.create(database)
        shop.fill(database, scale=0.02)
        database.start_connector()
        with Running(database, disk.folder.parent, spark=NIGHTLY) as running:
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


@ends_servers
def test_broker_killed(running: Running, stack: Servers):
    with Workload(running.database, writers=2, rows_per_s=300):
        running.lakemark.wait_for_batch(STATE_S)
        stack.kafka.kill()
        away = "UPDATE products SET name = 'while the broker was away'"
        alone(running.database, "products", away)
        stack.kafka.start()
        revive(running)


@ends_servers
def test_a_broker_that_is_gone_shows_everywhere_until_it_is_back(running: Running, stack: Servers):
    side = HttpSide(running)
    wait_for(lambda: side.probes() == (200, 200), STATE_S, "both probes to be well")
    stack.kafka.kill()
    try:
        wait_for(lambda: side.probes() == (503, 503), STATE_S, "both probes to tell")
        now = side.status()
        assert now["pipeline"]["state"] == "degraded"
        assert now["pipeline"]["code"] == "kafka-unavailable"
        assert "broker" in now["pipeline"]["hint"]  # which read has failed first is by chance
        assert now["lag"] == {"seconds": None, "records": None}
        health, ready = (json.loads(side.ask(path)[1]) for path in ("/healthz", "/readyz"))
        assert health["code"] == now["pipeline"]["code"]
        assert {"lag-unknown", health["code"]} <= {one["code"] for one in ready["reasons"]}

        def agree() -> bool:
            """An attempt to reach the brokers may change the reason between the two answers."""
            reason = json.loads(side.ask("/healthz")[1])["reason"]
            return reason == side.status()["pipeline"]["reason"] != ""

        wait_for(agree, STATE_S, "the probe to say why as /v1/status does")
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


@nightly
@ends_servers
def test_broker_hangs(running: Running, stack: Servers):
    with Workload(running.database, writers=2, rows_per_s=300, seed=2):
        running.lakemark.wait_for_batch(STATE_S)
        stack.kafka.pause()
        time.sleep(FREEZE_S)  # the fault itself lasts this long
        stack.kafka.resume()
        revive(running)


@ends_servers
def test_connect_killed(running: Running, stack: Servers):
    with Workload(running.database, writers=2, rows_per_s=300, seed=3):
        running.lakemark.wait_for_batch(STATE_S)
        stack.connect.kill()
        alone(running.database, "customers", "DELETE FROM customers WHERE id % 7 = 0")
        stack.connect.start()
        revive(running)


def test_a_source_that_sends_nothing_shows_everywhere(running: Running, stack: Servers):
    side, database = HttpSide(running), running.database
    name, slot = database.name, database.config["slot.name"]
    running.wait_drained()

    def reasons() -> dict[str, str]:
        found = json.loads(side.ask("/readyz")[1])["reasons"]
        return {one["code"]: one["reason"] for one in found}

    def well() -> None:
        wait_for(lambda: side.probes() == (200, 200), STATE_S, f"both probes: {reasons()}")
        now = side.status()
        assert (now["source"]["connector"], now["source"]["problems"]) == ("RUNNING", [])
        assert now["source"]["slot_active"]
        assert now["lag"]["seconds"] is not None
        assert "lakemark_source_up 1.0" in side.ask("/metrics")[1]

    def told(code: str) -> dict[str, Any]:
        begun = time.monotonic()
        wait_for(lambda: code in reasons(), STATE_S, code)
        print(f"{code} after {time.monotonic() - begun:.1f} s: {reasons()[code]}")
        now = side.status()
        assert code in {one["code"] for one in now["source"]["problems"]}
        assert side.probes() == (200, 503), "to start lakemark again would mend nothing"
        assert "lakemark_source_up 0.0" in side.ask("/metrics")[1]
        assert badge(side.address) in {"streaming", None}
        return now

    well()
    stack.connect.pause_connector(name)
    before = told("connector-paused")["source"]["proven_ms"]
    wait_for(lambda: side.status()["lag"]["seconds"] > 10, STATE_S, "the bound to grow")
    assert side.status()["source"]["proven_ms"] == before, (
        "the slot alone would say that all is well"
    )
    stack.connect.resume_connector(name)
    well()

    stack.connect.stop_connector(name)
    database.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", [slot, f"{slot}_kept"])
    database.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    assert told("slot-missing")["source"]["connector"] == "STOPPED"
    database.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", [f"{slot}_kept", slot])
    database.execute("SELECT pg_drop_replication_slot(%s)", [f"{slot}_kept"])
    stack.connect.resume_connector(name)
    well()

    wrong = {"publication.name": "nobody_s", "publication.autocreate.mode": "disabled"}
    stack.connect.put_connector(name, {**database.config, **wrong})
    assert told("connector-failed")["source"]["connector"] == "FAILED"
    stack.connect.put_connector(name, database.config)
    database.revive(STATE_S)  # its task is FAILED until the worker has begun it anew
    well()


@ends_servers
def test_postgres_restarted(running: Running, stack: Servers):
    with Workload(running.database, writers=2, rows_per_s=300, seed=4):
        running.lakemark.wait_for_batch(STATE_S)
        stack.postgres.restart()
        alone(running.database, "products", "UPDATE products SET price = 1.25")
        revive(running)


@pytest.mark.parametrize(
    ("kind", "code", "hint"),
    [
        pytest.param("full", "lake-full", "make room below lake.path", marks=nightly),
        ("read_only", "lake-forbidden", "the right to read, write and list below lake.path"),
    ],
    ids=["full", "read-only"],
)
def test_a_whole_lake_that_takes_nothing(
    running: Running, disk: SmallDisk, kind: str, code: str, hint: str
):
    """First one table is to be written, then all: it is theirs, then the pipeline's."""
    if not disk.mounted:
        pytest.skip("file systems cannot be mounted here")
    side = HttpSide(running)
    wait_for(lambda: side.probes() == (200, 200), STATE_S, "both probes to be well")
    insist = Insistence(running, side)
    with getattr(disk, kind)():
        running.database.execute("UPDATE products SET name = %s", [f"while it was {kind}"])

        def refused() -> bool:
            insist(PRODUCTS)
            return side.table(PRODUCTS)["state"] == "errored"

        wait_for(refused, STATE_S, "a table to be refused")
        state = running.wait_state(PRODUCTS, "errored")
        assert (state["code"], state["retried"]) == (code, True)
        assert hint in state["hint"]
        assert side.probes() == (200, 503), "one table alone is no reason to end the process"
        running.database.execute("UPDATE products SET name = %s", [f"it is still {kind}"])
        assert not running.compare(PRODUCTS).is_equal

        running.database.execute("INSERT INTO carts (customer_id, added) VALUES (1, now())")

        def told() -> list[Event]:
            insist(*running.tables())
            events = running.lakemark.events("pipeline.degraded")
            return [event for event in events if event["code"] == code]

        assert hint in wait_for(told, STATE_S, "all tables to be refused")[0]["hint"]
        wait_for(lambda: side.status()["pipeline"]["code"] == code, STATE_S, "the pipeline to tell")
    running.wait_state(PRODUCTS, "streaming")
    running.wait_drained()
    # Rows that were touched are as before: that they have come only a change behind them shows.
    running.database.execute("UPDATE products SET name = %s", [f"it is not {kind} any more"])
    running.wait_equal()
    wait_for(lambda: side.probes() == (200, 200), STATE_S, "both probes to be well again")


class Insistence:
    """Changes tables until they are refused: a file that is removed may leave room for some."""

    def __init__(self, running: Running, side: HttpSide) -> None:
        self._running, self._side = running, side
        self._touched: dict[str, float] = {}

    def __call__(self, *tables: str) -> None:
        """Touch each that streams, unless the last time is too recent to have come through."""
        for table in tables:
            since = time.monotonic() - self._touched.get(table, 0.0)
            if since > AGAIN_S and self._side.table(table)["state"] == "streaming":
                self._running.database.execute(touch(self._running, table))
                self._touched[table] = time.monotonic()


def touch(running: Running, table: str) -> str:
    """The statement by which every row of a table changes, and none is another one."""
    name = table.partition(".")[2]
    ((column,),) = running.database.execute(
        "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = %s::regclass"
        " AND attnum > 0 AND attidentity <> 'a' AND NOT attisdropped ORDER BY attnum LIMIT 1",
        [f'public."{name}"'],
    )
    return f'UPDATE public."{name}" SET {column} = {column}'
