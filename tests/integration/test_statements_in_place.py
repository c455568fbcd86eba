"""Statements that change how values are written, while the connector lags: no row is read by others."""

import itertools
import threading
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import pytest
from deltalake import DeltaTable

from lakemark.settings.config import load
from lakemark.sink.names import folder_of
from lakemark.state import stored_form
from stack.compare import whole
from stack.database import Database
from tests.kit.nightly import nightly
from tests.kit.number_rows import numbers
from tests.kit.output_topics import OutputTopic
from tests.kit.running import STATE_S, Running
from tests.kit.servers import on

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# Each column is written as a number, or as bytes, before and after: nothing shows by which type.
TABLE = (
    "CREATE TABLE orders (id int PRIMARY KEY, at datetime(3), price decimal(10, 2), n bigint,"
    " gone int, note varchar(20))"
)
CHANGES = (
    "ALTER TABLE orders MODIFY at datetime(6), MODIFY price decimal(12, 4)",
    "ALTER TABLE orders MODIFY n bigint unsigned, ADD COLUMN day date",
    "ALTER TABLE orders DROP COLUMN gone",
)
OLD = (
    "INSERT INTO orders (id, at, price, n, gone, note)"
    " SELECT {0} + seq, '2026-01-02 03:04:05.678', 12.34, 5, 1, 'old' FROM {1}"
)
NEW = (
    "INSERT INTO orders (id, at, price, n, note, day)"
    " SELECT {0} + seq, '2026-01-02 03:04:05.678901', 12.3456, 18446744073709551615, 'new',"
    " '2026-02-03' FROM {1}"
)
SETTINGS = {"snapshot": {"incomplete": "auto", "chunk_rows": 40, "window_interval": "100ms"}}
TIMES = {"2026-01-02 03:04:05.678000", "2026-01-02 03:04:05.678901"}
WRITTEN = {1767323045678, 1767323045678000, 1767323045678901}
PRICES = {Decimal("12.34"), Decimal("12.3456")}
NUMBERS = {5, 18446744073709551615}


class Writer:
    """Updates rows of the table over and over while the block runs."""

    def __init__(self, database: Database) -> None:
        self._database, self._over = database, threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        for at in itertools.count():
            if self._over.wait(0.02):
                return
            some = f"id % 10 = {at % 10}"
            self._database.execute(f"UPDATE orders SET note = 'turn {at}' WHERE {some}")


def versions(running: Running, table: str) -> list[list[dict[str, Any]]]:
    """The rows of all versions of a table."""
    path = folder_of(load(running.lakemark.config).lake, table)
    newest = DeltaTable(path).version()
    return [whole(DeltaTable(path, version=at)).to_pylist() for at in range(newest + 1)]


def topics_read(directory: Path) -> set[str]:
    """The topics that the newest batch knows of."""
    states = (directory / "checkpoint" / "lakemark" / "state").glob("*.json")
    newest = max(states, key=lambda path: int(path.stem))
    return set(stored_form.decode(newest.read_bytes()).offsets)


def pipeline(database: Database, directory: Path, *, spark: bool = False, **more: Any) -> Running:
    """A pipeline that notices within seconds that the catalog has changed."""
    database.start_connector({"snapshot.mode": "initial"})
    connect = {"url": database.stack.connect.url, "connector": database.name}
    source = {"connect": connect, "watch_interval": "1s"}
    return Running(database, directory, {**SETTINGS, "source": source, **more}, spark=spark)


EACH = on("mariadb-11.4", *(pytest.param(s, marks=nightly) for s in ("mariadb-10.11", "mysql-9.7")))


@EACH
def test_rows_of_before_and_after_while_the_connector_lags(any_database: Database, tmp_path: Path):
    database, name = any_database, any_database.identifier("orders")
    database.execute(TABLE)
    database.execute(OLD.format(0, numbers(1, 50)))
    output = {"topic_prefix": f"{database.name}.clean"}
    with pipeline(database, tmp_path, output=output) as running:
        running.lakemark.start()
        running.wait_equal(name)
        with Writer(database):
            database.execute(OLD.format(1000, numbers(1, 50)))
            running.lakemark.wait_for_batch(STATE_S)
            database.stop_connector()
            for at, change in enumerate(CHANGES, start=1):
                database.execute(f"UPDATE orders SET note = 'step {at}' WHERE id % 3 = {at - 1}")
                database.execute(change)
            database.execute(NEW.format(2000, numbers(1, 50)))
            running.lakemark.wait_for_event("connector.changed", STATE_S)
            database.resume_connector()
            database.execute(NEW.format(3000, numbers(1, 50)))
            running.wait_captured(name, "SELECT count(*) + 150 FROM {}")
        running.wait_equal(name)
        rows = [row for version in versions(running, name) for row in version]
        assert {str(row["at"])[:26].ljust(26, "0") for row in rows} <= TIMES
        assert {row["price"] for row in rows} <= PRICES
        assert {int(row["n"]) for row in rows} <= NUMBERS
        told = [seen.event.get("after") for seen in OutputTopic.of(running, name).read()]
        assert {row["at"] for row in told if row} <= WRITTEN
        assert running.dead_letters() == []
        assert {e["table"] for e in running.lakemark.events("table.definition")} == {name}


@pytest.mark.parametrize("spark", [False, pytest.param(True, marks=nightly)])
@EACH
def test_a_type_that_the_table_cannot_follow(any_database: Database, tmp_path: Path, spark: bool):
    """The table is made anew, and no row of before is taken for one of after."""
    database, name = any_database, any_database.identifier("days")
    database.execute("CREATE TABLE days (id int PRIMARY KEY, v int)")
    database.execute("INSERT INTO days VALUES (1, 20260102)")
    with pipeline(database, tmp_path, spark=spark) as running:
        running.lakemark.start()
        running.wait_equal(name)
        database.stop_connector()
        database.execute("INSERT INTO days VALUES (2, 20260102)")
        database.execute("ALTER TABLE days MODIFY v date")
        database.execute("INSERT INTO days VALUES (3, '2026-01-02')")
        running.lakemark.wait_for_event("connector.changed", STATE_S)
        database.resume_connector()
        running.wait_equal(name)
        values = {row["v"] for version in versions(running, name) for row in version}
        assert values == {20260102, date(2026, 1, 2)}
        assert running.dead_letters() == []
        assert topics_read(tmp_path) == {database.name, database.topic("days")}, (
            "no topic of another name"
        )
