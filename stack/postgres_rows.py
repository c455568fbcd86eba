"""Rows of PostgreSQL's tables in the canonical form in which the lake is compared."""

import json
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import psycopg
from psycopg import sql

from lakemark.model.handling_modes import HandlingModes
from stack.expected import (
    FIRST_MICRO,
    LAST_MICRO,
    MAX_PRECISION,
    ExpectedTable,
    Parser,
    Reading,
    Row,
    Source,
    binary,
    double,
    plain,
    real,
)

_DAY: Final = 86_400_000_000
_FIRST_DAY, _LAST_DAY = FIRST_MICRO // _DAY, LAST_MICRO // _DAY
_DAYS_PER_MONTH: Final = 365.25 / 12
_PINNED: Final = (
    "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=iso_8601"
    " -c bytea_output=hex -c extra_float_digits=1"
)


@contextmanager
def source(dsn: str, modes: HandlingModes) -> Iterator["PostgresSource"]:
    """Open a database to compare a lake with it.

    Args:
        dsn: the database's address.
        modes: how the connector is set.
    """
    with psycopg.connect(dsn, options=_PINNED) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        yield PostgresSource(connection, modes)


class PostgresSource(Source):
    """A database of PostgreSQL.

    Args:
        connection: one whose transaction has one snapshot, with the settings of `source`.
        modes: how the connector is set.
    """

    def __init__(self, connection: psycopg.Connection[Any], modes: HandlingModes) -> None:
        self._connection = connection
        self._modes = modes
        self._types = types_of(connection)

    def read(self, table: str, left_out: Collection[str]) -> ExpectedTable:
        """Return a table, given as `schema.table`."""
        name = sql.Identifier(*table.split(".", 1)).as_string()
        columns = columns_of(self._connection, name, self._types)
        readings = {c.name: reading(c, self._modes) for c in columns if c.name not in left_out}
        rows = _rows(self._connection, name, readings)
        return ExpectedTable(readings, key_of(self._connection, name), rows)


def _rows(
    connection: psycopg.Connection[Any], name: str, readings: Mapping[str, Reading]
) -> list[Row]:
    selected = ", ".join(
        how.select.replace("{}", "{0}").replace("{0}", sql.Identifier(column).as_string())
        for column, how in readings.items()
    )
    parsers = [how.parse for how in readings.values()]
    query = f"COPY (SELECT {selected} FROM {name}) TO STDOUT"
    with connection.cursor() as cursor, cursor.copy(query.encode()) as copy:
        return [
            tuple(
                None if text is None else parse(text)
                for text, parse in zip(row, parsers, strict=True)
            )
            for row in copy.rows()
        ]


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the catalog has it, domains resolved to their base type.

    Attributes:
        name: as in the catalog.
        type: typname of the base type; of an array, that of its element.
        typmod: length, precision or scale, coded as PostgreSQL does; -1 for none.
        is_array: whether it is an array of `type`.
    """

    name: str
    type: str
    typmod: int
    is_array: bool = False

    @property
    def precision(self) -> int:
        """Digits of a numeric, -1 if it has no limit."""
        return -1 if self.typmod < 0 else ((self.typmod - 4) >> 16) & 0xFFFF


_CATALOG: Final = """
SELECT a.attname, a.atttypid::bigint, a.atttypmod
FROM pg_attribute a
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
_TYPES: Final = (
    "SELECT oid::bigint, typname, typtype::text, typbasetype::bigint, typtypmod, typelem::bigint,"
    " typcategory::text FROM pg_type"
)
_KEY: Final = """
SELECT a.attname
FROM pg_index i
CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s::regclass AND i.indisprimary
ORDER BY k.place
"""


Types = dict[int, tuple[Any, ...]]
"""What `pg_type` says, by oid."""


def types_of(connection: psycopg.Connection[Any]) -> Types:
    """Return all types of the database: for whoever asks for the columns of many tables."""
    return {row[0]: row[1:] for row in connection.execute(_TYPES).fetchall()}


