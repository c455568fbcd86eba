"""PostgreSQL: the conditions for a snapshot of all tables; their sizes by its statistics."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from lakemark.connectors.database import CapturedTables, DatabaseAccess, PlannedTables
from lakemark.connectors.postgres.catalog import from_catalog
from lakemark.connectors.postgres.checks_tables import with_events
from lakemark.connectors.postgres.facts_database import database_facts
from lakemark.connectors.postgres.key_sql import estimated_rows
from lakemark.connectors.postgres.postgres_chunks import MAX_CHUNK_BYTES
from lakemark.connectors.postgres.postgres_session import connect, translated
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.table_id import pair_of

_NO_READ: Final = "lakemark's user may not read it: `lakemark doctor` has the statement"
_HIDDEN: Final = "row-level security may hide rows: `lakemark doctor` has the statement"
_STATEMENT_TIMEOUT: Final = timedelta(seconds=20)
# Of a table and its partitions: what `estimated_rows` takes, and the bytes.
_SIZES: Final = """
SELECT w.place, coalesce(sum(greatest(c.reltuples, 0)), 0)::float8,
       coalesce(sum(greatest(c.relpages, 0)), 0)::float8,
       coalesce(sum(pg_catalog.pg_relation_size(c.oid)), 0)::float8
         / pg_catalog.current_setting('block_size')::float8,
       coalesce(sum(pg_catalog.pg_table_size(c.oid)), 0)::int8
FROM unnest(%(schemas)s::text[], %(tables)s::text[]) WITH ORDINALITY AS w(schema, name, place)
JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
JOIN pg_catalog.pg_class t ON t.relnamespace = n.oid AND t.relname = w.name
CROSS JOIN LATERAL (
    SELECT t.oid UNION SELECT relid FROM pg_catalog.pg_partition_tree(t.oid) WHERE isleaf
) AS p(oid)
JOIN pg_catalog.pg_class c ON c.oid = p.oid AND c.relkind = 'r'
GROUP BY w.place ORDER BY w.place
"""


def table_sizes(database: DatabaseConfig, tables: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return table, about how many rows, and bytes, in the given order; without missing tables.

    Raises:
        DependencyError: the database does not answer.
        ConfigError: it refuses us.
    """
    pairs = [pair_of(table) for table in tables]
    parameters = {"schemas": [schema for schema, _ in pairs], "tables": [name for _, name in pairs]}
    with (
        connect(
            database, statement_timeout=_STATEMENT_TIMEOUT, application_name="lakemark plan"
        ) as session,
        translated(),
    ):
        session.execute("SET default_transaction_read_only = on")
        rows = session.execute(_SIZES, parameters).fetchall()
    return [(tables[at - 1], round(estimated_rows(*found)), size) for at, *found, size in rows]


def planned_tables(access: DatabaseAccess, connector: CapturedTables) -> PlannedTables:
    """See `Database.planned_tables`."""
    answers = database_facts(access.config, connector, access.modes, streams=False)
    relations = with_events(answers.relations or ())
    refused = {}
    for relation in relations:
        why = [refusal.message for refusal in relation.refusals]
        why += [] if relation.select else [_NO_READ]
        why += [_HIDDEN] if relation.row_security else []
        why += [] if relation.key else ["it has no key"]
        if why:
            refused[relation.table] = "; ".join(why)
    return PlannedTables(
        {r.table: from_catalog(r.table, r.columns, r.key, access.modes) for r in relations},
        table_sizes(access.config, [relation.table for relation in relations]),
        refused,
        MAX_CHUNK_BYTES,
    )
