"""The exact values of MySQL and MariaDB, from records that their connectors wrote."""

import base64
import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.mysql.mended_values import VALUES
from lakemark.converters.json import envelope
from lakemark.converters.json.keys import canonical_keys
from lakemark.converters.json.rendering import Rendering
from lakemark.converters.json.rows import decode_rows
from lakemark.model import positions, value_rules
from lakemark.model.events import Kind, SourceIdentity
from lakemark.model.key import canonical_from_columns
from lakemark.model.schema import TableSchema, from_connect
from tests.kit.mysql_types import (
    BY_MODE,
    CLASSES,
    ENCODE,
    MODES,
    WRAPPED,
    carried,
    described,
    modes_of,
    of_mode,
    records,
    typed,
)
from tests.kit.row_images import UTC, ntz

PLAIN = {name: records(f"{name}_json.json") for name in CLASSES}
BIG = "12345678901234567890123456789012345.123456789012345678901234567891"
TYPICAL = {
    "c_bool": 1, "c_tinyint1": 5, "c_utinyint": 200, "c_usmallint": 60000, "c_umediumint": 16000000,
    "c_uint": 4000000000, "c_zint": 42, "c_bigint": -9000000000000000000, "c_ubigint": Decimal(1000),
    "c_float": 1.5, "c_float72": 12345.669921875, "c_double": 2.718281828459045,
    "c_dec": Decimal("12345678.90"), "c_dec_big": BIG, "c_udec": Decimal(18446744073709551616), "c_num": Decimal(99999),
    "c_bit1": True, "c_bit8": b"\x81", "c_bit12": b"\x01\x08", "c_bit64": b"\x01\0\0\0\0\0\0\x80",
    "c_char": "ab", "c_varchar": "vär€😀", "c_latin1": "grün", "c_utf8mb3": "ü€", "c_text_latin1": "é",
    "c_binary": b"\x01\x02\0\0\0\0\0\0", "c_varbinary": b"\x00\xff\x10", "c_tinyblob": b"\xde\xad\xbe\xef",
    "c_enum": "c'd", "c_set": "x,z", "c_date": dt.date(2026, 11, 26),
    "c_time": "12:34:56.000000", "c_time3": "12:34:56.789000", "c_time6": "12:34:56.789012",
    "c_dt": ntz(2026, 11, 26, 12, 34, 56), "c_dt3": ntz(2026, 11, 26, 12, 34, 56, 789000), "c_dt6": ntz(2026, 11, 26, 12, 34, 56, 789012),
    "c_ts": dt.datetime(2026, 11, 26, 12, 34, 56, tzinfo=UTC), "c_ts6": dt.datetime(2026, 11, 26, 12, 34, 56, 789012, UTC),
    "c_year": 2026,
}  # fmt: skip
GREATEST = {
    "c_tinyint": 127, "c_utinyint": 255, "c_bigint": 9223372036854775807, "c_ubigint": Decimal(18446744073709551615),
    "c_double": 1.7976931348623157e308, "c_dec": Decimal("99999999.99"),
    "c_bit8": b"\xff", "c_enum": "a", "c_set": "x,y,z", "c_json": "[]", "c_date": dt.date(9999, 12, 31),
    "c_time": "838:59:59.000000", "c_time3": "838:59:59.000000", "c_time6": "838:59:58.999999",
    "c_dt": ntz(9999, 12, 31, 23, 59, 59), "c_dt6": ntz(9999, 12, 31, 23, 59, 59, 999999),
    "c_ts6": dt.datetime(2038, 1, 19, 3, 14, 7, 999999, UTC), "c_year": 2155,
}  # fmt: skip
LEAST = {
    "c_tinyint": -128, "c_bigint": -9223372036854775808, "c_ubigint": Decimal(0), "c_double": -1e-300,
    "c_bit1": False, "c_bit12": b"\0\0", "c_char": "", "c_set": "", "c_json": '"s"', "c_date": dt.date(1000, 1, 1),
    "c_time": "-838:59:59.000000", "c_time3": "-00:00:00.001000", "c_time6": "-838:59:58.999999",
    "c_dt": ntz(1000, 1, 1), "c_ts6": dt.datetime(1970, 1, 2, 0, 0, 1, 1, UTC), "c_year": 1901,
}  # fmt: skip
ZERO = {
    "c_enum": "", "c_date": None, "c_time": "00:00:00.000000", "c_dt": None, "c_dt3": None, "c_dt6": None,
    "c_ts": None, "c_ts3": None, "c_ts6": None, "c_year": 0,
}  # fmt: skip
POINT = base64.b64decode("AQEAAAAAAAAAAADwPwAAAAAAAABA")
COMPACT = {
    "mysql": '{"a":[1,null,"x"],"b":1.0,"big":12345678901234567890}',
    "mariadb": '{"b": 1.0, "a": [1, null, "x"], "big": 12345678901234567890}',  # a text as any
}


