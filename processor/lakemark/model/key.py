"""Canonical keys: equal bytes for equal keys, whichever way the row came.

A canonical key is a JSON array of scalars in key order, such as ``[42]`` or ``["a",7]``:

- integers and booleans as JSON has them; timestamps as integer microseconds, dates as integer days,
  their infinities ``"infinity"`` and ``"-infinity"``
- floats by their shortest text for their width, -0.0 as 0.0, ``"NaN"`` and ``"Infinity"`` quoted
- decimals as strings without exponent or trailing zeros, so that no JSON reader rounds them
- strings as JSON strings with the fewest escapes; char(n) without its padding
- binary as base64, arrays and structs as nested arrays, null as null

Rows of chunks and of the lake have typed columns (`canonical_from_columns`); the keys of records
are read by their converter, and end here, too.
"""

import base64
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model.civil import bounds, ends
from lakemark.model.columns import Column

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
