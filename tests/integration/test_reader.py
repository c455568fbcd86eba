"""The PostgreSQL reader against a real server: types, coverage, proof, windows, privileges."""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import jsonschema
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import sql

from lakemark.config import DatabaseConfig
from lakemark.errors import ConfigError, DependencyError, TableError
from lakemark.keys import canonical_keys
from lakemark.snapshot.boundaries import (
    Condition,
    KeyRange,
    halves,
    key_texts,
    keys_condition,
    range_condition,
    ranges,
)
from lakemark.snapshot.readers.postgres import read_schemas
from lakemark.snapshot.readers.postgres_chunks import (
    boundaries,
    middle,
    open_table,
    read_chunk,
)
from lakemark.snapshot.readers.postgres_session import connect, current_snapshot
from lakemark.snapshot.readers.postgres_windows import Window, blocker, write_window
from lakemark.snapshot.visibility import Watermark, visible
from lakemark.source.modes import HandlingModes
from stack import every_type
from stack.compare import _PINNED, _key, _lake_values, _source_rows
from stack.expected import columns_of, key_of, reading
from stack.local import ROOT, Database, LocalStack

pytestmark = pytest.mark.integration

DEFAULTS = HandlingModes()
MODES = {
    "defaults": {},
    "connect": {"time.precision.mode": "connect", "binary.handling.mode": "base64"},
    "texts": {
        "decimal.handling.mode": "string",
        "time.precision.mode": "isostring",
        "interval.handling.mode": "string",
        "hstore.handling.mode": "map",
        "binary.handling.mode": "base64-url-safe",
    },
    "numbers": {
        "decimal.handling.mode": "double",
        "time.precision.mode": "nanoseconds",
        "binary.handling.mode": "hex",
    },
    "microseconds": {"time.precision.mode": "microseconds"},
    "structs": {"time.precision.mode": "structured"},
}


@pytest.fixture(scope="module")
def server() -> Iterator[LocalStack]:
    with LocalStack(
        name="reader",
        services=("postgres",),
        postgres_settings={"max_prepared_transactions": "5"},
    ) as started:
        yield started


@pytest.fixture
def source(server: LocalStack) -> Iterator[Database]:
    with server.fresh_database() as fresh:
        yield fresh


def config(database: Database, user: str = "postgres") -> DatabaseConfig:
    return DatabaseConfig(url=database.dsn.replace("postgres@", f"{user}@"))


def whole(database: Database, table: str, modes: HandlingModes = DEFAULTS, **options):
    with (
        connect(config(database)) as session,
        open_table(session, table, modes, settings={}) as opened,
    ):
        return read_chunk(opened, **options)


@pytest.mark.parametrize("handling", MODES.values(), ids=MODES.keys())
def test_every_type_is_read_as_the_lake_must_hold_it(source: Database, handling):
    modes = HandlingModes.from_connector(handling)
    with source.connect() as connection:
        every_type.create(connection, every_type.Limits.of(handling))
    with psycopg.connect(source.dsn, options=_PINNED) as connection:
        table = "public.all_types"
        columns = [
            c for c in columns_of(connection, table) if c.name not in every_type.NOT_CAPTURED
        ]
        readings = [reading(column, modes) for column in columns]
        expected = _source_rows(connection, table, columns, readings)
        key = [c.name for c in columns].index(key_of(connection, table)[0])

    chunk = whole(source, table, modes)

    assert chunk.bad == []
    assert chunk.rows.schema == chunk.schema.arrow()
    values = [
        _lake_values(chunk.rows.column(column.name), how)
        for column, how in zip(columns, readings, strict=True)
    ]
    rows = {_key(row, [key]): row for row in expected}
    found = {_key(row, [key]): row for row in zip(*values, strict=True)}
    assert found.keys() == rows.keys()
    for at, column in enumerate(columns):
        for row in rows:
            assert found[row][at] == rows[row][at], (column.name, rows[row][at])
    assert chunk.schema == read_schemas(config(source), [table], modes, settings={})[table]


KEYED = """
CREATE TABLE keyed (
    amount numeric(10, 2), id uuid, at timestamptz, code char(5), day date, number bigint, b bytea,
    note text, PRIMARY KEY (code, amount, id, at, day, number, b)
)"""


def test_keys_have_the_bytes_that_events_give_them(source: Database):
    source.execute(KEYED)
    source.execute(
        "INSERT INTO keyed VALUES (1.50, 'A0EEBC999C0B4EF8BB6D6BB9BD380A11',"
        " '1999-01-01 12:00:00.5+02', 'ü b', '1969-12-31', 7, '\\x00ff')"
    )
    chunk = whole(source, "public.keyed")
    event = (
        b'{"code":"\xc3\xbc b  ","amount":"AJY=","id":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",'
        b'"at":"1999-01-01T10:00:00.500000Z","day":-1,"number":7,"b":"AP8="}'
    )
    assert chunk.keys.to_pylist() == canonical_keys([event], chunk.schema)
    columns = [chunk.schema.column(name) for name in chunk.schema.key]
    again = whole(source, "public.keyed", keys=key_texts(chunk.keys.to_pylist(), columns))
    assert again.keys == chunk.keys


