"""One task may read several Kafka partitions, in any cut of Arrow batches."""

import itertools
import json
from collections import Counter
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark import tasks
from lakemark.connectors.postgres import positions as lsns
from lakemark.converters.registry import converter_of
from lakemark.model import change_batch
from lakemark.model.decoding import AppliedPosition, Report, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.reconcile.outputs import SURVIVORS
from lakemark.sink.lake_plan import LakePlan, TableOutcome, TablePlan
from lakemark.source import changed_keys, decoder
from lakemark.state.tables import PipelineState, TableState
from lakemark.tasks import DecodePlan
from tests.kit.memory_pipeline import Broker
from tests.kit.shop import ITEMS, ORDERS, event, schema_of
from tests.kit.table_states import table_state

PLAN = DecodePlan(
    StretchPlan(
        SourceIdentity("postgresql", "shop"),
        HandlingModes(),
        schemas={t: schema_of(t, id="int4", v="text") for t in (ORDERS, ITEMS)},
    ),
    shards=3,
    slots=2,
)


@pytest.fixture(scope="module")
def records() -> pa.Table:
    """Three partitions of two topics, one after the other."""
    broker = Broker()
    for number in range(12):
        table = ITEMS if number % 3 == 2 else ORDERS
        partition = number % 2 if table == ORDERS else 0
        row = {"id": number, "v": f"v{number}"}
        key, value = msgspec.json.encode({"id": number}), event("c", 100 + number, row, table=table)
        broker.put(f"shop.{table}", partition, key, value)
    return pa.Table.from_batches(broker.read({}, broker.ends()))


def decoded(batches, plan=PLAN):
    rows = pa.Table.from_batches(tasks.decode(batches, plan), tasks.DECODED).to_pylist()
    keys = sorted(
        (row["table"], row["source"], row["slot"], key)
        for row in rows
        if row["kind"] == tasks.PACKET
        for key in change_batch.decode(row["blob"]).column("key").to_pylist()
    )
    reports = [
        msgspec.msgpack.decode(r["blob"], type=Report) for r in rows if r["kind"] == "report"
    ]
    ends = sorted((r.topic, r.partition, r.first, r.last, sum(r.kinds.values())) for r in reports)
    return keys, ends, sorted(row["kind"] for row in rows)


@given(cuts=st.lists(st.integers(0, 12), max_size=5))
def test_a_batch_may_end_anywhere(records, cuts):
    edges = [0, *sorted(cuts), records.num_rows]
    pieces = [
        batch
        for begin, end in itertools.pairwise(edges)
        for batch in records.slice(begin, end - begin).combine_chunks().to_batches()
    ]
    keys, ends, _ = decoded(pieces)
    assert len(keys) == 12
    assert len(ends) == 3  # a partition is one stretch, however it was cut
    assert (keys, ends) == decoded(records.to_batches())[:2]


def test_touches_only_for_an_armed_batch(records):
    batches = records.to_batches()
    assert set(decoded(batches)[2]) == {"packet", "report"}
    armed = decoded(batches, replace(PLAN, armed=True))
    assert set(armed[2]) == {"packet", "report", "touches"}
    assert armed[:2] == decoded(batches)[:2]


def test_shards_get_the_keys_that_tables_have_and_each_key_is_made_once(records, monkeypatch):
    """What a connector sends again is no event of the table, but its key is known to shards."""
    seen, converter = Counter(), converter_of(PLAN.stretch.converter)
    real = type(converter).canonical_keys

    def counted(self, keys, schema):
        seen.update((schema.table, key) for key in keys)
        return [b'["made"]'] * len(keys) if schema.table == ITEMS else real(self, keys, schema)

    monkeypatch.setattr(type(converter), "canonical_keys", counted)
    again = {(f"shop.{ORDERS}", 0): AppliedPosition(lsns.pack(0, 8 * 106, 8 * 106), 106_000)}
    plan = replace(PLAN, armed=True, stretch=replace(PLAN.stretch, applied=again))
    rows = pa.Table.from_batches(tasks.decode(records.to_batches(), plan)).to_pylist()
    of_tables = {
        (row["table"], key)
        for row in rows
        if row["kind"] == tasks.PACKET
        for key in change_batch.decode(row["blob"]).column("key").to_pylist()
    }
    of_shards = {
        (touch["table"], touch["key"])
        for row in rows
        if row["kind"] == changed_keys.TOUCHES_KIND
        for touch in changed_keys.unpack_touches(row["blob"]).to_pylist()
    }
    assert of_shards - of_tables == {(ORDERS, b"[%d]" % number) for number in (0, 4)}
    assert of_tables < of_shards
    assert len(seen) == 12
    assert set(seen.values()) == {1}


