"""The end of a table: schema and incomplete rows are looked at, ghosts go; runs of lakemark's own."""

import pytest

from lakemark.snapshot import runs
from lakemark.snapshot.chunk_splitter import REPAIRS
from lakemark.snapshot.chunks import STATEMENT_TIMEOUT, ChunkError
from lakemark.snapshot.coordinator import BEGINS_AGAIN
from lakemark.snapshot.snapshot_state import Settings
from tests.kit.fake_world import ITEMS, ORDERS, FakeWorld, with_settings

pytestmark = pytest.mark.usefixtures("logs")

REST_S = Settings("any", 1).rest


def test_incomplete_rows_are_read_again_before_the_sweep():
    world = with_settings(chunk_rows=2)
    world.partial[ITEMS] = ["[1]", "[2]", "[4]", "unreadable"]
    world.execute("r1", ITEMS)
    world.finish("r1")
    assert [spec.keys for spec in world.reads if spec.keys] == [(("1",), ("2",)), (("4",),)]
    assert len(world.stream.sweeps) == 1
    assert world.stream.sweeps[0]["position"] == min(a.lo for a in world.stream.applied)


def counted(world, what):
    """The tables that a method of the world is called with."""
    real, seen = getattr(world, what), []

    def call(table):
        seen.append(table)
        return real(table)

    setattr(world, what, call)
    return seen


def about_to_settle(*, partial):
    """All windows of a table's chunks are closed, and the shards have not decided them all."""
    world = with_settings(chunk_rows=2)
    world.stream.table(ITEMS, partial=partial)
    world.stream.lag = 4
    world.execute("r1", ITEMS)
    world.go(20, until=lambda: world.run_state("r1") == runs.READING)
    world.go(20, until=lambda: world.state("r1", ITEMS) == runs.CHECKING)
    table = world.run("r1").tables[0]
    assert table.settled < table.chunks
    return world, table


@pytest.mark.parametrize("partial", [False, True])
def test_the_sweep_follows_the_batch_that_settles_the_last_chunk(partial):
    """Only where rows may be incomplete the lake is asked in between."""
    world, table = about_to_settle(partial=partial)
    asked = counted(world, "partial_keys")
    while table.settled < table.chunks:
        world.step()
    assert bool(world.stream.sweeps) is not partial
    world.finish("r1")
    assert len(world.stream.sweeps) == 1
    assert asked == ([ITEMS] if partial else [])


def test_progress_is_told_while_the_last_chunks_are_settled():
    world, table = about_to_settle(partial=False)
    attempt = next(iter(world.coordinator.state.attempts))
    for shard in range(world.settings.shards):
        world.coordinator.scheduler.settled(attempt, shard, rows=1, lo="01", void="")
    world.clock += 1.0
    world.coordinator.step()
    assert table.state == runs.CHECKING
    assert world.note("r1", "IN_PROGRESS")["chunk_index"] == str(table.settled)


def test_a_schema_that_changes_before_the_last_window_is_closed_is_seen():
    world = with_settings(chunk_rows=2)
    world.stream.lag = 4
    world.execute("r1", ITEMS)
    world.go(20, until=lambda: world.run_state("r1") == runs.READING)
    attempts = world.coordinator.state.attempts
    world.go(20, until=lambda: len(attempts) == 3 and all(a.hi for a in attempts.values()))
    world.hold_ticks = True
    world.go(3)
    table = world.run("r1").tables[0]
    assert table.state == runs.READING
    world.database.fingerprints[ITEMS] = "f2"
    world.hold_ticks = False
    world.release_tick()
    world.finish("r1")
    assert table.fingerprint == "f2"
    assert len(world.reads) == 6


def test_a_chunk_that_is_void_after_the_check_is_read_and_the_table_checked_again():
    world, table = about_to_settle(partial=False)
    seen, before = counted(world, "fingerprint"), len(world.reads)
    attempt = next(iter(world.coordinator.state.attempts.values()))
    world.coordinator.store.void(attempt, "not-decided")
    world.step()
    assert table.state == runs.READING
    world.finish("r1")
    assert len(world.reads) == before + 1
    assert seen == [ITEMS]
    assert world.stream.coverage("r1", ITEMS) >= world.database.keys[ITEMS]


