"""Chunks of MariaDB's tables: every type, every kind of key, and what may happen meanwhile."""

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count

import pymysql
import pytest

from lakemark.connectors.database import DatabaseAccess
from lakemark.connectors.mysql import binlog_snapshot, chunk_reader, mysql_chunks
from lakemark.connectors.mysql.binlog_snapshot import consistent_snapshot
from lakemark.connectors.mysql.chunk_reader import MySqlReader, reasons_against
from lakemark.connectors.mysql.key_sql import key_texts
from lakemark.connectors.mysql.mysql_session import Session, connect
from lakemark.errors import ConfigError, DependencyError, LakemarkError, TableError
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key_ranges import WHOLE, Condition, halves
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.layers import InvalidConfig, LoginRefused
from stack.connect import PLUGINS
from stack.mariadb import MariaDb
from tests.kit.number_rows import numbers

pytestmark = pytest.mark.integration

T = "shop.t"


@pytest.fixture(autouse=True)
def waked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where XA was used each read waits: here not for long, and not for what does not end."""
    monkeypatch.setattr(binlog_snapshot, "WAKED_S", 0.05)
    monkeypatch.setattr(binlog_snapshot, "ENDED_WITHIN_S", 1.0)


def moment(text: str) -> datetime:
    """A timestamp without zone."""
    return datetime.fromisoformat(text)


@pytest.fixture
def sql(binlog_server: DatabaseConfig) -> Iterator[Session]:
    """Somebody else's session, in an empty database."""
    with connect(binlog_server, name="somebody") as session:
        session.execute("DROP DATABASE IF EXISTS shop")
        session.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
        session.execute("USE shop")
        yield session


@pytest.fixture
def reader(binlog_server: DatabaseConfig) -> Iterator[MySqlReader]:
    found = MySqlReader(access(binlog_server))
    yield found
    found.close()


def access(config: DatabaseConfig, **settings: str) -> DatabaseAccess:
    kind = config.url.partition(":")[0]
    connector = {"connector.class": PLUGINS[kind].java_class, **settings}
    return DatabaseAccess(config, HandlingModes.from_connector(connector), connector)


def rows_of(reader: MySqlReader, table: str = T, **more) -> list[dict]:
    return reader.read(table, **more).found.rows.to_pylist()


def code(error: type[LakemarkError], ask, *args, **more) -> str:
    with pytest.raises(error) as caught:
        ask(*args, **more)
    assert caught.value.hint
    return caught.value.code


# -- types -----------------------------------------------------------------------------------------