@pytest.mark.parametrize(("full", "kind"), [(False, change_batch.NET), (True, change_batch.LEAVE)])
def test_an_insert_deleted_in_its_transaction_is_kept_apart_only_where_a_key_can_be_shared(
    full, kind
):
    """Only with REPLICA IDENTITY FULL; elsewhere (outboxes) it is one net change, without a read."""
    gone = json.loads(event("d", 101, {"id": 1}, tx=90))
    if full:
        gone["before"] = {"id": 1, "v": "a"}
    broker = Broker()
    for value in (event("c", 100, {"id": 1, "v": "a"}, tx=90), json.dumps(gone).encode()):
        broker.put(f"shop.{ORDERS}", 0, b'{"id":1}', value)
    rows = pa.Table.from_batches(tasks.decode(broker.read({}, broker.ends()), PLAN)).to_pylist()
    (packet,) = (row["blob"] for row in rows if row["kind"] == tasks.PACKET)
    assert change_batch.decode(packet).column("record").to_pylist()[-1] == kind


@pytest.mark.parametrize(
    ("created", "kind"), [((96, 96), change_batch.NET), (None, change_batch.LEAVE)]
)
def test_transactions_that_follow_each_other_at_once_are_not_taken_for_one(created, kind):
    """Then the first change's own LSN is that of the last commit: a delete needs no read for it.

    Unlike in a slot's first transaction, which has no last commit.
    """
    sequences = [created, (144, 144)] if created else [(None, 96), (None, 144)]
    broker = Broker()
    for op, (last, lsn) in zip("cd", sequences, strict=True):
        told = json.loads(event(op, lsn, {"id": 1, "v": "a"}, tx=last or lsn))
        told["before" if op == "d" else "after"] = {"id": 1, "v": "a"}
        told["source"]["sequence"] = json.dumps(
            [last and str(last), str(lsn)], separators=(",", ":")
        )
        broker.put(f"shop.{ORDERS}", 0, b'{"id":1}', json.dumps(told).encode())
    rows = pa.Table.from_batches(tasks.decode(broker.read({}, broker.ends()), PLAN)).to_pylist()
    (packet,) = (row["blob"] for row in rows if row["kind"] == tasks.PACKET)
    assert change_batch.decode(packet).column("record").to_pylist()[-1] == kind


def test_nothing_of_a_table_that_a_stretch_stops_reaches_the_lake(tmp_path):
    """Neither events of other partitions nor rows of chunks; other tables are not concerned."""
    broker = Broker()
    rows = [(ORDERS, 0, {"id": 1, "v": "a"}), (ORDERS, 1, {"id": 2, "v": "b", "new": 1})]
    for table, partition, row in [*rows, (ITEMS, 0, {"id": 7, "v": "c"})]:
        key, value = msgspec.json.encode({"id": row["id"]}), event("c", 100, row, table=table)
        broker.put(f"shop.{table}", partition, key, value)
    decoded = pa.Table.from_batches(tasks.decode(broker.read({}, broker.ends()), PLAN))
    found = decoded.drop_columns("shard").to_pylist()
    packet = next(r for r in found if r["kind"] == tasks.PACKET and r["table"] == ORDERS)
    found.append({**packet, "kind": SURVIVORS, "source": "shop.chunks/0"})
    batch = pa.RecordBatch.from_pylist(found, pa.schema([*decoded.drop_columns("shard").schema]))
    plan = LakePlan("q", 0, "stream", lambda table: TablePlan(str(tmp_path / table)))
    (result,) = tasks.merge([batch], plan)
    said = result.to_pylist()
    assert {row["kind"] for row in said} == {tasks.REPORT, tasks.OUTCOME}
    outcomes = [row["blob"] for row in said if row["kind"] == tasks.OUTCOME]
    assert [msgspec.msgpack.decode(o, type=TableOutcome).table for o in outcomes] == [ITEMS]
    assert not (tmp_path / ORDERS).exists()