def test_rows_that_stay_incomplete_are_read_a_few_times_only():
    world = FakeWorld()
    world.partial[ITEMS], world.stubborn = ["[1]"], {"[1]"}
    world.execute("r1", ITEMS)
    world.finish("r1")
    assert len([spec for spec in world.reads if spec.keys]) == REPAIRS
    assert len(world.stream.sweeps) == 1


def test_keys_that_the_stream_asks_for_meanwhile_are_read_before_the_sweep():
    world = FakeWorld()
    world.execute("r1", ITEMS)
    world.go(20, until=lambda: bool(world.reads))
    world.stream.table(ITEMS, reread={"[3]": world.stream.number + 1})
    world.finish("r1")
    assert [spec.keys for spec in world.reads if spec.keys] == [(("3",),)]
    assert world.stream.tables[ITEMS].reread == {}
    assert len(world.stream.sweeps) == 1


def test_a_table_with_keys_that_are_asked_for_is_not_swept():
    """What marks it as having ghosts stays; what was asked before its reading is answered."""
    world = FakeWorld()
    world.stream.table(ITEMS, resnapshot_since=0, reread={"[1]": 0})
    world.execute("r1", ITEMS)
    world.go(20, until=lambda: bool(world.reads))
    world.stream.table(ITEMS, reread={"[1]": 0, "unreadable": world.stream.number + 1})
    world.finish("r1")
    assert not world.stream.sweeps
    assert world.run("r1").state == runs.COMPLETED
    assert world.stream.tables[ITEMS].resnapshot_since == 0
    assert set(world.stream.tables[ITEMS].reread) == {"unreadable"}


def test_a_table_with_more_keys_in_doubt_than_are_listed_begins_again():
    world = FakeWorld()
    world.execute("r1", ITEMS)
    world.go(20, until=lambda: bool(world.reads))
    now = world.stream.number + 1
    world.stream.table(ITEMS, reread={"[3]": now}, reread_missed=now)
    world.finish("r1")
    table = world.run("r1").tables[0]
    assert (table.armed >= now, len(world.stream.sweeps)) == (True, 1)
    assert (world.stream.tables[ITEMS].reread_missed, world.stream.tables[ITEMS].reread) == (-1, {})
    assert not [spec for spec in world.reads if spec.keys]


def to_the_end(world, table, mark):
    """Run r1 to its end, while the table misses something with every batch."""
    for _ in range(600):
        if world.coordinator and world.ended("r1"):
            break
        if world.run_state("r1") == runs.READING:
            world.stream.table(table, **{mark: world.stream.number})
        world.step()


def test_a_table_is_not_swept_while_more_keys_are_in_doubt_than_are_listed():
    """It does not begin again for ever: a run of its own reads what is left."""
    world = with_settings(chunk_rows=2)
    world.execute("r1", ITEMS)
    to_the_end(world, ITEMS, "reread_missed")
    assert world.run_state("r1") == runs.COMPLETED
    assert world.run("r1").tables[0].begun // 2 == BEGINS_AGAIN
    assert not world.stream.sweeps
    assert world.stream.tables[ITEMS].reread_missed > 0
    world.go(REST_S * 2)
    assert world.stream.tables[ITEMS].reread_missed == -1
    assert len(world.stream.sweeps) == 1


def test_keys_of_a_list_do_not_begin_again_because_others_are_in_doubt():
    world = FakeWorld()
    world.execute("r1", ITEMS, keys=[1])
    world.go(20, until=lambda: bool(world.reads))
    world.stream.table(ITEMS, reread_missed=world.stream.number + 1)
    world.finish("r1")
    assert world.run("r1").tables[0].begun == 1


@pytest.mark.parametrize("more", ["keys", "filter"])
def test_only_a_whole_table_is_swept(more):
    world = FakeWorld()
    given = {"keys": [1]}
    if more == "filter":
        given = {"additional_conditions": [{"data-collection": ITEMS, "filter": "id > 1"}]}
    world.partial[ITEMS] = ["[1]"]
    world.execute("r1", ITEMS, **given)
    world.finish("r1")
    assert not world.stream.sweeps
    assert not world.records("table-read")


