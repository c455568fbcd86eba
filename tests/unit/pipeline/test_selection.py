"""Tables that the configuration names no longer, and those that it names again."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.table_choice import TableChoice
from lakemark.model.wanted import Wanted
from lakemark.snapshot.ports import StreamedTable
from lakemark.snapshot.snapshots import Snapshots
from lakemark.state import selection, stored_form, tables
from lakemark.state.checkpoint import amended
from lakemark.state.table_parts import StoredPosition
from lakemark.state.tables import CATCHING_UP, ERRORED, PAUSED, STREAMING, PipelineState, TableState
from tests.kit.shop import ITEMS, ORDERS, event
from tests.kit.table_states import table_state

NAMES = ("public.a", "public.b", "public.c")


def topic(name):
    return f"shop.{name}"


def wanted(*names, topics=None, captured=NAMES):
    read = {topic(name) for name in names} if topics is None else topics
    return Wanted(read.__contains__, set(names), set(captured).__contains__)


def state(**more):
    found = PipelineState(
        batch=7,
        offsets={topic(name): {0: 10, 1: 20} for name in NAMES},
        applied={topic(name): {0: StoredPosition("aa", 1)} for name in NAMES},
        tables={name: table_state(topics=[topic(name)], events=3) for name in NAMES},
    )
    for name, entry in more.items():
        found.tables[f"public.{name}"] = entry
    return found


def test_what_is_named_no_longer_is_neither_read_nor_shown():
    now = state()
    changed = selection.select(now, wanted("public.a"))
    assert set(changed.left) == {"public.b", "public.c"}
    assert set(changed.topics_left) == {topic("public.b"), topic("public.c")}
    assert set(now.tables) == {"public.a"}
    assert now.offsets == {topic("public.a"): {0: 10, 1: 20}}
    assert now.not_streaming() == {"public.b", "public.c"}
    assert selection.select(now, wanted("public.a")) == selection.Changed()


stopped = st.sampled_from([PAUSED, ERRORED, CATCHING_UP])
entries = st.builds(
    lambda name, word, offset: (
        TableState(topics=[topic(name)])
        if word == STREAMING
        else table_state(state=word, topics=[topic(name)], from_offsets={topic(name): {0: offset}})
    ),
    st.sampled_from(NAMES),
    stopped | st.just(STREAMING),
    st.integers(0, 9),
)


@given(
    st.lists(entries, min_size=3, max_size=3, unique_by=lambda e: e.topics[0]),
    st.lists(st.sets(st.sampled_from(NAMES)), max_size=4),
)
def test_whatever_was_left_out_meanwhile_goes_on_where_it_stopped(found, choices):
    now = state(**{entry.topics[0][-1]: entry for entry in found})
    before = stored_form.encode(now)
    for entry in now.tables.values():
        entry.since_batch = now.batch
    wanted_back = stored_form.encode(now)
    for chosen in choices:
        selection.select(now, wanted(*chosen))
        assert set(now.tables) == chosen
        assert set(now.offsets) == {topic(name) for name in chosen}
        now = stored_form.decode(stored_form.encode(now))
    selection.select(now, wanted(*NAMES))
    for entry in now.tables.values():
        entry.since_batch = now.batch
    now.tables = dict(sorted(now.tables.items()))
    now.offsets = dict(sorted(now.offsets.items()))
    assert before
    assert json.loads(stored_form.encode(now)) == json.loads(wanted_back)


def test_a_table_whose_topic_was_read_on_without_it_catches_up_from_where_it_left():
    now, topics = state(), {topic(name) for name in NAMES}
    selection.select(now, wanted("public.a", topics=topics))
    assert set(now.offsets) == topics
    now.offsets[topic("public.b")] = {0: 15, 1: 20}
    now.applied[topic("public.b")] = {0: StoredPosition("cc", 3)}
    selection.select(now, wanted(*NAMES, topics=topics))
    entry = now.tables["public.b"]
    assert entry.state == CATCHING_UP
    assert entry.progress.from_offsets == {topic("public.b"): {0: 10, 1: 20}}
    assert entry.progress.applied == {topic("public.b"): {0: StoredPosition("aa", 1)}}
    assert now.tables["public.c"].state == STREAMING
    assert not entry.repair.resnapshot


def test_what_the_connector_itself_left_out_is_snapshotted_again():
    now = state()
    selection.select(now, wanted("public.a", "public.b", captured=["public.a", "public.b"]))
    selection.select(now, wanted(*NAMES))
    assert now.tables["public.c"].repair.resnapshot
    assert now.tables["public.c"].repair.resnapshot_since == now.batch
    assert now.tables["public.c"].repair.stale() is None
    assert not now.tables["public.a"].repair.resnapshot


def test_a_table_is_read_as_long_as_one_of_its_topics_is():
    now = state(a=TableState(topics=[topic("public.a"), "other"]))
    now.offsets["other"] = {0: 5}
    selection.select(now, wanted(*NAMES))
    assert "public.a" in now.tables
    assert "other" not in now.offsets
    selection.select(now, wanted(*NAMES, topics={"other"}))
    assert set(now.tables) == {"public.a"}
    assert now.offsets == {"other": {0: 5}}


def test_a_new_epoch_concerns_what_is_left_out_as_well():
    now = state()
    selection.select(now, wanted("public.a"))
    tables.new_epoch(now, {topic("public.a"): {0: 10}})
    assert now.epochs[-1][topic("public.b")] == {0: 10, 1: 20}
    selection.select(now, wanted(*NAMES))
    assert now.tables["public.b"].repair.resnapshot


def test_a_snapshot_under_way_gives_a_table_up_that_is_left_out():
    now = state()
    selection.select(now, wanted("public.a"))
    stream = Snapshots.stream_of(_Nobody(), now)
    assert stream.tables["public.a"] == StreamedTable(reread={}, partial=False, written=False)
    assert stream.tables["public.b"].code == "not-selected"
    assert not stream.tables["public.b"].streaming


class _Nobody:
    """What `stream_of` asks for beside the state."""

    _kind, _qualifier = "postgresql", ""
    _has = Snapshots._has

    def query(self):
        return "q"


@pytest.mark.parametrize("narrow", [True, False])
def test_events_of_a_table_that_is_left_out_are_applied_when_it_is_back(shop, narrow):
    shop.put("c", 10, 1, v="a")
    shop.put("c", 10, 7, v="x", table=ITEMS)
    shop.run()
    everything, now = shop.pipeline.sources, shop.state
    topics = set(now.offsets)
    assert selection.select(now, _chosen([ITEMS], topics)).left == (ORDERS,)
    shop.checkpoint.save(now)
    if narrow:  # else the connector has taken it back already: that counts from the next start on
        shop.reconnect(tables=TableChoice({}, [ITEMS]))
    shop.put("u", 11, 1, v="b")
    bad = event("c", 11, {"id": 1, "v": "b"}).replace(b'"op":"c"', b'"op":"z"')
    shop.broker.put(f"shop.{ORDERS}", 0, b'{"id":1}', bad)
    shop.put("u", 11, 7, v="y", table=ITEMS)
    shop.run()
    assert (shop.values(), shop.values(ITEMS)) == ({1: "a"}, {7: "y"})
    assert set(shop.state.tables) == {ITEMS}, "not even a dead letter makes it known again"

    now = shop.state
    assert selection.select(now, _chosen([".*"], topics)).back == (ORDERS,)
    shop.checkpoint.save(now)
    shop.pipeline.sources = everything
    shop.put("c", 12, 2, v="c")
    shop.run()
    assert shop.values() == {1: "b", 2: "c"}
    assert shop.state.tables[ORDERS].state == STREAMING


def _chosen(names, topics):
    return Wanted(topics.__contains__, TableChoice({}, names), lambda _: True)


@pytest.fixture(autouse=True)
def _letters(letters):
    """Dead letters go nowhere."""


PLAN = b'v1\n{"batchWatermarkMs":0}\n{"shop.a":{"0":5},"shop.b":{"0":7}}\n%b\n{"x.control":{"0":9}}'
OWN = ["x.control", "x.chunks"]


@pytest.mark.parametrize("chunks", [b'{"x.chunks":{"0":1,"1":2}}', b"-"])
@pytest.mark.parametrize(
    ("topics", "changes", "control"),
    [
        ({}, {"shop.a": {"0": 5}, "shop.b": {"0": 7}}, 9),
        ({"shop.b": {}}, {"shop.a": {"0": 5}}, 9),
        ({"shop.b": {0: 3}}, {"shop.a": {"0": 5}, "shop.b": {"0": 3}}, 9),
        (
            {"shop.c": {0: 1, 1: 2}},
            {"shop.a": {"0": 5}, "shop.b": {"0": 7}, "shop.c": {"0": 1, "1": 2}},
            9,
        ),
        ({"shop.a": {}, "shop.b": {}}, {}, 9),
        ({"x.control": {0: 30}}, {"shop.a": {"0": 5}, "shop.b": {"0": 7}}, 30),
    ],
)
def test_what_spark_planned_with_other_offsets(topics, changes, control, chunks):
    lines = amended(PLAN % chunks, topics, own=OWN).splitlines()
    assert lines[:2] == [b"v1", b'{"batchWatermarkMs":0}']
    assert json.loads(lines[2]) == changes
    assert lines[3] == chunks
    assert json.loads(lines[4]) == {"x.control": {"0": control}}
    assert amended(b"\n".join(lines), topics, own=OWN).splitlines() == lines
