"""PostgreSQL: the rows of a range of keys, typed as the event path types them, with their proof.

    open_table    lock, then snapshot, then what the catalog says: one moment for all that follows
    boundaries    where to cut a table
    middle        where to cut a range that took too long
    read_chunk    the rows

PostgreSQL writes the rows as CSV by COPY and Arrow reads them a column at a time: a row is never a
Python object.
"""

import codecs
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv

from lakemark.connectors.database import RowsOfSnapshot
from lakemark.connectors.postgres.catalog import CatalogColumn
from lakemark.connectors.postgres.column_sql import cell, exact, quoted, selected
from lakemark.connectors.postgres.key_sql import (
    KeyPart,
    all_of,
    escaped,
    estimated_rows,
    keys_condition,
    range_condition,
    sampling,
)
from lakemark.connectors.postgres.postgres import schemas_of
from lakemark.connectors.postgres.postgres_copy import copied
from lakemark.connectors.postgres.postgres_session import Session, current_snapshot, translated
from lakemark.connectors.postgres.visibility import Snapshot
from lakemark.connectors.typed_rows import Cell, typed_rows
from lakemark.errors import DependencyError, TableError
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import KEY_NEEDED, KeyFault
from lakemark.model.key_ranges import (
    CUT_TIMEOUT,
    WHOLE,
    Boundary,
    Condition,
    KeyRange,
    fitting_rows,
)
from lakemark.model.schema import TableSchema
from lakemark.settings.table_id import pair_of