@pytest.mark.parametrize("large", [ORDERS, ITEMS])
def test_a_table_with_few_changes_does_not_wait_for_one_with_many(tmp_path, large):
    broker = Broker()
    for table, count in ((ORDERS, 1), (ITEMS, 1), (large, 50)):
        for number in range(count):
            key = msgspec.json.encode({"id": number})
            value = event("c", 100 + number, {"id": number, "v": "a"}, table=table)
            broker.put(f"shop.{table}", 0, key, value)
    decoded = pa.Table.from_batches(tasks.decode(broker.read({}, broker.ends()), PLAN))
    (batch,) = decoded.drop_columns("shard").combine_chunks().to_batches()
    plan = LakePlan("q", 0, "stream", lambda table: TablePlan(str(tmp_path / table)))
    (result,) = tasks.merge([batch], plan)
    outcomes = [row["blob"] for row in result.to_pylist() if row["kind"] == tasks.OUTCOME]
    order = [msgspec.msgpack.decode(o, type=TableOutcome).table for o in outcomes]
    assert order == [ITEMS if large == ORDERS else ORDERS, large]


@pytest.mark.parametrize("stopped", [frozenset(), frozenset([ORDERS])])
def test_rows_of_a_chunk_wait_where_the_table_does_not_stream(tmp_path, stopped):
    """The chunk counts as not applied then, and is read again: its rows must not be there."""
    broker = Broker()
    key, value = msgspec.json.encode({"id": 1}), event("c", 100, {"id": 1, "v": "a"})
    broker.put(f"shop.{ORDERS}", 0, key, value)
    decoded = pa.Table.from_batches(tasks.decode(broker.read({}, broker.ends()), PLAN))
    found = decoded.drop_columns("shard").to_pylist()
    found = [{**r, "kind": SURVIVORS} for r in found if r["kind"] == tasks.PACKET]
    batch = pa.RecordBatch.from_pylist(found, pa.schema([*decoded.drop_columns("shard").schema]))
    plan = LakePlan(
        "q", 0, "stream", lambda table: TablePlan(str(tmp_path / table)), stopped=stopped
    )
    (result,) = tasks.merge([batch], plan)
    assert result.num_rows == (not stopped)
    assert (tmp_path / ORDERS).exists() == (not stopped)


def test_plain_records_are_decoded_by_compiled_code(records, monkeypatch):
    general = decoder.decode_range
    monkeypatch.setattr(decoder, "decode_range", None)
    keys, ends, _ = decoded(records.to_batches())
    assert (len(keys), len(ends)) == (12, 3)

    seen = []
    monkeypatch.setattr(decoder, "decode_range", lambda *args: seen.append(args) or general(*args))
    assert decoded(records.to_batches(), replace(PLAN, armed=True))[:2] == (keys, ends)
    assert len(seen) == 3


def test_tables_with_unavailable_values_are_read_the_general_way_at_once():
    tables = {ORDERS: table_state(partial=True), ITEMS: TableState()}
    assert PipelineState(tables=tables).partial() == {ORDERS}


def put(broker, at, *, ts=None, partition=0):
    key = msgspec.json.encode({"id": at})
    value = event("c", at, {"id": at, "v": "a"}, table=ORDERS, ts=ts)
    broker.put(f"shop.{ORDERS}", partition, key, value)


def reports(batches, plan=PLAN):
    rows = pa.Table.from_batches(tasks.decode(batches, plan), tasks.DECODED).to_pylist()
    found = [r["blob"] for r in rows if r["kind"] == "report"]
    return [msgspec.msgpack.decode(blob, type=Report) for blob in found]


def test_a_partition_that_comes_again_in_a_task_goes_on_where_it_was():
    broker, topic = Broker(), f"shop.{ORDERS}"
    for at, partition in ((101, 0), (102, 1), (100, 0)):  # the last one is sent again
        put(broker, at, partition=partition)
    pieces = [({0: 0}, {0: 1}), ({1: 0}, {1: 1}), ({0: 1}, {0: 2})]
    batches = [b for first, end in pieces for b in broker.read({topic: first}, {topic: end})]
    found = [(one.partition, one.tables[ORDERS].replays) for one in reports(batches)]
    assert found == [(0, 0), (1, 0), (0, 1)]


def test_an_epoch_that_begins_in_a_stretch_knows_what_came_before_it():
    broker, topic = Broker(), f"shop.{ORDERS}"
    put(broker, 101, ts=9_000)
    put(broker, 100, ts=10)
    plan = replace(PLAN, epochs=({topic: {0: 1}},))
    found = [one.source_ts for one in reports(broker.read({}, broker.ends()), plan)]
    assert found == [9_000_000, 9_000_000]
