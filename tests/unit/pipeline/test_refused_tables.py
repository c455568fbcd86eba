"""A table of which a snapshot is refused (masked columns, filtered rows), and rows in doubt."""

import pytest

from lakemark.errors import TableError
from lakemark.snapshot import runs
from lakemark.snapshot.chunks import ChunkError
from lakemark.snapshot.signals import Rejection
from tests.kit.fake_world import ITEMS, ORDERS, FakeWorld
from tests.unit.snapshot.test_coordinator_tables import REST_S

pytestmark = pytest.mark.usefixtures("logs")

MASKED = Rejection("", "column-masked", "the connector masks email", "unmask it")


@pytest.mark.parametrize("changes", [{"resnapshot_since": 1}, {"reread": {"[3]": 1}}])
def test_a_run_that_nobody_asked_for_does_not_read_it_either(changes):
    world = FakeWorld()
    world.against[ORDERS] = MASKED
    world.execute("r1", ORDERS)
    world.go(3.0)
    assert world.said("r1") == ["REJECTED"]
    world.stream.table(ORDERS, **changes)
    world.go(90.0)
    assert world.reads == []
    del world.against[ORDERS]
    world.go(90.0)
    assert world.reads, "the mark has stayed"


def test_a_run_under_way_when_the_connector_begins_to_mask_goes_on_without_the_table():
    world = FakeWorld()
    world.execute("r1", ITEMS, ORDERS)
    world.go(until=lambda: bool(world.reads))
    world.against[ORDERS] = MASKED
    world.start()  # as after a change of the connector
    world.go(60.0, until=lambda: world.ended("r1"))
    assert {spec.table for spec in world.reads} == {ITEMS}


GONE = TableError("there is no table public.orders", code="table-gone", hint="leave it out")


def test_a_table_that_is_gone_when_its_turn_comes_fails_and_holds_up_nothing():
    world = FakeWorld()
    world.execute("r1", ORDERS, ITEMS)
    world.go(until=lambda: world.run_state("r1") == runs.ARMING)
    world.against[ORDERS] = GONE
    world.go(60.0, until=lambda: world.ended("r1"))
    assert world.run("r1").code == "table-gone"
    assert {spec.table for spec in world.reads} == {ITEMS}


def test_a_table_that_is_gone_and_should_be_read_again_holds_up_no_run(logs):
    world = FakeWorld()
    world.against[ORDERS] = GONE
    world.stream.table(ORDERS, resnapshot_since=0)
    world.execute("r1", ITEMS)
    world.go(20.0, until=lambda: world.ended("r1"))
    assert not [entry for entry in logs if entry["event"] == "snapshot.delayed"]
    refused = [entry for entry in logs if entry["event"] == "snapshot.refused"]
    assert [entry["code"] for entry in refused] == ["table-gone"]


def test_why_a_table_is_not_read_again_is_said_once_for_each_cause(logs):
    def said():
        return [entry["code"] for entry in logs if entry["event"] == "snapshot.refused"]

    world = FakeWorld()
    world.stream.table(ORDERS, resnapshot_since=0)
    world.against[ORDERS] = MASKED
    world.go(REST_S * 5)
    assert said() == ["column-masked"]
    world.against[ORDERS] = GONE
    world.go(REST_S * 5)
    assert said() == ["column-masked", "table-gone"]
    del world.against[ORDERS]
    world.go(REST_S * 5)
    assert world.reads, "it is asked all the same"
    world.against[ORDERS] = GONE
    world.stream.table(ORDERS, resnapshot_since=world.stream.number)
    world.go(REST_S * 5)
    assert said() == ["column-masked", "table-gone", "table-gone"], "it was well in between"


@pytest.mark.parametrize("how", ["done", "stopped", "sweeping", "refused"])
def test_what_has_become_of_a_table_of_a_run_stays_though_it_may_not_be_read_any_more(how):
    world = FakeWorld()
    world.database.keys[ORDERS] = set(range(400))
    if how == "refused":
        world.against[ITEMS] = MASKED
    first, last = (ORDERS, ITEMS) if how == "stopped" else (ITEMS, ORDERS)
    world.execute("r1", first, last)
    world.go(until=lambda: world.run_state("r1") == runs.READING)
    if how == "stopped":
        world.send("stop", "s", data_collections=[ITEMS])
        world.go(2.0)
    elif how != "refused":
        world.go(until=lambda: world.state("r1", ITEMS) == how)
    world.against[ITEMS] = MASKED
    world.start()
    world.go(until=lambda: world.ended("r1"))
    wanted = {"stopped": runs.STOPPED, "refused": runs.FAILED}.get(how, runs.DONE)
    assert (world.state("r1", ITEMS), world.state("r1", ORDERS)) == (wanted, runs.DONE)
    assert world.run_state("r1") == (runs.FAILED if how == "refused" else runs.COMPLETED)
    scans = [n.additional_data.get("scanned_collection") for n in world.notes if n.id == "r1"]
    assert scans.count(ITEMS) == (0 if how == "stopped" else 1)


BY_NO_KEY = ChunkError(code="key-unreadable", message="a key is none", hint="read the whole table")


def test_keys_that_rows_cannot_be_looked_up_by_make_it_the_whole_table():
    """Only the database may know: of an enum whose label was renamed, say."""
    world = FakeWorld()
    world.answers[ITEMS] = [BY_NO_KEY]
    world.stream.table(ITEMS, reread={"[1]": 0})
    world.go(REST_S * 3)
    assert [one["run"].partition("-")[0] for one in world.records("run-start")] == [
        "reread",
        "resnapshot",
    ]
    assert world.notes[-1].type == "COMPLETED"
    assert (world.stream.tables[ITEMS].reread, len(world.stream.sweeps)) == ({}, 1)
    world.stream.table(ITEMS, reread={"[1]": world.stream.number})
    world.go(REST_S * 3)
    assert world.records("run-start")[-1]["run"].startswith("reread"), "others may be looked up"


@pytest.mark.parametrize("what", ["asked", "partial"])
def test_a_repair_by_keys_that_are_none_fails_no_whole_table(what):
    world = FakeWorld()
    world.stream.lag = 4
    world.execute("r1", ITEMS)
    world.go(20, until=lambda: bool(world.reads))
    world.answers[ITEMS] = [BY_NO_KEY]
    now = world.stream.number + 1
    if what == "asked":
        world.stream.table(ITEMS, reread={"[3]": now})
    else:
        world.partial[ITEMS], world.stubborn = ["[3]"], {"[3]"}
    world.finish("r1")
    assert world.said("r1") == ["STARTED", "COMPLETED"]
    assert len([spec for spec in world.reads if spec.keys]) == 1
    assert len(world.stream.sweeps) == (what == "partial")
    left = world.stream.now().tables.get(ITEMS)
    assert (left is not None and bool(left.reread)) is (what == "asked")
