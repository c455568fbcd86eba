"""What stands in an output topic, record by record: tombstones, placeholders, rows that were read."""

import json

import pyarrow as pa
import pytest

from lakemark import tasks
from lakemark.connectors.postgres import positions as lsns
from lakemark.converters.json.envelopes import sample
from lakemark.converters.registry import CONVERTERS, JSON
from lakemark.model import change_batch
from lakemark.model.events import Learnt
from lakemark.model.handling_modes import HandlingModes
from lakemark.reconcile import outputs
from lakemark.sink.output import output_records, row_events, transaction
from lakemark.sink.output.row_events import Style
from tests.kit.memory_pipeline import Broker
from tests.kit.memory_topics import MemoryTopics
from tests.kit.shop import ORDERS, Shop, event, schema_of

pytestmark = pytest.mark.usefixtures("letters")

PLACEHOLDER = "__debezium_unavailable_value"
CLEAN = f"clean.{ORDERS}"
SCHEMA = schema_of(ORDERS, id="int4", v="int4", big="text")
ROW = pa.struct([("id", pa.int32()), ("v", pa.int32()), ("big", pa.string())])


@pytest.fixture
def out(monkeypatch):
    """Output topics in memory, in place of Kafka's."""
    found = MemoryTopics()
    monkeypatch.setattr(transaction, "write", found.write)
    return found


@pytest.fixture
def shop(tmp_path):
    """Orders with a large value."""
    return Shop(
        tmp_path, Broker(), {ORDERS: SCHEMA}, sections={"output": {"topic_prefix": "clean"}}
    )


def shown(out):
    """Key, operation and large value of every record; `-` for a tombstone."""
    return [
        (key, "-", None) if value is None else (key, value["op"], (value["after"] or {}).get("big"))
        for key, _, value in out.events(CLEAN)
    ]


def test_every_delete_is_followed_by_its_tombstone(shop, out):
    shop.put("c", 10, 1, v=1, big="x")
    shop.put("d", 11, 1)
    shop.put("c", 12, 2, v=1, big="y")
    shop.put("t", 13, 0)
    shop.run()
    assert shown(out) == [
        (1, "c", "x"), (1, "d", None), (1, "-", None), (2, "c", "y"), (2, "d", None), (2, "-", None),
    ]  # fmt: skip


def test_what_the_connector_reads_while_it_streams_is_left_out(shop, out):
    shop.put("c", 10, 1, v=1, big="x")
    shop.put("r", 11, 2, v=1, big="y", snapshot="incremental")
    shop.run()
    assert shown(out) == [(1, "c", "x")]
    assert shop.values().keys() == {1, 2}


def test_an_event_below_a_truncate_of_an_earlier_batch_is_left_out(shop, out):
    shop.put("c", 10, 1, v=1, big="x", partition=1)
    shop.put("c", 10, 2, v=1, big="x")
    shop.run()
    shop.put("t", 50, 0)
    shop.run()
    before = len(out.records[CLEAN])
    shop.put("c", 30, 3, v=1, big="late", partition=1)
    shop.put("c", 60, 5, v=1, big="new", partition=1)
    shop.run()
    assert shown(out)[before:] == [(5, "c", "new")]
    assert shop.values().keys() == {5}


def test_a_row_of_the_lake_that_the_batch_changes_gets_one_delete(shop, out):
    shop.put("c", 10, 5, v=1, big="x")
    shop.run()
    shop.put("u", 20, 5, v=2, big="x")
    shop.put("t", 50, 0)
    shop.run()
    assert [op for _, op, _ in shown(out)] == ["c", "u", "d", "-"]


def test_a_row_that_moved_to_its_key_in_the_batch_of_a_truncate_is_deleted(shop, out):
    shop.put("c", 10, 1, v=1, big="x")
    shop.run()
    old, new = (json.dumps({"id": key}).encode() for key in (1, 4))
    shop.put("d", 20, 1, headers=[("__debezium.newkey", new)])
    shop.put("c", 20, 4, v=1, big="x", headers=[("__debezium.oldkey", old)])
    shop.put("t", 50, 0)
    shop.run()
    assert [record for record in shown(out) if record[0] == 4][1:] == [
        (4, "d", None),
        (4, "-", None),
    ]


def test_a_value_of_a_row_that_is_ahead_of_the_event_is_not_put_in(shop, out):
    """The marks are gone: the batch is written once more, and the table has it already."""
    shop.put("c", 10, 1, v=1, big="x")
    shop.run()
    shop.put("u", 20, 1, v=2, big=PLACEHOLDER)
    shop.put("u", 30, 1, v=3, big="new")
    before = {t: dict(p) for t, p in shop.read.items()}
    shop.run()
    assert shown(out)[1:] == [(1, "u", "x"), (1, "u", "new")]
    out.marks.clear()
    out.records.clear()
    shop.read = before
    shop.again()
    assert shown(out) == [(1, "u", PLACEHOLDER), (1, "u", "new")]


def test_a_value_of_a_row_that_misses_an_event_is_not_put_in(shop, out):
    shop.put("c", 10, 1, v=1, big="x")
    shop.put("c", 10, 2, v=1, big="y")
    shop.run()
    now = shop.state
    now.tables[ORDERS].repair.doubt_keys(["[1]"], batch=now.batch)
    shop.checkpoint.save(now)
    shop.put("u", 20, 1, v=2, big=PLACEHOLDER)
    shop.put("u", 20, 2, v=2, big=PLACEHOLDER)
    shop.run()
    assert shown(out)[2:] == [(1, "u", PLACEHOLDER), (2, "u", "y")]


