"""Tables that are compared again and again without a signal, one after the other, and last."""

from dataclasses import replace

import pytest

from lakemark.errors import TableError
from lakemark.snapshot import runs
from lakemark.snapshot.chunks import TABLE_LOCKED, ChunkError
from lakemark.snapshot.signals import Rejection
from lakemark.snapshot.verification import Verification
from lakemark.state.table_parts import BY_SNAPSHOT
from tests.kit.fake_world import ITEMS, ORDERS, SETTINGS, CrashError, FakeWorld, Fault

EVERY_S = 600
PACE = 1_000_000


def made(**more) -> FakeWorld:
    plan = Verification(EVERY_S * 1000, PACE, **more)
    world = FakeWorld(replace(SETTINGS, verification=plan))
    world.stream.lake = {table: world.database.rows(table) for table in world.database.keys}
    for table in world.database.keys:
        world.stream.table(table, complete=BY_SNAPSHOT)
    return world


@pytest.fixture
def world() -> FakeWorld:
    return made()


def proof(world: FakeWorld, table: str = ORDERS):
    return world.stream.tables[table].proof


def own(world: FakeWorld) -> list[runs.Run]:
    every = world.coordinator.state.runs.values() if world.coordinator else []
    return sorted((run for run in every if run.automatic), key=lambda run: run.number)


def turns(world: FakeWorld) -> list[str]:
    return [run.tables[0].table for run in own(world)]


def test_each_table_is_proved_once_in_a_period(world):
    world.stream.newest = b"\x00\x07"
    world.go(30.0)
    assert turns(world) == [ITEMS, ORDERS]
    assert {run.state for run in own(world)} == {runs.COMPLETED}
    assert proof(world).rows == 40
    assert proof(world).position == "0007"
    assert proof(world).proved_ms == proof(world).turn_ms > 0
    assert not world.wrong
    world.go(EVERY_S - 40.0)
    assert len(turns(world)) == 2, "nothing is due"
    world.go(60.0)
    assert turns(world) == [ITEMS, ORDERS] * 2


def test_never_two_runs_of_its_own_at_once(world):
    for _ in range(2000):
        world.step()
        assert sum(not run.over for run in own(world)) <= 1
    assert len(own(world)) >= 2


def test_a_turn_is_known_before_a_batch_has_brought_it_to_the_state(world):
    coordinator = world.start()
    for _ in range(20):
        coordinator.step()
        world.clock += 1.0
    assert turns(world) == [ITEMS, ORDERS]
    assert proof(world).ended_ms == 0, "no batch came"


def test_what_differs_is_found_and_is_no_proof(world):
    del world.stream.lake[ORDERS][3]
    world.go(60.0)
    assert proof(world).found == {"missing": 1}
    assert (proof(world).proved_ms, proof(world).mended, proof(world).unlike) == (0, False, 1)
    assert 3 not in world.stream.lake[ORDERS]
    assert proof(world, ITEMS).proved_ms
    world.go(EVERY_S / 2)
    assert len(turns(world)) == 2, "a difference is no reason to look again at once"


def test_what_differs_is_mended_where_that_is_asked_for():
    world = made(repair=True)
    del world.stream.lake[ORDERS][3]
    world.go(60.0)
    assert (proof(world).found, proof(world).mended, proof(world).unlike) == (
        {"missing": 1}, True, 0,
    )  # fmt: skip
    assert proof(world).proved_ms
    assert 3 in world.stream.lake[ORDERS]


def test_tables_that_are_not_chosen_or_not_ready_have_no_turn():
    world = made(chooses=lambda table: table == ORDERS)
    world.go(30.0)
    assert turns(world) == [ORDERS]
    unready = (
        {"streaming": False}, {"complete": ""}, {"written": False}, {"rebuild": "r"},
        {"resnapshot_since": 1, "streaming": False}, {"reread_missed": 1, "streaming": False},
    )  # fmt: skip
    for changes in unready:
        world = made()
        world.stream.table(ORDERS, **changes)
        world.go(30.0)
        assert turns(world) == [ITEMS], changes


def test_a_table_in_doubt_is_read_before_it_is_verified(world):
    world.stream.table(ORDERS, resnapshot_since=0)
    world.go(60.0)
    names = [run.id for run in world.coordinator.state.runs.values()]
    assert [name.split("-")[0] for name in names if "verify" not in name] == ["resnapshot"]
    assert set(turns(world)) == {ITEMS, ORDERS}
    assert proof(world).proved_ms


