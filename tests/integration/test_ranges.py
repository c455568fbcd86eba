"""Ranges of keys against a real server: they cover every row once, and are found by the index."""

from datetime import timedelta

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemark.connectors.postgres.key_sql import key_texts, keys_condition, range_condition
from lakemark.connectors.postgres.postgres_chunks import (
    boundaries,
    middle,
    open_table,
    ordered_by,
    read_chunk,
)
from lakemark.connectors.postgres.postgres_keys import absent_keys
from lakemark.connectors.postgres.postgres_session import connect
from lakemark.converters.json.keys import canonical_keys
from lakemark.errors import DependencyError, TableError
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key_ranges import Condition, KeyRange, halves, ranges
from stack.local import Database
from tests.kit.reader import DEFAULTS, config, whole

pytestmark = pytest.mark.integration


TABLES = {
    "integer": ("k int PRIMARY KEY", "i"),
    "skewed": ("k bigint PRIMARY KEY", "CASE WHEN i < 900 THEN i ELSE (i::int8 ^ 5)::int8 END"),
    "text": ('k text COLLATE "C" PRIMARY KEY', "chr(64 + i % 60) || md5(i::text)"),
    "icu": ('k text COLLATE "de-x-icu" PRIMARY KEY', "chr(64 + i % 60) || left(md5(i::text), 9)"),
    "any case": ("k text COLLATE nocase PRIMARY KEY", "chr(64 + i % 60) || i"),
    "citext": ("k citext PRIMARY KEY", "chr(64 + i % 60) || i"),
    "char": ("k char(8) PRIMARY KEY", "left(md5(i::text), 8)"),
    "uuid": ("k uuid PRIMARY KEY", "md5(i::text)::uuid"),
    "numeric": ("k numeric PRIMARY KEY", "i * 1.1 - 500"),
    "timestamp": ("k timestamp PRIMARY KEY", "timestamp '2000-01-01' + i * interval '1.5 s'"),
    "timestamptz": ("k timestamptz PRIMARY KEY", "'epoch'::timestamptz - i * interval '1 d'"),
    "float": ("k float8 PRIMARY KEY", "1.0 / (i + 1) - 0.5"),
    "enum": ("k mood, n int, PRIMARY KEY (k, n)", "(ARRAY['x','b','a'])[1 + i % 3]::mood, i"),
    "composite": ("k int, n text, PRIMARY KEY (k, n)", "i % 3, md5(i::text)"),
    "domain": ("k label PRIMARY KEY", "md5(i::text)"),
    "bytea": ("k bytea PRIMARY KEY", "decode(md5(i::text), 'hex')"),
}
TYPES = (
    "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
    "CREATE EXTENSION citext",
    "CREATE SCHEMA elsewhere",
    "ALTER EXTENSION citext SET SCHEMA elsewhere",
    "ALTER DATABASE {} SET search_path = public, elsewhere",
    "CREATE TYPE mood AS ENUM ('x', 'b', 'a')",
    'CREATE DOMAIN label AS varchar(40) COLLATE "C"',
)


