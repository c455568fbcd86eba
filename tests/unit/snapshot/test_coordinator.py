"""The coordinator and its signals: outcomes on the records that it writes."""

import pytest

from lakemark.errors import DependencyError, TableError
from lakemark.model.key_ranges import WHOLE
from lakemark.snapshot import runs
from lakemark.snapshot.chunks import TOO_LARGE, ChunkError
from lakemark.snapshot.run_tracker import FollowedRun, newest_of_runs, then
from lakemark.snapshot.signals import Rejection
from lakemark.state.progress import RUN_PREFIX
from tests.kit.fake_world import ITEMS, ORDERS, FakeWorld, with_settings, wrong_table

pytestmark = pytest.mark.usefixtures("logs")


def reading(world, *, chunks=1):
    """Until so many chunks of the first run are settled."""
    world.go(60, until=lambda: len(world.stream.applied) >= chunks)


def spans(world, first=0):
    return [spec.span for spec in world.reads[first:]]


def test_no_window_is_opened_before_a_batch_has_armed_the_run():
    world = FakeWorld()
    world.start()
    world.execute("r1")
    for _ in range(5):
        world.coordinator.step()
        world.clock += 1
    assert [record["type"] for record in world.controls] == ["attempts", "run-start"]
    assert not world.stream.windows
    assert world.said("r1") == []
    world.batch()
    world.coordinator.step()
    assert world.said("r1") == ["STARTED"]
    assert len(world.stream.windows) == 1
    world.finish("r1")
    assert world.said("r1") == ["STARTED", "COMPLETED"]
    assert world.scans("r1") == {ORDERS: "SUCCEEDED"}
    assert world.records("run-end") == [{"type": "run-end", "run": "r1"}]
    assert list(world.stream.windows.values())[-1].closed > 0


def test_window_rows_come_early_for_a_chunk_that_waits_for_them():
    world = with_settings(interval=8.0)
    world.hold = True
    world.execute("r1")
    world.go(60, until=lambda: len(world.stream.windows) == 1)
    begun = world.clock
    world.go(20, until=lambda: len(world.stream.windows) == 2)
    second = world.clock
    assert 8 <= second - begun < 9, "nothing waits"
    world.go(9, until=lambda: bool(world.held))
    opened = list(world.stream.windows.values())[-1]
    while world.held:
        world.release()
        world.step()
    read = world.clock
    world.go(20, until=lambda: opened.closed >= 0)
    assert world.clock - read < 3
    assert world.clock - second >= 2, "but no more often than that"
    world.hold = False
    world.finish("r1")


def test_chunks_cover_every_key_once():
    world = FakeWorld()
    world.execute("r1", ".*")
    world.finish("r1")
    for table in (ORDERS, ITEMS):
        mine = [spec.span for spec in world.reads if spec.table == table]
        assert (mine[0].after, mine[-1].upto) == (None, None)
        assert [span.upto for span in mine[:-1]] == [span.after for span in mine[1:]]
    assert world.note("r1", "COMPLETED")["total_rows_scanned"] == "45"


def test_values_that_the_lake_cannot_hold_are_counted_once():
    world = FakeWorld()
    world.inexact = (1, 2)
    world.partial[ITEMS] = ["[1]"]  # is read again by its key: what was counted is not counted anew
    world.execute("r1", ".*")
    world.finish("r1")
    ranges = [spec for spec in world.reads if spec.keys is None]
    assert len(ranges) < len(world.reads)
    assert world.note("r1", "COMPLETED")["inexact_values"] == str(3 * len(ranges))
    world.inexact = (0, 0)
    world.execute("r2", ITEMS)
    world.finish("r2")
    assert "inexact_values" not in world.note("r2", "COMPLETED")


def test_a_run_of_higher_priority_goes_first():
    world = with_settings(parallelism=1)
    world.start()
    world.execute("low", ORDERS)
    world.execute("high", ITEMS, priority=5)
    world.finish("low", "high")
    assert world.reads[0].run == "high"


