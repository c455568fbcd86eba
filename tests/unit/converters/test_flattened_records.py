"""Rows without an envelope are the events that they were made of, but for what is thrown away."""

from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.converters.avro.converter import AvroConverter
from lakemark.converters.json.converter import JsonConverter
from lakemark.converters.json.flattened import FlattenedConverter
from lakemark.converters.registry import choice_of, converter_of
from lakemark.model.decoding import (
    AddedField,
    ConverterOptions,
    Flattening,
    Records,
    StretchPlan,
)
from lakemark.model.events import Kind
from lakemark.source import decoder
from lakemark.source.fetch import HEADERS, SCHEMA
from tests.kit.connector_settings import POSTGRES
from tests.kit.converter_contract import (
    IDENTITY,
    MODES,
    ORDERS,
    ROW,
    TABLE,
    TOPIC,
    by_key,
    rows_of_orders,
    source,
)
from tests.unit.converters.test_flattening import WHOLE, transform

TOLD = WHOLE + ",source.ts_us"
ADDED = {**POSTGRES, **transform(add_fields=TOLD)}
IN_HEADERS = {**POSTGRES, **transform(add_headers=TOLD)}
PLAN = StretchPlan(IDENTITY, MODES, {TABLE: ORDERS}, epoch=3)
SETTINGS = {"fields": ADDED, "headers": IN_HEADERS}
TYPES = {"id": "int32", "part": "string", "n": "int64", "text": "string", "flag": "boolean",
         "ratio": "double"}  # fmt: skip

encode = msgspec.json.encode


def event(op: str, row: dict[str, Any], **told: Any) -> dict[str, Any]:
    before, after = (row, None) if op == "d" else (None, row)
    return {"before": before, "after": after, "source": source(**told), "op": op}


def added(envelope: dict[str, Any]) -> dict[str, Any]:
    """What the transform adds, by the names that it gives."""
    block = {f"__source_{path.split('.')[1]}": path.split(".")[1] for path in TOLD.split(",")[1:]}
    cells = {name: envelope["source"][field] for name, field in block.items()}
    return {"__op": envelope["op"], **cells}


def flat(envelope: dict[str, Any], way: str) -> tuple[bytes | None, list[dict[str, Any]] | None]:
    """A record's value and headers as the transform writes them; Connect's headers are texts."""
    row, told = envelope["after"] or envelope["before"], added(envelope)
    if way == "fields":
        deleted = {"__deleted": "true" if envelope["op"] == "d" else "false"}
        return encode({**row, **deleted, **told}), None
    texts = [{"key": name, "value": str(cell).encode()} for name, cell in told.items()]
    return None if envelope["op"] == "d" else encode(row), texts


def records(envelopes, way: str | None) -> Records:
    """Events with their envelopes, or as the transform leaves them."""
    rows = [e["after"] or e["before"] for e in envelopes]
    keys = [encode({name: row[name] for name in ORDERS.key}) for row in rows]
    made = [(encode(e), None) if way is None else flat(e, way) for e in envelopes]
    values, headers = ([*column] for column in zip(*made, strict=True))
    return Records(TOPIC, 0, [*range(len(rows))], keys, values, headers)


def flattened(way: str):
    return converter_of(choice_of(SETTINGS[way], {}))


