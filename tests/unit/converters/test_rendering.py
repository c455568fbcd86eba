"""Decoded rows are rendered as the bytes that Debezium 3.7 really wrote: every type and setting."""

import datetime as dt
import json
import re
from decimal import Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from lakemark.connectors.postgres.catalog import CatalogColumn, modifiers
from lakemark.converters.json.rendering import Rendering, default_texts
from lakemark.converters.json.rows import decode_rows
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import from_connect, from_envelope
from tests.kit.golden import case, cases, samples
from tests.kit.rendered_rows import with_modifiers
from tests.kit.row_images import DECIMAL, FIRST, LAST, TYPES, UTC, field, golden, ntz, table

MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
CASES = [(mode, name) for mode in TYPES["modes"] for name in TYPES["modes"][mode]["tables"]]
NUMERIC = {"paimon_all_types", "seatunnel_mysql_all_types"}  # decimal.format of these cases
# Written by Java 17, which has a digit too many for this one.
OF_JAVA_17 = {("double", "nan_num2", "r4", "n"): b"1.23E22"}


def members(raw):
    return {name: bytes(value) for name, value in MEMBERS(raw).items()}


def catalog(name):
    return [CatalogColumn(**column) for column in TYPES["catalog"][name]]


def rendered(fields, *values, modes=None, digits=None, **options):
    """Images of a table with one column `fields`, whose values are given as Arrow takes them."""
    schema = with_modifiers(table(fields), digits or {})
    column = schema.columns[0]
    rows = pa.StructArray.from_arrays([pa.array(values, column.type)], names=[column.name])
    rendering = Rendering(schema, modes or HandlingModes(), **options)
    out = rendering.images(rows)
    texts = [members(image)[column.name].decode() for image in out.objects.to_pylist()]
    return texts, {k: v.tolist() for k, v in out.inexact.items()}, rendering.losses


@pytest.mark.parametrize(("mode", "name"), CASES)
@pytest.mark.sampled(20)
def test_every_value_of_every_type_and_setting(mode, name):
    schema, modes, images = golden(mode, name)
    rendering = Rendering(with_modifiers(schema, modifiers(catalog(name))), modes)
    rows = decode_rows(list(images.values()), schema, modes)
    out = rendering.images(rows.columns)
    compared = 0
    for at, (label, image) in enumerate(images.items()):
        # the samples were read and written by Python, which puts a plus into exponents
        wanted = members(re.sub(rb"(\d)E\+(\d)", rb"\1E\2", image))
        got = members(out.objects[at].as_py())
        assert list(got) == [column.name for column in schema.columns]
        for column, text in got.items():
            if at in out.inexact.get(column, ()):
                continue
            unavailable = column in (rows.unavailable[at] or ())
            expected = OF_JAVA_17.get((mode, name, label, column), wanted[column])
            assert (label, column, text) == (label, column, b"null" if unavailable else expected)
            compared += 1
    assert compared >= len(images)
    again = decode_rows(out.objects.to_pylist(), schema, modes)
    assert again.bad == []
    assert rendering.images(again.columns).objects == out.objects


@pytest.mark.parametrize("wrapped", [False, True])
def test_every_image_and_key_of_the_labelled_samples(wrapped):
    compared = 0
    for label, record in samples(wrapped=wrapped).items():
        if b'"op":' not in (record.value or b"") or b'"op":"m"' in record.value:
            continue
        model = samples(wrapped=True)[label]
        value, key = (json.loads(r or b"null") for r in (model.value, model.key))
        schema = from_envelope("t", value["schema"], key and key["schema"])
        rendering = Rendering(with_modifiers(schema, {"created_at": 6}), HandlingModes())
        outer = members(record.value)
        envelope = members(outer["payload"]) if wrapped else outer
        for image in (envelope["before"], envelope["after"]):
            if image == b"null":
                continue
            rows = decode_rows([image], schema, HandlingModes())
            assert rows.bad == []
            got = members(rendering.images(rows.columns).objects[0].as_py())
            for name in rows.unavailable[0] or ():
                got[name] = b'"__debezium_unavailable_value"'
            assert got == members(image)
            assert list(got) == list(members(image))
            compared += 1
        if record.key and envelope["after"] != b"null":
            written = members(record.key)["payload"] if wrapped else record.key
            assert rendering.keys(rows.columns).objects.to_pylist() == [written]
    assert compared > 20


