"""The coordinator when it ends, when others are away, and when what was read is in doubt."""

import pytest

from lakemark.connectors.database import Watermark
from lakemark.connectors.mysql.binlog_place import BinlogPlace, Server
from lakemark.connectors.mysql.positions import pack
from lakemark.errors import LakemarkError
from lakemark.model.positions import epoch_number, epoch_of
from lakemark.snapshot import runs
from lakemark.snapshot.chunk_scheduler import STUCK_S
from lakemark.snapshot.chunks import STATEMENT_TIMEOUT, ChunkError
from lakemark.state.progress import PAGE_PREFIX
from tests.kit.fake_world import (
    ITEMS,
    ORDERS,
    CrashError,
    FakeWorld,
    Fault,
    away,
    with_settings,
    wrong_table,
)
from tests.kit.nightly import QUICK

pytestmark = pytest.mark.usefixtures("logs")

RETRIED = ChunkError(code="job-failed", message="lost", hint="wait", retried=True)
LATE = ChunkError(code=STATEMENT_TIMEOUT, message="slow", hint="wait", retried=True)


def story(world):
    """Runs over tables and keys, a signal that changes one, doubt, a repair, a halved chunk."""
    world.execute("r1", ORDERS, ITEMS)
    world.execute("k1", ORDERS, keys=[3, 77])
    world.execute("none", "public.absent")
    world.stream.voids = ["", "unreadable-key"]
    world.partial[ITEMS] = ["[2]"]
    world.answers[ORDERS] = [RETRIED, LATE]


def play(world):
    """Lets the story go to its end, with a new coordinator whenever one is gone."""
    sent, left = False, 400
    while left:
        left -= 1
        if world.clock >= 1001.0 and not sent:
            world.send("set", "s1", id="r1", chunk_rows=5)
            sent = True
        try:
            world.step()
        except (CrashError, LakemarkError):  # the latter only of its start
            world.coordinator = None
        if sent and all(map(world.ended, ("r1", "k1"))):
            left = min(left, 4)
    if world.coordinator is None:
        world.step()


def check(world):
    assert not world.wrong, world.wrong
    assert {world.run("r1").state, world.run("k1").state} == {runs.COMPLETED}
    for one in ("r1", "k1"):
        assert "STARTED" in world.said(one)
        assert world.said(one)[-1] == "COMPLETED"
    assert "REJECTED" in world.said("none")
    assert "CHANGED" in world.said("s1")
    for table in (ORDERS, ITEMS):
        wanted = world.database.keys[table] | {-1, max(world.database.keys[table]) + 1}
        assert world.stream.coverage("r1", table) == wanted
        assert table in {record["table"] for record in world.stream.sweeps}
    assert world.stream.coverage("k1", ORDERS) == {3}
    assert not world.stream.armed
    assert not world.stream.under_way()
    assert not [key for key in world.progress if key.startswith(PAGE_PREFIX)]


def points():
    world = FakeWorld()
    story(world)
    play(world)
    check(world)
    return world.passed


@pytest.mark.parametrize(
    ("error", "step"), [(CrashError(), 1), (away(), 2)], ids=["crash", "error"]
)
def test_whatever_ends_at_any_point_the_runs_go_on(error, step):
    """Each call of the world in turn fails, before or after its effect, or in the midst of it."""
    for at in range(1, points() + 1, step * (6 if QUICK else 1)):
        world = FakeWorld()
        story(world)
        world.fault = Fault(at, error)
        play(world)
        try:
            check(world)
        except AssertionError as wrong:
            raise AssertionError(f"at {at}") from wrong


def test_results_of_attempts_that_are_over_count_for_nothing():
    world = with_settings(parallelism=4)
    world.hold = True
    world.start()
    world.execute("r1")
    world.go(20, until=lambda: bool(world.held))
    world.release()  # the cut
    world.go(20, until=lambda: len(world.held) == 4)
    held = list(world.held)
    world.send("stop", "x")
    world.execute("r2")
    world.go(2)
    for work in held:
        work()
    world.hold = False
    world.held.clear()
    world.finish("r1")
    assert not world.records("chunk")
    assert len(world.records("void")) == 4
    world.send("stop", "y")
    world.go(3)
    assert not world.stream.applied


