"""Which schema a record's key and images are read by; the same answer for tables and shards.

Pure. Packets and touches must have the same canonical key for a row, or a touch would
not meet its chunk row; so they ask here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import msgspec

from lakemark.converters.json import keys
from lakemark.converters.json.envelope import NULL, unwrapped
from lakemark.errors import LakemarkError, TableError
from lakemark.model.events import Headers, Kind
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema, from_envelope

Numerics = Mapping[str, frozenset[str]]
"""Columns of type numeric, by table."""
NO_NUMERICS: Final[Numerics] = MappingProxyType({})


def schema_of(
    table: str,
    *,
    raw_schema: bytes | None,
    raw_key: bytes | None,
    schemas: Mapping[str, TableSchema],
    numerics: Numerics = NO_NUMERICS,
) -> TableSchema | None:
    """The schema of a table's records: their own, else the one known of the table.

    Args:
        table: id of the table.
        raw_schema: schema of the value's wrapper; None for plain records.
        raw_key: key of one of the records: it says which columns the key has.
        schemas: tables known from catalog or file.
        numerics: columns of type numeric, which a record's own schema does not tell.

    Returns:
        None if nobody knows it, or the wrapper's schema cannot be read.
    """
    if raw_schema is not None:
        schema = _wrapped(table, raw_schema, _key_schema(raw_key))
        known = schemas.get(table)  # only a catalog knows which columns are char(n)
        if schema is None:
            return None
        noted = schema.with_notes_of(known) if known else schema
        return noted.with_numerics(numerics.get(table, ()))
    schema = schemas.get(table)
    if schema is not None and raw_key is not None:
        names = key_names(raw_key)
        if names and names != schema.key:
            schema = replace(schema, key=names)
    return None if schema is None else schema.with_numerics(numerics.get(table, ()))


def schema_for(
    table: str,
    *,
    raw_schema: bytes | None,
    raw_key: bytes | None,
    schemas: Mapping[str, TableSchema],
    keyed: bool,
    modes: HandlingModes,
    numerics: Numerics = NO_NUMERICS,
) -> TableSchema | tuple[str, str]:
    """The schema of a table's records (`schema_of`), or the code and reason to stop the table.

    Args:
        table: id of the table.
        raw_schema: schema of the values' wrapper, which they share; None for plain records.
        raw_key: one of their keys; None if none has any.
        schemas: tables known from catalog or file.
        keyed: whether the table has rows that are told apart by a key: a record without one is bad.
        modes: the connector's settings.
        numerics: as for `schema_of`.
    """
    try:
        schema = schema_of(
            table, raw_schema=raw_schema, raw_key=raw_key, schemas=schemas, numerics=numerics
        )
    except TableError as error:
        return error.code, error.message
    if schema is None:
        return (
            "schema-unknown",
            (
                "its records carry no schema, and neither the database catalog nor a schema file "
                "knows the table"
            ),
        )
    if not schema.key and not keyed:
        return (
            "no-key",
            (
                "its records have no key: the table has no primary key and message.key.columns "
                "names none"
            ),
        )
    fault = schema.key_fault(modes)
    return (fault.code, fault.reason) if fault else schema


def canonical(
    heads: Headers,
    raw_keys: Sequence[bytes | None],
    *,
    schemas: Mapping[str, TableSchema],
    numerics: Numerics = NO_NUMERICS,
) -> list[bytes | None]:
    """Canonical keys of the change events among decoded records; None elsewhere. Never raises.

    Args:
        heads: headers of the records.
        raw_keys: their Kafka keys.
        schemas: tables known from catalog or file.
        numerics: as for `schema_of`.
    """
    out: list[bytes | None] = [None] * len(heads)
    change = int(Kind.CHANGE)
    groups: dict[tuple[str, bytes | None], list[int]] = {}
    for at, (kind, table, raw) in enumerate(
        zip(heads.kind, heads.table, heads.schema, strict=True)
    ):
        if kind == change:
            groups.setdefault((table, raw), []).append(at)
    for (table, raw_schema), places in groups.items():
        found = [raw_keys[at] for at in places]
        first = next((key for key in found if key), None)
        schema = schema_of(
            table, raw_schema=raw_schema, raw_key=first, schemas=schemas, numerics=numerics
        )
        for at, key in zip(places, keys.canonical_keys(found, schema), strict=True):
            out[at] = key
    return out


@lru_cache(maxsize=1024)
def _wrapped(table: str, raw: bytes, raw_key: bytes | None) -> TableSchema | None:
    try:
        value = msgspec.json.decode(raw)
        key = msgspec.json.decode(raw_key) if raw_key else None
        return from_envelope(table, value, key)
    except (LakemarkError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def _key_schema(raw: bytes | None) -> bytes | None:
    """Schema of a wrapped key; of a plain one, its columns' names."""
    if raw is None:
        return None
    schema, payload = unwrapped(raw)
    if schema is None or payload == NULL:
        names = [{"field": name} for name in key_names(raw)]
        return msgspec.json.encode({"type": "struct", "fields": names})
    return schema


def key_names(raw: bytes) -> tuple[str, ...]:
    """The columns that a record's key has, in its order; none if it cannot be read."""
    try:
        key = msgspec.json.decode(unwrapped(raw)[1])
    except (ValueError, RecursionError):
        return ()
    return tuple(key) if isinstance(key, dict) else ()