TYPES = {
    "tinyint": (["-128", "127"], [-128, 127]),
    "tinyint unsigned": (["255"], [255]),
    "smallint": (["-32768"], [-32768]),
    "mediumint unsigned": (["16777215"], [16777215]),
    "int": (["-2147483648", "2147483647"], [-2147483648, 2147483647]),
    "int unsigned": (["4294967295"], [4294967295]),
    "int(8) zerofill": (["42"], [42]),
    "bigint": (["-9223372036854775808"], [-9223372036854775808]),
    "bigint unsigned": (["18446744073709551615", "0"], [Decimal(2**64 - 1), Decimal(0)]),
    "bigint(20) unsigned zerofill": (["7"], [Decimal(7)]),
    "float": (["1.1", "3.402823e38"], [1.100000023841858, 3.4028230607370965e38]),
    "float(7,2)": (["12345.67"], [12345.669921875]),
    "double": (["0.1", "1.7976931348623157e308", "-1e-300"], [0.1, 1.7976931348623157e308, -1e-300]),
    "double(10,2)": (["1234.56"], [1234.56]),
    "decimal(10,2)": (["-12345678.90"], [Decimal("-12345678.90")]),
    "decimal(38,10)": (["1234567890123456789012345678.0123456789"],
                       [Decimal("1234567890123456789012345678.0123456789")]),
    "decimal(65,30)": (["1.5"], ["1.5"]),
    "bit(1)": (["b'1'", "b'0'"], [True, False]),
    "bit(12)": (["b'100000000001'"], [b"\x01\x08"]),
    "char(5)": (["'ab  '", "''"], ["ab", ""]),
    "varchar(20)": (["'vär€😀 '", "''"], ["vär€😀 ", ""]),
    "varchar(20) character set latin1": (["'€ä'"], ["€ä"]),
    "text": (["REPEAT('ä', 30000)"], ["ä" * 30000]),
    "longtext": (["REPEAT('x', 300000)"], ["x" * 300000]),
    "binary(4)": (["x'00ff'"], [b"\0\xff\0\0"]),
    "varbinary(9)": (["x'00fffb27'", "''"], [b"\0\xff\xfb'", b""]),
    "mediumblob": (["REPEAT(x'fe', 70000)"], [b"\xfe" * 70000]),
    "enum('a','c''d','ü')": (["'c''d'", "'ü'"], ["c'd", "ü"]),
    "set('x','y','z')": (["'z,x'", "''"], ["x,z", ""]),
    "json": (["'{\"a\": [1, null]}'"], ['{"a": [1, null]}']),
    "date": (["'2026-11-26'", "'9999-12-31'", "'0000-00-00'", "'2026-00-10'", "'0069-02-03'"],
             [date(2026, 11, 26), date(9999, 12, 31), None, None, date(2069, 2, 3)]),
    "time": (["'-838:59:59'", "'838:59:59'", "'00:00:01'"],
             ["-838:59:59.000000", "838:59:59.000000", "00:00:01.000000"]),
    "time(3)": (["'-00:00:00.5'"], ["-00:00:00.500000"]),
    "datetime": (["'2026-11-26 12:34:56'", "'0000-00-00 00:00:00'", "'0070-01-01 00:00:00'"],
                 [moment("2026-11-26 12:34:56"), None, moment("1970-01-01")]),
    "datetime(6)": (["'1000-01-01 00:00:00.000001'"], [moment("1000-01-01 00:00:00.000001")]),
    "timestamp(6) null": (["'2026-11-26 12:34:56.789012'", "0"],
                          [datetime(2026, 11, 26, 12, 34, 56, 789012, UTC), None]),
    "year": (["2155", "0"], [2155, 0]),
    "uuid": (["'123e4567-e89b-12d3-a456-426614174000'"], ["123e4567-e89b-12d3-a456-426614174000"]),
    "geometry": (["ST_GeomFromText('POINT(1 2)', 4326)"],
                 [{"wkb": bytes.fromhex("0101000000000000000000f03f0000000000000040"), "srid": 4326}]),
    "point": (["POINT(1, 2)"],
              [{"x": 1.0, "y": 2.0, "srid": None,
                "wkb": bytes.fromhex("0101000000000000000000f03f0000000000000040")}]),
}  # fmt: skip


OF_MYSQL = {
    "json": (["'{\"a\": [1, null]}'"], ['{"a":[1,null]}']),
    "geometry": (["ST_GeomFromText('POINT(1 2)', 4326)"],
                 [{"wkb": bytes.fromhex("01010000000000000000000040000000000000f03f"), "srid": 4326}]),
    "vector(3)": (["STRING_TO_VECTOR('[1, 2.5, -3]')"], [[1.0, 2.5, -3.0]]),
}  # fmt: skip
ONLY_OF_MARIADB = {"uuid"}


def test_values_of_every_type_are_what_they_are(sql: Session, reader: MySqlReader):
    wrong = {}
    types = TYPES
    if not sql.is_mariadb:
        types = {kind: TYPES[kind] for kind in TYPES if kind not in ONLY_OF_MARIADB} | OF_MYSQL
    for kind, (literals, values) in types.items():
        sql.execute("DROP TABLE IF EXISTS t")
        sql.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {kind})")
        for at, literal in enumerate([*literals, "NULL"]):
            sql.execute(f"INSERT INTO t VALUES ({at}, {literal.replace('%', '%%')})")
        chunk = reader.read(T).found
        assert chunk.bad == [], kind
        found = {row["id"]: row["v"] for row in chunk.rows.to_pylist()}
        if [*found.values()] != [*values, None]:
            wrong[kind] = found
    assert wrong == {}


