"""Single values to typed columns: every type and setting as Debezium 3.7 really wrote them."""

import base64
import datetime as dt
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.converters.json.keys import canonical_keys
from lakemark.converters.json.numerals import EXACT, plain
from lakemark.converters.json.rows import decode_rows
from lakemark.converters.json.values import codec
from lakemark.model import civil
from lakemark.model.columns import describe
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import plain_decimal
from lakemark.model.schema import TableSchema
from tests.kit.row_images import (
    DECIMAL,
    FIRST,
    LAST,
    TYPES,
    UTC,
    decode,
    field,
    golden,
    ntz,
    value_of,
)


def decode_one(mode, table, image):
    schema, modes, images = golden(mode, table)
    rows = decode_rows([images[image]], schema, modes)
    assert rows.bad == []
    rows.columns.validate(full=True)
    return rows, rows.columns[0].as_py()


EXPECTED = {
    "c_bool": True, "c_bit1": True, "c_varbit1": True, "c_bit5": b"\x13", "c_varbit9": b"\x05", "c_varbit": b"\x01\x80",
    "c_i2": -7, "c_i4": 42, "c_i8": 9007199254740993, "c_oid": 4294967295, "c_f8": 0.1,
    "c_char": "ab   ", "c_bpchar": "cd ", "c_vc": "vc", "c_text": 'text é "q" \\ ☃', "c_citext": "CiText", "c_name": "nm",
    "c_inet": "10.0.0.1/24", "c_mac8": "08:00:2b:01:02:03:04:05", "c_i4r": "[1,5)", "c_isbn": "0-393-04002-X",
    "c_num": "123.45", "c_num125": Decimal("1234567.12345"), "c_num50": "1234567890123456789012345678901234567890.1234567891",
    "c_num5": Decimal(12345), "c_numneg": "12300", "c_num38": Decimal(12345678901234567890123456789012345678), "c_money": Decimal("1234.56"),
    "c_bytea": b"\xde\xad\xbe\xef\x00", "c_json": '{"a": 1,  "b":[2]}', "c_xml": "<a>x</a>", "c_uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "c_ltree": "Top.Science", "c_tsv": "'a' 'cat' 'fat'", "c_mood": "ok", "c_hstore": '{"k1":"v1","k2":null,"k\\"3":"v 3"}',
    "c_interval": 37091106789012, "c_date": dt.date(2020, 2, 29),
    "c_time": "10:11:12.123456", "c_time3": "10:11:12.123000", "c_time0": "24:00:00.000000", "c_timetz": "08:11:12.5Z",
    "c_ts": ntz(2020, 2, 29, 10, 11, 12, 123456), "c_ts0": ntz(2020, 2, 29, 10, 11, 12), "c_ts3": ntz(2020, 2, 29, 10, 11, 12, 123000),
    "c_tstz": dt.datetime(2020, 2, 29, 8, 11, 12, 123456, UTC), "c_tstz3": dt.datetime(2020, 2, 29, 8, 11, 12, 120000, UTC),
    "c_line": {"a": 1.0, "b": 2.0, "c": 3.0}, "c_dom": 5, "c_price": Decimal("1.500"), "c_price2": Decimal("2.250"), "c_domints": [1, 2], "c_dommood": "sad", "c_qchar": "q",
}  # fmt: skip

MILLIS = ntz(2020, 2, 29, 10, 11, 12, 123000)