def test_every_image_with_a_schema_of_other_projects():
    """Of MySQL too; its timestamp(0) has no fraction, and some were recorded with NUMERIC."""
    compared = 0
    for name in set(cases()) - {"seatunnel_bad_records"}:
        modes = HandlingModes(decimal_format="NUMERIC" if name in NUMERIC else "BASE64")
        for record in case(name):
            outer = members(record.value) if record.value else {}
            if outer.get("schema", b"null") == b"null":
                continue
            schema = from_envelope("s.t", json.loads(outer["schema"]), None)
            digits = {"_timestamp0": 0, "f_timestamp": 0}
            rendering = Rendering(with_modifiers(schema, digits), modes)
            envelope = members(outer["payload"])
            for image in {envelope["before"], envelope["after"]} - {b"null"}:
                rows = decode_rows([image], schema, modes)
                out = rendering.images(rows.columns)
                got, wanted = members(out.objects[0].as_py()), members(image)
                for column in wanted.keys() - out.inexact.keys():
                    assert (name, column, got[column]) == (name, column, wanted[column])
                    compared += 1
    assert compared > 300


def test_keys_have_the_order_of_the_key():
    fields = {"type": "struct", "fields": [field("a", "int32"), field("b", "string")]}
    keyed = from_connect("s.t", fields, {"fields": [{"field": "b"}, {"field": "a"}]})
    rows = pa.StructArray.from_arrays([pa.array([1, 2], pa.int32()), pa.array(["x", "é\n"])], ["a", "b"])  # fmt: skip
    rendering = Rendering(keyed, HandlingModes())
    assert rendering.keys(rows).objects.to_pylist() == [b'{"b":"x","a":1}', '{"b":"é\\n","a":2}'.encode()]  # fmt: skip
    assert Rendering(table(field("a", "int32")), HandlingModes()).keys(rows) is None


def test_slices_nulls_and_no_rows():
    schema = table(field("i", "int64"), field("s", "string"), field("d", "bytes", DECIMAL, scale=2, connect_decimal_precision=9))  # fmt: skip
    columns = [pa.array([1, None, 3]), pa.array(["a", 'b"', None]), pa.array([None, Decimal("-0.01"), Decimal("2.56")], pa.decimal128(9, 2))]  # fmt: skip
    rows = pa.StructArray.from_arrays(columns, ["i", "s", "d"])
    rendering = Rendering(schema, HandlingModes())
    whole = [
        b'{"i":1,"s":"a","d":null}',
        b'{"i":null,"s":"b\\"","d":"/w=="}',
        b'{"i":3,"s":null,"d":"AQA="}',
    ]
    assert rendering.images(rows).objects.to_pylist() == whole
    assert rendering.images(rows.slice(1)).objects.to_pylist() == whole[1:]
    assert rendering.images(rows.slice(3)).objects.to_pylist() == []
    assert rendering.fragments("d", columns[2]).to_pylist() == [b"null", b'"/w=="', b'"AQA="']
    empty = Rendering(table(), HandlingModes()).images(rows)
    assert empty.objects.to_pylist() == [b"{}"] * 3


def test_what_is_clamped_is_named():
    stamp = field("t", "int64", "io.debezium.time.MicroTimestamp")
    texts, inexact, losses = rendered(stamp, None, FIRST, ntz(2026, 1, 1), LAST)
    assert texts == ["null", "-62135596800000000", "1767225600000000", "253402300799999999"]
    assert inexact == {"t": [1, 3]}
    assert [(loss.column, loss.every) for loss in losses] == [("t", False)]
    assert "infinities" in losses[0].reason
    inside = {"type": "array", "optional": True, "field": "a", "items": {**stamp}}
    _, inexact, losses = rendered(inside, [FIRST], None, [], [LAST, None], [None, FIRST])
    assert inexact == {"a": [0, 3, 4]}
    assert [loss.column for loss in losses] == ["a"]
    _, inexact, losses = rendered(field("i", "int64"), 1, None)
    assert (inexact, losses) == ({}, ())
    days = rendered(field("d", "int32", "io.debezium.time.Date"), dt.date(9999, 12, 31), None)
    assert days[:2] == (["2932896", "null"], {"d": [0]})


def test_milliseconds_before_the_epoch_are_those_that_have_begun():
    column = field("t", "int64", "io.debezium.time.Timestamp")
    moments = (ntz(1969, 12, 31, 23, 59, 59, 999999), ntz(1969, 12, 31, 23, 59, 59, 999000))
    assert rendered(column, *moments)[0] == ["-1", "-1"]


def test_what_nanoseconds_cannot_hold_is_null_as_the_connector_has_it():
    column = field("t", "int64", "io.debezium.time.NanoTimestamp")
    edge = ntz(2262, 4, 11, 23, 47, 16, 854775)
    texts, inexact, losses = rendered(column, edge, ntz(3000, 1, 1), ntz(1600, 1, 1), FIRST, LAST)
    assert texts == ["9223372036854775000", "null", "null", str(-(1 << 63)), str((1 << 63) - 1)]
    assert inexact == {"t": [1, 2, 3, 4]}
    assert "1677 to 2262" in losses[0].reason


