"""MySQL and MariaDB: rows of a range of keys, typed as the event path types them, with their proof.

    open_table    snapshot, then lock, then what the catalog says
    middle        where to cut a range that took too long
    read_chunk    the rows

The rows come as the server's packets and are cut into Arrow's columns by compiled functions
(`mysql_rows`): a row is never a Python object. Where to cut a table: `key_cuts`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemark.connectors.database import RowsOfSnapshot
from lakemark.connectors.mysql.binlog_place import BinlogPlace
from lakemark.connectors.mysql.binlog_snapshot import brief_snapshot, consistent_snapshot
from lakemark.connectors.mysql.catalog import CatalogColumn
from lakemark.connectors.mysql.column_sql import cell, exact, selected
from lakemark.connectors.mysql.key_sql import (
    KeyPart,
    all_of,
    escaped,
    keys_condition,
    keys_query,
    kind_of,
    range_condition,
    type_of,
    unreadable,
)
from lakemark.connectors.mysql.mysql_catalog import DescribedTable, KnownTables, definition
from lakemark.connectors.mysql.mysql_errors import translated
from lakemark.connectors.mysql.mysql_rows import batches
from lakemark.connectors.mysql.mysql_session import Session
from lakemark.connectors.mysql.names import table_name
from lakemark.connectors.typed_rows import Cell, typed_rows
from lakemark.errors import TableError
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import KEY_NEEDED, KeyFault
from lakemark.model.key_ranges import WHOLE, Boundary, Condition, KeyRange
from lakemark.model.schema import TableSchema
from lakemark.settings.table_id import pair_of

# Of all texts of a chunk. A worker needs about four times as much for a moment.
MAX_CHUNK_BYTES: Final = 64 << 20
# Whose rows a consistent snapshot is of.
_ENGINES: Final = frozenset({"innodb", "rocksdb"})


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table as one transaction sees it.

    Attributes:
        session: where the transaction is open.
        schema: as events have it.
        cells: how its columns are read, in the order of the schema.
        parts: the columns of its key, in key order.
        source: SQL after FROM.
        proof: what the transaction sees.
        described: what the catalog says of it.
    """

    session: Session
    schema: TableSchema
    cells: tuple[Cell, ...]
    parts: tuple[KeyPart, ...]
    source: str
    proof: BinlogPlace
    described: DescribedTable


@contextmanager
def open_table(
    session: Session, table: str, known: KnownTables, *, is_read: bool = False
) -> Iterator[OpenTable]:
    """Begin a read-only transaction that sees one moment of a table.

    1. The table's definition is read.
    2. The snapshot is taken.
    3. A look at the table locks its metadata: whoever would change it waits. The server itself says
       so if a change since the snapshot has rewritten it.
    4. The definition is read again and is the same: nothing was changed between 1 and 3. What the
       catalog says is what it means; that is asked once for each definition, as it takes longer
       than a chunk.

    Args:
        session: of `connect`, outside a transaction.
        table: its name, as events have it.
        known: what the catalog has said of tables.
        is_read: whether its rows are kept. Else the proof says nothing, and nothing is waited for.

    Raises:
        TableError: ``not-a-table``, ``table-gone``, ``no-key``, ``key-type``, ``schema-changed``,
            ``not-transactional``.
        DependencyError, ConfigError: as `translated` and `consistent_snapshot` say; errors of the
            block as well.
    """
    with translated(table):
        source = table_name(*pair_of(table))
        before = definition(session, table)
        with (consistent_snapshot if is_read else brief_snapshot)(session) as place:
            session.execute(f"SELECT 1 FROM {source.replace('%', '%%')} LIMIT 0")  # noqa: S608
            if definition(session, table) != before:
                raise _changed(table)
            now = known.get(session, table, before)
            _require_rows(now)
            columns = zip(now.columns, now.schema.columns, strict=True)
            cells = tuple(cell(column, target, known.modes) for column, target in columns)
            parts = _key_parts(now, known.modes)
            yield OpenTable(session, now.schema, cells, parts, source, place, now)


def _changed(table: str) -> TableError:
    return TableError(
        f"{table} was changed while it was to be read",
        code="schema-changed",
        hint="the chunk is read again with the new schema",
    )