CHANGED = {
    "double": {"c_num": 123.45, "c_num125": 1234567.12345, "c_num50": 1.2345678901234568e39, "c_num5": 12345.0, "c_numneg": 12300.0, "c_num38": 1.2345678901234568e37, "c_money": 1234.56, "c_price": 1.5, "c_price2": 2.25},
    "string": {"c_num": "123.4500", "c_num125": "1234567.12345", "c_num5": "12345", "c_num38": "12345678901234567890123456789012345678", "c_money": "1234.56", "c_price": "1.500", "c_price2": "2.250", "c_numneg": None},
    "connect": {"c_ts": MILLIS, "c_time": "10:11:12.123000"},
    "isostring": {"c_time0": "00:00:00.000000"},  # the connector itself loses 24:00:00 here
    "structured": {"c_timetz": "10:11:12.5+02:00", "c_interval": "P1Y2M3DT4H5M6.789012S", "c_time0": None},
    "base64": {"c_bytea": "3q2+7wA="},
    "urlsafe": {"c_bytea": "3q2-7wA="},
    "hex": {"c_bytea": "deadbeef00"},
    "hstore_map": {"c_hstore": [("k1", "v1"), ("k2", None), ('k"3', "v 3")]},
    "interval_string": {"c_interval": "P1Y2M3DT4H5M6.789012S", "c_money": Decimal("1234.560")},
}  # fmt: skip


@pytest.mark.parametrize("mode", list(TYPES["modes"]))
def test_every_type_in_every_mode(mode):
    rows, row = decode_one(mode, "all_types", "r1")
    wanted = {**EXPECTED, **CHANGED.get(mode, {})}
    for absent in [name for name, value in wanted.items() if value is None]:
        del wanted[absent]  # c_numneg as string: 2046 zeros, checked by its value only
        row.pop(absent)
    assert {name: row[name] for name in wanted} == wanted
    assert row["c_f4"] == pytest.approx(0.1)
    assert row["c_point"]["x"] == 1.5
    assert row["c_circle"]["radius"] == 3.0
    assert row["c_circle"]["center"]["y"] == 2.0
    assert (rows.clamped, rows.unavailable) == (0, [None])


@pytest.mark.parametrize(
    "mode", ["default", "numeric", "structured", "nanoseconds", "isostring", "connect"]
)
def test_arrays_with_nulls_inside(mode):
    _, row = decode_one(mode, "all_arrays", "r1")
    assert row["a_bool"] == [True, False, None]
    assert row["a_i8"] == [1, None]
    assert row["a_text"] == ["a", None, 'é"q']
    assert row["a_num"] == ["1.5", None, "100"]
    assert row["a_num102"] == [Decimal("1.50"), None]
    assert row["a_bytea"] == [b"\xde\xad", None]
    assert row["a_date"] == [dt.date(2020, 1, 1), None]
    micros = 123000 if mode == "connect" else 123456
    assert row["a_ts"] == [ntz(2020, 1, 1, 10, 11, 12, micros), None]
    assert row["a_tstz"] == [dt.datetime(2020, 1, 1, 8, 11, 12, 123456, UTC), None]
    assert row["a_mood"] == ["ok", "sad"]
    _, empty = decode_one(mode, "all_arrays", "r3")
    assert (empty["a_i4"], empty["a_text"]) == ([], None)


def test_negative_scale_and_double_mode_numbers_stay_exact():
    _, row = decode_one("string", "all_types", "r1")
    assert Decimal(row["c_numneg"]) == 12300


OLD_MODES = ["default", "connect", "isostring", "microseconds", "structured"]


@pytest.mark.parametrize("mode", OLD_MODES)
def test_infinities_are_clamped_and_counted_in_snapshot_and_log(mode):
    schema, modes, images = golden(mode, "inf_ts")
    for op in "ru":
        rows = decode_rows([images[f"{op}{i}"] for i in (1, 2, 3)], schema, modes)
        assert rows.clamped == 9
        late, early, more = (r.as_py() for r in rows.columns)
        last = LAST
        assert (late["ts"], late["tstz"], late["d"]) == (
            last,
            last.replace(tzinfo=UTC),
            dt.date.max,
        )
        assert (early["ts"], early["tstz"], early["d"]) == (
            FIRST,
            FIRST.replace(tzinfo=UTC),
            dt.date.min,
        )
        assert (more["ts0"], more["ts3"], more["tstz3"]) == (last, FIRST, last.replace(tzinfo=UTC))


