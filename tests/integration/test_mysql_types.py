"""Every type of MariaDB and MySQL: the catalog of a server, and its connector's records, live."""

import json
from decimal import Decimal

import pytest

from lakemark.connectors.database import DatabaseAccess
from lakemark.connectors.mysql.catalog import CATALOG_SQL, from_catalog, key_of, tables_of
from lakemark.connectors.mysql.chunk_reader import MySqlReader
from lakemark.converters.json.keys import canonical_keys
from lakemark.converters.json.rows import decode_rows
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import canonical_from_columns
from lakemark.settings.config import DatabaseConfig
from stack import every_mysql_type
from stack.database import Database
from tests.kit.mysql_types import ENCODE, MODES, catalog
from tests.kit.servers import on

pytestmark = pytest.mark.integration

EACH = on("mariadb-11.4", "mariadb-10.11", "mysql-9.7")
VALUES = {column.name: column.values[0] for column in every_mysql_type.COLUMNS}
ZERO = {
    "c_date": "0",
    "c_dt": "0",
    "c_dt3": "0",
    "c_dt6": "0",
    "c_ts": "0",
    "c_ts3": "0",
    "c_ts6": "0",
}
EXPECTED = {
    "c_ubigint": Decimal(18446744073709551615), "c_uint": 4294967295, "c_zint": 42, "c_num": Decimal(-99999),
    "c_dec": Decimal("-12345678.90"), "c_dec_big": VALUES["c_dec_big"], "c_udec": Decimal(18446744073709551616),
    "c_bit12": b"\x01\x08", "c_bit64": b"\x01\0\0\0\0\0\0\x80", "c_char": "ab", "c_varchar": "vär€😀 ",
    "c_text": "__debezium_unavailable_value", "c_binary": b"\x01\x02\0\0\0\0\0\0", "c_varbinary": b"\0\xff\0",
    "c_mediumblob": b"", "c_set": "x,z", "c_time": "-838:59:59.000000", "c_time3": "-00:00:00.001000",
    "c_time6": "838:59:58.999999", "c_year": 2155,
}  # fmt: skip
COMPACT = (
    '{"a":[1,null,"x, y: \\" 1.0E7"],"b":100000000000000000000,"c":0.00001,"d":12345.678,'
    '"e":1.5e300,"f":12345678901234567890,"g":true,"h":{},"i":0.1,"j":12345678.9,"k":10000000,'
    '"l":-1.25e-9,"m":123456789012345683968,"n":"\\u0001\\b/ü😀","o":1000000000000000,"p":-0.0,'
    '"q":1.10,"r":0.12345678901234567890}'
)


def create(database: Database, table: str) -> list:
    """Make a table of the golden catalog; return its columns there."""
    columns = catalog(database.server.connector, table)
    lines = []
    for column in columns:
        text = column.charset and f"CHARACTER SET {column.charset} COLLATE {column.collation}"
        null = "NOT NULL" if column.not_null else "NULL"
        lines.append(f"`{column.name}` {column.column_type} {text or ''} {null}")
    key = ", ".join(f"`{name}`" for name in key_of(columns))
    database.execute(f"CREATE TABLE {table} ({', '.join(lines)}, PRIMARY KEY ({key}))")
    return columns


def described(database: Database, *tables: str) -> dict:
    """What the server's catalog says."""
    with database.connect() as connection:
        pairs = [(database.name, table) for table in tables]
        rows = connection.cursor()
        rows.execute(CATALOG_SQL, {"tables": pairs})
        found = tables_of(rows.fetchall(), mariadb=database.server.connector == "mariadb")
    return {name.rpartition(".")[2]: columns for name, columns in found.items()}


def unlike(one: dict, other: dict) -> dict:
    """The values of two rows that differ, by column."""
    return {n: (one[n], other[n]) for n in one if repr(one[n]) != repr(other[n])}


@EACH
def test_the_catalog_of_a_server_is_as_the_golden_one(any_database: Database):
    database = any_database
    expected = {table: create(database, table) for table in ("types", "orders", "customers")}
    database.execute("CREATE VIEW seen AS SELECT 1 AS one")
    assert described(database, *expected, "seen", "absent") == expected


