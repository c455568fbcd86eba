"""PostgreSQL: signals' questions about a table: keys without a row, types and sense of a filter."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import errors

from lakemark.connectors.database import RowsOfSnapshot
from lakemark.connectors.postgres.column_sql import exact
from lakemark.connectors.postgres.key_sql import escaped, keys_query, range_condition
from lakemark.connectors.postgres.postgres import schemas_of
from lakemark.connectors.postgres.postgres_chunks import (
    PARTS,
    OpenTable,
    literally,
    read_chunk,
    read_rows,
)
from lakemark.connectors.postgres.postgres_session import Session, translated
from lakemark.errors import RefusedError, TableError
from lakemark.model.columns import Column
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import OUT_OF_RANGE
from lakemark.model.key_ranges import WHOLE, Boundary, Condition, KeyRange
from lakemark.model.schema import TableSchema
from lakemark.settings.table_id import pair_of


def absent_keys(
    table: OpenTable,
    keys: Sequence[Boundary],
    chunk: RowsOfSnapshot,
    *,
    span: KeyRange = WHOLE,
    condition: Condition | None = None,
) -> RowsOfSnapshot:
    """Those of some keys that the table has no row of, as of the same snapshot.

    Keys are compared as the lake compares them, by their canonical form. A row that is there but
    outside of the condition is not absent.

    Args:
        table: an open table.
        keys: as they were given to `read_chunk`.
        chunk: what it returned for them, the span and the condition.
        span: which keys.
        condition: only rows for which it holds were read.

    Returns:
        the keys, each once, and rows that have the key's columns only, in key order.

    Raises:
        TableError: ``key-inexact``: the connector's settings round the key, so that a row cannot
            be looked up by it; ``key-unreadable``: a key is none that the table can have.
    """
    narrow = _keys_only(table)
    if not keys:
        none = narrow.schema.arrow().empty_table()
        return RowsOfSnapshot(none, chunk.keys.slice(0, 0), narrow.schema, table.snapshot)
    inexact = [part.name for part in table.parts if not part.exact]
    if inexact:
        raise TableError(
            f"rows of {table.schema.table} cannot be looked up by key: the connector's settings"
            f" do not keep the values of {', '.join(inexact)} as they are",
            code="key-inexact",
            hint="take a snapshot of the whole table",
        )
    if condition is not None:
        chunk = read_chunk(narrow, span=span, keys=keys)
    query = keys_query(table.parts, keys)
    source = f"({literally(table.session, query)}) AS given"
    try:
        asked = read_rows(replace(narrow, source=source), range_condition(table.parts, span))
    except TableError as error:
        if error.code != OUT_OF_RANGE:
            raise
        raise key_unreadable(table.schema.table) from None
    there = pa.array([*chunk.keys.to_pylist(), *(key for key, *_ in chunk.bad)], pa.binary())
    first = dict.fromkeys(asked.keys.to_pylist())
    place = pc.index_in(pa.array(list(first), pa.binary()), asked.keys)
    chosen = place.filter(pc.invert(pc.is_in(asked.keys.take(place), there)))
    return replace(asked, rows=asked.rows.take(chosen), keys=asked.keys.take(chosen))


def key_columns(
    session: Session, table: str, modes: HandlingModes, *, settings: Mapping[str, str]
) -> list[Column]:
    """Columns of a table's key; none if there is no such table, or `absent_keys` refuses its keys.

    Args:
        session: of `connect`.
        table: ``schema.table``.
        modes: how the connector writes values.
        settings: the connector's configuration.

    Raises:
        DependencyError, ConfigError: as `translated` says.
    """
    with translated(table):
        found = schemas_of(session, [table], modes, settings=settings).get(table)
    if found is None:
        return []
    schema, columns = found
    rounded = {column.name for column in columns if not exact(column, modes)}
    if rounded.intersection(schema.key):
        return []
    return [schema.by_name[name] for name in schema.key if name in schema.by_name]


def _keys_only(table: OpenTable) -> OpenTable:
    by_name = dict(zip(table.schema.by_name, table.cells, strict=True))
    columns = tuple(table.schema.column(name) for name in table.schema.key)
    schema = TableSchema(table.schema.table, columns, table.schema.key)
    return replace(table, schema=schema, cells=tuple(by_name[name] for name in schema.key))


def key_unreadable(table: str) -> TableError:
    """Return the error for a list with a key that the table's key columns cannot hold."""
    return TableError(
        f"a key of the list is none that {table} can have",
        code="key-unreadable",
        hint="correct the list of keys, or take a snapshot of the table",
    )


def column_types(session: Session, table: str) -> dict[str, str]:
    """SQL names of a table's column types, those of domains' bases, for `conditions.rebuilt`.

    Raises:
        DependencyError, ConfigError: as `translated` says.
    """
    namespace, name = pair_of(table)
    with translated(table):
        rows = session.execute(PARTS, [namespace, name, None]).fetchall()
    return {column: kind for column, kind, *_ in rows}


def try_condition(session: Session, table: str, condition: Condition) -> None:
    """Ask the database whether a condition makes sense to it, without reading a row.

    Raises:
        RefusedError: ``bad-condition``: an operator does not go with the types of its operands.
        DependencyError, ConfigError: as `translated` says.
    """
    namespace, name = pair_of(table)
    query = f"SELECT FROM {escaped(namespace, name)} WHERE {condition.sql} LIMIT 0"
    with translated(table):
        try:
            session.execute(query.encode(), condition.parameters)
        except (errors.DataError, errors.SyntaxErrorOrAccessRuleViolation) as error:
            if isinstance(error, errors.InsufficientPrivilege):
                raise
            raise RefusedError(
                f"the database does not understand the filter for {table}",
                code="bad-condition",
                hint="compare columns with values of their own types",
            ) from error
