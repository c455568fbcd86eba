"""The PostgreSQL reader against a real server: types, keys, what it refuses, its proof."""

import threading
from datetime import timedelta

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from lakemark.connectors.postgres import postgres_chunks
from lakemark.connectors.postgres.key_sql import key_texts
from lakemark.connectors.postgres.postgres import read_schemas
from lakemark.connectors.postgres.postgres_chunks import boundaries, open_table, read_chunk
from lakemark.connectors.postgres.postgres_copy import copied
from lakemark.connectors.postgres.postgres_session import connect, current_snapshot, translated
from lakemark.converters.json.keys import canonical_keys
from lakemark.errors import DependencyError, TableError
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key_ranges import Condition, KeyRange, ranges
from lakemark.settings.config import DatabaseConfig
from stack import every_type, postgres_rows
from stack.compare import lake_values
from stack.local import Database
from tests.kit.handling_modes import MODES
from tests.kit.reader import DEFAULTS, config, whole

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("handling", MODES.values(), ids=MODES.keys())
def test_every_type_is_read_as_the_lake_must_hold_it(source: Database, handling):
    modes = HandlingModes.from_connector(handling)
    with source.connect() as connection:
        every_type.create(connection, every_type.Limits.of(handling))
    table = "public.all_types"
    with postgres_rows.source(source.dsn, modes) as there:
        expected = there.read(table, every_type.NOT_CAPTURED)

    chunk = whole(source, table, modes)

    assert chunk.bad == []
    assert chunk.rows.schema == chunk.schema.arrow()
    values = [lake_values(chunk.rows.column(n), how) for n, how in expected.readings.items()]
    at = list(expected.readings).index(expected.key[0])
    rows = {row[at]: row for row in expected.rows}
    found = {row[at]: row for row in zip(*values, strict=True)}
    assert found.keys() == rows.keys()
    for at, column in enumerate(expected.readings):
        for row in rows:
            assert found[row][at] == rows[row][at], (column, rows[row][at])
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
    assert chunk.rows.column("id").to_pylist() == [1, 2, 3]
    assert [n is None for n in chunk.rows.column("n").to_pylist()] == [False, True, True]
    assert chunk.keys.to_pylist() == [b"[1]", b"[2]", b"[3]"]
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


def test_a_byte_order_mark_is_a_character_of_its_value(source: Database):
    """Also of the first value of all, where a parser of files would leave it out."""
    source.execute("CREATE TABLE marks (k text PRIMARY KEY, v int)")
    source.execute("INSERT INTO marks VALUES ('\ufeffabc', 1), ('abc', 2), ('\ufeff\ufeff', 3)")
    found = whole(source, "public.marks")
    rows = {(row["k"], row["v"]) for row in found.rows.to_pylist()}
    assert rows == {("\ufeffabc", 1), ("abc", 2), ("\ufeff\ufeff", 3)}
    for key in ("\ufeffabc", "\ufeff\ufeff"):
        assert whole(source, "public.marks", keys=[(key,)]).rows.column("k").to_pylist() == [key]


def test_partitioned_tables_are_read_whole(source: Database):
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


def test_chunks_of_wide_rows_have_fewer_of_them(source: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres_chunks, "MAX_CHUNK_BYTES", 1 << 20)
    source.execute("CREATE TABLE wide (id int PRIMARY KEY, note text)")  # the notes go to TOAST
    source.execute(
        "INSERT INTO wide SELECT n, string_agg(md5(n::text || part), '')"
        " FROM generate_series(1, 300) AS n, generate_series(1, 300) AS part GROUP BY n"
    )
    source.execute("ANALYZE wide")
    with (
        connect(config(source)) as session,
        open_table(session, "public.wide", DEFAULTS, settings={}) as opened,
    ):
        assert 5 <= len(ranges(boundaries(opened, 1000))) <= 8  # 3 MB
        assert len(ranges(boundaries(opened, 10))) == 30


def test_tables_that_inherit_are_not_read_with_their_parents(source: Database):
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


def test_nothing_can_be_written_where_a_chunk_is_read(source: Database):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    for write in (
        "INSERT INTO public.t VALUES (1)",
        "TRUNCATE public.t",
        "CREATE TABLE public.x ()",
    ):
        with connect(config(source)) as session:
            with (
                pytest.raises(TableError, match="25006"),
                open_table(session, "public.t", DEFAULTS, settings={}),
            ):
                session.execute(write.encode())
            session.execute(
                "INSERT INTO public.t VALUES (2) ON CONFLICT DO NOTHING"
            )  # the session can
    assert source.execute("SELECT id FROM t") == [(2,)]


def test_a_key_that_events_lack_and_a_text_that_is_no_utf8_are_refused(source: Database):
    source.execute("CREATE TABLE t (id pg_lsn PRIMARY KEY)")
    with pytest.raises(TableError, match="do not have the key's columns") as caught:
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
    assert seen.startswith(f"{chunk.proof.xmin}:{chunk.proof.xmax}:")
    assert chunk.proof.server.start >= start.isoformat(timespec="microseconds") + "Z"
    assert chunk.proof.server.timeline == 1
    assert later.xmin > chunk.proof.xmin
    assert shown == [("lakemark snapshot", "idle in transaction")]


def test_errors_of_the_database_are_ours(source: Database):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.execute("INSERT INTO t SELECT generate_series(1, 10)")
    slow = Condition("pg_sleep(30) IS NOT NULL")
    with connect(config(source), statement_timeout=timedelta(seconds=2)) as session:
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


def test_a_connection_that_ends_within_a_copy_is_a_database_that_is_away(source: Database):
    """Not a table that cannot be read: the chunk is read again."""
    rows = "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 30000)) TO STDOUT"

    class Cut:
        """The session, whose connection ends after the first row."""

        def __init__(self, session: psycopg.Connection) -> None:
            self.session, self.real, self.pgconn = session, session.pgconn, self

        def __getattr__(self, name):
            return getattr(self.real, name)

        def get_copy_data(self, wait):
            found = self.real.get_copy_data(wait)
            source.execute(f"SELECT pg_terminate_backend({self.real.backend_pid})")
            self.get_copy_data = self.real.get_copy_data
            return found

    with (
        pytest.raises(DependencyError) as caught,
        connect(config(source)) as session,
        translated("public.t"),
    ):
        copied(Cut(session), rows, table="public.t", limit=1 << 30)
    assert caught.value.code == "database-unavailable"
    assert caught.value.retried
