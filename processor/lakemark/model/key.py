"""Keys: canonical ones, and which columns make one.

Canonical keys are equal bytes for equal keys, whichever way the row came.

A canonical key is a JSON array of scalars in key order, such as ``[42]`` or ``["a",7]``:

- integers and booleans as JSON has them; timestamps as integer microseconds, dates as integer days,
  their infinities ``"infinity"`` and ``"-infinity"``
- floats by their shortest text for their width, -0.0 as 0.0, ``"NaN"`` and ``"Infinity"`` quoted
- decimals as strings without exponent or trailing zeros, so that no JSON reader rounds them
- strings as JSON strings with the fewest escapes; char(n) without its padding
- binary as base64, arrays and structs as nested arrays, null as null

Rows of chunks and of the lake have typed columns (`canonical_from_columns`); the keys of records
are read by their converter, and end here, too.

Not every column keeps the keys of a database apart (`type_fault`). Two rows whose keys differ in
the database must be two rows in the lake. Where the connector writes a type so that different
values may look alike, its table is refused by name, before any row of it is lost. Types are judged
as the connector writes them; where that leaves open which one it is, by the database's own name of
the type, which the catalog or the propagated type tell.

A text that the database calls equal to another one (citext, a collation that is not deterministic,
1.0 and 1.00) may have a key of its own: a row has one spelling at a time, and each change of it is
an event.

A Delta table has infinity as its last moment (of a date 9999-12-31), and -infinity as its first.
A finite key may be that very moment. So a table has either the one or the other in a column; which
one, its first such row decides, and is remembered with the table (`key_ends`). Where both come, the
table stops before one of them becomes the other's row.
"""

import base64
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.errors import TableError
from lakemark.model.civil import bounds, ends
from lakemark.model.columns import Column
from lakemark.model.handling_modes import HandlingModes

# PostgreSQL's numeric has at most 131,072 digits before the point and 16,383 after it. A scale
# beyond both is no database value, and writing it out would need memory of that many bytes.
MAX_DIGITS: Final = 131_072 + 16_383
WHOLE: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
"""Types of whole numbers, with their bits."""
INFINITIES: Final = ("-infinity", "infinity")
_WORDS: Final = tuple(b'"%b"' % word.encode() for word in INFINITIES)
_INFINITE: Final = re.compile(rb'[\[,]"-?infinity"[\],]')
_NEEDS_ESCAPE: Final = r'["\\\x00-\x1f]'
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode: Final = msgspec.json.encode


def canonical_from_columns(
    columns: Sequence[pa.Array], types: Sequence[Column | pa.DataType]
) -> pa.Array:
    """Canonical keys of typed Arrow columns, as binary; row by row, never null.

    Args:
        columns: the key columns in key order, canonical types, of equal length.
        types: per column its `Column`, or its Arrow type where the column is no char(n).
    """
    parts: list[Any] = []
    for column, kind in zip(columns, types, strict=True):
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(kind, Column) and kind.padded and whole.type == pa.string():
            whole = pc.utf8_rtrim(whole, " ")
        if parts:
            parts.append(",")
        parts.append(_texts(whole))
    if not parts:
        return pa.array([], pa.binary())
    joined = pc.binary_join_element_wise("[", *parts, "]", "")
    return joined.cast(pa.binary())


def elements(key: bytes) -> list[bytes]:
    """Return the JSON texts of a canonical key's values, in key order."""
    return list(map(bytes, _elements(key)))


def stored(key: bytes, kinds: Sequence[pa.DataType]) -> bytes:
    """Return the canonical key of the lake's row: it has an infinity as its first or last moment.

    Args:
        key: canonical.
        kinds: types of the key columns, in key order.
    """
    if not _INFINITE.search(key):
        return key
    parts = elements(key)
    for at, (part, kind) in enumerate(zip(parts, kinds, strict=True)):
        if is_moment(kind) and part in _WORDS:
            parts[at] = b"%d" % bounds(kind)[_WORDS.index(part)]
    return b"[" + b",".join(parts) + b"]"


def _texts(values: pa.Array) -> pa.Array:
    """The JSON text of each value; "null" for null."""
    return pc.fill_null(_written(values), "null")


