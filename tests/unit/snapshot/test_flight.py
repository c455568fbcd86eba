"""What is in flight, as the coordinator goes on."""

import pytest

from lakemark.settings.layers import LoginRefused, Mistake
from lakemark.snapshot.chunks import ChunkError
from lakemark.snapshot.flight import Flight, flight
from tests.kit.fake_world import ITEMS, ORDERS, FakeWorld, away

REFUSED = LoginRefused(
    Mistake("database", "the database refuses us", "check it"), code="database-refused"
)
pytestmark = pytest.mark.usefixtures("logs")


def looked(world: FakeWorld, seconds: float = 60) -> list[Flight]:
    """What is seen after each step, until the run has ended."""
    found: list[Flight] = []
    for _ in range(int(seconds * 2)):
        world.step()
        found.append(flight(world.coordinator))
        if world.ended("r1"):
            return found
    raise AssertionError("the run did not end")


def test_nothing_is_in_flight_without_a_run():
    world = FakeWorld()
    world.step()
    assert flight(world.coordinator) == Flight()


def test_every_chunk_goes_through_its_states_and_every_table_through_its_stages():
    world = FakeWorld()
    world.hold = True
    world.execute("r1", ORDERS, ITEMS)
    found = []
    for _ in range(200):
        world.step()
        found.append(flight(world.coordinator))
        if world.held:
            world.release(1)
            world.coordinator.step()
            found.append(flight(world.coordinator))
        if world.ended("r1"):
            break
    states: dict[int, list[str]] = {}
    for one in found:
        for chunk in one.chunks:
            assert (chunk.run, chunk.table in {ORDERS, ITEMS}) == ("r1", True)
            seen = states.setdefault(chunk.attempt, [])
            if seen[-1:] != [chunk.state]:
                seen.append(chunk.state)
            assert (chunk.rows is None) == (chunk.state == "reading")
            assert bool(chunk.lo) == (chunk.state != "reading")
            assert bool(chunk.hi) == (chunk.state == "settling")
    assert len(states) >= 5
    order = ["reading", "read", "settling"]
    for seen in states.values():
        assert seen == [state for state in order if state in seen]
        assert seen[0] == "reading"
        assert seen[-1] == "settling"
    stages = {one.stages.get(("r1", ORDERS)) for one in found}
    assert {"arming", "cutting", "reading", "checking"} <= stages
    assert "waiting" in {one.stages.get(("r1", ITEMS)) for one in found}
    assert any(one.windows > 1 and one.window and one.opened_ms for one in found)
    world.go(20)
    assert flight(world.coordinator) == Flight(), "all of it has come to its end"


def test_who_keeps_chunks_waiting_is_named_as_long_as_it_does():
    world = FakeWorld()
    xid = world.database.begin()
    world.execute("r1", ORDERS)
    world.go(10, until=lambda: bool(world.coordinator and world.coordinator.state.blocked))
    assert str(xid) in flight(world.coordinator).waits_for
    world.database.end(xid)
    assert looked(world)[-1].waits_for == ""


def test_what_delays_snapshots_is_said_until_a_chunk_is_read_again():
    world = FakeWorld()
    world.execute("r1", ORDERS)
    why = REFUSED
    refused = ChunkError(code=why.code, message=why.message, hint=why.hint, retried=why.retried)
    world.answers[ORDERS] = [refused] * 4
    found = looked(world, 200)
    said = {(one.code, one.reason, one.hint) for one in found}
    assert (why.code, why.message, why.hint) in said
    assert found[-1].code == ""
    assert world.scans("r1") == {ORDERS: "SUCCEEDED"}


@pytest.mark.parametrize("where", ["tick", "cut", "signals", "save"])
def test_whatever_is_away_is_said_and_passes(where: str):
    world = FakeWorld()
    world.start()
    world.execute("r1", ORDERS)
    world.away = {where}
    world.go(60, until=lambda: bool(flight(world.coordinator).code))
    assert flight(world.coordinator).code == away().code
    world.away = set()
    world.finish("r1")
    world.go(60, until=lambda: not flight(world.coordinator).code)
    assert flight(world.coordinator) == Flight()


def test_a_refused_tick_delays_a_run_and_does_not_fail_it():
    world = FakeWorld()
    world.execute("r1", ORDERS)
    world.go(3)
    world.tick_error = REFUSED
    world.go(6)
    assert flight(world.coordinator).code == "database-refused"
    assert not world.ended("r1")
    world.tick_error = None
    world.finish("r1")
    assert world.said("r1")[-1] == "COMPLETED"


def test_what_was_away_while_nothing_is_read_is_forgotten_with_time():
    world = FakeWorld()
    world.start()
    world.away = {"signals"}
    world.go(20, until=lambda: bool(flight(world.coordinator).code))
    world.away = set()
    world.go(120, until=lambda: not flight(world.coordinator).code)
