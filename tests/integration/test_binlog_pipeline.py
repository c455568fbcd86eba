"""MySQL and MariaDB, the whole way: events and snapshots into tables, equal to what the server says."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lakemark.settings.config import load
from lakemark.sink.names import folder_of
from stack.database import Database
from stack.processes import StackError, wait_for
from tests.kit.avro_pipeline import PLAIN, form_settings, source_section
from tests.kit.nightly import nightly
from tests.kit.number_rows import numbers
from tests.kit.running import STATE_S, Running
from tests.kit.servers import ends_servers, on
from tests.kit.snapshots import Snapshots
from tests.kit.watched_table import duckdb_rows

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EACH = on(
    "mariadb-11.4", *(pytest.param(one, marks=nightly) for one in ("mariadb-10.11", "mysql-9.7"))
)
IN_AVRO_TOO = pytest.mark.parametrize("form", [PLAIN, pytest.param("confluent", marks=nightly)])
ORDERS = """
CREATE TABLE orders (
    id int PRIMARY KEY, note varchar(100), amount decimal(12, 2), big bigint unsigned,
    at datetime(6), t time(3), flag tinyint(1), raw varbinary(20), kind enum('a', 'b', 'c')
)
"""
ROWS = (
    "INSERT INTO orders SELECT seq, CONCAT('note ', seq), seq / 3, 18446744073709551615 - seq,"
    " TIMESTAMP('2026-01-01 10:00:00.000001') + INTERVAL seq SECOND, SEC_TO_TIME(CAST(seq AS SIGNED) * 1000 - 5000),"
    " seq % 3, UNHEX(HEX(seq)), ELT(1 + seq % 3, 'a', 'b', 'c')"
)


def insert(first: int, last: int) -> str:
    """The statement for rows of these keys."""
    return f"{ROWS} FROM {numbers(first, last)}"


class Shop:
    """A database with one table, its connector, and lakemark."""

    def __init__(self, database: Database, directory: Path, mode: str, form: str = PLAIN) -> None:
        self.database = database
        database.execute(ORDERS)
        database.execute(insert(1, 300))
        database.start_connector({"snapshot.mode": mode, **form_settings(form, database.stack)})
        sections = {
            "snapshot": {"chunk_rows": 80, "repair_interval": "5s"},
            "source": {**source_section(database, directory), "watch_interval": "1s"},
        }
        self.running = Running(database, directory, sections)

    def source(self, table: str = "orders") -> list[tuple[Any, ...]]:
        """The rows as the server says them, in the order of their key."""
        return sorted(map(_plain, self.database.execute(f"SELECT * FROM {table}")))

    def lake(self, table: str = "orders") -> list[tuple[Any, ...]]:
        """The rows as DuckDB reads the Delta table's files, likewise."""
        name = f"{self.database.name}.{table}"
        version = self.running.version(name)
        path = folder_of(load(self.running.lakemark.config).lake, name)
        rows = [] if version < 0 else duckdb_rows(path, "* EXCLUDE (_cdc)", version)
        return sorted(map(_plain, rows))

    def wait_equal(self) -> None:
        try:
            wait_for(lambda: self.lake() == self.source(), STATE_S, "the table to be equal")
        except StackError as error:
            lake, source = set(self.lake()), set(self.source())
            raise StackError(
                f"{error}; lake only {sorted(lake - source)[:3]}, source only"
                f" {sorted(source - lake)[:3]}\n{self.running.lakemark.log_tail(20)}"
            ) from error


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_value(value) for value in row)


def _value(value: Any) -> Any:
    if hasattr(value, "total_seconds"):  # PyMySQL's times; the lake has their text
        micros = round(value.total_seconds() * 1_000_000)
        sign, micros = ("-" if micros < 0 else ""), abs(micros)
        seconds, fraction = divmod(micros, 1_000_000)
        return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"
    return Decimal(value) if isinstance(value, int) else value


@IN_AVRO_TOO
@on("mariadb-11.4", pytest.param("mariadb-10.11", marks=nightly), "mysql-9.7")
def test_events_make_a_table_that_is_equal(any_database: Database, tmp_path: Path, form: str):
    """Rows of the connector's own snapshot, and every kind of change after it."""
    shop = Shop(any_database, tmp_path, "initial", form)
    any_database.execute("UPDATE orders SET note = NULL, t = '-12:00:00.5' WHERE id % 7 = 0")
    any_database.execute("DELETE FROM orders WHERE id % 11 = 0")
    any_database.execute("UPDATE orders SET id = id + 1000 WHERE id < 20")
    with any_database.connect() as connection, connection.transaction():
        connection.execute("UPDATE orders SET id = 5000 WHERE id = 30")
        connection.execute("UPDATE orders SET id = 30 WHERE id = 31")
        connection.execute("UPDATE orders SET id = 31 WHERE id = 5000")
    with shop.running:
        shop.running.lakemark.start()
        shop.wait_equal()
        any_database.execute("TRUNCATE TABLE orders")
        any_database.execute(insert(10, 60))
        shop.wait_equal()