def columns_of(
    connection: psycopg.Connection[Any], table: str, types: Types | None = None
) -> list[Column]:
    """Return the columns of a table, given as quoted SQL name."""
    types = types or types_of(connection)
    found = []
    for name, oid, typmod in connection.execute(_CATALOG, [table]).fetchall():
        typname, kind, base, own_typmod, element, category = types[oid]
        modifier = typmod
        while kind == "d":
            modifier = modifier if modifier >= 0 else own_typmod
            typname, kind, base, own_typmod, element, category = types[base]
        is_array = category == "A" and element != 0
        if is_array:
            typname, kind = types[element][:2]
        type_ = "enum" if kind == "e" else typname
        found.append(Column(name, type_, modifier, is_array=is_array))
    return found


def key_of(connection: psycopg.Connection[Any], table: str) -> tuple[str, ...]:
    """Return the columns of the primary key of a table, given as quoted SQL name."""
    return tuple(name for (name,) in connection.execute(_KEY, [table]).fetchall())


def reading(column: Column, modes: HandlingModes) -> Reading:
    """Return how a column is read, depending on how the connector is set."""
    one = _scalar(column, modes)
    return _array(one) if column.is_array else one


def _array(one: Reading) -> Reading:
    """Return the reading of an array whose elements are read like `one`."""
    inner = one.select.format("e")
    if inner == "e":
        inner = "CASE WHEN e IS NOT NULL THEN format('%s', e) END"
    select = (
        f"CASE WHEN {{0}} IS NOT NULL THEN coalesce((SELECT json_agg(({inner})::text ORDER BY n)"
        " FROM unnest({0}) WITH ORDINALITY AS u(e, n)), '[]')::text END"
    )

    def parse(text: str) -> list[Any]:
        return [None if item is None else one.parse(item) for item in json.loads(text)]

    lake = one.lake
    if lake is None:
        return Reading(select, parse)
    return Reading(select, parse, lambda v: [None if item is None else lake(item) for item in v])


def _scalar(column: Column, modes: HandlingModes) -> Reading:  # noqa: PLR0911
    kind = column.type
    structured = modes.time_precision == "structured"
    if kind == "timetz" and structured:
        return Reading("{}", _kept_zone)
    if kind in _FIXED:
        return _FIXED[kind]
    if kind == "numeric":
        return Reading("{}", _numeric(column, modes))
    if kind == "money":
        digits = modes.money_fraction_digits
        parse = _numeric(Column(column.name, "numeric", ((38 << 16) | digits) + 4), modes)
        return Reading("{}::numeric", parse)
    if kind in ("bit", "varbit"):
        return Reading("{}", _bits(column))
    if kind == "bytea":
        return Reading("{}", _bytes(modes))
    if kind == "interval":
        numeric = modes.interval == "numeric" and not structured
        return Reading("{}", _interval if numeric else _iso_interval)
    if kind == "hstore":
        lake = json.loads if modes.hstore == "json" else dict
        return Reading("hstore_to_json({})", json.loads, lake)
    if kind in ("time", "timestamp"):
        return _zoneless(kind, millis=modes.time_precision == "connect")
    return Reading()


def _epoch(cast: str = "") -> str:
    return (
        f"CASE WHEN isfinite({{0}}{cast}) THEN"
        f" (extract(epoch FROM {{0}}{cast}) * 1000000)::numeric(40, 0)::text"
        f" ELSE {{0}}::text END"
    )


def _clamped(text: str, first: int, last: int) -> int:
    value = {"infinity": last, "-infinity": first}.get(text)
    return min(max(int(text), first), last) if value is None else value


def _micros(text: str) -> int:
    return _clamped(text, FIRST_MICRO, LAST_MICRO)