@pytest.mark.parametrize(("own", "most"), [(None, 3), (1, 1), (50, 3)])
def test_no_more_chunks_are_read_at_once_than_are_asked_for(own, most):
    world = with_settings(parallelism=3, chunk_rows=4)
    world.hold = True
    world.execute("r1", **({} if own is None else {"parallelism": own}))
    world.go(10, until=lambda: bool(world.held))
    world.release()
    world.go(5)
    assert len(world.held) == most
    world.execute("r2", ITEMS, keys=[1])
    world.go(5)
    assert len(world.held) == min(3, most + 1)


def test_a_delay_is_kept_between_chunks():
    world = FakeWorld()
    world.execute("r1", delay="10s")
    world.go(15, until=lambda: len(world.reads) == 1)
    world.go(9)
    assert len(world.reads) == 1
    world.go(10)
    assert len(world.reads) == 2
    world.send("set", "s", id="r1", delay="0s")
    world.go(3)
    assert len(world.reads) == 4
    world.finish("r1")


def test_smaller_chunks_from_now_on_cover_what_was_not_begun():
    world = with_settings(parallelism=1, chunk_rows=4)
    world.execute("r1")
    reading(world)
    begun = len(world.reads)
    world.send("set", "s", id="r1", chunk_rows=3)
    world.finish("r1")
    assert world.note("s", "CHANGED")["run"] == "r1"
    _, rows, within = world.cuts[-1]
    assert (rows, within.upto) == (3, None)
    assert begun < 10
    assert within.after == spans(world)[begun - 1].upto
    read = spans(world)
    assert [span.upto for span in read[:-1]] == [span.after for span in read[1:]]
    assert len(read) > 10


@pytest.mark.parametrize("while_", ["cutting", "away", "restarted"])
def test_a_new_size_of_chunks_is_not_forgotten(while_):
    world = with_settings(parallelism=1, chunk_rows=4)
    world.start()
    if while_ == "cutting":
        world.hold = True
    world.execute("r1")
    world.go(20, until=lambda: bool(world.held) if world.hold else bool(world.stream.applied))
    if while_ != "cutting":
        world.away = {"cut"}
    world.send("set", "s", id="r1", chunk_rows=3)
    world.go(3)
    if while_ == "restarted":
        world.start()
    world.away, world.hold = set(), False
    world.release()
    world.finish("r1")
    assert world.cuts[-1][1] == 3
    assert not [spec for spec in world.reads if spec.attempt >> 32 > 2]
    assert world.stream.coverage("r1", ORDERS) >= world.database.keys[ORDERS]


def test_more_chunks_at_once_from_now_on():
    world = with_settings(parallelism=4, chunk_rows=2)
    world.hold = True
    world.execute("r1", parallelism=1)
    world.go(10, until=lambda: bool(world.held))
    world.release()
    world.go(3)
    assert len(world.held) == 1
    world.send("set", "s", id="r1", parallelism=3)
    world.go(3)
    assert len(world.held) == 3


def test_more_chunks_at_once_and_a_delay_outlive_the_coordinator():
    world = with_settings(parallelism=4, chunk_rows=1)
    world.execute("r1", parallelism=1, delay="30s")
    reading(world)
    world.go(10)
    world.hold = True  # nothing else is kept of the run meanwhile
    world.send("set", "s", id="r1", parallelism=3, delay="2s")
    world.go(3, until=lambda: "CHANGED" in world.said("s"))
    world.start()
    world.hold = False
    world.go(20, until=lambda: bool(world.stream.armed))
    read = len(world.reads)
    world.go(20)
    assert 8 <= len(world.reads) - read <= 11, "one every two seconds"
    world.send("set", "t", id="r1", delay="0s")
    world.hold = True
    world.go(3, until=lambda: "CHANGED" in world.said("t"))
    world.start()
    world.go(10, until=lambda: len(world.held) == 3)
    world.go(3)
    assert len(world.held) == 3
    world.hold = False
    world.release()
    world.finish("r1")


