"""`database.url` leads to a server whose log the connector does not read: its rows do not count."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from stack.lakemark_process import Event
from stack.local import Database, Servers
from stack.mysql import LocalBinlogServer
from stack.processes import wait_for
from tests.kit.command_line import invoke
from tests.kit.nightly import nightly
from tests.kit.running import STATE_S, Running
from tests.kit.servers import own_processes, own_server, require_here
from tests.kit.snapshots import Snapshots

pytestmark = [pytest.mark.integration, pytest.mark.slow, own_processes]

TABLE = "CREATE TABLE orders (id int PRIMARY KEY, note varchar(100))"
ROWS = "INSERT INTO orders VALUES (1, 'old'), (2, 'old'), (3, 'old')"
STOP = {"mariadb": "STOP SLAVE SQL_THREAD", "mysql": "STOP REPLICA SQL_THREAD"}
HIGHER = ["FLUSH LOCAL BINARY LOGS"] * 7


@dataclass
class TwoServers:
    """The connector's server, and another one, whose log has higher places."""

    own: LocalBinlogServer
    other: LocalBinlogServer

    def on_other(self, *statements: str) -> None:
        with self.other.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def fall_behind(self) -> None:
        """Let the other one be a replica that does not apply what it gets from now on."""
        self.other.follow(self.own)
        self.other.wait_for(self.own)
        self.on_other(*HIGHER, STOP[self.own.connector])

    def stand_alone(self, database: Database) -> None:
        """Let the other one have a table of the same name, and rows and a log of its own."""
        self.on_other(
            f"CREATE DATABASE {database.name}",
            f"USE {database.name}",
            database.SIGNAL_TABLE,
            TABLE,
            *(f"INSERT INTO orders VALUES ({key}, 'strange')" for key in range(2, 60)),
            *HIGHER,
        )


@contextmanager
def two_servers(service: str, directory: Path) -> Iterator[TwoServers]:
    with own_server(service, directory / "own") as own:
        other = own.sibling(directory / "other", 2)
        other.start()
        try:
            yield TwoServers(own, other)
        finally:
            other.stop()


@pytest.mark.parametrize("other", ["a replica that is behind", "a stranger"])
@pytest.mark.parametrize(
    "service",
    [
        "mariadb-11.4",
        *(pytest.param(one, marks=nightly) for one in ("mariadb-10.11", "mysql-9.7")),
    ],
)
def test_rows_of_another_server_do_not_lie_over_newer_events(
    stack: Servers, tmp_path: Path, service: str, other: str
):
    require_here(stack)
    with two_servers(service, tmp_path) as servers:
        database = stack.fresh_database(TABLE, ROWS, server=servers.own)
        database.start_connector({"snapshot.mode": "no_data"})
        if other == "a stranger":
            servers.stand_alone(database)
        else:
            servers.fall_behind()
        table = f"{database.name}.orders"
        wrong = {"database": {"url": servers.other.dsn(database.name)}}
        with Running(database, tmp_path / "lakemark", wrong) as running:
            running.lakemark.start()
            database.execute("UPDATE orders SET note = 'new'")
            database.execute("DELETE FROM orders WHERE id = 2")
            wait_for(
                lambda: rows(running, table) == [(1, "new"), (3, "new")],
                STATE_S,
                "the events to be applied",
            )
            with Snapshots(running) as snapshots:
                name = snapshots.start(table)
                said = wait_for(
                    lambda: events(running, "snapshot.delayed", "snapshot.ended"),
                    STATE_S,
                    "the snapshot to be held up, or to end",
                )
                assert rows(running, table) == [(1, "new"), (3, "new")]
                assert said[0]["code"] == "other-log"
                assert not snapshots.settled(name, table)
                assert same_log(running) == "error"
                running.lakemark.stop()
                right = Running(database, tmp_path / "lakemark")
                right.lakemark.start()
                try:
                    snapshots.completed(name)
                    right.wait_equal(table)
                    assert same_log(right) == "ok"
                finally:
                    right.lakemark.kill()


def rows(running: Running, table: str) -> list[tuple[int, str]]:
    if running.version(table) < 0:
        return []
    return sorted((row["id"], row["note"]) for row in running.rows(table).to_pylist())


def events(running: Running, *names: str) -> list[Event]:
    return [event for event in running.lakemark.events() if event.get("event") in names]


def same_log(running: Running) -> str:
    """Return what the doctor says of the server's log."""
    done = invoke("doctor", "-c", str(running.lakemark.config), "-o", "json")
    (found,) = [one for one in json.loads(done.stdout) if one["check"] == "same log"]
    return str(found["verdict"])
