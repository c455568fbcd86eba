"""PostgreSQL: the values that older rows have in columns, as events would bring them."""

from collections.abc import Mapping

import psycopg
import pyarrow as pa
from psycopg import sql

from lakemark.connectors.postgres.column_sql import SESSION_SETTINGS, cell, selected
from lakemark.connectors.postgres.postgres import catalog_session, schemas_of
from lakemark.model.civil import Tally
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.config import DatabaseConfig

# The type with its modifier, as SQL: the server quotes what has to be.
_TYPE = """
SELECT format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute a
WHERE a.attrelid = %s AND a.attname = %s AND NOT a.attisdropped
"""
_COLUMN = "c"


def read_values(
    database: DatabaseConfig,
    table: str,
    oid: int,
    missing: Mapping[str, str],
    modes: HandlingModes,
    *,
    settings: Mapping[str, str],
) -> dict[str, pa.Array | None]:
    """Read values of columns as a chunk's rows, and events, have them.

    Args:
        database: where it is.
        table: ``schema.table``.
        oid: the table's.
        missing: the values' texts by column, see `catalog_facts.ColumnFacts.missing`.
        modes: how the connector writes values.
        settings: the connector's configuration.

    Returns:
        by column of events an array of one row; None for those without a value in `missing`, or
        with one that no event could bring. Columns that the connector leaves out are left out.

    Raises:
        DependencyError, LoginRefused, InvalidConfig: as `postgres.read_schemas` says.
    """
    with catalog_session(database) as session, session.transaction():
        local = {**SESSION_SETTINGS, "search_path": ""}
        session.execute(
            "SELECT set_config(name, value, true)"
            " FROM unnest(%s::text[], %s::text[]) AS s(name, value)",
            [list(local), list(local.values())],
        )
        known = schemas_of(session, [table], modes, settings=settings).get(table)
        if known is None:
            return {}
        schema, columns = known
        values: dict[str, pa.Array | None] = dict.fromkeys(schema.by_name)
        for column, target in zip(columns, schema.columns, strict=True):
            row = session.execute(_TYPE, [oid, column.name]).fetchone()
            if column.name not in missing or row is None:
                continue
            one = cell(column, target, modes)
            text = _text(session, missing[column.name], row[0], selected(_COLUMN, one))
            array, bad = one.array(pa.array([text], pa.string()), Tally())
            if not bad:
                values[column.name] = array
        return values


def _text(session: psycopg.Connection, value: str, kind: str, expression: str) -> str | None:
    """Return a value's text as a chunk's query writes it; a cast would trim char(n)."""
    query = sql.SQL(
        "SELECT CASE WHEN e.e IS NOT NULL THEN format('%s', e.e) END"
        " FROM (SELECT {expression} AS e FROM (SELECT {value}::{kind} AS {column}) AS t) AS e"
    ).format(
        expression=sql.SQL(expression),
        value=sql.Literal(value),
        kind=sql.SQL(kind),
        column=sql.Identifier(_COLUMN),
    )
    (text,) = session.execute(query).fetchone() or (None,)
    return None if text is None else str(text)
