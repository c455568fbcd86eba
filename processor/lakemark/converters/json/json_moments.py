"""Dates, times and timestamps in all forms that Debezium writes, from their canonical values.

The inverse of `json.moments`. Where the connector itself loses a value it is lost here
in the same way: 24:00:00 is 00:00:00 in isostring mode and null in structured mode, a timestamp
that nanoseconds in an int64 cannot hold is null.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.converters.json.json_texts import Texts, Writer, joined
from lakemark.model import civil
from lakemark.model.columns import TIMESTAMP, Column

_DEBEZIUM: Final = "io.debezium.time."
_CONNECT: Final = "org.apache.kafka.connect.data."
_NANOS: Final = 1000  # in a microsecond
# Microseconds whose nanoseconds an int64 holds: 1677-09-21 to 2262-04-11.
_LOWEST: Final = -(1 << 63)  # stand for the infinities
_HIGHEST: Final = (1 << 63) - 1
_FIRST_IN_NANOS: Final = _LOWEST // _NANOS + 1
_LAST_IN_NANOS: Final = _HIGHEST // _NANOS
_FRACTION: Final = len("YYYY-MM-DDTHH:MM:SS.")
_CLOCK: Final = re.compile(
    r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?"
    r"(?:Z|([+-])(\d\d):(\d\d)(?::(\d\d))?)?"
)
_DURATION: Final = re.compile(
    r"P(-?\d+)Y(-?\d+)M(-?\d+)DT(-?\d+)H(-?\d+)M(-?)(\d+)(?:\.(\d{1,9}))?S"
)
ENDS_OF_TIME: Final = "the first and the last day or moment that Delta holds also stand for the \
infinities and for what is beyond them"
BEYOND_NANOS: Final = "; beyond the years 1677 to 2262 the connector writes null in this mode"


def moment_writer(column: Column, digits: int) -> Writer | None:
    """The writer of a temporal column, or None if it is not temporal.

    Args:
        column: the column.
        digits: how many digits of a second's fraction the source's type has.
    """
    make = _WRITERS.get((column.wire, column.encoding))
    return make(digits) if make else None


def _integers(array: pa.Array) -> pa.Array:
    return array.cast(pa.string())


def _at_the_ends(array: pa.Array) -> np.ndarray:
    """Rows with the first or the last day or moment that Delta can hold."""
    if array.type == pa.date32():
        numbers, first, last = array.cast(pa.int32()), civil.FIRST_DAY, civil.LAST_DAY
    else:
        numbers, first, last = array.cast(pa.int64()), civil.FIRST_MICRO, civil.LAST_MICRO
    return _rows(pc.or_(pc.equal(numbers, first), pc.equal(numbers, last)))


def _rows(mask: pa.Array) -> np.ndarray:
    return np.flatnonzero(mask.fill_null(fill_value=False).to_numpy(zero_copy_only=False))


def _clamped(texts: Texts, *, by_digits: bool = False) -> Writer:
    return Writer(texts, _at_the_ends, ENDS_OF_TIME, by_digits)


def _epoch_days(array: pa.Array) -> pa.Array:
    return _integers(array.cast(pa.int32()))


def _iso_date(array: pa.Array) -> pa.Array:
    return joined('"', _integers(array), 'Z"')


def _epoch_millis(array: pa.Array) -> pa.Array:
    micros = array.cast(pa.int64())
    quotient = pc.divide(micros, 1000)  # towards zero
    too_high = pc.greater(pc.multiply(quotient, 1000), micros)
    return _integers(pc.subtract(quotient, too_high.cast(pa.int64())))


def _epoch_micros(array: pa.Array) -> pa.Array:
    return _integers(array.cast(pa.int64()))


def _beyond_nanos(micros: pa.Array) -> pa.Array:
    return pc.or_(pc.less(micros, _FIRST_IN_NANOS), pc.greater(micros, _LAST_IN_NANOS))


def _epoch_nanos(array: pa.Array) -> pa.Array:
    micros = array.cast(pa.int64())
    inside = pc.if_else(_beyond_nanos(micros), pa.scalar(None, pa.int64()), micros)
    nanos = pc.multiply(inside, _NANOS)
    nanos = pc.if_else(pc.equal(micros, civil.FIRST_MICRO), _LOWEST, nanos)
    return _integers(pc.if_else(pc.equal(micros, civil.LAST_MICRO), _HIGHEST, nanos))


def _nanos_inexact(array: pa.Array) -> np.ndarray:
    return _rows(_beyond_nanos(array.cast(pa.int64())))


def _iso(array: pa.Array) -> pa.Array:
    """``YYYY-MM-DDTHH:MM:SS.ffffff``."""
    return pc.utf8_replace_slice(array.cast(TIMESTAMP).cast(pa.string()), 10, 11, "T")


def _iso_short(array: pa.Array) -> pa.Array:
    """Java's ISO_OFFSET_DATE_TIME: no more digits than are needed."""
    short = pc.utf8_rtrim(pc.utf8_rtrim(_iso(array), "0"), ".")
    return joined('"', short, 'Z"')


def _iso_zoned(digits: int) -> Texts:
    if digits == 0:
        return _iso_short

    def texts(array: pa.Array) -> pa.Array:
        full = _iso(array)
        return joined('"', pc.utf8_slice_codeunits(full, 0, _FRACTION + digits), 'Z"')

    return texts


def _each(text: Callable[[Any], str | None]) -> Texts:
    def texts(array: pa.Array) -> pa.Array:
        values = [None if v is None else text(v) for v in array.to_pylist()]
        return pa.array(values, pa.string())

    return texts