def test_a_table_that_fails_waits_longer_and_longer_and_the_others_go_on(world):
    refusal = TableError("it has no key", code="no-key", hint="give it one")
    world.against[ORDERS] = refusal
    world.go(30.0)
    assert (proof(world).code, proof(world).reason, proof(world).hint) == (
        "no-key", "it has no key", "give it one",
    )  # fmt: skip
    assert proof(world, ITEMS).proved_ms
    said = world.records("table-verified")
    world.go(EVERY_S / 2)
    assert world.records("table-verified") == said, "it is not asked again and again"
    world.go(EVERY_S)
    assert proof(world).failures == 2
    world.against.clear()
    world.go(EVERY_S + 60.0)
    assert (proof(world).code, proof(world).failures) == ("", 0)
    assert proof(world).proved_ms


def test_a_table_that_is_locked_is_given_up_and_has_another_turn(world):
    locked = ChunkError(code=TABLE_LOCKED, message="a lock", hint="wait for it", retried=True)
    world.answers[ORDERS] = [locked] * 500
    world.go(60.0, until=lambda: proof(world).code != "")
    assert proof(world, ITEMS).proved_ms
    assert (proof(world).code, proof(world).failures) == (TABLE_LOCKED, 1)
    assert proof(world).retried
    world.answers.clear()
    world.go(120.0)
    assert proof(world).proved_ms
    assert not world.wrong


def test_without_a_signal_table_each_table_says_so_once_in_a_while(world):
    world.refused = Rejection("", "no-signal-table", "there is none", "make one")
    world.go(60.0)
    assert {proof(world, table).code for table in (ORDERS, ITEMS)} == {"no-signal-table"}
    assert len(world.records("table-verified")) == 2
    assert own(world) == []


def begun(world: FakeWorld, table: str) -> runs.Run:
    """The run of a table, while its scan has not come back."""
    world.stream.table(ITEMS if table == ORDERS else ORDERS, streaming=False)
    world.hold = True
    world.go(30.0, until=lambda: bool(own(world)))
    (run,) = own(world)
    assert run.tables[0].table == table
    return run


@pytest.mark.parametrize("kind", ["execute", "verify"])
def test_a_run_that_somebody_asks_for_goes_first(world, kind):
    run = begun(world, ORDERS)
    world.send(kind, "mine", data_collections=[ORDERS])
    world.go(10.0, until=lambda: run.over)
    assert run.state == runs.STOPPED
    assert world.records("table-verified") == [], "it was no turn"
    world.hold = False
    world.release()
    world.finish("mine")
    world.go(60.0)
    newest = own(world)[-1]
    assert (newest.state, proof(world).proved_by) == (
        (runs.COMPLETED, newest.id) if kind == "execute" else (runs.STOPPED, "mine")
    )
    assert len(own(world)) == (2 if kind == "execute" else 1), "the other one has proved the table"


def test_it_waits_while_another_table_is_read(world):
    world.hold = True
    world.execute("mine", ITEMS)
    world.go(20.0)
    assert own(world) == []
    world.hold = False
    world.release()
    world.finish("mine")
    world.go(60.0)
    assert proof(world).proved_ms


def test_a_run_that_is_paused_or_waits_for_a_table_holds_nobody_up(world):
    world.stream.table(ITEMS, streaming=False)
    world.execute("mine", ITEMS)
    world.go(60.0)
    assert world.run_state("mine") == runs.READING
    assert proof(world).proved_ms


def test_a_table_that_stops_meanwhile_loses_its_run_and_no_turn(world):
    run = begun(world, ORDERS)
    world.stream.table(ORDERS, streaming=False)
    world.go(10.0, until=lambda: run.over)
    assert (run.state, world.records("table-verified")) == (runs.STOPPED, [])
    world.hold = False
    world.release()
    world.stream.table(ORDERS, streaming=True)
    world.go(60.0)
    assert proof(world).proved_ms


def test_what_a_person_has_stopped_has_had_its_turn(world):
    run = begun(world, ORDERS)
    world.send("stop", "enough")
    world.go(10.0, until=lambda: run.over)
    world.hold = False
    world.release()
    world.go(EVERY_S / 2)
    assert own(world) == [run]
    assert (proof(world).proved_ms, proof(world).code) == (0, "")
    assert proof(world).ended_ms