@EACH
def test_the_key_is_the_one_that_the_server_takes_for_a_primary_key(any_database: Database):
    database = any_database
    keys = {
        "two_unique": ("UNIQUE KEY a (a), PRIMARY KEY (b, a)", ["b", "a"]),
        "without_primary": ("UNIQUE KEY z (b, a), UNIQUE KEY y (d), UNIQUE KEY x (c)", ["b", "a"]),
        "wider": ("UNIQUE KEY one (a, b), UNIQUE KEY two (a)", ["a", "b"]),
        "part_of_text": ("UNIQUE KEY a (t(5))", []),
        "nullable": ("UNIQUE KEY c (c)", []),
        "plain": ("KEY a (a)", []),
    }
    for table, (key, _) in keys.items():
        columns = "a int NOT NULL, b int NOT NULL, c int, d int NOT NULL, t varchar(20) NOT NULL"
        database.execute(f"CREATE TABLE {table} ({columns}, {key})")
    found = described(database, *keys)
    assert {t: key_of(columns) for t, columns in found.items()} == {
        table: key for table, (_, key) in keys.items()
    }


def rows_of(database: Database, settings: dict | None = None) -> dict:
    """Typed rows of a snapshot and, ten higher, of the log, by id; one has no values."""
    names = [column.name for column in create(database, "types") if column.name != "id"]
    with database.connect() as connection:
        connection.execute("SET SESSION sql_mode = ''")
        for number, values in ((1, VALUES), (2, VALUES | ZERO), (3, {})):
            given = ", ".join(values.get(name, "NULL") for name in names)
            connection.execute(f"INSERT INTO types VALUES ({number}, {given})")
        database.start_connector(settings)
        connection.execute(f"INSERT INTO types SELECT id + 10, {', '.join(names)} FROM types")
        connection.execute("UPDATE types SET c_year = 0 WHERE id = 13")
    columns = described(database, "types")["types"]
    modes = HandlingModes.from_connector(database.config)
    table, connector = database.identifier("types"), database.server.connector
    schema = from_catalog(table, columns, key_of(columns), modes, connector=connector)

    records = database.stack.kafka.read(database.topic("types"), count=7)

    images = [json.loads(r.value(), parse_float=Decimal)["after"] for r in records]
    rows = decode_rows(list(map(ENCODE, images)), schema, modes, partial=range(len(images)))
    assert rows.bad == []
    assert rows.unknown == set()
    assert not any(rows.unavailable)
    by_id: dict = {}
    for row in rows.columns.to_pylist():
        by_id.setdefault(row.pop("id"), []).append(row)
    return by_id


@EACH
def test_rows_of_the_log_and_of_a_snapshot_have_the_same_exact_values(any_database: Database):
    by_id = rows_of(any_database)
    (kept,) = by_id[1]
    assert {name: kept[name] for name in EXPECTED} == EXPECTED
    if any_database.server.connector == "mysql":
        assert kept["c_json"] == COMPACT
    else:
        assert kept["c_uuid"] == "123e4567-e89b-42d3-a456-426614174000"
    assert unlike(by_id[11][0], kept) == {}
    assert unlike(by_id[12][0], by_id[2][0]) == {}
    assert {by_id[2][0][name] for name in ZERO} == {None}
    (empty,) = by_id[3]
    assert set(empty.values()) == {None}
    assert sorted(by_id[13], key=lambda row: row["c_year"] is None) == [
        empty | {"c_year": 0},
        empty,
    ]


WITHOUT_CONVERTERS = {
    "defaults": {},
    **{mode: {k: v for k, v in MODES[mode].items() if "bools" not in k + v} for mode in MODES},
}
"""Settings with which rows are read beside their events."""


@on("mariadb-11.4", "mariadb-10.11")
@pytest.mark.parametrize("mode", WITHOUT_CONVERTERS)
def test_rows_of_a_chunk_are_those_of_the_events(any_database: Database, mode: str):
    database = any_database
    by_id = rows_of(database, WITHOUT_CONVERTERS[mode])
    access = DatabaseAccess(
        DatabaseConfig(url=database.dsn),
        HandlingModes.from_connector(database.config),
        database.config,
    )
    reader = MySqlReader(access)
    try:
        found = reader.read(database.identifier("types")).found
    finally:
        reader.close()
    assert found.bad == []
    rows = {row.pop("id"): row for row in found.rows.to_pylist()}
    assert sorted(rows) == [1, 2, 3, 11, 12, 13]
    newest = {**{i: rows[0] for i, rows in by_id.items()}, 13: by_id[3][0] | {"c_year": 0}}
    differences = {name for i, row in rows.items() for name in unlike(row, newest[i])}
    # Years 1000 and 9999, which the connector (3.5.0) wraps around: null in a chunk.
    assert differences == ({"c_dt", "c_dt6"} if mode == "m4" else set())


