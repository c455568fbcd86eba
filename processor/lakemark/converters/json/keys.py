"""Canonical keys of Kafka record keys: see `model.key` for their form."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, cast

import msgspec

from lakemark.converters.converter import OUT_OF_RANGE
from lakemark.converters.json.envelope import NULL, unwrapped
from lakemark.converters.json.rows import decode_rows
from lakemark.errors import LakemarkError
from lakemark.model.columns import Column
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import WHOLE, canonical_from_columns, is_moment
from lakemark.model.schema import TableSchema, from_connect, from_envelope

_MODES: Final = HandlingModes()
_SAFE_DIGITS: Final = {8: 2, 16: 4, 32: 9, 64: 18}  # digits that always fit


_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
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
        (first, *others), pattern = quick
        lines = b"\n".join(cast("Sequence[bytes]", raw)) + b"\n"
        if pattern.fullmatch(lines):
            lines = lines.replace(first, b"[")
            for name in others:
                lines = lines.replace(name, b",")
            keys = lines.replace(b"}", b"]").split(b"\n")[:-1]
            if len(keys) == len(raw):  # no record has a line break of its own
                return cast("list[bytes | None]", keys)
    return _read(raw, schema)


@lru_cache(maxsize=512)
def _quick(schema: TableSchema) -> tuple[list[bytes], re.Pattern[bytes]] | None:
    """The texts before each number of a plain key of integers, and the pattern of such lines."""
    columns = [schema.by_name.get(name) for name in schema.key]
    before: list[bytes] = []
    line = b""
    for column in columns:
        if column is None or column.type not in WHOLE or column.encoding:
            return None
        before.append((b"," if before else b"{") + _encode(column.name) + b":")
        more = _SAFE_DIGITS[WHOLE[column.type]] - 1
        # Possessive: the pattern never goes back, and keeps nothing to go back to.
        line += rb"%b(?:0|-?+[1-9][0-9]{0,%d}+)" % (re.escape(before[-1]), more)
    return (before, re.compile(rb"(?:%b\}\n)*+" % line)) if before else None


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


@lru_cache(maxsize=1024)
def table_schema(table: str, raw: bytes, raw_key: bytes | None) -> TableSchema | None:
    """Return the schema that a wrapped value and `key_schema` tell; None if they cannot be read."""
    try:
        value = msgspec.json.decode(raw)
        key = msgspec.json.decode(raw_key) if raw_key else None
        return from_envelope(table, value, key)
    except (LakemarkError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def key_schema(raw: bytes | None) -> bytes | None:
    """Return the schema of a wrapped key; of a plain one, its columns' names."""
    if raw is None:
        return None
    schema, payload = unwrapped(raw)
    if schema is None or payload == NULL:
        names = [{"field": name} for name in key_names(raw)]
        return msgspec.json.encode({"type": "struct", "fields": names})
    return schema


def key_names(raw: bytes) -> tuple[str, ...]:
    """Return the columns that a record's key has, in its order; none if it cannot be read."""
    try:
        key = msgspec.json.decode(unwrapped(raw)[1])
    except (ValueError, RecursionError):
        return ()
    return tuple(key) if isinstance(key, dict) else ()
