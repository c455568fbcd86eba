"""Several runs at once: they share the windows, and each takes only those that were its own time."""

import pytest

from tests.kit.fake_world import ITEMS, ORDERS, FakeWorld, with_settings

pytestmark = pytest.mark.usefixtures("logs")


def beside_another(world, interval):
    """A run that reads, one chunk in each interval, and one that is accepted meanwhile."""
    world.execute("r1", ORDERS, chunk_rows=1, delay=f"{interval}s")
    world.go(60, until=lambda: len(world.stream.windows) > 2)
    world.execute("r2", ITEMS)
    world.go(60, until=lambda: "r2" in world.stream.armed)


def manifests(world, run):
    return [record for record in world.records("chunk") if record["run"] == run]


def test_windows_belong_to_a_run_if_they_were_opened_while_it_was_armed():
    """The shards do not know what was done to a table before the run over it was armed."""
    world = with_settings(interval=8.0)
    beside_another(world, 8)
    before = list(world.stream.windows)
    armed = world.clock
    world.go(20, until=lambda: bool(manifests(world, "r2")))
    assert world.clock - armed < 6, "the next window comes early"
    (chunk,) = manifests(world, "r2")
    assert chunk["lo"] not in before
    assert chunk["hi"] not in before
    world.go(20, until=lambda: world.ended("r2"))
    over = len(world.stream.windows)
    world.finish("r1", seconds=600)
    ours = list(world.stream.windows)[:over]
    assert {uuid for one in manifests(world, "r2") for uuid in (one["lo"], one["hi"])} <= set(ours)


def test_a_run_whose_windows_a_transaction_hides_waits_alone_and_says_for_whom(logs):
    """The other run still has a window from before that transaction."""
    world = FakeWorld()
    world.execute("r1", ORDERS, chunk_rows=1, delay="1s")
    world.go(60, until=lambda: len(world.stream.windows) > 2)
    xid = world.database.begin()
    world.execute("r2", ITEMS)
    world.go(20, until=lambda: "r2" in world.stream.armed)
    read = len(world.reads)
    world.go(20)
    assert len(world.reads) > read + 5
    assert {spec.run for spec in world.reads} == {"r1"}
    assert world.records("void") == []
    waits = [entry["blocker"] for entry in logs if entry["event"] == "snapshot.waits"]
    assert len(waits) == 1
    assert f"transaction {xid} " in waits[0]
    assert world.coordinator.reading.blocker == waits[0]
    world.database.end(xid)
    world.finish("r1", "r2")
    assert world.coordinator.reading.blocker == ""