KEYS = {
    "bigint unsigned": (["18446744073709551615", "7"], [b'["18446744073709551615"]', b'["7"]']),
    "int unsigned": (["4294967295"], [b"[4294967295]"]),
    "decimal(10,2)": (["1.50", "-2"], [b'["1.5"]', b'["-2"]']),
    "varchar(20)": (["'vär€😀\\\\\"'", "''"], ['["vär€😀\\\\\\""]'.encode(), b'[""]']),
    "char(4)": (["'ab  '"], [b'["ab"]']),
    "varbinary(9)": (["x'00ff00'"], [b'["AP8A"]']),
    "binary(4)": (["x'01'"], [b'["AQAAAA=="]']),
    "enum('x','y')": (["'y'"], [b'["y"]']),
    "set('x','y')": (["'y,x'"], [b'["x,y"]']),
    "time(3)": (["'-838:59:59'", "'30:00:00.5'"], [b'["-838:59:59.000000"]', b'["30:00:00.500000"]']),
    "datetime(6)": (["'2026-11-26 12:34:56.7'"], [b"[1795696496700000]"]),
    "timestamp(3)": (["'2026-11-26 12:34:56.7'"], [b"[1795696496700000]"]),
    "date": (["'9999-12-31'"], [b"[2932896]"]),
    "bit(12)": (["b'100000000001'"], [b'["AQg="]']),
}  # fmt: skip
"""By type of a key: values in SQL, and canonical keys."""


@on("mariadb-11.4", "mysql-9.7")
def test_keys_of_records_are_those_of_rows_byte_for_byte(any_database: Database):
    database = any_database
    kinds = {f"t{number}": kind for number, kind in enumerate(KEYS)}
    with database.connect() as connection:
        connection.execute("SET time_zone = '+00:00'")
        for table, kind in kinds.items():
            connection.execute(f"CREATE TABLE {table} (k {kind} NOT NULL PRIMARY KEY, v int)")
        database.start_connector()
        for table, kind in kinds.items():
            for value in KEYS[kind][0]:
                connection.execute(f"INSERT INTO {table} VALUES ({value}, 1)")
    modes = HandlingModes.from_connector(database.config)
    found = {}
    for table, columns in described(database, *kinds).items():
        name, connector = database.identifier(table), database.server.connector
        schema = from_catalog(name, columns, ["k"], modes, connector=connector)
        expected = KEYS[kinds[table]][1]
        records = database.stack.kafka.read(database.topic(table), count=len(expected))
        images = [json.loads(r.value(), parse_float=Decimal)["after"] for r in records]
        rows = decode_rows(list(map(ENCODE, images)), schema, modes)
        typed = canonical_from_columns([rows.columns.field("k")], [schema.column("k")])
        assert canonical_keys([r.key() for r in records], schema) == typed.to_pylist()
        assert schema.key_fault(modes) is None
        found[kinds[table]] = sorted(typed.to_pylist())
    assert found == {kind: sorted(keys) for kind, (_, keys) in KEYS.items()}


@on("mariadb-11.4", "mysql-9.7")
def test_a_key_in_another_spelling_is_another_key(any_database: Database):
    """The collation calls them equal; the row has one spelling at a time, and each is an event."""
    database = any_database
    database.execute("CREATE TABLE t (k varchar(9) NOT NULL PRIMARY KEY, v int)")
    database.start_connector()
    with database.connect() as connection:
        connection.execute("INSERT INTO t VALUES ('ada', 1)")
        connection.execute("UPDATE t SET k = 'Ada' WHERE k = 'ADA'")
        connection.execute("REPLACE INTO t VALUES ('ádá', 2)")
        connection.execute("UPDATE t SET k = 'ada ' WHERE v = 2")
    records = database.stack.kafka.read(database.topic("t"), count=10)
    events = [(json.loads(r.key())["k"], json.loads(r.value())["op"]) for r in records if r.value()]
    spellings = ("ada", "Ada", "ádá", "ada ")
    created, deleted = [(k, "c") for k in spellings], [(k, "d") for k in spellings[:-1]]
    assert sorted(events) == sorted([*created, *deleted])


@on("mariadb-11.4", "mysql-9.7")
@pytest.mark.parametrize("mode", MODES)
def test_rows_of_the_log_and_of_a_snapshot_are_alike_in_each_mode(
    any_database: Database, mode: str
):
    by_id = rows_of(any_database, MODES[mode])
    assert unlike(by_id[11][0], by_id[1][0]) == {}
    assert unlike(by_id[12][0], by_id[2][0]) == {}
    assert by_id[1][0]["c_ubigint"] == EXPECTED["c_ubigint"]