def test_a_zero_date_that_must_not_be_null_is_the_first_of_all_as_in_events(
    sql: Session, reader: MySqlReader
):
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, d date NOT NULL, m datetime NOT NULL)")
    sql.execute("INSERT INTO t VALUES (1, 0, 0)")
    assert rows_of(reader) == [{"id": 1, "d": date(1970, 1, 1), "m": moment("1970-01-01")}]


@pytest.mark.parametrize(
    ("mode", "value", "types"),
    [
        ("hex", "00ffbe", {"binary.handling.mode": "hex"}),
        ("base64", "AP++", {"binary.handling.mode": "base64"}),
        ("url", "AP--", {"binary.handling.mode": "base64-url-safe"}),
    ],
)
def test_bytes_are_written_as_the_connector_does(binlog_server, sql: Session, mode, value, types):
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v blob)")
    sql.execute("INSERT INTO t VALUES (1, x'00ffbe'), (2, REPEAT(x'00', 200))")
    found = MySqlReader(access(binlog_server, **types))
    first, second = rows_of(found)
    found.close()
    assert first["v"] == value
    assert second["v"].strip("0A=") == ""
    assert len(second["v"]) == {"hex": 400}.get(mode, 268)


def test_rows_do_not_hang_on_the_server_s_own_settings(binlog_server, sql: Session):
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, c char(4), m timestamp NULL, w varchar(9))")
    sql.execute(f"INSERT INTO t SELECT seq, 'a', '2026-01-01', '\\\\' FROM {numbers(1, 9)}")
    strange = {
        "sql_select_limit": "3",
        "sql_mode": "ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT",
        "time_zone": "+09:00",
        "transaction_isolation": "READ-UNCOMMITTED",
        "character_set_server": "latin1",
    }
    strange |= {"max_statement_time": "0.000001"} if sql.is_mariadb else {"max_execution_time": "1"}
    before = {}
    if sql.is_mariadb and sql.version < (11, 1):
        strange["tx_isolation"] = strange.pop("transaction_isolation")
    for name in strange:
        ((before[name],),) = sql.execute(f"SELECT @@GLOBAL.{name}")
    try:
        for name, value in strange.items():
            literal = value if value.replace(".", "").isdigit() else f"'{value}'"
            sql.execute(f"SET GLOBAL {name} = {literal}")
        found = MySqlReader(access(binlog_server))
        rows = rows_of(found)
        found.close()
    finally:
        for name, value in before.items():
            sql.execute(f"SET GLOBAL {name} = %s", [value])
    utc = datetime(2026, 1, 1, tzinfo=UTC)
    assert rows == [{"id": n, "c": "a", "m": utc, "w": "\\"} for n in range(1, 10)]


# -- keys ------------------------------------------------------------------------------------------

