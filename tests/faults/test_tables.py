"""Single tables stop and go on, and the others never wait for them.

The tests share one pipeline that runs through all of them. Each has a workload of another seed: the same one would write the same keys again.
"""

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from lakemark.sink.delta.engines import DELETION_VECTORS, SPARK_MERGE, TASK_MERGE
from lakemark.sink.delta.maintenance import DEFAULT
from stack import shop, watchdog
from stack.local import Servers
from stack.processes import wait_for
from stack.workload import Workload
from tests.kit.nightly import NIGHTLY, nightly
from tests.kit.output_topics import settled
from tests.kit.running import STATE_S, Running

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow]

ORDERS, PRODUCTS = "public.orders", "public.products"
# One table for each engine: only its own test writes to them.
OTHERS = {
    f"others_{engine.replace('-', '_')}": engine
    for engine in (TASK_MERGE, DELETION_VECTORS, *((SPARK_MERGE,) if NIGHTLY else ()))
}
ROWS = 36_000  # delta-rs writes a file for each thousand, if it is asked for tiny ones
CHANGE = "UPDATE {} SET n = n + 1 WHERE id BETWEEN 5 AND 50"


@pytest.fixture(scope="module")
def pipeline(stack: Servers, tmp_path_factory) -> Iterator[Running]:
    with stack.fresh_database() as database:
        shop.create(database)
        shop.fill(database, scale=0.02)
        for table in OTHERS:
            database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)")
        database.start_connector({"producer.override.metadata.max.age.ms": "500"})
        engines = {f"public.{table}": {"engine": engine} for table, engine in OTHERS.items()}
        lake = {"path": "./lake", "tables": engines}
        sections = {"lake": lake, "output": {"topic_prefix": f"{database.name}.clean"}}
        with Running(
            database, tmp_path_factory.mktemp("pipeline"), sections, spark=NIGHTLY
        ) as running:
            yield running


@pytest.fixture
def running(pipeline: Running) -> Running:
    """The pipeline, streaming and equal."""
    pipeline.lakemark.start()
    pipeline.wait_equal()
    return pipeline


def test_a_paused_table_misses_nothing_even_over_a_restart(running: Running):
    with Workload(running.database, writers=2, rows_per_s=300) as workload:
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
    with Workload(database, writers=2, rows_per_s=300, seed=2) as workload:
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
    told = settled(running, ORDERS)  # no key went back, though its records are in two partitions
    assert len(told.kafka.end_offsets(told.name)) < 8


@nightly  # Spark's workers have such processes
def test_where_the_process_that_writes_is_killed_the_workers_write(running: Running):
    writers = serving(running)
    assert writers
    for pid in writers:
        os.kill(pid, signal.SIGKILL)
    running.database.execute("UPDATE products SET price = 2.5")
    running.wait_equal("public.products")
    settled(running, "public.products")
    assert running.lakemark.events("running.degraded") == []


def serving(running: Running) -> set[int]:
    """The processes that write to output topics: those that listen where workers ask them."""
    below = watchdog.descendants(running.lakemark.identity.pid)
    sockets = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    inodes = {
        f"socket:[{one[6]}]"
        for one in sockets
        if one[-1].startswith(tuple(f"@lakemark-{pid}-" for pid in below)) and one[3] == "00010000"
    }
    found = set[int]()
    for pid in below:
        with suppress(OSError):  # it, or a file of its, has just ended
            if inodes & {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}:
                found.add(pid)
    return found


def test_a_table_that_cannot_be_written_waits_alone(running: Running):
    folder = Path(running.table(ORDERS).table_uri.removeprefix("file://"))
    others = [table for table in running.tables() if table != ORDERS]
    with unwritable(folder, folder / "_delta_log"):
        Workload(running.database, writers=2, seed=4).run_for(2)
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


def test_an_incompatible_change_stops_its_table_only_and_its_hint_leads_on(running: Running):
    database, products = running.database, Path(running.table(PRODUCTS).table_uri.split("://")[-1])
    before = running.version(PRODUCTS)

    database.execute("ALTER TABLE products ALTER COLUMN name TYPE integer USING length(name)")
    database.execute("UPDATE products SET name = 7")
    Workload(database, writers=2, seed=3).run_for(3)

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


