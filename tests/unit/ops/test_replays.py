"""Replays: from the bytes of record keys to the keys of signals."""

import json

import pytest

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.connectors.postgres.key_sql import key_texts
from lakemark.converters.avro.converter import AvroConverter
from lakemark.converters.json.converter import JsonConverter
from lakemark.converters.registry import CONVERTERS, JSON
from lakemark.model.decoding import ConverterChoice, Records, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.ops import replays
from lakemark.ops.dead_letters import Letter, letter_of
from lakemark.sink.output import dead_letter
from lakemark.snapshot import signal_validation
from lakemark.snapshot.signals import ExecuteSnapshot, read
from lakemark.source import decoder
from tests.kit.avro_records import DictSource, datum

ORDERS, PARTS, ODD = "public.orders", "public.parts", "public.o d+"


def schema_of(table, key, **types) -> TableSchema:
    columns = [
        CatalogColumn(n, t, key_position=key.index(n) + 1 if n in key else None)
        for n, t in types.items()
    ]
    return from_catalog(table, columns, key, HandlingModes())


SCHEMAS = {
    ORDERS: schema_of(ORDERS, ["id"], id="int8", v="text"),
    PARTS: schema_of(PARTS, ["shop", "at"], at="timestamp", v="text", shop="text"),
    ODD: schema_of(ODD, ["id"], id="uuid"),
    "public.keyless": schema_of("public.keyless", [], v="text"),
}


def letter(key, *, table="", topic=f"shop.{ORDERS}", offset=1):
    raw = key if key is None or isinstance(key, bytes) else json.dumps(key).encode()
    return Letter(f"{topic}-0-{offset}", "invalid-json", "", table, topic, 0, offset, key=raw)


def planned(*letters):
    return replays.planned(
        letters, SCHEMAS, prefix="shop", converter=CONVERTERS[JSON], key_texts=key_texts
    )


def keys(replay):
    return {one.table: list(one.keys) for one in replay.rereadings}


def wrapped(payload, *fields):
    return {"schema": {"type": "struct", "fields": list(fields)}, "payload": payload}


ID = {"type": "int64", "field": "id", "optional": False}


def test_plain_and_wrapped_keys_of_the_same_row_are_one():
    replay = planned(
        letter({"id": 7}), letter(wrapped({"id": 7}, ID), offset=2), letter({"id": 8}, offset=3)
    )
    assert keys(replay) == {ORDERS: [("7",), ("8",)]}
    assert replay.rereadings[0].letters == [f"shop.{ORDERS}-0-{n}" for n in (1, 2, 3)]
    assert replay.refused == []


def test_composite_keys_come_in_key_order_as_the_database_writes_them():
    moment = {"type": "int64", "field": "at", "name": "io.debezium.time.MicroTimestamp"}
    shop = {"type": "string", "field": "shop"}
    plain = {"at": 1_700_000_000_123_456, "shop": 'a "b", [c]'}
    replay = planned(
        letter(plain, table=PARTS), letter(wrapped(plain, moment, shop), table=PARTS, offset=2)
    )
    assert keys(replay) == {PARTS: [('a "b", [c]', "2023-11-14 22:13:20.123456")]}


def test_the_table_is_found_by_its_topic_also_where_that_is_written_otherwise():
    uuid = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    replay = planned(letter({"id": uuid}, topic="shop.public.o_d_"))
    assert keys(replay) == {ODD: [(uuid,)]}


