"""The fence: nothing is said to be in the tables before the connector and the stream have it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.postgres import positions as lsns
from lakemark.connectors.postgres.committed_offsets import committed_position
from lakemark.errors import DependencyError
from lakemark.model.offsets import has_passed
from lakemark.snapshot import output_frontier
from lakemark.snapshot.flight import flight
from lakemark.snapshot.ports import Committed
from tests.kit.fake_world import ITEMS, ORDERS, SETTINGS, STEP_S, FakeWorld

pytestmark = pytest.mark.usefixtures("logs")

TOPIC = f"shop.{ORDERS}"
AT = [lsns.pack(0, major, 5) for major in range(10)]


def waiting(*tables, **changes):
    """A run over tables whose chunks wait for their windows, and so for the fence."""
    world = FakeWorld(replace(SETTINGS, ordered=True))
    for name, value in changes.items():
        setattr(world, name, value)
    world.stream.table(ORDERS)
    world.stream.lag = 1000  # window rows do not come: chunks stay undecided
    world.start()
    world.execute("r1", *tables)
    world.go(30, until=lambda: bool(world.records("chunk")))
    return world


def said(world):
    return [record["position"] for record in world.records("fence")]


def test_a_run_is_armed_in_the_mode_of_its_settings():
    assert waiting().records("run-start")[0]["mode"] == "order"
    world = FakeWorld()
    world.start()
    world.execute("r1")
    world.go(5)
    assert world.records("run-start")[0]["mode"] == "table"


def test_the_stream_must_have_passed_the_ends_taken_after_the_connectors_offset():
    world = waiting(connect=Committed(AT[3], {TOPIC: {0: 10, 1: 4}}))
    world.stream.offsets = {TOPIC: {0: 10, 1: 3}}
    world.go(5)
    assert said(world) == []
    world.stream.offsets = {TOPIC: {0: 12, 1: 4}}
    world.go(2)
    assert said(world) == [AT[3].hex()]
    world.go(5)
    assert said(world) == [AT[3].hex()], "the same is not said again"
    world.connect = Committed(AT[5], {TOPIC: {0: 20}})
    world.go(5)
    assert said(world) == [AT[3].hex()]
    world.stream.offsets = {TOPIC: {0: 20, 1: 4}}
    world.go(3)
    assert said(world) == [AT[3].hex(), AT[5].hex()]


def test_without_connect_a_later_event_in_every_partition_is_needed(logs):
    world = waiting(away={"committed"})
    world.stream.table(ORDERS, passed=b"")
    world.go(20)
    assert said(world) == []
    world.stream.table(ITEMS, passed=AT[9])  # of a table that nobody reads
    world.go(5)
    assert said(world) == []
    world.stream.table(ORDERS, passed=AT[2])
    world.go(5)
    assert said(world) == [AT[2].hex()]
    world.go(output_frontier.SAY_AFTER_S + 5)
    assert "snapshot.waits_for_connector" in {entry["event"] for entry in logs}
    assert world.run_state("r1") == "reading", "what is away holds up the fence only"


def test_without_connect_every_table_of_the_runs_must_have_passed():
    world = waiting(ORDERS, ITEMS, away={"committed"})
    world.stream.tables.pop(ITEMS, None)
    world.stream.table(ORDERS, passed=AT[6])
    world.go(5)
    assert said(world) == [], "of one table the stream knows nothing"
    world.stream.table(ITEMS, passed=AT[2])
    world.go(5)
    assert said(world) == [AT[2].hex()]
    world.stream.table(ITEMS, passed=AT[9])
    world.go(5)
    assert said(world) == [AT[2].hex(), AT[6].hex()]


def test_nothing_is_asked_while_no_chunk_waits():
    world = FakeWorld(replace(SETTINGS, ordered=True))
    world.connect = Committed(AT[3], {})
    world.start()
    world.go(10)
    assert said(world) == []


@pytest.mark.parametrize(
    ("offset", "wanted"),
    [
        ({"lsn_commit": 7, "lsn": 9, "lsn_proc": 9}, lsns.pack(2, 7, 9)),
        ({"lsn_commit": -1, "lsn": -2}, lsns.pack(2, 2**64 - 1, 2**64 - 2)),
        ({"lsn": 9}, b""),
        ({"lsn_commit": 7}, b""),
        ({"lsn_commit": 7, "lsn": 9, "snapshot": "INITIAL"}, b""),
        ({"lsn_commit": "x", "lsn": 9}, b""),
        ({}, b""),
        (None, b""),
    ],
)
def test_positions_of_committed_offsets(offset, wanted):
    entries = [{"partition": {"server": "shop"}, "offset": offset}]
    assert committed_position(entries, 2, server="shop") == wanted


@pytest.mark.parametrize("place", [{"server": "shop2"}, {}, {"database": "shop"}, None])
def test_offsets_of_another_logical_name_prove_nothing(place):
    """The connector had another topic.prefix before: Connect keeps those offsets for ever."""
    old = {"partition": place, "offset": {"lsn_commit": 900, "lsn": 901}}
    now = {"partition": {"server": "shop"}, "offset": {"lsn_commit": 7, "lsn": 9}}
    assert committed_position([old], 0, server="shop") == b""
    for entries in ([old, now], [now, old]):
        assert committed_position(entries, 0, server="shop") == lsns.pack(0, 7, 9)


@given(
    st.dictionaries(st.integers(0, 3), st.integers(0, 5)),
    st.dictionaries(st.integers(0, 3), st.integers(0, 5)),
)
def test_a_partition_that_the_stream_does_not_know_has_not_been_passed(have, ends):
    expected = all(have.get(p, 0) >= end for p, end in ends.items())
    assert has_passed({"t": have}, {"t": ends}) == expected
    assert has_passed({}, {"t": ends}) == (not any(ends.values()))


def test_what_chunks_wait_for_is_shown_until_they_go_on():
    world = waiting(connect=Committed(b"", {}))

    def shown():
        return flight(world.coordinator).code

    assert shown() == ""
    world.go(output_frontier.SAY_AFTER_S / STEP_S + 5)
    assert shown() == "waits-for-connector"
    world.connect = Committed(AT[3], {TOPIC: {0: 0}})
    world.go(30)
    assert said(world) == [AT[3].hex()]
    assert shown() == ""


def test_a_connect_that_does_not_answer_is_shown_at_once():
    too_old = DependencyError("Connect 3.5 does not tell", code="connect-too-old")
    world = waiting(connect=too_old)
    world.go(5)
    assert flight(world.coordinator).code == "connect-too-old"


def test_a_table_that_was_stopped_is_waited_for_no_more():
    world = waiting(ORDERS, ITEMS, away={"committed"})
    world.stream.table(ORDERS, passed=AT[4])
    world.stream.table(ITEMS, passed=AT[1])
    world.go(5)
    assert said(world)[-1:] == [AT[1].hex()]
    world.send("stop", "s", data_collections=[ITEMS])
    world.go(5)
    assert said(world)[-1] == AT[4].hex()


@pytest.mark.parametrize("ends", [{}, {TOPIC: {0: 2}}], ids=["deleted", "made anew"])
def test_a_topic_that_is_deleted_after_it_was_asked_about_is_waited_for_no_more(ends):
    world = waiting(connect=Committed(AT[3], {TOPIC: {0: 10}, "shop.other": {0: 7}}))
    world.stream.offsets = {TOPIC: {0: 2}, "shop.other": {0: 7}}
    world.go(5)
    assert said(world) == []
    world.connect = Committed(AT[5], {**ends, "shop.other": {0: 9}})
    world.go(output_frontier.AGAIN_S * 2)
    assert said(world) == [AT[3].hex()], "by what was asked first, else it might wait for ever"
