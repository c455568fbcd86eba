"""PostgreSQL's texts and the connector's JSON of the same values give the same arrays."""

import json

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.connectors.postgres.column_sql import cell, quoted, selected
from lakemark.connectors.typed_rows import Cell
from lakemark.converters.json.rows import decode_rows
from lakemark.model.civil import Tally
from lakemark.model.handling_modes import HandlingModes

MODES = HandlingModes()


def made(column: CatalogColumn, modes: HandlingModes = MODES) -> Cell:
    return cell(column, from_catalog("s.t", [column], (), modes).columns[0], modes)


def read(column: CatalogColumn, *texts: str | None, modes: HandlingModes = MODES) -> list:
    array, bad = made(column, modes).array(pa.array(texts, pa.string()), Tally())
    assert not bad
    return array.to_pylist()


def as_event(column: CatalogColumn, value, modes: HandlingModes = MODES):
    schema = from_catalog("s.t", [column], (), modes)
    rows = decode_rows([json.dumps({column.name: value}).encode()], schema, modes)
    assert rows.bad == []
    return rows.columns.field(0).to_pylist()[0]


STRUCTURED = HandlingModes(time_precision="structured")
NUMERIC_15_2 = ((15 << 16) | 2) + 4


@pytest.mark.parametrize(
    ("column", "text", "value", "modes"),
    [
        (CatalogColumn("c", "bool"), "t", True, MODES),
        (CatalogColumn("c", "bit", 1), "1", True, MODES),
        (CatalogColumn("c", "bit", 5), "10011", "Ew==", MODES),
        (CatalogColumn("c", "varbit"), "1000000000000001", "AYA=", MODES),
        (CatalogColumn("c", "numeric", NUMERIC_15_2), "-12.34", "+y4=", MODES),
        (CatalogColumn("c", "numeric"), "1.500", {"scale": 3, "value": "Bdw="}, MODES),
        (CatalogColumn("c", "bytea"), "00ff", "AP8=", MODES),
        (CatalogColumn("c", "interval"), "P1Y2M3DT4H5M6.789012S", 37091106789012, MODES),
        (CatalogColumn("c", "hstore"), '"k1"=>"v1", "k2"=>NULL, "k\\"3"=>"v 3"',
         '{"k1":"v1","k2":null,"k\\"3":"v 3"}', MODES),
        (CatalogColumn("c", "hstore"), '"k\\"1"=>"v", "b"=>NULL', {"b": None, 'k"1': "v"},
         HandlingModes(hstore="map")),
        (CatalogColumn("c", "point"), "(1.5,-2)",
         {"x": 1.5, "y": -2.0, "wkb": "AQEAAAAAAAAAAAD4PwAAAAAAAADA", "srid": None}, MODES),
        (CatalogColumn("c", "box"), "(1,1),(0,0)",
         {"wkb": "AQMAAAABAAAABQAAAAAAAAAAAPA/AAAAAAAA8D8AAAAAAADwPwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
                 "AAAAAAAAAAAAAAAAAAAA8D8AAAAAAADwPwAAAAAAAPA/",
          "srid": None, "extensions": {"type": "box"}}, MODES),
        (CatalogColumn("c", "lseg"), "[(0,0),(1,1)]",
         {"wkb": "AQIAAAACAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAPA/AAAAAAAA8D8=", "srid": None,
          "extensions": {"type": "lseg"}}, MODES),
        (CatalogColumn("c", "path"), "[(0,0),(1,1),(2,0)]",
         {"wkb": "AQIAAAADAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAPA/AAAAAAAA8D8AAAAAAAAAQAAAAAAAAAAA",
          "srid": None, "extensions": {"type": "path", "closed": "false"}}, MODES),
        (CatalogColumn("c", "circle"), "<(1,2),3>",
         {"center": {"x": 1.0, "y": 2.0, "wkb": "AQEAAAAAAAAAAADwPwAAAAAAAABA", "srid": None},
          "radius": 3.0}, MODES),
        (CatalogColumn("c", "line"), "{1,2,3}", {"a": 1.0, "b": 2.0, "c": 3.0}, MODES),
        (CatalogColumn("c", "timetz"), "00:00:00+00",
         {"hour": 0, "minute": 0, "second": 0, "nanos": 0, "offsetSeconds": 0}, STRUCTURED),
        (CatalogColumn("c", "timetz"), "12:34:56.5-03:30",
         {"hour": 12, "minute": 34, "second": 56, "nanos": 500000000, "offsetSeconds": -12600},
         STRUCTURED),
        (CatalogColumn("c", "_int4", element_type_name="int4"), '["1",null]', [1, None], MODES),
        (CatalogColumn("c", "_bool", element_type_name="bool"), '["t","f"]', [True, False], MODES),
        (CatalogColumn("c", "_bit", 5, element_type_name="bit"), None, None, MODES),
    ],
    ids=lambda value: value.type_name if isinstance(value, CatalogColumn) else "",
)  # fmt: skip
def test_texts_and_json_agree(column, text, value, modes):
    assert read(column, text, None, modes=modes) == [as_event(column, value, modes), None]


