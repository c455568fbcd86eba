"""Keys, ranges and lists of them as SQL: what SQLite makes of the same conditions."""

import sqlite3
from itertools import product

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.mysql.key_sql import (
    KeyPart,
    all_of,
    key_texts,
    keys_condition,
    keys_query,
    kind_of,
    range_condition,
    type_of,
)
from lakemark.errors import TableError
from lakemark.model.columns import Column, describe
from lakemark.model.key_ranges import Condition, KeyRange, ranges

SMALL = range(3)
ROWS = [*product(SMALL, SMALL, SMALL)]


def parts(count: int, *, nullable: bool = False) -> list[KeyPart]:
    return [KeyPart(f"k%{at}", "whole", nullable=nullable) for at in range(count)]


def kept(condition: Condition, rows, count: int) -> list:
    """Rows of a table with these columns for which a condition holds."""
    with sqlite3.connect(":memory:") as database:
        names = ", ".join(f"`k%{at}`" for at in range(count))
        database.execute(f"CREATE TABLE t ({names})")
        database.executemany(f"INSERT INTO t VALUES ({', '.join('?' * count)})", rows)
        sql = condition.sql.replace("%s", "?").replace("%%", "%")
        return database.execute(f"SELECT * FROM t WHERE {sql}", condition.parameters).fetchall()


KEY = st.tuples(*[st.integers(-1, 3)] * 3)
EDGE = st.none() | KEY


@given(EDGE, EDGE)
def test_a_range_has_the_rows_that_a_comparison_of_rows_has(after, upto):
    def texts(key):
        return None if key is None else tuple(map(str, key))

    condition = range_condition(parts(3), KeyRange(texts(after), texts(upto)))
    wanted = [
        row for row in ROWS if (after is None or row > after) and (upto is None or row <= upto)
    ]
    assert kept(condition, ROWS, 3) == wanted


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 2), unique=True, max_size=6))
def test_each_row_is_in_one_range_also_with_nulls(boundaries):
    values = [None, *range(6)]
    rows = [*product(values, values)]
    found = []
    for span in ranges([tuple(map(str, key)) for key in sorted(boundaries)]):
        condition = range_condition(parts(2, nullable=True), span)
        found += kept(condition, rows, 2)
    assert sorted(found, key=repr) == sorted(rows, key=repr)


@pytest.mark.parametrize("count", [1, 3])
def test_a_list_of_keys_has_their_rows_and_the_keys_themselves(count):
    rows = sorted({row[:count] for row in ROWS})
    keys = [rows[0], rows[-1], (9,) * count]
    texts = [tuple(map(str, key)) for key in keys]
    assert kept(keys_condition(parts(count), texts), rows, count) == keys[:2]
    query = keys_query(parts(count), texts, "t")
    with sqlite3.connect(":memory:") as database:
        names = ", ".join(f"`k%{at}`" for at in range(count))
        database.execute(f"CREATE TABLE t ({names})")
        sql = query.sql.replace("%s", "?").replace("%%", "%")
        assert database.execute(sql, query.parameters).fetchall() == keys


def test_no_keys_are_no_rows():
    assert kept(keys_condition(parts(1), []), [(1,)], 1) == []
    assert kept(all_of(), [(1,)], 1) == [(1,)]


@pytest.mark.parametrize(
    ("base", "text", "value", "sql"),
    [
        ("bigint", "18446744073709551615", 18446744073709551615, "`k`"),
        ("float", "1.100000023841858", 1.100000023841858, "`k`"),
        ("varchar", "it's 100%", "it's 100%", "`k`"),
        ("varbinary", "00FF", "00FF", "`k`"),
        ("enum", "2", 2, "(`k` + 0)"),
        ("time", "-838:59:59", "-838:59:59", "`k`"),
    ],
)
def test_a_value_is_compared_as_the_column_is(base, text, value, sql):
    part = KeyPart("k", kind_of(base))
    assert (part.value(text), part.sql) == (value, sql)
    assert part.placeholder == ("UNHEX(%s)" if base == "varbinary" else "%s")


def test_a_boundary_of_another_key_is_said_to_be_one():
    with pytest.raises(TableError) as caught:
        range_condition(parts(1), KeyRange(("x",), None))
    assert caught.value.code == "schema-changed"
    with pytest.raises(TableError) as caught:
        range_condition(parts(2), KeyRange(None, ("1",)))
    assert caught.value.code == "schema-changed"
    with pytest.raises(TableError) as caught:
        keys_condition(parts(1), [("x",)])
    assert caught.value.code == "key-unreadable"


def column(wire: str, name: str = "", **parameters: str) -> Column:
    return describe("k", {"type": wire, "name": name, "parameters": parameters})


@pytest.mark.parametrize(
    ("key", "kind", "text"),
    [
        (b"[42]", column("int32"), "42"),
        (b'["18446744073709551615"]', column("int64"), "18446744073709551615"),
        (b'["a\\"b"]', column("string"), 'a"b'),
        (b'["AP8="]', column("bytes"), "00FF"),
        (b"[20783]", column("int32", "io.debezium.time.Date"), "2026-11-26"),
        (b"[1000001]", column("int64", "io.debezium.time.MicroTimestamp"),
         "1970-01-01 00:00:01.000001"),
        (b'["-01:00:00.000000"]', column("int64", "io.debezium.time.MicroTime"),
         "-01:00:00.000000"),
        (b"[true]", column("boolean"), "1"),
    ],
)  # fmt: skip
def test_a_canonical_key_is_a_text_that_the_database_understands(key, kind, text):
    assert key_texts([key], [kind]) == [(text,)]


@pytest.mark.parametrize("key", [b"[null]", b"[1,2]", b"[]", b"x", b"[[1]]"])
def test_what_no_key_can_be_is_refused(key):
    with pytest.raises(TableError) as caught:
        key_texts([key], [column("int32")])
    assert (caught.value.code, bool(caught.value.hint)) == ("key-unreadable", True)


@pytest.mark.parametrize("name", ["Date", "Timestamp", "MicroTimestamp"])
def test_what_may_be_a_zero_date_is_not_asked_for(name):
    wire = "int32" if name == "Date" else "int64"
    with pytest.raises(TableError) as caught:
        key_texts([b"[0]"], [column(wire, f"io.debezium.time.{name}")])
    assert caught.value.code == "key-unreadable"
    assert key_texts([b"[0]"], [column(wire)]) == [("0",)]


def test_a_moment_is_cast_to_its_own_type():
    assert type_of("time", 3) == "TIME(3)"
    assert type_of("timestamp", 0) == "DATETIME(0)"
    assert (type_of("date", 0), type_of("int", 0)) == ("DATE", "")
    assert KeyPart("k", "moment", type="TIME(3)").typed == "CAST(%s AS TIME(3))"
    assert pa.types.is_timestamp(column("int64", "io.debezium.time.MicroTimestamp").type)