events = st.lists(
    st.builds(
        lambda op, row, at, snapshot: event(op, row, at=at, snapshot=snapshot),
        st.sampled_from("cudr"),
        rows_of_orders,
        st.integers(5, 1 << 40),
        st.sampled_from(["false", "true", "incremental", "last"]),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("way", SETTINGS)
@given(events)
def test_they_are_the_events_that_they_were_made_of(way, envelopes):
    found = flattened(way).headers(records(envelopes, way), PLAN)
    whole = JsonConverter().headers(records(envelopes, None), PLAN)
    for name in ("kind", "table", "op", "position", "source_ts", "snapshot", "reason"):
        assert getattr(found, name) == getattr(whole, name), name
    images = [found.after, whole.after]
    if way == "fields":
        images += [found.before, whole.before]
    read = [
        [None if image is None else msgspec.json.decode(image) for image in column]
        for column in images
    ]
    assert read[0] == read[1]
    assert read[2:3] == read[3:4]
    general = [
        decoder.decode_range(
            records(envelopes, told), replace(PLAN, converter=choice_of(settings, {}))
        )
        for told, settings in ((way, SETTINGS[way]), (None, POSTGRES))
    ]
    mine, theirs = ([*map(without_old_rows, by_key(one))] for one in general)
    assert mine == theirs


def without_old_rows(named):
    """A net change without what a deleted row was: headers alone do not tell it."""
    table, row = named
    return table, {name: cell for name, cell in row.items() if name != "row" or row["op"] != "d"}


def plain(converter, given_: Records):
    """The result of the faster way."""
    count = len(given_.values)
    columns = [[TOPIC] * count, [0] * count, range(count), given_.keys, given_.values]
    types = [SCHEMA.field(at).type for at in range(5)]
    arrays = [
        pa.array(c, t) for c, t in zip([*columns, [None] * count], [*types, HEADERS], strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    return converter.plain_range(TOPIC, 0, [batch], PLAN)


@given(events)
def test_the_faster_way_says_the_same(envelopes):
    given_ = records(envelopes, "fields")
    quick = plain(flattened("fields"), given_)
    bare = [{**e, "before": None} if e["op"] == "u" else e for e in envelopes]
    assert (quick is None) == (plain(JsonConverter(), records(bare, None)) is None)
    if quick is not None:
        plan = replace(PLAN, converter=choice_of(ADDED, {}))
        assert by_key(quick) == by_key(decoder.decode_range(given_, plan))


def test_plain_rows_go_the_faster_way():
    rows = [{**ROW, "id": n % 3} for n in range(9)]
    envelopes = [event("u", row, at=at) for at, row in enumerate(rows, 5)]
    quick = plain(flattened("fields"), records(envelopes, "fields"))
    assert quick is not None
    assert len(by_key(quick)) == 3


def test_a_schema_that_comes_along_is_that_of_the_row_without_what_was_added():
    envelope = event("u", ROW)
    value, _ = flat(envelope, "fields")
    names = [*ROW, "__deleted", *added(envelope)]
    fields = [
        {"field": name, "type": TYPES.get(name, "string"), "optional": name not in ORDERS.key}
        for name in names
    ]
    schema = {"type": "struct", "fields": fields, "name": "shop.public.orders.Value"}
    wrapped = b'{"schema":' + encode(schema) + b',"payload":' + value + b"}"
    key = encode({name: ROW[name] for name in ORDERS.key})
    converter = flattened("fields")
    heads = converter.headers(Records(TOPIC, 0, [0], [key], [wrapped], [None]), PLAN)
    assert (heads.kind, heads.reason) == ([Kind.CHANGE], [None])
    for found in (heads.schema[0], encode(schema)):  # told as JSON the schema is the row's
        table = converter.schema_of(TABLE, found, key)
        assert [(c.name, c.type) for c in table.columns] == [
            (c.name, c.type) for c in ORDERS.columns
        ]
        assert table.key == ORDERS.key
    assert b"io.debezium.connector.postgresql.Source" in heads.schema[0]


@pytest.mark.parametrize(
    ("value", "headers", "kind"),
    [
        (None, None, Kind.TOMBSTONE),
        (b'{"id":7,"part":"a"}', None, Kind.BAD),  # nothing of an envelope
        (b'{"id":7,"__op":"u","__source_table":"orders"}', None, Kind.BAD),  # no place in the log
        (b'{"id":7,"__op":null}', None, Kind.BAD),
        (b"[1]", None, Kind.BAD),
        (b"\xff", None, Kind.BAD),
        (b"7", [{"key": "__op", "value": b"u"}], Kind.BAD),
        (encode({"ts_ms": 5}), None, Kind.HEARTBEAT),
        (encode(event("u", ROW)), None, Kind.CHANGE),  # not for this transform
    ],
)
def test_what_was_no_event_is_what_it_was(value, headers, kind):
    both = Flattening(
        choice_of(ADDED, {}).flattening.fields, choice_of(IN_HEADERS, {}).flattening.headers
    )
    converter = FlattenedConverter(JsonConverter(), both)
    heads = converter.headers(Records(TOPIC, 0, [0], [b'{"id":7}'], [value], [headers]), PLAN)
    assert heads.kind == [kind]
    assert (heads.reason[0] is None) == (kind != Kind.BAD)


@given(st.binary(max_size=60), st.binary(max_size=20), st.sampled_from(["__op", "__source_lsn"]))
def test_no_bytes_raise_anything(value, cell, name):
    for way in SETTINGS:
        given_ = Records(TOPIC, 0, [0], [value], [value], [[{"key": name, "value": cell}]])
        assert len(flattened(way).headers(given_, PLAN).kind) == 1


@pytest.mark.parametrize("text", [b"u", b'"u"', b'{"schema":{"type":"string"},"payload":"u"}'])
def test_headers_are_texts_or_json(text):
    (value,), (headers,) = (one for one in zip(*[flat(event("u", ROW), "headers")], strict=True))
    told = [one if one["key"] != "__op" else {**one, "value": text} for one in headers]
    key = encode({name: ROW[name] for name in ORDERS.key})
    heads = flattened("headers").headers(Records(TOPIC, 0, [0], [key], [value], [told]), PLAN)
    assert (heads.op, heads.kind) == (["u"], [Kind.CHANGE])


def test_the_size_that_counts_is_that_of_the_record():
    given_ = records([event("u", ROW)], "fields")
    size = len(given_.values[0])
    for most, reason in ((size, None), (size - 1, "record-too-large")):
        heads = flattened("fields").headers(given_, replace(PLAN, max_event_bytes=most))
        assert heads.reason == [reason]


def test_options_make_another_of_its_kind_and_nothing_is_learnt():
    converter = flattened("fields")
    made = converter.of(ConverterOptions(value=(("schemas.enable", "false"),)))
    assert made.carries_schemas("value") is False
    given_ = records([event("u", ROW)], "fields")
    assert made.headers(given_, PLAN) == converter.headers(given_, PLAN)
    assert not made.learn(given_, made.headers(given_, PLAN)).tables


def test_headers_that_tell_of_a_row_are_among_those_that_are_read():
    told = Flattening(headers=(AddedField("__op", "", "op"), AddedField("__lsn", "source", "lsn")))
    for converter in (
        FlattenedConverter(JsonConverter(), told),
        AvroConverter(FlattenedConverter(JsonConverter(), told)),
    ):
        assert {"__op", "__lsn"} <= converter.read_headers
