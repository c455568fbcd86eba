"""Schemas from messages and from the catalog: the same, for every type and setting."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakemark.connectors.postgres.catalog import CatalogColumn, connect_field, from_catalog
from lakemark.errors import ConfigError, TableError
from lakemark.model.columns import Column
from lakemark.model.evolution import compare
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema, from_connect, from_envelope

GOLDEN = Path(__file__).parents[2] / "golden"
TYPES = json.loads((GOLDEN / "postgres_types.json").read_text())
SAMPLES = json.loads((GOLDEN / "labelled_schemas_on.json").read_text())
PRECISE = HandlingModes()


def golden_fields(mode, table):
    """The row's Connect fields that Debezium 3.7 wrote; modes hold their differences only."""
    default = TYPES["modes"]["default"]["tables"][table]["fields"]
    if mode == "default":
        return default
    case = TYPES["modes"][mode]["tables"][table]
    changed = {f["field"]: f for f in case["fields"]}
    known = [changed.pop(f["field"], f) for f in default if f["field"] not in case["gone"]]
    order = [c["name"] for c in TYPES["catalog"][table]]
    return sorted([*known, *changed.values()], key=lambda f: order.index(f["field"]))


def catalog(table):
    rows = [CatalogColumn(**c) for c in TYPES["catalog"][table]]
    keyed = sorted((r for r in rows if r.key_position), key=lambda r: r.key_position)
    return rows, [r.name for r in keyed]


CASES = [(m, t) for m, case in TYPES["modes"].items() for t in case["tables"]]


@pytest.mark.parametrize(("mode", "table"), CASES)
def test_catalog_gives_the_schema_that_debezium_sends(mode, table):
    rows, key = catalog(table)
    modes = HandlingModes.from_connector(TYPES["modes"][mode]["settings"])
    sent_key = {"fields": [{"field": k} for k in key]}
    sent = from_connect("public." + table, {"fields": golden_fields(mode, table)}, sent_key)
    assert from_catalog("public." + table, rows, key, modes) == sent


@pytest.mark.parametrize("table", list(TYPES["modes"]["default"]["tables"]))
def test_catalog_knows_debeziums_key_order(table):
    _, key = catalog(table)
    assert key == TYPES["modes"]["default"]["tables"][table]["key"]


def test_golden_covers_every_mode_and_many_types():
    assert len(CASES) > 50
    fields = [f for m, t in CASES for f in golden_fields(m, t)]
    assert len({(f["type"], f.get("name")) for f in fields}) > 40


@pytest.mark.parametrize(
    ("label", "columns"),
    [
        ("c_orders_default_identity", ["int8", "int8", "numeric", "text", "timestamptz", "text"]),
        ("c_customers_default_identity", ["int8", "text", "text", "text"]),
        ("r_incremental_snapshot_composite", ["int4", "text", "jsonb"]),
        ("c_nopk_table_identity_full_null_key", ["int4", "text"]),
    ],
)
def test_labelled_samples_with_and_without_schema_agree(label, columns):
    sample = SAMPLES[label]
    key = (sample["key"] or {}).get("schema")
    sent = from_envelope("public.t", sample["value"]["schema"], key)
    assert len(sent.columns) == len(columns)
    rows = [
        CatalogColumn(
            c.name, kind, ((12 << 16) | 2) + 4 if kind == "numeric" else -1, not_null=not c.optional
        )
        for c, kind in zip(sent.columns, columns, strict=True)
    ]
    assert from_catalog("public.t", rows, sent.key, PRECISE) == sent


def type_of(kind, typmod=-1, **modes):
    field = connect_field(CatalogColumn("c", kind, typmod), HandlingModes(**modes))
    schema = from_connect("s.t", {"type": "struct", "fields": [field]}, None)
    return schema.columns[0].type


US, UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")
NUMERIC_12_5 = ((12 << 16) | 5) + 4