def test_a_value_that_the_connector_cannot_carry_is_listed(source: Database):
    source.execute("CREATE TABLE t (id int PRIMARY KEY, n numeric(5,2))")
    source.execute("INSERT INTO t VALUES (1, 1.5), (2, 'NaN'), (3, NULL)")
    chunk = whole(source, "public.t")
    assert chunk.rows.column("id").to_pylist() == [1, 3]
    assert chunk.keys.to_pylist() == [b"[1]", b"[3]"]
    assert chunk.bad == [(b"[2]", "wrong-type", "column 'n' cannot be read")]


def test_empty_texts_nulls_quotes_and_line_breaks(source: Database):
    source.execute("CREATE TABLE t (id text PRIMARY KEY)")
    texts = ["", "\\N", "\\.", '"', "a\r\nb", "\n", ",", "NULL", "ü" * 9_000_000]
    for text in texts:
        source.execute("INSERT INTO t VALUES (left(%s, 500))", [text])
    assert sorted(whole(source, "public.t").rows.column("id").to_pylist()) == sorted(
        text[:500] for text in texts
    )
    source.execute('CREATE TABLE "%s {} ""q""" (id int PRIMARY KEY, "%s {}" text, big text)')
    source.execute('INSERT INTO "%%s {} ""q""" VALUES (1, NULL, %s), (2, \'\', NULL)', [texts[-1]])
    rows = whole(source, 'public.%s {} "q"', span=KeyRange(None, ("2",))).rows.to_pylist()
    assert rows == [
        {"id": 1, "%s {}": None, "big": texts[-1]},
        {"id": 2, "%s {}": "", "big": None},
    ]


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


@pytest.mark.parametrize("most", [2_000_000, 3_000])
def test_a_large_table_is_sampled(source: Database, monkeypatch, most):
    monkeypatch.setattr("lakemark.snapshot.boundaries._MOST_SAMPLED", most)
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


def test_a_key_that_has_no_order_is_one_range(source: Database):
    source.execute("CREATE TABLE t (p point, id int)")
    source.execute("INSERT INTO t VALUES ('(1,2)', 1)")
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


def test_partitioned_tables_are_read_whole_and_inheriting_ones_are_not(source: Database):
    source.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    source.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (50)")
    source.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (50) TO (500)")
    source.execute("INSERT INTO p SELECT generate_series(1, 100)")
    assert whole(source, "public.p").rows.num_rows == 100
    assert whole(source, "public.p1").rows.num_rows == 49
    with (
        connect(config(source)) as session,
        open_table(session, "public.p", DEFAULTS, settings={}) as opened,
    ):
        assert len(ranges(boundaries(opened, 10))) == 10
    source.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    source.execute("CREATE TABLE child () INHERITS (parent)")
    source.execute("INSERT INTO parent VALUES (1)")
    source.execute("INSERT INTO child VALUES (2)")
    assert whole(source, "public.parent").keys.to_pylist() == [b"[1]"]


@pytest.mark.parametrize(
    ("name", "code"),
    [("v", "not-a-table"), ("m", "not-a-table"), ("nope", "table-gone"), ("keyless", "no-key")],
)
def test_what_cannot_be_read_is_refused(source: Database, name, code):
    source.execute("CREATE TABLE keyless (id int)")
    source.execute("CREATE VIEW v AS SELECT * FROM keyless")
    source.execute("CREATE MATERIALIZED VIEW m AS SELECT * FROM keyless")
    with pytest.raises(TableError) as caught:
        whole(source, f"public.{name}")
    assert caught.value.code == code


def test_a_key_that_events_lack_and_a_text_that_is_no_utf8_are_refused(source: Database):
    source.execute("CREATE TABLE t (id pg_lsn PRIMARY KEY)")
    with pytest.raises(TableError, match="leaves out") as caught:
        whole(source, "public.t")
    assert caught.value.code == "no-key"
    name = f"{source.name}_ascii"
    source.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    odd = DatabaseConfig(url=source.dsn.replace(source.name, name))
    with connect(odd) as session:
        session.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        session.execute(r"INSERT INTO t VALUES (1, E'secret\xff')")
        with (
            pytest.raises(TableError) as unreadable,
            open_table(session, "public.t", DEFAULTS, settings={}) as opened,
        ):
            read_chunk(opened)
    assert unreadable.value.code == "text-unreadable"
    assert "secret" not in str(unreadable.value)
    source.execute(f"DROP DATABASE {name}")