def test_a_pause_outlives_the_coordinator():
    world = with_settings(parallelism=1, chunk_rows=2)
    world.execute("r1")
    reading(world)
    world.send("pause", "p")
    world.go(3)
    world.start()
    read = len(world.reads)
    world.go(20)
    assert len(world.reads) == read
    assert not world.stream.under_way()
    assert all(window.closed > 0 for window in list(world.stream.windows.values())[-1:])
    assert world.said("p") == ["PAUSED"]
    told = [note for note in world.notes if note.id == "r1"]
    assert told[-1].type == "PAUSED"
    assert "current_collection_in_progress" in told[-1].additional_data, "a chunk has settled since"
    assert then(FollowedRun("r1"), told[-1]).state == "paused"
    answer = next(note for note in world.notes if note.id == "p")
    assert newest_of_runs([answer, told[-1]]) == [told[-1]]
    world.send("resume", "q")
    world.finish("r1")
    assert world.said("q") == ["RESUMED"]
    assert world.said("r1") == ["STARTED", "PAUSED", "RESUMED", "COMPLETED"]


def test_stop_of_everything():
    world = FakeWorld()
    world.execute("r1", ".*")
    world.execute("r2", ITEMS)
    reading(world)
    world.send("stop", "x")
    world.finish("r1", "r2")
    assert {world.run("r1").state, world.run("r2").state} == {runs.STOPPED}
    assert world.said("r1") == ["STARTED", "ABORTED"]
    assert world.note("x", "ABORTED")["data_collections"] == f"{ORDERS},{ITEMS}"
    assert not world.stream.sweeps
    assert not world.stream.under_way()


def test_stop_of_one_table():
    world = FakeWorld()
    world.execute("r1", ITEMS, ORDERS)
    reading(world)
    world.send("stop", "x", data_collections=[ORDERS])
    world.finish("r1")
    assert world.said("r1") == ["STARTED", "ABORTED", "COMPLETED"]
    assert [record["table"] for record in world.stream.sweeps] == [ITEMS]


def test_a_stopped_run_stays_stopped_although_its_pipeline_begins_anew():
    world = FakeWorld()
    world.execute("r1", ITEMS, ORDERS)
    reading(world)
    world.send("stop", "x", data_collections=[ORDERS])
    world.go(1)
    world.stream.query, world.stream.armed = "q2", set()
    world.start()
    assert world.state("r1", ORDERS) == runs.STOPPED
    world.finish("r1")


def test_the_same_id_twice_runs_once():
    world = FakeWorld()
    world.execute("r1", ITEMS)
    world.finish("r1")
    world.execute("r1", ITEMS)
    world.go(5)
    assert world.said("r1") == ["STARTED", "COMPLETED", "COMPLETED"]
    assert len(world.records("run-start")) == 1
    world.execute("r2", ORDERS)
    reading(world, chunks=2)
    world.execute("r2", ORDERS)
    world.finish("r2")
    assert world.said("r2") == ["STARTED", "STARTED", "COMPLETED"]


def test_signals_without_a_run_are_refused():
    world = FakeWorld()
    world.start()
    world.send("pause", "p")
    world.send("resume", "q")
    world.send("stop", "x")
    world.send("set", "s", id="r1", delay="1s")
    world.send("set", "t", id="r1")
    world.execute("none", "public.absent")
    world.go(2)
    codes = {note.id: note.additional_data["code"] for note in world.notes}
    assert codes == {
        "p": "nothing-to-pause",
        "q": "nothing-to-resume",
        "x": "nothing-to-stop",
        "s": "unknown-run",
        "t": "missing-field",
        "none": "unknown-table",
    }
    assert set(world.said()) == {"REJECTED"}
    assert all(note.additional_data["hint"] for note in world.notes)


