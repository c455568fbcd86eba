"""What tests that break something do to a connector, and what an operator would do next."""

from stack.local import Database
from tests.kit.running import STATE_S, Running


def revive(running: Running) -> None:
    """Wait until the connector streams again; what has failed of it is restarted."""
    running.database.revive(STATE_S)


def alone(database: Database, table: str, statement: str) -> None:
    """Change many rows of a table beside writers: row by row it might meet them in a deadlock."""
    if database.server.connector == "postgres":
        database.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE; {statement}")
        return
    with database.connect() as connection:
        connection.execute(f"LOCK TABLES {table} WRITE")
        connection.execute(statement)
