"""A table with a column of every PostgreSQL type that Debezium's connector can carry.

The values are chosen to be the awkward ones: ends of ranges, infinities, years before the
Gregorian calendar and before Christ, 24:00, empty and null, characters outside ASCII. Which of
them a connector can carry depends on its handling modes: see `Limits`. Types that a server lacks
(an extension, XML support) are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

TABLE: Final = "all_types"
NOT_CAPTURED: Final = frozenset({"name", "unsupported lsn", "unsupported money[]"})
"""Columns that Debezium leaves out of its events; it reads `name`, but streams null instead."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the connector's handling modes can carry.

    Attributes:
        nan: NaN and infinities of numeric: decimal.handling.mode is string or double.
        years: years outside of 1678 to 2261: time.precision.mode is not nanoseconds.
        midnight: the end of a day, 24:00: time.precision.mode is neither isostring nor structured.
    """

    nan: bool = False
    years: bool = True
    midnight: bool = True

    @classmethod
    def of(cls, connector: Mapping[str, str]) -> "Limits":
        """Return what a connector with these settings can carry."""
        times = connector.get("time.precision.mode", "adaptive")
        return cls(
            nan=connector.get("decimal.handling.mode", "precise") != "precise",
            years=times != "nanoseconds",
            midnight=times not in {"isostring", "structured"},
        )


@dataclass(frozen=True, slots=True)
class Typed:
    """A column: its name, its type, and the texts of the values it gets in turn.

    Attributes:
        nan: more values where `Limits.nan` allows them.
        years: more values where `Limits.years` allows them.
        midnight: more values where `Limits.midnight` allows them.
    """

    name: str
    type: str
    values: tuple[str | None, ...]
    nan: tuple[str, ...] = ()
    years: tuple[str, ...] = ()
    midnight: tuple[str, ...] = ()

    def within(self, limits: Limits) -> tuple[str | None, ...]:
        """Return the values that the connector can carry, null among them."""
        more = (
            *(self.nan if limits.nan else ()),
            *(self.years if limits.years else ()),
            *(self.midnight if limits.midnight else ()),
        )
        return (*self.values, *more, None)


PREPARE: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy', 'Ünique', 'it''s')",
    "CREATE DOMAIN positive AS integer CHECK (VALUE > 0)",
    "CREATE DOMAIN price AS numeric(10, 3)",
    "CREATE DOMAIN label AS varchar(12)",
    "CREATE DOMAIN short_label AS label CHECK (length(VALUE) < 10)",
    "CREATE DOMAIN feeling AS mood",
    "CREATE DOMAIN instant AS timestamptz",
    "CREATE EXTENSION IF NOT EXISTS hstore",
    "CREATE EXTENSION IF NOT EXISTS citext",
    "CREATE EXTENSION IF NOT EXISTS ltree",
    "CREATE EXTENSION IF NOT EXISTS isn",
)
"""Types and extensions, each made if the server can."""

_DATES: Final = ("1970-01-01", "2024-02-29", "1969-12-31", "2261-12-31", "1700-03-01")
_OLD_DATES: Final = (
    *("0001-01-01", "1582-10-04", "1582-10-15", "1500-02-28", "9999-12-31"),
    *("infinity", "-infinity"),
)
_STAMPS: Final = (
    *("1970-01-01 00:00:00", "2024-02-29 23:59:59.999999", "1969-12-31 23:59:59.000001"),
    *("2038-01-19 03:14:07.5", "1700-01-01 12:00:00.123"),
)
_OLD_STAMPS: Final = (
    *("0001-01-01 00:00:00", "1582-10-04 12:34:56.789", "1582-10-15 00:00:00.000001"),
    *("1500-02-28 23:59:59", "9999-12-31 23:59:59.999999", "infinity", "-infinity"),
    "0044-03-15 00:00:00 BC",
)
_TIMES: Final = ("00:00:00", "12:34:56.7", "00:00:00.000001", "23:59:59.4")
_LAST_TIMES: Final = ("24:00:00", "23:59:59.999999")
_TEXTS: Final = (
    *("", " ", "plain", 'quo"te and back\\slash', "tab\tnew\nline", "Größe 日本語 🚲"),
    *("null", "\u2028\x7f", "__debezium_unavailable", "a" * 300),
)

COLUMNS: Final = (
    Typed("boolean", "boolean", ("true", "false")),
    Typed("Small Int", "smallint", ("0", "-32768", "32767")),
    Typed("integer", "integer", ("0", "-2147483648", "2147483647")),
    Typed("big", "bigint", ("0", "-9223372036854775808", "9223372036854775807")),
    Typed("oid", "oid", ("0", "4294967295")),
    Typed("real", "real", ("0", "-0", "1.1", "3.4028235e38", "1e-45", "NaN", "Infinity")),
    Typed(
        "double", "double precision", ("0.1", "-0", "1.7976931348623157e308", "NaN", "-Infinity")
    ),
    Typed("numeric(12,2)", "numeric(12,2)", ("0", "9999999999.99", "-0.01"), nan=("NaN",)),
    Typed("numeric(38,10)", "numeric(38,10)", ("1", f"-{'9' * 28}.{'9' * 10}", "0.0000000001")),
    Typed("numeric(50,5)", "numeric(50,5)", ("1.5", f"{'9' * 45}.00001"), nan=("NaN",)),
    Typed("numeric(5,0)", "numeric(5,0)", ("99999", "-1")),
    Typed("numeric(3,5)", "numeric(3,5)", ("0.00999", "0")),
    Typed(
        "numeric",
        "numeric",
        ("0", "0.000", "100", "1e30", "-1.50", "3.14159265358979323846264338327950288419716939937"),
        nan=("NaN", "Infinity", "-Infinity"),
    ),
    Typed("money", "money", ("0", "-12.34", "92233720368547758.07")),
    Typed("text", "text", _TEXTS),
    Typed("varchar", "varchar(300)", _TEXTS),
    Typed("char", "char(6)", ("", "ab", " x", "Größe", "123456")),
    Typed('"char"', '"char"', ("a", "z")),
    Typed("name", "name", ("pg_class", "Ü")),
    Typed("citext", "citext", ("Abc", "ABC")),
    Typed("bit1", "bit(1)", ("1", "0")),
    Typed("bit8", "bit(8)", ("10000001", "00000000", "11111111")),
    Typed("bit20", "bit(20)", ("10000000000000000001", "00000000000000000000")),
    Typed("varbit", "varbit", ("1", "101", "1000000001", "")),
    Typed("varbit12", "varbit(12)", ("1", "000000000001", "111111111111")),
    Typed("bytea", "bytea", ("\\x", "\\x00ff", "\\xdeadbeef", "\\x3e3e3f3f")),
    Typed("json", "json", ('{"b" : 1,  "a":[1, 2.50,null]}', '"text"', "null", "1e400", "{}")),
    Typed("jsonb", "jsonb", ('{"b" : 1,  "a":[1, 2.50,null]}', '"ü"', "null", "[]", "12.30")),
    Typed("xml", "xml", ("<a>1</a>", '<b x="1"/>', "text")),
    Typed(
        "uuid", "uuid", ("00000000-0000-0000-0000-000000000000", "A0EEBC999C0B4EF8BB6D6BB9BD380A11")
    ),
    Typed("enum", "mood", ("sad", "Ünique", "it's")),
    Typed("hstore", "hstore", ("a=>1,b=>NULL", "", '"k ey"=>"v\\"alue"', "ü=>ß")),
    Typed("ltree", "ltree", ("Top.Science.Astronomy", "")),
    Typed("tsvector", "tsvector", ("fat:2 cat:3", "", "'it''s':1A")),
    Typed("isbn", "isbn", ("978-0-11-000533-1",)),
    Typed("inet", "inet", ("10.1.2.3", "10.1.2.3/8", "2001:db8::1/64")),
    Typed("cidr", "cidr", ("10.0.0.0/8", "2001:db8::/32", "1.2.3.4/32")),
    Typed("macaddr", "macaddr", ("08-00-2B-01-02-03",)),
    Typed("macaddr8", "macaddr8", ("08:00:2b:01:02:03:04:05",)),
    Typed("date", "date", _DATES, years=_OLD_DATES),
    Typed("time", "time", _TIMES, midnight=_LAST_TIMES),
    Typed("time(3)", "time(3)", _TIMES, midnight=_LAST_TIMES),
    Typed("time(0)", "time(0)", _TIMES, midnight=_LAST_TIMES),
    Typed("timetz", "timetz", ("12:34:56.789+02", "00:00:00+00", "23:59:59.5-08", "01:00+05:30")),
    Typed("timestamp", "timestamp", _STAMPS, years=_OLD_STAMPS),
    Typed("timestamp(3)", "timestamp(3)", _STAMPS, years=_OLD_STAMPS),
    Typed("timestamp(0)", "timestamp(0)", _STAMPS, years=_OLD_STAMPS),
    Typed("timestamptz", "timestamptz", _STAMPS, years=_OLD_STAMPS),
    Typed("timestamptz(3)", "timestamptz(3)", _STAMPS, years=_OLD_STAMPS),
    Typed("timestamptz zone", "timestamptz", ("2024-07-01 12:00:00+05:30", "2024-07-01 00:00-08")),
    Typed(
        "interval",
        "interval",
        ("0", "1 year 2 months 3 days 04:05:06.789", "-1 day", "-2 mons 4 days -00:00:01.5"),
    ),
    Typed("int4range", "int4range", ("[1,5)", "empty", "(,)", "[7,]")),
    Typed("int8range", "int8range", ("[1,9223372036854775807)",)),
    Typed("numrange", "numrange", ("[1.50,2.5]", "(,0)")),
    Typed("tsrange", "tsrange", ("[2024-01-01,2024-01-02 03:04:05.6)",)),
    Typed("tstzrange", "tstzrange", ("[2024-01-01 00:00+02,)",)),
    Typed("daterange", "daterange", ("[2024-01-01,2024-02-01)", "[2024-01-01,2024-02-01]")),
    Typed("point", "point", ("(1,2)", "(-0.5,1e10)")),
    Typed("box", "box", ("((0,0),(1,2))",)),
    Typed("lseg", "lseg", ("[(0,0),(1,2)]",)),
    Typed("path", "path", ("[(0,0),(1,2),(3,4)]", "((0,0),(1,2),(3,4))")),
    Typed("polygon", "polygon", ("((0,0),(1,2),(3,4))",)),
    Typed("circle", "circle", ("<(1,2),3>",)),
    Typed("line", "line", ("{1,2,3}",)),
    Typed("domain int", "positive", ("1", "2147483647")),
    Typed("domain numeric", "price", ("1.5", "-9999999.999"), nan=("NaN",)),
    Typed("domain of domain", "short_label", ("ü", "label")),
    Typed("domain enum", "feeling", ("sad", "happy")),
    Typed("domain timestamptz", "instant", _STAMPS),
    Typed("int[]", "integer[]", ("{}", "{1,NULL,-3}", "{NULL}")),
    Typed("bigint[]", "bigint[]", ("{}", "{1,NULL,9223372036854775807}")),
    Typed("smallint[]", "smallint[]", ("{1,NULL}",)),
    Typed("boolean[]", "boolean[]", ("{t,f,NULL}",)),
    Typed("real[]", "real[]", ("{1.1,NULL,NaN}",)),
    Typed("double[]", "double precision[]", ("{0.1,NULL,-Infinity}",)),
    Typed("numeric(8,3)[]", "numeric(8,3)[]", ("{1.5,NULL,-99999.999}",)),
    Typed("numeric[]", "numeric[]", ("{1.50,NULL,1e20}",)),
    Typed("text[]", "text[]", ("{}", '{"",NULL,"NULL","a,b","quo\\"te","ü"}')),
    Typed("varchar[]", "varchar(5)[]", ('{ab,NULL,"c d"}',)),
    Typed("uuid[]", "uuid[]", ("{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,NULL}",)),
    Typed("enum[]", "mood[]", ("{sad,Ünique}",)),
    Typed("json[]", "json[]", ('{"{\\"a\\" :1}",NULL}',)),
    Typed("jsonb[]", "jsonb[]", ('{"{\\"a\\" :1}",NULL}',)),
    Typed("bytea[]", "bytea[]", ('{"\\\\x00ff",NULL}',)),
    Typed("inet[]", "inet[]", ("{10.0.0.1,NULL}",)),
    Typed("date[]", "date[]", ("{2024-02-29,NULL}",)),
    Typed("time[]", "time[]", ("{12:34:56.7,NULL}",)),
    Typed("timestamp[]", "timestamp[]", ('{"2024-02-29 23:59:59.999999",NULL}',)),
    Typed("timestamptz[]", "timestamptz[]", ('{"2024-02-29 23:59:59.999999+02",NULL}',)),
    Typed("int4range[]", "int4range[]", ('{"[1,5)",NULL}',)),
    Typed("unsupported lsn", "pg_lsn", ("0/1",)),
    Typed("unsupported money[]", "money[]", ("{1.5}",)),
)
"""The columns, in the table's order, after `id integer PRIMARY KEY`."""


