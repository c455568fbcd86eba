"""Calendar arithmetic beyond Python's datetime, texts of times, and which moments Delta can hold.

The calendar is the proleptic Gregorian one, years before 1 included (year 0 is 1 BC), as
PostgreSQL and Debezium use it.
"""

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

DAY: Final = 86_400_000_000  # microseconds
# Delta holds 0001-01-01 to 9999-12-31; what lies outside is clamped.
FIRST_DAY: Final = -719_162
LAST_DAY: Final = 2_932_896
FIRST_MICRO: Final = FIRST_DAY * DAY
LAST_MICRO: Final = (LAST_DAY + 1) * DAY - 1

_ISO: Final = re.compile(
    r"([+-]?\d{4,9})-(\d\d)-(\d\d)"
    r"(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?"
    r"(Z|[+-]\d\d(?::?\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)
_CLOCK: Final = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?Z?", re.ASCII)
_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_FEBRUARY: Final = 2


def days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01.

    Raises:
        ValueError: there is no such day.
    """
    if not 1 <= month <= len(_MONTH_DAYS):
        raise ValueError("month")
    leap = month == _FEBRUARY and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= day <= _MONTH_DAYS[month - 1] + leap:
        raise ValueError("day")
    shifted = year - (month <= _FEBRUARY)
    era, year_of_era = divmod(shifted, 400)
    day_of_year = (153 * (month + (-3 if month > _FEBRUARY else 9)) + 2) // 5 + day - 1
    return (
        era * 146_097
        + year_of_era * 365
        + year_of_era // 4
        - year_of_era // 100
        + day_of_year
        - 719_468
    )


def iso_micros(text: str) -> int:
    """Microseconds since 1970-01-01 UTC of an ISO 8601 date or timestamp; no zone means UTC.

    Raises:
        ValueError: this is neither a date nor a timestamp.
    """
    match = _ISO.fullmatch(text)
    if match is None:
        raise ValueError("timestamp")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    clock = clock_micros(int(hour or 0), int(minute or 0), int(second or 0), fraction or "")
    return days(int(year), int(month), int(day)) * DAY + clock - _offset(zone)


def clock_micros(hour: int, minute: int, second: int, fraction: str) -> int:
    """Microseconds since midnight; 24:00:00 and a leap second are allowed.

    Raises:
        ValueError: this is no time of a day.
    """
    micros = ((hour * 60 + minute) * 60 + second) * 1_000_000 + int(fraction.ljust(6, "0")[:6])
    if minute > 59 or second > 60 or not 0 <= micros <= DAY:  # noqa: PLR2004
        raise ValueError("time")
    return micros


def _offset(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "").ljust(6, "0")
    seconds = int(digits[:2]) * 3600 + int(digits[2:4]) * 60 + int(digits[4:6])
    return (-seconds if zone[0] == "-" else seconds) * 1_000_000


def iso_clock(text: str) -> int:
    """Microseconds since midnight of ``HH:MM[:SS[.f]]``, with or without ``Z``.

    Raises:
        ValueError: this is no time of a day.
    """
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError("time")
    hour, minute, second, fraction = match.groups()
    return clock_micros(int(hour), int(minute), int(second or 0), fraction or "")


def clock_text(micros: int) -> str:
    """``HH:MM:SS.ffffff``; MySQL's negative times and those beyond a day keep their value."""
    sign, rest = ("-", -micros) if micros < 0 else ("", micros)
    seconds, fraction = divmod(rest, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{sign}{hour:02d}:{minute:02d}:{second:02d}.{fraction:06d}"


def zone_text(seconds: int) -> str:
    """``Z`` or ``+HH:MM[:SS]``."""
    if seconds == 0:
        return "Z"
    minutes, second = divmod(abs(seconds), 60)
    text = f"{'-' if seconds < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{text}:{second:02d}" if second else text


def ends(kind: pa.DataType) -> tuple[int, int]:
    """Return what stands for -infinity and infinity in an array of dates or timestamps.

    Args:
        kind: date32, or a timestamp in microseconds.
    """
    bits = 31 if pa.types.is_date32(kind) else 63
    return 1 - (1 << bits), (1 << bits) - 1  # the least number of all is NaT in NumPy


def bounds(kind: pa.DataType) -> tuple[int, int]:
    """Return the first and the last date or timestamp that Delta can hold, as a number.

    Args:
        kind: date32, or a timestamp in microseconds.
    """
    if pa.types.is_date32(kind):
        return FIRST_DAY, LAST_DAY
    return FIRST_MICRO, LAST_MICRO


@dataclass(slots=True)
class Tally:
    """A count of how values that Delta cannot hold are read.

    Attributes:
        clamped: how many were clamped to what it can hold.
        exact: infinities are `ends`, and other such values raise OverflowError instead.
    """

    clamped: int = 0
    exact: bool = False


def edges(kind: pa.DataType, tally: Tally) -> tuple[int, int]:
    """Return what -infinity and infinity are read as: `ends` or `bounds`."""
    return ends(kind) if tally.exact else bounds(kind)