def _require_rows(found: DescribedTable) -> None:
    table = found.schema.table
    if found.engine.lower() not in _ENGINES:
        raise TableError(
            f"{table} is kept by {found.engine}, which knows no transactions: what a read of it"
            " saw has no place in the log",
            code="not-transactional",
            hint=f"ALTER TABLE {table_name(*pair_of(table))} ENGINE=InnoDB",
        )


def _key_parts(table: DescribedTable, modes: HandlingModes) -> tuple[KeyPart, ...]:
    schema = table.schema
    none = KeyFault("no-key", "it has no key", KEY_NEEDED)
    fault = schema.key_fault(modes) if schema.key else none
    if fault:
        raise TableError(f"{schema.table}: {fault.reason}", code=fault.code, hint=fault.hint)
    by_name = {column.name: column for column in table.columns}
    return tuple(
        _key_part(by_name[name], exact=exact(by_name[name], schema.column(name), modes))
        for name in schema.key
    )


def _key_part(column: CatalogColumn, *, exact: bool = True) -> KeyPart:
    base = column.kind.base
    return KeyPart(
        column.name,
        kind_of(base),
        nullable=not column.not_null,
        exact=exact,
        type=type_of(base, column.kind.digits),
    )


def ordered_by(table: OpenTable, column: str | None) -> OpenTable:
    """The table with ranges over another column than its key; None leaves it as it is.

    Raises:
        TableError: ``schema-changed``: it has no such column.
    """
    if column is None:
        return table
    for one in table.described.columns:
        if one.name == column:
            return replace(table, parts=(_key_part(one),))
    raise TableError(
        f"{table.schema.table} has no column {column}",
        code="schema-changed",
        hint="send the signal again with another surrogate-key, or without",
    )


