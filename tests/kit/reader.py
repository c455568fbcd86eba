"""Reading a table of a database with lakemark's own reader."""

from lakemark.config import DatabaseConfig
from lakemark.snapshot.readers.postgres_chunks import Chunk, open_table, read_chunk
from lakemark.snapshot.readers.postgres_session import connect
from lakemark.source.modes import HandlingModes
from stack.local import Database

DEFAULTS = HandlingModes()


def config(database: Database, user: str = "postgres") -> DatabaseConfig:
    return DatabaseConfig(url=database.dsn.replace("postgres@", f"{user}@"))


def whole(database: Database, table: str, modes: HandlingModes = DEFAULTS, **options) -> Chunk:
    with (
        connect(config(database)) as session,
        open_table(session, table, modes, settings={}) as opened,
    ):
        return read_chunk(opened, **options)
