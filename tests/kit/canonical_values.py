"""Hypothesis strategies of canonical values: what a column can hold after decoding."""

from decimal import Decimal

import msgspec
import pyarrow as pa
from hypothesis import strategies as st

from lakemark.converters.json.numerals import EXACT, plain
from lakemark.model import civil
from lakemark.model.columns import DECIMAL, JSON, UUID, VARIABLE_DECIMAL

TIME = "io.debezium.time."
MILLIS = {TIME + "Time", TIME + "Timestamp"} | {
    f"org.apache.kafka.connect.data.{kind}" for kind in ("Time", "Timestamp")
}
NANOS = 1000  # in a microsecond
DAY = civil.DAY
TEXTS = st.text(max_size=12) | st.sampled_from(['"', "\\", "a\x00b", "😀", "\u2028", "é\x7f/"])


def columns(rows, column):
    """Arrow arrays of so many values of a column, nulls among them."""
    values = st.lists(st.none() | value(column), min_size=rows, max_size=rows)
    return values.map(lambda found: pa.array(found, column.type, from_pandas=False))


def value(column):
    """Values of a column as Arrow takes them."""
    if column.wire == "json":
        texts = st.dictionaries(TEXTS, st.integers(), max_size=2)
        return texts.map(lambda data: msgspec.json.encode(data).decode())
    if column.encoding.rpartition(".")[2] in _BY_NAME:
        return _BY_NAME[column.encoding.rpartition(".")[2]]
    if pa.types.is_timestamp(column.type):
        return moments(column)
    if column.encoding == DECIMAL:
        return decimals(column)
    if column.is_numeric_text:
        return st.sampled_from(["NaN", "Infinity", "-Infinity"]) | _PLAIN
    return nested(column)


def nested(column):
    kind = column.type
    if pa.types.is_list(kind):
        return st.lists(st.none() | value(column.element), max_size=3)
    if pa.types.is_map(kind):
        keys = TEXTS if kind.key_type == pa.string() else st.integers(-(1 << 15), (1 << 15) - 1)
        pairs = st.dictionaries(keys, st.none() | value(column.element), max_size=3)
        return pairs.map(lambda found: list(found.items()))
    if pa.types.is_struct(kind):
        members = {m.name: st.none() | value(m) for m in column.members}
        return st.fixed_dictionaries(members)
    return _BY_TYPE[kind]


def moments(column):
    first, last, step = civil.FIRST_MICRO, civil.LAST_MICRO, 1
    if column.encoding in MILLIS:
        step = NANOS
    if column.encoding == TIME + "NanoTimestamp":
        first, last = -(1 << 63) // NANOS + 1, ((1 << 63) - 1) // NANOS
    return st.integers(-(-first // step), last // step).map(lambda n: n * step)


def decimals(column):
    scale = int(column.parameter("scale") or 0)
    if pa.types.is_decimal128(column.type):
        limit = 10**column.type.precision - 1
        unscaled = st.integers(-limit, limit) | st.integers(-300, 300)
        return unscaled.map(lambda n: Decimal(n).scaleb(-scale, EXACT))
    return st.integers().map(lambda n: plain(n, scale))


CLOCKS = st.integers(0, DAY - 1).map(civil.clock_text)
LONG_CLOCKS = st.integers(-(900 * DAY), 900 * DAY)


def zoned_clock(parts):
    micros, seconds = parts
    whole, _, fraction = civil.clock_text(micros).partition(".")
    short = fraction.rstrip("0")
    return (f"{whole}.{short}" if short else whole) + civil.zone_text(seconds)


def duration(parts):
    *whole, nanos = parts
    years, months, days, hours, minutes = whole
    sign, (seconds, rest) = "-" if nanos < 0 else "", divmod(abs(nanos), 10**9)
    text = f"{sign}{seconds}.{rest:09d}".rstrip("0").rstrip(".")
    return f"P{years}Y{months}M{days}DT{hours}H{minutes}M{text}S"


_SMALL = st.integers(-(1 << 31), (1 << 31) - 1)
_PLAIN = st.tuples(st.integers(), st.integers(0, 40)).map(lambda p: plain(*p))
_BY_NAME = {
    UUID.rpartition(".")[2]: st.uuids().map(str),
    JSON.rpartition(".")[2]: TEXTS,
    VARIABLE_DECIMAL.rpartition(".")[2]: _PLAIN,
    "Time": LONG_CLOCKS.map(lambda n: civil.clock_text(n - n % NANOS)),
    "MicroTime": LONG_CLOCKS.map(civil.clock_text),
    "NanoTime": LONG_CLOCKS.map(civil.clock_text),
    "IsoTime": CLOCKS,
    "StructuredTime": CLOCKS,
    "StructuredZonedTime": st.tuples(
        st.integers(0, DAY - 1), st.integers(-64_800, 64_800).map(lambda n: n - n % 60)
    ).map(zoned_clock),
    "StructuredDuration": st.tuples(
        *[_SMALL] * 5, st.integers(-(10**15), 10**15).map(lambda n: n * NANOS)
    ).map(duration),
}
_BY_TYPE = {
    pa.int8(): st.integers(-(1 << 7), (1 << 7) - 1),
    pa.int16(): st.integers(-(1 << 15), (1 << 15) - 1),
    pa.int32(): _SMALL,
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): TEXTS,
    pa.binary(): st.binary(max_size=20),
    pa.date32(): st.integers(civil.FIRST_DAY, civil.LAST_DAY),
}
