"""Two lakemarks of one pipeline: one runs it, the other stands by."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import pytest

from lakemark.settings.config import load
from lakemark.sink.table_sink import batch_of
from lakemark.state import checkpoint
from stack import every_type, shop
from stack.lakemark_process import LakemarkProcess
from stack.local import Database
from stack.processes import wait_for
from stack.workload import Workload
from tests.kit.nightly import NIGHTLY
from tests.kit.output_topics import OutputTopic, settled
from tests.kit.running import STATE_S, STREAM, Running
from tests.kit.snapshots import Snapshots

# "Within seconds": a standby has Spark up. On a machine with two cores that runs other things beside.
TAKEN_OVER_S = 90.0
ENDED_S = 15.0  # beyond the grace time: Spark and its workers go down
TOLD = ("public.orders", "public.customers", "public.line_items", f"public.{shop.ODD}")
BULK = "INSERT INTO bulk SELECT n, repeat(md5(n::text), 9) FROM generate_series(1, 180000) AS n"
# Several batches of `BULK`: each lasts for seconds, and ends within the grace time on any machine.
# Grace time and `ENDED_S` together are what `LakemarkProcess.stop` waits.
PACED = {**STREAM, "max_events_per_batch": 40_000, "stop_grace": "45s"}

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def both(database: Database, tmp_path) -> Iterator[tuple[Running, LakemarkProcess]]:
    """A pipeline that runs, and a second process that stands by."""
    with database.connect() as connection:
        shop.create(connection, every=every_type.Limits.of({}))
        shop.fill(connection, scale=0.02)
        connection.execute("CREATE TABLE bulk (id int PRIMARY KEY, note text)")
        connection.execute("INSERT INTO bulk VALUES (0, '')")
    database.start_connector()
    sections = {"output": {"topic_prefix": f"{database.name}.clean"}, "stream": PACED}
    with Running(database, tmp_path, sections, spark=NIGHTLY) as running:
        running.lakemark.start()
        running.lakemark.wait_for_batch(STATE_S)
        second = LakemarkProcess(running.lakemark.config, log=tmp_path / "second.log")
        second.environment |= running.lakemark.environment
        try:
            second.spawn()
            standby = second.wait_for_event("pipeline.standby", STATE_S)
            assert running.lakemark.identity is not None
            assert standby["pid"] == running.lakemark.identity.pid
            yield running, second
        finally:
            second.kill()


def test_the_second_takes_over_when_the_first_is_killed(both):
    running, second = both
    with Workload(running.database.dsn, writers=2, rows_per_s=300) as workload:
        running.lakemark.wait_for_batch(STATE_S)
        assert not second.events("batch.done")
        killed = time.monotonic()
        running.lakemark.kill()
        second.wait_for_event("pipeline.streaming", TAKEN_OVER_S)
        print(f"taken over {time.monotonic() - killed:.1f} s after the kill")
        second.wait_for_batch(STATE_S)
        workload.stop()
    running.wait_drained()
    running.comparer().wait_until_equal(second, deadline_s=STATE_S * 2)
    told_in_order(running)
    # Told to end in the middle of a batch, it ends the batch, and leaves a checkpoint that goes on.
    running.database.execute(BULK)
    wait_for(lambda: running.rows("public.bulk").num_rows > 1, STATE_S, "some of many rows")
    batch = batch_under_way(running)
    told = time.time()
    second.stop()
    seconds, grace = ended_at(second) - told, load(second.config).stream.stop_grace
    print(f"drained and ended {seconds:.1f} s after SIGTERM")
    assert seconds < grace.total_seconds() + ENDED_S
    (drained,) = second.events("pipeline.drained")
    assert drained["whole"]
    assert drained["batch"] >= batch, "it was given up"
    assert newest_batch(running) <= drained["batch"], "another one was begun"
    assert (running.directory / "checkpoint" / "commits" / str(drained["batch"])).exists()
    assert not second.events("pipeline.degraded")
    Workload(running.database.dsn, writers=2, seed=2).run_for(2)
    running.wait_drained()
    running.equal_after_once()
    made_by_a_newer_version(running)
    assert second.run_once() == 1
    assert "has format 99, this version of lakemark reads" in second.log_tail()
    assert "start the version of lakemark that wrote it" in second.log_tail()


def ended_at(process: LakemarkProcess) -> float:
    """When it was through, just now or when it began to archive Java's classes: a first stop does."""
    archiving = process.events("java.archiving")
    return (
        datetime.fromisoformat(archiving[0]["timestamp"]).timestamp() if archiving else time.time()
    )