def _written(values: pa.Array) -> pa.Array:
    kind = values.type
    if is_moment(kind):
        return _moments(values)
    if values.type in WHOLE or pa.types.is_boolean(kind):
        return values.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _quoted(values.cast(pa.string()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _nested_list(values)
    if pa.types.is_struct(kind):
        return _nested_struct(values)
    write = _writer(kind)
    return pa.array([None if v is None else write(v) for v in values.to_pylist()], pa.string())


def is_moment(kind: pa.DataType) -> bool:
    """Return whether values of a type can be infinite: dates and timestamps."""
    return bool(pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def _moments(values: pa.Array) -> pa.Array:
    """Dates and timestamps as numbers, infinities in words."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.timestamp("us", kind.tz))
    numbers = values.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    texts = numbers.cast(pa.string())
    for end, word in zip(ends(kind), INFINITIES, strict=True):
        found = pc.equal(numbers, pa.scalar(end, numbers.type))
        if pc.any(found).as_py():
            texts = pc.if_else(found, f'"{word}"', texts)
    return texts


def _writer(kind: pa.DataType) -> Callable[[Any], str]:
    if kind == pa.float32():
        return _float32
    if kind == pa.float64():
        return _float64
    if pa.types.is_decimal(kind):
        return lambda v: f'"{plain_decimal(v)}"'
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda v: f'"{base64.b64encode(v).decode()}"'
    return lambda v: _encode(v).decode()


def _quoted(values: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(values, _NEEDS_ESCAPE)).as_py():
        texts = [None if v is None else _encode(v).decode() for v in values.to_pylist()]
        return pa.array(texts, pa.string())
    return pc.binary_join_element_wise('"', values, '"', "")


def _float64(value: float) -> str:
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    return repr(value + 0.0)  # -0.0 + 0.0 is 0.0


def _float32(value: float) -> str:
    return _float64(value) if not math.isfinite(value) else str(np.float32(value) + np.float32(0))


def _nested_list(values: pa.Array) -> pa.Array:
    inner = _texts(values.flatten()).to_pylist()
    out: list[str | None] = []
    start = 0
    for size in pc.list_value_length(values).to_pylist():
        if size is None:
            out.append(None)
            continue
        out.append("[" + ",".join(inner[start : start + size]) + "]")
        start += size
    return pa.array(out, pa.string())


def _nested_struct(values: pa.Array) -> pa.Array:
    members = [_texts(member).to_pylist() for member in values.flatten()]
    valid = values.is_valid().to_pylist()
    rows = zip(*members, strict=True) if members else iter([()] * len(values))
    texts = ["[" + ",".join(row) + "]" if ok else None for row, ok in zip(rows, valid, strict=True)]
    return pa.array(texts, pa.string())


def plain_decimal(value: Decimal) -> str:
    """A finite Decimal without exponent and without trailing zeros, exact.

    Raises:
        OverflowError: more digits than any database has.
        ValueError: NaN or infinity.
    """
    if not value.is_finite():
        raise ValueError("decimal")
    if value and not -MAX_DIGITS <= value.adjusted() <= MAX_DIGITS:
        raise OverflowError("decimal")
    if not value:
        return "0"
    if not -MAX_DIGITS <= int(value.as_tuple().exponent) <= MAX_DIGITS:
        raise OverflowError("decimal")
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


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
    """A reason why rows of a table cannot be told apart by its key.

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


def _truth(column: Column, _: HandlingModes) -> KeyFault | None:
    if not pa.types.is_boolean(column.type):
        return None
    return _fault(
        column,
        "is a tinyint(1) that a converter of the connector makes true or false: 1 and 2 would be"
        " one row",
        "leave the column out of the converter's selector; or " + OTHER_KEY,
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
    "decimal": _numeric,
    "tinyint": _truth,
    "tinyint unsigned": _truth,
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


# -- what the ends of a key column's range stand for ----------------------------------------------

_SIDES: Final = ("first", "last")
_AS_INFINITE: Final = "infinite"
_AS_FINITE: Final = "finite"
_SHOWN: Final = {
    ("first", True): "0001-01-01",
    ("last", True): "9999-12-31",
    ("first", False): "0001-01-01 00:00:00",
    ("last", False): "9999-12-31 23:59:59.999999",
}


def key_ends(named: Iterable[pa.ChunkedArray], columns: Mapping[str, pa.DataType]) -> list[str]:
    """Return what the ends of the range of a table's key columns stand for, as some keys have it.

    Args:
        named: canonical keys.
        columns: types of the key columns, in key order.

    Returns:
        in order, words such as ``last infinite valid_to``, for `check_ends`.
    """
    moments = {n: at for at, (n, kind) in enumerate(columns.items()) if is_moment(kind)}
    if not moments:
        return []
    found: set[str] = set()
    for chunk in named:
        for side, meaning, text, kind in _end_texts({columns[name] for name in moments}):
            wanted = {n: at for n, at in moments.items() if columns[n] == kind}
            hits = chunk.filter(pc.match_substring(chunk, text))
            found |= {f"{side} {meaning} {name}" for name in _having(hits, text, wanted)}
    return sorted(found)


def _end_texts(kinds: Iterable[pa.DataType]) -> Iterator[tuple[str, str, bytes, pa.DataType]]:
    """Return side, meaning and how a canonical key has it, for each type."""
    for kind in kinds:
        for side, word, end in zip(_SIDES, INFINITIES, bounds(kind), strict=True):
            yield side, _AS_INFINITE, f'"{word}"'.encode(), kind
            yield side, _AS_FINITE, str(end).encode(), kind


def _having(named: pa.ChunkedArray, text: bytes, places: Mapping[str, int]) -> set[str]:
    """Return the columns that have this very text in any of the keys."""
    found: set[str] = set()
    for batch in named.chunks:
        for key in batch:
            values = elements(key.as_py())
            found |= {name for name, at in places.items() if values[at] == text}
            if len(found) == len(places):
                return found
    return found


def check_ends(
    table: str, path: str, ends: Iterable[str], columns: Mapping[str, pa.DataType]
) -> None:
    """Require that no end of a column's range stands for two keys.

    Args:
        table: id of the table.
        path: its folder.
        ends: all that `key_ends` has ever found in it.
        columns: types of the key columns.

    Raises:
        TableError: ``key-ambiguous``.
    """
    told = set(ends)
    for name, kind in columns.items():
        for side, word in zip(_SIDES, INFINITIES, strict=True):
            if {f"{side} {meaning} {name}" for meaning in (_AS_INFINITE, _AS_FINITE)} <= told:
                shown = _SHOWN[side, pa.types.is_date32(kind)]
                raise TableError(
                    f"the key's column {name!r} has {word} and also {shown}, which a Delta table "
                    "cannot tell apart",
                    code="key-ambiguous",
                    hint=f"let {table} have only one of the two; then move the folder {path} away, "
                    f"so that the table begins anew, and `lakemark table skip {table}`",
                )
