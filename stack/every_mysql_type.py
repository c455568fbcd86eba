"""A table with a column of every type of MySQL and MariaDB that their connectors can carry.

It is what `every_type` is for PostgreSQL. Values are SQL, inserted without any `sql_mode`: a server
rounds or replaces some of them, and some become NULL on the way, such as dates of zeros.
"""

from dataclasses import dataclass
from typing import Any, Final

TABLE: Final = "all_types"


@dataclass(frozen=True, slots=True)
class Typed:
    """A column: its name, its type, and the values that it gets in turn, as SQL.

    Attributes:
        only: the connector of the only product that has the type; all have it unless given.
    """

    name: str
    type: str
    values: tuple[str, ...]
    only: str = ""


_DOCUMENT: Final = (
    '{"b": 1e20, "a": [1, null, "x, y: \\\\" 1.0E7"], "c": 0.00001, "d": 12345.678, "e": 1.5e300,'
    ' "f": 12345678901234567890, "g": true, "h": {}, "i": 0.1, "j": 12345678.9, "k": 1e7,'
    ' "l": -1.25e-9, "m": 123456789012345680000, "n": "\\\\u0001\\\\b/ü😀", "o": 1e15, "p": -0.0}'
)
_DECIMALS: Final = (
    "'$.q', CAST(1.10 AS DECIMAL(10, 2)), '$.r', CAST('0.12345678901234567890' AS DECIMAL(30, 20))"
)
_BIG: Final = "12345678901234567890123456789012345.123456789012345678901234567891"
_HIGHEST_BIT: Final = f"b'1{'0' * 62}1'"

