"""Rendering is the inverse of decoding, for every canonical type and setting of the connector."""

import msgspec
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.converters.json.rendering import Rendering
from lakemark.converters.json.rows import decode_rows
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import from_connect
from tests.kit import canonical_values
from tests.kit.row_images import field

TYPES = ["bool", "int2", "int4", "int8", "oid", "float4", "float8", "bpchar", "text", "inet", "tsrange", "bytea", "numeric", "money", "json", "xml", "uuid", "ltree", "date", "time", "timestamp", "timestamptz", "timetz", "interval", "hstore", "bit", "varbit", "point", "circle", "line", "box", "geometry", "vector", "sparsevec"]  # fmt: skip
PRECISIONS = ["adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds", "structured"]  # fmt: skip
NO_ARRAYS = {"money", "interval", "point", "circle", "line", "box", "bit", "varbit", "geometry", "vector", "sparsevec", "xml", "oid"}  # fmt: skip
NUMERIC_TYPMODS = [-1, ((6 << 16) | 2) + 4, ((18 << 16) | 0) + 4, ((38 << 16) | 10) + 4, ((50 << 16) | 10) + 4]  # fmt: skip
# Forms that PostgreSQL's connector does not write.
OTHERS = [
    field("tiny", "int8"),
    field("date", "string", "io.debezium.time.IsoDate"),
    {"type": "map", "field": "by_number", "optional": True, "keys": {"type": "int16"}, "values": {"type": "double", "optional": True}},
    {"type": "array", "field": "lists", "optional": True, "items": {"type": "array", "optional": True, "items": {"type": "string", "optional": True}}},
    {"type": "struct", "field": "deep", "optional": True, "fields": [
        field("at", "int64", "io.debezium.time.MicroTimestamp"),
        {"type": "array", "field": "list", "optional": True, "items": {"type": "int32", "optional": True, "name": "io.debezium.time.Date"}},
    ]},
    {"type": "map", "field": "odd", "optional": True, "keys": {"type": "boolean"}, "values": {"type": "int32"}},
]  # fmt: skip


@st.composite
def settings_of_connectors(draw):
    return HandlingModes(
        decimal=draw(st.sampled_from(["precise", "double", "string"])),
        time_precision=draw(st.sampled_from(PRECISIONS)),
        binary=draw(st.sampled_from(["bytes", "base64", "base64-url-safe", "hex"])),
        hstore=draw(st.sampled_from(["json", "map"])),
        interval=draw(st.sampled_from(["numeric", "string"])),
        decimal_format=draw(st.sampled_from(["BASE64", "NUMERIC"])),
    )


@st.composite
def catalog_columns(draw, at):
    kind = draw(st.sampled_from(TYPES))
    name = draw(st.sampled_from([f"c{at}", f'c"{at}', f"ü 😀{at}"]))
    typmod = draw(st.sampled_from(NUMERIC_TYPMODS)) if kind == "numeric" else -1
    if kind not in NO_ARRAYS and draw(st.booleans()):
        return CatalogColumn(name, "_" + kind, typmod, element_type_name=kind)
    return CatalogColumn(name, kind, typmod)


@st.composite
def tables(draw):
    modes = draw(settings_of_connectors())
    count = draw(st.integers(1, 5))
    columns = [draw(catalog_columns(at)) for at in range(count)]
    schema = from_catalog("s.t", columns, [], modes)
    return (schema, modes) if schema.columns else (from_others(), modes)


def from_others():
    return from_connect("s.t", {"type": "struct", "fields": OTHERS}, None)


@st.composite
def filled(draw, made):
    schema, modes = draw(made)
    count = draw(st.integers(0, 4))
    columns = [draw(canonical_values.columns(count, c)) for c in schema.columns]
    names = [c.name for c in schema.columns]
    return schema, modes, pa.StructArray.from_arrays(columns, names=names)


@given(filled(tables() | st.tuples(st.builds(from_others), settings_of_connectors())))
def test_decoding_what_was_rendered_gives_the_same_values(case):
    schema, modes, rows = case
    out = Rendering(schema, modes).images(rows)
    images = out.objects.to_pylist()
    again = decode_rows(images, schema, modes)
    assert (again.bad, again.unknown, again.clamped) == ([], set(), 0)
    # As texts: NaN is not equal to itself, and -0.0 is to 0.0.
    assert str(again.columns.to_pylist()) == str(rows.to_pylist())
    names = [column.name for column in schema.columns]
    assert [list(msgspec.json.decode(image)) for image in images] == [names] * len(rows)


@given(filled(tables()))
def test_rows_are_rendered_alone_as_together(case):
    schema, modes, rows = case
    rendering = Rendering(schema, modes)
    together = rendering.images(rows)
    for at in range(len(rows)):
        alone = rendering.images(rows.slice(at, 1))
        assert alone.objects[0] == together.objects[at]
        assert {c for c, found in together.inexact.items() if at in found} == set(alone.inexact)


@given(filled(tables()))
def test_only_columns_with_a_loss_have_inexact_rows(case):
    schema, modes, rows = case
    rendering = Rendering(schema, modes)
    assert set(rendering.images(rows).inexact) <= {loss.column for loss in rendering.losses}
