"""PostgreSQL: keys, and ranges and lists of them, as SQL that the database itself compares.

Pure. The texts of a boundary are cast to the columns' types: ``(a, b) > (x, y)``.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa

from lakemark.connectors.postgres.column_sql import quoted
from lakemark.errors import TableError
from lakemark.model import civil
from lakemark.model.columns import SPECIAL_NUMBERS, TIMESTAMP, TIMESTAMP_UTC, Column
from lakemark.model.key_ranges import Boundary, Condition, KeyRange

# Rows of one block have similar keys, so the number of blocks decides: with so many a chunk, chunks
# differ by about a quarter from what was asked.
_BLOCKS_PER_CHUNK: Final = 20
# Up to here all keys are read: an index scan of some hundred milliseconds, and exact.
_EXACT_ROWS: Final = 200_000
# More sampled keys than this are not sorted (some seconds); the others are dropped at random.
_MOST_SAMPLED: Final = 2_000_000
# Of a larger part of the table a sample costs as much as the whole, unless that has so many rows:
# a minute or two for all keys.
_MOST_PERCENT: Final = 30.0
_MOST_EXACT: Final = 20_000_000
# Some minutes of a disk with 5,000 reads a second; with fewer blocks a chunk, chunks differ more.
_MOST_BLOCKS: Final = 1_000_000
_ROWS_PER_BLOCK: Final = 100  # of a table that was never analysed
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ENDS: Final = {
    pa.date32(): (civil.FIRST_DAY, civil.LAST_DAY),
    TIMESTAMP: (civil.FIRST_MICRO, civil.LAST_MICRO),
    TIMESTAMP_UTC: (civil.FIRST_MICRO, civil.LAST_MICRO),
}


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One column of a table's key.

    Attributes:
        name: the column.
        type: SQL of its base type without length or scale, qualified: texts are cast to it.
        nullable: whether the database allows null.
        width: of char(n) its n, else 0.
        exact: whether a canonical value always stands for one value of the database. The
            connector's handling modes may round.
    """

    name: str
    type: str
    nullable: bool = False
    width: int = 0
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Sampling:
    """The way to find boundaries.

    Attributes:
        percent: of the table's blocks that are read; None for all keys.
        keep: part of the keys found there that is kept, above 0 and up to 1.
        step: every step-th of the keys kept is a boundary.
    """

    percent: float | None
    keep: float
    step: int


def estimated_rows(counted: float, pages: float, blocks: float) -> float:
    """Estimate a table's rows: by the density when last analysed, at the present size.

    Args:
        counted: pg_class.reltuples, of a table and its partitions.
        pages: pg_class.relpages; 0 if it was never analysed.
        blocks: that it has now.
    """
    return blocks * (counted / pages if counted and pages else _ROWS_PER_BLOCK)


def sampling(rows: float, blocks: int, chunk_rows: int) -> Sampling:
    """Return the way to find the boundaries of chunks of about `chunk_rows` rows.

    Args:
        rows: about how many the table has.
        blocks: how many it has.
        chunk_rows: rows a chunk should have, at least 1.

    Small tables are split exactly, and larger ones, up to a bound, whose chunks have few blocks.
    """
    if rows <= _EXACT_ROWS:
        return Sampling(None, 1.0, chunk_rows)
    blocks_per_chunk = max(1.0, chunk_rows * blocks / rows)
    percent = 100.0 * _BLOCKS_PER_CHUNK / blocks_per_chunk
    if percent > _MOST_PERCENT and rows <= _MOST_EXACT:
        return Sampling(None, 1.0, chunk_rows)
    percent = min(percent, _MOST_PERCENT, 100.0 * _MOST_BLOCKS / max(1, blocks))
    keep = min(1.0, _MOST_SAMPLED / (rows * percent / 100.0))
    return Sampling(percent, keep, max(1, round(chunk_rows * keep * percent / 100.0)))


def range_condition(parts: Sequence[KeyPart], span: KeyRange) -> Condition:
    """Return the condition for the rows of a range.

    A row with a null in its key is in exactly one range too: the last one whose beginning is known
    to be below it.
    """
    sides: list[str] = []
    parameters: list[str] = []
    row = _row([escaped(part.name) for part in parts])
    nullable = any(part.nullable for part in parts)
    for boundary, operator in ((span.after, ">"), (span.upto, "<=")):
        if boundary is None:
            continue
        if len(boundary) != len(parts):
            raise TableError(
                "a chunk's boundary has not as many values as the key has columns",
                code="schema-changed",
                hint="the key was changed: the run is started again for this table",
            )
        values = _row([f"%s::text::{part.type.replace('%', '%%')}" for part in parts])
        if nullable and operator == "<=":
            sides.append(f"({row} > {values}) IS NOT TRUE")
        else:
            sides.append(f"{row} {operator} {values}")
        parameters.extend(boundary)
    return Condition(" AND ".join(sides) or "true", tuple(parameters))