@IN_AVRO_TOO
@EACH
def test_a_snapshot_beside_the_stream_is_equal(any_database: Database, tmp_path: Path, form: str):
    """Nothing is written into the database for it, and writers go on all the while."""
    shop = Shop(any_database, tmp_path, "no_data", form)
    with shop.running as running:
        running.lakemark.start()
        with Writers(any_database, xa=True), Snapshots(running) as snapshots:
            snapshots.run(f"{any_database.name}.orders")
        shop.wait_equal()
    signals = any_database.execute("SELECT count(*) FROM debezium_signal")
    assert signals == [(0,)], "a read knows a place in the log"


@nightly
@EACH
def test_a_snapshot_of_a_server_at_rest_ends(any_database: Database, tmp_path: Path):
    """Its place may be the beginning of a log file of which no event ever comes."""
    shop = Shop(any_database, tmp_path, "no_data")
    with shop.running as running:
        running.lakemark.start()
        for _ in range(2):
            any_database.execute("FLUSH BINARY LOGS")
            with Snapshots(running) as snapshots:
                snapshots.run(f"{any_database.name}.orders")
        shop.wait_equal()


@nightly
@IN_AVRO_TOO
@EACH
def test_changes_before_a_connector_that_begins_anew_are_read(
    any_database: Database, tmp_path: Path, form: str
):
    """No record of them exists: the connector says in its schema topic that it has begun."""
    shop = Shop(any_database, tmp_path, "no_data", form)
    with shop.running as running:
        running.lakemark.start()
        with Snapshots(running) as snapshots:
            snapshots.run(f"{any_database.name}.orders")
        any_database.execute("UPDATE orders SET note = 'seen' WHERE id = 1")
        shop.wait_equal()
        config = dict(any_database.config)
        any_database.forget_connector()
        any_database.execute("DELETE FROM orders WHERE id % 3 = 0")
        any_database.execute("UPDATE orders SET note = 'unseen' WHERE id % 3 = 1")
        any_database.start_connector(config)
        shop.wait_equal()


@ends_servers
@IN_AVRO_TOO
@EACH
def test_a_storm_ends_in_equal_tables(any_database: Database, tmp_path: Path, form: str):
    """Writers go on while a snapshot is read, and lakemark, Connect and the server are killed."""
    shop = Shop(any_database, tmp_path, "no_data", form)
    table = f"{any_database.name}.orders"
    with shop.running as running:
        running.lakemark.start()
        with Writers(any_database):
            with Snapshots(running) as snapshots:
                name = snapshots.start(table, delay="300ms")
                snapshots.wait_settled(name, table, 1)
            running.lakemark.kill_group()
            any_database.stack.connect.kill()
            any_database.server.kill()
            any_database.server.start()
            any_database.stack.connect.start()
            running.lakemark.start()
            any_database.revive()
            any_database.execute("ALTER TABLE orders ADD extra varchar(9) DEFAULT 'old'")
            any_database.execute("UPDATE orders SET extra = 'new' WHERE id % 5 = 0")
            with Snapshots(running) as snapshots:
                snapshots.ended(name)
        shop.wait_equal()


class Writers:
    """Three writers that change rows of the table while the block runs.

    The first commits each statement. The second has transactions, which MySQL's log has compressed:
    their events have one place. The third prepares them first, where `xa` says so.
    """

    def __init__(self, database: Database, *, xa: bool = False) -> None:
        self.database, self.ended, self.xa = database, threading.Event(), xa
        self.threads = [threading.Thread(target=self._write, args=(n,)) for n in range(3)]

    def __enter__(self) -> None:
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def _write(self, number: int) -> None:
        turn = 0
        while not self.ended.is_set():
            try:
                with self.database.connect() as connection:
                    if self.database.server.connector == "mysql":
                        connection.execute("SET SESSION binlog_transaction_compression = ON")
                    while not self.ended.wait(0.005):
                        turn += 1
                        with self._transaction(connection, number, turn):
                            self._change(connection, (turn * 7 + number * 101) % 330, turn)
            except self.database.CLIENT_ERROR:
                self.ended.wait(0.1)  # the server is away

    @contextmanager
    def _transaction(self, connection: Any, number: int, turn: int) -> Iterator[None]:
        if number == 0 or (number == 2 and not self.xa):
            yield
        elif number == 1:
            with connection.transaction():
                yield
        else:
            name = f"'{number}-{turn}'"
            connection.execute(f"XA START {name}")
            yield
            for phase in ("END", "PREPARE", "COMMIT"):
                connection.execute(f"XA {phase} {name}")

    def _change(self, connection: Any, key: int, turn: int) -> None:
        connection.execute("DELETE FROM orders WHERE id = %s", [key])
        if turn % 3:
            connection.execute(
                "INSERT IGNORE INTO orders (id, note, amount) VALUES (%s, %s, %s)",
                [key, f"turn {turn}", turn],
            )