TEXTS = [
    "'a'",
    "'B'",
    "'ä'",
    "'z'",
    "'%s'",
    "'a''b'",
    r"'a\\b'",
    "'€😀'",
    "''",
    "'aa'",
    "'Zz'",
    "'é'",
]
UNPADDED = "varchar(20) collate utf8mb4_unicode_nopad_ci"
KEYS = {
    "int": [[n] for n in range(-6, 6)],
    "bigint unsigned": [[2**64 - n] for n in range(1, 13)],
    "bigint": [[9007199254740990 + n] for n in range(12)],
    "decimal(30,10)": [[f"{n - 5}.{n}" if n != 5 else "0.0000000001"] for n in range(12)],
    "double": [[f"{n}e{n * 20 - 100}"] for n in range(1, 13)],
    "float": [[f"{n}.1"] for n in range(12)],
    "varchar(20) collate utf8mb4_bin": [[text] for text in TEXTS],
    "varchar(20) collate utf8mb4_general_ci": [[text] for text in TEXTS if text != "'ä'"],
    UNPADDED: [[text] for text in TEXTS if text != "'ä'"],
    "varchar(9) character set latin1": [[f"'{c}'"] for c in 'aBcD€üzéß%"_'],
    "char(5)": [[f"'{c} '"] for c in "abcdefghijkl"],
    "varbinary(4)": [[f"x'{n * 20:02x}{'ff' * (n % 3)}'"] for n in range(12)],
    "binary(3)": [[f"x'{n * 20:02x}'"] for n in range(12)],
    "datetime(6)": [[f"'2026-01-01 00:00:00.{n:06d}'"] for n in range(12)],
    "timestamp(3)": [[f"'2026-01-01 00:00:{n:02d}.5'"] for n in range(12)],
    "date": [[f"'2026-01-{n:02d}'"] for n in range(1, 13)],
    "time": [[f"'{n * 60 - 300}:00:00'"] for n in range(12)],
    "enum('z','y','x','a','b','c','d','e','f','g','h','i')": [[f"'{c}'"] for c in "zyxabcdefghi"],
    "set('d','c','b','a')": [[n] for n in range(12)],
    "bit(9)": [[n * 40] for n in range(12)],
    "year": [[n] for n in (0, *range(1990, 2001))],
    "uuid": [
        [f"'{n:02x}3e4567-e89b-12d3-a456-4266141740{250 - n:02x}'"] for n in range(0, 240, 20)
    ],
    "int, varchar(9)": [[n // 3, f"'{'zAb'[n % 3]}'"] for n in range(12)],
    "varchar(3), datetime(6), bigint": [
        [f"'{'aB'[n // 6]}'", f"'2026-01-01 00:00:00.{n % 2}'", n] for n in range(12)
    ],
}
INEXACT = ("float", "double", "enum", "set", "bit", "year")


def keyed(sql: Session, kinds: str, rows: list[list]) -> list[str]:
    """Make a table with a key of these types, and put rows into it, last one first."""
    names = [f"k{at}" for at in range(len(rows[0]))]
    types = kinds.split(", ") if len(names) > 1 else [kinds]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, types, strict=True))
    sql.execute(f"CREATE TABLE t (n int, {columns}, PRIMARY KEY ({', '.join(names)}))")
    for at, row in reversed([*enumerate(rows)]):
        literals = ", ".join(str(value).replace("%", "%%") for value in row)
        sql.execute(f"INSERT INTO t VALUES ({at}, {literals})")
    return names


@pytest.mark.parametrize("kinds", KEYS)
def test_ranges_of_any_key_hold_every_row_once(binlog_server, sql: Session, reader, kinds):
    rows = KEYS[kinds]
    if not sql.is_mariadb:
        if kinds in ONLY_OF_MARIADB:
            pytest.skip("MySQL does not know it")
        kinds = kinds.replace("unicode_nopad_ci", "0900_ai_ci")
    names = keyed(sql, kinds, rows)
    everything = [*range(len(rows))]
    for size in (1, 5, 100):
        spans = cut(binlog_server, size)
        parts = [[row["n"] for row in rows_of(reader, span=span)] for span in spans]
        assert sorted(n for part in parts for n in part) == everything, (size, spans)
        assert max(map(len, parts)) <= size
        assert len(spans) == -(-len(rows) // size)
    spans = [WHOLE]
    for _ in range(5):
        middles = [reader.middle(T, s, condition=None, surrogate=None) for s in spans]
        spans = [h for s, m in zip(spans, middles, strict=True) for h in halves(s, m)]
    parts = [rows_of(reader, span=span) for span in spans]
    assert [len(part) for part in parts] == [1] * len(rows)
    if kinds.startswith(INEXACT):
        return
    chunk = reader.read(T).found
    columns = [chunk.schema.column(name) for name in names]
    texts = key_texts(chunk.keys.to_pylist(), columns)
    again = reader.read(T, keys=texts)
    assert sorted(again.found.keys.to_pylist()) == sorted(chunk.keys.to_pylist())
    assert again.absent.keys.to_pylist() == []
    sql.execute("DELETE FROM t WHERE n < 6")
    gone = reader.read(T, keys=texts)
    assert sorted(gone.absent.keys.to_pylist() + gone.found.keys.to_pylist()) == sorted(
        chunk.keys.to_pylist()
    )
    assert gone.absent.rows.num_rows == 6
    first = cut(binlog_server, 3)[0]
    inside = reader.read(T, keys=texts, span=first)
    assert 0 < inside.absent.rows.num_rows + inside.found.rows.num_rows < len(rows)


def cut(config: DatabaseConfig, size: int, **more):
    given = {"condition": None, "surrogate": None, "within": WHOLE, **more}
    return chunk_reader.cut(access(config), T, size, **given).spans


@pytest.mark.parametrize("column", ["n", "w"])
def test_ranges_of_a_column_with_nulls_hold_every_row_once(binlog_server, sql, reader, column):
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, n int, w varchar(9))")
    sql.execute(
        f"INSERT INTO t SELECT seq, IF(seq %% 4 = 0, NULL, seq DIV 5), NULL FROM {numbers(1, 60)}"
    )
    sql.execute("UPDATE t SET w = CONCAT('w', n)")
    spans = cut(binlog_server, 7, surrogate=column)
    parts = [rows_of(reader, span=span, surrogate=column) for span in spans]
    assert len(spans) > 4
    assert sorted(row["id"] for part in parts for row in part) == [*range(1, 61)]


