"""Schemas of records that bring none are those that the same connector writes where it does."""

import json

import msgspec
import pyarrow as pa
import pytest

from lakemark.connectors.postgres import positions as lsns
from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.converters.converter import Moment
from lakemark.converters.json.converter import JsonConverter
from lakemark.converters.json.described import described, key_schema, value_schema
from lakemark.converters.json.envelopes import sample
from lakemark.model.decoding import ConverterOptions
from lakemark.model.events import NOTHING_LEARNT, Learnt
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import from_connect, from_envelope
from tests.kit.golden import GOLDEN

TYPES = json.loads((GOLDEN / "postgres_types.json").read_text())
EVENT = b'{"after":null,"source":{"name":"shop","connector":"postgresql"}}'


def wrapped(name):
    """Change events with their schemas, by label."""
    told = json.loads((GOLDEN / name).read_text())
    return {
        label: one
        for label, one in told.items()
        if one["key"] and one["value"] and "schema" in one["value"]
        and "source" in (one["value"]["payload"] or {}) and "after" in one["value"]["payload"]
    }  # fmt: skip


def lasting(schema, left=frozenset()):
    """A schema without some of its members, and without what the connector propagates."""
    if isinstance(schema, list):
        return [lasting(one, left) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("field") == "snapshot":
        return schema
    told = "__debezium.source."
    kept = {n: lasting(part, left) for n, part in schema.items() if n not in left and told not in n}
    return {name: part for name, part in kept.items() if part or name != "parameters"}


@pytest.mark.parametrize("name", ["labelled_schemas_on.json", "avro/wrapped_mariadb.json"])
def test_a_schema_is_the_one_that_the_connector_writes(name):
    compared = 0
    for label, one in wrapped(name).items():
        value, key = one["value"]["schema"], one["key"]["schema"]
        if one["topic"].endswith("signals"):
            continue
        _, schema, bare = one["topic"].split(".")
        table = from_envelope(f"{schema}.{bare}", value, key)
        event = sample(msgspec.json.encode(one["value"]["payload"]))
        assert lasting(value_schema(table, event)) == lasting(value), label
        assert lasting(key_schema(table, event)) == lasting(key), label
        compared += 1
    assert compared > 5


@pytest.mark.parametrize(
    ("mode", "table"), [(m, t) for m, case in TYPES["modes"].items() for t in case["tables"]]
)
def test_the_columns_of_a_catalog_have_the_fields_that_debezium_writes(mode, table):
    """Of every type of PostgreSQL in every mode; structured times and their members among them."""
    case = TYPES["modes"][mode]
    columns = [CatalogColumn(**column) for column in TYPES["catalog"][table]]
    modes = HandlingModes.from_connector(case["settings"])
    schema = from_catalog(f"public.{table}", columns, [], modes)
    image, *_ = value_schema(schema, EVENT)["fields"]
    written = {
        field["field"]: field
        for known in ("default", mode)
        for field in TYPES["modes"][known]["tables"][table]["fields"]
    }
    left = {"default", "allowed", "doc"}  # the samples of the catalog, and of records, lack them
    for field in image["fields"]:
        assert lasting(field, left) == lasting(written[field["field"]], left), field["field"]


def test_what_records_bring_counts_first_and_without_an_event_nothing_is_said():
    one = next(iter(wrapped("labelled_schemas_on.json").values()))
    table = from_envelope("s.t", one["value"]["schema"], one["key"]["schema"])
    assert described(table, NOTHING_LEARNT) == NOTHING_LEARNT
    event = sample(msgspec.json.encode(one["value"]["payload"]))
    learnt = Learnt(event, {"s.t": (b"", b"{}"), "s.u": (b"", b"")})
    found = described(table, learnt).tables
    assert found["s.t"][1] == b"{}"
    assert json.loads(found["s.t"][0]) == key_schema(table, event)
    assert found["s.u"] == (b"", b"")


PLAIN, WRAPPED = {"schemas.enable": "false"}, {"schemas.enable": "true"}
KEEPS = {"replace.null.with.default": "false"}


@pytest.mark.parametrize(
    ("value", "wrapped", "written"),
    [
        ({}, True, 7),
        (WRAPPED, True, 7),
        (WRAPPED | KEEPS, True, None),
        (PLAIN, False, None),
        (PLAIN, True, None),  # only keys carry theirs
        ({}, False, None),
    ],
)
def test_null_in_a_row_is_the_default_only_where_the_connector_s_records_have_it_so(
    value, wrapped, written
):
    """A schema that is made of the table's columns has defaults, and says nothing of NULL."""
    column = {"type": "int32", "optional": True, "default": 7, "field": "n"}
    table = from_connect("s.t", {"fields": [column]}, None)
    event = (
        b'{"after":null,"source":{"connector":"postgresql","name":"shop","schema":"","table":"",'
        b'"snapshot":"false","sequence":null,"lsn":1,"ts_ms":1},"op":"c","ts_ms":1}'
    )
    converter = JsonConverter(ConverterOptions(value=(*value.items(),)))
    learnt = converter.described(table, Learnt(event))
    writer = converter.writer("s.t", table, HandlingModes(), learnt=learnt, wrapped=wrapped)
    rows = pa.array([{"n": None}], pa.struct([("n", pa.int32())]))
    _, (record,) = writer.reads(rows, Moment(lsns.pack(1, 8, 8), 1, 1))
    told = json.loads(record)
    assert told["payload"]["after"] == {"n": written}
    (image,) = (field for field in told["schema"]["fields"] if field["field"] == "after")
    assert image["fields"][0]["default"] == 7


def test_a_number_of_any_scale_has_the_fields_that_it_is_written_with():
    number = {
        "type": "struct", "optional": True, "name": "io.debezium.data.VariableScaleDecimal",
        "version": 1, "field": "n", "fields": [
            {"type": "int32", "optional": False, "field": "scale"},
            {"type": "bytes", "optional": False, "field": "value"},
        ], "doc": "Variable scaled decimal",
    }  # fmt: skip
    table = from_connect("s.t", {"fields": [number]}, None)
    event = b'{"after":null,"source":{"name":"shop","connector":"postgresql"}}'
    (image,) = value_schema(table, event)["fields"][:1]
    assert image["fields"] == [number]