COLUMNS: Final = (
    Typed("c_bool", "tinyint(1)", ("1", "0")),
    Typed("c_tinyint1", "tinyint(1)", ("5", "-128")),
    Typed("c_tinyint", "tinyint", ("-128", "127")),
    Typed("c_utinyint", "tinyint unsigned", ("255", "0")),
    Typed("c_smallint", "smallint", ("-32768", "32767")),
    Typed("c_usmallint", "smallint unsigned", ("65535",)),
    Typed("c_mediumint", "mediumint", ("-8388608", "8388607")),
    Typed("c_umediumint", "mediumint unsigned", ("16777215",)),
    Typed("c_int", "int", ("-2147483648", "2147483647")),
    Typed("c_uint", "int unsigned", ("4294967295",)),
    Typed("c_zint", "int(5) unsigned zerofill", ("42",)),
    Typed("c_bigint", "bigint", ("-9223372036854775808", "9223372036854775807")),
    Typed(
        "c_ubigint", "bigint unsigned", ("18446744073709551615", "9223372036854775808", "0", "7")
    ),
    # Of six digits at most: the connector's own snapshot has no more of a float.
    Typed("c_float", "float", ("1.5", "0.1", "-3.4e38", "123456")),
    Typed("c_float72", "float(7,2)", ("12345.67", "-0.01")),
    Typed("c_double", "double", ("-1e-300", "0.1", "1.7976931348623157e308", "-0.0")),
    Typed("c_real", "real", ("0.1",)),
    Typed("c_dec", "decimal(10,2)", ("-12345678.90", "99999999.99", "0")),
    Typed("c_dec_big", "decimal(65,30)", (_BIG, "-1.5", "0")),
    Typed("c_udec", "decimal(20,0) unsigned", ("18446744073709551616",)),
    Typed("c_num", "decimal(5,0)", ("-99999", "1")),
    Typed("c_bit1", "bit(1)", ("b'1'", "b'0'")),
    Typed("c_bit8", "bit(8)", ("b'10000001'", "b'0'")),
    Typed("c_bit12", "bit(12)", ("b'100000000001'", "b'1'")),
    Typed("c_bit64", "bit(64)", (_HIGHEST_BIT, "b'10'")),
    Typed("c_char", "char(10)", ("'ab  '", "''", "'Größe'")),
    Typed("c_varchar", "varchar(50)", ("'vär€😀 '", "''", "'quo\"te \\\\ back'", "'tab\\tnew\\n'")),
    Typed("c_latin1", "varchar(50) CHARACTER SET latin1", ("'grün'", "'ÿ€'")),
    Typed("c_utf8mb3", "varchar(50) CHARACTER SET utf8mb3", ("'ü€'", "'日本語'")),
    Typed("c_bincoll", "varchar(50) COLLATE utf8mb4_bin", ("'Bin'", "'bin '")),
    Typed("c_nchar", "char(5) CHARACTER SET utf8mb3", ("'n'",)),
    Typed("c_tinytext", "tinytext", ("'tiny'",)),
    Typed("c_text", "text", ("'__debezium_unavailable_value'", "REPEAT('ö', 9000)")),
    Typed("c_mediumtext", "mediumtext", ("''", "REPEAT('🚲', 20000)")),
    Typed("c_longtext", "longtext", ("'long'", "' '")),
    Typed("c_text_latin1", "text CHARACTER SET latin1", ("'é'",)),
    Typed("c_binary", "binary(8)", ("x'0102'", "x'0102030405060708'", "x''")),
    Typed("c_varbinary", "varbinary(20)", ("x'00ff00'", "x''", "x'3e3e3f3f'")),
    Typed("c_tinyblob", "tinyblob", ("x'deadbeef'",)),
    Typed("c_blob", "blob", ("x'00'", "REPEAT(x'00ff', 9000)")),
    Typed("c_mediumblob", "mediumblob", ("x''",)),
    Typed("c_longblob", "longblob", ("x'02ff'",)),
    Typed("c_enum", "enum('a','b','c''d')", ("'c''d'", "'a'", "''")),
    Typed("c_set", "set('x','y','z')", ("'z,x'", "''", "'y'")),
    Typed("c_json", "json", (f"JSON_SET('{_DOCUMENT}', {_DECIMALS})", "'[]'", "'\"ü\"'")),
    Typed("c_date", "date", ("'9999-12-31'", "0", "'1000-01-01'", "'1970-01-01'", "'2024-02-29'")),
    Typed("c_time", "time", ("'-838:59:59'", "'00:00:00'", "'23:59:59'")),
    Typed("c_time3", "time(3)", ("'-00:00:00.001'", "'838:59:58.999'")),
    Typed("c_time6", "time(6)", ("'838:59:58.999999'", "'-12:34:56.7'")),
    Typed("c_dt", "datetime", ("'1000-01-01 00:00:00'", "0", "'9999-12-31 23:59:59'")),
    Typed("c_dt3", "datetime(3)", ("'2026-11-26 12:34:56.789'", "0", "'1969-12-31 23:59:59.999'")),
    Typed("c_dt6", "datetime(6)", ("'9999-12-31 23:59:59.999999'", "0", "'1582-10-15 00:00:00.1'")),
    Typed("c_ts", "timestamp NULL", ("'1970-01-02 00:00:01'", "0", "'2038-01-19 03:14:07'")),
    Typed("c_ts3", "timestamp(3) NULL", ("'2026-11-26 12:34:56.780'", "0")),
    Typed("c_ts6", "timestamp(6) NULL", ("'2026-11-26 12:34:56.789000'", "0")),
    Typed("c_year", "year", ("2155", "1901", "1970")),
    Typed("c_geometry", "geometry", ("ST_GeomFromText('POINT(1 2)')",)),
    Typed(
        "c_point", "point", ("ST_GeomFromText('POINT(1 2)', 4326)", "ST_GeomFromText('POINT(0 0)')")
    ),
    Typed("c_line", "linestring", ("ST_GeomFromText('LINESTRING(0 0, 1 1)')",)),
    Typed("c_polygon", "polygon", ("ST_GeomFromText('POLYGON((0 0, 1 0, 1 1, 0 0))')",)),
    Typed("c_mpoint", "multipoint", ("ST_GeomFromText('MULTIPOINT(0 0, 1 1)')",)),
    Typed(
        "c_gcoll", "geometrycollection", ("ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1))')",)
    ),
    Typed("c_vector", "vector(3)", ("STRING_TO_VECTOR('[1, 2.5, -3]')",), only="mysql"),
    Typed(
        "c_uuid",
        "uuid",
        ("'123e4567-e89b-42d3-a456-426614174000'", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
        only="mariadb",
    ),
)  # fmt: skip
"""The columns, in the table's order, after `id int PRIMARY KEY`."""


def columns(connector: str) -> list[Typed]:
    """Return the columns that a product has, by the name of its connector."""
    return [column for column in COLUMNS if column.only in ("", connector)]


def create(connection: Any, connector: str) -> None:
    """Create the table and its rows.

    Args:
        connection: one that commits each statement.
        connector: names the product.
    """
    described = ", ".join(f"{c.name} {c.type}" for c in columns(connector))
    connection.execute(f"CREATE TABLE {TABLE} (id int PRIMARY KEY, {described})")
    insert(connection, connector)


def insert(connection: Any, connector: str, *, first: int = 1) -> int:
    """Insert rows until every value of every column was had, NULL too, and return how many.

    Args:
        connection: one that commits each statement.
        connector: names the product.
        first: id of the first row.
    """
    connection.execute("SET SESSION sql_mode = ''")
    had = [(*column.values, "NULL") for column in columns(connector)]
    count = max(map(len, had))
    for row in range(count):
        found = ", ".join(of_column[row % len(of_column)] for of_column in had)
        connection.execute(f"INSERT INTO {TABLE} VALUES ({first + row}, {found})")
    connection.execute("SET SESSION sql_mode = DEFAULT")
    return count
