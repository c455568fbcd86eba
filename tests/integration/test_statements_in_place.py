"""Statements that change how values are written, while the connector lags: no row is read by others."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lakemark.settings.config import load
from lakemark.sink.names import folder_of
from stack.compare import whole
from stack.database import Database
from tests.kit.nightly import nightly
from tests.kit.number_rows import numbers
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
PRICES = {Decimal("12.34"), Decimal("12.3456")}
NUMBERS = {5, 18446744073709551615}


def versions(running: Running, table: str) -> list[list[dict[str, Any]]]:
    """The rows of all versions of a table."""
    path = folder_of(load(running.lakemark.config).lake, table)
    newest = DeltaTable(path).version()
    return [whole(DeltaTable(path, version=at)).to_pylist() for at in range(newest + 1)]


@on("mariadb-11.4", *(pytest.param(s, marks=nightly) for s in ("mariadb-10.11", "mysql-9.7")))
def test_rows_of_before_and_after_while_the_connector_lags(any_database: Database, tmp_path: Path):
    database, name = any_database, any_database.identifier("orders")
    database.execute(TABLE)
    database.execute(OLD.format(0, numbers(1, 50)))
    database.start_connector({"snapshot.mode": "no_data"})
    connect = {"url": database.stack.connect.url, "connector": database.name}
    source = {"source": {"connect": connect, "watch_interval": "1s"}}
    with Running(database, tmp_path, SETTINGS | source) as running:
        running.lakemark.start()
        running.wait_equal(name)
        database.execute(OLD.format(1000, numbers(1, 50)))
        running.wait_equal(name)
        database.stop_connector()
        for at, change in enumerate(CHANGES, start=1):
            database.execute(f"UPDATE orders SET note = 'step {at}' WHERE id % 3 = {at - 1}")
            database.execute(change)
        database.execute(NEW.format(2000, numbers(1, 50)))
        running.lakemark.wait_for_event("connector.changed", STATE_S)
        database.resume_connector()
        database.execute(NEW.format(3000, numbers(1, 50)))
        running.wait_equal(name)
        rows = [row for version in versions(running, name) for row in version]
        assert {str(row["at"])[:26].ljust(26, "0") for row in rows} <= TIMES
        assert {row["price"] for row in rows} <= PRICES
        assert {int(row["n"]) for row in rows} <= NUMBERS
        assert running.dead_letters() == []
        assert [e for e in running.lakemark.events("table.definition") if e["table"] == name]
