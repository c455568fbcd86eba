"""What happens to the source while a table is left out is known when the table is taken back."""

import json

import pytest

from lakemark.connectors.table_choice import TableChoice
from lakemark.model.wanted import Wanted
from lakemark.sink.output import transaction
from lakemark.state import catch_up, data_loss, selection, tables
from lakemark.state.data_loss import Held
from lakemark.state.table_parts import StoredPosition
from lakemark.state.tables import PipelineState
from tests.kit.memory_pipeline import Broker
from tests.kit.memory_topics import MemoryTopics
from tests.kit.shop import ITEMS, ORDERS, Shop, event, schema_of
from tests.kit.table_states import table_state

A, B, ALL = "public.a", "public.b", "shop.all"


def wanted(*ours, lists=None):
    """What `source.tables` names, of what the connector's own lists let through."""
    choice = TableChoice(lists or {}, list(ours))
    return Wanted(lambda _: True, choice, choice.captured)


def of_both(**reached):
    """Two tables whose events come in one topic."""
    state = PipelineState(batch=5, offsets={"all": {0: 100, 1: 100}}, applied=reached)
    for name in (A, B):
        state.tables[name] = table_state(topics=["all"], rows=3)
    return state


def changed(shop, change):
    state = shop.state
    change(state)
    shop.checkpoint.save(state)


def test_the_connector_leaves_it_out_after_source_tables_did():
    state, only_a = of_both(), {"table.include.list": A}
    selection.select(state, wanted(A))
    found = selection.select(state, wanted(A, lists=only_a))
    assert found.uncaptured == (B,)
    assert selection.select(state, wanted(A, lists=only_a)).uncaptured == (), "it is said once"
    selection.select(state, wanted(".*"))
    assert state.tables[B].repair.resnapshot == selection.NOT_CAPTURED


def test_the_connector_begins_without_offsets(tmp_path):
    schemas = {name: schema_of(name, id="int4", v="text") for name in (ORDERS, ITEMS)}
    shop = Shop(tmp_path, Broker(), schemas)
    shop.put("c", 10, 1, v="a", anew=True, ts=100)
    shop.put("c", 20, 7, v="x", table=ITEMS, ts=200)
    shop.run()
    changed(shop, lambda state: selection.select(state, wanted(ITEMS)))
    shop.put("u", 500, 7, v="y", table=ITEMS, anew=True, ts=9000)  # of a new slot
    shop.run()
    changed(shop, lambda state: selection.select(state, wanted(".*")))
    shop.run()
    assert "began without offsets" in shop.state.tables[ORDERS].repair.resnapshot


def test_its_events_come_in_another_topic(tmp_path):
    shop = Shop(tmp_path, Broker(), {ORDERS: schema_of(ORDERS, id="int4", v="text")})
    shop.put("c", 10, 1, v="a")
    shop.put("c", 11, 2, v="a")
    shop.run()
    only = Wanted({"routed"}.__contains__, TableChoice({}, []), lambda _: True)
    changed(shop, lambda state: selection.select(state, only))
    assert ORDERS in shop.state.left
    for at, op, key in ((12, "u", 1), (13, "c", 3)):
        row = {"id": key, "v": "b"}
        shop.broker.put("routed", 0, b'{"id":%d}' % key, event(op, at, row))
    shop.run()
    shop.broker.put("routed", 0, b'{"id":2}', event("u", 14, {"id": 2, "v": "c"}))
    shop.run()
    shop.run()
    entry = shop.state.tables[ORDERS]
    assert (entry.state, entry.topics) == (tables.STREAMING, ["routed"])
    assert shop.values() == {1: "b", 2: "c", 3: "b"}
    assert entry.repair.resnapshot == selection.MOVED
    assert not shop.state.left


