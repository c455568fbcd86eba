"""PostgreSQL's sums of rows by ranges of their key, in its own hash functions; see `checksums`.

Pure. The functions are those of hash partitioning (`hash…extended`), so that a table dumped by one
version is found by another: they give the same on every server with little-endian words, and
`PROBE` shows whether a server is one. The hash of one column is the seed of the next one's.

A form is given where the lake's value can be told from the hashed one and the other way round. The
hashes of values that a lake keeps otherwise (an infinite date, NaN in a decimal) differ: these rows
are read.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from lakemark.connectors.postgres.catalog import CatalogColumn
from lakemark.connectors.postgres.column_sql import exact
from lakemark.connectors.postgres.key_sql import escaped
from lakemark.model.checksums import (
    DAY,
    DIGITS,
    DOUBLE,
    HEX,
    LONG,
    LOOKUP3,
    MASK_BITS,
    MOMENT,
    TEXT,
    WORD,
    ChecksumPlan,
    NumberRanges,
    RefusedSums,
    SummedColumn,
    is_whole,
)
from lakemark.model.columns import Column
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key_ranges import Condition
from lakemark.model.schema import TableSchema

PROBE: Final = """
SELECT pg_catalog.hashtextextended('lakemark' COLLATE "C", 7),
       pg_catalog.current_setting('server_encoding')
"""
"""Asks whether a server's hashes are the usual ones; it answers with `EXPECTED`."""
EXPECTED: Final = (2220460647771487440, "UTF8")
_MOST_COLUMNS: Final = 500  # as deep as the functions are nested

Summed = tuple[SummedColumn, str]


def summed(
    column: CatalogColumn, target: Column, kept: pa.DataType, modes: HandlingModes
) -> Summed | None:
    """Return how a column is hashed, and the expression of its form; None if its rows are read.

    Args:
        column: as the catalog has it.
        target: the same column as its events have it.
        kept: its type in the lake.
        modes: the connector's settings.

    Returns:
        the expression has `{}` for the column's name.
    """
    found = _form(column, target, kept, modes)
    if found is None:
        return None
    form, expression = found
    return SummedColumn(column.name, form, nullable=not column.not_null), expression


def _form(
    column: CatalogColumn, target: Column, kept: pa.DataType, modes: HandlingModes
) -> tuple[str, str] | None:
    name, kind = column.type_name, target.type
    if column.element_type_name is not None or column.is_enum:
        return (TEXT, "{}::text") if column.is_enum and kept == kind == pa.string() else None
    if name in _WHOLE and is_whole(kept) and is_whole(kind):
        return (LONG, "{}::int8") if max(kept.bit_width, kind.bit_width) > 32 else (WORD, "{}")  # noqa: PLR2004 (bits)
    if kept != kind:
        return None
    if name == "numeric":
        return _numeric(kind, modes)
    if name in {"time", "timestamp"} and not exact(column, modes):
        return None
    form, expression, needed = _FORMS.get(name, ("", "", pa.null()))
    return (form, expression) if kind == needed or (form == MOMENT and _is_moment(kind)) else None


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.unit == "us"


def _numeric(kind: pa.DataType, modes: HandlingModes) -> tuple[str, str] | None:
    if pa.types.is_decimal128(kind):
        return DIGITS, "{}::text"
    if kind == pa.string():
        return TEXT, "{}::text" if modes.decimal == "string" else "trim_scale({})::text"
    return None


_WHOLE: Final = frozenset({"int2", "int4", "int8", "oid"})
_SHOWN: Final = "format('%%s', {})"  # ::text takes blanks from char(n), and adds masks to inet
_FORMS: Final[Mapping[str, tuple[str, str, pa.DataType]]] = {
    "bool": (WORD, "{}::int4", pa.bool_()),
    "float4": (DOUBLE, "{}::float8", pa.float32()),
    "float8": (DOUBLE, "{}", pa.float64()),
    **dict.fromkeys(
        ("text", "varchar", "citext", "name", "uuid", "json", "jsonb", "xml"),
        (TEXT, "{}::text", pa.string()),
    ),
    **dict.fromkeys(("bpchar", "inet", "cidr", "macaddr", "macaddr8"), (TEXT, _SHOWN, pa.string())),
    "bytea": (HEX, "encode({}, 'hex')", pa.binary()),
    "date": (DAY, "{}::text", pa.date32()),
    "time": (TEXT, "to_char({}, 'HH24:MI:SS.US')", pa.string()),
    "timestamp": (MOMENT, "{}", pa.timestamp("us")),
    "timestamptz": (MOMENT, "{}::timestamp", pa.timestamp("us", "UTC")),
}
"""By type: the form, its expression, and the type of the lake that it is good for."""