def test_digits_of_a_fraction_that_are_not_known_are_named():
    column = field("t", "string", "io.debezium.time.ZonedTimestamp")
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 120000, UTC)
    texts, _, losses = rendered(column, moment)
    assert texts == ['"2026-01-02T03:04:05.120000Z"']
    assert [(loss.every, "digits" in loss.reason) for loss in losses] == [(True, True), (False, False)]  # fmt: skip
    texts, _, losses = rendered(column, moment, digits={"t": 3})
    assert texts == ['"2026-01-02T03:04:05.120Z"']
    assert [loss.every for loss in losses] == [False]
    assert rendered(column, moment.replace(microsecond=0), digits={"t": 0})[0] == ['"2026-01-02T03:04:05Z"']  # fmt: skip


def test_digits_by_the_catalog():
    found = modifiers(catalog("all_types"))
    assert {k: v for k, v in found.items() if k.startswith(("c_ti", "c_int", "c_tstz"))} == {
        "c_time": 6, "c_time3": 3, "c_time0": 0, "c_timetz": 6, "c_timetz2": 2,
        "c_tstz": 6, "c_tstz0": 0, "c_tstz3": 3, "c_interval": 6, "c_interval0": 0,
    }  # fmt: skip
    assert modifiers(catalog("all_arrays"))["a_tstz3"] == 3
    assert "c_text" not in found


def test_nulls_of_columns_with_a_default():
    row = [field("i", "int32"), {**field("s", "string"), "default": 'x"'}, {**field("n", "int32"), "default": 7}]  # fmt: skip
    image = {"type": "struct", "fields": row, "field": "after"}
    wrapper = msgspec.json.encode({"type": "struct", "fields": [{**image, "field": "before"}, image]})  # fmt: skip
    defaults = default_texts(wrapper)
    assert defaults == {"s": b'"x\\""', "n": b"7"}
    rows = pa.StructArray.from_arrays([pa.nulls(1, pa.int32()), pa.nulls(1, pa.string()), pa.array([1], pa.int32())], ["i", "s", "n"])  # fmt: skip
    rendering = Rendering(table(*row), HandlingModes(), defaults=defaults)
    assert rendering.images(rows).objects.to_pylist() == [b'{"i":null,"s":"x\\"","n":1}']
    assert default_texts(msgspec.json.encode({"type": "struct", "fields": row})) == defaults


def test_times_that_the_connector_cannot_write():
    full = "24:00:00.000000"
    assert rendered(field("t", "string", "io.debezium.time.IsoTime"), full)[0] == ['"00:00:00Z"']
    structured = field("t", "struct", "io.debezium.time.StructuredTime")
    assert rendered(structured, full)[0] == ["null"]
    assert rendered(field("t", "int64", "io.debezium.time.MicroTime"), full, "-01:02:03.000001")[0] == ["86400000000", "-3723000001"]  # fmt: skip


def test_a_negative_duration_has_negative_parts():
    column = field("d", "struct", "io.debezium.time.StructuredDuration")
    texts, *_ = rendered(column, "P-1Y0M-3DT0H-5M-6.5S", "P0Y0M0DT0H0M-0.000001S")
    assert [json.loads(t) for t in texts] == [
        {"years": -1, "months": 0, "days": -3, "hours": 0, "minutes": -5, "seconds": -6, "nanos": -500000000, "precision": 6},
        {"years": 0, "months": 0, "days": 0, "hours": 0, "minutes": 0, "seconds": 0, "nanos": -1000, "precision": 6},
    ]  # fmt: skip


def test_maps_by_number_are_lists_of_pairs_and_odd_names_are_escaped():
    made = {"type": "map", "field": "m", "optional": True, "keys": {"type": "int32"}, "values": {"type": "string", "optional": True}}  # fmt: skip
    texts, *_ = rendered(made, [(3, "c"), (1, None)], None, [])
    assert texts == ['[[3,"c"],[1,null]]', "null", "[]"]
    named = {**made, "keys": {"type": "string"}}
    assert rendered(named, [('z"', "1"), ("😀", None)], [])[0] == ['{"z\\"":"1","\\uD83D\\uDE00":null}', "{}"]  # fmt: skip
    odd = table(field('a"\\é😀', "boolean"))
    rows = pa.StructArray.from_arrays([pa.array([True])], names=['a"\\é😀'])
    images = Rendering(odd, HandlingModes()).images(rows).objects
    assert images.to_pylist() == ['{"a\\"\\\\é\\uD83D\\uDE00":true}'.encode()]


def test_a_value_that_is_not_canonical_is_an_error():
    with pytest.raises(ValueError, match="canonical form"):
        rendered(field("t", "int64", "io.debezium.time.MicroTime"), "noon")
    with pytest.raises(KeyError):
        Rendering(table(field("a", "int32")), HandlingModes()).fragments("b", pa.array([1]))


def test_rows_are_given_as_numpy_places():
    stamp = field("t", "int64", "io.debezium.time.MicroTimestamp")
    schema = table(stamp)
    rows = pa.StructArray.from_arrays([pa.array([LAST], schema.columns[0].type)], ["t"])
    assert isinstance(Rendering(schema, HandlingModes()).images(rows).inexact["t"], np.ndarray)
