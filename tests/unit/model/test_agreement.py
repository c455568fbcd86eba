"""What records and a database say of a table's columns, and when that is to be told."""

import pyarrow as pa
import pytest

from lakemark.model.agreement import disagreement
from lakemark.model.columns import Column
from lakemark.model.schema import TableSchema

ID = ("id", pa.int64())


def schema(*columns: tuple[str, pa.DataType]) -> TableSchema:
    return TableSchema("public.t", tuple(Column(n, kind) for n, kind in columns), ("id",))


@pytest.mark.parametrize(
    ("records", "database", "told"),
    [
        ([ID], [ID], ""),
        ([("id", pa.int32())], [ID], "id is int32 in its records and int64 in the database"),
        ([ID, ("n", pa.decimal128(5, 2))], [ID, ("n", pa.decimal128(9, 2))], "n is decimal128"),
        ([ID, ("t", pa.string())], [ID, ("t", pa.date32())], "t is string in its records and date"),
        # A transform adds columns, a connector leaves some out: not both.
        ([ID, ("more", pa.string())], [ID], ""),
        ([ID], [ID, ("left_out", pa.string())], ""),
        ([ID, ("weird_col", pa.string())], [ID, ("weird col", pa.string())],
         "its records have weird_col, which the database has not, instead of weird col"),
        # The order of columns is nobody's matter.
        ([("a", pa.string()), ID], [ID, ("a", pa.string())], ""),
    ],
)  # fmt: skip
def test_what_the_lake_would_get_otherwise_is_told(records, database, told):
    found = disagreement(schema(*records), schema(*database))
    assert found.startswith(told)
    assert bool(found) == bool(told)


def test_a_text_names_some_columns_and_no_more():
    many = [(f"c{at}", pa.string()) for at in range(40)]
    found = disagreement(schema(ID, *many), schema(ID, *((n, pa.int32()) for n, _ in many)))
    assert found.count("in its records") == 5
