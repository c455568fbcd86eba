"""Tables that are made anew beside the old ones: who reads sees the one or the other, and no mixture."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from lakemark.settings.config import load
from lakemark.sink.names import folder_of
from stack.database import Database
from stack.processes import wait_for
from tests.kit.nightly import nightly
from tests.kit.number_rows import numbers_of
from tests.kit.running import STATE_S, Running
from tests.kit.servers import AT_NIGHT, on
from tests.kit.watched_table import read_all_the_while

pytestmark = [pytest.mark.integration, pytest.mark.slow, on(*AT_NIGHT)]

TABLE, OTHER = "items", "others"
ROWS = 3_000
SETTINGS = {"snapshot": {"incomplete": "auto", "chunk_rows": 500, "window_interval": "100ms"}}
VECTORS, BIG = "deletion-vectors", "spark-merge"


# A type that v does not follow, and another key.
POSTGRES = (
    "ALTER TABLE items ALTER v TYPE int USING v::int",
    "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (n, id)",
)
BINLOG = (
    "ALTER TABLE items MODIFY v int",
    "ALTER TABLE items DROP PRIMARY KEY, ADD PRIMARY KEY (n, id)",
)


def is_postgres(database: Database) -> bool:
    return database.server.connector == "postgres"


def insert(database: Database, table: str, v: str, first: int, last: int) -> None:
    rows = numbers_of(database, first, last)
    database.execute(f"INSERT INTO {table} SELECT seq, {v}, seq FROM {rows}")


@pytest.fixture
def source(any_database: Database) -> Database:
    for name in (TABLE, OTHER):
        any_database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text, n int NOT NULL)")
        insert(any_database, name, "CONCAT('1', seq)", 1, ROWS)
    any_database.start_connector({"snapshot.mode": "no_data"})
    return any_database


def items(running: Running) -> str:
    return running.database.identifier(TABLE)


@contextmanager
def run(source: Database, folder: Path, *, spark: bool = False) -> Iterator[Running]:
    by_hand = {"exclude": ["change-type", "change-key"]}
    lake = {"path": "./lake", "engine": "task-merge", "schema_changes": by_hand}
    settings = {**SETTINGS, "lake": lake}
    with Running(source, folder, settings, spark=spark) as found:
        found.lakemark.start()
        found.wait_equal()
        # Its last commit comes when all rows have been there for a while.
        found.wait_progress(items(found), "whole", lambda r: bool(r.get("complete")))
        yield found


@pytest.fixture
def running(source: Database, tmp_path) -> Iterator[Running]:
    with run(source, tmp_path) as found:
        yield found


def rebuild(running: Running) -> None:
    running.lakemark.command("table", "rebuild", items(running), "--yes")


def rebuilt(running: Running) -> None:
    """The new table is in its place; it may have been there before anybody looked."""
    running.lakemark.wait_for_event("table.rebuilt", STATE_S)
    running.wait_progress(items(running), "to be rebuilt", lambda r: not r.get("rebuild"))


def path_of(running: Running) -> str:
    return folder_of(load(running.lakemark.config).lake, items(running))


def set_engine(running: Running, engine: str) -> None:
    config = yaml.safe_load(running.lakemark.config.read_text())
    config["lake"]["engine"] = engine
    running.lakemark.config.write_text(yaml.safe_dump(config))


def test_a_type_that_it_cannot_follow(running: Running):
    database = running.database
    version = running.version(items(running))
    database.execute((POSTGRES if is_postgres(database) else BINLOG)[0])
    database.execute(f"UPDATE {TABLE} SET v = 0 WHERE id < 10")
    running.wait_state(items(running), "errored")
    assert running.version(items(running)) == version
    with read_all_the_while(path_of(running), at_least=ROWS) as seen:
        rebuild(running)
        insert(database, TABLE, "seq", 10001, 10100)
        running.wait_equal()
    assert len(seen) == 2
    rebuilt(running)
    running.wait_state(items(running), "streaming")


def test_another_key_and_a_table_of_other_rows(running: Running):
    database = running.database
    database.execute((POSTGRES if is_postgres(database) else BINLOG)[1])
    database.execute(f"UPDATE {TABLE} SET n = n + 1 WHERE id = 1")
    record = running.wait_state(items(running), "errored")
    assert record["code"] == "key-changed"
    assert f"lakemark table rebuild {items(running)}" in record["hint"]
    rebuild(running)
    running.wait_equal()
    database.execute(f"DELETE FROM {TABLE} WHERE n % 7 = 0")
    database.execute(f"UPDATE {TABLE} SET n = n + 1 WHERE id = 2")
    running.wait_equal()
    rebuilt(running)


@nightly
def test_an_empty_table_and_one_whose_log_was_removed(running: Running):
    database = running.database
    database.execute(f"DELETE FROM {TABLE}")
    running.wait_equal()
    rebuild(running)
    wait_for(
        lambda: any(
            e["run"].startswith("resnapshot-") for e in running.lakemark.events("snapshot.ended")
        ),
        STATE_S,
        "it to be read",
    )
    assert running.rows(items(running)).num_rows == 0
    database.execute(f"INSERT INTO {TABLE} VALUES (1, 'x', 1)")
    running.wait_equal()
    rebuilt(running)
    assert running.rows(items(running)).num_rows == 1


@pytest.mark.parametrize(
    ("spark", "engines"),
    [
        (False, (VECTORS, "task-merge")),
        pytest.param(True, (BIG, VECTORS, BIG, "task-merge"), marks=nightly),
    ],
    ids=["local", "spark"],
)
def test_engines_in_every_direction(source: Database, tmp_path, spark, engines):
    """Under changes all the while; the table's log is one, so that readers follow it."""
    with run(source, tmp_path, spark=spark) as running:
        for engine in engines:
            running.lakemark.stop()
            set_engine(running, engine)
            running.lakemark.start()
            begun = running.version(items(running))
            with read_all_the_while(path_of(running), at_least=ROWS):
                rebuild(running)
                for at in range(20):
                    source.execute(
                        f"UPDATE {TABLE} SET v = CONCAT(v, '{at % 10}') WHERE id % 20 = {at}"
                    )
                running.wait_equal()
                rebuilt(running)
            table = running.table(items(running))
            assert table.metadata().configuration.get("lakemark.engine", "task-merge") == engine
            has_vectors = "deletionVectors" in (table.protocol().reader_features or ())
            assert has_vectors == (engine != "task-merge")
            assert running.version(items(running)) > begun
        running.wait_equal()