def test_the_snapshot_is_taken_after_the_lock(source: Database):
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    source.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 10) i")
    found = []
    with source.connect() as other:
        other.execute("BEGIN")
        other.execute("ALTER TABLE t ALTER v TYPE bigint USING v * 10")  # rewrites the table
        reader = threading.Thread(target=lambda: found.append(whole(source, "public.t")))
        reader.start()
        with source.connect() as watch:
            while not watch.execute(
                "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessShareLock'"
            ).fetchall():
                pass
        other.execute("COMMIT")
        reader.join()
    assert found[0].rows.num_rows == 10
    assert found[0].rows.column("v").to_pylist()[:2] == [10, 20]
    assert found[0].rows.column("v").type == pa.int64()


def test_a_chunk_sees_one_moment_and_proves_it(source: Database):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    (start,) = source.execute("SELECT pg_postmaster_start_time() AT TIME ZONE 'UTC'")[0]
    with connect(config(source)) as session:
        with open_table(session, "public.t", DEFAULTS, settings={}) as opened:
            source.execute("INSERT INTO t VALUES (1)")
            chunk = read_chunk(opened)
            assert chunk.rows.num_rows == 0
            (seen,) = session.execute("SELECT pg_current_snapshot()::text").fetchone()
            shown = source.execute(
                "SELECT application_name, state FROM pg_stat_activity"
                " WHERE application_name LIKE 'lakemark%'"
            )
        later = current_snapshot(session)
    assert seen.startswith(f"{chunk.snapshot.xmin}:{chunk.snapshot.xmax}:")
    assert chunk.snapshot.server.start == start.isoformat(timespec="microseconds") + "Z"
    assert chunk.snapshot.server.timeline == 1
    assert later.xmin > chunk.snapshot.xmin
    assert shown == [("lakemark snapshot", "idle in transaction")]


def window(run: str = "r") -> Window:
    uuid = uuid4()
    return Window(uuid, run, uuid)


SIGNAL = "public.debezium_signal"


def test_window_rows_and_the_transaction_that_is_waited_for(source: Database):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    first, second, third = window(), window(), window()
    with connect(config(source)) as session, source.connect() as other:
        opened = write_window(session, SIGNAL, closes=None, opens=first)
        assert isinstance(opened, Watermark)
        assert visible(current_snapshot(session), [opened]) == opened

        other.execute("SET application_name = 'billing'")
        other.execute("BEGIN")
        other.execute("INSERT INTO t VALUES (1)")
        newer = write_window(session, SIGNAL, closes=first, opens=second)
        newest = write_window(session, SIGNAL, closes=second, opens=third)
        snapshot = current_snapshot(session)
        assert visible(snapshot, [opened, newer, newest]) == opened
        assert visible(snapshot, [newer, newest]) is None
        found = blocker(session, snapshot)
        assert (found.pid, found.application) == (other.info.backend_pid, "billing")
        assert found.state == "idle in transaction"
        assert found.since is not None
        assert "billing" in str(found)

        other.execute("PREPARE TRANSACTION 'transfer 7'")
        found = blocker(session, current_snapshot(session))
        assert (found.pid, found.application, found.state) == (None, "transfer 7", "prepared")
        other.execute("COMMIT PREPARED 'transfer 7'")
        assert blocker(session, snapshot).state == "ended"
        assert visible(current_snapshot(session), [opened, newer, newest]) == newest
        after = write_window(session, SIGNAL, closes=third, opens=None)
        assert not isinstance(after, Watermark)
        assert after.xmax >= newest.after.xmax
    schema = json.loads((ROOT / "schemas" / "window-row.json").read_text())
    for id_, type_, data in source.execute("SELECT id, type, data FROM debezium_signal"):
        jsonschema.validate({"id": id_, "type": type_, "data": data}, schema)
        assert json.loads(data).keys() == {"run", "oldest", "serverStart", "timeline"}
    rows = source.execute("SELECT id, type FROM debezium_signal ORDER BY xmin::text::int, type")
    assert rows == [
        (f"{first.uuid}-open", "snapshot-window-open"),
        (f"{first.uuid}-close", "snapshot-window-close"),
        (f"{second.uuid}-open", "snapshot-window-open"),
        (f"{second.uuid}-close", "snapshot-window-close"),
        (f"{third.uuid}-open", "snapshot-window-open"),
        (f"{third.uuid}-close", "snapshot-window-close"),
    ]