@pytest.mark.parametrize("kind", ["refused", "config", "table"])
def test_what_only_a_person_mends_is_an_answer(kind):
    world = FakeWorld()
    if kind == "refused":
        world.refused = Rejection("", "no-database", "there is none", "add it")
    else:
        error = wrong_table() if kind == "config" else TableError("gone", code="gone", hint="look")
        world.against[ORDERS] = error
    world.execute("r1")
    world.execute("r2", ITEMS)
    world.go(60)
    code = {"refused": "no-database", "config": "signal-table-missing", "table": "gone"}[kind]
    assert world.note("r1", "REJECTED")["code"] == code
    assert world.said("r2")[-1] == ("REJECTED" if kind == "refused" else "COMPLETED")


def test_the_log_says_what_became_of_every_signal(logs):
    """Under its id, and with no more of the data than the topic has: no key, no value, no filter."""
    world = with_settings(parallelism=1, chunk_rows=4)
    world.against[ITEMS] = Rejection("", "filtered", "it is filtered", "do not")
    secret = [{"data-collection": ORDERS, "filter": "v = 'secret'"}]
    world.execute("r1", ORDERS, ITEMS, additional_conditions=secret)
    world.execute("none", "public.absent")
    reading(world)
    world.send("pause", "p")
    world.send("resume", "q")
    world.finish("r1")
    sent = {entry["id"]: entry["type"] for entry in logs if entry["event"] == "snapshot.signal"}
    assert sent == {
        "r1": "ExecuteSnapshot",
        "none": "ExecuteSnapshot",
        "p": "PauseSnapshot",
        "q": "ResumeSnapshot",
    }
    (refused,) = [entry for entry in logs if entry["event"] == "snapshot.rejected"]
    assert refused.items() >= world.note("none", "REJECTED").items() - {("connector_name", "shop")}
    (ended,) = [entry for entry in logs if entry["event"] == "snapshot.ended"]
    assert (ended["run"], ended["state"], ended["code"]) == ("r1", runs.FAILED, "filtered")
    assert "secret" not in str(logs)


def test_patterns_without_a_table_are_said():
    world = FakeWorld()
    world.execute("r1", ITEMS, "public.absent.*")
    world.finish("r1")
    assert world.scans("r1") == {ITEMS: "SUCCEEDED", "public.absent.*": "UNKNOWN_SCHEMA"}
    assert world.run("r1").state == runs.COMPLETED


def test_tables_that_cannot_be_read_fail_alone():
    world = FakeWorld()
    world.against[ORDERS] = Rejection("", "filtered", "it is filtered", "do not")
    world.execute("r1", ORDERS, ITEMS)
    world.finish("r1")
    assert world.scans("r1") == {ORDERS: "SQL_EXCEPTION", ITEMS: "SUCCEEDED"}
    aborted = world.note("r1", "ABORTED")
    assert (aborted["code"], aborted["data_collections"]) == ("filtered", ORDERS)
    assert [record["table"] for record in world.stream.sweeps] == [ITEMS]


def test_a_chunk_that_is_too_large_and_has_no_halves_fails_its_table():
    """It says nothing about the database: other tables and runs go on."""
    world = FakeWorld()
    error = ChunkError(code=TOO_LARGE, message="too large", hint="another key", retried=False)
    world.answers[ORDERS] = [error] * 99
    world.execute("r1", ORDERS, ITEMS)
    world.execute("r2", ITEMS)
    world.finish("r1")
    world.finish("r2")
    assert world.scans("r1") == {ORDERS: "SQL_EXCEPTION", ITEMS: "SUCCEEDED"}


def test_while_the_halves_of_a_chunk_cannot_be_found_others_go_on():
    world = FakeWorld()
    error = ChunkError(code=TOO_LARGE, message="too large", hint="wait", retried=True)
    world.answers[ORDERS] = [error] * 99
    world.execute("r1", ORDERS)
    world.go(10)
    world.execute("r2", ITEMS)
    world.finish("r2")


