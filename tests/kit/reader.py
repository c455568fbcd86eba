"""Reading a table of a database with lakemark's own reader."""

from lakemark.connectors.postgres.postgres_chunks import RowsOfSnapshot, open_table, read_chunk
from lakemark.connectors.postgres.postgres_session import connect
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.config import DatabaseConfig
from stack.local import Database

DEFAULTS = HandlingModes()


def config(database: Database, user: str = "postgres") -> DatabaseConfig:
    return DatabaseConfig(url=database.dsn.replace("postgres@", f"{user}@"))


def whole(
    database: Database, table: str, modes: HandlingModes = DEFAULTS, **options
) -> RowsOfSnapshot:
    with (
        connect(config(database)) as session,
        open_table(session, table, modes, settings={}) as opened,
    ):
        return read_chunk(opened, **options)
