"""Canonical keys from record keys and from typed columns."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.converters.json import keys
from lakemark.converters.json.keys import canonical_keys
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import canonical_from_columns
from lakemark.model.schema import from_connect

GOLDEN = Path(__file__).parents[2] / "golden"
SAMPLES_ON = json.loads((GOLDEN / "labelled_schemas_on.json").read_text())
SAMPLES_OFF = json.loads((GOLDEN / "labelled_schemas_off.json").read_text())
TIME = "io.debezium.time."
DECIMAL = {
    "name": "org.apache.kafka.connect.data.Decimal",
    "parameters": {"scale": "2", "connect.decimal.precision": "12"},
}
VARIABLE = {
    "name": "io.debezium.data.VariableScaleDecimal",
    "fields": [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}],
}


def schema_of(**columns):
    fields = [
        {"field": n, "optional": False, **(c if isinstance(c, dict) else {"type": c})}
        for n, c in columns.items()
    ]
    return from_connect("s.t", {"type": "struct", "fields": fields}, {"fields": fields}), fields


def dump(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("columns", "key", "canonical"),
    [
        ({"id": "int64"}, {"id": 42}, b"[42]"),
        ({"id": "int64"}, {"id": -(2**63)}, b"[-9223372036854775808]"),
        ({"id": "int8"}, {"id": 127}, b"[127]"),
        ({"a": "string", "b": "int32"}, {"a": "a", "b": 7}, b'["a",7]'),
        ({"a": "string"}, {"a": 'q"\\\n\u2603é'}, '["q\\"\\\\\\n☃é"]'.encode()),
        ({"a": "string"}, {"a": "x  "}, b'["x  "]'),
        ({"a": "string"}, {"a": ""}, b'[""]'),
        ({"a": "boolean"}, {"a": True}, b"[true]"),
        ({"a": "double"}, {"a": -0.0}, b"[0.0]"),
        ({"a": "double"}, {"a": 1}, b"[1.0]"),
        ({"a": "double"}, {"a": 0.1}, b"[0.1]"),
        ({"a": "double"}, {"a": "NaN"}, b'["NaN"]'),
        ({"a": "float"}, {"a": 0.1}, b"[0.1]"),
        ({"a": "float"}, {"a": "-Infinity"}, b'["-Infinity"]'),
        ({"a": "bytes"}, {"a": "3q2+7w=="}, b'["3q2+7w=="]'),
        ({"a": {"type": "bytes", **DECIMAL}}, {"a": "AJY="}, b'["1.5"]'),
        ({"a": {"type": "bytes", **DECIMAL}}, {"a": "J xx"}, None),
        (
            {"a": {"type": "struct", **VARIABLE}},
            {"a": {"scale": 20, "value": "AQ=="}},
            b'["0.00000000000000000001"]',
        ),
        ({"a": {"type": "struct", **VARIABLE}}, {"a": {"scale": 3, "value": "Bdw="}}, b'["1.5"]'),
        ({"a": {"type": "string", "name": "io.debezium.data.Uuid"}}, {"a": "A0EE"}, b'["a0ee"]'),
        ({"a": {"type": "int32", "name": TIME + "Date"}}, {"a": 18321}, b"[18321]"),
        ({"a": {"type": "int64", "name": TIME + "Timestamp"}}, {"a": 5}, b"[5000]"),
        (
            {"a": {"type": "string", "name": TIME + "ZonedTimestamp"}},
            {"a": "1970-01-01T00:00:01.5Z"},
            b"[1500000]",
        ),
        (
            {"a": {"type": "int64", "name": TIME + "MicroTime"}},
            {"a": 86400000000},
            b'["24:00:00.000000"]',
        ),
        (
            {"a": {"type": "array", "items": {"type": "int32", "optional": True}}},
            {"a": [1, None]},
            b"[[1,null]]",
        ),
        ({"a": "int32", "b": "int32"}, {"b": 2, "a": 1}, b"[1,2]"),
        ({"a": "int32", "b": "int32"}, {"a": 1}, None),
        ({"a": "int32", "b": "int32"}, {"a": 1, "b": None}, b"[1,null]"),
        ({"a": "int32"}, {"a": 2**31}, None),
        ({"a": "int32"}, {"a": "1"}, None),
        ({"schema": "string", "payload": "string"}, {"schema": "x", "payload": "y"}, b'["x","y"]'),
        ({"payload": "int32"}, {"payload": 4}, b"[4]"),
        ({'q"k': "int32"}, {'q"k': 4}, b"[4]"),
        ({"a-b}": "int32"}, {"a-b}": 4}, b"[4]"),
    ],
)
def test_plain_and_wrapped_keys_read_the_same(columns, key, canonical):
    schema, fields = schema_of(**columns)
    wrapped = {"schema": {"type": "struct", "fields": fields, "optional": False}, "payload": key}
    many = [
        dump(key),
        dump(wrapped),
        None,
        json.dumps(wrapped, indent=1).encode(),
        json.dumps(key).encode(),
    ]
    assert canonical_keys(many, schema) == [canonical, canonical, None, canonical, canonical]
    assert canonical_keys([dump(key)], schema) == [canonical]


@pytest.mark.parametrize(
    "label",
    [n for n, s in SAMPLES_ON.items() if isinstance(s["key"], dict) and s["topic"].count(".") == 2],
)
def test_real_keys_with_and_without_schema(label):
    on, off = SAMPLES_ON[label], SAMPLES_OFF[label]
    wrapped, plain = dump(on["key"]), dump(off["key"])
    expected = dump([*on["key"]["payload"].values()])
    assert canonical_keys([wrapped, plain], None)[0] == expected
    schema = from_connect("s.t", on["key"]["schema"], on["key"]["schema"])
    if on["key"]["payload"] == off["key"]:
        assert canonical_keys([wrapped, plain], schema) == [expected] * 2


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'"x"',
        b"null",
        b"{}",
        b"\xff",
        b'{"id":1.5}',
        b'{"id":01}',
        b'{"id":-0.5}',
        b'{"id":}',
        b'{"id":1}}',
        b'{"id":9223372036854775808}',
        b'{"id":"1"}',
        b"[" * 50_000,
        b'{"id":1}\n{"id":2}',
        b'{"schema":{},"payload":{"id":1}}',
        b'{"schema":7,"payload":{"id":1}}',
    ],
)
def test_unreadable_keys_are_none_and_do_not_disturb_others(raw):
    schema, _ = schema_of(id="int64")
    assert canonical_keys([b'{"id":1}', raw, b'{"id":2}'], schema) == [b"[1]", None, b"[2]"]
    assert canonical_keys([raw], schema) == [None]


def test_records_cannot_be_shifted_by_line_breaks():
    schema, _ = schema_of(id="int64")
    assert canonical_keys([b'{"id":1}\n{"id":2}', b'{"id":3}'], schema) == [None, b"[3]"]
    assert canonical_keys([b'{"id":1}\n{"id":2}', b""], schema) == [None, None]
    assert canonical_keys([], schema) == []


@pytest.mark.parametrize("text", [b'{"id":-0}', b'{"id": 0}', b'{ "id" : 0 }'])
def test_other_spellings_of_one_number(text):
    schema, _ = schema_of(id="int64")
    assert canonical_keys([text], schema) == [b"[0]"]


def test_keys_without_a_schema_describe_themselves():
    raw = [
        b'{"id":3}',
        b'{"a":"x","b":true,"c":null}',
        b"5",
        b'"k"',
        b'{"a":1.5}',
        b'{"a":[1]}',
        b"{}",
        None,
        b"{",
    ]
    assert canonical_keys(raw, None) == [
        b"[3]",
        b'["x",true,null]',
        b"[5]",
        b'["k"]',
        None,
        None,
        None,
        None,
        None,
    ]


def test_a_table_without_key_columns_has_no_keys():
    assert canonical_keys(
        [b'{"id":1}'], from_connect("s.t", {"fields": [{"field": "id", "type": "int8"}]}, None)
    ) == [None]


def test_char_padding_is_removed_for_char_only_and_on_both_ways():
    rows = [CatalogColumn("k", "bpchar", 10), CatalogColumn("v", "varchar", 10)]
    schema = from_catalog("s.t", rows, ["k", "v"], HandlingModes())
    raw = dump({"k": "ab    ", "v": "cd "})
    wrapped = dump(
        {
            "schema": {
                "type": "struct",
                "fields": [{"field": "k", "type": "string"}, {"field": "v", "type": "string"}],
            },
            "payload": {"k": "ab  ", "v": "cd "},
        }
    )
    assert canonical_keys([raw, wrapped], schema) == [b'["ab","cd "]'] * 2
    columns = [pa.array(["ab   "]), pa.array(["cd "])]
    assert canonical_from_columns(columns, schema.columns).to_pylist() == [b'["ab","cd "]']
    assert canonical_from_columns(columns, [pa.string(), pa.string()]).to_pylist() == [
        b'["ab   ","cd "]'
    ]
    unpadded = from_connect(
        "s.t",
        {"fields": [{"field": n, "type": "string", "optional": True} for n in "kv"]},
        {"fields": [{"field": "k"}, {"field": "v"}]},
    )
    assert unpadded == schema
    assert canonical_keys([raw], unpadded) == [b'["ab    ","cd "]']


def test_columns_may_be_chunked_sliced_and_empty():
    chunked = pa.chunked_array([pa.array([1, 2]), pa.array([3])])
    assert canonical_from_columns([chunked], [pa.int64()]).to_pylist() == [b"[1]", b"[2]", b"[3]"]
    lists = pa.array([[9], [1, 2], None, [3]])[1:]
    assert canonical_from_columns([lists], [lists.type]).to_pylist() == [
        b"[[1,2]]",
        b"[null]",
        b"[[3]]",
    ]
    structs = pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}])[1:]
    assert canonical_from_columns([structs], [structs.type]).to_pylist() == [
        b"[null]",
        b'[[null,"y"]]',
    ]
    assert canonical_from_columns([pa.array([], pa.int64())], [pa.int64()]).to_pylist() == []
    assert canonical_from_columns([pa.array([], pa.int64())], [pa.int64()]).type == pa.binary()


def test_single_integer_keys_take_the_fast_way(monkeypatch):
    schema, _ = schema_of(id="int64")
    monkeypatch.setattr(keys, "_read", lambda *_: pytest.fail("read one by one"))
    raw = [b'{"id":%d}' % i for i in range(100)]
    assert canonical_keys(raw, schema) == [b"[%d]" % i for i in range(100)]