@pytest.mark.parametrize(
    ("kind", "typmod", "modes", "expected"),
    [
        ("int2", -1, {}, pa.int16()),
        ("int4", -1, {}, pa.int32()),
        ("int8", -1, {}, pa.int64()),
        ("oid", -1, {}, pa.int64()),
        ("bool", -1, {}, pa.bool_()),
        ("bit", 1, {}, pa.bool_()),
        ("bit", 5, {}, pa.binary()),
        ("varbit", -1, {}, pa.binary()),
        ("float4", -1, {}, pa.float32()),
        ("float8", -1, {}, pa.float64()),
        ("numeric", NUMERIC_12_5, {}, pa.decimal128(12, 5)),
        ("numeric", NUMERIC_12_5, {"decimal": "double"}, pa.float64()),
        ("numeric", NUMERIC_12_5, {"decimal": "string"}, pa.string()),
        ("numeric", ((50 << 16) | 10) + 4, {}, pa.string()),
        ("numeric", ((3 << 16) | 5) + 4, {}, pa.decimal128(5, 5)),
        ("numeric", -1, {}, pa.string()),
        ("money", -1, {}, pa.decimal128(38, 2)),
        ("money", -1, {"money_fraction_digits": 0}, pa.decimal128(38, 0)),
        ("bytea", -1, {}, pa.binary()),
        ("bytea", -1, {"binary": "hex"}, pa.string()),
        ("date", -1, {}, pa.date32()),
        ("time", 3, {}, pa.string()),
        ("timetz", -1, {}, pa.string()),
        ("timestamp", 3, {}, US),
        ("timestamp", -1, {"time_precision": "nanoseconds"}, US),
        ("timestamptz", -1, {}, UTC),
        ("timestamptz", -1, {"time_precision": "structured"}, UTC),
        ("interval", -1, {}, pa.int64()),
        ("interval", -1, {"interval": "string"}, pa.string()),
        ("uuid", -1, {}, pa.string()),
        ("hstore", -1, {}, pa.string()),
        ("hstore", -1, {"hstore": "map"}, pa.map_(pa.string(), pa.string())),
        ("vector", -1, {}, pa.list_(pa.float64())),
        ("halfvec", -1, {}, pa.list_(pa.float32())),
        (
            "sparsevec",
            -1,
            {},
            pa.struct({"dimensions": pa.int16(), "vector": pa.map_(pa.int16(), pa.float64())}),
        ),
        (
            "point",
            -1,
            {},
            pa.struct(
                {"x": pa.float64(), "y": pa.float64(), "wkb": pa.binary(), "srid": pa.int32()}
            ),
        ),
    ],
)
def test_canonical_types(kind, typmod, modes, expected):
    assert type_of(kind, typmod, **modes) == expected


def test_decimal_without_precision_has_38_digits():
    field = {"field": "a", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}
    schema = from_connect("s.t", {"fields": [{**field, "parameters": {"scale": "4"}}]}, None)
    assert schema.columns[0].type == pa.decimal128(38, 4)


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        ("int8", pa.int8()),
        ("string", pa.string()),
        ("bytes", pa.binary()),
        ("double", pa.float64()),
    ],
)
def test_unknown_semantic_names_fall_back_to_their_connect_type(wire, expected):
    schema = from_connect(
        "s.t", {"fields": [{"field": "a", "type": wire, "name": "com.acme.New"}]}, None
    )
    assert schema.columns[0].type == expected
    assert schema.columns[0].encoding == "com.acme.New"


@pytest.mark.parametrize(
    "field",
    [
        {"type": "int128"},
        {"type": "struct", "fields": []},
        {"type": "struct", "fields": [{"field": 'q"uote', "type": "int32"}]},
        {"type": "map", "keys": {"type": "double"}, "values": {"type": "string"}},
    ],
)
def test_what_arrow_cannot_hold_stays_json_text(field):
    column = from_connect("s.t", {"fields": [{"field": "a", **field}]}, None).columns[0]
    assert (column.type, column.wire) == (pa.string(), "json")


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"fields": 1},
        {"fields": [{}]},
        {"fields": [{"field": "a"}]},
        [],
        "x",
        {"fields": [{"field": "a", "type": "array"}]},
    ],
)
def test_no_connect_schema_is_a_table_error(bad):
    with pytest.raises(TableError, match=r"s\.t") as caught:
        from_connect("s.t", bad, None)
    assert caught.value.code == "schema-unreadable"


def test_columns_that_debezium_leaves_out_are_left_out():
    rows = [
        CatalogColumn("id", "int4"),
        CatalogColumn("q", "tsquery"),
        CatalogColumn("m", "_money", element_type_name="money"),
    ]
    rows.append(CatalogColumn("d", "_text", element_type_name="text", element_is_domain=True))
    assert [c.name for c in from_catalog("s.t", rows, ["id"], PRECISE).columns] == ["id"]
    unknown = from_catalog("s.t", rows, ["id"], HandlingModes(include_unknown=True))
    assert [c.name for c in unknown.columns] == ["id", "q", "d"]


def test_json_and_fingerprint_survive_the_way_to_a_worker():
    for mode, table in CASES:
        schema = from_connect(
            "s.t", {"fields": golden_fields(mode, table)}, {"fields": [{"field": "id"}]}
        )
        copy = TableSchema.from_json(schema.to_json())
        assert copy == schema
        assert copy.arrow() == schema.arrow()
        assert copy.fingerprint() == schema.fingerprint()
    assert schema.fingerprint() != replace(schema, key=()).fingerprint()


