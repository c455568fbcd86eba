"""Tables of MariaDB and MySQL that a ghost takes the place of, while writers go on."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stack import shop
from stack.database import Database
from stack.workload import Workload
from tests.kit.nightly import nightly
from tests.kit.online_changes import gh_ost, pt_online_schema_change
from tests.kit.running import Running
from tests.kit.servers import on

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SETTINGS = {
    "snapshot": {"incomplete": "auto", "chunk_rows": 200, "window_interval": "100ms"},
}
ADDED = "ADD COLUMN extra varchar(9) NOT NULL DEFAULT 'old', MODIFY note varchar(500)"


@on("mariadb-11.4", *(pytest.param(s, marks=nightly) for s in ("mariadb-10.11", "mysql-9.7")))
@pytest.mark.parametrize("tool", [gh_ost, pt_online_schema_change])
def test_a_table_whose_place_a_ghost_takes(
    any_database: Database, tmp_path: Path, tool: Callable[[Database, str, str], None]
):
    """The connector captures the table alone: of the ghost there is no event before."""
    shop.create(any_database)
    shop.fill(any_database, scale=0.02)
    names = [any_database.identifier(table) for table in ("orders", "line_items")]
    listed = ",".join([*names, any_database.identifier("debezium_signal")])
    any_database.start_connector({"snapshot.mode": "no_data", "table.include.list": listed})
    with Running(any_database, tmp_path, SETTINGS) as running:
        running.lakemark.environment["LAKEMARK_SOURCE__WATCH_INTERVAL"] = "1s"
        running.lakemark.start()
        running.wait_equal(*names)
        with Workload(any_database, writers=2, rows_per_s=300) as workload:
            running.lakemark.wait_for_batch(60)
            tool(any_database, "orders", ADDED)
            any_database.execute("UPDATE orders SET extra = 'new' WHERE id % 5 = 0")
            running.lakemark.wait_for_batch(60)
            workload.stop()
        assert workload.written.rows > 0
        running.wait_equal(*names)
        changed = {
            e["kind"]
            for e in running.lakemark.events("catalog.changed")
            if e["table"] == any_database.identifier("orders")
        }
        assert "column-added" in changed