@pytest.mark.parametrize(
    ("one", "code", "hint"),
    [
        (letter(None), "no-key", f"lakemark snapshot start {ORDERS}"),
        (letter(b"{"), "key-unreadable", f"lakemark snapshot start {ORDERS}"),
        (letter(b"\xff"), "key-unreadable", f"lakemark snapshot start {ORDERS}"),
        (letter({"no": 7}), "key-unreadable", f"lakemark snapshot start {ORDERS}"),
        (letter({"id": None}), "key-unreadable", f"lakemark snapshot start {ORDERS}"),
        (letter({"id": "x"}), "key-unreadable", f"lakemark snapshot start {ORDERS}"),
        (letter({"shop": "a"}, table=PARTS), "key-unreadable", f"snapshot start {PARTS}"),
        (letter({"id": 7}, table="public.gone"), "unknown-table", "snapshot start TABLE"),
        (letter({"id": 7}, topic="events"), "unknown-table", "snapshot start TABLE"),
        (letter({"v": "a"}, table="public.keyless"), "no-key", "primary key"),
    ],
)
def test_a_letter_that_cannot_be_replayed_says_what_to_do_instead(one, code, hint):
    replay = planned(one, letter({"id": 8}, offset=9))
    (refused,) = replay.refused
    assert (refused.letter, refused.code) == (one.id, code)
    assert hint in refused.hint
    assert refused.reason
    assert keys(replay) == {ORDERS: [("8",)]}, "the others are replayed"


def test_the_pipeline_accepts_what_is_sent():
    replay = planned(
        letter({"at": 1, "shop": 'é"'}, table=PARTS),
        letter({"id": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}, table=ODD),
    )
    for one in replay.rereadings:
        (data,) = one.signals()
        value = json.dumps({"id": "r", "type": "execute-snapshot", "data": data}).encode()
        signal = read(b"shop", value, pipeline="shop", unnamed="u")
        assert isinstance(signal, ExecuteSnapshot)
        known = signal_validation.SignalContext(SCHEMAS, lambda *_: None, lambda _: None)
        run = signal_validation.accept(signal, known)
        assert [table.table for table in run.tables] == [one.table]
        assert [tuple(key) for key in run.tables[0].keys] == list(one.keys)


def test_many_keys_are_several_signals_that_a_broker_takes():
    many = [letter({"id": n}, offset=n) for n in range(replays.MOST_KEYS * 2 + 1)]
    (one,) = planned(*many).rereadings
    parts = [data["keys"] for data in one.signals()]
    assert [len(part) for part in parts] == [replays.MOST_KEYS, replays.MOST_KEYS, 1]
    assert [key for part in parts for key in part] == [[str(n)] for n in range(len(many))]

    long = [letter({"shop": "ü\x01" * 20_000 + str(n), "at": 1}, table=PARTS) for n in range(9)]
    (one,) = planned(*long).rereadings
    parts = [json.dumps(data).encode() for data in one.signals()]
    assert len(parts) > 1
    assert max(map(len, parts)) < 1_000_000
    assert sum(len(json.loads(part)["keys"]) for part in parts) == 9


# -- records that only their headers make readable -------------------------------------------------

NAME = "avro-by-headers"
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}


@pytest.mark.parametrize("kind", ["globalId", "contentId"])
def test_a_letter_keeps_the_headers_by_which_its_record_is_read(monkeypatch, kind):
    """Bytes without an id say nothing by themselves: neither the key, nor the value once mended."""
    source = DictSource()
    number = source.put(KEY, kind.removesuffix("Id"))
    converter = AvroConverter(JsonConverter(), lambda _: source)
    monkeypatch.setitem(CONVERTERS, NAME, converter)
    told = {f"apicurio.key.{kind}": number, f"apicurio.value.{kind}": 4711}
    headers = [{"key": n, "value": v.to_bytes(8)} for n, v in told.items()]
    key = datum(KEY, {"id": 7})
    plan = StretchPlan(SourceIdentity("", "shop"), HandlingModes(), converter=ConverterChoice(NAME))
    records = Records(f"shop.{ORDERS}", 0, [5], [key], [b"\2\2"], [headers])
    (dead,) = decoder.decode_range(records, plan).dead
    assert (dead.reason, dead.key, dead.value) == ("schema-not-found", key, b"\2\2")
    found = letter_of(dead.key, dead.value, dead_letter.headers(dead), 0)
    assert found is not None
    assert dict(found.headers) == {one["key"]: one["value"] for one in headers}
    replay = replays.planned(
        [found], SCHEMAS, prefix="shop", converter=converter, key_texts=key_texts
    )
    assert keys(replay) == {ORDERS: [("7",)]}