def test_signals_are_answered_and_chunks_read_while_a_tick_waits_for_a_standby():
    world = with_settings(parallelism=2)
    world.start()
    world.execute("r1")
    world.go(20, until=lambda: bool(world.reads))
    world.hold_ticks = True
    world.go(20, until=lambda: world.held_tick is not None)
    said = len(world.records("chunk"))
    world.go(20, until=lambda: len(world.reads) == 4)
    world.execute("r2", ITEMS)
    world.go(5)
    # none says which window it ends with: the close row may have been written before its SELECT
    assert len(world.records("chunk")) == said
    world.send("pause", "p")
    world.go(5, until=lambda: "PAUSED" in world.said("p"))
    world.send("resume", "p2")
    world.hold_ticks = False
    world.release_tick()
    world.finish("r1", "r2")
    assert world.said("r1")[-1] == world.said("r2")[-1] == "COMPLETED"


def test_a_defect_in_a_tick_is_told_and_does_not_end_ticking():
    world = FakeWorld()
    world.start()
    world.execute("r1")
    world.tick_error = ZeroDivisionError("a defect")
    with pytest.raises(ZeroDivisionError):
        world.go(20)
    world.tick_error = None
    world.finish("r1")
    assert world.said("r1")[-1] == "COMPLETED"


def test_a_void_chunk_is_read_again():
    world = FakeWorld()
    world.stream.voids = ["unreadable-key", "own-snapshot"]
    world.execute("r1")
    world.finish("r1")
    assert len(world.reads) == 6
    assert [read.attempt & 0xFF for read in world.reads] == list(range(6))


def test_chunks_of_a_table_that_stopped_wait_until_it_streams_and_others_do_not():
    world = FakeWorld()
    world.execute("r1", ORDERS, ITEMS)
    world.go(20, until=lambda: len(world.reads) >= 2)
    world.stream.table(ORDERS, streaming=False)
    world.go(30)
    read = len([spec for spec in world.reads if spec.table == ORDERS])
    assert world.stream.coverage("r1", ITEMS) >= world.database.keys[ITEMS]
    world.go(10)
    assert len([spec for spec in world.reads if spec.table == ORDERS]) == read
    world.stream.table(ORDERS, streaming=True)
    world.finish("r1")
    assert world.stream.coverage("r1", ORDERS) >= world.database.keys[ORDERS]


def hidden_behind_a_transaction(world):
    """A chunk is about to be read, and sees no window; returns who is in the way."""
    world.hold = True
    world.execute("r1")
    world.go(20, until=lambda: bool(world.held))
    world.release()
    world.go(20, until=lambda: bool(world.held))
    xid = world.database.begin()  # between the open row and the read
    world.database.restart()
    return xid


def test_what_no_window_is_visible_to_waits_and_names_who_is_waited_for(logs):
    world = with_settings(chunk_rows=100)
    xid = hidden_behind_a_transaction(world)
    world.release()
    world.hold = False
    world.step()
    waits = [entry for entry in logs if entry["event"] == "snapshot.waits"]
    assert len(waits) == 1
    assert "psql" in waits[0]["blocker"]
    assert [record["reason"] for record in world.records("void")] == ["not-visible"]
    world.database.end(xid)
    world.finish("r1")
    assert len(world.reads) == 2


def test_who_is_waited_for_is_asked_again_when_the_database_did_not_say(logs):
    world = with_settings(chunk_rows=100)
    xid = hidden_behind_a_transaction(world)
    world.away = {"blocker"}
    world.release()
    world.hold = False
    world.step()
    assert not [entry for entry in logs if entry["event"] == "snapshot.waits"]
    world.away = set()
    world.go(3)
    waits = [entry["blocker"] for entry in logs if entry["event"] == "snapshot.waits"]
    assert len(waits) == 1
    assert "psql" in waits[0]
    world.database.end(xid)
    world.finish("r1")


