"""Deletes that no event brought, where records carry schemas: the connector's own image of them."""

import json

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given

from lakemark.converters.avro.avro_schema import avro_schema
from lakemark.converters.avro.datum_writer import datum_of
from lakemark.converters.avro.plain_datums import json_of
from lakemark.converters.avro.program import program_of
from lakemark.converters.json.envelopes import EnvelopeTemplate, Reading, wrapper_schema
from lakemark.converters.json.key_rows import other_cells
from tests.kit.golden import samples
from tests.unit.converters.avro.test_avro_schema import structs

READING = Reading("public", "t", 1, 2, {"lsn": 1, "sequence": "[null]"})


@pytest.mark.parametrize("name", ["d_customers_default_identity", "d_orders_default_identity"])
def test_the_image_is_that_of_the_connectors_own_delete(name):
    sample = samples(wrapped=True)[name]
    key, value = (json.loads(side)["payload"] for side in (sample.key, sample.value))
    keys = pa.array([json.dumps(key).encode()] * 2, pa.binary())
    schema = wrapper_schema(sample.value)
    template = EnvelopeTemplate(sample.value)
    first, second = template.removals(keys, READING, wrapper_schema=schema).to_pylist()
    assert first == second
    found = json.loads(first)
    assert found["schema"] == json.loads(schema)
    assert {side: found["payload"][side] for side in ("op", "before", "after")} == {
        side: value[side] for side in ("op", "before", "after")
    }
    none = template.removals(keys[:0], READING, wrapper_schema=schema)
    assert none.to_pylist() == []


def test_without_a_schema_it_has_the_key_alone():
    template = EnvelopeTemplate(samples(wrapped=False)["d_orders_default_identity"].value)
    (value,) = template.removals(pa.array([b'{"id":7}']), READING).to_pylist()
    assert json.loads(value)["before"] == {"id": 7}


@pytest.mark.parametrize(
    ("told", "value"),
    [
        ({"type": "int32", "optional": True, "default": 3}, None),
        ({"type": "int32", "default": 3}, 3),
        ({"type": "boolean", "default": False}, False),
        ({"type": "int64"}, 0),
        ({"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}, "AA=="),
        ({"type": "string", "name": "io.debezium.data.Json"}, "{}"),
        ({"type": "array", "items": {"type": "string"}}, []),
        ({"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}, {}),
        (
            {
                "type": "struct",
                "name": "io.debezium.data.geometry.Point",
                "fields": [
                    {"type": "double", "field": "x"},
                    {"type": "bytes", "optional": True, "field": "wkb"},
                ],
            },
            {"x": 0.0, "wkb": None},
        ),
    ],
)
def test_a_column_beside_the_key_is_empty(told, value):
    row = {"field": "after", "fields": [{"type": "int32", "field": "id"}, {**told, "field": 'a"'}]}
    text = b'{"id":5%s}' % other_cells(msgspec.json.encode({"fields": [row]}), b'{"id":5}')
    assert json.loads(text) == {"id": 5, 'a"': value}


@given(structs())
def test_the_image_fits_any_schema(made):
    """As Avro, which takes nothing that does not fit, of a row without a single cell known."""
    schema, _ = made
    fields = [{**field, "optional": False} for field in schema["fields"]]
    row = {**schema, "fields": fields}
    cells = other_cells(msgspec.json.encode({"fields": [{**row, "field": "after"}]}), b"{}")
    text = b"{%s}" % cells[1:]
    program = program_of(avro_schema(row))
    assert {*json.loads(text)} == {field["field"] for field in fields}
    assert json.loads(json_of(program, datum_of(program, text))) == json.loads(text)