def row(connector, label):
    """A row as typed by the catalog's schema."""
    image = ENCODE(PLAIN[connector][label]["value"]["after"])
    return typed(image, described(connector), modes_of(connector))


def part(values, like):
    return {name: values[name] for name in like}


@pytest.mark.parametrize("connector", CLASSES)
@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("r_snapshot_types_first_in_data_collection", TYPICAL),
        ("c_types__types_c_typical", TYPICAL),
        ("c_types__types_c_max", GREATEST),
        ("c_types__types_c_min", LEAST),
        ("c_types__types_c_zero_dates", ZERO),
    ],
)
def test_exact_values(connector, label, expected):
    assert part(row(connector, label), expected) == expected


@pytest.mark.parametrize("connector", CLASSES)
def test_a_row_without_values(connector):
    values = row(connector, "c_types__types_c_null")
    assert values.pop("id") == 7
    assert set(values.values()) == {None}


@pytest.mark.parametrize("connector", CLASSES)
@pytest.mark.parametrize(
    "label", ["r_snapshot_types_first_in_data_collection", "c_types__types_c_typical"]
)
def test_rows_of_the_log_and_of_a_snapshot_are_alike(connector, label):
    """JSON has spaces in one of them, MariaDB's UUID is wrong in one."""
    values = row(connector, label)
    assert values["c_json"] == COMPACT[connector]
    if connector == "mariadb":
        assert values["c_uuid"] == "123e4567-e89b-12d3-a456-426614174000"
    else:
        assert values["c_vector"] == [1.0, 2.5, -3.0]
    assert values["c_geometry"] == {"wkb": POINT, "srid": None}
    assert values["c_point"]["srid"] == 4326


@pytest.mark.parametrize("connector", CLASSES)
@pytest.mark.parametrize("label", WRAPPED["mysql"])
def test_rows_by_the_records_own_schema_are_those_by_the_catalogs(connector, label):
    record = WRAPPED[connector][label]
    table = record["value"]["payload"]["source"]["table"]
    image = ENCODE(record["value"]["payload"]["after"])
    ours = described(connector, table=table)
    modes = modes_of(connector)
    by_catalog = typed(image, ours, modes)
    alone = typed(image, carried(record, table), modes)
    assert typed(image, carried(record, table).with_notes_of(ours), modes) == by_catalog
    wrapped = alone.pop("c_ubigint", None)
    if wrapped is not None:  # nothing in the record says that it has no sign
        assert Decimal(wrapped % (1 << 64)) == by_catalog.pop("c_ubigint")
    assert alone == by_catalog


# Values that a mode writes otherwise, or not at all.
HEX = {"c_binary": "0102000000000000", "c_varbinary": "00ff10", "c_tinyblob": "deadbeef"}
BASE64 = {"c_binary": "AQIAAAAAAAA=", "c_varbinary": "AP8Q", "c_tinyblob": "3q2+7w=="}
IN_MODE = {
    "m1": {"c_dec": "12345678.90", "c_udec": "18446744073709551616", "c_num": "99999", **HEX},
    "m2": {
        "c_bool": True, "c_tinyint1": True, "c_dec": 12345678.9, "c_dec_big": 1.234567890123457e34,
        "c_udec": 1.8446744073709552e19, "c_num": 99999.0, "c_time6": "12:34:56.789000",
        "c_dt6": ntz(2026, 11, 26, 12, 34, 56, 789000), **BASE64,
    },
    "m3": {**BASE64, "c_tinyblob": "3q2-7w=="},
    "m4": {},
}  # fmt: skip
CASES = [(c, m) for c in CLASSES for m in MODES if (c, m) != ("mariadb", "m4")]


@pytest.mark.parametrize(("connector", "mode"), CASES)
def test_typical_values_in_each_mode(connector, mode):
    sent, images = of_mode(connector, mode)
    modes = modes_of(connector, mode)
    values = typed(images["typical"], described(connector, mode), modes)
    assert part(values, TYPICAL) == {**TYPICAL, **IN_MODE[mode]}
    noted = sent.with_notes_of(described(connector, mode))
    assert typed(images["typical"], noted, modes) == values
    if mode == "m1":  # it says the types itself
        assert typed(images["typical"], sent, modes) == values


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("m1", {"c_ubigint": Decimal(18446744073709551615), "c_time": None}),
        ("m2", {"c_ubigint": Decimal(18446744073709551615), "c_time6": None}),
        ("m3", {"c_ubigint": Decimal(18446744073709551615), "c_time6": "838:59:58.999999"}),
        ("m4", {"c_ubigint": Decimal(18446744073709551615), "c_time6": "838:59:58.999999"}),
    ],
)
def test_the_greatest_values_in_each_mode(mode, expected):
    """Times of more than a day are null in two of them, as the connector writes them."""
    _, images = of_mode("mysql", mode)
    values = typed(images["max"], described("mysql", mode), modes_of("mysql", mode))
    assert part(values, expected) == expected