def test_a_value_that_the_row_does_not_know_stays_a_placeholder(shop, out):
    shop.put("u", 10, 1, v=1, big=PLACEHOLDER)
    shop.run()
    shop.put("u", 20, 1, v=2, big=PLACEHOLDER)
    shop.run()
    assert shown(out) == [(1, "u", PLACEHOLDER)] * 2


def test_a_row_that_is_marked_deleted_gives_no_values(tmp_path, out):
    shop = Shop(
        tmp_path,
        Broker(),
        {ORDERS: SCHEMA},
        settings={"deletes": "soft"},
        sections={"output": {"topic_prefix": "clean"}},
    )
    shop.put("c", 10, 1, v=1, big="x")
    shop.run()
    shop.put("d", 11, 1)
    shop.run()
    shop.put("u", 20, 1, v=2, big=PLACEHOLDER)
    shop.run()
    assert shown(out)[-1] == (1, "u", PLACEHOLDER)


def test_behind_a_dead_letter_nothing_is_put_in(shop, out):
    """It may have been of the very value."""
    shop.put("c", 10, 1, v=1, big="x")
    shop.run()
    shop.put("u", 20, 1, v="no number", big="y")
    shop.put("u", 21, 1, v=2, big=PLACEHOLDER)
    shop.run()
    assert shown(out) == [(1, "c", "x"), (1, "u", PLACEHOLDER)]


def test_rows_of_a_chunk_are_reads_its_absent_keys_deletes_and_its_fills_nothing():
    position = lsns.pack(0, 70, 70)
    columns = change_batch.KeyColumns(("id",))

    def packet(make, *keys, kind=change_batch.NET, **more):
        rows = pa.array(
            [{"id": key, **more} for key in keys],
            pa.struct(
                [pa.field(n, pa.int32() if n != "big" else pa.string()) for n in ("id", *more)]
            ),
        )
        names = pa.array([f"[{key}]".encode() for key in keys], pa.binary())
        made = make(names, rows, source_ts=1_000_000, table=ORDERS, key_columns=columns)
        return change_batch.as_of(made, position, record=kind)

    chunk = pa.concat_tables(
        [
            packet(change_batch.reads, 1, 2, v=3, big="x"),
            packet(change_batch.absences, 4),
            packet(change_batch.reads, 5, kind=change_batch.FILL, v=3, big="lost"),
        ],
        promote_options="permissive",
    )
    shown_by = sample(event("u", 9, {"id": 1, "v": 1, "big": "a"}))
    found = list(
        row_events.of_chunk(
            chunk,
            SCHEMA,
            Style("shop", ORDERS, CONVERTERS[JSON], HandlingModes(), Learnt(shown_by)),
        )
    )
    said = [(json.loads(m.key)["id"], json.loads(m.value or b"null")) for m in found]
    assert [(key, value and value["op"]) for key, value in said] == [
        (1, "r"), (2, "r"), (4, "d"), (4, None),
    ]  # fmt: skip
    assert said[0][1]["after"] == {"id": 1, "v": 3, "big": "x"}
    assert said[0][1]["source"]["snapshot"] == "incremental"
    assert {dict(m.headers)["lakemark.position"] for m in found} == {position.hex().encode()}
    assert len({dict(m.headers)["lakemark.id"] for m in found}) == len(found)


def test_a_row_that_a_chunk_completes_is_told_whole_at_its_position(shop, out):
    """Its event came first, with a placeholder: nothing in the topic has had the value."""
    shop.put("u", 20, 1, v=2, big=PLACEHOLDER)
    shop.put("u", 20, 2, v=2, big="known")
    shop.run()
    assert shown(out) == [(1, "u", PLACEHOLDER), (2, "u", "known")]
    rows = pa.array([{"id": 1, "v": 1, "big": "x"}, {"id": 2, "v": 1, "big": "older"}], ROW)
    names = pa.array([b"[1]", b"[2]"], pa.binary())
    key = change_batch.KeyColumns(("id",))
    read = change_batch.reads(names, rows, source_ts=1_000_000, table=ORDERS, key_columns=key)
    lost = change_batch.as_of(read, lsns.pack(0, 70, 70), record=change_batch.FILL)
    blob = change_batch.encode(change_batch.with_metadata(lost, schema=SCHEMA.to_json()))
    passed = [0, outputs.SURVIVORS, ORDERS, "chunk/1", 0, 0, blob]
    shop.runner.inserted = [dict(zip(tasks.DECODED.names, passed, strict=True))]
    shop.run()  # every stage runs twice
    assert shown(out)[2:] == [(1, "r", "x")]
    (_, came, _), _, (_, position, told) = out.events(CLEAN)
    assert position == came, "as new as its event"
    assert told["after"] == {"id": 1, "v": 2, "big": "x"}, "what the event has is the event's"
    assert told["source"]["snapshot"] == "incremental"
    shop.again()
    assert len(shown(out)) == 3


def test_keys_that_are_no_text_have_ids_of_their_own():
    """Bytes that UTF-8 has not are all one sign, where they are taken for text."""
    keys = [b"\0\0\0\0\1" + bytes([low, 1]) for low in range(0x80, 0x100)]
    assert len({output_records.identity("p", b"\1", key) for key in keys}) == len(keys)
    assert output_records.identity("p", b"\1", b'{"id":"\xc3\xbc"}') == 'p/01/{"id":"ü"}'
