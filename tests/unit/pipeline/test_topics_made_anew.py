"""Topics that were deleted and made again, after epochs of the source: what their records are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.postgres import positions as lsns
from lakemark.model.decoding import Records
from lakemark.sink.output import transaction
from lakemark.source import raw_records
from lakemark.state import data_loss, stored_form, tables
from tests.kit.memory_pipeline import Broker
from tests.kit.memory_topics import MemoryTopics
from tests.kit.shop import ITEMS, ORDERS, Shop, schema_of

pytestmark = pytest.mark.usefixtures("letters")

TOPIC = f"shop.{ORDERS}"


def made_again(shop, *, partitions):
    """The topic of another id, empty, and a start after `lakemark recover --resnapshot`."""
    shop.broker.topics[TOPIC] = [[] for _ in range(partitions)]
    first = {TOPIC: dict.fromkeys(range(partitions), 0)}
    state = shop.state
    data_loss.begin_again(state, first, anew={TOPIC})
    shop.checkpoint.states[shop.batch] = stored_form.encode(state)
    shop.read = {TOPIC: dict(first[TOPIC])}
    shop.restart()


@pytest.mark.parametrize("known", [True, False], ids=["id known", "first batch before its id"])
def test_a_log_that_was_cut_is_told_from_its_beginning(tmp_path, monkeypatch, known):
    """The topic's id is the same, and other records have the offsets that marks are kept for."""
    out = MemoryTopics()
    monkeypatch.setattr(transaction, "write", out.write)
    schemas = {name: schema_of(name, id="int4", v="int4") for name in (ORDERS, ITEMS)}
    shop = Shop(tmp_path, Broker(), schemas, sections={"output": {"topic_prefix": "clean"}})
    ids = {TOPIC: "id1"} if known else {}
    monkeypatch.setattr(type(shop.checkpoint), "topics", lambda _: ids)
    for key in range(10):
        shop.put("c", 10 + key, key, v=1)
    shop.run()
    ids[TOPIC] = "id1"
    del shop.broker.topics[TOPIC][0][7:]
    state = shop.checkpoint.load(shop.batch)
    data_loss.begin_again(state, {TOPIC: {0: 0}}, anew={TOPIC})
    shop.checkpoint.states[shop.batch] = stored_form.encode(state)
    shop.put("c", 100, 50, v=5)
    shop.put("u", 101, 0, v=6)
    shop.put("d", 102, 1)
    shop.put("c", 103, 51, v=7)
    shop.restart()
    shop.read = {TOPIC: {0: 0}}
    shop.run()
    assert [key for key, *_ in out.events(f"clean.{ORDERS}")[10:]][-5:] == [50, 0, 1, 1, 51]


@pytest.mark.parametrize("partitions", [1, 2])
def test_its_records_are_of_the_newest_epoch(shop, partitions):
    for key in range(5):
        shop.put("c", 1000 + key, key, v="a")
    shop.run()
    shop.records.append({"type": "new-epoch"})
    shop.put("u", 50, 1, v="restored", ts=9000)
    shop.put("u", 51, 3, v="restored", ts=9000)
    shop.run()
    made_again(shop, partitions=partitions)
    shop.put("u", 70, 3, v="new", ts=9002)
    shop.put("d", 71, 1, ts=9003)
    shop.put("c", 72, 9, v="new", ts=9004, partition=partitions - 1)
    shop.run()
    entry = shop.state.tables[ORDERS]
    assert (entry.state, entry.code) == (tables.STREAMING, "")
    assert shop.values() == {0: "a", 2: "a", 3: "new", 4: "a", 9: "new"}
    shop.records.append({"type": "new-epoch"})
    shop.put("u", 10, 0, v="later", ts=9005)
    shop.run()
    assert shop.state.tables[ORDERS].state == tables.STREAMING
    assert shop.values()[0] == "later"
    assert lsns.unpack(shop.rows()[0]["_cdc"]["position"])[0] == 2


@given(
    st.lists(st.integers(0, 12) | st.none(), max_size=4),
    st.lists(st.integers(0, 12), min_size=1, unique=True).map(sorted),
)
def test_a_records_epoch_is_the_newest_that_begins_at_or_before_it(begins, offsets):
    """Also where a checkpoint has them in the wrong order; each record comes once, in order."""
    epochs = [{} if at is None else {TOPIC: {0: at}} for at in begins]
    raw = [str(offset).encode() for offset in offsets]
    records = Records(TOPIC, 0, offsets, raw, raw, [None] * len(raw))
    found = [
        (offset, epoch)
        for epoch, piece in raw_records.by_epoch(records, epochs)
        for offset in piece.offsets
    ]
    starts = [0, *(at or 0 for at in begins)]
    assert found == [
        (offset, max(n for n, start in enumerate(starts) if start <= offset)) for offset in offsets
    ]
