"""PostgreSQL: the publication must bring every change of a table that is read in chunks."""

from collections.abc import Iterable, Mapping
from typing import Final

from lakemark.connectors.postgres.postgres_session import Session
from lakemark.connectors.refusals import Refusal
from lakemark.settings.table_id import pair_of

_FILTERS_VERSION: Final = 150_000
_PUBLISHED: Final = """
SELECT {filters} FROM pg_catalog.pg_publication_tables
WHERE pubname = %s AND schemaname = %s AND tablename = %s
"""
_OPERATIONS: Final = """
SELECT pubinsert, pubupdate, pubdelete FROM pg_catalog.pg_publication WHERE pubname = %s
"""


def publication_of(settings: Mapping[str, str]) -> str:
    """Return the name of the connector's publication; empty for a plugin that needs none."""
    if settings.get("plugin.name", "decoderbufs").strip().lower() != "pgoutput":
        return ""
    return settings.get("publication.name", "dbz_publication")


def unpublished(
    session: Session, table: str, columns: Iterable[str], settings: Mapping[str, str]
) -> list[Refusal]:
    """The reasons not to read a table that lie in the connector's publication.

    Rows that a chunk brings and whose changes the log does not would be stale for ever.

    Args:
        session: of `connect`.
        table: ``schema.table``.
        columns: those that the log must bring.
        settings: the connector's configuration.

    Raises:
        psycopg.Error: whatever the session raises.
    """
    if settings.get("plugin.name", "decoderbufs") != "pgoutput":
        return []
    publication = settings.get("publication.name", "dbz_publication")
    filters = "attnames::text[], rowfilter"
    if session.info.server_version < _FILTERS_VERSION:
        filters = "NULL::text[], NULL::text"
    query = _PUBLISHED.format(filters=filters)
    schema, name = pair_of(table)
    row = session.execute(query.encode(), [publication, schema, name]).fetchone()
    if row is None:
        return [
            Refusal(
                "not-published",
                f"the publication {publication} does not have {table}",
                f"ALTER PUBLICATION {publication} ADD TABLE {table}; of a partitioned"
                " table also SET (publish_via_partition_root = true), or name its partitions",
            )
        ]
    published, row_filter = row
    problems = _hidden_changes(session, publication)
    if row_filter is not None:
        problems.append(
            Refusal(
                "publication-filters-rows",
                f"the publication {publication} has a row filter for {table}",
                "publish all rows, or let the connector take the snapshot",
            )
        )
    hidden = sorted(set(columns) - set(published)) if published else []
    if hidden:
        problems.append(
            Refusal(
                "publication-hides-columns",
                f"the publication {publication} leaves {', '.join(hidden)} of {table} out",
                "publish these columns, or name them in column.exclude.list",
            )
        )
    return problems


def _hidden_changes(session: Session, publication: str) -> list[Refusal]:
    row = session.execute(_OPERATIONS, [publication]).fetchone() or (True, True, True)
    names = ("insert", "update", "delete")
    hidden = [name for name, published in zip(names, row, strict=True) if not published]
    if not hidden:
        return []
    return [
        Refusal(
            "publication-hides-changes",
            f"the publication {publication} does not publish: {', '.join(hidden)}",
            f"ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')",
        )
    ]
