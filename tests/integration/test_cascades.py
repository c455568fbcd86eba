"""Rows that foreign keys change without an event: their tables are read again, and become equal."""

from pathlib import Path

import pytest

from stack.database import Database
from stack.processes import wait_for
from tests.integration.test_binlog_pipeline import Shop
from tests.kit.running import STATE_S
from tests.kit.servers import on

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TABLES = (
    "CREATE TABLE parent (id int PRIMARY KEY, code int NOT NULL UNIQUE)",
    (
        "CREATE TABLE child (id int PRIMARY KEY, p int NULL,"
        " FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE ON UPDATE CASCADE)"
    ),
    (
        "CREATE TABLE grandchild (id int PRIMARY KEY, c int NULL,"
        " FOREIGN KEY (c) REFERENCES child (id) ON DELETE SET NULL)"
    ),
    (
        "CREATE TABLE named (id int PRIMARY KEY, code int NULL,"
        " FOREIGN KEY (code) REFERENCES parent (code) ON UPDATE CASCADE)"
    ),
    "INSERT INTO parent VALUES (1, 10), (2, 20), (3, 30), (4, 40)",
    "INSERT INTO child VALUES (1, 1), (2, 2), (3, 3), (4, 4)",
    "INSERT INTO grandchild VALUES (1, 1), (2, 2), (3, 3), (4, 4)",
    "INSERT INTO named VALUES (1, 10), (2, 20), (3, 40)",
)
NAMES = ("parent", "child", "grandchild", "named")


@on("mariadb-11.4")
def test_children_are_read_again_after_what_their_parents_tell(
    any_database: Database, tmp_path: Path
):
    for statement in TABLES:
        any_database.execute(statement)
    shop = Shop(any_database, tmp_path, "initial")

    def wait_equal() -> None:
        for name in NAMES:
            wait_for(
                lambda name=name: shop.lake(name) == shop.source(name), STATE_S, f"{name} equal"
            )

    with shop.running as running:
        running.lakemark.start()
        wait_equal()
        any_database.execute("DELETE FROM parent WHERE id = 3")
        any_database.execute("UPDATE parent SET id = 9 WHERE id = 1")
        wait_equal()
        any_database.execute("UPDATE parent SET code = 41 WHERE id = 4")
        wait_equal()
    assert any_database.execute("SELECT c FROM grandchild WHERE id = 3") == [(None,)]
    assert any_database.execute("SELECT code FROM named WHERE id = 3") == [(41,)]
