"""Canonical keys: equal bytes for equal keys, whichever way the row came.

A canonical key is a JSON array of scalars in key order, such as ``[42]`` or ``["a",7]``:

- integers and booleans as JSON has them; timestamps as integer microseconds, dates as integer days,
  their infinities ``"infinity"`` and ``"-infinity"``
- floats by their shortest text for their width, -0.0 as 0.0, ``"NaN"`` and ``"Infinity"`` quoted
- decimals as strings without exponent or trailing zeros, so that no JSON reader rounds them
- strings as JSON strings with the fewest escapes; char(n) without its padding
- binary as base64, arrays and structs as nested arrays, null as null

`canonical_keys` reads Kafka record keys, `canonical_from_columns` typed Arrow columns; both end in
the same writer, so both give the same bytes.
"""

import base64
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.converters.json.moments import bounds, ends
from lakemark.converters.json.numerals import plain_decimal
from lakemark.converters.json.record import unwrapped
from lakemark.converters.json.rows import decode_rows
from lakemark.converters.json.values import OUT_OF_RANGE
from lakemark.model.columns import Column
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema, from_connect

_MODES: Final = HandlingModes()
_WHOLE: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_SAFE_DIGITS: Final = {8: 2, 16: 4, 32: 9, 64: 18}  # digits that always fit
INFINITIES: Final = ("-infinity", "infinity")
_WORDS: Final = tuple(b'"%b"' % word.encode() for word in INFINITIES)
_INFINITE: Final = re.compile(rb'[\[,]"-?infinity"[\],]')
_NEEDS_ESCAPE: Final = r'["\\\x00-\x1f]'


_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode: Final = msgspec.json.encode


def canonical_keys(raw: Sequence[bytes | None], schema: TableSchema | None) -> list[bytes | None]:
    """Canonical keys of Kafka record keys (or of key-change header values). Never raises.

    Args:
        raw: JSON objects, plain or wrapped in schema and payload, found out record by record. A
            wrapped key is read by its own schema.
        schema: gives the order and types of plain keys. Without it a plain key must consist of
            JSON integers, strings, booleans and nulls, taken in the order they have.

    Returns:
        One canonical key per record; None for no key and for one that cannot be read.
    """
    if schema is None:
        return [None if key is None else _one(key, None) for key in raw]
    quick = _quick(schema)
    if quick is not None and None not in raw:
        lines = b"\n".join(cast("Sequence[bytes]", raw)) + b"\n"
        if quick[1].fullmatch(lines):
            keys = lines.replace(quick[0], b"[").replace(b"}", b"]").split(b"\n")[:-1]
            if len(keys) == len(raw):  # no record has a line break of its own
                return cast("list[bytes | None]", keys)
    return _read(raw, schema)


@lru_cache(maxsize=512)
def _quick(schema: TableSchema) -> tuple[bytes, re.Pattern[bytes]] | None:
    """Start of a plain key of one integer column, and the pattern of lines of such keys."""
    column = schema.by_name.get(schema.key[0]) if len(schema.key) == 1 else None
    if column is None or column.type not in _WHOLE or column.encoding:
        return None
    start = b"{" + _encode(column.name) + b":"
    more = _SAFE_DIGITS[_WHOLE[column.type]] - 1
    # Possessive: the pattern never goes back, and keeps nothing to go back to.
    line = rb"%b(?:0|-?+[1-9][0-9]{0,%d}+)\}\n" % (re.escape(start), more)
    return start, re.compile(rb"(?:%b)*+" % line)


def _read(raw: Sequence[bytes | None], schema: TableSchema) -> list[bytes | None]:
    """Any keys: plain ones together by the table's schema, wrapped ones by their own."""
    out: list[bytes | None] = [None] * len(raw)
    groups: dict[bytes | None, tuple[list[int], list[bytes]]] = {}
    for at, key in enumerate(raw):
        if key is None:
            continue
        own, payload = unwrapped(key)
        places, payloads = groups.setdefault(own, ([], []))
        places.append(at)
        payloads.append(payload)
    for own, (places, payloads) in groups.items():
        narrow = _key_schema(schema) if own is None else _own_schema(own, schema)
        if narrow is None:
            continue
        # Not cached: equal schemas may differ in what they know of padding.
        narrow = narrow.with_notes_of(schema)
        for at, key in zip(places, _by_schema(payloads, narrow), strict=True):
            out[at] = key
    return out


@lru_cache(maxsize=512)
def _key_schema(schema: TableSchema) -> TableSchema | None:
    if not schema.key or any(name not in schema.by_name for name in schema.key):
        return None
    return TableSchema(schema.table, tuple(schema.column(n) for n in schema.key), schema.key)


@lru_cache(maxsize=1024)
def _own_schema(own: bytes, schema: TableSchema | None) -> TableSchema | None:
    try:
        narrow = from_connect("", msgspec.json.decode(own), None)
    except Exception:  # noqa: BLE001
        return None
    if schema is None or not schema.key:
        return narrow if narrow.columns else None
    if set(schema.key) - narrow.by_name.keys():
        return None
    return TableSchema("", tuple(narrow.column(name) for name in schema.key), schema.key)


def _by_schema(payloads: list[bytes], narrow: TableSchema) -> list[bytes | None]:
    rows = decode_rows(payloads, narrow, _MODES, exact=True)
    columns = [rows.columns.field(i) for i in range(len(narrow.columns))]
    keys: list[bytes | None] = canonical_from_columns(columns, narrow.columns).to_pylist()
    for at, _, _ in rows.bad:
        keys[at] = None
    if any(column.null_count for column in columns):
        _drop_incomplete(keys, payloads, narrow)
    return keys


def out_of_range(raw: bytes | None, schema: TableSchema) -> Column | None:
    """Return the column of a Kafka key that has a date or timestamp which the lake cannot hold.

    Args:
        raw: the key, one that `canonical_keys` does not give.
        schema: as for `canonical_keys`.
    """
    own, payload = unwrapped(raw or b"")
    narrow = _key_schema(schema) if own is None else _own_schema(own, schema)
    for column in narrow.columns if narrow else ():
        if is_moment(column.type):
            one = TableSchema("", (column,), (column.name,))
            bad = decode_rows([payload], one, _MODES, exact=True).bad
            if bad and bad[0][1] == OUT_OF_RANGE:
                return column
    return None


def _drop_incomplete(keys: list[bytes | None], payloads: list[bytes], narrow: TableSchema) -> None:
    """A null in a key is a value; an absent member is a key that cannot be read."""
    for at, key in enumerate(keys):
        if key is not None and b"null" in key:
            members = _MEMBERS.decode(payloads[at])
            if any(column.name not in members for column in narrow.columns):
                keys[at] = None


def _one(key: bytes, schema: TableSchema | None) -> bytes | None:
    """A key without a table's schema."""
    own, payload = unwrapped(key)
    if own is not None:
        narrow = _own_schema(own, schema)
        return None if narrow is None else _by_schema([payload], narrow)[0]
    try:
        value = msgspec.json.decode(payload)
    except Exception:  # noqa: BLE001
        return None
    scalars = list(value.values()) if isinstance(value, dict) else [value]
    if not scalars or not all(s is None or isinstance(s, int | str) for s in scalars):
        return None
    return _encode(scalars)


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
    if values.type in _WHOLE or pa.types.is_boolean(kind):
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
