"""Two lakemarks of one pipeline: one runs it, the other stands by."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from lakemark.settings.config import load
from lakemark.sink.table_sink import batch_of
from lakemark.state import checkpoint
from stack import shop
from stack.lakemark_process import LakemarkProcess
from stack.local import Servers
from stack.processes import wait_for
from stack.shop_dialect import ODD
from stack.workload import Workload
from tests.kit.nightly import NIGHTLY
from tests.kit.number_rows import numbers_of
from tests.kit.output_topics import OutputTopic, settled
from tests.kit.running import STATE_S, STREAM, Running
from tests.kit.servers import AT_NIGHT, choose_pipelines, database_server, pipeline_of
from tests.kit.snapshots import Snapshots

# "Within seconds": a standby has Spark up. On a machine with two cores that runs other things beside.
TAKEN_OVER_S = 90.0
ENDED_S = 15.0  # beyond the grace time: Spark and its workers go down
TOLD = ("orders", "customers", "line_items", ODD)
ROWS = 180_000
# Several batches of `BULK`: each lasts for seconds, and ends within the grace time on any machine.
# Grace time and `ENDED_S` together are what `LakemarkProcess.stop` waits.
PACED = {**STREAM, "max_events_per_batch": 40_000, "stop_grace": "45s"}

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow, pipeline_of(*AT_NIGHT)]


@dataclass
class Pair:
    """A pipeline and the two processes that could run it.

    Attributes:
        running: the pipeline; its `lakemark` is one of the two.
        first: the process that runs it.
        second: the one that stands by.
    """

    running: Running
    first: LakemarkProcess
    second: LakemarkProcess

    def change_places(self) -> None:
        """The second runs it from now on."""
        self.first, self.second = self.second, self.first


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    choose_pipelines(metafunc, "pair")


@pytest.fixture(scope="module")
def pair(
    stack: Servers, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Pair]:
    """A pipeline that runs, and a second process that stands by; for the tests in their order."""
    folder = tmp_path_factory.mktemp("pipeline")
    with stack.fresh_database(server=database_server(stack, request.param)) as database:
        shop.create(database)
        shop.fill(database, scale=0.02)
        database.execute("CREATE TABLE bulk (id int PRIMARY KEY, note text)")
        database.execute("INSERT INTO bulk VALUES (0, '')")
        database.start_connector()
        sections = {"output": {"topic_prefix": f"{database.name}.clean"}, "stream": PACED}
        with Running(database, folder, sections, spark=NIGHTLY) as running:
            first, config = running.lakemark, running.lakemark.config
            first.start()
            first.wait_for_batch(STATE_S)
            second = type(first)(config, log=folder / "second.log")
            second.environment |= first.environment
            try:
                second.spawn()
                standby = second.wait_for_event("pipeline.standby", STATE_S)
                assert first.identity is not None
                assert standby["pid"] == first.identity.pid
                yield Pair(running, first, second)
            finally:
                second.kill()


def test_a_process_that_slept_in_a_batch_writes_nothing_after_it_was_superseded(pair: Pair):
    running, first, second = pair.running, pair.first, pair.second
    with Workload(running.database, writers=2, rows_per_s=300) as workload:
        first.wait_for_batch(STATE_S)
        fill_bulk(running, 1, ROWS)
        wait_for(lambda: running.rows(bulk_of(running)).num_rows > 1, STATE_S, "some of many rows")
        paused_in_a_batch(pair)
        second.wait_for_event("pipeline.streaming", STATE_S)
        second.wait_for_batch(STATE_S)
        with Snapshots(running) as snapshots:
            asked = snapshots.start(running.database.identifier("no_such_table"))
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
    bulk = OutputTopic.of(running, bulk_of(running))
    assert len(bulk.read()) == running.rows(bulk_of(running)).num_rows
    assert bulk.steps_back() == []
    twice = [one for one, times in Counter(transactions(running)).items() if times > 1]
    assert twice == [], "both have committed"
    pair.change_places()


def test_the_second_takes_over_when_the_first_is_killed(pair: Pair):
    running, first, second = pair.running, pair.first, pair.second
    before = len(second.events("pipeline.streaming"))  # it may have run before
    with Workload(running.database, writers=2, rows_per_s=300, seed=2) as workload:
        first.wait_for_batch(STATE_S)
        done = len(second.events("batch.done"))
        first.wait_for_batch(STATE_S)
        assert len(second.events("batch.done")) == done, "both run it"
        killed = time.monotonic()
        first.kill()
        wait_for(
            lambda: len(second.events("pipeline.streaming")) > before, TAKEN_OVER_S, "the takeover"
        )
        print(f"taken over {time.monotonic() - killed:.1f} s after the kill")
        wait_for(lambda: len(second.events("batch.done")) > done, STATE_S, "a batch of the second")
        workload.stop()
    running.wait_drained()
    running.comparer().wait_until_equal(second, deadline_s=STATE_S * 2)
    told_in_order(running)
    pair.change_places()


def test_told_to_end_in_a_batch_it_ends_the_batch_and_leaves_a_checkpoint_that_goes_on(
    pair: Pair,
):
    """And one that a newer version has made is refused; the last of these tests."""
    running, process = pair.running, pair.first
    pair.second.kill()
    rows = running.rows(bulk_of(running)).num_rows
    fill_bulk(running, ROWS + 1, 2 * ROWS)
    wait_for(lambda: running.rows(bulk_of(running)).num_rows > rows, STATE_S, "some of many rows")
    batch = batch_under_way(running)
    failed, told = process.events("pipeline.degraded"), time.time()
    process.stop()
    seconds, grace = ended_at(process) - told, load(process.config).stream.stop_grace
    print(f"drained and ended {seconds:.1f} s after SIGTERM")
    assert seconds < grace.total_seconds() + ENDED_S
    (drained,) = process.events("pipeline.drained")
    assert drained["whole"]
    assert drained["batch"] >= batch, "it was given up"
    assert newest_batch(running) <= drained["batch"], "another one was begun"
    assert (running.directory / "checkpoint" / "commits" / str(drained["batch"])).exists()
    assert process.events("pipeline.degraded") == failed
    Workload(running.database, writers=2, seed=3).run_for(2)
    running.wait_drained()
    assert process.run_once() == 0
    found = running.compare()
    assert found.is_equal, str(found)
    made_by_a_newer_version(running)
    assert process.run_once() == 1
    assert "has format 99, this version of lakemark reads" in process.log_tail()
    assert "start the version of lakemark that wrote it" in process.log_tail()


def bulk_of(running: Running) -> str:
    return running.database.identifier("bulk")


def fill_bulk(running: Running, first: int, last: int) -> None:
    """Insert rows with these keys, in one transaction."""
    rows = numbers_of(running.database, first, last)
    running.database.execute(
        f"INSERT INTO bulk SELECT seq, repeat(CONCAT(seq, '-'), 50) FROM {rows}"
    )


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
        name = running.database.identifier(table)
        topic = settled(running, name, placeholders=sys.maxsize)
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


def paused_in_a_batch(pair: Pair) -> None:
    """The first stands still in a batch whose tasks are not through, with the owner to ask for."""
    while True:
        batch = batch_under_way(pair.running)
        pair.first.pause()
        if all(batch_of(v) < batch for _, v in transactions(pair.running, [bulk_of(pair.running)])):
            return
        pair.first.resume()  # it was through with the largest table just then


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
