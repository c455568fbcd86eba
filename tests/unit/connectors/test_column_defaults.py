"""Defaults that a catalog tells are those that the connector's schemas had, see tests/golden."""

import json

import pytest

from lakemark.connectors.mysql import catalog as mysql
from lakemark.connectors.mysql.column_defaults import NOW
from lakemark.connectors.mysql.column_defaults import default_of as default_of_mysql
from lakemark.connectors.postgres import catalog as postgres
from lakemark.model.handling_modes import HandlingModes
from tests.kit.golden import GOLDEN
from tests.kit.mysql_types import modes_of

SAMPLES = json.loads((GOLDEN / "column_defaults.json").read_text())
NOT_TOLD = {"interval", "binary", "varbinary", "blob"}
STRUCTURED = HandlingModes(time_precision="structured")


@pytest.mark.parametrize("modes", [HandlingModes(), STRUCTURED], ids=["usual", "structured"])
def test_of_postgresql(modes):
    compared = 0
    for sample in SAMPLES["postgres"]:
        column = postgres.CatalogColumn(**sample["column"])
        told = (postgres.connect_field(column, modes) or {}).get("default")
        expected = sample["default"]
        if modes is STRUCTURED:
            expected = sample.get("structured", expected)
        if column.type_name in NOT_TOLD or expected in ("NaN", 169560311):
            expected = None  # of intervals, of what Avro has not, and of infinite dates
        assert (told, type(told)) == (expected, type(expected)), column
        compared += told is not None
    assert compared > 60


@pytest.mark.parametrize("connector", ["mysql", "mariadb"])
def test_of_mysql_and_mariadb(connector):
    compared = 0
    for sample in SAMPLES[connector]:
        (found,) = mysql.tables_of([sample["row"]], mariadb=connector == "mariadb").values()
        (column,) = found
        told = mysql.connect_field(column, modes_of(connector)).get("default")
        expected = sample["default"]
        if column.kind.base in NOT_TOLD:
            expected = None
        if column.kind.base == "timestamp" and column.default != NOW:
            expected = None  # it hangs on the time zone of Connect
        assert (told, type(told)) == (expected, type(expected)), column
        compared += told is not None
    assert compared > 80


@pytest.mark.parametrize(
    ("literal", "base", "field", "default"),
    [
        ("0000-00-00", "date", {"name": "io.debezium.time.Date", "optional": True}, None),
        ("0000-00-00", "date", {"name": "io.debezium.time.Date", "optional": False}, 0),
        ("2024-02-30", "date", {"name": "io.debezium.time.Date", "optional": True}, None),
        ("12:00:00", "time", {"name": "io.debezium.time.NanoTime"}, 43_200_000_000_000),
        ("12:00:00", "time", {"type": "string", "name": "io.debezium.time.IsoTime"}, None),
        ("1.5", "decimal", {"type": "double"}, 1.5),
        ("1.5", "decimal", {"type": "string"}, None),
        ("7", "bigint", {"type": "bytes", "name": "Decimal"}, None),
        ("x", "int", {"type": "int32"}, None),
        ("3000000000", "int", {"type": "int32"}, None),
        ("a\\b", "varchar", {"type": "string"}, None),
        ("(1,2)", "point", {"type": "struct"}, None),
    ],
)
def test_a_text_that_is_no_value_of_its_form_is_none(literal, base, field, default):
    assert default_of_mysql(literal, base, {"type": "int64", "optional": True, **field}) == default


@pytest.mark.parametrize(
    ("expression", "type_name", "default"),
    [
        ("'2024-02-29 10:00:00-02:30'::timestamptz", "timestamptz", "2024-02-29T12:30:00.000000Z"),
        ("'0044-03-15 BC'::date", "date", None),
        ("'10000-01-01'::date", "date", None),
        ("'24:00:00'::time without time zone", "time", 86_400_000_000),
        ("99999", "int2", None),
        ("'1e400'::double precision", "float8", None),
        ("'odd'::uuid", "uuid", None),
    ],
)
def test_an_expression_that_is_no_value_of_its_type_is_none(expression, type_name, default):
    column = postgres.CatalogColumn("c", type_name, default=expression)
    assert postgres.connect_field(column, HandlingModes()).get("default") == default