# Arrow parses blocks of whole rows; a block is at least this and holds the longest row twice.
_LEAST_BLOCK: Final = 8 << 20
# Of CSV. A worker needs about six times as much for a moment.
MAX_CHUNK_BYTES: Final = 64 << 20
_MARK: Final = codecs.BOM_UTF8
_PARSE: Final = pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
PARTS: Final = """
WITH RECURSIVE base AS (
    SELECT a.attname, a.attnotnull, t.oid, t.typtype, t.typbasetype, t.typnamespace
    FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE n.nspname = %s AND c.relname = %s
      AND a.attname = ANY (coalesce(%s::text[], ARRAY[a.attname::text]))
      AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attname, b.attnotnull, t.oid, t.typtype, t.typbasetype, t.typnamespace
    FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.typbasetype
    WHERE b.typtype = 'd'
)
SELECT b.attname::text, pg_catalog.format_type(b.oid, -1), NOT b.attnotnull, n.nspname::text
FROM base b JOIN pg_catalog.pg_namespace n ON n.oid = b.typnamespace
WHERE b.typtype <> 'd'
"""
_SIZE: Final = """
SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::float8,
       coalesce(sum(greatest(c.relpages, 0)), 0)::float8,
       coalesce(sum(pg_catalog.pg_relation_size(c.oid)), 0)::float8
         / pg_catalog.current_setting('block_size')::float8,
       coalesce(sum(pg_catalog.pg_table_size(c.oid)), 0)::float8
FROM pg_catalog.pg_class c
WHERE c.relkind = 'r' AND (c.oid = %(table)s::regclass OR c.oid IN (
    SELECT relid FROM pg_catalog.pg_partition_tree(%(table)s::regclass) WHERE isleaf))
"""


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table as one transaction sees it.

    Attributes:
        session: where the transaction is open.
        schema: as `read_schemas` gives it.
        cells: how its columns are read, in the order of the schema.
        parts: the columns of its key, in key order.
        source: SQL after FROM: the table without those that inherit from it, whose rows have
            events of their own; a partitioned table with its partitions.
        snapshot: what the transaction sees.
        columns: as the catalog has them, in the order of the schema.
    """

    session: Session
    schema: TableSchema
    cells: tuple[Cell, ...]
    parts: tuple[KeyPart, ...]
    source: str
    snapshot: Snapshot
    columns: Sequence[CatalogColumn]


@contextmanager
def open_table(
    session: Session, table: str, modes: HandlingModes, *, settings: Mapping[str, str]
) -> Iterator[OpenTable]:
    """Begin a read-only transaction that sees one moment of a table.

    1. The table is locked (ACCESS SHARE: only TRUNCATE and schema changes wait).
    2. The snapshot is taken. Before the lock it would be too early: a table that TRUNCATE or a
       rewriting ALTER TABLE committed in between looks empty to an older snapshot.
    3. The catalog is read. It cannot change while the lock is held.

    Args:
        session: of `connect`, outside a transaction.
        table: ``schema.table``.
        modes: how the connector writes values.
        settings: the connector's configuration, as for `read_schemas`.

    Raises:
        TableError: ``not-a-table`` (a view, a foreign table), ``table-gone``, ``no-key``,
            ``key-type``.
        DependencyError, ConfigError: as `translated` says; errors of the block as well.
    """
    schema_name, name = pair_of(table)
    target = quoted(schema_name, name)
    with translated(table), session.transaction():
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        session.execute(f"LOCK TABLE {target} IN ACCESS SHARE MODE".encode())
        snapshot = current_snapshot(session)
        kind = session.execute(
            "SELECT relkind FROM pg_catalog.pg_class WHERE oid = %s::regclass", [target]
        ).fetchone()
        described = schemas_of(session, [table], modes, settings=settings).get(table)
        if kind is None or kind[0] not in ("r", "p") or described is None:
            raise TableError(
                f"{table} is no table",
                code="not-a-table",
                hint="name the table behind it: only tables have events",
            )
        schema, columns = described
        cells = [cell(c, target, modes) for c, target in zip(columns, schema.columns, strict=True)]
        parts = _key_parts(session, schema, columns, modes)
        source = target if kind[0] == "p" else f"ONLY {target}"
        yield OpenTable(session, schema, tuple(cells), parts, source, snapshot, columns)


def _key_parts(
    session: Session,
    schema: TableSchema,
    columns: Sequence[CatalogColumn],
    modes: HandlingModes,
) -> tuple[KeyPart, ...]:
    none = KeyFault("no-key", "it has no key", KEY_NEEDED)
    fault = schema.key_fault(modes) if schema.key else none
    if fault:
        raise TableError(f"{schema.table}: {fault.reason}", code=fault.code, hint=fault.hint)
    namespace, name = pair_of(schema.table)
    rows = session.execute(PARTS, [namespace, name, list(schema.by_name)]).fetchall()
    # Operators of a type (citext) are found by the path alone, or else those of text are taken.
    path = dict.fromkeys(["pg_catalog", *(type_schema for *_, type_schema in rows)])
    session.execute(
        "SELECT pg_catalog.set_config('search_path', %s, true)",
        [", ".join(quoted(schema) for schema in path)],
    )
    of_name = {column.name: column for column in columns}
    by_name = {
        name: KeyPart(name, kind, nullable, _width(of_name[name]), exact(of_name[name], modes))
        for name, kind, nullable, _ in rows
    }
    return tuple(by_name[key] for key in schema.key)


def _width(column: CatalogColumn) -> int:
    return max(0, column.typmod - 4) if column.type_name == "bpchar" else 0


def ordered_by(table: OpenTable, column: str | None) -> OpenTable:
    """The table with ranges over another column than its key; None leaves it as it is.

    Raises:
        TableError: ``schema-changed``: it has no such column.
    """
    if column is None:
        return table
    namespace, name = pair_of(table.schema.table)
    rows = table.session.execute(PARTS, [namespace, name, [column]]).fetchall()
    if not rows:
        raise TableError(
            f"{table.schema.table} has no column {column}",
            code="schema-changed",
            hint="send the signal again with another surrogate-key, or without",
        )
    ((_, kind, nullable, _),) = rows
    return replace(table, parts=(KeyPart(column, kind, nullable),))


def estimate(table: OpenTable) -> int:
    """Estimate the table's rows, by its size and its density when last analysed."""
    return round(_size(table).rows)


