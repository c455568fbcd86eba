"""Values of MySQL and MariaDB in canonical form: what each text that the server writes stands for."""

from decimal import Decimal

import pytest

from lakemark.model.handling_modes import HandlingModes
from stack import every_mysql_type
from stack.mysql_rows import Column, reading
from tests.kit.mysql_types import catalog, modes_of

POINT = "0101000000000000000000F03F0000000000000040"
VALUES = {
    "tinyint(1)": ("5", 5),
    "bigint(20)": ("-9", -9),
    "bigint(20) unsigned": ("18446744073709551615", Decimal(18446744073709551615)),
    "float": ("0.1", 0.10000000149011612),
    "float(7,2)": ("12345.669921875", 12345.669921875),
    "double": ("-1e-300", -1e-300),
    "decimal(10,2)": ("1.50", Decimal("1.5")),
    "decimal(65,30)": ("-1.500", "-1.5"),
    "bit(1)": ("1", True),
    "bit(12)": ("801", b"\x01\x08"),
    "binary(4)": ("01020000", b"\x01\x02\0\0"),
    "varchar(9)": ("ab ", "ab "),
    "enum('a','b')": ("", ""),
    "longtext": ('{"a": 1}', '{"a": 1}'),
    "json": ('{"a": 1.0}', {"a": 1}),
    "date": ("-1", -1),
    "time(3)": ("-838:59:59.001", "-838:59:59.001000"),
    "time": ("12:34:56", "12:34:56.000000"),
    "datetime(6)": ("-1", -1),
    "timestamp": ("1000000", 1_000_000),
    "year(4)": ("0", 0),
    "point": (f"E6100000{POINT}", (4326, bytes.fromhex(POINT))),
    "vector(2)": ("0000803F000020C0", [1.0, -2.5]),
    "uuid": ("123e4567-e89b-42d3-a456-426614174000", "123e4567-e89b-42d3-a456-426614174000"),
}


def column(whole: str) -> Column:
    kind, _, inside = whole.partition("(")
    digits = inside.partition(")")[0].partition(",")[0]
    return Column("v", kind, whole, int(digits) if digits.isdigit() else None)


@pytest.mark.parametrize("whole", VALUES)
def test_a_text_of_the_server_becomes_the_value_that_the_lake_must_hold(whole):
    text, value = VALUES[whole]
    found = reading(column(whole), modes_of("mariadb")).parse(text)
    assert found == value
    assert type(found) is type(value) or isinstance(value, dict | list)


@pytest.mark.parametrize(
    ("whole", "setting", "text", "value"),
    [
        ("decimal(10,2)", {"decimal.handling.mode": "string"}, "1.50", "1.50"),
        ("decimal(10,2)", {"decimal.handling.mode": "double"}, "1.50", 1.5),
        ("blob", {"binary.handling.mode": "hex"}, "00FF", "00ff"),
        ("datetime(6)", {"time.precision.mode": "connect"}, "-1", -1000),
    ],
)
def test_the_connectors_settings_change_it(whole, setting, text, value):
    modes = HandlingModes.from_connector({"connector.class": "x.MariaDbConnector", **setting})
    assert reading(column(whole), modes).parse(text) == value


@pytest.mark.parametrize("srid", [None, 0, 4326])
def test_a_geometry_of_the_lake_is_compared_by_what_is_stored(srid):
    stored = f"{(srid or 0).to_bytes(4, 'little').hex()}{POINT}"
    how = reading(column("geometry"), modes_of("mariadb"))
    assert how.lake is not None
    assert how.parse(stored) == how.lake({"wkb": bytes.fromhex(POINT), "srid": srid})
    assert how.parse(stored) != how.lake({"wkb": bytes.fromhex(POINT), "srid": 7})


@pytest.mark.parametrize("connector", ["mariadb", "mysql"])
def test_the_table_of_every_type_is_that_of_the_golden_catalog(connector):
    golden = {c.name: c.kind.base for c in catalog(connector) if c.name != "id"}
    assert [c.name for c in every_mysql_type.columns(connector)] == list(golden)
    aliases = {"real": "double", "json": golden["c_json"], "geometrycollection": golden["c_gcoll"]}
    for found in every_mysql_type.columns(connector):
        base = found.type.partition("(")[0].partition(" ")[0]
        assert aliases.get(base, base) == golden[found.name], found.name