@pytest.mark.parametrize(
    ("default", "used"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")]
)
def test_window_rows_are_never_committed_weaker_than_on(source: Database, default, used):
    source.execute("CREATE TABLE seen (how text)")
    source.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NEW;"
        " END $$"
    )
    source.execute(
        "CREATE TRIGGER note BEFORE INSERT ON debezium_signal FOR EACH ROW EXECUTE FUNCTION note()"
    )
    source.execute(f"ALTER DATABASE {source.name} SET synchronous_commit = {default}")
    with connect(config(source)) as session:
        write_window(session, SIGNAL, closes=None, opens=window())
        assert session.execute("SHOW synchronous_commit").fetchone() == (default,)
    assert source.execute("SELECT how FROM seen") == [(used,)]


def test_the_least_privileges_are_enough_and_their_lack_says_what_to_grant(source: Database):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.execute("INSERT INTO t VALUES (1)")
    source.execute("REVOKE ALL ON SCHEMA public FROM public")
    source.execute(f"CREATE ROLE {source.name}_reader LOGIN")
    user = f"{source.name}_reader"
    reader = config(source, user)
    try:
        with connect(reader) as session, pytest.raises(ConfigError) as caught:
            write_window(session, SIGNAL, closes=None, opens=window())
        mend(source, caught.value.hint, user)
        with connect(reader) as session:
            with (
                pytest.raises(ConfigError) as caught,
                open_table(session, "public.t", DEFAULTS, settings={}) as opened,
            ):
                read_chunk(opened)
            mend(source, caught.value.hint.partition(" (with")[0], user)
            write_window(session, SIGNAL, closes=None, opens=window())
            with open_table(session, "public.t", DEFAULTS, settings={}) as opened:
                assert boundaries(opened, 1) == []
                assert read_chunk(opened).rows.num_rows == 1
            with source.connect() as other:
                other.execute("BEGIN; INSERT INTO t VALUES (2)")
                found = blocker(session, current_snapshot(session))
                assert found.pid == other.info.backend_pid
        source.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        with (
            connect(reader) as session,
            pytest.raises(ConfigError, match="all rows"),
            open_table(session, "public.t", DEFAULTS, settings={}) as opened,
        ):
            read_chunk(opened)
    finally:
        source.execute(f"DROP OWNED BY {user}")
        source.execute(f"DROP ROLE {user}")


def mend(database: Database, hint: str, user: str) -> None:
    for statement in hint.replace("<lakemark's user>", user).split(";"):
        if statement.strip():
            database.execute(statement)


@pytest.mark.parametrize(
    ("table", "code"),
    [
        (None, "signal-table-missing"),
        ("id varchar(42) PRIMARY KEY, type varchar(32)", "signal-table-columns"),
        ("a varchar(42) PRIMARY KEY, b varchar(8), c varchar(2048)", "signal-table-refuses"),
        ("id varchar(42), type int, data text", "signal-table-refuses"),
    ],
)
def test_a_signal_table_that_does_not_fit_is_mended_by_the_hint(source: Database, table, code):
    source.execute("DROP TABLE debezium_signal")
    if table is not None:
        source.execute(f"CREATE TABLE debezium_signal ({table})")
    with connect(config(source)) as session:
        with pytest.raises(ConfigError) as caught:
            write_window(session, SIGNAL, closes=None, opens=window())
        assert caught.value.code == code
        mend(source, caught.value.hint, "postgres")
        write_window(session, SIGNAL, closes=None, opens=window())
    assert len(source.execute("SELECT * FROM debezium_signal")) == 1


def test_errors_of_the_database_are_ours(source: Database):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.execute("INSERT INTO t SELECT generate_series(1, 10)")
    slow = Condition("pg_sleep(0.5) IS NOT NULL")
    with connect(config(source), statement_timeout=timedelta(milliseconds=300)) as session:
        with (
            pytest.raises(DependencyError) as caught,
            open_table(session, "public.t", DEFAULTS, settings={}) as opened,
        ):
            read_chunk(opened, condition=slow)
        assert caught.value.code == "statement-timeout"
        with (
            pytest.raises(TableError) as refused,
            open_table(session, "public.t", DEFAULTS, settings={}) as opened,
        ):
            read_chunk(opened, span=KeyRange(("secret",), None))
        assert refused.value.code == "query-failed"
        assert "secret" not in str(refused.value)
        source.execute("DROP TABLE t")
        with (
            pytest.raises(TableError) as gone,
            open_table(session, "public.t", DEFAULTS, settings={}),
        ):
            pass
        assert gone.value.code == "table-gone"
    source.execute(
        sql.SQL("ALTER DATABASE {} SET TimeZone = 'Asia/Tokyo'")
        .format(sql.Identifier(source.name))
        .as_string()
    )
    source.execute("CREATE TABLE z (id timestamptz PRIMARY KEY)")
    source.execute("INSERT INTO z VALUES ('2024-01-01 00:00:00+00')")
    assert whole(source, "public.z").keys.to_pylist() == [b"[1704067200000000]"]


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
