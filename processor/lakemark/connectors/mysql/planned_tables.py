"""MariaDB and MySQL: the conditions for a snapshot of all tables; their sizes by statistics."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from lakemark.connectors.database import CapturedTables, DatabaseAccess, PlannedTables
from lakemark.connectors.mysql.checks_tables import with_events
from lakemark.connectors.mysql.facts_database import database_facts
from lakemark.connectors.mysql.mysql_catalog import schemas_of
from lakemark.connectors.mysql.mysql_chunks import MAX_CHUNK_BYTES
from lakemark.connectors.mysql.mysql_errors import translated
from lakemark.connectors.mysql.mysql_session import Session, connect
from lakemark.connectors.refusals import refusals
from lakemark.settings.table_id import pair_of

_NO_READ: Final = "lakemark's user may not read it: `lakemark doctor` has the statement"
_STATEMENT_TIMEOUT: Final = timedelta(seconds=20)
_SIZE: Final = """
SELECT COALESCE(table_rows, 0), COALESCE(data_length, 0)
FROM information_schema.tables WHERE table_schema = %s AND table_name = %s
"""


def planned_tables(access: DatabaseAccess, connector: CapturedTables) -> PlannedTables:
    """See `Database.planned_tables`."""
    answers = database_facts(access.config, connector, access.modes)
    relations = with_events(answers.relations or ())
    names = [relation.table for relation in relations]
    with (
        connect(
            access.config, statement_timeout=_STATEMENT_TIMEOUT, name="lakemark plan"
        ) as session,
        translated(),
    ):
        schemas = schemas_of(session, names, access.modes, settings=access.connector)
        sizes = _sizes(session, names)
    refused = {}
    for relation in relations:
        columns = [name for name, _ in relation.types]
        why = [one.message for one in refusals(access.connector, relation.table, columns)]
        why += [] if relation.select else [_NO_READ]
        why += [] if relation.key else ["it has no key"]
        if why:
            refused[relation.table] = "; ".join(why)
    return PlannedTables(schemas, sizes, refused, MAX_CHUNK_BYTES)


def _sizes(session: Session, tables: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return table, about how many rows, and bytes, in the given order; without missing tables."""
    return [
        (table, int(rows), int(size))
        for table in tables
        for rows, size in session.execute(_SIZE, pair_of(table))
    ]
