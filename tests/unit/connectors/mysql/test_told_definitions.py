"""Tables as records of the schema topic tell them: the columns are those of the catalog."""

import json

import msgspec
import pytest

from lakemark.connectors.mysql.told_definitions import column_type, definitions
from lakemark.model.definitions import ChangedColumn, TableChange, alike
from tests.kit.mysql_types import GOLDEN, MODES, described, modes_of

SAMPLES = {
    name: json.loads((GOLDEN / f"schema_changes_{name}.json").read_text())
    for name in ("mariadb", "mysql")
}


def told(connector, sample, mode=""):
    """The tables that a real record tells."""
    changes = SAMPLES[connector][sample]["value"]["tableChanges"]
    tables = msgspec.convert(changes, tuple[TableChange, ...])
    return dict(definitions(tables, modes_of(connector, mode), connector=connector))


@pytest.mark.parametrize("connector", ["mariadb", "mysql"])
@pytest.mark.parametrize("mode", ["", *MODES])
def test_every_type_is_read_as_by_the_catalog_whatever_the_connectors_settings(connector, mode):
    found = told(connector, "snapshot_create_table_types_id_int", mode)["shop.types"]
    catalog = described(connector, mode)
    assert found == catalog
    assert alike(found, catalog)
    assert [c.source_type for c in found.columns] == [c.source_type for c in catalog.columns]


@pytest.mark.parametrize("connector", ["mariadb", "mysql"])
def test_statements_tell_the_table_behind_them(connector):
    columns = {
        name: [column.name for column in told(connector, name)["shop.evolve"].columns]
        for name in ("ddl_add_column", "ddl_rename_column", "ddl_change_order", "ddl_drop_column")
    }
    assert columns == {
        "ddl_add_column": ["id", "a", "b", "c"],
        "ddl_rename_column": ["e", "id", "a", "d", "b", "c2"],
        "ddl_change_order": ["c2", "e", "id", "a", "d", "b"],
        "ddl_drop_column": ["c2", "id", "a", "d", "b"],
    }
    assert told(connector, "ddl_change_key")["shop.evolve"].key == ("id", "d")
    assert list(told(connector, "ddl_rename_table")) == ["shop.evolve2"]
    assert list(told(connector, "ddl_create_like")) == ["shop.made3"]
    assert told(connector, "ddl_drop_table") == {}
    assert told(connector, "ddl_create_index") == {}


@pytest.mark.parametrize(
    ("type_name", "length", "scale", "written"),
    [
        ("INTEGER", None, None, "int"),
        ("INT ZEROFILL", 5, None, "int unsigned zerofill"),
        ("BIGINT SIGNED", 20, None, "bigint"),
        ("SERIAL", None, None, "bigint unsigned"),
        ("BOOL", None, None, "tinyint(1)"),
        ("DEC", None, None, "decimal(10,0)"),
        ("NUMERIC", 7, None, "decimal(7,0)"),
        ("FIXED UNSIGNED", 7, 3, "decimal(7,3) unsigned"),
        ("FLOAT", 30, None, "double"),
        ("FLOAT", 7, 2, "float(7,2)"),
        ("DOUBLE PRECISION", None, None, "double"),
        ("REAL", 8, 3, "double(8,3)"),
        ("CHARACTER VARYING", 9, None, "varchar(9)"),
        ("NCHAR", None, None, "char(1)"),
        ("TIMESTAMP", 6, None, "timestamp(6)"),
        ("DATETIME", None, None, "datetime"),
        ("LONG", None, None, "mediumtext"),
    ],
)
def test_words_of_a_statement_are_the_catalogs(type_name, length, scale, written):
    column = ChangedColumn("c", type_name, length, scale)
    assert column_type(column, connector="mysql") == written


def test_json_is_text_on_mariadb_and_what_has_the_charset_binary_is_bytes():
    assert column_type(ChangedColumn("c", "JSON"), connector="mariadb") == "longtext"
    assert column_type(ChangedColumn("c", "JSON"), connector="mysql") == "json"
    binary = ChangedColumn("c", "VARCHAR", 9, charset_name="binary")
    assert column_type(binary, connector="mysql") == "varbinary(9)"
    labels = ChangedColumn("c", "ENUM", 1, enum_values=("'a'", "'c''d'"))
    assert column_type(labels, connector="mysql") == "enum('a','c''d')"


def test_a_table_with_words_that_nobody_knows_is_passed_over():
    change = {
        "type": "ALTER",
        "id": '"shop"."t"',
        "table": {"columns": [{"name": "a", "typeName": "INET9"}]},
    }
    tables = msgspec.convert([change], tuple[TableChange, ...])
    assert dict(definitions(tables, modes_of("mariadb"), connector="mariadb")) == {}


def test_names_with_quotes_and_dots_are_the_events():
    change = {
        "type": "CREATE",
        "id": '"my.db"."a""b"',
        "table": {"columns": [{"name": "a", "typeName": "INT"}]},
    }
    tables = msgspec.convert([change], tuple[TableChange, ...])
    assert list(dict(definitions(tables, modes_of("mysql"), connector="mysql"))) == ['"my.db".a"b']


@pytest.mark.parametrize("connector", ["mysql", "mariadb"])
def test_a_statement_tells_the_default_that_the_catalog_tells(connector):
    told = {"id": None, "n": "5", "t": "dflt", "at": "1970-01-01 00:00:00"}
    kinds = {"id": "INT", "n": "BIGINT", "t": "VARCHAR", "at": "DATETIME"}
    columns = [
        {"name": name, "typeName": kinds[name], "length": 20 if name == "t" else None,
         "optional": name != "id", "defaultValueExpression": default}
        for name, default in told.items()
    ]  # fmt: skip
    change = {"type": "ALTER", "id": '"s"."t"', "table": {"columns": columns}}
    table = msgspec.convert(change, TableChange)
    ((_, schema),) = definitions([table], modes_of(connector), connector=connector)
    assert {c.name: c.default for c in schema.columns} == {
        "id": "", "n": "5", "t": '"dflt"', "at": "0",
    }  # fmt: skip
