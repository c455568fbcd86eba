"""Images where they stand come out as `decode_rows` reads them, or are left to it."""

import json
from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from lakemark.converters.json.fast_path import typed
from lakemark.converters.json.rows import decode_rows
from lakemark.model.schema import TableSchema
from tests.kit.images import assert_same_or_left, placed
from tests.kit.row_images import DECIMAL, ENCODE, MODES, TYPES, field, golden, table

FIELDS = [
    field("id", "int64"),
    field("s", "string"),
    field("b", "bytes"),
    field("n", "bytes", DECIMAL, scale=2, connect_decimal_precision=6),
    field("f", "boolean"),
    field("x", "double"),
]
ROW = {"id": 1, "s": "x", "b": "AQI=", "n": "AJY=", "f": True, "x": 0.5}
NUMERIC = replace(MODES, decimal_format="NUMERIC")


def alone(schema, modes, image):
    """Column by column: which of them are left to `decode_rows`; the others come out the same."""
    members = msgspec.json.decode(image, type=dict[str, msgspec.Raw])
    there = [column for column in schema.columns if column.name in members]
    return {c.name for c in there if is_left(c, modes, bytes(members[c.name]))}


@cache  # tables and images repeat them: three in five
def is_left(column, modes, raw):
    image = msgspec.json.encode({column.name: msgspec.Raw(raw)})
    return assert_same_or_left([image], TableSchema("s.t", (column,), ()), modes) is None


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(TYPES["modes"]))
def test_every_type_in_every_mode(mode):
    read = 0
    for name in TYPES["modes"][mode]["tables"]:
        schema, modes, images = golden(mode, name)
        for image in images.values():
            found = decode_rows([image], schema, modes, partial=[0])
            left = alone(schema, modes, image)
            assert left == set(found.unavailable[0] or ())
            read += len(schema.columns) - len(left)
            whole = assert_same_or_left([image, image], schema, modes)
            assert (whole is None) == bool(left)
    assert read > 50


def test_rows_are_columns():
    found, clamped = typed(*placed([ENCODE(ROW), ENCODE({"id": 2}), b"{}"]), table(*FIELDS), MODES)
    assert clamped == 0
    found.validate(full=True)
    assert [row["id"] for row in found.to_pylist()] == [1, 2, None]
    assert (
        found.to_pylist()[0] == decode_rows([ENCODE(ROW)], table(*FIELDS), MODES).columns[0].as_py()
    )


@pytest.mark.parametrize(
    "raw",
    [
        '"a"', '""', r'"\"\\\/\b\f\n\r\t"', r'"é☃\u000A"', r'"\u0000\uFFFD"', '"é☃😀"',
    ],
)  # fmt: skip
def test_escapes(raw):
    image = b'{"s":%b}' % raw.encode()
    found, _ = assert_same_or_left([image], table(*FIELDS), MODES)
    assert found.field("s").to_pylist() == [json.loads(raw)]


@pytest.mark.parametrize("raw", ['""', '"AA=="', '"AAA="', '"AAAA"', '"/+8="', '"AAAAAA=="'])
def test_base64(raw):
    assert assert_same_or_left([b'{"b":%b}' % raw.encode()], table(*FIELDS), MODES) is not None


@pytest.mark.parametrize(
    "raw",
    [
        "0",
        "-0",
        "1",
        "-1",
        "1.5",
        "-1.25",
        "9999.99",
        "-9999.99",
        "0.01",
        "1.0",
        "1.000",
        "1e2",
    ],
)
def test_numbers_with_a_fraction(raw):
    found, _ = assert_same_or_left([b'{"n":%b}' % raw.encode()], table(*FIELDS), NUMERIC)
    assert found.field("n")[0].as_py() == pa.scalar(raw).cast(pa.decimal128(6, 2)).as_py()


@pytest.mark.parametrize(
    ("name", "raw", "modes"),
    [
        ("id", "1.0", MODES), ("id", '"1"', MODES), ("id", "1e3", MODES), ("id", "true", MODES),
        ("id", "9223372036854775808", MODES), ("id", "-9223372036854775809", MODES), ("id", "-0", MODES), ("id", "01", MODES),
        ("id", "-", MODES), ("s", "1", MODES), ("s", '"\\ud83d\\ude00"', MODES),
        ("s", json.dumps(MODES.placeholder_text), MODES), ("b", '"A"', MODES),
        ("b", '"AA="', MODES), ("b", '"A==="', MODES), ("b", '"AB=="', MODES),
        ("b", '"AAB="', MODES), ("b", '"A-=="', MODES), ("b", '"AA==AAAA"', MODES),
        ("b", '"AA\\/A"', MODES), ("n", "1.5", MODES), ("n", '"AJY="', NUMERIC),
        ("n", "10000", NUMERIC), ("n", "0.001", NUMERIC), ("f", "1", MODES), ("f", '"true"', MODES),
        ("x", "[1]", MODES), ("other", "1", MODES),
    ],
)  # fmt: skip
def test_what_has_another_form_is_left(name, raw, modes):
    image = b'{"id":1,"%b":%b}' % (name.encode(), raw.encode())
    image = image.replace(b'"id":1,"id"', b'"id"')
    assert assert_same_or_left([image], table(*FIELDS), modes) is None


@pytest.mark.parametrize("image", [b'{"id":1,"id":1}', b'{"\\u0069d":1}', b'{"id":1,"":2}'])
def test_odd_members_are_left(image):
    assert assert_same_or_left([image], table(*FIELDS), MODES) is None


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 10**18, 10**18 - 1, -(10**18)])
def test_long_integers(number):
    found, _ = assert_same_or_left([b'{"id":%d}' % number], table(*FIELDS), MODES)
    assert found.field("id").to_pylist() == [number]


def test_members_in_any_order():
    turned = dict(reversed(ROW.items()))
    images = [ENCODE(ROW), ENCODE(turned), ENCODE({**turned, "s": None})]
    assert assert_same_or_left(images, table(*FIELDS), MODES) is not None


def test_out_of_a_narrow_columns_range():
    small = table(field("i", "int16"))
    assert assert_same_or_left([b'{"i":32767}'], small, MODES) is not None
    assert assert_same_or_left([b'{"i":32768}'], small, MODES) is None


def test_infinite_moments_are_clamped_and_counted():
    schema = table(field("t", "int64", "io.debezium.time.MicroTimestamp"))
    images = [b'{"t":%d}' % n for n in (0, 9223371331200000, -(10**17), 10**18)]
    assert assert_same_or_left(images, schema, MODES)[1] == 2


def test_nothing_at_all_is_left():
    assert typed(np.empty(0, np.uint8), np.empty((0, 2), np.int64), table(*FIELDS), MODES) is None
