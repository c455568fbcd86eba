"""Tables that have never been complete get a run by themselves, and no others do."""

import pytest

from lakemark.connectors.postgres import positions as lsns
from lakemark.errors import DependencyError
from lakemark.snapshot import completing, runs
from lakemark.snapshot.ports import Committed
from lakemark.snapshot.signals import Rejection
from lakemark.state.table_parts import BY_CONNECTOR
from tests.kit.fake_world import ITEMS, ORDERS, FakeWorld, with_settings

pytestmark = pytest.mark.usefixtures("logs")

STREAMED = lsns.pack(0, 5, 6)


def world_of(**settings) -> FakeWorld:
    return with_settings(completes=True, **settings)


def own_runs(world: FakeWorld) -> list[runs.Run]:
    """Runs that nobody asked for, the oldest first."""
    assert world.coordinator is not None
    everything = world.coordinator.state.runs.values()
    return sorted(
        (run for run in everything if run.id.startswith(completing.NAME)),
        key=lambda run: run.number,
    )


def ended(world: FakeWorld, number: int, seconds: float = 120.0) -> runs.Run:
    world.go(seconds, until=lambda: len(own_runs(world)) > number and own_runs(world)[number].over)
    return own_runs(world)[number]


def test_all_tables_are_read_at_the_first_start_once():
    world = world_of()
    world.start()
    assert ended(world, 0).names() == (ITEMS, ORDERS)
    world.go(10 * completing.EVERY_S)
    assert [run.state for run in own_runs(world)] == [runs.COMPLETED]
    assert len(world.stream.sweeps) == 2
    assert not world.wrong


def test_a_table_that_was_created_is_read():
    world = world_of()
    world.start()
    ended(world, 0)
    world.database.keys["public.new"] = set(range(7))
    world.database.fingerprints["public.new"] = "f1"
    assert ended(world, 1).names() == ("public.new",)
    assert world.stream.coverage(own_runs(world)[1].id, "public.new") >= set(range(7))


def test_a_table_that_was_created_is_noticed_as_soon_as_the_catalog_is_looked_at():
    world = world_of(watch=1.0)
    world.start()
    ended(world, 0)
    world.database.keys["public.new"] = {1}
    world.database.fingerprints["public.new"] = "f1"
    world.go(5.0)
    assert [run.names() for run in own_runs(world)] == [(ITEMS, ORDERS), ("public.new",)]


def test_complete_ones_stopped_ones_and_those_of_another_run_are_left_alone():
    world = world_of()
    world.database.keys["public.b"] = world.database.keys["public.c"] = {1}
    world.stream.table(ITEMS, complete=BY_CONNECTOR)
    world.stream.table("public.b", streaming=False)
    world.against["public.c"] = Rejection("", "no-key", "it has none", "give it one")
    world.execute("mine", ORDERS)
    world.start()
    world.finish("mine")
    world.go(200.0)
    assert own_runs(world) == []
    del world.against["public.c"]
    world.stream.table("public.b", streaming=True)
    world.go(200.0)
    assert {name for run in own_runs(world) for name in run.names()} == {"public.b", "public.c"}


@pytest.mark.parametrize("settings", [{"completes": False}, {}], ids=["manual", "no signal table"])
def test_none_begins_where_it_is_not_wanted_or_cannot_be(settings):
    world = with_settings(**{"completes": True} | settings)
    if not settings:
        world.refused = Rejection("", "no-signal-table", "there is none", "make one")
    world.start()
    world.go(200.0)
    assert own_runs(world) == []


def test_a_connector_that_reads_rows_itself_is_waited_for_and_what_it_brought_counts():
    world = world_of(own_rows=True)
    world.start()
    world.go(100.0)
    assert own_runs(world) == []
    world.connect = Committed(STREAMED, {"shop.public.items": {0: 8}})
    world.go(100.0)
    assert own_runs(world) == [], "what is in Kafka by then has not been read"
    world.stream.table(ITEMS, complete=BY_CONNECTOR)
    world.stream.offsets = {"shop.public.items": {0: 8}}
    assert ended(world, 0).names() == (ORDERS,)


def test_rows_of_a_snapshot_that_leaves_some_out_do_not_count():
    world = world_of(own_rows=True, own_whole=False)
    world.connect = Committed(STREAMED, {})
    world.stream.table(ITEMS, complete=BY_CONNECTOR)
    world.start()
    assert ended(world, 0).names() == (ITEMS, ORDERS)


def test_without_connects_word_an_event_after_the_snapshot_tells():
    world = world_of(own_rows=True)
    world.connect = DependencyError("Connect is too old", code="connect-too-old")
    world.stream.table(ITEMS, complete=BY_CONNECTOR, passed=lsns.pack(0, 0, 6))
    world.start()
    world.go(100.0)
    assert own_runs(world) == []
    world.stream.table(ITEMS, passed=STREAMED)
    assert ended(world, 0).names() == (ORDERS,)


def test_a_table_that_fails_is_tried_later_and_later():
    world = world_of()
    world.stream.table(ITEMS, complete=BY_CONNECTOR)
    world.start()
    begun = []
    for number in range(3):
        world.go(2000.0, until=lambda: len(own_runs(world)) > number)  # noqa: B023
        begun.append(world.clock)
        run = own_runs(world)[number]
        world.go(60.0, until=lambda: run.state == runs.READING)  # noqa: B023
        world.coordinator.store.fail_table(run, run.tables[0], "broken", "it broke", "mend it")
        world.go(60.0, until=lambda: run.over)  # noqa: B023
    first, second = begun[1] - begun[0], begun[2] - begun[1]
    assert second > 1.5 * first > 1.5 * completing.EVERY_S


def test_one_that_a_person_has_stopped_is_not_begun_again():
    world = world_of()
    world.stream.table(ITEMS, complete=BY_CONNECTOR)
    world.start()
    world.hold = True
    world.go(60.0, until=lambda: bool(own_runs(world)))
    world.send("stop", "stop", data_collections=[ORDERS])
    assert ended(world, 0).state == runs.STOPPED
    world.go(5000.0)
    assert len(own_runs(world)) == 1


def test_a_restart_goes_on_with_the_run():
    world = world_of()
    world.start()
    world.go(60.0, until=lambda: bool(own_runs(world)))
    world.go(3.0)
    world.start()
    ended(world, 0)
    world.go(200.0)
    assert len(own_runs(world)) == 1