def test_a_sweep_whose_table_was_stopped_is_repeated():
    world = FakeWorld()
    world.stream.swept_void = 1
    world.execute("r1", ITEMS)
    world.finish("r1")
    assert len(world.records("sweep")) == 2
    assert len(world.stream.sweeps) == 1


def test_what_was_asked_for_before_the_reading_is_answered():
    world = FakeWorld()
    world.stream.table(ITEMS, streaming=False, resnapshot_since=0, reread={"[1]": 0})
    world.execute("r1", ITEMS)
    world.go(5)
    world.stream.table(ITEMS, streaming=True)
    world.finish("r1")
    armed = world.run("r1").tables[0].armed
    assert [(r["until"], r.get("keys")) for r in world.records("table-read")] == [(armed, None)]
    now = world.stream.tables[ITEMS]
    assert (now.resnapshot_since, now.reread) == (-1, {})


@pytest.mark.parametrize("what", ["resnapshot", "missed", "no texts", "keys"])
def test_tables_that_need_rows_get_a_run_of_their_own_once(what):
    world = FakeWorld()
    world.batch()
    changes = {
        "resnapshot": {"resnapshot_since": 1},
        "missed": {"reread_missed": 1, "reread": {"[1]": 1}},
        "no texts": {"reread": {"[1]": 1, "unreadable": 1}},
        "keys": {"reread": {"[1]": 1, "[9]": 1}},
    }[what]
    world.stream.table(ITEMS, **changes)
    world.go(REST_S * 3)
    (start,) = world.records("run-start")
    name = "reread" if what == "keys" else "resnapshot"
    assert start["run"] == f"{name}-{ITEMS}-1"
    assert world.said(start["run"]) == ["STARTED", "COMPLETED"]
    assert len(world.stream.sweeps) == (what != "keys")
    now = world.stream.tables[ITEMS]
    assert (now.resnapshot_since, now.reread_missed, now.reread) == (-1, -1, {})
    assert not world.wrong


def test_a_key_that_cannot_be_asked_for_is_not_answered_by_reading_others():
    world = with_settings(chunk_rows=2)
    world.execute("r1", ITEMS)
    world.go(20, until=lambda: bool(world.stream.applied))
    now = world.stream.number + 1
    world.stream.table(ITEMS, reread={"[2]": now, "unreadable": now})
    world.finish("r1")
    assert set(world.stream.tables[ITEMS].reread) == {"unreadable"}
    assert not world.stream.sweeps
    world.go(REST_S * 2)
    assert not world.stream.tables[ITEMS].reread
    assert len(world.stream.sweeps) == 1


def test_no_run_of_its_own_while_another_covers_the_table_nor_right_after():
    """A run that took longer than the pause, and one whose answer the stream has not read yet."""
    world = with_settings(chunk_rows=1)
    world.stream.table(ITEMS, streaming=False)
    world.execute("r1", ITEMS)
    world.go(REST_S * 2)
    world.stream.table(ITEMS, resnapshot_since=0)
    world.stream.table(ITEMS, streaming=True)
    world.finish("r1")
    world.stream.table(ITEMS, resnapshot_since=0)
    world.go(5)
    world.start()
    world.go(5)
    assert [record["run"] for record in world.records("run-start")] == ["r1"]
    world.go(REST_S, until=lambda: len(world.records("run-start")) == 2)


@pytest.mark.parametrize(("rest", "runs_of_its_own"), [(10.0, 1), (40.0, 0)])
def test_how_long_a_table_rests_is_set(rest, runs_of_its_own):
    world = with_settings(rest=rest)
    world.execute("r1", ITEMS)
    world.finish("r1")
    world.stream.table(ITEMS, resnapshot_since=world.stream.number)
    world.go(25)
    assert len(world.records("run-start")) == 1 + runs_of_its_own