def test_nanoseconds_mode_marks_infinity_with_the_ends_of_int64():
    made = field("t", "int64", "io.debezium.time.NanoTimestamp")
    rows = decode([made], {"t": 2**63 - 1}, {"t": -(2**63)}, {"t": -1}, {"t": 1999})
    micros = rows.columns.field(0).cast(pa.int64()).to_pylist()
    assert micros == [civil.LAST_MICRO, civil.FIRST_MICRO, -1, 1]
    assert rows.clamped == 2


@pytest.mark.parametrize("mode", OLD_MODES)
@pytest.mark.parametrize(
    ("image", "date", "micros", "clamped"),
    [
        ("r3", dt.date(44, 3, 15), civil.FIRST_MICRO, 3),  # 44 BC: the connector loses a date's BC
        ("r4", dt.date(1500, 2, 28), -14826672000000001, 0),
        ("r5", dt.date.max, civil.LAST_MICRO, 4),  # year 20000
        ("r6", dt.date.min, civil.FIRST_MICRO, 0),
        ("r7", dt.date.max, civil.LAST_MICRO, 0),
        ("r8", dt.date(1, 12, 31), civil.FIRST_MICRO, 3),  # 1 BC
    ],
)
def test_years_before_1582_and_beyond_delta(mode, image, date, micros, clamped):
    rows, row = decode_one(mode, "all_types", image)
    zoned = rows.columns.field("c_tstz").cast(pa.int64())[0].as_py()
    assert (row["c_date"], zoned, rows.clamped) == (date, micros, clamped)
    if mode != "connect":
        assert rows.columns.field("c_ts").cast(pa.int64())[0].as_py() == micros


def test_special_numbers():
    _, row = decode_one("double", "nan_num2", "r2")
    assert row["n"] == float("inf")
    _, row = decode_one("string", "nan_num2", "r3")
    assert (row["n"], row["n2"]) == ("1.25", "NaN")
    assert str(value_of(field("f", "float"), "NaN")) == "nan"
    assert value_of(field("f", "double"), "-Infinity") == -float("inf")
    assert value_of(field("f", "double"), 5) == 5.0


NUMERIC_TEXT = replace(describe("n", {"type": "string", "optional": True}), source_type="numeric")


def test_words_are_numbers_only_in_columns_of_numerics():
    """Equal schemas may differ in it: one decoder is not taken for the other's."""
    images = [b'{"n":"NAN"}', b'{"n":"POSITIVE_INFINITY"}', b'{"n":"NEGATIVE_INFINITY"}', b"{}"]
    for columns, expected in [
        ([replace(NUMERIC_TEXT, source_type="")], ["NAN", "POSITIVE_INFINITY", "NEGATIVE_INFINITY"]),
        ([NUMERIC_TEXT], ["NaN", "Infinity", "-Infinity"]),
        ([replace(NUMERIC_TEXT, source_type="numeric(9)")], ["NaN", "Infinity", "-Infinity"]),
        ([replace(NUMERIC_TEXT, source_type="text")], ["NAN", "POSITIVE_INFINITY", "NEGATIVE_INFINITY"]),
    ]:  # fmt: skip
        schema = TableSchema("s.t", tuple(columns), ("n",))
        rows = decode_rows(images, schema, HandlingModes(decimal="string"))
        assert rows.columns.field("n").to_pylist() == [*expected, None]
        keys = canonical_keys(images[:3], schema)
        assert keys == [b'["%s"]' % text.encode() for text in expected]


def test_a_schema_keeps_the_types_that_the_catalog_does_not_know():
    schema = TableSchema("s.t", (NUMERIC_TEXT, replace(NUMERIC_TEXT, name="m")))
    known = TableSchema("s.t", (replace(NUMERIC_TEXT, name="m", source_type="text"),))
    noted = schema.with_notes_of(known)
    assert [column.source_type for column in noted.columns] == ["numeric", "text"]


def test_decimal_numbers_are_exact_in_numeric_format():
    modes = HandlingModes(decimal_format="NUMERIC")
    made = field("n", "bytes", DECIMAL, scale=10, connect_decimal_precision=38)
    text = "1234567890123456789012345678.0123456789"
    assert value_of(made, Decimal(text), modes) == Decimal(text)
    assert value_of(made, "AJY=", modes) == Decimal("0.0000000150")
    wide = field("n", "bytes", DECIMAL, scale=10, connect_decimal_precision=60)
    assert value_of(wide, Decimal("1" * 45 + ".50"), modes) == "1" * 45 + ".5"


