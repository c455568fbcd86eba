"""Which columns keep the keys of a database apart, and why others do not.

Two rows whose keys differ in the database must be two rows in the lake. Where the connector writes
a type so that different values may look alike, its table is refused by name, before any row of it
is lost. Types are judged as the connector writes them; where that leaves open which one it is, by
the database's own name of the type, which the catalog or the propagated type tell.

A text that the database calls equal to another one (citext, a collation that is not deterministic,
1.0 and 1.00) may have a key of its own: a row has one spelling at a time, and each change of it is
an event.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from lakemark.model.columns import Column
from lakemark.model.handling_modes import HandlingModes

_BITS: Final = "io.debezium.data.Bits"
_TIME: Final = "io.debezium.time."
_CONNECT: Final = "org.apache.kafka.connect.data."
_WITHOUT_24: Final = frozenset(
    _TIME + name for name in ("IsoTime", "StructuredTime", "StructuredZonedTime")
)
_DOUBLE_DIGITS: Final = 15  # decimals of so many that differ are different doubles
_MILLIS: Final = 3  # digits of a second's fraction that the forms of Connect hold

OTHER_KEY: Final = (
    "give the table a primary key of other types, or name other columns in message.key.columns"
)
OUT_OF_RANGE: Final = "key-out-of-range"

KEY_NEEDED: Final = "give it a primary key, or name columns in message.key.columns of the connector"
_SAY_TYPE: Final = (
    "set database, or column.propagate.source.type in the connector, so that the type is known"
)


@dataclass(frozen=True, slots=True)
class KeyFault:
    """Why rows of a table cannot be told apart by its key.

    Attributes:
        code: ``no-key`` where there is none in its rows, ``key-type`` where a type is in the way.
        reason: what is wrong, with the column's name.
        hint: what to do about it.
    """

    code: str
    reason: str
    hint: str


def type_fault(column: Column, modes: HandlingModes) -> KeyFault | None:
    """Return why a key column cannot keep keys apart, or None if it can.

    Args:
        column: of a key.
        modes: the connector's settings.
    """
    if pa.types.is_nested(column.type):
        return _fault(column, "is a list or a structure: rows are not found by it")
    base = column.source_type.partition("(")[0]
    judge = _BY_SOURCE.get(base) or _BY_ENCODING.get(column.encoding)
    if judge is None and column.type == pa.float64() and not column.source_type:
        judge = _double
    return judge(column, modes) if judge else None


def value_fault(column: Column) -> KeyFault:
    """Return what is wrong where a key column has a value that its type in the lake cannot hold."""
    if pa.types.is_date32(column.type) or pa.types.is_timestamp(column.type):
        what = "before 0001-01-01 or after 9999-12-31 that is not infinite"
    else:
        what = f"that {column.type} cannot hold"
    return KeyFault(
        OUT_OF_RANGE,
        f"the key's column {column.name!r} has a value {what}: it could not be told apart",
        "change the value in the database, to infinity where that is meant, and snapshot the table",
    )


def _fault(column: Column, reason: str, hint: str = OTHER_KEY) -> KeyFault:
    return KeyFault("key-type", f"the key's column {column.name!r} {reason}", hint)


def _bits(column: Column, _: HandlingModes) -> KeyFault | None:
    if column.source_type == "bit":
        return None
    if column.source_type:
        return _fault(
            column,
            "is a bit string of any length, and the connector leaves out how long each is:"
            " 1 and 01 would be one row",
        )
    return _fault(
        column,
        "is a bit string, and nothing says whether all are equally long: 1 and 01 would be one row",
        _SAY_TYPE,
    )


def _timetz(column: Column, modes: HandlingModes) -> KeyFault | None:
    if column.encoding == _TIME + "StructuredZonedTime":
        return _clock(column, modes)
    return _fault(
        column,
        "is a time with time zone, which the connector writes in UTC: 12:00+02 and 10:00+00, which"
        " differ in the database, would be one row",
    )


def _clock(column: Column, modes: HandlingModes) -> KeyFault | None:
    if column.encoding == _CONNECT + "Time":
        return _millis(column, modes)
    if column.encoding in _WITHOUT_24:
        return _fault(
            column,
            "is a time, of which the connector loses 24:00 in the time.precision.modes isostring"
            " and structured: it and 00:00 would be one row",
            "set another time.precision.mode in the connector; or " + OTHER_KEY,
        )
    return None


def _millis(column: Column, _: HandlingModes) -> KeyFault | None:
    if column.modifier is not None and column.modifier <= _MILLIS:
        return None
    return _fault(
        column,
        "has fractions of a second that time.precision.mode connect cuts to milliseconds: different"
        " keys would be one row",
        "set another time.precision.mode in the connector; or declare the column with at most"
        " three digits, and set database where it is not set",
    )


def _interval(column: Column, _: HandlingModes) -> KeyFault | None:
    if column.encoding != _TIME + "MicroDuration":
        return None
    return _fault(
        column,
        "is an interval, of which the connector counts a month as 30.4375 days: different keys"
        " would be one row",
        "set interval.handling.mode=string in the connector; or " + OTHER_KEY,
    )


def _numeric(column: Column, _: HandlingModes) -> KeyFault | None:
    digits = column.source_type.partition("(")[2].rstrip(")")
    exact = column.type != pa.float64() or (digits.isdecimal() and int(digits) <= _DOUBLE_DIGITS)
    return None if exact else _rounded(column)


def _double(column: Column, modes: HandlingModes) -> KeyFault | None:
    """A double of which nobody knows the type: a numeric where these come as doubles."""
    return _rounded(column) if modes.decimal == "double" else None


def _rounded(column: Column) -> KeyFault:
    return _fault(
        column,
        "is a numeric that may have more than 15 digits, and decimal.handling.mode double keeps no"
        " more: different keys would be one row",
        "set decimal.handling.mode to precise or string in the connector; or " + OTHER_KEY,
    )


def _money(column: Column, _: HandlingModes) -> KeyFault | None:
    return _fault(
        column,
        "is money, of which the connector keeps money.fraction.digits digits and the database as"
        " many as lc_monetary says: different keys might be one row",
    )


def _zoned_range(column: Column, _: HandlingModes) -> KeyFault | None:
    return _fault(
        column,
        "is a range of times with time zone, which is written in the time zone of each session:"
        " one key would be several",
    )


def _name(column: Column, _: HandlingModes) -> KeyFault | None:
    return _fault(column, "is of type name, whose values the connector does not stream")


_Judge = Callable[[Column, HandlingModes], KeyFault | None]
_BY_SOURCE: Final[Mapping[str, _Judge]] = {
    "bit": _bits,
    "varbit": _bits,
    "timetz": _timetz,
    "time": _clock,
    "interval": _interval,
    "numeric": _numeric,
    "money": _money,
    "tstzrange": _zoned_range,
    "name": _name,
}
# Where the database's type is not known; some of these forms are of one type alone.
_BY_ENCODING: Final[Mapping[str, _Judge]] = {
    _BITS: _bits,
    _TIME + "ZonedTime": _timetz,
    _TIME + "StructuredZonedTime": _timetz,
    _TIME + "IsoTime": _clock,
    _TIME + "StructuredTime": _clock,
    _CONNECT + "Time": _clock,
    _CONNECT + "Timestamp": _millis,
    _TIME + "MicroDuration": _interval,
}