def test_a_long_transaction_does_not_keep_chunks_from_older_windows():
    world = FakeWorld()
    world.execute("r1")
    world.go(20, until=lambda: bool(world.stream.windows))
    xid = world.database.begin()
    world.go(30, until=lambda: world.run("r1").over)
    world.database.end(xid)
    assert not world.wrong
    assert world.run("r1").state == runs.COMPLETED


def test_attempts_whose_window_may_never_be_closed_are_void():
    world = FakeWorld()
    world.execute("r1")
    world.go(20, until=lambda: bool(world.stream.under_way()))
    waiting = world.stream.under_way()
    world.away = {"tick"}
    world.go(3)
    assert {record["attempt"] for record in world.records("void")} >= waiting
    assert {record["reason"] for record in world.records("void")} == {"window-lost"}
    world.away = set()
    world.finish("r1")


def test_a_signal_table_that_cannot_be_written_fails_the_runs_with_its_hint():
    world = FakeWorld()
    world.execute("r1", ORDERS)
    world.execute("r2", ITEMS)
    world.tick_error = wrong_table()
    world.finish("r1", "r2")
    for one in ("r1", "r2"):
        assert world.run(one).state == runs.FAILED
        aborted = world.note(one, "ABORTED")
        assert (aborted["code"], aborted["hint"]) == ("signal-table-missing", "CREATE TABLE")
    world.tick_error = None
    world.execute("r3", ITEMS)
    world.finish("r3")
    assert world.run("r3").state == runs.COMPLETED


@pytest.mark.parametrize(
    "what",
    ["tick", "read", "cut", "fingerprint", "partial_keys", "control", "notify", "save"],
)
def test_while_others_are_away_waits_grow_and_nothing_is_lost(what, logs):
    world = FakeWorld()
    world.start()
    world.execute("r1")
    world.away = {what}
    world.go(120)
    waits = [e["next_try_s"] for e in logs if e["event"] == "snapshot.delayed"]
    assert max(waits) == 30
    world.away = set()
    world.finish("r1")
    assert world.run("r1").state == runs.COMPLETED


def test_signals_wait_for_the_database_in_their_order():
    world = FakeWorld()
    world.away = {"tables"}
    world.execute("r1", ORDERS)
    world.execute("r2", ITEMS)
    world.send("pause", "p")
    world.go(10)
    assert world.said() == []
    world.away = set()
    world.go(20, until=lambda: "p" in {note.id for note in world.notes})
    assert world.run("r1").paused
    assert world.run("r2").paused


def test_a_table_whose_schema_changes_begins_again():
    world = FakeWorld()
    world.execute("r1")
    world.go(20, until=lambda: len(world.stream.applied) >= 2)
    world.database.fingerprints[ORDERS] = "f2"
    world.stream.applied.clear()
    world.finish("r1")
    assert world.stream.coverage("r1", ORDERS) >= world.database.keys[ORDERS]


def about_to_check():
    """All chunks of a run are settled; the answer to its check is held."""
    world = FakeWorld()
    world.execute("r1")
    world.go(20, until=lambda: world.run_state("r1") == runs.READING)
    world.hold = True
    world.go(20, until=lambda: world.state("r1", ORDERS) == runs.CHECKING or world.relay())
    return world