def keys_condition(parts: Sequence[KeyPart], keys: Sequence[Boundary]) -> Condition:
    """Return the condition for rows with one of these keys, each given as texts of its columns."""
    if not keys:
        return Condition("false")
    names = [f"k{at}" for at in range(len(parts))]
    casts = [f"{n}::{p.type.replace('%', '%%')}" for n, p in zip(names, parts, strict=True)]
    row = _row([escaped(part.name) for part in parts])
    given = _given(casts, parts, keys)
    return Condition(f"{row} IN ({given.sql})", given.parameters)


def keys_query(parts: Sequence[KeyPart], keys: Sequence[Boundary]) -> Condition:
    """Return a query of these keys as a table would have them: its SQL, and its parameters.

    Args:
        parts: the columns of the key.
        keys: at least one, each as the texts of its columns.
    """
    columns = []
    for at, part in enumerate(parts):
        text = f"k{at}"
        if part.width:  # a column pads its values, a cast without the length does not
            padded = f"rpad({text}, {part.width})"
            text = f"CASE WHEN length({text}) < {part.width} THEN {padded} ELSE {text} END"
        columns.append(f"({text})::{part.type.replace('%', '%%')} AS {escaped(part.name)}")
    return _given(columns, parts, keys)


def _given(columns: Sequence[str], parts: Sequence[KeyPart], keys: Sequence[Boundary]) -> Condition:
    """Return a query of columns made of k0, k1 ..., the texts of the keys."""
    names = [f"k{at}" for at in range(len(columns))]
    arrays = ", ".join(["%s::text[]"] * len(columns))
    query = f"SELECT {', '.join(columns)} FROM unnest({arrays}) AS k({', '.join(names)})"  # noqa: S608 (quoted)
    given = zip(parts, zip(*keys, strict=True), strict=True)
    return Condition(query, tuple(_spelt(part, list(texts)) for part, texts in given))


def _spelt(part: KeyPart, texts: list[str]) -> list[str]:
    """Spell texts as the database does: a key of an older run has the connector's words."""
    return [SPECIAL_NUMBERS.get(t, t) for t in texts] if part.type == "numeric" else texts


def all_of(*conditions: Condition | None) -> Condition:
    """Return the condition that holds where all of these hold."""
    given = [c for c in conditions if c is not None]
    sql = " AND ".join(f"({c.sql})" for c in given) or "true"
    return Condition(sql, tuple(p for c in given for p in c.parameters))


def escaped(*names: str) -> str:
    """Identifiers joined by dots, as SQL with placeholders has them."""
    return quoted(*names).replace("%", "%%")


def _row(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"({', '.join(items)})"


def key_texts(keys: Sequence[bytes], columns: Sequence[Column]) -> list[Boundary]:
    """Canonical keys as texts that PostgreSQL understands, for `keys_condition`.

    Args:
        keys: canonical keys, see `model.key`.
        columns: the key columns in key order.

    Raises:
        TableError: ``key-unreadable``: a key has another number of values than there are columns,
            or one that PostgreSQL cannot be asked for (null, a nested value, a bit string, a
            clamped date).
    """
    return [_texts(key, columns) for key in keys]


def _texts(key: bytes, columns: Sequence[Column]) -> Boundary:
    try:
        values = msgspec.json.decode(key, type=list[Any])
        return tuple(_text(v, c) for v, c in zip(values, columns, strict=True))
    except (msgspec.MsgspecError, ValueError, OverflowError):
        raise TableError(
            "a key of the list is none that the table can be asked for",
            code="key-unreadable",
            hint="correct the list of keys, or take a snapshot of the table",
        ) from None


def _text(value: Any, column: Column) -> str:
    kind = column.type
    if isinstance(value, bool):
        return "true" if value else "false"
    if value in _ENDS.get(kind, ()):
        raise ValueError("clamped")  # as the lake has it, it may be infinite
    if pa.types.is_date32(kind) and isinstance(value, int):
        return (_EPOCH + timedelta(days=value)).date().isoformat()
    if pa.types.is_timestamp(kind) and isinstance(value, int):
        moment = (_EPOCH + timedelta(microseconds=value)).isoformat(sep=" ")
        return moment if kind.tz else moment.removesuffix("+00:00")
    if kind == pa.binary() and isinstance(value, str) and not column.encoding:
        return "\\x" + base64.b64decode(value, validate=True).hex()
    if isinstance(value, int | float) or (isinstance(value, str) and kind != pa.binary()):
        return str(value)
    raise ValueError("key")