def middle(
    table: OpenTable, span: KeyRange, *, condition: Condition | None = None
) -> Boundary | None:
    """The key in the middle of a range, for `halves`; None if the range has no two keys.

    Never the range's last key, of which a column that is no key may have most rows. Reads keys
    only, in most cases from the index alone, so it is much faster than the rows were.

    Args:
        table: an open table.
        span: the range.
        condition: only rows for which it holds count.
    """
    wanted = all_of(no_nulls(table.parts), range_condition(table.parts, span), condition)
    last = key_at(table, wanted, 0, descending=True)
    if not last:
        return None
    inside = all_of(wanted, _below(table, last[0]))
    query = f"SELECT count(*) FROM {source_of(table)} WHERE {inside.sql}"  # noqa: S608 (bound)
    ((count,),) = table.session.execute(query, inside.parameters)
    found = key_at(table, inside, count // 2) if count else []
    return found[0] if found else None


def _below(table: OpenTable, key: Boundary) -> Condition:
    """Return the condition for rows whose key is below another."""
    upto = range_condition(table.parts, KeyRange(None, key))
    same = keys_condition(table.parts, [key])
    return Condition(f"({upto.sql}) AND NOT ({same.sql})", (*upto.parameters, *same.parameters))


def key_at(
    table: OpenTable, wanted: Condition, offset: int, *, descending: bool = False, count: int = 1
) -> list[Boundary]:
    """Return the keys of rows behind so many others, in the key's order; fewer where there are.

    Args:
        table: an open table.
        wanted: which rows count.
        offset: how many of them are passed over.
        descending: in the opposite order.
        count: how many keys.
    """
    way = " DESC" if descending else ""
    order = ", ".join(f"{part.sql}{way}" for part in table.parts)
    texts = ", ".join(part.text for part in table.parts)
    query = (
        f"SELECT {texts} FROM {source_of(table)} WHERE {wanted.sql}"  # noqa: S608 (quoted, bound)
        f" ORDER BY {order} LIMIT {count} OFFSET {offset}"
    )
    return [tuple(map(str, row)) for row in table.session.execute(query, wanted.parameters)]


def source_of(table: OpenTable) -> str:
    """Return the table's SQL after FROM, as SQL with placeholders has it."""
    return table.source.replace("%", "%%")


def no_nulls(parts: Sequence[KeyPart]) -> Condition:
    """Return the condition for rows without a null in their key."""
    nullable = [part for part in parts if part.nullable]
    return Condition(" AND ".join(f"{escaped(p.name)} IS NOT NULL" for p in nullable) or "1")


def read_chunk(
    table: OpenTable,
    *,
    span: KeyRange = WHOLE,
    condition: Condition | None = None,
    keys: Sequence[Boundary] | None = None,
    max_bytes: int = MAX_CHUNK_BYTES,
) -> RowsOfSnapshot:
    """The rows of a range, as of the open table's snapshot.

    Args:
        table: an open table.
        span: which keys.
        condition: only rows for which it holds.
        keys: only rows with one of these keys, as `key_texts` gives them.
        max_bytes: of all rows as text, unless there is only one.

    Guarantee: types, values and canonical keys equal those of the same rows' events. The ranges of
    `ranges`, each read whenever, hold every row once that was there all the time.

    Raises:
        DependencyError: ``statement-timeout``, ``chunk-too-large``: cut the range by `middle` and
            read the halves, in another transaction.
        TableError: ``key-out-of-range``: a value of the key is none that the lake's type can hold.
    """
    wanted = all_of(
        range_condition(table.parts, span),
        condition,
        None if keys is None else keys_condition(table.parts, keys),
    )
    return read_rows(table, wanted, max_bytes)


def read_rows(
    table: OpenTable, condition: Condition, max_bytes: int = MAX_CHUNK_BYTES
) -> RowsOfSnapshot:
    """The rows for which a condition holds, as `read_chunk` gives them."""
    columns = zip(table.schema.columns, table.cells, strict=True)
    expressions = ", ".join(selected(column.name, one) for column, one in columns)
    where = table.session.literally(condition.sql, condition.parameters)
    query = f"SELECT {expressions} FROM {table.source} WHERE {where}"  # noqa: S608 (see above)
    pieces = batches(table.session, query, table=table.schema.table, limit=max_bytes)
    return typed_rows(table.schema, table.cells, pieces, table.proof)


def absent_keys(
    table: OpenTable,
    keys: Sequence[Boundary],
    chunk: RowsOfSnapshot,
    *,
    span: KeyRange = WHOLE,
    condition: Condition | None = None,
) -> RowsOfSnapshot:
    """The keys of a list that a table does not have, with the key's columns only.

    Args:
        table: an open table.
        keys: as `key_texts` gives them.
        chunk: the rows that `read_chunk` found for the list, in the same transaction.
        span: only keys of this range.
        condition: of the rows that were read; a key whose row is another one is not absent.

    Raises:
        TableError: ``key-inexact``: a row cannot be looked up by the key; ``key-unreadable``: a key
            is none that the table can have.
    """
    narrow = _keys_only(table)
    if not keys:
        none = narrow.schema.arrow().empty_table()
        return RowsOfSnapshot(none, chunk.keys.slice(0, 0), narrow.schema, table.proof)
    inexact = [part.name for part in table.parts if not part.exact]
    if inexact:
        raise TableError(
            f"rows of {table.schema.table} cannot be looked up by key: values of"
            f" {', '.join(inexact)} are not asked for as they are shown",
            code="key-inexact",
            hint="take a snapshot of the whole table",
        )
    if condition is not None:
        chunk = read_chunk(narrow, span=span, keys=keys)
    query = keys_query(table.parts, keys, source_of(table))
    source = f"({table.session.literally(query.sql, query.parameters)}) AS given"
    asked = read_rows(replace(narrow, source=source), range_condition(table.parts, span))
    if asked.bad:
        raise unreadable()
    there = pa.array([*chunk.keys.to_pylist(), *(key for key, *_ in chunk.bad)], pa.binary())
    first = dict.fromkeys(asked.keys.to_pylist())
    place = pc.index_in(pa.array(list(first), pa.binary()), asked.keys)
    chosen = place.filter(pc.invert(pc.is_in(asked.keys.take(place), there)))
    return replace(asked, rows=asked.rows.take(chosen), keys=asked.keys.take(chosen))


def _keys_only(table: OpenTable) -> OpenTable:
    by_name = dict(zip(table.schema.by_name, table.cells, strict=True))
    columns = tuple(table.schema.column(name) for name in table.schema.key)
    schema = TableSchema(table.schema.table, columns, table.schema.key)
    return replace(table, schema=schema, cells=tuple(by_name[name] for name in schema.key))
