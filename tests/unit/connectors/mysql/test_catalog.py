"""Schemas from the catalog of MySQL and MariaDB: those that the connectors' records carry."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from lakemark.connectors.mysql.catalog import (
    CATALOG_SQL,
    CatalogColumn,
    ColumnType,
    connect_field,
    from_catalog,
    key_of,
    parsed,
    tables_of,
)
from lakemark.errors import ConfigError, TableError
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import type_fault
from lakemark.model.schema import TableSchema
from lakemark.state import encoding
from tests.kit.mysql_types import (
    CATALOG,
    CLASSES,
    MODES,
    TO_BOOLEAN,
    WRAPPED,
    carried,
    catalog,
    described,
    modes_of,
    of_mode,
)

CASES = [
    *(("mysql", mode) for mode in MODES),
    *(("mariadb", mode) for mode in MODES if mode != "m4"),
]
TABLES = {
    "types": "c_types__types_c_max",
    "orders": "c_orders__key_change_composite",
    "uniqonly": "c_uniqonly__key_swap_one_transaction",
    "gen": "c_gen__gen_c_u",
    "customers": "c_customers__c",
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("connector", CLASSES)
def test_the_catalog_gives_the_schema_that_records_carry(connector, table):
    sent = carried(WRAPPED[connector][TABLES[table]], table)
    ours = described(connector, table=table)
    assert sent.with_notes_of(ours) == ours
    unlike = [c.name for c in sent.columns if c != ours.column(c.name)]
    assert unlike == (["c_ubigint"] if table == "types" else [])  # its type is not in a record


@pytest.mark.parametrize(("connector", "mode"), CASES)
def test_the_catalog_gives_the_schema_of_each_mode(connector, mode):
    sent, _ = of_mode(connector, mode)
    ours = described(connector, mode)
    assert sent.with_notes_of(ours) == ours
    if mode == "m1":  # with column.propagate.source.type
        assert sent == ours
        assert [c.source_type for c in sent.columns if c.name != "c_gcoll"] == [
            c.source_type if c.name != "c_json" or connector == "mysql" else "longtext"
            for c in ours.columns
            if c.name != "c_gcoll"
        ]


@pytest.mark.parametrize("connector", CLASSES)
def test_fields_are_those_that_debezium_writes(connector):
    sent = WRAPPED[connector]["c_types__types_c_max"]["value"]["schema"]["fields"]
    (row,) = [f for f in sent if f["field"] == "after"]
    kept = [{k: v for k, v in f.items() if k not in ("doc", "default")} for f in row["fields"]]
    assert [connect_field(c, modes_of(connector)) for c in catalog(connector)] == kept


def test_the_notes_of_a_column():
    schema = described("mariadb")
    assert schema.column("c_time3").modifier == 3
    assert schema.column("c_dt").modifier == 0
    assert schema.column("c_ts6").modifier == 6
    assert schema.column("c_char").modifier is None
    assert schema.column("c_zint").source_type == "int unsigned zerofill"
    assert schema.column("c_dec_big").source_type == "decimal(65)"
    assert schema.column("c_dec_big").type == pa.string()
    assert schema.column("c_ubigint").type == pa.decimal128(20, 0)
    assert TableSchema.from_json(schema.to_json()).ways_to_read == schema.ways_to_read != set()
    assert schema.key == ("id",)


def test_the_key_is_in_its_own_order():
    assert described("mysql", table="orders").key == ("region", "id")
    columns = [CatalogColumn("a", "int", key_position=2), CatalogColumn("b", "int", key_position=1)]
    assert key_of(columns) == ["b", "a"]
    assert described("mysql", table="uniqonly").key == ("code",)


def read(*columns):
    """A table's columns of (name, whether the server says PRI, unique indexes)."""
    rows = [
        (*("shop", "a.b", name, "int", 1, None, None, 0, 0, None, 0), pri, json.dumps(places))
        for name, pri, places in columns
    ]
    ((table, found),) = tables_of(rows, mariadb=True).items()
    assert table == 'shop."a.b"'
    assert [c.name for c in found] == [name for name, *_ in columns]
    return key_of(found)