@nightly
def test_others_that_write_to_a_table_do_no_harm(running: Running):
    """Somebody's OPTIMIZE and DELETE in a loop; what they deleted comes back with its next change."""
    database = running.database
    for table, engine in OTHERS.items():
        rows = 1000 if engine == SPARK_MERGE else ROWS
        database.execute(f"INSERT INTO {table} SELECT n, 0 FROM generate_series(1, {rows}) n")
    running.wait_drained()
    running.wait_equal(*(f"public.{table}" for table in OTHERS))
    meddlers = [
        Meddler(running.table(f"public.{table}").table_uri, compacted=engine != SPARK_MERGE)
        for table, engine in OTHERS.items()
    ]
    with ExitStack() as stack:
        for meddler in meddlers:
            stack.enter_context(meddler.at_work())

        def met() -> bool:
            """A batch that only adds rows, and one that changes some; until all have met ours."""
            for change in ("INSERT INTO {} SELECT max(id) + 1, 0 FROM {}", CHANGE):
                for table in OTHERS:
                    database.execute(change.replace("{}", table))
                running.lakemark.wait_for_batch(STATE_S)
            return all(m.refused > 1 for m in meddlers if m.compacted)

        wait_for(met, 900, "compactions of two to meet")
    for table, meddler in zip(OTHERS, meddlers, strict=True):
        assert not (meddler.compacted and meddler.landed), "it was overtaken, and committed"
        assert meddler.gone
        database.execute(f"UPDATE {table} SET n = n + 1 WHERE id = ANY(%s)", [meddler.gone])
    running.wait_drained()
    running.wait_equal()


@dataclass
class Meddler:
    """Writes a table beside lakemark, by delta-rs.

    Attributes:
        path: of the table.
        compacted: whether lakemark compacts it.
        gone: keys that it deleted.
        refused, landed: compactions of its own that one of ours, or else a merge, overtook.
    """

    path: str
    compacted: bool
    gone: list[int] = field(default_factory=list)
    refused: int = 0
    landed: int = 0

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """In a thread, until the end."""
        over = threading.Event()
        thread = threading.Thread(target=self._meddle, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _meddle(self, over: threading.Event) -> None:
        while not over.wait(0.05):
            stale = DeltaTable(self.path)
            try:  # a file for each thousand rows: reason to compact them
                stale.optimize.z_order(["id"], target_size=1)
            except DeltaError:
                continue  # overtaken itself
            with suppress(DeltaError):
                key = 1 + 7 * len(self.gone)
                stale.delete(f"id = {key}")
                self.gone.append(key)
            if self.compacted and len(stale.file_uris()) <= DEFAULT.spare_files:
                continue  # compacted already: it would not be again, and we would have nothing to do
            if not self._is_overtaken(stale.version(), over):
                continue
            try:
                stale.optimize.compact()
                self.landed += 1
            except CommitFailedError:
                self.refused += 1

    def _is_overtaken(self, version: int, over: threading.Event) -> bool:
        """Whether lakemark compacts the table, or else merges, before the end; waits for it."""
        operation = "OPTIMIZE" if self.compacted else "MERGE"
        while not over.wait(0.02):
            newest = DeltaTable(self.path)
            for said in newest.history(newest.version() - version):
                ours = not str(said.get("engineInfo", "")).startswith("delta-rs")
                if ours and said["operation"] == operation:
                    return True
        return False


@nightly
def test_a_checkpoint_that_is_removed_ends_the_run_and_a_new_one_keeps_the_pause(running: Running):
    """The last of this module: afterwards all tables are to be snapshotted again."""
    lakemark, topic = running.lakemark, f"{running.database.name}.control"
    lakemark.command("table", "pause", PRODUCTS)
    running.wait_state(PRODUCTS, "paused")
    folder, lake_version = running.directory / "checkpoint", running.version(PRODUCTS)
    folder.rename(running.directory / "removed")  # at once: the process writes into it
    running.database.execute("UPDATE products SET price = price + 1")
    running.database.execute("UPDATE customers SET name = 'nobody knows'")
    assert lakemark.wait_ended(STATE_S) == 1
    assert "checkpoint-lost" in lakemark.log_tail(40)
    assert lakemark.events("pipeline.superseded") == []

    shutil.rmtree(folder, ignore_errors=True)
    before = sum(running.database.stack.kafka.end_offsets(topic).values())
    lakemark.start()
    lakemark.wait_for_batch(STATE_S)
    running.wait_equal("public.customers")
    assert [event["table"] for event in lakemark.events("table.stays_paused")] == [PRODUCTS]
    assert running.wait_state(PRODUCTS, "paused")["code"] == "paused"
    assert running.version(PRODUCTS) == lake_version, "a paused table was written"
    first = json.loads((folder / "lakemark" / "first.json").read_text())
    assert first["control"] == before > 0
    planned = (folder / "sources" / "2" / "0").read_text().splitlines()[-1]
    assert json.loads(planned) == {topic: {"0": before}}, "old commands are not read again"
    lakemark.command("table", "resume", PRODUCTS)
    running.wait_equal()