def test_a_large_table_is_cut_by_estimates_and_no_row_is_lost(
    binlog_server, sql, reader, monkeypatch
):
    monkeypatch.setattr("lakemark.connectors.mysql.key_cuts._WALKED_ROWS", 100)
    sql.execute("CREATE TABLE t (a int, b int, v varchar(90), PRIMARY KEY (a, b))")
    sql.execute(
        "INSERT INTO t SELECT IF(seq < 9000, seq, seq * 1000), 1, REPEAT('x', 50)"
        f" FROM {numbers(1, 20_000)}"
    )
    sql.execute("ANALYZE TABLE t")
    spans = cut(binlog_server, 1000)
    parts = [len(rows_of(reader, span=span)) for span in spans]
    assert sum(parts) == 20_000
    assert 10 <= len(spans) <= 60  # 20 if the estimates were exact
    assert max(parts) <= 4000
    within = cut(binlog_server, 100, within=spans[1])
    assert sum(len(rows_of(reader, span=span)) for span in within) == parts[1]
    assert (within[0].after, within[-1].upto) == (spans[1].after, spans[1].upto)


def test_an_index_serves_a_range_of_a_key_of_several_columns(binlog_server, sql: Session, reader):
    sql.execute("CREATE TABLE t (a int, b int, c int, v varchar(90), PRIMARY KEY (a, b, c))")
    sql.execute(f"INSERT INTO t SELECT seq %% 10, seq %% 100, seq, 'x' FROM {numbers(1, 20_000)}")
    sql.execute("ANALYZE TABLE t")
    span = cut(binlog_server, 500)[17]
    session = reader.kept.checked()
    before = int(dict(session.execute("SHOW SESSION STATUS LIKE 'Handler_read_next'"))
                 ["Handler_read_next"])  # fmt: skip
    assert len(rows_of(reader, span=span)) == 500
    after = int(dict(session.execute("SHOW SESSION STATUS LIKE 'Handler_read_next'"))
                ["Handler_read_next"])  # fmt: skip
    assert after - before < 2500


# -- what may happen meanwhile ---------------------------------------------------------------------


def plain(sql: Session, rows: int = 9) -> None:
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(90))")
    sql.execute(f"INSERT INTO t SELECT seq, 'x' FROM {numbers(1, rows)}")


def test_a_chunk_leaves_no_transaction_that_a_change_of_the_table_waits_for(sql, reader):
    plain(sql)
    assert len(rows_of(reader)) == 9
    sql.execute("SET SESSION lock_wait_timeout = 1")
    sql.execute("ALTER TABLE t ADD COLUMN w int DEFAULT 7")
    assert rows_of(reader)[0] == {"id": 1, "v": "x", "w": 7}


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE t ADD COLUMN w int DEFAULT 7, ALGORITHM=INSTANT",
        "ALTER TABLE t DROP COLUMN v, ALGORITHM=COPY",
        "ALTER TABLE t MODIFY v varchar(99)",
        "TRUNCATE TABLE t",
        "DROP TABLE t",
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_change_between_snapshot_and_look_is_said_and_read_again(
    sql, reader, monkeypatch, change, known
):
    plain(sql)
    if known:
        rows_of(reader)

    @contextmanager
    def changed(session):
        with consistent_snapshot(session) as place:
            sql.execute(change)
            yield place

    with monkeypatch.context() as patched:
        patched.setattr(mysql_chunks, "consistent_snapshot", changed)
        found = code(TableError, reader.read, T)
    assert found == ("table-gone" if change.startswith("DROP") else "schema-changed")
    if not change.startswith("DROP"):
        assert len(rows_of(reader)) == (0 if change.startswith("TRUNCATE") else 9)