@given(st.lists(st.none() | st.binary(max_size=20), max_size=30), st.integers(0, 5))
def test_binaries_come_back(values, skipped):
    texts = pa.array([None if v is None else v.hex() for v in values], pa.string()).slice(skipped)
    found, bad = made(CatalogColumn("c", "bytea")).array(texts, Tally())
    assert found.to_pylist() == values[skipped:]
    assert bad == {}


@given(st.lists(st.none() | st.decimals(allow_nan=False, allow_infinity=False, places=3)))
def test_unlimited_numerics_agree(values):
    column = CatalogColumn("c", "numeric")
    texts = [None if v is None else format(v or abs(v), "f") for v in values]
    numbers = HandlingModes(decimal_format="NUMERIC")
    expected = []
    for value in values:
        if value is not None:
            unscaled = int(format(value, "f").replace(".", ""))
            raw = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
            parts = {"scale": 3, "value": msgspec.to_builtins(raw)}
            expected.append(as_event(column, parts, numbers))
        else:
            expected.append(None)
    assert read(column, *texts) == expected


@pytest.mark.parametrize(
    ("name", "text", "years"),
    [
        ("date", "infinity", 9999),
        ("date", "-infinity", 1),
        ("date", "0044-03-15 BC", 1),
        ("date", "10000-01-01", 9999),
        ("timestamp", "294276-12-31 23:59:59.999999", 9999),
        ("timestamp", "4713-01-01 00:00:00 BC", 1),
        ("timestamptz", "0044-03-15 00:00:00+00 BC", 1),
        ("timestamptz", "infinity", 9999),
    ],
)
def test_what_delta_cannot_hold_is_clamped_and_counted(name, text, years):
    tally = Tally()
    usual = "2024-02-29 12:00:00+00"
    usual = {"date": usual[:10], "timestamp": usual[:19], "timestamptz": usual}[name]
    texts = pa.array([text, usual, None], pa.string())
    found, bad = made(CatalogColumn("c", name)).array(texts, tally)
    assert [v and v.year for v in found.to_pylist()] == [years, 2024, None]
    assert tally.clamped == 1
    assert bad == {}


def test_odd_values_are_null_and_listed_and_nothing_else_is_lost():
    column = CatalogColumn("c", "numeric", NUMERIC_15_2)
    texts = pa.array(["1.00", "NaN", None, "2.00", "Infinity"], pa.string())
    found, bad = made(column).array(texts, Tally())
    assert [v and str(v) for v in found.to_pylist()] == ["1.00", None, None, "2.00", None]
    assert bad == {1: "wrong-type", 4: "wrong-type"}
    tally = Tally()
    dates = pa.array(["infinity", "nonsense"], pa.string())
    assert made(CatalogColumn("c", "interval")).array(dates, tally)[1].keys() == {0, 1}


def test_types_that_the_connector_sends_as_bytes():
    column = CatalogColumn("c", "pg_lsn")
    for binary, select in (("bytes", "encode("), ("hex", "encode("), ("base64", "translate(")):
        one = made(column, HandlingModes(include_unknown=True, binary=binary))
        assert selected("x", one).startswith(select)
        assert "convert_to((\"x\")::text, 'UTF8')" in selected("x", one)
    array = CatalogColumn("c", "_pg_lsn", element_type_name="pg_lsn")
    one = made(array, HandlingModes(include_unknown=True))
    assert one.array(pa.array([None], pa.string()), Tally())[0].to_pylist() == [None]


def test_empty_columns_keep_their_type():
    for name in ("int4", "numeric", "bytea", "timestamp", "date", "time", "timetz", "interval"):
        one = made(CatalogColumn("c", name))
        assert one.array(pa.array([], pa.string()), Tally())[0].type == one.type


def test_names_are_quoted():
    assert quoted("a", 'b"c') == '"a"."b""c"'
    assert selected("{}", made(CatalogColumn("{}", "bytea"))) == "encode(\"{}\", 'hex')"


# As Debezium 3.7 wrote them: 12 pairs fill 16 places, 13 need 32.
HASHED = {
    ("a", "b", "Aa", "aa", "x1", "x2", "x3", "zz", "pear", "apple", "ünï", "key one"): (
        *("Aa", "aa", "zz", "a", "apple", "b", "pear", "key one", "x1", "x2", "x3", "ünï"),
    ),
    ("a", "b", "Aa", "BB", "aa", "x1", "x2", "x3", "zz", "pear", "apple", "ünï", "key one"): (
        *("Aa", "BB", "aa", "zz", "a", "b", "key one", "apple", "pear", "x1", "x2", "x3", "ünï"),
    ),
}


@pytest.mark.parametrize(("words", "expected"), HASHED.items(), ids=["12", "13"])
def test_the_pairs_of_an_hstore_come_in_the_connector_s_order(words, expected):
    text = ", ".join(f'"{word}"=>"{word}"' for word in words)
    column = CatalogColumn("c", "hstore")
    assert list(json.loads(read(column, text)[0])) == list(expected)
    pairs = read(column, text, modes=HandlingModes(hstore="map"))[0]
    assert [word for word, _ in pairs] == list(expected)
