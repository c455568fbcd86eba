"""Equal keys give equal bytes, distinct keys distinct bytes, whichever way the row came."""

import base64
import datetime as dt
import json
import math
import re
import struct
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.converters.json.keys import canonical_keys
from lakemark.converters.json.rows import decode_rows
from lakemark.model import civil
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import canonical_from_columns
from lakemark.model.schema import from_connect
from tests.kit.nightly import examples

TIME = "io.debezium.time."
MODES = HandlingModes()


def b64(raw):
    return base64.b64encode(raw).decode()


def twos(value, extra=0):
    return value.to_bytes((value.bit_length() + 8) // 8 + extra, "big", signed=True)


def special(value):
    if math.isnan(value):
        return "NaN"
    return ("Infinity" if value > 0 else "-Infinity") if math.isinf(value) else value


def wide_floats(width):
    return st.floats(width=width, allow_subnormal=True)


def same_float(value):
    return ("nan",) if math.isnan(value) else value + 0.0


def iso(micros):
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
    return moment.isoformat().replace("+00:00", "Z")


ENDS = {"min_value": civil.FIRST_MICRO, "max_value": civil.LAST_MICRO}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALE = 4
DECIMAL = {
    "type": "bytes",
    "name": "org.apache.kafka.connect.data.Decimal",
    "parameters": {"scale": str(SCALE), "connect.decimal.precision": "30"},
}
VARIABLE = {
    "type": "struct",
    "name": "io.debezium.data.VariableScaleDecimal",
    "fields": [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}],
}

# kind -> (Connect field, values, JSON forms of a value that the database calls equal, identity)
KINDS = {
    **{f"int{b}": ({"type": f"int{b}"}, st.integers(-(2 ** (b - 1)), 2 ** (b - 1) - 1), lambda v: [v], lambda v: v) for b in (8, 16, 32, 64)},
    "string": ({"type": "string"}, TEXT, lambda v: [v], lambda v: v),
    "boolean": ({"type": "boolean"}, st.booleans(), lambda v: [v], lambda v: v),
    "double": ({"type": "double"}, wide_floats(64), lambda v: [special(v), *([-v] if v == 0 else [])], same_float),
    "float": ({"type": "float"}, wide_floats(32), lambda v: [special(v), *([-v] if v == 0 else [])], same_float),
    "bytes": ({"type": "bytes"}, st.binary(max_size=9), lambda v: [b64(v)], lambda v: v),
    "uuid": ({"type": "string", "name": "io.debezium.data.Uuid"}, st.uuids(), lambda v: [str(v), str(v).upper()], str),
    "decimal": (DECIMAL, st.integers(-(10**30) + 1, 10**30 - 1), lambda v: [b64(twos(v)), b64(twos(v, 1))], lambda v: v),
    "numeric": (
        VARIABLE,
        st.tuples(st.integers(-(10**40), 10**40), st.integers(-20, 60)),
        lambda v: [{"scale": v[1] + n, "value": b64(twos(v[0] * 10**n))} for n in (0, 1, 3)],
        lambda v: v[0] * 10 ** (100 - v[1]),
    ),
    "date": ({"type": "int32", "name": TIME + "Date"}, st.integers(civil.FIRST_DAY, civil.LAST_DAY), lambda v: [v], lambda v: v),
    "timestamp": ({"type": "int64", "name": TIME + "MicroTimestamp"}, st.integers(**ENDS), lambda v: [v], lambda v: v),
    "zoned": ({"type": "string", "name": TIME + "ZonedTimestamp"}, st.integers(**ENDS), lambda v: [iso(v), iso(v).replace("Z", "+00:00")], lambda v: v),
    "time": ({"type": "int64", "name": TIME + "MicroTime"}, st.integers(0, civil.DAY), lambda v: [v], lambda v: v),
    "array": ({"type": "array", "items": {"type": "string", "optional": True}}, st.lists(TEXT | st.none(), max_size=4), lambda v: [v], tuple),
}  # fmt: skip


def schema_of(*kinds):
    fields = [
        {"field": f"k{i}", "optional": True, **KINDS[kind][0]} for i, kind in enumerate(kinds)
    ]
    return from_connect("s.t", {"type": "struct", "fields": fields}, {"fields": fields}), fields


