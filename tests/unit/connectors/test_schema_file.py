"""Columns as the user writes them are what the catalog would say."""

import pyarrow as pa
import pytest

from lakemark.connectors.postgres.catalog import CatalogColumn
from lakemark.connectors.postgres.schema_file import read_schema_file, schemas_from_file
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.layers import InvalidConfig


@pytest.fixture
def write(tmp_path):
    def _write(text: str):
        file = tmp_path / "tables.yaml"
        file.write_text(text)
        return file

    return _write


def columns(write, *types: str) -> list[CatalogColumn]:
    lines = "\n".join(f"    c{i}: {type_}" for i, type_ in enumerate(types))
    return read_schema_file(write(f"public.t:\n  columns:\n{lines}\n"))["public.t"]


@pytest.mark.parametrize(
    ("text", "typname", "typmod"),
    [
        ("bigint", "int8", -1),
        ("INTEGER", "int4", -1),
        ("double precision", "float8", -1),
        ("numeric", "numeric", -1),
        ("numeric(10,2)", "numeric", (10 << 16 | 2) + 4),
        ("decimal(5)", "numeric", (5 << 16) + 4),
        ("numeric(5,-2)", "numeric", (5 << 16 | 2046) + 4),
        ("character varying(20)", "varchar", 24),
        ("char", "bpchar", 5),
        ("char(3)", "bpchar", 7),
        ("bit", "bit", 1),
        ("bit varying(9)", "varbit", 9),
        ("timestamp", "timestamp", -1),
        ("timestamp(3)", "timestamp", 3),
        ("timestamp (0) without time zone", "timestamp", 0),
        ("timestamp(6) with time zone", "timestamptz", 6),
        ("time with time zone", "timetz", -1),
        ("timestamptz", "timestamptz", -1),
        ("jsonb", "jsonb", -1),
    ],
)
def test_types_as_in_create_table(write, text, typname, typmod):
    (found,) = columns(write, text)
    assert (found.type_name, found.typmod, found.not_null) == (typname, typmod, False)


def test_arrays_enums_and_not_null(write):
    array, enum, enums, strict = columns(write, "text[]", "enum", "enum[]", "int not null")
    assert (array.type_name, array.element_type_name) == ("_text", "text")
    assert (enum.is_enum, enums.element_is_enum) == (True, True)
    assert strict.not_null


def test_the_key_keeps_its_order_and_the_modes_apply(write):
    file = write(
        "public.t:\n  key: [b, a]\n  columns: {a: int, b: text, n: 'numeric(10,2)', at: timestamp}\n"
    )
    found = schemas_from_file(file, HandlingModes(decimal="string"))["public.t"]
    assert found.key == ("b", "a")
    assert found.arrow().field("n").type == pa.string()
    assert found.arrow().field("at").type == pa.timestamp("us")
    precise = schemas_from_file(file, HandlingModes())["public.t"]
    assert precise.arrow().field("n").type == pa.decimal128(10, 2)


def test_all_mistakes_at_once(write):
    file = write(
        "orders: {columns: {a: int}}\n"
        "public.a: {columns: {a: bigintt, b: 'numeric(', c: my_enum}, keys: [a]}\n"
        "public.b: {key: [x], columns: {a: int}}\n"
        "public.c: {}\n"
    )
    with pytest.raises(InvalidConfig) as caught:
        read_schema_file(file)
    hints = {problem.path: problem.hint for problem in caught.value.problems}
    assert set(hints) == {
        "orders",
        "public.a",
        "public.a.columns.a",
        "public.a.columns.b",
        "public.a.columns.c",
        "public.b.key",
        "public.c.columns",
    }
    assert hints["public.a.columns.a"] == "did you mean bigint?"
    assert "enum" in hints["public.a.columns.c"]


@pytest.mark.parametrize("text", ["[", "- a", "\x00", "just words"])
def test_files_that_hold_no_tables(write, text):
    with pytest.raises(InvalidConfig):
        read_schema_file(write(text))


def test_names_that_yaml_takes_for_other_values_are_names(write):
    names = ["no", "on", "off", "yes", "true", "null", "1_0", "2024-01-01"]
    lines = "\n".join(f"    {name}: int" for name in names)
    found = read_schema_file(write(f"public.t:\n  key: [no, 1_0]\n  columns:\n{lines}\n"))
    assert [column.name for column in found["public.t"]] == names
    assert [c.name for c in found["public.t"] if c.key_position] == ["no", "1_0"]