def test_a_locked_table_is_said_and_waited_for_not_long(binlog_server, sql, reader):
    plain(sql)
    sql.execute("LOCK TABLES t WRITE")
    begun = time.monotonic()
    assert code(DependencyError, reasons_against, access(binlog_server), T) == "table-locked"
    assert time.monotonic() - begun < 5
    sql.execute("UNLOCK TABLES")
    assert reasons_against(access(binlog_server), T) == []


XID = "x'ff00', x'c328'"
"""A name that is no text."""


def prepare(sql: Session) -> None:
    """Prepare a transaction of XA that puts a row into the table."""
    sql.execute(f"XA START {XID}")
    sql.execute("INSERT INTO t VALUES (77, 'prepared')")
    sql.execute(f"XA END {XID}")
    sql.execute(f"XA PREPARE {XID}")


def test_a_prepared_transaction_is_in_the_log_and_not_in_a_read_so_the_chunk_waits(
    binlog_server, sql, reader
):
    plain(sql)
    prepare(sql)
    try:
        assert code(DependencyError, reader.read, T) == "transaction-prepared"
        assert reasons_against(access(binlog_server), T) == [], (
            "it is waited for when rows are read"
        )
        assert len(cut(binlog_server, 5)) == 2
        timer = threading.Timer(0.3, sql.execute, [f"XA COMMIT {XID}"])
        timer.start()
        assert [row["id"] for row in rows_of(reader)] == [*range(1, 10), 77]
        timer.join()
    finally:
        with suppress(pymysql.MySQLError):
            sql.execute(f"XA ROLLBACK {XID}")


def test_only_what_was_prepared_before_is_waited_for(sql, reader, monkeypatch):
    """Where there is always one that is prepared, reads go on."""
    plain(sql)
    known = binlog_snapshot._prepared
    names = map(str, count())
    monkeypatch.setattr(binlog_snapshot, "_prepared", lambda s: {*known(s), next(names)})
    assert len(rows_of(reader)) == 9


def test_a_transaction_whose_id_is_held_may_be_in_the_log_so_the_chunk_waits(
    binlog_server, is_mysql, sql, reader
):
    if not is_mysql:
        pytest.skip("MariaDB holds none")
    plain(sql)
    with connect(binlog_server, name="holder") as holder:
        holder.execute("SET GTID_NEXT = '123e4567-e89b-12d3-a456-426614174000:1'")
        holder.execute("BEGIN")
        holder.execute("INSERT INTO shop.t VALUES (77, 'held')")
        assert code(DependencyError, reader.read, T) == "transaction-unfinished"
        timer = threading.Timer(0.3, holder.execute, ["COMMIT"])
        timer.start()
        assert [row["id"] for row in rows_of(reader)] == [*range(1, 10), 77]
        timer.join()


def test_without_ids_of_transactions_nothing_tells_what_a_read_has_seen(
    binlog_server, is_mysql, sql, reader
):
    if not is_mysql:
        pytest.skip("MariaDB tells it otherwise")
    plain(sql)
    sql.execute("SET GLOBAL gtid_mode = ON_PERMISSIVE")
    try:
        assert code(ConfigError, reader.read, T) == "no-transaction-ids"
        assert code(ConfigError, reasons_against, access(binlog_server), T) == "no-transaction-ids"
    finally:
        sql.execute("SET GLOBAL gtid_mode = ON")


