"""Asks PostgreSQL how large tables are, by its statistics: as the coordinator expects it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from lakemark.connectors.postgres.key_sql import estimated_rows
from lakemark.connectors.postgres.postgres_session import connect, translated
from lakemark.settings.config import DatabaseConfig
from lakemark.settings.table_id import pair_of

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
    """Table, about how many rows, bytes; in the order given, without tables that are not there.

    Raises:
        DependencyError: the database does not answer.
        ConfigError: it refuses us.
    """
    pairs = [pair_of(table) for table in tables]
    given = {"schemas": [schema for schema, _ in pairs], "tables": [name for _, name in pairs]}
    with (
        connect(
            database, statement_timeout=_STATEMENT_TIMEOUT, application_name="lakemark plan"
        ) as session,
        translated(),
    ):
        session.execute("SET default_transaction_read_only = on")
        rows = session.execute(_SIZES, given).fetchall()
    return [(tables[at - 1], round(estimated_rows(*found)), size) for at, *found, size in rows]
