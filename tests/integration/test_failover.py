"""Two servers of which one replicates the other, and a connector that is moved between them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from stack.database import Database
from stack.local import Servers
from stack.processes import wait_for
from tests.kit.moved_server import MovedServer
from tests.kit.nightly import nightly
from tests.kit.number_rows import numbers
from tests.kit.running import STATE_S, Running
from tests.kit.servers import own_processes, own_server, require_here
from tests.kit.snapshots import Snapshots

pytestmark = [pytest.mark.integration, pytest.mark.slow, own_processes]

TABLE = "CREATE TABLE orders (id int PRIMARY KEY, note varchar(100))"
ROWS = f"INSERT INTO orders SELECT seq, CONCAT('note ', seq) FROM {numbers(1, 600)}"


MARKS = 10_000  # keys above these are nobody else's


class Writer:
    """Changes rows of the table while the block runs, but for the time that a server is changed."""

    def __init__(self, database: Database) -> None:
        self.database, self.ended, self.writing = database, threading.Event(), threading.Lock()
        self.turn = 0
        self.thread = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _write(self) -> None:
        while not self.ended.is_set():
            try:
                with self.database.connect() as connection:
                    while not self.ended.wait(0.005):
                        with self.writing, connection.transaction():
                            self.turn += 1
                            self._change(connection, self.turn * 7 % 640)
            except self.database.CLIENT_ERROR:
                self.ended.wait(0.1)  # the connection was cut

    def _change(self, connection, key: int) -> None:
        connection.execute("DELETE FROM orders WHERE id = %s", [key])
        if self.turn % 3:
            connection.execute("INSERT INTO orders VALUES (%s, %s)", [key, f"turn {self.turn}"])
        connection.execute("UPDATE orders SET note = %s WHERE id = %s", [f"{self.turn}", key + 1])


@contextmanager
def two_servers(service: str, directory: Path) -> Iterator[tuple[MovedServer, list]]:
    """Two servers, one a replica with a log of a lower number, and an address that leads to both."""
    with own_server(service, directory / "one") as one:
        two = one.sibling(directory / "two", 2)
        if two.connector == "mariadb":  # else its connector refuses to go on, see docs/mysql.md
            two.settings = {**two.settings, "gtid_domain_id": "2"}
        two.start()
        try:
            with one.connect() as connection:
                for _ in range(5):
                    connection.execute("FLUSH NO_WRITE_TO_BINLOG BINARY LOGS")
            two.follow(one)
            with MovedServer(one) as address:
                yield address, [one, two]
        finally:
            two.stop()


class Pipeline:
    """A table, its connector at an address that moves, a writer and lakemark."""

    def __init__(
        self, stack: Servers, address: MovedServer, servers: list, directory: Path
    ) -> None:
        self.stack, self.address, self.servers = stack, address, servers
        self.database = stack.fresh_database(TABLE, ROWS, server=address)
        self.table = f"{self.database.name}.orders"
        self.database.start_connector({"snapshot.mode": "no_data"})
        sections = {
            "snapshot": {"chunk_rows": 60, "parallelism": 2, "repair_interval": "5s"},
            "source": {
                "connect": {"url": stack.connect.url, "connector": self.database.name},
                "watch_interval": "1s",
            },
        }
        self.running = Running(self.database, directory, sections)
        self.marks = 0

    def switch(self, writer: Writer, *, kill: bool = False) -> None:
        """Move all to the other server; with `kill`, Connect ends without keeping its offsets."""
        (standby,) = [one for one in self.servers if one is not self.address.now]
        with writer.writing:
            if kill:
                self.stack.connect.kill()
            self.address.switch(standby)
        if kill:
            self.stack.connect.start()
        self.database.revive()

    def wait_arrived(self) -> None:
        """Return when a row that is written now is in the lake: all before it came."""
        self.marks += 1
        mark = MARKS + self.marks
        self.database.execute("INSERT INTO orders VALUES (%s, 'mark')", [mark])
        wait_for(
            lambda: mark in self.running.rows(self.table)["id"].to_pylist(),
            STATE_S,
            f"row {mark} to come into the lake",
        )


@pytest.mark.parametrize(
    ("service", "kill"),
    [
        ("mariadb-11.4", False),
        pytest.param("mariadb-11.4", True, marks=nightly),
        pytest.param("mysql-9.7", False, marks=nightly),
        pytest.param("mysql-9.7", True, marks=nightly),
    ],
)
def test_a_connector_is_moved_to_the_replica_and_back(
    stack: Servers, tmp_path: Path, service: str, kill: bool
):
    """Under load, with a snapshot under way; the replica's places are lower than the primary's."""
    require_here(stack)
    with two_servers(service, tmp_path) as (address, servers):
        shop = Pipeline(stack, address, servers, tmp_path / "lakemark")
        with shop.running as running:
            running.lakemark.start()
            with Writer(shop.database) as writer, Snapshots(running) as snapshots:
                name = snapshots.start(shop.table, delay="200ms")
                snapshots.wait_settled(name, shop.table, 1)
                for _ in range(3):
                    shop.switch(writer, kill=kill)
                    shop.wait_arrived()
                snapshots.completed(name)
            running.wait_equal(shop.table)
            newest = running.lakemark.progress()[shop.table]
            followed = running.lakemark.events("pipeline.log_followed")
        assert len(followed) >= 2, "places fell twice"
        assert not newest.get("code"), newest