@pytest.mark.parametrize(
    "unscaled", [0, 1, -1, 127, 128, -128, -129, 10**37, -(10**38) + 1, 255, 256, -(2**63)]
)
def test_decimal_bytes_of_any_length(unscaled):
    size = max(1, (unscaled.bit_length() + 8) // 8)
    made = field("n", "bytes", DECIMAL, scale=3, connect_decimal_precision=38)
    for extra in (0, 1):
        if size + extra > 16:
            continue
        raw = unscaled.to_bytes(size + extra, "big", signed=True)
        rows = decode([made], {"n": None}, {"n": base64.b64encode(raw).decode()}, {"n": "AQ=="})
        assert rows.columns.field(0).to_pylist() == [
            None,
            Decimal(unscaled).scaleb(-3, EXACT),
            Decimal("0.001"),
        ]


def test_long_decimals_stay_exact_next_to_an_odd_one():
    digits = 12345678901234567890123456789012345678
    made = field("n", "bytes", DECIMAL, scale=9, connect_decimal_precision=38)
    coded = base64.b64encode(digits.to_bytes(16, "big")).decode()
    rows = decode([made], {"n": coded}, {"n": ""}, {"n": Decimal("1.5")})
    assert [b[0] for b in rows.bad] == [1]
    assert rows.columns.field(0)[0].as_py() == Decimal(digits).scaleb(-9, EXACT)


@pytest.mark.parametrize(
    ("inner", "value", "wanted"),
    [
        (field("m", "string", "io.debezium.data.Uuid"), "A0EE", "a0ee"),
        (field("m", "int64", "io.debezium.time.NanoTimestamp"), 2**63 - 1, LAST),
        (field("m", "int64", "io.debezium.time.NanoTimestamp"), -(2**63), FIRST),
        (field("m", "int32", "io.debezium.time.Date"), -622191234, dt.date.max),
        (field("m", "int64", "io.debezium.time.Timestamp"), 9223372036825200000, LAST),
    ],
)
def test_members_of_structs_and_lists_read_like_columns(inner, value, wanted):
    assert value_of(inner, value) == wanted
    assert value_of({**field("s", "struct"), "fields": [inner]}, {"m": value}) == {"m": wanted}
    assert value_of({**field("l", "array"), "items": inner}, [value, None]) == [wanted, None]


def test_an_unscaled_numeric_that_would_fill_the_memory_is_refused():
    members = {"fields": [field("scale", "int32"), field("value", "bytes")]}
    made = {**field("n", "struct", "io.debezium.data.VariableScaleDecimal"), **members}
    rows = decode(
        [made],
        {"n": {"scale": 2_000_000_000, "value": "AQ=="}},
        {"n": {"scale": -3, "value": "AQ=="}},
    )
    assert [b[:2] for b in rows.bad] == [(0, "number-out-of-range")]
    assert rows.columns.to_pylist() == [None, {"n": "1000"}]
    with pytest.raises(OverflowError):
        plain_decimal(Decimal("1e200000000"))
    assert plain(-1230, 2) == "-12.3"
    assert plain(5, 3) == "0.005"


@pytest.mark.parametrize(
    ("wire", "semantic", "value", "text"),
    [
        ("int32", "io.debezium.time.Time", 86_400_000, "24:00:00.000000"),
        ("int64", "io.debezium.time.MicroTime", 0, "00:00:00.000000"),
        ("int64", "io.debezium.time.MicroTime", -3_020_399_000_000, "-838:59:59.000000"),
        ("int64", "io.debezium.time.NanoTime", 1_999, "00:00:00.000001"),
        ("string", "io.debezium.time.IsoTime", "10:11:12.5Z", "10:11:12.500000"),
        ("string", "io.debezium.time.ZonedTime", "24:00:00Z", "24:00:00Z"),
    ],
)
def test_times_of_a_day(wire, semantic, value, text):
    assert value_of(field("t", wire, semantic), value) == text


def test_structured_timestamps_keep_their_instant():
    made = {**field("t", "struct", "io.debezium.time.StructuredZonedTimestamp"), "fields": []}
    parts = {
        "year": 2020,
        "month": 2,
        "day": 29,
        "hour": 1,
        "minute": 2,
        "second": 3,
        "nanos": 4999,
    }
    wanted = dt.datetime(2020, 2, 28, 23, 2, 3, 4, UTC)
    assert value_of(made, {**parts, "offsetSeconds": 7200, "zoneId": "+02:00"}) == wanted
    rows = decode(
        [made],
        {"t": {**parts, "month": None}},
        {"t": {"specialValue": "NAN"}},
        {"t": {**parts, "nanos": 10**9}},
    )
    assert [b[1] for b in rows.bad] == ["wrong-type"] * 3


def test_vectors_and_maps_without_string_keys():
    kinds = {"keys": {"type": "int16"}, "values": {"type": "double"}}
    made = {
        **field("v", "struct"),
        "fields": [field("dimensions", "int16"), {**field("vector", "map"), **kinds}],
    }
    value = {"dimensions": 5, "vector": [[1, 1.5], [3, 2]]}
    assert value_of(made, value) == {"dimensions": 5, "vector": [(1, 1.5), (3, 2.0)]}
    dense = {**field("v", "array"), "items": field("e", "float")}
    assert value_of(dense, [1, 0.5, None]) == [1.0, 0.5, None]


def test_what_arrow_cannot_hold_keeps_its_json_text():
    made = field("j", "int128")
    assert value_of(made, {"a": [1, None]}) == '{"a":[1,null]}'
    assert value_of(made, None) is None
    assert value_of({**field("l", "array"), "items": made}, [1, None]) == ["1", None]


@pytest.mark.parametrize(
    ("year", "month", "day"),
    [(1, 1, 1), (1969, 12, 31), (1970, 1, 1), (2000, 2, 29), (1900, 2, 28), (9999, 12, 31)],
)
def test_days_agree_with_python_where_it_can(year, month, day):
    assert civil.days(year, month, day) == (dt.date(year, month, day) - dt.date(1970, 1, 1)).days


@pytest.mark.parametrize(
    "text",
    [
        "2020-02-30",
        "1900-02-29T00:00:00Z",
        "2020-13-01",
        "2020-01-01T25:00:00Z",
        "2020-01-01T10:60:00Z",
        "yesterday",
        "",
    ],
)
def test_no_such_moment(text):
    rows = decode([field("t", "string", "io.debezium.time.ZonedTimestamp")], {"t": text})
    assert [b[1] for b in rows.bad] == ["wrong-type"]


DAY = civil.DAY


@given(st.lists(st.none() | st.integers(-40 * DAY, 40 * DAY) | st.sampled_from([0, DAY - 1, DAY])))
def test_times_below_zero_and_of_more_than_a_day_are_read_as_a_column(micros):
    """As MySQL has them; not one of them takes the slow way of odd values."""
    for name, unit in (("MicroTime", 1), ("NanoTime", 1000)):
        column = describe("t", {"type": "int64", "name": f"io.debezium.time.{name}"})
        values = [None if m is None else m * unit for m in micros]
        whole = codec(column, HandlingModes()).whole(values, civil.Tally())
        expected = [None if m is None else civil.clock_text(m) for m in micros]
        assert whole.to_pylist() == expected


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (-3020399000000, "-838:59:59.000000"),
        (-1000, "-00:00:00.001000"),
        (3020398999999, "838:59:58.999999"),
    ],
)
def test_a_time_beyond_a_day_in_every_unit(micros, text):
    assert value_of(field("t", "int64", "io.debezium.time.MicroTime"), micros) == text
    assert value_of(field("t", "int64", "io.debezium.time.NanoTime"), micros * 1000) == text