def told_in_order(running: Running) -> None:
    """Two have written to the output topics: their consumers cannot tell."""
    told = set[str]()
    for table in TOLD:
        # A key that moves keeps a value that no record has: that is passed on as it came.
        topic = settled(running, table, placeholders=sys.maxsize)
        assert topic.repeated() == []
        told |= {one.event["op"] for one in topic.seen if one.value}
    assert told == {"r", "c", "u", "d"}


def made_by_a_newer_version(running: Running) -> None:
    path = running.directory / "checkpoint" / checkpoint._IDENTITY
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)


def is_saved(running: Running, batch: int) -> bool:
    """Whether the state after a batch is being written, or is: no owner is asked for after that."""
    state = running.directory / "checkpoint" / "lakemark" / "state" / f"{batch}.json"
    return state.with_name(f"{state.name}.draft").exists() or state.exists()


def batch_under_way(running: Running) -> int:
    """Wait until a batch has been under way for a second, and is not at its end; its number."""
    folder, found = running.directory / "checkpoint", list[int]()

    def batches(of: str, *, for_s: float = 0.0) -> set[int]:
        """Whose files are whole: one that is being written has another name, and loses it."""
        names = [path for path in (folder / of).iterdir() if path.name.isdigit()]
        return {int(path.name) for path in names if time.time() - path.stat().st_mtime >= for_s}

    def under_way() -> bool:
        planned = batches("offsets", for_s=1.0) - batches("commits")
        found[:] = [batch for batch in planned if not is_saved(running, batch)]
        return bool(found)

    wait_for(under_way, STATE_S, "a batch to be under way")
    return found[0]


def paused_in_a_batch(running: Running) -> None:
    """The process stands still in a batch whose tasks are not through, with the owner to ask for."""
    while True:
        batch = batch_under_way(running)
        running.lakemark.pause()
        if all(batch_of(v) < batch for _, v in transactions(running, ["public.bulk"])):
            return
        running.lakemark.resume()  # it was through with the largest table just then


def transactions(running: Running, tables: Sequence[str] = ()) -> list[tuple[str, int]]:
    """App id and version of every commit of these tables, or of all."""
    found = []
    for table in tables or running.tables():
        for log in Path(running.table(table).table_uri.removeprefix("file://")).glob(
            "_delta_log/*.json"
        ):
            actions = [json.loads(line) for line in log.read_text().splitlines()]
            found += [(a["txn"]["appId"], a["txn"]["version"]) for a in actions if "txn" in a]
    return found


def newest_batch(running: Running) -> int:
    """The newest batch that any table has something of."""
    return max(batch_of(version) for _, version in transactions(running))


def test_a_process_that_slept_in_a_batch_writes_nothing_after_it_was_superseded(both):
    running, second = both
    first = running.lakemark
    with Workload(running.database.dsn, writers=2, rows_per_s=300) as workload:
        first.wait_for_batch(STATE_S)
        running.database.execute(BULK)
        wait_for(lambda: running.rows("public.bulk").num_rows > 1, STATE_S, "some of many rows")
        paused_in_a_batch(running)
        second.wait_for_event("pipeline.streaming", STATE_S)
        second.wait_for_batch(STATE_S)
        with Snapshots(running) as snapshots:
            asked = snapshots.start("public.no_such_table")
            snapshots.ended(asked)
        seen = len(first.events("batch.done"))
        first.resume()
        first.wait_for_event("pipeline.superseded", STATE_S)
        workload.stop()
    running.wait_drained()
    running.comparer().wait_until_equal(second, deadline_s=STATE_S * 2)
    assert len(first.events("batch.done")) == seen, "it went on"
    with Snapshots(running) as snapshots:
        assert len(snapshots.notes(asked)) == 1, "it answered once more"
    assert first.is_running, "it stands by"
    told_in_order(running)
    bulk = OutputTopic.of(running, "public.bulk")
    assert len(bulk.read()) == running.rows("public.bulk").num_rows
    assert bulk.steps_back() == []
    twice = [one for one, times in Counter(transactions(running)).items() if times > 1]
    assert twice == [], "both have committed"
    second.kill()
    first.wait_for_event(
        "pipeline.streaming", STATE_S, where=lambda event: event is not streams(first)[0]
    )
    Workload(running.database.dsn, writers=2, seed=2).run_for(2)
    running.wait_drained()
    running.wait_equal()


def streams(process: LakemarkProcess) -> list[dict]:
    return process.events("pipeline.streaming")