def test_the_key_is_the_index_that_the_server_takes_for_a_primary_key():
    """As MariaDB 11.4 described such tables."""
    both = {"PRIMARY": 2, "a": 1}
    assert read(("a", 1, both), ("b", 1, {"PRIMARY": 1}), ("c", 0, {"c": 1})) == ["b", "a"]
    assert read(("a", 1, {"z": 2}), ("b", 1, {"z": 1}), ("d", 0, {"y": 1})) == ["b", "a"]
    assert read(("a", 1, {"one": 1, "two": 1}), ("b", 1, {"one": 2})) == ["a", "b"]
    assert read(("a", 0, {"nullable": 1}), ("b", 0, {})) == []
    more = ("x", 0, {"more": 2})  # an index with a column that is not of the key
    assert read(("a", 1, {"z": 2, "more": 1}), more, ("b", 1, {"z": 1, "more": 3})) == ["b", "a"]
    # Of two indexes with the same columns the primary key, else the first by name.
    assert read(("a", 1, {"PRIMARY": 1, "A": 2}), ("b", 1, {"PRIMARY": 2, "A": 1})) == ["a", "b"]
    assert read(("a", 1, {"y": 1, "x": 2}), ("b", 1, {"y": 2, "x": 1})) == ["b", "a"]


def test_what_a_row_of_the_catalog_says():
    row = ("shop", "t", "n", "varchar(9)", 0, "utf8mb4", "utf8mb4_bin", 1, 1, "x", 0, 0, None)
    expected = CatalogColumn(
        "n",
        "varchar(9)",
        charset="utf8mb4",
        collation="utf8mb4_bin",
        generated=True,
        invisible=True,
    )  # of a generated column the default is none
    assert tables_of([row], mariadb=False) == {"shop.t": [expected]}
    assert tables_of([], mariadb=False) == {}


def test_notes_of_the_catalog_reach_only_columns_of_one_form():
    """A mode that has changed: the record's own form counts, and its own exact type."""
    precise = described("mysql", "m1")
    wrapped = carried(WRAPPED["mysql"]["c_types__types_c_max"])
    noted = wrapped.with_notes_of(precise)
    assert noted.column("c_ubigint").type == pa.int64()
    assert noted.column("c_year").mend == "mysql/year"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int(10) unsigned", ColumnType("int", (10,), unsigned=True)),
        ("int(5) unsigned zerofill", ColumnType("int", (5,), unsigned=True, zerofill=True)),
        ("bigint unsigned", ColumnType("bigint", unsigned=True)),
        ("decimal(10,2)", ColumnType("decimal", (10, 2))),
        ("datetime /* mariadb-5.3 */", ColumnType("datetime")),
        ("text /*M!100301 COMPRESSED*/", ColumnType("text")),
        ("enum('a','b,c','d''e',')')", ColumnType("enum", labels=("a", "b,c", "d'e", ")"))),
        (r"set('x\\y','\n')", ColumnType("set", labels=("x\\y", "\n"))),
        ("enum('/* no */ unsigned')", ColumnType("enum", labels=("/* no */ unsigned",))),
        ("enum('')", ColumnType("enum", labels=("",))),
        ("timestamp(6)", ColumnType("timestamp", (6,))),
    ],
)
def test_types_as_the_server_writes_them(text, expected):
    assert parsed(text) == expected


@pytest.mark.parametrize(
    ("column_type", "wire", "name"),
    [
        ("bigint(20) unsigned zerofill", "int64", None),
        ("float unsigned", "float", None),
        ("float(7,2) unsigned", "double", None),
        ("double(10,3)", "double", None),
        ("decimal(10,0) unsigned", "bytes", "org.apache.kafka.connect.data.Decimal"),
        ("multilinestring", "struct", "io.debezium.data.geometry.Geometry"),
        ("year(4)", "int32", "io.debezium.time.Year"),
        ("datetime(4)", "int64", "io.debezium.time.MicroTimestamp"),
        ("datetime(3)", "int64", "io.debezium.time.Timestamp"),
    ],
)
def test_types_that_no_sample_has(column_type, wire, name):
    field = connect_field(CatalogColumn("c", column_type), modes_of("mysql"))
    assert (field["type"], field.get("name")) == (wire, name)


def test_a_type_that_the_connector_cannot_read_is_left_out():
    columns = [CatalogColumn("a", "int"), CatalogColumn("b", "inet6")]
    schema = from_catalog("s.t", columns, [], modes_of("mariadb"), connector="mariadb")
    assert [c.name for c in schema.columns] == ["a"]


