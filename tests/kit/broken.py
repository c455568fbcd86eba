"""What tests that break something do to a connector, and what an operator would do next."""

from stack.local import Database, Servers
from stack.processes import wait_for
from tests.kit.running import STATE_S, Running


def revive(running: Running) -> None:
    """Wait until the connector streams again; what has failed of it is restarted."""
    running.database.revive(STATE_S)


def alone(database: Database, table: str, statement: str) -> None:
    """Change many rows of a table beside writers: row by row it might meet them in a deadlock."""
    database.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE; {statement}")


def forget(running: Running, stack: Servers) -> None:
    """Delete the connector, its stored offsets and its slot: what comes next begins anew.

    With offsets but without the slot Debezium refuses to start, whatever snapshot.mode says.
    """
    name = running.database.name
    stack.connect._request("PUT", f"/connectors/{name}/stop", STATE_S)
    wait_for(
        lambda: stack.connect.status(name)["connector"]["state"] == "STOPPED",
        STATE_S,
        "the connector to stop",
    )
    stack.connect._request("DELETE", f"/connectors/{name}/offsets", STATE_S)
    stack.connect.delete_connector(name)
    query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    with stack.postgres.connect() as connection:
        wait_for(
            lambda: connection.execute(query, [name]).fetchall() == [(False,)],
            STATE_S,
            "the slot to be free",
        )
        connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