def boundaries(
    table: OpenTable, chunk_rows: int, *, condition: Condition | None = None
) -> list[Boundary]:
    """Keys that cut a table into chunks of about so many rows, in the database's order.

    Args:
        table: an open table.
        chunk_rows: rows of a chunk; fewer if the table's rows are so wide that a chunk would have
            more than half of `MAX_CHUNK_BYTES`.
        condition: only rows for which it holds count.

    Returns:
        for `ranges`; none for a table of one chunk, or whose key the database cannot order.

    Raises:
        DependencyError: ``cut-timeout``.
    """
    size = _size(table)
    fitting = fitting_rows(chunk_rows, rows=size.rows, size=size.bytes, most=MAX_CHUNK_BYTES)
    how = sampling(size.rows, size.blocks, fitting)
    sample, kept = "", None
    if how.percent is not None:
        sample = f" TABLESAMPLE SYSTEM ({how.percent:.12f}) REPEATABLE (0)"
        kept = Condition("random() < %s", (how.keep,)) if how.keep < 1 else None
    restriction = all_of(kept, _no_nulls(table), condition)
    names = ", ".join(escaped(part.name) for part in table.parts)
    query = (
        f"SELECT {_texts(table.parts)} FROM ("  # noqa: S608 (names are quoted, values bound)
        f"SELECT {names}, row_number() OVER w AS place, lead(true) OVER w AS more"
        f" FROM {table.source.replace('%', '%%')}{sample} WHERE {restriction.sql}"
        f" WINDOW w AS (ORDER BY {names})) AS numbered"
        f" WHERE place %% {how.step} = 0 AND more ORDER BY place"
    )
    try:
        with table.session.transaction():
            keys = table.session.execute(query.encode(), restriction.parameters).fetchall()
    except psycopg.errors.UndefinedFunction:
        return []  # json, point ...: a key that message.key.columns made of such a column
    except psycopg.errors.QueryCanceled as error:
        raise DependencyError(
            f"cutting {table.schema.table} into chunks took longer than the statement timeout",
            code=CUT_TIMEOUT,
            hint="make chunks larger; index the columns of a filter and the surrogate-key",
        ) from error
    return [tuple(row) for row in keys]


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
    restriction = all_of(_no_nulls(table), range_condition(table.parts, span), condition)
    names = ", ".join(escaped(part.name) for part in table.parts)
    source = table.source.replace("%", "%%")
    last = ", ".join(f"{escaped(part.name)} DESC" for part in table.parts)
    before = (
        f"{restriction.sql} AND ({names}) < (SELECT {names} FROM {source}"  # noqa: S608 (see below)
        f" WHERE {restriction.sql} ORDER BY {last} LIMIT 1)"
    )
    query = (
        f"SELECT {_texts(table.parts)} FROM ("  # noqa: S608 (names are quoted, values bound)
        f"SELECT {names} FROM {source} WHERE {before} ORDER BY {names}"
        f" OFFSET (SELECT count(*) / 2 FROM {source} WHERE {before}) LIMIT 1) AS found"
    )
    row = table.session.execute(query.encode(), restriction.parameters * 4).fetchone()
    return None if row is None else tuple(row)


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
        TableError: ``text-unreadable``: the database holds a text that is no UTF-8;
            ``key-out-of-range``: a value of the key is none that the lake's type can hold.
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
    where = literally(table.session, condition)
    rows = f"SELECT {expressions} FROM {table.source} WHERE {where}"  # noqa: S608 (see above)
    data, longest = copied(
        table.session,
        f"COPY ({rows}) TO STDOUT (FORMAT csv)",
        table=table.schema.table,
        limit=max_bytes,
    )
    pieces = _parsed(pa.py_buffer(data), longest, len(table.cells))
    return typed_rows(table.schema, table.cells, pieces, table.snapshot)


def literally(session: Session, query: Condition) -> str:
    """The SQL with its values as literals: COPY takes no parameters of its own."""
    return psycopg.ClientCursor(session).mogrify(query.sql.encode(), query.parameters)


class _Size(NamedTuple):
    rows: float
    blocks: int
    bytes: float


def _size(table: OpenTable) -> _Size:
    """Estimate by the present size and the density when last analysed. TOAST counts as bytes."""
    name = table.source.removeprefix("ONLY ")
    row = table.session.execute(_SIZE, {"table": name}).fetchone() or (0.0, 0.0, 0.0, 0.0)
    counted, pages, blocks, size = row
    return _Size(estimated_rows(counted, pages, blocks), int(blocks), size)


def _no_nulls(table: OpenTable) -> Condition:
    nullable = [part for part in table.parts if part.nullable]
    return Condition(" AND ".join(f"{escaped(p.name)} IS NOT NULL" for p in nullable) or "true")


def _texts(parts: Sequence[KeyPart]) -> str:
    # format, not ::text, which would take the padding from char(n)
    return ", ".join(f"format('%%s', {escaped(part.name)})" for part in parts)


def _parsed(data: pa.Buffer, longest: int, count: int) -> Iterator[list[pa.Array]]:
    """Yield string columns in pieces; an empty field is null, but an empty text if quoted."""
    if not data.size:
        return
    if bytes(memoryview(data)[: len(_MARK)]) == _MARK:  # a value's: the parser leaves out one
        data = pa.py_buffer(_MARK + data.to_pybytes())
    names = [f"c{at}" for at in range(count)]
    blocks = pa_csv.ReadOptions(
        column_names=names, use_threads=False, block_size=max(_LEAST_BLOCK, 2 * longest)
    )
    texts = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    for batch in pa_csv.open_csv(pa.BufferReader(data), blocks, _PARSE, texts):
        yield batch.columns
