"""Rows of MySQL's and MariaDB's tables in the canonical form in which the lake is compared.

Values are read as the server writes them, without any conversion by its client. Bits, bytes,
vectors and geometries are read as hexadecimal digits of what is stored, which is what the log has.
"""

import json
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from pymysql.converters import conversions

from lakemark.model.handling_modes import HandlingModes
from stack.expected import (
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

_AS_TEXT: Final = {kind: how for kind, how in conversions.items() if isinstance(kind, type)}
"""How parameters are written; what is read is left as it is."""

_COLUMNS: Final = """
SELECT column_name, data_type, column_type, numeric_precision
FROM information_schema.columns
WHERE table_schema = %s AND table_name = %s
ORDER BY ordinal_position
"""
_KEY: Final = """
SELECT column_name
FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND index_name = 'PRIMARY'
ORDER BY seq_in_index
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the catalog has it.

    Attributes:
        name: as in the catalog.
        type: its type's name alone, such as `bigint`.
        whole_type: the type with all that belongs to it, such as `bigint(20) unsigned`.
        precision: digits of a number; None of what is none.
    """

    name: str
    type: str
    whole_type: str
    precision: int | None

    @property
    def length(self) -> int:
        """The number in brackets, 1 without any."""
        _, bracket, inside = self.whole_type.partition("(")
        return int(inside.partition(")")[0].partition(",")[0]) if bracket else 1


@contextmanager
def source(connect: Callable[..., Any], modes: HandlingModes) -> Iterator["MySqlSource"]:
    """Open a database to compare a lake with it.

    Args:
        connect: makes a connection to the database.
        modes: how the connector is set.
    """
    with connect(conv=_AS_TEXT) as connection:
        connection.execute("SET SESSION time_zone = '+00:00'")
        connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        yield MySqlSource(connection, modes)


class MySqlSource(Source):
    """A database of MySQL or MariaDB.

    Args:
        connection: one in a transaction with a snapshot, which leaves values as texts.
        modes: how the connector is set.
    """

    def __init__(self, connection: Any, modes: HandlingModes) -> None:
        self._connection = connection
        self._modes = modes

    def read(self, table: str, left_out: Collection[str]) -> ExpectedTable:
        """Return a table, given as `database.table`."""
        place = table.split(".", 1)
        columns = [
            Column(name, kind, whole, precision and int(precision))
            for name, kind, whole, precision in self._rows(_COLUMNS, place)
        ]
        readings = {c.name: reading(c, self._modes) for c in columns if c.name not in left_out}
        selected = ", ".join(how.select.format(quoted(name)) for name, how in readings.items())
        query = f"SELECT {selected} FROM {'.'.join(map(quoted, place))}"
        parsers = [how.parse for how in readings.values()]
        rows = [
            tuple(
                None if text is None else parse(text)
                for text, parse in zip(row, parsers, strict=True)
            )
            for row in self._rows(query)
        ]
        return ExpectedTable(readings, tuple(name for (name,) in self._rows(_KEY, place)), rows)

    def _rows(self, query: str, parameters: list[str] | None = None) -> list[Row]:
        return list(self._connection.execute(query, parameters).fetchall())


def quoted(name: str) -> str:
    """Return a name as statements have it."""
    return f"`{name.replace('`', '``')}`"


def reading(column: Column, modes: HandlingModes) -> Reading:  # noqa: PLR0911
    """Return how a column is read, depending on how the connector is set."""
    kind = column.type
    if kind == "datetime" and modes.time_precision == "connect":
        return Reading(_MICROS, lambda text: int(text) // 1000 * 1000)
    if kind in _FIXED:
        return _FIXED[kind]
    if kind == "bigint":
        return Reading(parse=Decimal if "unsigned" in column.whole_type else int)
    if kind == "float":
        exact = column.whole_type.startswith("float(")  # it is sent as a double then
        return Reading("{} + 0e0", double if exact else real)
    if kind == "decimal":
        return Reading(parse=_decimal(column, modes))
    if kind == "bit":
        return Reading("HEX({})", _bits(column.length))
    if kind in _BINARY:
        form = binary(modes)
        return Reading("HEX({})", lambda text: form(bytes.fromhex(text)))
    if kind == "time":
        return Reading(parse=_clock)
    return Reading()


def _decimal(column: Column, modes: HandlingModes) -> Parser:
    if modes.decimal == "string":
        return str
    if modes.decimal == "double":
        return double
    return Decimal if (column.precision or 0) <= MAX_PRECISION else plain


def _bits(length: int) -> Parser:
    if length == 1:
        return lambda text: int(text, 16) == 1
    return lambda text: int(text, 16).to_bytes((length + 7) // 8, "little")


def _clock(text: str) -> str:
    """Return a time with six digits of its second's fraction."""
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction.ljust(6, '0')}"


def _shape(text: str) -> tuple[int, bytes]:
    """Return the reference system and the well-known binary of a geometry as it is stored."""
    stored = bytes.fromhex(text)
    return int.from_bytes(stored[:4], "little"), stored[4:]


def _lake_shape(value: Mapping[str, Any]) -> tuple[int, bytes]:
    return value["srid"] or 0, value["wkb"]


def _vector(text: str) -> list[float]:
    stored = bytes.fromhex(text)
    return list(struct.unpack(f"<{len(stored) // 4}f", stored))


_MICROS: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {})"
_INT: Final = Reading(parse=int)
_SHAPE: Final = Reading("HEX({})", _shape, _lake_shape)
_BINARY: Final = frozenset(
    {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"},
)
_FIXED: Final[Mapping[str, Reading]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "year"), _INT),
    **dict.fromkeys(("geometry", "point", "linestring", "polygon"), _SHAPE),
    **dict.fromkeys(("multipoint", "multilinestring", "multipolygon"), _SHAPE),
    **dict.fromkeys(("geometrycollection", "geomcollection"), _SHAPE),
    "double": Reading(parse=double),
    "date": Reading("DATEDIFF({}, '1970-01-01')", int),  # NULL of a zero date, as of a moment
    "datetime": Reading(_MICROS, int),
    "timestamp": Reading(_MICROS, int),
    "json": Reading(parse=json.loads, lake=json.loads),  # MySQL's; MariaDB's is a text
    "vector": Reading("HEX({})", _vector),
}