def test_a_table_whose_schema_changes_after_its_last_chunk_begins_again():
    world = about_to_check()
    world.database.fingerprints[ORDERS] = "f2"
    world.stream.applied.clear()
    world.hold = False
    world.release()
    world.finish("r1")
    assert world.stream.coverage("r1", ORDERS) >= world.database.keys[ORDERS]


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
def test_a_snapshot_of_the_connectors_own_makes_tables_begin_again(told):
    """Its rows are older than those of the chunks: what was read before must be read again."""
    world = FakeWorld()
    world.execute("r1")
    world.go(20, until=lambda: len(world.stream.applied) >= 2)
    before = world.run("r1").tables[0].armed
    world.stream.table(ORDERS, resnapshot_since=world.stream.number + 1)
    if told:
        world.stream.restarts = [ORDERS]
    else:
        world.coordinator = None  # it ended before it heard of it
    world.stream.applied.clear()
    world.batch()
    world.finish("r1")
    assert world.run("r1").tables[0].armed > before
    assert world.stream.coverage("r1", ORDERS) >= world.database.keys[ORDERS]
    assert world.stream.tables[ORDERS].resnapshot_since == -1


def test_another_query_knows_nothing_of_the_runs():
    world = FakeWorld()
    world.start()
    world.execute("r1", ITEMS, ORDERS)
    world.execute("r2", ITEMS)
    world.go(40, until=lambda: world.scans("r1") == {ITEMS: "SUCCEEDED"})
    world.stream.query, world.stream.armed = "q2", set()
    world.stream.applied.clear()
    world.start()
    assert world.run_state("r1") == runs.ARMING
    world.finish("r1", "r2")
    for table in (ITEMS, ORDERS):
        assert world.stream.coverage("r1", table) >= world.database.keys[table]


def test_an_older_copy_of_checkpoint_and_tables_knows_nothing_of_what_was_read_since():
    """What is kept of the runs stands in Kafka, and no backup takes that back."""
    world = FakeWorld()
    world.execute("r1", ITEMS, ORDERS)
    world.go(5, until=lambda: "r1" in world.stream.armed)
    copied = world.stream.number
    world.go(40, until=lambda: world.scans("r1") == {ITEMS: "SUCCEEDED"})
    world.start()
    assert world.state("r1", ITEMS) == runs.DONE, "the newest checkpoint begins nothing again"
    world.stream.number = copied
    world.stream.applied.clear()
    world.start()
    assert {table.state for table in world.run("r1").tables} == {runs.WAITING}
    world.finish("r1")
    for table in (ITEMS, ORDERS):
        assert world.stream.coverage("r1", table) >= world.database.keys[table]


def test_a_lost_part_does_not_hold_up_a_run_for_ever():
    world = with_settings(chunk_rows=5)
    world.stream.lost = {(1 << 32) + 1}
    world.execute("r1")
    world.finish("r1", seconds=STUCK_S * 2)
    assert [record["reason"] for record in world.records("void")] == ["part-lost"]


def test_rows_that_wait_are_bounded():
    world = with_settings(parallelism=8, chunk_rows=1)
    world.bytes = 40 << 20
    world.stream.lag = 1000
    world.execute("r1")
    world.go(30)
    assert len(world.reads) <= 4 + 8
    world.stream.lag = 0
    world.finish("r1")


def test_the_last_chunk_whose_part_is_lost_is_read_again(monkeypatch):
    """Nothing later tells that it is; rows of windows that are only late are waited for longer."""
    monkeypatch.setattr("lakemark.snapshot.chunk_scheduler.STUCK_S", 10.0)
    monkeypatch.setattr("lakemark.snapshot.chunk_scheduler.PATIENCE_S", 20.0)
    world = with_settings(chunk_rows=100)
    world.stream.lost = {1 << 32, (1 << 32) + 1}
    world.execute("r1")
    world.finish("r1", seconds=90)
    assert [record["reason"] for record in world.records("void")] == ["not-decided"] * 2


def test_a_table_that_is_over_is_not_read_again_after_a_restart():
    world = FakeWorld()
    world.start()
    world.execute("r1", ITEMS, ORDERS)
    world.go(40, until=lambda: world.scans("r1") == {ITEMS: "SUCCEEDED"})
    world.go(1)
    world.start()
    world.finish("r1")
    assert len([spec for spec in world.reads if spec.table == ITEMS]) == 1
    assert [record["table"] for record in world.records("sweep")] == [ITEMS, ORDERS]