def _parsed(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"this is none of the texts of the canonical form {pattern.pattern}")
    return match.groups("")


def _micros(text: str) -> int:
    sign, hour, minute, second, fraction, *_ = _parsed(_CLOCK, text)
    micros = ((int(hour) * 60 + int(minute)) * 60 + int(second)) * 1_000_000
    micros += int(fraction.ljust(6, "0") or 0)
    return -micros if sign else micros


def _clock(times: int, over: int) -> Writer:
    """Times of a day counted in units of ``over / times`` microseconds."""
    return Writer(_each(lambda text: str(_micros(text) * times // over)))


def _iso_time(text: str) -> str:
    whole = civil.clock_text(_micros(text) % civil.DAY)
    return f'"{whole.rstrip("0").rstrip(".")}Z"'


def _time_members(text: str) -> str | None:
    micros = _micros(text)
    if micros >= civil.DAY:
        return None
    seconds, fraction = divmod(micros, 1_000_000)
    hour, minute = seconds // 3600, seconds // 60 % 60
    return f'"hour":{hour},"minute":{minute},"second":{seconds % 60},"nanos":{fraction * _NANOS}'


def _structured_date(_digits: int) -> Writer:
    def text(value: Any) -> str:
        return (
            f'{{"year":{value.year},"month":{value.month},"day":{value.day},"specialValue":null}}'
        )

    return _clamped(_each(text))


def _structured_time(digits: int) -> Writer:
    def text(value: str) -> str | None:
        members = _time_members(value)
        return None if members is None else f'{{{members},"precision":{digits}}}'

    return Writer(_each(text), by_digits=True)


def _structured_zoned_time(digits: int) -> Writer:
    def text(value: str) -> str | None:
        members = _time_members(value)
        *_, sign, hours, minutes, seconds = _parsed(_CLOCK, value)
        offset = (int(hours or 0) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
        offset = -offset if sign == "-" else offset
        if members is None:
            return None
        return f'{{{members},"offsetSeconds":{offset},"precision":{digits}}}'

    return Writer(_each(text), by_digits=True)


def _structured_timestamp(extra: str) -> Callable[[int], Writer]:
    def make(digits: int) -> Writer:
        def text(value: Any) -> str:
            return (
                f'{{"year":{value.year},"month":{value.month},"day":{value.day},'
                f'"hour":{value.hour},"minute":{value.minute},"second":{value.second},'
                f'"nanos":{value.microsecond * _NANOS},{extra}"specialValue":null,'
                f'"precision":{digits}}}'
            )

        return _clamped(_each(text), by_digits=True)

    return make


def _structured_duration(digits: int) -> Writer:
    def text(value: str) -> str:
        years, months, days, hours, minutes, sign, whole, fraction = _parsed(_DURATION, value)
        seconds, nanos = int(whole), int(fraction.ljust(9, "0") or 0)
        if sign:
            seconds, nanos = -seconds, -nanos
        return (
            f'{{"years":{int(years)},"months":{int(months)},"days":{int(days)},'
            f'"hours":{int(hours)},"minutes":{int(minutes)},"seconds":{seconds},'
            f'"nanos":{nanos},"precision":{digits}}}'
        )

    return Writer(_each(text), by_digits=True)


_NANO_TIMESTAMP: Final = Writer(_epoch_nanos, _nanos_inexact, ENDS_OF_TIME + BEYOND_NANOS)
_WRITERS: Final[Mapping[tuple[str, str], Callable[[int], Writer]]] = {
    ("int32", _DEBEZIUM + "Date"): lambda _: _clamped(_epoch_days),
    ("int32", _CONNECT + "Date"): lambda _: _clamped(_epoch_days),
    ("string", _DEBEZIUM + "IsoDate"): lambda _: _clamped(_iso_date),
    ("struct", _DEBEZIUM + "StructuredDate"): _structured_date,
    ("int32", _DEBEZIUM + "Time"): lambda _: _clock(1, 1000),
    ("int32", _CONNECT + "Time"): lambda _: _clock(1, 1000),
    ("int64", _DEBEZIUM + "MicroTime"): lambda _: _clock(1, 1),
    ("int64", _DEBEZIUM + "NanoTime"): lambda _: _clock(1000, 1),
    ("string", _DEBEZIUM + "IsoTime"): lambda _: Writer(_each(_iso_time)),
    ("struct", _DEBEZIUM + "StructuredTime"): _structured_time,
    ("struct", _DEBEZIUM + "StructuredZonedTime"): _structured_zoned_time,
    ("struct", _DEBEZIUM + "StructuredDuration"): _structured_duration,
    ("int64", _DEBEZIUM + "Timestamp"): lambda _: _clamped(_epoch_millis),
    ("int64", _CONNECT + "Timestamp"): lambda _: _clamped(_epoch_millis),
    ("int64", _DEBEZIUM + "MicroTimestamp"): lambda _: _clamped(_epoch_micros),
    ("int64", _DEBEZIUM + "NanoTimestamp"): lambda _: _NANO_TIMESTAMP,
    ("string", _DEBEZIUM + "IsoTimestamp"): lambda _: _clamped(_iso_short),
    ("string", _DEBEZIUM + "ZonedTimestamp"): (
        lambda digits: _clamped(_iso_zoned(digits), by_digits=True)
    ),
    ("struct", _DEBEZIUM + "StructuredTimestamp"): _structured_timestamp(""),
    ("struct", _DEBEZIUM + "StructuredZonedTimestamp"): _structured_timestamp(
        '"offsetSeconds":0,"zoneId":"Z",'
    ),
}