def test_runs_by_hand_prove_too(world):
    world = FakeWorld()
    world.stream.lake = {table: world.database.rows(table) for table in world.database.keys}
    world.stream.table(ORDERS)
    world.send("verify", "v", data_collections=[ORDERS, ITEMS])
    world.finish("v")
    assert proof(world).proved_by == "v"
    at = proof(world).proved_ms
    filters = [{"data-collection": ORDERS, "filter": "id < 5"}]
    world.send("verify", "part", data_collections=[ORDERS], additional_conditions=filters)
    world.send("verify", "keys", data_collections=[ORDERS], keys=[1])
    world.finish("part", "keys")
    assert proof(world).proved_ms == at, "a part proves nothing"


# -- the pace -------------------------------------------------------------------------------------


def read_rows(world: FakeWorld) -> int:
    return 10 * sum(spec.digest is not None for spec in world.reads if spec.table == ORDERS)


def test_a_scan_reads_no_more_rows_than_it_may(world):
    plan = Verification(EVERY_S * 1000, 2, chooses=lambda table: table == ORDERS)
    world.settings = replace(world.settings, verification=plan)
    world.go(30.0, until=lambda: read_rows(world) == 10)
    begun_at = world.clock
    world.go(60.0, until=lambda: read_rows(world) == 40)
    assert 14.0 <= world.clock - begun_at <= 20.0, "ten rows in five seconds"
    world.go(60.0, until=lambda: bool(proof(world).proved_ms))


def test_limits_are_changed_while_it_runs_and_for_what_comes(world):
    plan = Verification(EVERY_S * 1000, 1, chooses=lambda table: table == ORDERS)
    world.settings = replace(world.settings, verification=plan)
    world.go(30.0, until=lambda: read_rows(world) == 10)
    world.send("set", "faster", id="verify", rows_per_second=1000, parallelism=1)
    world.go(10.0, until=lambda: bool(proof(world).proved_ms))
    assert world.said("faster") == ["CHANGED"]
    first = proof(world).proved_by
    world.start()
    world.go(EVERY_S + 60.0, until=lambda: proof(world).proved_by != first)
    assert [run.rows_per_second for run in own(world)] == [1000, 1000], "after a restart, too"
    world.settings = replace(world.settings, verification=replace(plan, rows_per_second=7))
    world.start()
    second = proof(world).proved_by
    world.go(2 * EVERY_S, until=lambda: proof(world).proved_by != second)
    assert own(world)[-1].rows_per_second == 7, "what is configured since counts"


def test_a_run_by_hand_may_be_held_to_a_pace_too(world):
    world = FakeWorld()
    world.stream.lake = {table: world.database.rows(table) for table in world.database.keys}
    world.send("verify", "v", data_collections=[ORDERS], rows_per_second=2)
    world.go(10.0, until=lambda: read_rows(world) == 10)
    world.go(4.0)
    assert read_rows(world) == 10
    world.send("set", "faster", id="v", rows_per_second=1000)
    world.finish("v", seconds=10.0)


def test_without_verification_nobody_is_asked_to_change_it():
    world = FakeWorld()
    world.send("set", "faster", id="verify", rows_per_second=1000)
    world.go(2.0)
    assert world.said("faster") == ["REJECTED"]


# -- crashes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(1, 40, 2))
def test_a_crash_anywhere_costs_no_proof_and_begins_no_second_run(at):
    world = made(repair=True)
    del world.stream.lake[ORDERS][3]
    world.fault = Fault(world.passed + at, CrashError())
    try:
        world.go(60.0)
    except CrashError:
        world.fault = None
        world.start()
        world.go(120.0)
    assert proof(world).proved_ms
    assert proof(world, ITEMS).proved_ms
    assert 3 in world.stream.lake[ORDERS]
    assert not world.wrong
    assert all(run.over for run in own(world))


def test_what_was_proved_is_not_proved_again_after_a_restart(world):
    world.go(30.0)
    before = proof(world)
    world.start()
    world.go(EVERY_S / 2)
    assert proof(world) == before


def test_a_database_that_is_away_is_asked_again(world):
    world.away.add("reasons_against")
    world.go(30.0)
    assert own(world) == []
    world.away.clear()
    world.go(60.0)
    assert proof(world).proved_ms


def test_the_record_of_a_run_is_said_once(world):
    world.go(60.0)
    said = world.records("table-verified")
    assert len(said) == 2
    assert {one["table"] for one in said} == {ORDERS, ITEMS}