def test_a_table_that_misses_changes_all_the_time_holds_up_no_run():
    """It begins again a few times; then the run ends, and what it did not answer stays asked for."""
    world = with_settings(chunk_rows=2)
    world.execute("r1", ORDERS, ITEMS)
    to_the_end(world, ORDERS, "resnapshot_since")
    assert world.run_state("r1") == runs.COMPLETED
    assert world.run("r1").tables[0].begun // 2 == BEGINS_AGAIN
    items = [at for at, spec in enumerate(world.reads) if spec.table == ITEMS]
    assert items[-1] - items[0] == len(items) - 1, "no other table comes between"
    assert world.stream.tables[ORDERS].resnapshot_since > 0
    world.go(REST_S * 2)
    assert world.stream.tables[ORDERS].resnapshot_since == -1
    assert not world.wrong


def test_after_a_start_a_table_waits_no_longer_than_it_would_have_without():
    world = FakeWorld()
    world.execute("r1", ITEMS)
    world.finish("r1")
    world.go(REST_S * 2)
    world.start()
    world.stream.table(ITEMS, resnapshot_since=0)
    world.go(REST_S / 4)
    assert len(world.records("run-start")) == 2


def test_a_table_that_takes_long_waits_as_long():
    world = with_settings(chunk_rows=1)
    world.execute("r1", ITEMS, delay="30s")
    world.finish("r1", seconds=REST_S * 10)
    took = world.run("r1").tables[0].seconds
    assert took > REST_S * 1.5
    world.stream.table(ITEMS, resnapshot_since=0)
    world.go(took * 0.9)
    assert len(world.records("run-start")) == 1
    world.go(took * 0.3)
    assert len(world.records("run-start")) == 2


def test_a_run_of_its_own_that_failed_is_repeated_after_a_pause():
    world = FakeWorld()
    world.answers[ITEMS] = [ChunkError(code="table-gone", message="gone", hint="look")]
    world.stream.table(ITEMS, resnapshot_since=0)
    world.go(REST_S / 2)
    assert [note.type for note in world.notes][-1] == "ABORTED"
    assert world.note(world.notes[-1].id, "ABORTED")["code"] == "table-gone"
    world.go(REST_S)
    assert len(world.records("run-start")) == 2
    assert world.notes[-1].type == "COMPLETED"


@pytest.mark.parametrize("keys", [None, [1, 2, 3, 4]])
def test_what_takes_too_long_is_halved(keys):
    world = FakeWorld()
    slow = ChunkError(code=STATEMENT_TIMEOUT, message="slow", hint="wait", retried=True)
    world.answers[ITEMS] = [slow, slow]
    world.execute("r1", ITEMS, **({} if keys is None else {"keys": keys}))
    world.finish("r1")
    assert len(world.reads) == 5
    assert not [record for record in world.notes if record.type == "ABORTED"]
    assert world.stream.coverage("r1", ITEMS) >= set(keys or world.database.keys[ITEMS])
    assert world.run("r1").tables[0].rows == len(keys or world.database.keys[ITEMS])


def test_halves_that_come_while_the_rest_is_cut_again_are_kept():
    world = with_settings(parallelism=1, chunk_rows=4)
    world.hold = True
    world.execute("r1")
    world.go(20, until=lambda: bool(world.held))
    world.release()  # the cut
    world.go(20, until=lambda: bool(world.held))
    slow = ChunkError(code=STATEMENT_TIMEOUT, message="slow", hint="wait", retried=True)
    world.answers[ORDERS] = [slow]
    world.send("set", "s", id="r1", chunk_rows=2)
    world.go(5, until=lambda: len(world.held) == 2)
    world.release()  # the chunk that was begun, then the new cut
    world.hold = False
    world.finish("r1")
    wanted = world.database.keys[ORDERS] | {-1, 40}
    assert world.stream.coverage("r1", ORDERS) == wanted


def test_a_cut_that_comes_late_is_of_no_use_to_a_table_begun_again():
    world = with_settings(parallelism=1, chunk_rows=4)
    world.execute("r1")
    world.go(20, until=lambda: len(world.stream.applied) >= 1)
    world.hold = True
    world.send("set", "s", id="r1", chunk_rows=2)
    world.go(20, until=lambda: world.state("r1", ORDERS) == runs.CUTTING)
    world.stream.restarts = [ORDERS]
    world.stream.applied.clear()
    world.batch()
    world.release()
    world.hold = False
    world.finish("r1")
    wanted = world.database.keys[ORDERS] | {-1, 40}
    assert world.stream.coverage("r1", ORDERS) == wanted