def test_a_propagated_type_mends_without_the_catalog():
    sent, _ = of_mode("mysql", "m1")
    assert sent.column("c_ubigint").type == pa.decimal128(20, 0)
    row_schema = {
        "fields": [
            {
                "field": "c",
                "type": "int64",
                "optional": True,
                "parameters": {"__debezium.source.column.type": "BIGINT UNSIGNED"},
            }
        ]
    }
    schema = from_connect("s.t", row_schema, None, connector="mysql")
    assert typed(b'{"c":-1}', schema, modes_of("mysql"))["c"] == Decimal(18446744073709551615)
    other = from_connect("s.t", row_schema, None, connector="postgresql")
    assert typed(b'{"c":-1}', other, modes_of("mysql"))["c"] == -1


# -- what is written again -------------------------------------------------------------------------


@pytest.mark.parametrize("connector", CLASSES)
@pytest.mark.parametrize("label", ["types_c_max", "types_c_min", "types_c_zero_dates"])
def test_a_row_is_written_as_the_connector_wrote_it(connector, label):
    """But MariaDB's UUID, which is right now, and its zero timestamps, which are null."""
    sent = PLAIN[connector][f"c_types__{label}"]["value"]["after"]
    schema, modes = described(connector), modes_of(connector)
    rows = decode_rows([ENCODE(sent)], schema, modes)
    (written,) = Rendering(schema, modes).images(rows.columns).objects.to_pylist()
    found = json.loads(written, parse_float=Decimal)
    unlike = {name for name in sent if found[name] != sent[name]}
    zero = {"c_ts", "c_ts3", "c_ts6"} if label.endswith("dates") else set()
    assert unlike == ({"c_uuid", *zero} if connector == "mariadb" else set())


@given(st.lists(st.none() | st.integers(-(1 << 63), (1 << 63) - 1)), st.integers(0, 3))
def test_wrapped_numbers_and_back(numbers, offset):
    mend = VALUES["mysql"].mends["unsigned"]
    plain = pa.array(numbers, pa.int64()).slice(offset)
    exact = mend.read(plain)
    exact.validate(full=True)
    assert exact.to_pylist() == [
        None if n is None else Decimal(n % (1 << 64)) for n in plain.to_pylist()
    ]
    assert mend.write(exact).to_pylist() == plain.to_pylist()
    assert mend.write(exact.slice(1)).to_pylist() == plain.slice(1).to_pylist()


# -- keys ------------------------------------------------------------------------------------------

KEYS = [
    ("c_ubigint", [-1, 0, 1000], ["18446744073709551615", "0", "1000"]),
    ("c_bigint", [-1, 0], None),
    ("c_uint", [4000000000], None),
    ("c_dec", ["SZYC0g==", "AA=="], ["12345678.9", "0"]),
    ("c_dec_big", ["HgK8HpeFi9xsuVBY80JNfTp/7HsD4maOPwrT"], [BIG]),
    ("c_varchar", ["vär€😀", 'q"\\', ""], None),
    ("c_char", ["ab", ""], None),
    ("c_binary", ["AQIAAAAAAAA="], None),
    ("c_bit12", ["AQg="], None),
    ("c_bit1", [True, False], None),
    ("c_enum", ["c'd", ""], None),
    ("c_set", ["x,z", ""], None),
    ("c_year", [1900, 2026], [0, 2026]),
    ("c_date", [20783], None),
    ("c_time6", [-3020398999999, 45296789012], ["-838:59:58.999999", "12:34:56.789012"]),
    ("c_dt3", [1795696496789], [1795696496789000]),
    ("c_ts6", ["2026-11-26T12:34:56.78Z"], [1795696496780000]),
    ("c_double", ["0.1", "1E+20", "-0.0"], [0.1, 1e20, 0.0]),
]