def test_a_type_of_no_server_is_refused_by_the_tables_name():
    with pytest.raises(TableError, match=r"s\.t") as refusal:
        from_catalog("s.t", [CatalogColumn("a", "(")], [], modes_of("mysql"), connector="mysql")
    assert refusal.value.code == "schema-unreadable"


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column_type", "more", "becomes"),
    [
        ("tinyint(1)", {}, True),
        ("tinyint(4)", {}, False),
        ("tinyint", {}, False),
        ("tinyint unsigned", {}, False),
        ("tinyint unsigned", {"bools.length.checker": "false"}, True),
        ("tinyint(1) unsigned zerofill", {}, False),
        ("int(1)", {}, False),
        ("tinyint(1)", {"bools.selector": r"shop\.other\..*"}, False),
        ("tinyint(1)", {"bools.selector": r"x, SHOP\.t\.c"}, True),
        ("tinyint(1)", {"bools.type": "org.example.Other"}, False),
    ],
)
def test_columns_that_the_connectors_converter_makes_true_or_false(column_type, more, becomes):
    settings = {"connector.class": CLASSES["mysql"], **TO_BOOLEAN, **more}
    modes = HandlingModes.from_connector(settings)
    field = connect_field(CatalogColumn("c", column_type), modes, table="shop.t")
    assert (field["type"] == "boolean") == becomes


def test_a_key_that_is_made_true_or_false_keeps_no_rows_apart():
    modes = modes_of("mysql", "m2")
    columns = [CatalogColumn("c", "tinyint(1)", not_null=True, key_position=1)]
    (column,) = from_catalog("s.t", columns, ["c"], modes, connector="mysql").columns
    assert "1 and 2 would be one row" in type_fault(column, modes).reason
    assert type_fault(replace(column, type=pa.int16()), modes) is None


def test_a_long_decimal_as_a_double_keeps_no_keys_apart():
    modes = modes_of("mysql", "m2")
    columns = [CatalogColumn("long", "decimal(20,0)"), CatalogColumn("short", "decimal(15,2)")]
    schema = from_catalog("s.t", columns, [], modes, connector="mysql")
    faults = [type_fault(column, modes) is not None for column in schema.columns]
    assert faults == [True, False]


def test_the_settings_of_one_kind_of_connector():
    modes = modes_of("mariadb")
    assert modes.time_precision == "adaptive_time_microseconds"
    assert modes.setting("bigint.unsigned.handling.mode") == "long"
    assert modes.setting("enable.time.adjuster") == "true"
    assert HandlingModes.from_connector({}).own == ()
    assert HandlingModes.from_connector({}).setting("enable.time.adjuster") is None
    with pytest.raises(ConfigError, match=r"expected one of adaptive_time_microseconds"):
        HandlingModes.from_connector(
            {"connector.class": CLASSES["mysql"], "time.precision.mode": "adaptive"}
        )
    with pytest.raises(ConfigError, match=r"expected one of long, precise"):
        HandlingModes.from_connector(
            {"connector.class": CLASSES["mysql"], "bigint.unsigned.handling.mode": "short"}
        )


def test_all_settings_that_encode_values_are_remembered():
    settings = {
        "connector.class": CLASSES["mysql"],
        "topic.prefix": "shop",
        "bigint.unsigned.handling.mode": "precise",
        "decimal.handling.mode": "string",
        **TO_BOOLEAN,
        "bools.selector": "shop.t.c",
        "tasks.max": "1",
    }
    kept = encoding.of(settings)
    assert kept == {name: value for name, value in settings.items() if name != "tasks.max"}
    assert HandlingModes.from_connector(kept) == HandlingModes.from_connector(settings)


def test_a_setting_that_no_schema_shows_concerns_all_tables():
    old = modes_of("mysql")
    new = HandlingModes.from_connector(
        {"connector.class": CLASSES["mysql"], "enable.time.adjuster": "false"}
    )
    schemas = {"shop.types": described("mysql")}
    assert encoding.concerned(["shop.types"], (old, new), schemas, schemas) == ["shop.types"]


def test_the_golden_catalog_has_every_type():
    kinds = {parsed(c["column_type"]).base for c in CATALOG["mysql"]["types"]}
    assert len(kinds) > 35


def test_the_sql_names_each_member_of_a_column():
    assert CATALOG_SQL.count("%(tables)s") == 3
    assert (CATALOG_SQL % {"tables": "(('a','b'))"}).count("'%INVISIBLE%'") == 1
