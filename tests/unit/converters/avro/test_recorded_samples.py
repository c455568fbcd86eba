"""Records as a real converter wrote them: rows, keys and columns are those of their JSON."""

import base64
import json
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from lakemark.converters.avro.converter import AvroConverter
from lakemark.converters.avro.schema_source import SchemaReference
from lakemark.converters.json.converter import JsonConverter
from lakemark.converters.record_schema import compare
from lakemark.model.decoding import ConverterOptions, Records, StretchPlan, TableReport
from lakemark.model.events import Kind, SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from tests.kit.avro_records import DictSource
from tests.kit.golden import GOLDEN, text

MODES = HandlingModes()
NAMES = {"postgres": ("postgresql", "pga"), "mariadb": ("mariadb", "mariaa")}
AVRO = GOLDEN / "avro"
CONFLUENT = "io.confluent.connect.avro.AvroConverter"
CLOCK = "updated"
"""A column that has the time at which the statement ran."""


def converter_of(database, kind="id", ids=None):
    source = DictSource()
    for number, known in json.loads((AVRO / f"avro_{database}_schemas.json").read_text()).items():
        schema = known["schema"]
        written = schema if isinstance(schema, str) else json.dumps(schema)
        source.texts[SchemaReference("id", int(number))] = written
    for number, of in (ids or {}).items():
        source.texts[SchemaReference(kind, number)] = source.texts[SchemaReference("id", of)]
    return AvroConverter(JsonConverter(), lambda _: source)


def raw(coded):
    return None if coded is None else base64.b64decode(coded)


def records_of(topic, samples):
    headers = [[{"key": k, "value": raw(v)} for k, v in one["headers"]] for one in samples]
    keys, values = ([raw(one[f"{side}_base64"]) for one in samples] for side in ("key", "value"))
    return Records(topic, 0, [*range(len(samples))], keys, values, headers)