def test_its_topic_is_made_anew_and_has_other_tables():
    state = of_both(all={0: StoredPosition("00" + "ff" * 19, 5)})
    selection.select(state, wanted(A))
    held = Held({"all": "NEW"}, {"all": {0: 0}}, {"all": {0: 40}})
    (gap,) = data_loss.gaps(state, {"all": "OLD"}, held)
    data_loss.begin_again(state, {"all": {0: 0}}, anew={gap.topic})
    state.offsets["all"][0] = 400
    selection.select(state, wanted(".*"))
    entry = state.tables[B]
    assert entry.repair.resnapshot == data_loss.ANEW
    assert not entry.progress.applied.get("all")
    assert catch_up.slice_of(entry, state.offsets, limit=1000)[0] == {"all": {0: 0}}


@pytest.mark.parametrize("how", ["paused", "left out"])
def test_its_topic_gets_partitions(tmp_path, monkeypatch, how):
    """The old partition first, or a key of the output topic goes back in time."""
    out = MemoryTopics()
    monkeypatch.setattr(transaction, "write", out.write)
    schemas = {name: schema_of(name, id="int4", v="int4") for name in (ORDERS, ITEMS)}
    shop = Shop(tmp_path, Broker(), schemas, sections={"output": {"topic_prefix": "clean"}})

    def put(op, at, key, table, partition=0, **row):
        raw = event(op, at, {"id": key, **row}, table=table)
        shop.broker.put(ALL, partition, json.dumps({"id": key}).encode(), raw)

    put("c", 10, 1, ORDERS, v=0)
    put("c", 11, 1, ITEMS, v=0)
    put("c", 11, 2, ITEMS, 1, v=0)
    shop.run()
    if how == "paused":
        shop.records.append({"type": "table-pause", "table": ORDERS})
    else:
        changed(shop, lambda state: selection.select(state, wanted(ITEMS)))
    for n in range(30):
        put("u", 20 + n, 1, ORDERS, v=n + 1)
    shop.run()
    put("u", 100, 1, ORDERS, 2, v=100)
    put("c", 101, 9, ITEMS, 2, v=1)
    put("c", 102, 10, ITEMS, 3, v=1)
    shop.run()
    if how == "paused":
        shop.records.append({"type": "table-resume", "table": ORDERS})
    else:
        changed(shop, lambda state: selection.select(state, wanted(".*")))
    shop.limit(40)
    for _ in range(6):
        shop.run()
    seen = [value["after"]["v"] for _, _, value in out.events(f"clean.{ORDERS}")]
    assert seen == [*range(31), 100]
    assert shop.values() == {1: 100}


def test_it_stopped_because_the_source_went_back_and_a_new_epoch_begins():
    state = of_both()
    tables.stop(
        state, B, to=tables.ERRORED, start=state.offsets, before=state, code="position-regressed",
        reason="restored",
    )  # fmt: skip
    selection.select(state, wanted(A))
    tables.new_epoch(state, state.offsets)
    selection.select(state, wanted(".*"))
    entry = state.tables[B]
    assert (entry.state, entry.code) == (tables.CATCHING_UP, "")
    assert "new epoch" in entry.repair.resnapshot


def test_a_paused_table_stays_so_when_the_source_goes_back(shop):
    shop.put("c", 1000, 1, v="a", ts=1000)
    shop.run()
    shop.records.append({"type": "table-pause", "table": ORDERS})
    shop.run()
    shop.put("u", 50, 1, v="restored", ts=9000)
    shop.run()
    assert (shop.state.tables[ORDERS].state, shop.state.tables[ORDERS].code) == ("paused", "paused")
    shop.records.append({"type": "new-epoch"})
    shop.run()
    shop.run()
    assert shop.values() == {1: "a"}
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.run()
    assert shop.values() == {1: "restored"}


def test_a_skip_waits_for_no_topic_that_is_read_no_more():
    state = PipelineState(batch=5, offsets={"new": {0: 9}})
    topics_ = {"new": {0: 3}, "old": {0: 7}}
    state.tables[A] = table_state(state=tables.PAUSED, topics=list(topics_), from_offsets=topics_)
    assert tables.skip(state, A, upto={"new": {"0": 9}, "old": {"0": 7}})
    assert tables.end_skips(state, state.offsets) == [A]