def test_padding_takes_no_part_in_equality_but_survives():
    schema = from_catalog("s.t", [CatalogColumn("k", "bpchar", 9)], ["k"], PRECISE)
    assert schema.column("k").padded
    assert TableSchema.from_json(schema.to_json()).column("k").padded
    plain = from_connect(
        "s.t",
        {"fields": [{"field": "k", "type": "string", "optional": True}]},
        {"fields": [{"field": "k"}]},
    )
    assert plain == schema
    assert plain.fingerprint() == schema.fingerprint()
    assert plain.with_notes_of(schema).column("k").padded
    told = {
        "field": "k",
        "type": "string",
        "parameters": {"__debezium.source.column.type": "BPCHAR"},
    }
    assert from_connect("s.t", {"fields": [told]}, None).column("k").padded


def test_modes_come_from_the_connectors_configuration():
    assert HandlingModes.from_connector({}) == HandlingModes()
    modes = HandlingModes.from_connector(
        {
            "decimal.handling.mode": "STRING",
            "binary.handling.mode": "base64-url-safe",
            "money.fraction.digits": "3",
            "value.converter.decimal.format": "numeric",
            "include.unknown.datatypes": "true",
            "unavailable.value.placeholder": "hex:0aff",
        }
    )
    assert (modes.decimal, modes.binary, modes.money_fraction_digits) == (
        "string",
        "base64-url-safe",
        3,
    )
    assert (modes.decimal_format, modes.include_unknown, modes.placeholder) == (
        "NUMERIC",
        True,
        b"\n\xff",
    )


@pytest.mark.parametrize(
    "config",
    [
        {"time.precision.mode": "fortnights"},
        {"money.fraction.digits": "-1"},
        {"unavailable.value.placeholder": "hex:0"},
    ],
)
def test_an_unknown_mode_names_the_property(config):
    with pytest.raises(ConfigError, match=re.escape(next(iter(config)))):
        HandlingModes.from_connector(config)


def test_placeholder_uuid_is_javas_name_uuid():
    assert HandlingModes().placeholder_uuid == "b68a35a7-17ad-35b3-af2a-ae46edb4545a"


@pytest.mark.parametrize(
    ("old", "new", "wide"),
    [
        (pa.int16(), pa.int64(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(10, 2), pa.decimal128(12, 4), pa.decimal128(12, 4)),
        (pa.decimal128(10, 4), pa.decimal128(12, 2), pa.decimal128(14, 4)),
        (pa.int32(), pa.decimal128(12, 2), pa.decimal128(12, 2)),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (
            pa.struct({"a": pa.int32()}),
            pa.struct({"a": pa.int64(), "b": pa.string()}),
            pa.struct({"a": pa.int64(), "b": pa.string()}),
        ),
    ],
)
def test_widening(old, new, wide):
    found = compare(pa.schema({"c": old}), pa.schema({"c": new}))
    assert found.widened == [("c", old, wide)]
    assert not found.incompatible


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.int64(), pa.int32()),
        (pa.float64(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.decimal128(38, 2), pa.decimal128(12, 2)),
        (pa.decimal128(20, 0), pa.int64()),
    ],
)
def test_a_target_that_holds_the_source_is_fine(old, new):
    assert not compare(pa.schema({"c": old, "gone": pa.int8()}), pa.schema({"c": new}))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.date32(), US),
        (US, UTC),
        (pa.string(), pa.int32()),
        (pa.int64(), pa.float64()),
        (pa.decimal128(38, 0), pa.decimal128(38, 10)),
    ],
)
def test_other_changes_are_incompatible_and_say_why(old, new):
    ((name, was, wants, why),) = compare(pa.schema({"c": old}), pa.schema({"c": new})).incompatible
    assert (name, was, wants) == ("c", old, new)
    assert str(new) in why


def test_added_columns_and_names_that_differ_in_case():
    found = compare(
        pa.schema({"a": pa.int8()}), pa.schema({"A": pa.int8(), "b": pa.int8(), "B": pa.int8()})
    )
    assert [f.name for f in found.added] == ["b"]
    assert [i[0] for i in found.incompatible] == ["A", "B"]


def test_column_lookup():
    schema = TableSchema("s.t", (Column("Größe", pa.int8()),))
    assert schema.column("Größe").type == pa.int8()
    with pytest.raises(KeyError):
        schema.column("größe")
