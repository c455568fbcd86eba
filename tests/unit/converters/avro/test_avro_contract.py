"""Avro keeps what every converter must, and reads records as real converters wrote them."""

import msgspec
import pyarrow as pa
import pytest

from lakemark.converters.avro.connect_schema import connect_schema
from lakemark.converters.avro.converter import JAVA_CLASSES, AvroConverter
from lakemark.converters.avro.framing import HEADERS
from lakemark.converters.avro.schema_source import SchemaReference
from lakemark.converters.json.arriving import ArrivingConverter
from lakemark.converters.json.converter import JsonConverter
from lakemark.converters.json.struct_keys import StructKeysConverter
from lakemark.converters.registry import CONVERTERS, SIDES, choice_of, converter_of
from lakemark.errors import DependencyError
from lakemark.model import positions
from lakemark.model.decoding import Flattening, Records, StretchPlan
from lakemark.model.events import Kind, SourceIdentity
from lakemark.source import decoder, fetch, raw_records
from tests.kit.avro_records import DictSource, confluent, datum, record
from tests.kit.converter_contract import (
    MODES,
    ORDERS,
    ROW,
    TOPIC,
    ConverterContract,
    by_key,
    source,
)

(AVRO,) = [name for name in JAVA_CLASSES if "confluent" in name]
(JSON,) = JsonConverter.java_classes
STRING = "org.apache.kafka.connect.storage.StringConverter"
NAME = "avro-of-a-dict"
SOURCE = DictSource()
USUAL = {
    "id": "int", "part": "string", "n": ["null", "long"], "text": ["null", "string"],
    "flag": ["null", "boolean"], "ratio": ["null", "double"],
    "sequence": ["null", "string"], "lsn": ["null", "long"], "xmin": ["null", "long"],
    "txId": ["null", "long"],
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def registered():
    CONVERTERS[NAME] = AvroConverter(JsonConverter(), lambda _: SOURCE)
    CONVERTERS[NAME].prepare()  # what is compiled takes longer than an example may
    yield
    del CONVERTERS[NAME]


class TestAvro(ConverterContract):
    name = NAME
    own = (("schema.registry.url", "http://registry:8081"),)

    def value(self, event):
        if event is None:
            return b""
        fields = []
        for image in ("before", "after"):
            row = event[image] or event["before"] or event["after"] or ROW
            fields.append({"name": image, "type": ["null", record(image, row, USUAL)]})
        fields.append({"name": "source", "type": record("Source", event["source"], USUAL)})
        schema = {
            "type": "record",
            "name": "Envelope",
            "fields": [*fields, {"name": "op", "type": "string"}],
        }
        return confluent(SOURCE.put(schema), datum(schema, event))

    def key(self, row):
        schema = record("Key", row, USUAL)
        return confluent(SOURCE.put(schema), datum(schema, row))


@pytest.mark.parametrize("ops", ["c", "cud", "cuuuc"])
def test_plain_events_of_one_schema_are_read_the_faster_way(ops):
    """Each key's newest image, and no other: an older one that nobody could read does not matter."""
    avro, count = TestAvro(), len(ops)
    keys = [avro.key({"id": 7 + (at == count - 1), "part": "a"}) for at in range(count)]
    rows = [{**ROW, "id": 7 + (at == count - 1), "part": "a", "n": at} for at in range(count)]
    values = [
        avro.event(op, row if op == "d" else None, None if op == "d" else row, at=5 + at)
        for at, (op, row) in enumerate(zip(ops, rows, strict=True))
    ]
    columns = [pa.array(range(count + 1)), pa.array([*keys, keys[0]]), pa.array([*values, None])]
    batch = pa.RecordBatch.from_arrays(columns, ["offset", "key", "value"])
    quick = avro.converter.plain_range(TOPIC, 0, [batch], avro.plan)
    assert quick is not None
    assert quick.kinds == {Kind.CHANGE: count, Kind.TOMBSTONE: 1}
    records = Records(TOPIC, 0, [*range(count)], keys, values, [None] * count)
    general = decoder.decode_range(records, avro.plan)
    assert by_key(quick) == by_key(general)
    assert quick.applied_position == general.applied_position
    other = avro.event("c", None, {**ROW, "more": 1}, at=99)
    both = pa.RecordBatch.from_arrays(
        [pa.array([0, 1]), pa.array([keys[0], keys[0]]), pa.array([values[0], other])],
        ["offset", "key", "value"],
    )
    assert avro.converter.plain_range(TOPIC, 0, [both], avro.plan) is None, "two schemas"


def test_a_schema_that_nobody_has_makes_bad_records_and_a_registry_that_is_away_none():
    avro = TestAvro()
    key, value = avro.key({"id": 7, "part": "a"}), avro.event("c", None, ROW)
    unknown = b"\0" + (1 << 30).to_bytes(4) + value[5:]
    heads = avro.headers([unknown, value], [key, b"\0" + (1 << 30).to_bytes(4) + key[5:]])
    assert heads.reason == ["schema-not-found"] * 2
    assert avro.headers([value[:-1]]).reason == ["invalid-avro"]

    def away(_):
        raise DependencyError("the registry is away", code="registry-unavailable")

    records = Records(TOPIC, 0, [0], [key], [value], [None])
    with pytest.raises(DependencyError):
        AvroConverter(JsonConverter(), away).headers(records, avro.plan)


def test_json_beside_avro_is_read_as_json():
    avro = TestAvro()
    event = {"before": None, "after": ROW, "source": source(), "op": "c"}
    plain, key = msgspec.json.encode(event), b'{"id":7,"part":"a"}'
    values = [plain, avro.event("c", None, ROW), plain]
    heads = avro.headers(values, [avro.key({"id": 7, "part": "a"}), key, key])
    assert heads.reason == [None] * 3
    images = [image or b"" for image in heads.after]
    assert avro.converter.rows(images, ORDERS, MODES).columns.to_pylist() == [ROW] * 3
    assert [schema is None for schema in heads.schema] == [True, False, True]
    assert (
        len({*avro.converter.canonical_keys([avro.key({"id": 7, "part": "a"}), key], ORDERS)}) == 1
    )


@pytest.mark.parametrize(
    ("key", "value", "carries"),
    [
        (AVRO, AVRO, (True, True)),
        (JSON, AVRO, (False, True)),
        (AVRO, JSON, (True, False)),
        (STRING, AVRO, (False, True)),
        ("", AVRO, (None, True)),
        (AVRO, "", (True, None)),
    ],
)
def test_each_side_has_the_form_that_the_connector_says(key, value, carries):
    told = {
        "key.converter": key,
        "value.converter": value,
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
    }
    settings = {name: text for name, text in told.items() if text}
    choice = choice_of(settings, {"schema.registry.url": "http://registry:8081"})
    assert choice.name == "avro"
    made = converter_of(choice)
    assert tuple(made.carries_schemas(side) for side in SIDES) == carries
    wrong = [found.path for found in made.problems(described=False) if not found.warning]
    assert wrong == (["value.converter.schemas.enable"] if value == JSON else [])
    assert not [found for found in made.problems(described=True) if not found.warning]


@pytest.mark.parametrize(("own", "kind"), [("globalId", "global"), ("contentId", "content")])
def test_keys_and_values_whose_ids_are_in_headers_are_those_with_ids_before_them(own, kind):
    avro = TestAvro()
    rows = [{**ROW, "id": number, "part": "a"} for number in (0, 7, -7)]
    keys = [avro.key({"id": row["id"], "part": "a"}) for row in rows]
    values = [avro.event("c", None, row, at=5 + at) for at, row in enumerate(rows)]

    def header(side, raw):
        number = int.from_bytes(raw[1:5])
        SOURCE.texts[SchemaReference(kind, number)] = SOURCE.texts[SchemaReference("id", number)]
        return {"key": f"apicurio.{side}.{own}", "value": number.to_bytes(8)}

    headers = [
        [header("key", key), header("value", value)]
        for key, value in zip(keys, values, strict=True)
    ]
    bare = Records(TOPIC, 0, [0, 1, 2], [k[5:] for k in keys], [v[5:] for v in values], headers)
    framed = Records(TOPIC, 0, [0, 1, 2], keys, values, [None] * 3)
    found, expected = (decoder.decode_range(records, avro.plan) for records in (bare, framed))
    assert by_key(found) == by_key(expected)
    assert len(by_key(found)) == len(rows)
    assert found.keys == expected.keys
    assert found.dead == []


def test_only_headers_that_count_are_read():
    entries = [{"key": name, "value": b"1"} for name in ("other", "apicurio.key.globalId")]
    part = pa.RecordBatch.from_arrays(
        [
            pa.array([0]),
            pa.array([b"k"]),
            pa.array([b"v"]),
            pa.array([entries], fetch.HEADERS),
        ],
        ["offset", "key", "value", "headers"],
    )
    chosen = raw_records.of(TOPIC, 0, [part], read_headers=HEADERS)
    assert chosen.headers == [[entries[1]]]
    assert raw_records.of(TOPIC, 0, [part]).headers == [None]


def test_a_type_that_is_used_again_tells_nothing_of_the_column_that_it_came_with():
    told = {"__debezium.source.column.name": "at (1)", "__debezium.source.column.length": "29"}
    moment = {
        "type": "record", "name": "io.debezium.time.Moment", "connect.parameters": {**told, "own": "x"},
        "fields": [{"name": "year", "type": "int"}],
    }  # fmt: skip
    fields = [{"name": "at_1", "type": moment}, {"name": "at_2", "type": "io.debezium.time.Moment"}]
    one, two = connect_schema({"type": "record", "name": "Row", "fields": fields})["fields"]
    assert (one["field"], two["field"]) == ("at (1)", "at_2")
    assert one["parameters"] == {**told, "own": "x"}
    assert two["parameters"] == {"own": "x"}


def test_keys_may_be_texts_beside_avro():
    avro = TestAvro()
    converter = AvroConverter(StructKeysConverter(JsonConverter()), lambda _: SOURCE)
    row = {**ROW, "part": "a,id=8"}
    value = avro.event("c", None, row)
    records = Records(TOPIC, 0, [0], [b"Struct{id=7,part=a,id=8}"], [value], [None])
    heads = converter.headers(records, avro.plan)
    assert (heads.kind, heads.reason) == ([Kind.CHANGE], [None])
    key = avro.key({"id": 7, "part": "a,id=8"})
    mine = converter.canonical_keys([heads.keys[0], key], ORDERS)
    assert mine[0] is not None
    assert mine[0] == mine[1]


def test_rows_taken_as_they_arrive_have_the_schemas_that_they_name():
    """A delete is a key alone: it has the key's."""
    flattening = Flattening(connector="postgresql", arrival=True)
    rows = ArrivingConverter(JsonConverter(), flattening)
    converter = AvroConverter(rows, lambda _: SOURCE)
    row, own = {"id": 7, "part": "a", "n": 1}, {"id": 7, "part": "a"}
    value, key = (record(name, told, USUAL) for name, told in (("Value", row), ("Key", own)))
    keys = [confluent(SOURCE.put(key), datum(key, own))] * 2
    values = [confluent(SOURCE.put(value), datum(value, row)), None]
    plan = StretchPlan(SourceIdentity(positions.ARRIVAL, "shop"), MODES).of_epoch(0)
    heads = converter.headers(Records(TOPIC, 3, [40, 41], keys, values, [None] * 2), plan)
    assert (heads.kind, heads.op) == ([Kind.CHANGE] * 2, ["u", "d"])
    assert heads.table == ["public.orders"] * 2
    assert [int.from_bytes(at[-8:]) for at in heads.position] == [40, 41]
    tables = [converter.schema_of("public.orders", one, keys[0]) for one in heads.schema]
    assert [[column.name for column in table.columns] for table in tables] == [[*row], [*own]]
    assert {table.key for table in tables} == {("id", "part")}