@pytest.mark.parametrize("connector", CLASSES)
@pytest.mark.parametrize(("name", "values", "expected"), KEYS)
def test_keys_of_records_are_those_of_typed_rows(connector, name, values, expected):
    """Plain keys, wrapped ones without their type, and rows: byte for byte."""
    schema = described(connector)
    schema = TableSchema(schema.table, schema.columns, (name,))
    modes = modes_of(connector)
    numbers = [Decimal(v) for v in values] if name == "c_double" else values
    plain = [ENCODE({name: value}) for value in numbers]
    sent = WRAPPED[connector]["c_types__types_c_max"]["value"]["schema"]["fields"]
    (fields,) = [f["fields"] for f in sent if f["field"] == "after"]
    own = {"type": "struct", "fields": [f for f in fields if f["field"] == name]}
    wrapped = [ENCODE({"schema": own, "payload": {name: value}}) for value in numbers]
    rows = decode_rows(plain, schema, modes)
    column = schema.column(name)
    typed_keys = canonical_from_columns([rows.columns.field(name)], [column]).to_pylist()
    assert canonical_keys(plain, schema) == typed_keys == canonical_keys(wrapped, schema)
    assert [json.loads(key) for key in typed_keys] == [[v] for v in expected or values]


def test_keys_of_mariadbs_uuids():
    schema = described("mariadb")
    schema = TableSchema(schema.table, schema.columns, ("c_uuid",))
    right, cut = "123e4567-e89b-12d3-a456-426614174000", "00123e45-67e8-9b12-d3a4-564266141740"
    nobody_knows = "00000000-0000-0000-0000-000000000001"
    keys = [ENCODE({"c_uuid": text}) for text in (right, cut, nobody_knows)]
    assert canonical_keys(keys, schema) == [ENCODE([right]), ENCODE([right]), None]


def test_a_uuid_of_which_nothing_is_certain_is_no_value():
    schema, modes = described("mariadb"), modes_of("mariadb")
    image = b'{"id":1,"c_uuid":"00000000-0000-0000-0000-000000000001"}'
    rows = decode_rows([image, b'{"id":2}'], schema, modes)
    assert [(at, code) for at, code, _ in rows.bad] == [(0, "wrong-type")]
    assert rows.columns[1].as_py()["id"] == 2


# -- headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mysql_json", "mariadb_json", "mariadb11_json"])
def test_each_record_has_a_header(name):
    found = list(records(f"{name}.json").values())
    connector = name.partition("_")[0].rstrip("1")
    values = [ENCODE(r["value"]) if r["value"] is not None else None for r in found]
    keys = [ENCODE(r["key"]) if r["key"] is not None else None for r in found]
    prefix = next(v["value"]["source"]["name"] for v in found if (v["value"] or {}).get("source"))
    identity = SourceIdentity(connector, prefix, signal_table="shop.debezium_signal")
    epoch = positions.epoch_number(connector, 0)
    heads = envelope.decode(values, keys, identity=identity, epoch=epoch)
    assert [heads.reason[at] for at, k in enumerate(heads.kind) if k == Kind.BAD] == []
    changes = [
        at for at, record in enumerate(found) if (record["value"] or {}).get("op") in set("cud")
    ]
    tables = {f"shop.{found[at]['value']['source']['table']}" for at in changes}
    assert {heads.table[at] for at in changes} == tables
    assert all(heads.source_ts[at] > 0 for at in changes)


def test_wrapped_records_have_headers_too():
    for connector, found in WRAPPED.items():
        values = [ENCODE(r["value"]) for r in found.values()]
        keys = [ENCODE(r["key"]) for r in found.values()]
        prefix = next(iter(found.values()))["value"]["payload"]["source"]["name"]
        epoch = positions.epoch_number(connector, 0)
        identity = SourceIdentity(connector, prefix)
        heads = envelope.decode(values, keys, identity=identity, epoch=epoch)
        assert heads.reason == [None] * len(values)
        assert all(heads.schema)


def test_who_has_no_rules_writes_values_as_they_are():
    assert value_rules.rules_of("postgresql") is None
    assert value_rules.connector_of("io.debezium.connector.mysql.Source") == "mysql"
    assert value_rules.connector_of(CLASSES["mariadb"]) == "mariadb"
    for other in ("", "None", "Source", "io.debezium", "io.debezium.data.Json", "a.b.c.mysql"):
        assert value_rules.connector_of(other) == ""
    assert set(value_rules.RULES) == set(CLASSES)
    assert BY_MODE


def test_a_zero_timestamp_is_null_where_the_column_may_be():
    """In a column that is NOT NULL both databases' zero is 1970, in events as in their snapshots."""
    fields = [
        {"field": name, "type": "string", "name": "io.debezium.time.ZonedTimestamp", "optional": o}
        for name, o in (("free", True), ("bound", False))
    ]
    image = b'{"free":"1970-01-01T00:00:00.000Z","bound":"1970-01-01T00:00:00Z"}'
    zero = dt.datetime(1970, 1, 1, tzinfo=UTC)
    for connector, expected in (("mariadb", None), ("mysql", zero), ("postgresql", zero)):
        schema = from_connect("s.t", {"fields": fields}, None, connector=connector)
        values = typed(image, schema, modes_of("mariadb"))
        assert values == {"free": expected, "bound": zero}