def recorded(database):
    lines = (AVRO / f"avro_{database}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def plan_of(connector, name):
    return StretchPlan(SourceIdentity(connector, name), MODES)


def shown(converter, records, plan):
    """What of each record a table sees: operation, columns, rows and key."""
    heads = converter.headers(records, plan)
    out = []
    for at, (key, raw_schema) in enumerate(zip(records.keys, heads.schema, strict=True)):
        assert heads.reason[at] is None, (heads.reason[at], heads.detail[at])
        schema = raw_schema and converter.schema_of(heads.table[at], raw_schema, key)
        if not schema:
            out.append((heads.op[at], heads.kind[at]))
            continue
        images = [image for image in (heads.before[at], heads.after[at]) if image is not None]
        rows = converter.rows(images, schema, MODES)
        assert (rows.bad, rows.unknown) == ([], set())
        values = [{n: v for n, v in row.items() if n != CLOCK} for row in rows.columns.to_pylist()]
        out.append((
            heads.op[at], heads.table[at], schema.columns, schema.key, values, converter.canonical_keys([key], schema),
        ))  # fmt: skip
    return out


def test_mariadbs_records_say_in_avro_what_they_say_in_json():
    """The same statements on two servers: what differs are the servers' own names and clocks."""
    wrapped = json.loads((AVRO / "wrapped_mariadb.json").read_text())
    avro = {one["label"]: one for one in recorded("mariadb") if one["label"] in wrapped}
    assert len(avro) > 40
    ours, theirs = converter_of("mariadb"), JsonConverter()
    differ = []
    for label, sample in avro.items():
        told = wrapped[label]
        records = Records("t", 0, [0], [text(told["key"])], [text(told["value"])], [None])
        name = told["value"]["payload"]["source"]["name"]
        expected = shown(theirs, records, plan_of("mariadb", name))
        found = shown(ours, records_of(sample["topic"], [sample]), plan_of(*NAMES["mariadb"]))
        if found != expected:
            differ.append((label, found, expected))
    assert differ == []


@pytest.mark.parametrize("database", [*NAMES])
def test_all_that_was_recorded_is_read(database):
    """Every kind of record that a connector writes, in one stretch with many schemas."""
    samples, converter = recorded(database), converter_of(database)
    heads = converter.headers(records_of("t", samples), plan_of(*NAMES[database]))
    kinds = Counter(Kind(kind) for kind in heads.kind)
    assert kinds[Kind.BAD] == 0, [detail for detail in heads.detail if detail]
    of_labels = Counter(one["label"].split("_")[0] for one in samples)
    assert kinds[Kind.TOMBSTONE] == of_labels["tombstone"]
    assert kinds[Kind.TRUNCATE] == of_labels["t"] > 0
    assert kinds[Kind.TRANSACTION] == sum(one["topic"].endswith(".transaction") for one in samples)
    assert kinds[Kind.CHANGE] == sum(of_labels[op] for op in "cud") > 0
    shown(converter, records_of("t", samples), plan_of(*NAMES[database]))


def test_statements_of_the_schema_topic_are_read():
    samples = [one for one in recorded("mariadb") if one["topic"] == "mariaa"]
    changes = converter_of("mariadb").schema_changes(
        records_of("mariaa", samples), plan_of(*NAMES["mariadb"])
    )
    assert len([*changes]) > 5


def test_a_name_that_avro_had_to_change_is_the_sources_where_the_schema_tells():
    source = DictSource()
    told = {"__debezium.source.column.name": "weird col"}
    field = {"name": "weird_col", "type": ["null", {"type": "int", "connect.parameters": told}]}
    schema = {"type": "record", "name": "Key", "fields": [field]}
    number = source.put(schema)
    converter = AvroConverter(JsonConverter(), lambda _: source)
    key = b"\0" + number.to_bytes(4) + b"\2\12"
    assert converter.key_names(key) == ("weird col",)
    assert converter.canonical_keys([key], None) == [b"[5]"]


@pytest.mark.parametrize(
    ("framing", "ids"), [("eight_byte_id", {3: 15}), ("id_in_headers", {4: 15})]
)
def test_the_other_framings_of_apicurio_are_read(framing, ids):
    told = json.loads((AVRO / "avro_framings.json").read_text())
    samples = [one for label, one in told.items() if label.startswith(framing)]
    converter = converter_of("postgres", "global", {**ids, 1: 11, 2: 11})
    for sample in samples:
        if sample["value_base64"] is None:
            continue
        name = sample["topic"].split(".")[0]
        heads = converter.headers(
            records_of(sample["topic"], [sample]), plan_of("postgresql", name)
        )
        assert heads.detail == [None]
        assert heads.table == ["public.customers"]
        schema = converter.schema_of(heads.table[0], heads.schema[0], None)
        rows = converter.rows([heads.after[0]], schema, MODES)
        assert rows.bad == []
        assert rows.columns.to_pylist()[0]["name"] in {"Ann", "Bob", "Cy", "Cy2"}


@pytest.mark.parametrize("switch", ["true", "false"])
def test_a_real_converters_schema_tells_the_columns_whose_null_is_lost(switch):
    """`score` may be NULL and has a default; the converter wrote the default for NULL."""
    reader = converter_of("mariadb")
    samples = [one for one in recorded("mariadb") if "customers" in one["topic"]]
    told = ConverterOptions(
        value=(("ignore.default.for.nullables", switch),),
        value_class=CONFLUENT,
        key_class=CONFLUENT,
    )
    reader = reader.of(told)
    heads = reader.headers(records_of("t", samples), plan_of(*NAMES["mariadb"]))
    at = next(at for at, schema in enumerate(heads.schema) if schema)
    schema = reader.schema_of("shop.customers", heads.schema[at], None)
    report = TableReport()
    compare(report, reader, heads.schema[at], schema, replace(schema, columns=schema.columns[1:]))
    assert report.hidden_nulls == (() if switch == "true" else ("score",))
    assert report.other_schema == b"", "a column that only one of them has is no difference"
    other = tuple(replace(c, type=pa.string()) if c.name == "id" else c for c in schema.columns)
    compare(report, reader, heads.schema[at], schema, replace(schema, columns=other))
    assert TableSchema.from_json(report.other_schema) == schema