def test_what_takes_too_long_is_ended_by_the_server_and_the_session_goes_on(binlog_server, sql):
    plain(sql)
    given = access(binlog_server)
    short = DatabaseAccess(given.config, given.modes, given.connector, timedelta(seconds=0.5))
    reader = MySqlReader(short)
    waits = Condition("SLEEP(%s) = 0", (5,))
    begun = time.monotonic()
    assert code(DependencyError, reader.read, T, condition=waits) == "statement-timeout"
    assert time.monotonic() - begun < 4
    session = reader.kept.session
    assert len(rows_of(reader)) == 9
    assert reader.kept.session is session
    reader.close()


def test_a_read_is_ended_from_another_thread(sql, reader):
    plain(sql)
    rows_of(reader)
    timer = threading.Timer(0.5, reader.kept.cancel)
    timer.start()
    begun = time.monotonic()
    waits = Condition("SLEEP(%s) = 0", (5,))
    assert code(DependencyError, reader.read, T, condition=waits) == "statement-timeout"
    assert time.monotonic() - begun < 4
    timer.join()


def test_a_chunk_that_is_too_large_is_said_and_its_halves_are_read(sql, reader, monkeypatch):
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v longtext)")
    sql.execute(f"INSERT INTO t SELECT seq, REPEAT('x', 100000) FROM {numbers(1, 40)}")
    monkeypatch.setattr(mysql_chunks.read_chunk, "__kwdefaults__",
                        {**mysql_chunks.read_chunk.__kwdefaults__, "max_bytes": 1 << 20})  # fmt: skip
    assert code(DependencyError, reader.read, T) == "chunk-too-large"
    spans, found = [WHOLE], []
    while spans:
        span = spans.pop()
        try:
            found += rows_of(reader, span=span)
        except DependencyError:
            middle = reader.middle(T, span, condition=None, surrogate=None)
            spans += halves(span, middle)
    assert sorted(row["id"] for row in found) == [*range(1, 41)]


def test_a_row_may_be_larger_than_a_packet_of_the_server(sql, reader):
    sql.execute("CREATE TABLE t (id int PRIMARY KEY, v longblob, w longtext)")
    sql.execute(
        "INSERT INTO t VALUES (1, 'a', 'b'), (2, REPEAT('x', 20000000), REPEAT('ä', 9000000))"
    )
    sql.execute("INSERT INTO t VALUES (3, REPEAT('y', 16777215), NULL), (4, NULL, '')")
    found = [(row["id"], row["v"], row["w"]) for row in rows_of(reader)]
    assert [(n, v and len(v), w and len(w)) for n, v, w in found[:3]] == [
        (1, 1, 1),
        (2, 20_000_000, 9_000_000),
        (3, 16_777_215, None),
    ]
    assert found[3] == (4, None, "")
    assert (set(found[1][1]), set(found[1][2]), set(found[2][1])) == ({120}, {"ä"}, {121})


def test_a_session_that_was_ended_is_made_anew(sql, reader):
    plain(sql)
    rows_of(reader)
    ((thread,),) = reader.kept.get().execute("SELECT CONNECTION_ID()")
    sql.execute(f"KILL {thread}")
    assert len(rows_of(reader)) == 9


def test_what_cannot_be_read_is_said_in_words_of_its_own(binlog_server, sql, reader):
    plain(sql)
    sql.execute("CREATE VIEW v AS SELECT * FROM t")
    if sql.is_mariadb:
        sql.execute("CREATE SEQUENCE s")
    sql.execute("CREATE TABLE m (id int PRIMARY KEY) ENGINE=MyISAM")
    sql.execute("CREATE TABLE n (id int)")
    assert code(TableError, reader.read, "shop.gone") == "table-gone"
    assert code(TableError, reader.read, "nowhere.t") == "table-gone"
    assert code(TableError, reader.read, "shop.v") == "not-a-table"
    if sql.is_mariadb:
        assert code(TableError, reader.read, "shop.s") == "not-a-table"
    assert code(TableError, reader.read, "shop.m") == "not-transactional"
    assert code(TableError, reader.read, "shop.n") == "no-key"
    assert len(rows_of(reader)) == 9, "the reader goes on"