def both_ways(schema, fields, records):
    raw = [
        json.dumps(r, ensure_ascii=i % 2 == 0, separators=(",", ":")).encode()
        for i, r in enumerate(records)
    ]
    wrap = b'{"schema":%b,"payload":%b}'
    sent = json.dumps({"type": "struct", "fields": fields}).encode()
    plain = canonical_keys(raw, schema)
    assert canonical_keys([wrap % (sent, r) for r in raw], schema) == plain
    rows = decode_rows(raw, schema, MODES)
    assert rows.bad == []
    columns = [rows.columns.field(name) for name in schema.key]
    assert canonical_from_columns(columns, schema.columns).to_pylist() == plain
    assert canonical_from_columns(columns, [c.type for c in schema.columns]).to_pylist() == plain
    assert all(json.loads(key) is not None for key in plain)
    return plain


@pytest.mark.parametrize("kind", list(KINDS))
@given(data=st.data())
@settings(max_examples=examples(60), deadline=None)
@pytest.mark.sampled(6)
def test_one_column(kind, data):
    _, values, forms, identity = KINDS[kind]
    schema, fields = schema_of(kind)
    chosen = data.draw(st.lists(values, min_size=2, max_size=6))
    records, owners = [], []
    for value in chosen:
        for form in forms(value):
            records.append({"k0": form})
            owners.append(identity(value))
    keys = both_ways(schema, fields, records)
    for a, owner in zip(keys, owners, strict=True):
        for b, other in zip(keys, owners, strict=True):
            assert (a == b) == (owner == other)


@given(data=st.data(), kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=3))
@settings(max_examples=examples(80), deadline=None)
def test_composite_keys(data, kinds):
    schema, fields = schema_of(*kinds)
    rows = data.draw(st.lists(st.tuples(*[KINDS[k][1] for k in kinds]), min_size=2, max_size=4))
    records = [
        {f"k{i}": KINDS[k][2](v)[-1] for i, (k, v) in enumerate(zip(kinds, row, strict=True))}
        for row in rows
    ]
    owners = [tuple(KINDS[k][3](v) for k, v in zip(kinds, row, strict=True)) for row in rows]
    keys = both_ways(schema, fields, records)
    for a, owner in zip(keys, owners, strict=True):
        for b, other in zip(keys, owners, strict=True):
            assert (a == b) == (owner == other)


NAMES = TEXT | st.sampled_from(['},"b":', '{"a":1', "}", ":1,", "\n", '"', "\\"])
WHOLE = sorted(kind for kind in KINDS if kind.startswith("int"))


@given(data=st.data(), names=st.lists(NAMES, min_size=1, max_size=4, unique=True))
@settings(max_examples=examples(80), deadline=None)
def test_whole_numbers_under_any_names(data, names):
    kinds = [data.draw(st.sampled_from(WHOLE)) for _ in names]
    fields = [{"field": n, **KINDS[k][0]} for n, k in zip(names, kinds, strict=True)]
    schema = from_connect("s.t", {"type": "struct", "fields": fields}, {"fields": fields})
    rows = data.draw(st.lists(st.tuples(*[KINDS[k][1] for k in kinds]), min_size=1, max_size=4))
    keys = both_ways(schema, fields, [dict(zip(names, row, strict=True)) for row in rows])
    assert keys == [json.dumps(row, separators=(",", ":")).encode() for row in rows]


@given(
    st.lists(
        st.binary(max_size=30)
        | st.sampled_from([b'{"k0":1}', b'{"k0":-5}', b'{"k0":1}\n', b'"payload"']),
        max_size=8,
    )
)
@settings(max_examples=examples(200), deadline=None)
def test_any_bytes_give_a_key_or_none_each_for_itself(raw):
    for kind in ("int64", "string", "decimal"):
        schema, _ = schema_of(kind)
        together = canonical_keys(raw, schema)
        assert together == [canonical_keys([r], schema)[0] for r in raw]
    assert len(canonical_keys(raw, None)) == len(raw)


@given(wide_floats(32))
def test_float32_text_is_the_shortest_that_gives_the_same_float(value):
    if math.isfinite(value):
        (key,) = canonical_from_columns(
            [pa.array([value], pa.float32())], [pa.float32()]
        ).to_pylist()
        assert struct.unpack("f", struct.pack("f", json.loads(key)[0]))[0] == value
        digits = re.sub(rb"e.*|[^0-9]", b"", key).strip(b"0")
        assert len(digits) <= 9  # no float32 needs more


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, places=4, min_value=-(10**20), max_value=10**20
    )
)
def test_decimal_text_is_plain_and_exact(value):
    (key,) = canonical_from_columns(
        [pa.array([value], pa.decimal128(30, 4))], [pa.decimal128(30, 4)]
    ).to_pylist()
    (text,) = json.loads(key)
    assert Decimal(text) == value
    assert "E" not in text.upper()
    assert text == "0" or "." not in text or not text.endswith(("0", "."))