def create(connection: psycopg.Connection[Any], limits: Limits) -> None:
    """Create the table and its rows.

    Args:
        connection: one that commits each statement.
        limits: what the connector can carry.
    """
    for statement in PREPARE:
        try:
            connection.execute(statement.encode())
        except psycopg.Error:
            continue  # its column is left out below
    columns = [column for column in COLUMNS if _is_possible(connection, column)]
    described = [
        sql.SQL("{} {}").format(sql.Identifier(c.name), sql.SQL(_literal(c.type))) for c in columns
    ]
    connection.execute(
        sql.SQL("CREATE TABLE {} (id integer PRIMARY KEY, {})").format(
            sql.Identifier(TABLE), sql.SQL(", ").join(described)
        )
    )
    insert(connection, limits)


def insert(connection: psycopg.Connection[Any], limits: Limits, *, first: int = 1) -> int:
    """Insert rows until every value of every column was had, and return how many.

    Args:
        connection: one that commits each statement.
        limits: what the connector can carry.
        first: id of the first row.
    """
    found = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 1"
        " AND NOT attisdropped ORDER BY attnum",
        [TABLE],
    ).fetchall()
    by_name = {column.name: column for column in COLUMNS}
    columns = [by_name[name] for (name,) in found if name in by_name]
    values = [column.within(limits) for column in columns]
    count = max(map(len, values))
    command = sql.SQL("INSERT INTO {} (id, {}) VALUES (%s, {})").format(
        sql.Identifier(TABLE),
        sql.SQL(", ").join(sql.Identifier(column.name) for column in columns),
        sql.SQL(", ").join(sql.SQL("%s::{}").format(sql.SQL(_literal(c.type))) for c in columns),
    )
    rows = [[first + row, *(had[row % len(had)] for had in values)] for row in range(count)]
    with connection.cursor() as cursor:
        cursor.executemany(command, rows)
    return count


def _is_possible(connection: psycopg.Connection[Any], column: Typed) -> bool:
    """Tell whether the server has the type and takes all of the values."""
    cast = sql.SQL("SELECT %s::text::{}").format(sql.SQL(_literal(column.type)))
    try:
        for value in column.within(Limits(nan=True)):
            connection.execute(cast, [value])
    except psycopg.Error:
        return False
    return True


def _literal(text: str) -> Any:
    """Return SQL of our own as the literal string that psycopg asks for."""
    return text