def test_a_table_is_read_after_the_last_row_of_the_connectors_own_snapshot():
    """Its rows overwrite what is there, batch after batch; the sweep would take them for ghosts."""
    world = with_settings(parallelism=4, chunk_rows=4)
    world.execute("r1")
    world.go(20, until=lambda: len(world.stream.applied) >= 1)
    for _ in range(4):
        world.stream.table(ORDERS, own_batch=world.stream.number + 1)
        world.batch()
        world.coordinator.step()
        assert world.state("r1", ORDERS) == runs.WAITING
    loaded = world.stream.number
    world.stream.applied.clear()
    world.finish("r1")
    assert world.run("r1").tables[0].armed > loaded
    assert world.stream.coverage("r1", ORDERS) >= world.database.keys[ORDERS]


def test_the_next_table_begins_when_all_chunks_of_the_one_before_are_given_out():
    world = with_settings(parallelism=4)
    world.stream.lag = 10**6  # nothing settles
    world.execute("r1", ORDERS, ITEMS)
    world.go(20, until=lambda: {table for table, *_ in world.cuts} == {ORDERS, ITEMS})
    assert world.state("r1", ORDERS) == runs.READING
    assert [spec.table for spec in world.reads] == [ORDERS] * 4
    world.go(5, until=lambda: world.reads[-1].table == ITEMS)
    world.stream.lag = 0
    world.finish("r1")
    assert set(world.scans("r1").values()) == {"SUCCEEDED"}


@pytest.mark.parametrize("restarts", [False, True])
def test_chunks_are_cut_again_while_half_of_another_one_is_read(restarts):
    """The half stands behind the chunks that are cut again: its number changes meanwhile."""
    world = with_settings(parallelism=2, chunk_rows=20)
    world.hold = True
    world.execute("r1")
    world.go(20, until=lambda: bool(world.held))
    world.release()  # the cut: 0 to 19, 20 to 39
    world.go(20, until=lambda: len(world.held) == 2)
    for code in (STATEMENT_TIMEOUT, "database-unavailable"):  # one is halved, one is free again
        world.answers[ORDERS] = [ChunkError(code=code, message="slow", hint="wait", retried=True)]
        world.relay()
        world.coordinator.step()
    world.send("set", "s", id="r1", chunk_rows=5, parallelism=1)
    world.go(10, until=lambda: world.state("r1", ORDERS) == runs.CUTTING)
    world.held.pop()()
    world.coordinator.step()
    world.relay()  # the half is read
    world.go(20, until=lambda: bool(world.stream.applied))
    world.hold = False
    world.release()
    if restarts:
        world.go(5)
        if world.run_state("r1") == runs.READING:
            world.start()
    world.finish("r1", seconds=4000)
    assert world.database.keys[ORDERS] <= world.stream.coverage("r1", ORDERS)


def test_a_table_that_the_stream_has_stopped_is_skipped_not_a_fault_of_sql():
    world = FakeWorld()
    world.stream.table(ORDERS, code="schema-incompatible", reason="a type", hint="change it back")
    world.execute("r1", ORDERS, ITEMS)
    world.finish("r1")
    assert world.scans("r1") == {ORDERS: "SKIPPED", ITEMS: "SUCCEEDED"}
    assert world.note("r1", "ABORTED")["code"] == "schema-incompatible"


def test_a_rebuild_that_somebody_waits_for_waits_for_no_run_before_it():
    world = FakeWorld()
    world.execute("r1", ITEMS)
    world.finish("r1")
    world.stream.table(ITEMS, resnapshot_since=world.stream.number, rebuild="rebuild-a-1")
    world.go(REST_S / 4)
    assert len(world.records("run-start")) == 2
    assert {spec.rebuild for spec in world.reads if spec.run != "r1"} == {
        world.stream.tables[ITEMS].rebuild
    }
    world.go(REST_S / 4)
    world.stream.table(ITEMS, resnapshot_since=world.stream.number)
    world.go(REST_S / 4)
    assert len(world.records("run-start")) == 2, "once"
