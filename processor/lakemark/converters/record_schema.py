"""The schema that a record's key and images are read by; the same for tables and shards.

Pure. Packets and touches must have the same canonical key for a row, or a touch would not meet its
chunk row: the keys that `fold` made are those of the touches, and the others are made here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from lakemark.converters.converter import Converter
from lakemark.converters.hidden_nulls import defaults_of
from lakemark.errors import TableError
from lakemark.model.agreement import disagreement
from lakemark.model.decoding import TableReport
from lakemark.model.events import Headers, Kind
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema

Numerics = Mapping[str, frozenset[str]]
"""Columns of type numeric, by table."""
NO_NUMERICS: Final[Numerics] = MappingProxyType({})
NOTHING_MADE: Final[Mapping[int, bytes | None]] = MappingProxyType({})


def schema_of(
    converter: Converter,
    table: str,
    *,
    raw_schema: bytes | None,
    raw_key: bytes | None,
    schemas: Mapping[str, TableSchema],
    numerics: Numerics = NO_NUMERICS,
) -> TableSchema | None:
    """The schema of a table's records: their own, else the one known of the table.

    Args:
        converter: reads the records.
        table: id of the table.
        raw_schema: the schema that the record brings (`Headers.schema`); None without.
        raw_key: key of one of the records: it says which columns the key has.
        schemas: tables known from catalog or file.
        numerics: columns of type numeric, which a record's own schema does not tell.

    Returns:
        None if nobody knows it, or the schema that the record brings cannot be read.
    """
    if raw_schema is not None:
        schema = converter.schema_of(table, raw_schema, raw_key)
        known = schemas.get(table)  # only a catalog knows which columns are char(n)
        if schema is None:
            return None
        noted = schema.with_notes_of(known) if known else schema
        return noted.with_numerics(numerics.get(table, ()))
    schema = schemas.get(table)
    if schema is not None and raw_key is not None:
        names = converter.key_names(raw_key)
        if names and names != schema.key:
            schema = replace(schema, key=names)
    return None if schema is None else schema.with_numerics(numerics.get(table, ()))


def compare(
    report: TableReport,
    converter: Converter,
    raw_schema: bytes,
    schema: TableSchema,
    known: TableSchema | None,
) -> None:
    """Report of records' own schema what there is to know of a table.

    Args:
        report: of the table.
        converter: reads the records.
        raw_schema: that they bring.
        schema: the table's columns by it.
        known: the table's columns by catalog or file; None if nobody knows them.
    """
    report.brought, report.other_schema = True, b""
    report.hidden_nulls = () if converter.keeps_nulls() else tuple(defaults_of(raw_schema))
    if known is not None and disagreement(schema, known):
        report.other_schema = schema.to_json()


def schema_for(
    converter: Converter,
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
        converter: reads the records.
        table: id of the table.
        raw_schema: the schema that the records bring, which they share; None without.
        raw_key: one of their keys; None if none has any.
        schemas: tables known from catalog or file.
        keyed: whether the table has rows that are told apart by a key: a record without one is bad.
        modes: the connector's settings.
        numerics: as for `schema_of`.
    """
    try:
        schema = schema_of(
            converter,
            table,
            raw_schema=raw_schema,
            raw_key=raw_key,
            schemas=schemas,
            numerics=numerics,
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
    converter: Converter,
    heads: Headers,
    raw_keys: Sequence[bytes | None],
    *,
    schemas: Mapping[str, TableSchema],
    numerics: Numerics = NO_NUMERICS,
    made: Mapping[int, bytes | None] = NOTHING_MADE,
) -> list[bytes | None]:
    """Canonical keys of the change events among decoded records; None elsewhere. Never raises.

    Args:
        converter: reads the records.
        heads: headers of the records.
        raw_keys: their Kafka keys.
        schemas: tables known from catalog or file.
        numerics: as for `schema_of`.
        made: those that the tables were given, by index: the shards get the same.
    """
    out: list[bytes | None] = [None] * len(heads)
    change = int(Kind.CHANGE)
    groups: dict[tuple[str, bytes | None], list[int]] = {}
    for at, (kind, table, raw) in enumerate(
        zip(heads.kind, heads.table, heads.schema, strict=True)
    ):
        if kind == change and at in made:
            out[at] = made[at]
        elif kind == change:
            groups.setdefault((table, raw), []).append(at)
    for (table, raw_schema), places in groups.items():
        found = [raw_keys[at] for at in places]
        first = next((key for key in found if key), None)
        schema = schema_of(
            converter,
            table,
            raw_schema=raw_schema,
            raw_key=first,
            schemas=schemas,
            numerics=numerics,
        )
        for at, key in zip(places, converter.canonical_keys(found, schema), strict=True):
            out[at] = key
    return out