# -- beside a batch --------------------------------------------------------------------------------


def test_a_run_reads_while_the_batch_with_its_start_is_under_way():
    world = with_settings(chunk_rows=100)
    world.execute("r1")
    world.start()
    world.coordinator.step()
    assert [record["run"] for record in world.records("run-start")] == ["r1"]
    world.coordinator.planned(frozenset())
    world.coordinator.step()
    assert world.run_state("r1") == runs.ARMING
    world.coordinator.planned(world.stream.plan())
    world.coordinator.step()
    assert (world.run_state("r1"), world.stream.number) == (runs.READING, 0)
    world.finish("r1")


def test_the_first_window_does_not_wait_for_the_interval():
    world = with_settings(chunk_rows=100, interval=60.0)
    for run in ("r1", "r2"):
        opened = sum(kind == "open" for kind, *_ in world.stream.rows)
        world.execute(run)
        world.go(5, until=lambda n=opened: sum(k == "open" for k, *_ in world.stream.rows) > n)
        world.go(300, until=lambda one=run: world.ended(one))
        world.go(300, until=lambda: not world.coordinator.state.windows.current)


def test_a_sweep_that_is_not_said_yet_is_not_said_of_a_table_that_begins_again():
    world = about_to_check()
    world.release()  # the check is answered, and the same step hears of the connector's snapshot
    world.hold = False
    world.stream.restarts = [ORDERS]
    world.batch()
    world.coordinator.step()
    assert world.records("sweep") == []
    world.finish("r1")
    assert world.stream.coverage("r1", ORDERS) >= world.database.keys[ORDERS]


def test_a_run_goes_on_when_the_positions_of_the_source_begin_again(logs):
    world = with_settings(chunk_rows=10, parallelism=2)
    world.execute("r1", ORDERS)
    world.go(until=lambda: world.ended("r1") or world.stream.applied)
    world.stream.deaf = True  # windows of the new log stand below those of the old one
    world.go(10.0)
    assert world.coordinator.state.attempts
    world.stream.deaf, world.stream.epoch = False, 1
    world.finish("r1", seconds=30.0)
    assert "new-epoch" in {one.get("reason") for one in logs}
    assert world.stream.coverage("r1", ORDERS) >= world.database.keys[ORDERS]


def test_a_window_has_the_epoch_in_which_it_was_asked_for():
    world = with_settings()
    world.stream.epoch = epoch_number("mysql", 0)
    world.hold = world.hold_ticks = True
    place = BinlogPlace(Server(1, 2), 7, 100)
    world.tick = lambda *, closes, opens, reached: Watermark(str(opens.uuid), place, place.place)
    world.execute("r1", ORDERS)
    world.go(until=lambda: world.held_tick is not None)
    newer = epoch_number("mysql", 1)
    world.stream.epoch, world.stream.newest = newer, pack(newer, 7, 101)
    world.step()
    world.release_tick()
    world.step()
    (window,) = [one for one in world.controls if one["type"] == "window"]
    assert epoch_of(bytes.fromhex(window["position"])) == epoch_number("mysql", 0).to_bytes(4)


def test_a_place_before_what_was_applied_is_of_another_log_and_waits_for_its_epoch(logs):
    world = with_settings()
    old, new = (epoch_number("mysql", number) for number in (0, 1))
    world.stream.epoch, world.stream.newest = old, pack(old, 7, 101)
    world.hold = True
    place = BinlogPlace(Server(1, 2), 7, 100)
    world.tick = lambda *, closes, opens, reached: Watermark(str(opens.uuid), place, place.place)
    world.execute("r1", ORDERS)
    world.go(10.0)
    assert {one["code"] for one in logs if one["event"] == "snapshot.delayed"} == {"other-log"}
    assert not [one for one in world.controls if one["type"] == "window"]
    world.stream.epoch = new
    world.go(60.0, until=lambda: any(one["type"] == "window" for one in world.controls))
