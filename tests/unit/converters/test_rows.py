"""Rows of images: odd names, bad rows, missing and unknown members."""

import base64
import time
from decimal import Decimal

import pytest

from lakemark.converters.json.rows import decode_rows
from tests.kit.row_images import (
    DECIMAL,
    ENCODE,
    MODES,
    decode,
    field,
    table,
)

NAMES = [
    "Id",
    "a b",
    "select",
    "naïve",
    'q"uote',
    "dot.ted",
    "Größe",
    "日本",
    "$x",
    "1st",
    "back\\slash",
    "c0",
    "tab\t",
]


def test_odd_column_names():
    fields = [field(n, "int32") for n in NAMES]
    wanted = {n: i for i, n in enumerate(NAMES)}
    rows = decode(fields, wanted, {**wanted, "neu": 1})
    assert rows.columns.to_pylist() == [wanted, wanted]
    assert rows.unknown == {"neu"}


FIELDS = [
    field("id", "int64"),
    field("n", "bytes", DECIMAL, scale=2, connect_decimal_precision=4),
    field("s", "string"),
    field("i", "int16"),
]

GOOD = {"id": 1, "n": "AJY=", "s": "x", "i": 3}


@pytest.mark.parametrize(
    ("image", "reason", "column"),
    [
        ({"id": "1"}, "wrong-type", "id"),
        ({"id": 1.5}, "wrong-type", "id"),
        ({"id": True}, "wrong-type", "id"),
        ({"id": 2**63}, "number-out-of-range", "id"),
        (b'{"id":' + b"9" * 5000 + b"}", "number-out-of-range", "id"),
        ({"i": 40000}, "number-out-of-range", "i"),
        ({"n": "Jw8="}, None, "99.99"),
        ({"n": "fw=="}, None, "1.27"),
        ({"n": "J xx"}, "wrong-type", "n"),
        ({"n": ""}, "wrong-type", "n"),
        ({"n": "Jxk="}, "number-out-of-range", "n"),
        ({"n": base64.b64encode(b"\x7f" * 40).decode()}, "number-out-of-range", "n"),
        ({"n": Decimal("99.99")}, None, "99.99"),
        ({"n": Decimal("1.500")}, None, "1.50"),
        ({"n": 100}, "number-out-of-range", "n"),
        ({"n": Decimal("1.005")}, "number-out-of-range", "n"),
        (b'{"n":1e999999999}', "number-out-of-range", "n"),
        ({"s": 5}, "wrong-type", "s"),
        ({"s": {"a": 1}}, "wrong-type", "s"),
        (b'{"s":"\xff"}', "wrong-type", None),
        (b'{"s":"\\ud800"}', "wrong-type", None),
        (b"[" * 100_000, "wrong-type", None),
        (b'{"s":' + b"[" * 100_000, "wrong-type", None),
        (b"", "wrong-type", None),
        (b"null", "wrong-type", None),
        (b"[1]", "wrong-type", None),
        (b'{"id":1', "wrong-type", None),
        (b"\x00\x01", "wrong-type", None),
    ],
)
def test_bad_rows_are_null_named_and_alone(image, reason, column):
    rows = decode(FIELDS, GOOD, image, GOOD)
    rows.columns.validate(full=True)
    good = {"id": 1, "n": Decimal("1.50"), "s": "x", "i": 3}
    assert [rows.columns[0].as_py(), rows.columns[2].as_py()] == [good, good]
    if reason is None:
        assert rows.bad == []
        assert rows.columns[1].as_py() == {**dict.fromkeys(GOOD), "n": Decimal(column)}
        return
    ((at, code, message),) = rows.bad
    assert (at, code) == (1, reason)
    assert rows.columns[1].as_py() is None
    assert rows.columns.field(0).null_count == 1
    if column:
        assert repr(column) in message


def test_the_good_columns_of_a_bad_row_are_null_too():
    for image in ({**GOOD, "i": "x"}, {**GOOD, "n": "Jxk="}):
        rows = decode(FIELDS, image, GOOD)
        assert [b[0] for b in rows.bad] == [0]
        assert [rows.columns.field(i).null_count for i in range(4)] == [1] * 4


def test_messages_never_show_a_value():
    secret = "4711secret"
    images = [{f["field"]: secret} for f in FIELDS] + [
        {"id": [secret]},
        {"s": [secret]},
        {"i": {secret: 1}},
    ]
    rows = decode(FIELDS, *images)
    assert rows.bad
    assert secret not in repr(rows.bad)


def test_the_last_of_duplicate_members_counts():
    assert decode(FIELDS, b'{"id":1,"id":2}').columns[0].as_py()["id"] == 2
    assert decode([field('q"', "int8")], b'{"q\\"":1,"q\\"":2}').columns[0].as_py() == {'q"': 2}


def test_absent_members_are_null_and_unknown_ones_are_reported():
    rows = decode(FIELDS, {}, {"s": "y", "new": [1], "other": None})
    assert rows.columns.to_pylist() == [dict.fromkeys(GOOD), {**dict.fromkeys(GOOD), "s": "y"}]
    assert (rows.unknown, rows.bad, rows.unavailable) == ({"new", "other"}, [], [None, None])


def test_no_images_and_no_columns():
    assert len(decode(FIELDS).columns) == 0
    assert decode([], {}, b"x").columns.to_pylist() == [{}, None]


def test_one_odd_row_does_not_make_ten_thousand_slow():
    fields = [*FIELDS, field("t", "string", "io.debezium.time.ZonedTimestamp")]
    row = ENCODE({**GOOD, "t": "2026-01-02T03:04:05.123456Z"})
    odd = [
        ENCODE({"id": "x"}),
        ENCODE({"t": "+12026-01-02T03:04:05Z"}),
        ENCODE({"n": Decimal("1.5")}),
        ENCODE({"t": "infinity"}),
    ]
    schema = table(*fields)

    def best(images):
        times = []
        for _ in range(5):
            start = time.process_time()
            decode_rows(images, schema, MODES)
            times.append(time.process_time() - start)
        return min(times)

    clean = best([row] * 10_000)
    for image in odd:
        assert best([row] * 5_000 + [image] + [row] * 4_999) < 3 * clean + 0.01