def _millis(text: str) -> int:
    """Microseconds of a timestamp written in milliseconds; cut first, then clamped."""
    cut = text if text.endswith("infinity") else str(int(text) // 1000 * 1000)
    return _micros(cut)


def _days(text: str) -> int:
    return _clamped(text, _FIRST_DAY, _LAST_DAY)


def _zoneless(kind: str, *, millis: bool) -> Reading:
    if kind == "timestamp":
        return Reading(_epoch(), _millis if millis else _micros)
    if millis:
        # Of a day's end java.time knows only the next day's beginning.
        return Reading(_CLOCK, lambda t: t[:-3] + "000")
    return Reading(_CLOCK)


_CLOCK: Final = "to_char({}, 'HH24:MI:SS.US')"


def _zoned_time(text: str) -> str:
    return text.rstrip("0").rstrip(".") + "Z"


def _kept_zone(text: str) -> str:
    """Return a timetz as a structured one is written: its own zone with minutes, or Z."""
    clock, sign, zone = re.split(r"([+-])", text)
    if zone == "00":
        return clock + "Z"
    return f"{clock}{sign}{zone if ':' in zone else zone + ':00'}"


def _numeric(column: Column, modes: HandlingModes) -> Parser:
    if modes.decimal == "string":
        return lambda text: text
    if modes.decimal == "double":
        return double
    return Decimal if 0 < column.precision <= MAX_PRECISION else plain


def _bits(column: Column) -> Parser:
    if column.typmod == 1:
        return lambda text: text == "1"

    def parse(text: str) -> bytes:
        """Return the bits as Debezium does: the lowest byte first, up to the highest bit set."""
        value = int(text or "0", 2)
        return value.to_bytes((value.bit_length() + 7) // 8, "little")

    return parse


def _bytes(modes: HandlingModes) -> Parser:
    form = binary(modes)
    return lambda text: form(bytes.fromhex(text.removeprefix("\\x")))


_ISO: Final = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?"
    r"(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?[\d.]+)S)?)?"
)


def _interval_parts(text: str) -> tuple[int, int, int, int, int, Decimal]:
    match = _ISO.fullmatch(text)
    if match is None:
        raise ValueError("an interval that is not in the style iso_8601")
    whole = [int(part or 0) for part in match.groups()[:5]]
    return (*whole, Decimal(match[6] or 0))  # type: ignore[return-value]


def _interval(text: str) -> int:
    years, months, days, hours, minutes, seconds = _interval_parts(text)
    whole_days = (years * 12 + months) * _DAYS_PER_MONTH + days
    return int((((whole_days * 24 + hours) * 60 + minutes) * 60 + float(seconds)) * 1e6)


def _iso_interval(text: str) -> str:
    years, months, days, hours, minutes, seconds = _interval_parts(text)
    shortest = plain(format(seconds, "f"))
    return f"P{years}Y{months}M{days}DT{hours}H{minutes}M{shortest}S"


_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


def _point(text: str) -> tuple[float, float, bytes]:
    x, y = map(float, _NUMBER.findall(text))
    return x, y, struct.pack("<BIdd", 1, 1, x, y)


def _lake_point(value: dict[str, Any]) -> tuple[float, float, bytes]:
    return value["x"], value["y"], value["wkb"]


def _numbers(text: str) -> list[float]:
    return sorted(set(map(float, _NUMBER.findall(text))))


def _wkb_numbers(value: dict[str, Any]) -> list[float]:
    """Return the coordinates of a geometry: from behind, eight bytes each, up to the counts."""
    wkb: bytes = value["wkb"]
    found = [struct.unpack_from("<d", wkb, at)[0] for at in range(len(wkb) - 8, 8, -8)]
    return sorted(set(found))


def _shape(value: dict[str, Any]) -> list[float]:
    numbers = [v for v in _leaves(value) if isinstance(v, float)]
    return sorted(set(numbers)) if numbers else _wkb_numbers(value)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in _leaves(inner)]
    return [value]


_INT: Final = Reading("{}", int)
_SHAPE: Final = Reading("{}", _numbers, _shape)
_FIXED: Final[dict[str, Reading]] = {
    "bool": Reading("{}", lambda text: text.startswith("t")),
    "int2": _INT,
    "int4": _INT,
    "int8": _INT,
    "oid": _INT,
    "float4": Reading("{}", real),
    "float8": Reading("{}", double),
    "date": Reading(
        "CASE WHEN isfinite({0}) THEN ({0} - date '1970-01-01')::text ELSE {0}::text END", _days
    ),
    "timestamptz": Reading(_epoch(), _micros),
    "timetz": Reading("to_char(({} AT TIME ZONE 'UTC')::time, 'HH24:MI:SS.US')", _zoned_time),
    "point": Reading("{}", _point, _lake_point),
    "box": _SHAPE,
    "lseg": _SHAPE,
    "path": _SHAPE,
    "polygon": _SHAPE,
    "circle": _SHAPE,
    "line": _SHAPE,
}
