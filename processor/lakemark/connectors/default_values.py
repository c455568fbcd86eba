"""Columns' defaults as values of a Connect schema, in the form of Connect's JSON; pure.

What both kinds of database share: from a default's text to the number or the text that stands in
the schema. `ValueError` for a text that is none of the type's: such a default is not told.
"""

import base64
import datetime as dt
import re
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Context, InvalidOperation
from math import isfinite
from typing import Any, Final

_CLOCK: Final = re.compile(r"(-?)(\d+):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?")
_MOST_DIGITS: Final = 1000  # of a numeric with a scale
_EXACT: Final = Context(prec=2 * _MOST_DIGITS)
_EPOCH: Final = dt.date(1970, 1, 1).toordinal()
_DAY: Final = 86_400_000_000  # microseconds
_DATES: Final = frozenset({"io.debezium.time.Date", "org.apache.kafka.connect.data.Date"})
_PER_MICRO: Final[Mapping[str, Callable[[int], int]]] = {
    "io.debezium.time.Time": lambda micros: micros // 1000,
    "io.debezium.time.MicroTime": lambda micros: micros,
    "io.debezium.time.NanoTime": lambda micros: micros * 1000,
    "org.apache.kafka.connect.data.Time": lambda micros: micros // 1000,
    "io.debezium.time.Timestamp": lambda micros: micros // 1000,
    "io.debezium.time.MicroTimestamp": lambda micros: micros,
    "io.debezium.time.NanoTimestamp": lambda micros: micros * 1000,
    "org.apache.kafka.connect.data.Timestamp": lambda micros: micros // 1000,
}
_BITS: Final = {"int16": 16, "int32": 32, "int64": 64}


def whole(text: str, field: Mapping[str, Any]) -> int:
    """Return a whole number of a field's size."""
    value, size = int(text), _BITS[field["type"]]
    if not -(1 << size - 1) <= value < 1 << size - 1:
        raise ValueError("size")
    return value


def fraction(text: str) -> float:
    """Return a number; Avro has no default that is none."""
    value = float(text)
    if not isfinite(value):
        raise ValueError("number")
    return value


def decimal(text: str, field: Mapping[str, Any]) -> str | float:
    """Return a decimal in base64, or as the double that a field has."""
    if field["type"] == "double":
        return fraction(text)
    if field["type"] != "bytes":
        raise ValueError("form")
    try:
        scale = int(field["parameters"]["scale"])
        shifted = _EXACT.create_decimal(text).scaleb(scale, _EXACT)
        unscaled = int(shifted.to_integral_value(ROUND_HALF_UP))
    except (InvalidOperation, OverflowError):
        raise ValueError("decimal") from None
    magnitude = ~unscaled if unscaled < 0 else unscaled
    raw = unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)
    return base64.b64encode(raw).decode()


def bits(text: str, field: Mapping[str, Any], *, width: int = 0) -> bool | str:
    """Return a bit string: true or false, or its bytes, the lowest first.

    Args:
        text: of zeros and ones.
        field: of the column.
        width: bytes at least.
    """
    value = int(text, 2)
    if field["type"] == "boolean":
        return bool(value)
    size = max(width, (value.bit_length() + 7) // 8)
    return base64.b64encode(value.to_bytes(size, "little")).decode()


def date(text: str, field: Mapping[str, Any]) -> int:
    """Return a date ``2024-02-29``, in days."""
    if field.get("name") not in _DATES:
        raise ValueError("form")
    return _days(text)


def time(text: str, field: Mapping[str, Any]) -> int:
    """Return a time of day ``12:34:56.7``, or a span of time, in the field's unit."""
    return _PER_MICRO[str(field.get("name"))](micros_of_clock(text))


def timestamp(text: str, field: Mapping[str, Any]) -> int:
    """Return a moment ``2024-02-29 12:34:56.7``, or a date alone, in the field's unit."""
    return _PER_MICRO[str(field.get("name"))](micros(text))


def micros(text: str) -> int:
    """Return microseconds from 1970 to a moment, or to a date."""
    day, _, clock = text.partition(" ")
    return _days(day) * _DAY + (micros_of_clock(clock) if clock else 0)


def micros_of_clock(text: str) -> int:
    """Return the microseconds of a time."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError("time")
    sign, hours, minutes, seconds, rest = match.groups()
    found = (int(hours) * 60 + int(minutes)) * 60 + int(seconds or 0)
    found = found * 1_000_000 + int((rest or "").ljust(6, "0"))
    return -found if sign else found


def utc_text(moment: int, digits: int) -> str:
    """Return a moment in UTC as Debezium's zoned timestamps are written.

    Args:
        moment: microseconds since 1970.
        digits: of the fraction.
    """
    found = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=moment)  # noqa: DTZ001 - UTC
    rest = f".{found.microsecond:06}"[: digits + 1] if digits else ""
    return f"{found:%Y-%m-%dT%H:%M:%S}{rest}Z"


def _days(text: str) -> int:
    if len(text) != len("2024-02-29"):
        raise ValueError("date")
    return dt.date.fromisoformat(text).toordinal() - _EPOCH