def test_a_filter_that_no_longer_fits_fails_its_table():
    world = FakeWorld()
    world.execute("r1", additional_conditions=[{"data-collection": ORDERS, "filter": "id > 3"}])
    world.go(20, until=lambda: bool(world.coordinator and world.coordinator.state.runs))
    world.run("r1").tables[0].condition = "bad"
    world.finish("r1")
    assert world.note("r1", "ABORTED")["code"] == "bad-condition"
    assert not world.reads


def test_keys_are_read_in_lists_and_sweep_nothing():
    world = with_settings(chunk_rows=2)
    world.execute("r1", keys=[5, 3, 77, 3])
    world.finish("r1")
    assert [spec.keys for spec in world.reads] == [(("5",), ("3",)), (("77",),)]
    assert {spec.span for spec in world.reads} == {WHOLE}
    assert not world.stream.sweeps
    assert not world.records("table-read")
    assert not world.run("r1").tables[0].keys  # nobody needs to know them any more


def test_long_lists_of_keys_are_not_kept_for_ever():
    world = with_settings(chunk_rows=1000)
    world.database.keys[ORDERS] = set(range(12_000))
    world.execute("r1", keys=list(range(12_000)))
    world.finish("r1")
    assert len(world.progress[runs.run_key("r1")]) < 1000


def test_an_error_that_passes_does_not_reject():
    world = FakeWorld()
    world.against[ORDERS] = DependencyError("away", code="away")
    world.execute("r1")
    world.go(5)
    del world.against[ORDERS]
    world.finish("r1")
    assert world.said("r1") == ["STARTED", "COMPLETED"]


def test_nothing_is_written_while_nothing_happens():
    world = FakeWorld()
    world.execute("r1", ITEMS)
    world.finish("r1")
    world.go(5)
    before = len(world.calls), len(world.controls), len(world.notes)
    world.go(60)
    assert (len(world.calls), len(world.controls), len(world.notes)) == before


def test_the_oldest_runs_are_forgotten(monkeypatch):
    monkeypatch.setattr("lakemark.snapshot.run_store.KEPT_RUNS", 2)
    world = FakeWorld()
    for number in range(4):
        world.execute(f"r{number}", ITEMS)
        world.finish(f"r{number}")
    assert [key for key in world.progress if key.startswith(RUN_PREFIX)] == [
        runs.run_key("r2"),
        runs.run_key("r3"),
    ]
    world.execute("r0", ITEMS)
    world.finish("r0")
    assert runs.run_key("r0") in world.progress


def test_rows_a_second_and_time_to_go_count_the_time_spent_reading():
    world = with_settings(parallelism=2, chunk_rows=10)
    world.hold = True
    world.execute("r1")
    world.go(60, until=lambda: bool(world.held))
    begun = world.clock - 1  # a table's time begins with the step before the one that cuts it
    world.release()
    world.go(5, until=lambda: bool(world.held))
    world.release()

    def settled(rows):
        """One more chunk, ten seconds of reading after the one before."""
        attempt = min(world.coordinator.state.attempts)
        for shard in range(world.settings.shards):
            world.coordinator.scheduler.settled(
                attempt, shard, rows=rows // world.settings.shards, lo="01", void=""
            )
        world.coordinator.step()
        return world.note("r1", "IN_PROGRESS")

    world.clock = begun + 10
    said = settled(80)
    assert (said["chunk_index"], said["total_chunks"]) == ("1", "4")
    assert (said["rows_per_second"], said["eta_seconds"]) == ("8", "30")

    world.send("pause", "p")
    world.coordinator.step()
    world.clock += 100
    world.coordinator.step()
    stands = world.note("r1", "PAUSED")
    assert (stands["rows_per_second"], stands.get("eta_seconds")) == ("8", None)
    world.send("resume", "q")
    world.coordinator.step()
    goes_on = world.note("r1", "RESUMED")
    assert (goes_on["rows_per_second"], goes_on["eta_seconds"]) == ("8", "30")

    world.clock += 10
    said = settled(20)
    assert (said["rows_per_second"], said["eta_seconds"]) == ("5", "20")