_NOTHING: Final[Mapping[str, str]] = {
    **dict.fromkeys((WORD, LONG, DOUBLE), "0"),
    **dict.fromkeys((TEXT, DIGITS, DAY, HEX), "''"),
    MOMENT: "timestamp 'epoch'",
}


def _long(value: str, seed: str) -> str:
    return f"hashint4extended(({value} >> 32)::int4, hashint8extended({value}, {seed}))"


def _moment(value: str, seed: str) -> str:
    seconds = f"date_part('epoch', {value})"
    return f"hashfloat8extended({seconds}, timestamp_hash_extended({value}, {seed}))"


def _double(value: str, seed: str) -> str:
    is_below = f"CASE WHEN {value} = 0 AND ({value})::text LIKE '-%%' THEN 1 ELSE 0 END"
    return f"hashfloat8extended({value}, hashint4extended({is_below}, {seed}))"


def _text(value: str, seed: str) -> str:
    return f'hashtextextended({value} COLLATE "C", {seed})'


_HASHED: Final[Mapping[str, Callable[[str, str], str]]] = {
    WORD: lambda value, seed: f"hashint4extended({value}, {seed})",
    LONG: _long,
    MOMENT: _moment,
    DOUBLE: _double,
    **dict.fromkeys((TEXT, DIGITS, DAY, HEX), _text),
}


def plan(
    columns: Sequence[CatalogColumn], schema: TableSchema, kept: pa.Schema, modes: HandlingModes
) -> tuple[ChecksumPlan, str] | RefusedSums:
    """Return how a table's rows are hashed, and the SQL of a row's hash; or why they cannot be.

    Args:
        columns: of the table, in the order of the schema.
        schema: as events have it.
        kept: the columns that are compared, in the lake's types.
        modes: the connector's settings.
    """
    pairs = [
        (column, target, kept.field(column.name).type)
        for column, target in zip(columns, schema.columns, strict=True)
        if column.name in kept.names
    ]
    order = next((one for one in pairs if one[0].name in schema.key[:1]), None)
    if order is None or order[0].type_name not in _WHOLE or not is_whole(order[2]):
        return RefusedSums("its key does not begin with a whole number")
    if len(pairs) > _MOST_COLUMNS:
        return RefusedSums(f"it has more than {_MOST_COLUMNS} columns")
    found = {one[0].name: summed(*one, modes) for one in pairs}
    whole = [one for one in found.values() if one is not None]
    if len(whole) < len(found):
        others = [name for name, one in found.items() if one is None]
        return RefusedSums(f"columns that are not hashed: {', '.join(others[:10])}")
    return ChecksumPlan(LOOKUP3, tuple(one for one, _ in whole), order[0].name), hash_of(whole)


def hash_of(columns: Sequence[Summed]) -> str:
    """Return the SQL of a row's hash."""
    found = "0"
    nullable = [escaped(one.name) for one, _ in columns if one.nullable]
    for begin in range(0, len(nullable), MASK_BITS):
        bits = [
            f"({name} IS NULL)::int4 * {1 << at}"
            for at, name in enumerate(nullable[begin : begin + MASK_BITS])
        ]
        found = f"hashint4extended({' + '.join(bits)}, {found})"
    for one, expression in columns:
        value = expression.replace("{}", escaped(one.name))
        if one.nullable:
            value = f"coalesce({value}, {_NOTHING[one.form]})"
        found = _HASHED[one.form](value, found)
    return found


def sums_query(source: str, order: str, hashed: str, ranges: NumberRanges) -> Condition:
    """Return the query of the rows' number and sum for each range, in their order.

    Args:
        source: the table, as SQL after FROM.
        order: the column that ranges are of.
        hashed: the SQL of a row's hash.
        ranges: which.
    """
    name = escaped(order)
    return Condition(
        "SELECT found.rows, found.sum FROM"  # noqa: S608 (names are quoted, values bound)
        " unnest(%s::int8[], %s::int8[]) WITH ORDINALITY AS span(low, high, place)"
        f" CROSS JOIN LATERAL (SELECT count(*) AS rows, sum(coalesce({hashed}, 0))::text AS sum"
        f" FROM {source.replace('%', '%%')} WHERE {name} >= span.low AND {name} <= span.high)"
        " AS found ORDER BY span.place",
        (ranges.begins.tolist(), ranges.ends.tolist()),
    )
