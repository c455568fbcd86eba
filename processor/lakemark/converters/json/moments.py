"""Readers of dates, times and timestamps in all forms that Debezium writes.

Timestamps become microseconds, dates days, times the text ``HH:MM:SS.ffffff``. What
Delta cannot hold (before year 1, after 9999, the infinities) is clamped to its first or last value
and counted. Fractions finer than a microsecond are cut off.

Keys are read exactly (`Tally.exact`): an infinity is one of `ends`, which no moment is, and what
else Delta cannot hold is out of range.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model import civil
from lakemark.model.civil import Tally, edges
from lakemark.model.columns import TIMESTAMP, TIMESTAMP_UTC, Column

_INT64: Final = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_DEBEZIUM: Final = "io.debezium.time."
_CONNECT: Final = "org.apache.kafka.connect.data."
_SPECIAL: Final = {
    "infinity": True,
    "-infinity": False,
    "POSITIVE_INFINITY": True,
    "NEGATIVE_INFINITY": False,
}
# Days that the connector's snapshot writes for PostgreSQL's infinite dates: the JDBC driver's
# sentinels after an overflow of int32. In the log they are far outside Delta's range anyway.
_INFINITE_DAYS: Final = {-622_191_234: True, -625_821_272: False}
# The same sentinel of -infinity in isostring mode; no PostgreSQL date is after year 5,874,897.
_MINUS_INFINITE_DATE: Final = "+292269055-12-02Z"
# PostgreSQL's last date, and the first day of its calendar. What lies beyond stands for infinity.
_LAST_DATE: Final = 2_145_042_905
_FIRST_DATE: Final = -2_440_588
_END_OF_TIME: Final = 9_224_318_016_000_000_000  # microseconds, the first after its last timestamp
# In milliseconds infinity is the driver's sentinel, in finer units an end of int64. Other numbers
# that large are years from 294247 on, which overflow.
_INFINITE_NUMBERS: Final = frozenset(
    {-(1 << 63), (1 << 63) - 1, -9_223_372_036_832_400_000, 9_223_372_036_825_200_000}
)


@dataclass(frozen=True, slots=True)
class TemporalReader:
    """The members of a codec for one temporal form, see `json.values.Codec`."""

    wire: Any
    vector: Callable[[Sequence[Any], Tally], pa.Array]
    scalar: Callable[[Any, Tally], Any]


def reader(column: Column) -> TemporalReader | None:
    """The reader of a temporal column, or None if it is not temporal."""
    make = _READERS.get((column.wire, column.encoding))
    return make(column.type) if make else None


def _micros(value: int, tally: Tally) -> int:
    if civil.FIRST_MICRO <= value <= civil.LAST_MICRO:
        return value
    if tally.exact:
        raise OverflowError("timestamp")
    return _infinite_moment(tally, late=value > 0)


def _day(value: int, tally: Tally) -> int:
    if civil.FIRST_DAY <= value <= civil.LAST_DAY:
        return value
    if tally.exact and _FIRST_DATE <= value <= _LAST_DATE:
        raise OverflowError("date")
    return _infinite_day(tally, late=_INFINITE_DAYS.get(value, value > 0))


def _infinite_moment(tally: Tally, *, late: bool) -> int:
    return _infinite(TIMESTAMP, tally, late=late)


def _infinite_day(tally: Tally, *, late: bool) -> int:
    return _infinite(pa.date32(), tally, late=late)


def _infinite(kind: pa.DataType, tally: Tally, *, late: bool) -> int:
    tally.clamped += not tally.exact
    return edges(kind, tally)[late]


def _inside(numbers: pa.Array, first: int, last: int) -> bool:
    """Say whether all values are in [first, last]."""
    bounds = pc.min_max(numbers)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    return low is None or (first <= low and high <= last)


def _clamped(
    numbers: pa.Array, early: pa.Array, late: pa.Array, ends: tuple[int, int], tally: Tally
) -> pa.Array:
    """`numbers` with the first end where `early` and the last where `late`, counted.

    Raises:
        OverflowError: values are to be exact, so each must be looked at.
    """
    if tally.exact:
        raise OverflowError("moment")
    tally.clamped += (pc.sum(early).as_py() or 0) + (pc.sum(late).as_py() or 0)
    return pc.if_else(early, ends[0], pc.if_else(late, ends[1], numbers))


def _scaled(numbers: pa.Array, times: int, over: int) -> pa.Array:
    if times != 1:
        return pc.multiply(numbers, times)
    return numbers if over == 1 else _floor(numbers, over)


def _each(kind: pa.DataType, scalar: Callable[[Any, Tally], Any]) -> TemporalReader:
    def vector(values: Sequence[Any], tally: Tally) -> pa.Array:
        return pa.array([None if v is None else scalar(v, tally) for v in values], kind)

    return TemporalReader(None, vector, scalar)


def _epoch_days(kind: pa.DataType) -> TemporalReader:
    def vector(values: Sequence[Any], tally: Tally) -> pa.Array:
        numbers = pa.array(values, pa.int64())
        if _inside(numbers, civil.FIRST_DAY, civil.LAST_DAY):
            return numbers.cast(pa.int32()).cast(kind)
        late = pc.greater(numbers, civil.LAST_DAY)
        for sentinel in (day for day, is_late in _INFINITE_DAYS.items() if is_late):
            late = pc.or_(late, pc.equal(numbers, sentinel))
        early = pc.and_not(pc.less(numbers, civil.FIRST_DAY), late)
        numbers = _clamped(numbers, early, late, (civil.FIRST_DAY, civil.LAST_DAY), tally)
        return numbers.cast(pa.int32()).cast(kind)

    return TemporalReader(_INT64, vector, _day)


def _epoch(times: int, over: int) -> Callable[[pa.DataType], TemporalReader]:
    """Timestamps counted in units of ``times / over`` microseconds."""
    first = -(-civil.FIRST_MICRO * over // times)
    last = civil.LAST_MICRO * over // times

    def make(kind: pa.DataType) -> TemporalReader:
        low, high = max(first, -(1 << 63) + 1), min(last, (1 << 63) - 2)

        def vector(values: Sequence[Any], tally: Tally) -> pa.Array:
            given = pa.array(values, pa.int64())
            if _inside(given, low, high):
                return _scaled(given, times, over).cast(kind)
            early, late = pc.less(given, low), pc.greater(given, high)
            safe = pc.if_else(pc.or_(early, late), 0, given)
            ends = (civil.FIRST_MICRO, civil.LAST_MICRO)
            return _clamped(_scaled(safe, times, over), early, late, ends, tally).cast(kind)

        def scalar(value: Any, tally: Tally) -> int:
            # In nanoseconds mode the ends of int64 would be in the years 1677 and 2262.
            if value in _INFINITE_NUMBERS:
                return _infinite_moment(tally, late=value > 0)
            return _micros(value * times // over, tally)

        return TemporalReader(_INT64, vector, scalar)

    return make


def _floor(numbers: pa.Array, divisor: int) -> pa.Array:
    quotient = pc.divide(numbers, divisor)  # towards zero
    too_high = pc.greater(pc.multiply(quotient, divisor), numbers)
    return pc.subtract(quotient, too_high.cast(pa.int64()))


def _iso_timestamp(kind: pa.DataType) -> TemporalReader:
    def vector(values: Sequence[Any], tally: Tally) -> pa.Array:
        texts = pa.array(values, pa.string())
        try:
            numbers = texts.cast(TIMESTAMP_UTC).cast(pa.int64())
        except pa.ArrowInvalid:
            late, early = pc.equal(texts, "infinity"), pc.equal(texts, "-infinity")
            finite = pc.if_else(pc.or_(early, late), pa.scalar(None, pa.string()), texts)
            numbers = finite.cast(TIMESTAMP_UTC).cast(pa.int64())
            if not _inside(numbers, civil.FIRST_MICRO, civil.LAST_MICRO):
                raise
            ends = (civil.FIRST_MICRO, civil.LAST_MICRO)
            return _clamped(numbers, early, late, ends, tally).cast(kind)
        if not _inside(numbers, civil.FIRST_MICRO, civil.LAST_MICRO):
            raise ValueError("outside")
        return numbers.cast(kind)

    def scalar(value: Any, tally: Tally) -> int:
        late = _SPECIAL.get(value)
        if late is not None:
            return _infinite_moment(tally, late=late)
        micros = civil.iso_micros(value)
        if not _FIRST_DATE * civil.DAY <= micros < _END_OF_TIME:
            return _infinite_moment(tally, late=micros > 0)
        return _micros(micros, tally)

    return TemporalReader(str, vector, scalar)


def _iso_date(kind: pa.DataType) -> TemporalReader:
    def scalar(value: Any, tally: Tally) -> int:
        late = False if value == _MINUS_INFINITE_DATE else _SPECIAL.get(value)
        if late is not None:
            return _infinite_day(tally, late=late)
        return _day(civil.iso_micros(value.removesuffix("Z")) // civil.DAY, tally)

    return TemporalReader(str, _each(kind, scalar).vector, scalar)


def _clock(times: int, over: int) -> Callable[[pa.DataType], TemporalReader]:
    """Times counted in units of ``times / over`` microseconds: of a day, or as MySQL's of more."""
    last = (civil.DAY - 1) * over // times

    def make(kind: pa.DataType) -> TemporalReader:
        def vector(values: Sequence[Any], tally: Tally) -> pa.Array:
            numbers = pa.array(values, pa.int64())
            if _inside(numbers, 0, last):
                return of_day(numbers)
            outside = pc.or_(pc.less(numbers, 0), pc.greater(numbers, last))
            outside = outside.fill_null(fill_value=False)
            texts = [scalar(value, tally) for value in numbers.filter(outside).to_pylist()]
            usual = of_day(pc.if_else(outside, 0, numbers))
            return pc.replace_with_mask(usual, outside, pa.array(texts, kind))

        def of_day(numbers: pa.Array) -> pa.Array:
            numbers = pc.divide(pc.multiply(numbers, times), over)
            return numbers.cast(pa.time64("us")).cast(kind)

        def scalar(value: Any, _: Tally) -> str:
            return civil.clock_text(value * times // over)

        return TemporalReader(_INT64, vector, scalar)

    return make


def _iso_time(kind: pa.DataType) -> TemporalReader:
    def scalar(value: Any, _: Tally) -> str:
        return civil.clock_text(civil.iso_clock(value))

    return TemporalReader(str, _each(kind, scalar).vector, scalar)


class _Parts(msgspec.Struct, rename="camel", gc=False):
    """All members of all structured forms; each form has some of them."""

    year: int | None = None
    month: int | None = None
    day: int | None = None
    hour: int | None = None
    minute: int | None = None
    second: int | None = None
    nanos: int | None = None
    offset_seconds: int | None = None
    special_value: str | None = None
    years: int | None = None
    months: int | None = None
    days: int | None = None
    hours: int | None = None
    minutes: int | None = None
    seconds: int | None = None


def _parts_day(value: _Parts) -> int:
    if value.year is None or value.month is None or value.day is None:
        raise ValueError("date")
    return civil.days(value.year, value.month, value.day)


def _parts_clock(value: _Parts) -> int:
    if value.hour is None:
        raise ValueError("time")
    nanos = value.nanos or 0
    if not 0 <= nanos < 1_000_000_000:  # noqa: PLR2004
        raise ValueError("time")
    fraction = f"{nanos // 1000:06d}"
    return civil.clock_micros(value.hour, value.minute or 0, value.second or 0, fraction)


def _structured(scalar: Callable[[Any, Tally], Any]) -> Callable[[pa.DataType], TemporalReader]:
    return lambda kind: TemporalReader(_Parts, _each(kind, scalar).vector, scalar)


def _structured_date(value: Any, tally: Tally) -> int:
    if value.special_value is not None:
        late = _SPECIAL.get(value.special_value)
        if late is None:
            raise ValueError("date")
        return _infinite_day(tally, late=late)
    return _day(_parts_day(value), tally)


def _structured_timestamp(value: Any, tally: Tally) -> int:
    if value.special_value is not None:
        late = _SPECIAL.get(value.special_value)
        if late is None:
            raise ValueError("timestamp")
        return _infinite_moment(tally, late=late)
    micros = _parts_day(value) * civil.DAY + _parts_clock(value)
    return _micros(micros - (value.offset_seconds or 0) * 1_000_000, tally)


def _structured_time(value: Any, _: Tally) -> str:
    return civil.clock_text(_parts_clock(value))


def _structured_zoned_time(value: Any, _: Tally) -> str:
    whole, _dot, fraction = civil.clock_text(_parts_clock(value)).partition(".")
    shortest = fraction.rstrip("0")
    zone = civil.zone_text(value.offset_seconds or 0)
    return f"{whole}.{shortest}{zone}" if shortest else whole + zone


def _structured_duration(value: Any, _: Tally) -> str:
    nanos = (value.seconds or 0) * 1_000_000_000 + (value.nanos or 0)
    sign, nanos = ("-", -nanos) if nanos < 0 else ("", nanos)
    whole, fraction = divmod(nanos, 1_000_000_000)
    seconds = f"{sign}{whole}.{fraction:09d}".rstrip("0").rstrip(".")
    days = f"P{value.years or 0}Y{value.months or 0}M{value.days or 0}D"
    return f"{days}T{value.hours or 0}H{value.minutes or 0}M{seconds}S"


_READERS: Final[Mapping[tuple[str, str], Callable[[pa.DataType], TemporalReader]]] = {
    ("int32", _DEBEZIUM + "Date"): _epoch_days,
    ("int32", _CONNECT + "Date"): _epoch_days,
    ("string", _DEBEZIUM + "IsoDate"): _iso_date,
    ("struct", _DEBEZIUM + "StructuredDate"): _structured(_structured_date),
    ("int32", _DEBEZIUM + "Time"): _clock(1000, 1),
    ("int32", _CONNECT + "Time"): _clock(1000, 1),
    ("int64", _DEBEZIUM + "MicroTime"): _clock(1, 1),
    ("int64", _DEBEZIUM + "NanoTime"): _clock(1, 1000),
    ("string", _DEBEZIUM + "IsoTime"): _iso_time,
    ("struct", _DEBEZIUM + "StructuredTime"): _structured(_structured_time),
    ("struct", _DEBEZIUM + "StructuredZonedTime"): _structured(_structured_zoned_time),
    ("struct", _DEBEZIUM + "StructuredDuration"): _structured(_structured_duration),
    ("int64", _DEBEZIUM + "Timestamp"): _epoch(1000, 1),
    ("int64", _CONNECT + "Timestamp"): _epoch(1000, 1),
    ("int64", _DEBEZIUM + "MicroTimestamp"): _epoch(1, 1),
    ("int64", _DEBEZIUM + "NanoTimestamp"): _epoch(1, 1000),
    ("string", _DEBEZIUM + "IsoTimestamp"): _iso_timestamp,
    ("string", _DEBEZIUM + "ZonedTimestamp"): _iso_timestamp,
    ("struct", _DEBEZIUM + "StructuredTimestamp"): _structured(_structured_timestamp),
    ("struct", _DEBEZIUM + "StructuredZonedTimestamp"): _structured(_structured_timestamp),
}