def test_who_may_not_read_is_told_which_statement_lets_him(binlog_server, sql):
    plain(sql)
    sql.execute("DROP USER IF EXISTS poor")
    sql.execute("CREATE USER poor IDENTIFIED BY 'geheim'")
    sql.execute("GRANT SELECT (id) ON shop.t TO poor")
    url = binlog_server.url.replace("root@", "poor@")
    poor = MySqlReader(access(DatabaseConfig(url=url, password="geheim")))
    with pytest.raises(ConfigError) as caught:
        poor.read(T)
    assert "GRANT SELECT ON `shop`.`t`" in caught.value.hint
    sql.execute("GRANT SELECT ON shop.t TO poor")
    if not sql.is_mariadb:
        assert code(ConfigError, poor.read, T) == "server-privilege"
        sql.execute("GRANT REPLICATION CLIENT, XA_RECOVER_ADMIN ON *.* TO poor")
        poor.close()
    assert len(rows_of(poor)) == 9, "no right beyond these"
    poor.close()
    with pytest.raises(LoginRefused) as refused:
        MySqlReader(access(DatabaseConfig(url=url, password="falsch"))).read(T)
    assert "falsch" not in str(refused.value)
    with pytest.raises(DependencyError) as away:
        MySqlReader(access(DatabaseConfig(url="mysql://root@127.0.0.1:9"))).read(T)
    assert away.value.code == "database-unavailable"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[str, str]:
    """Files of a certificate for 127.0.0.1 that is its own authority, and of its key."""
    folder = tmp_path_factory.mktemp("certificate")
    files = (str(folder / "certificate.pem"), str(folder / "key.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9"]
    names = ["-subj", "/CN=mariadb", "-addext", "subjectAltName=IP:127.0.0.1"]
    to = ["-out", files[0], "-keyout", files[1]]
    subprocess.run([*command, *names, *to], check=True, capture_output=True)
    return files


def test_a_connection_is_encrypted_as_the_address_says(certificate, tmp_path):
    pem, key = certificate
    server = MariaDb(
        directory=tmp_path,
        log=tmp_path / "server.log",
        settings={"ssl": "ON", "ssl_cert": pem, "ssl_key": key},
    )
    server.start()

    def cipher(host: str, parameters: str) -> str:
        url = f"mariadb://root@{host}:{server.port}/?{parameters}"
        reader = MySqlReader(access(DatabaseConfig(url=url)))
        try:
            assert len(rows_of(reader)) == 50_000
            ((_, found),) = reader.kept.get().execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
            return found
        finally:
            reader.close()

    try:
        with connect(DatabaseConfig(url=server.dsn())) as session:
            session.execute("CREATE DATABASE shop")
            session.execute("USE shop")
            plain(session, 50_000)
        assert cipher("127.0.0.1", "ssl-mode=disabled") == ""
        assert cipher("127.0.0.1", "ssl-mode=preferred")
        assert cipher("127.0.0.1", "ssl-mode=required")
        assert cipher("127.0.0.1", f"ssl-ca={pem}")
        assert cipher("localhost", f"ssl-mode=verify-ca&ssl-ca={pem}")
        assert cipher("127.0.0.1", f"ssl-mode=verify-identity&ssl-ca={pem}")
        for host, parameters in (
            ("127.0.0.1", "ssl-mode=verify-ca"),  # by the machine's own authorities
            ("localhost", f"ssl-mode=verify-identity&ssl-ca={pem}"),
        ):
            with pytest.raises(InvalidConfig) as caught:
                cipher(host, parameters)
            assert [problem.path for problem in caught.value.problems] == ["database.url"]
    finally:
        server.stop()


def test_a_server_without_encryption_is_no_server_where_it_is_required(binlog_server, is_mysql):
    if is_mysql:
        pytest.skip("MySQL makes a certificate of its own")
    url = binlog_server.url.replace("ssl-mode=disabled", "ssl-mode=required")
    with pytest.raises(InvalidConfig) as caught:
        MySqlReader(access(DatabaseConfig(url=url))).read(T)
    assert [problem.path for problem in caught.value.problems] == ["database.url"]