@pytest.mark.parametrize(("columns", "values"), TABLES.values(), ids=TABLES.keys())
@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_ranges_cover_every_row_once(source: Database, columns, values, rows):
    for statement in TYPES:
        source.execute(statement.format(source.name))
    source.execute(f"CREATE TABLE t ({columns}, v text)")
    insert = f"INSERT INTO t SELECT {values} FROM generate_series({{}}) i"
    source.execute(insert.format(f"1, {2 * rows}, 2"))
    with connect(config(source)) as session:
        with open_table(session, "public.t", DEFAULTS, settings={}) as opened:
            spans = ranges(boundaries(opened, 100))
        assert len(spans) == max(1, rows // 100)
        source.execute(insert.format(f"0, {2 * rows}, 2"))  # between the others
        chunks = []
        for span in spans:
            with open_table(session, "public.t", DEFAULTS, settings={}) as opened:
                chunks.append(read_chunk(opened, span=span))
    keys = [key for chunk in chunks for key in chunk.keys.to_pylist()]
    assert len(set(keys)) == len(keys)
    assert set(keys) == set(whole(source, "public.t").keys.to_pylist())
    if rows:
        assert max(chunk.rows.num_rows for chunk in chunks) <= 400


COLLATED = ("", 'COLLATE "C"', 'COLLATE "de-x-icu"', "COLLATE nocase")
WORDS = st.text(st.sampled_from("aAäbBß_- %'\\\"\n0"), max_size=4)


@pytest.mark.parametrize("collation", COLLATED)
def test_any_boundaries_in_the_database_s_order_cover_every_row_once(source: Database, collation):
    source.execute(TYPES[0])
    source.execute(f"CREATE TABLE t (k text {collation}, n int, v int, PRIMARY KEY (k, n))")
    order = f"SELECT k, n FROM (SELECT DISTINCT k, n FROM u) AS d ORDER BY k {collation}, n"
    keys = st.lists(st.tuples(WORDS, st.integers(0, 2)), max_size=12)

    with source.connect() as writer, connect(config(source)) as session:

        @settings(max_examples=40, deadline=None)
        @given(before=keys, after=keys, cuts=keys)
        def check(before, after, cuts):
            writer.execute("TRUNCATE t")
            insert(writer, before)
            named = "WITH u(k, n) AS (SELECT * FROM unnest(%s::text[], %s::int[]))"
            found = writer.execute(f"{named} {order}", columns_of_keys(cuts)).fetchall()
            spans = ranges([(k, str(n)) for k, n in found])
            insert(writer, after)
            with open_table(session, "public.t", DEFAULTS, settings={}) as opened:
                read = [key for s in spans for key in read_chunk(opened, span=s).keys.to_pylist()]
                everything = read_chunk(opened).keys.to_pylist()
            assert sorted(read) == sorted(everything)
            assert writer.execute("SELECT count(*) FROM t").fetchone() == (len(read),)

        check()


def columns_of_keys(keys: list[tuple[str, int]]) -> list[list]:
    return [[k for k, _ in keys], [n for _, n in keys]]


def insert(connection: psycopg.Connection, keys: list[tuple[str, int]]) -> None:
    connection.execute(
        "INSERT INTO t SELECT * FROM unnest(%s::text[], %s::int[]) ON CONFLICT DO NOTHING",
        columns_of_keys(keys),
    )


@pytest.mark.parametrize("seed", range(4))
def test_ranges_cover_keys_with_nulls_and_duplicates(source: Database, seed):
    source.execute("CREATE TABLE t (a int, b text, id int)")
    source.execute("SELECT setseed(%s)", [seed / 10])
    source.execute(
        "INSERT INTO t SELECT nullif((random() * 5)::int, 0),"
        " nullif(left(md5(random()::text), 1), 'a'), i FROM generate_series(1, 500) i"
    )
    connector = {"message.key.columns": "public.t:a,b"}
    found = []
    with (
        connect(config(source)) as session,
        open_table(session, "public.t", DEFAULTS, settings=connector) as opened,
    ):
        spans = ranges(boundaries(opened, 40))
        for span in spans:
            found += read_chunk(opened, span=span).rows.column("id").to_pylist()
    assert len(spans) > 5
    assert sorted(found) == list(range(1, 501))


SPECIAL = {"-Infinity": "NEGATIVE_INFINITY", "Infinity": "POSITIVE_INFINITY", "NaN": "NAN"}
"""Numbers that are none, as the database and as the connector writes them."""


@pytest.mark.parametrize("mode", ["string", "precise"])
def test_numbers_that_are_none_are_keys_and_boundaries(source: Database, mode):
    source.execute("CREATE TABLE t (k numeric PRIMARY KEY, n int)")
    source.execute("INSERT INTO t SELECT n, n FROM generate_series(1, 18) n")
    source.execute("INSERT INTO t SELECT unnest(%s::numeric[]), 0", [list(SPECIAL)])
    modes = HandlingModes.from_connector({"decimal.handling.mode": mode})
    with (
        connect(config(source)) as session,
        open_table(session, "public.t", modes, settings={}) as opened,
    ):
        spans = ranges(boundaries(opened, 1))
        assert {span.upto for span in spans} > {("-Infinity",), ("Infinity",)}
        if mode == "precise":  # the connector cannot carry them either
            for span in (spans[0], *spans[19:]):
                with pytest.raises(TableError) as caught:
                    read_chunk(opened, span=span)
                assert caught.value.code == "key-out-of-range"
            return
        chunks = [read_chunk(opened, span=span) for span in spans]
    assert [chunk.rows.num_rows for chunk in chunks] == [1] * 21
    keys = [key for chunk in chunks for key in chunk.keys.to_pylist()]
    special = [b'["%s"]' % text.encode() for text in SPECIAL]
    plain = [b'["%d"]' % n for n in range(1, 19)]
    assert keys == [special[0], *plain, *special[1:]]
    events = [b'{"k":"%s"}' % text.encode() for text in SPECIAL.values()]
    assert canonical_keys(events, chunks[0].schema) == special
    texts = key_texts(special, [chunks[0].schema.column("k")])
    source.execute("DELETE FROM t WHERE k = 'Infinity'")
    with (
        connect(config(source)) as session,
        open_table(session, "public.t", modes, settings={}) as opened,
    ):
        again = read_chunk(opened, keys=texts)
        assert sorted(again.keys.to_pylist()) == [b'["-Infinity"]', b'["NaN"]']
        assert absent_keys(opened, texts, again).keys.to_pylist() == [b'["Infinity"]']


@pytest.mark.parametrize("most", [2_000_000, 3_000])
def test_a_large_table_is_sampled(source: Database, monkeypatch, most):
    monkeypatch.setattr("lakemark.connectors.postgres.key_sql._MOST_SAMPLED", most)
    source.execute("CREATE TABLE t (a int, b int, pad text, PRIMARY KEY (a, b))")
    source.execute(
        "INSERT INTO t SELECT i / 100, i, repeat('x', 60) FROM generate_series(1, 250000) i"
    )
    source.execute("ANALYZE t")
    with (
        connect(config(source)) as session,
        open_table(session, "public.t", DEFAULTS, settings={}) as opened,
    ):
        found = boundaries(opened, 20_000)
        sizes = [read_chunk(opened, span=span).rows.num_rows for span in ranges(found)]
    assert sum(sizes) == 250_000
    assert 9 <= len(sizes) <= 17
    assert max(sizes) < 40_000


def test_a_cut_that_takes_too_long_says_that_chunks_should_be_larger(source: Database):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.execute("INSERT INTO t VALUES (1), (2)")
    slow = Condition("pg_sleep(30) IS NOT NULL")
    with (
        connect(config(source), statement_timeout=timedelta(seconds=2)) as session,
        open_table(session, "public.t", DEFAULTS, settings={}) as opened,
    ):
        with pytest.raises(DependencyError) as caught:
            boundaries(opened, 1, condition=slow)
        assert (caught.value.code, caught.value.retried) == ("cut-timeout", True)
        assert "larger" in caught.value.hint
        assert boundaries(opened, 1) == [("1",)], "the transaction goes on"


def test_a_key_that_has_no_order_is_one_range(source: Database):
    source.execute("CREATE TABLE t (p json, id int)")
    source.execute("INSERT INTO t VALUES ('{}', 1)")
    with (
        connect(config(source)) as session,
        open_table(
            session, "public.t", DEFAULTS, settings={"message.key.columns": "public.t:p"}
        ) as opened,
    ):
        assert ranges(boundaries(opened, 1)) == [KeyRange()]
        assert read_chunk(opened).rows.num_rows == 1


def test_a_range_is_halved_down_to_single_rows(source: Database):
    source.execute("CREATE TABLE t (a int, b text, PRIMARY KEY (a, b))")
    source.execute("INSERT INTO t SELECT i % 3, chr(64 + i) FROM generate_series(1, 13) i")
    found = []
    with (
        connect(config(source)) as session,
        open_table(session, "public.t", DEFAULTS, settings={}) as opened,
    ):
        waiting = [KeyRange()]
        while waiting:
            span = waiting.pop()
            parts = halves(span, middle(opened, span))
            if len(parts) == 1:
                found += read_chunk(opened, span=span).rows.to_pylist()
                assert read_chunk(opened, span=span).rows.num_rows == 1
            waiting += parts if len(parts) > 1 else []
    assert len(found) == 13
    assert len({(row["a"], row["b"]) for row in found}) == 13


def test_a_column_with_one_value_in_most_rows_is_halved_before_it(source: Database):
    source.execute("CREATE TABLE t (id int PRIMARY KEY, s int)")
    source.execute("INSERT INTO t SELECT i, least(i, 3) FROM generate_series(1, 20) i")
    with (
        connect(config(source)) as session,
        open_table(session, "public.t", DEFAULTS, settings={}) as opened,
    ):
        by = ordered_by(opened, "s")
        assert middle(by, KeyRange()) == ("2",)
        assert middle(by, KeyRange(("1",), ("3",))) == ("2",)
        assert middle(by, KeyRange(("2",), ("3",))) is None
        assert middle(by, KeyRange(("3",), None)) is None


def test_condition_and_keys_narrow_a_range(source: Database):
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t SELECT i, 'v%' || i FROM generate_series(1, 9) i")
    condition = Condition("v LIKE 'v%%' AND id <> %s", (7,))
    chunk = whole(
        source,
        "public.t",
        span=KeyRange(("2",), ("8",)),
        condition=condition,
        keys=[("2",), ("3",), ("7",), ("8",), ("99",)],
    )
    assert chunk.rows.column("id").to_pylist() == [3, 8]
    assert whole(source, "public.t", keys=[]).rows.num_rows == 0
    hostile = whole(source, "public.t", condition=Condition("v = %s", ("' OR true --",)))
    assert hostile.rows.num_rows == 0
    with (
        connect(config(source)) as session,
        open_table(session, "public.t", DEFAULTS, settings={}) as opened,
    ):
        assert boundaries(opened, 2, condition=condition) == [("2",), ("4",), ("6",)]


@pytest.mark.parametrize(
    ("columns", "values", "after", "upto"),
    [
        ("k int PRIMARY KEY", "i", ("500",), ("600",)),
        ('k text COLLATE "de-x-icu" PRIMARY KEY', "'k' || i", ("k500",), ("k501",)),
        (
            "k timestamptz PRIMARY KEY",
            "'epoch'::timestamptz + i * interval '1 d'",
            ("1970-06-01",),
            ("1970-06-09",),
        ),
        ("k citext PRIMARY KEY", "'k' || i", ("k500",), ("k501",)),
        ("k char(9), n int, PRIMARY KEY (k, n)", "i / 9, i", ("500", "4500"), ("502", "4700")),
    ],
    ids=["integer", "text", "timestamptz", "citext", "composite"],
)
def test_a_range_and_a_list_of_keys_are_found_by_the_index(
    source: Database, columns, values, after, upto
):
    source.execute("CREATE EXTENSION citext")
    source.execute(f"CREATE TABLE t ({columns}, pad text)")
    source.execute(
        f"INSERT INTO t SELECT {values}, repeat('x', 90) FROM generate_series(1, 9999) i"
    )
    source.execute("ANALYZE t")
    with (
        connect(config(source)) as session,
        open_table(session, "public.t", DEFAULTS, settings={}) as opened,
    ):
        for wanted in (
            range_condition(opened.parts, KeyRange(after, upto)),
            keys_condition(opened.parts, [after, upto]),
        ):
            query = f"EXPLAIN SELECT * FROM {opened.source} WHERE {wanted.sql}"
            where = psycopg.ClientCursor(session).mogrify(query, wanted.parameters)
            plan = "\n".join(line for (line,) in session.execute(where.encode()).fetchall())
            assert "Index Cond" in plan, plan
            assert "Seq Scan" not in plan, plan
