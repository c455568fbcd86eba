"""What a database changes without a word in its log: each table equals its source all the same."""

from typing import Any

import pytest

from stack.local import Database
from tests.kit.nightly import nightly
from tests.kit.running import Running

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DAILY = ["postgres", "newest"]
NIGHTLY = ["postgres", pytest.param("newest", marks=nightly)]
SETTINGS = {"snapshot": {"incomplete": "auto", "chunk_rows": 10, "window_interval": "100ms"}}
ROWS = 25
TABLE = "CREATE TABLE {} (id int PRIMARY KEY, a text, price numeric(10,2), mood mood)"
FILL = f"INSERT INTO {{}} SELECT n, 'a' || n, n, 'sad' FROM generate_series(1, {ROWS}) n"
# By table: what is done to it, the second time with another name where a name is used up.
CHANGES = {
    "added_constant": "ALTER TABLE {} ADD COLUMN c{n} int NOT NULL DEFAULT 11",
    "added_then_changed": "BEGIN; ALTER TABLE {} ADD COLUMN c{n} int DEFAULT 1; "
    "ALTER TABLE {} ALTER c{n} SET DEFAULT 2; COMMIT",
    "added_now": "ALTER TABLE {} ADD COLUMN c{n} timestamptz DEFAULT now()",
    "added_random": "ALTER TABLE {} ADD COLUMN c{n} uuid DEFAULT gen_random_uuid()",
    "added_serial": "ALTER TABLE {} ADD COLUMN c{n} serial",
    "retyped_computed": "ALTER TABLE {} ALTER price TYPE numeric(12,2) USING price * 1.2",
    "retyped_same": "ALTER TABLE {} ALTER a TYPE text USING a || '!'",
    "replaced": "ALTER TABLE {} DROP COLUMN a; ALTER TABLE {} ADD COLUMN a text",
    "swapped": "BEGIN; ALTER TABLE {} ADD COLUMN IF NOT EXISTS b text DEFAULT 'b'; "
    "ALTER TABLE {} RENAME a TO x; ALTER TABLE {} RENAME b TO a; ALTER TABLE {} RENAME x TO b; COMMIT",
    "made_anew": "DROP TABLE {}; " + TABLE + "; INSERT INTO {} VALUES (1000, 'new', 1)",
    "vacuumed": "VACUUM FULL {}",
}


def do(database: Database, statements: str, table: str, n: int) -> None:
    text = statements.replace("{n}", str(n)).replace("{}", table)
    if "BEGIN" in text:
        database.execute(text)
        return
    for statement in text.split("; "):
        database.execute(statement)


def fill(database: Database) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    for table in CHANGES:
        database.execute(TABLE.format(table))
        database.execute(FILL.format(table))
    database.start_connector(
        {"snapshot.mode": "no_data", "publication.autocreate.mode": "all_tables"}
    )


def is_complete(record: dict[str, Any]) -> bool:
    return bool(record.get("complete")) and not record.get("resnapshot")


def settled(running: Running) -> None:
    running.wait_equal()
    for table in running.tables():
        running.wait_progress(table, "it to be complete", is_complete)


def started(running: Running) -> None:
    running.lakemark.environment["LAKEMARK_SOURCE__WATCH_INTERVAL"] = "1s"
    running.lakemark.start()


@pytest.fixture
def source(either_database: Database) -> Database:
    fill(either_database)
    return either_database


@pytest.mark.parametrize("either_database", DAILY, indirect=True)
def test_while_it_streams_and_once_more(source: Database, tmp_path):
    with Running(source, tmp_path, SETTINGS) as running:
        started(running)
        settled(running)
        for n in (1, 2):
            for table, change in CHANGES.items():
                do(source, change, table, n)
            source.execute(
                "ALTER TYPE mood RENAME VALUE '{}' TO '{}'".format(
                    *[("sad", "blue"), ("blue", "sad")][n - 1]
                )
            )
            running.wait_equal()
        kinds = {
            e["kind"]
            for e in running.lakemark.events("catalog.changed")
            if e["table"] == "public.vacuumed"
        }
        assert "storage-changed" in kinds


@pytest.mark.parametrize("either_database", NIGHTLY, indirect=True)
def test_while_it_is_down(source: Database, tmp_path):
    with Running(source, tmp_path, SETTINGS) as running:
        started(running)
        settled(running)
        running.lakemark.kill()
        for table, change in CHANGES.items():
            do(source, change, table, 1)
        source.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
        running.lakemark.start()
        running.wait_equal()


@pytest.mark.parametrize("either_database", NIGHTLY, indirect=True)
def test_while_the_table_is_read(source: Database, tmp_path):
    """The changes meet the first snapshot, wherever it is."""
    with Running(source, tmp_path, SETTINGS) as running:
        started(running)
        running.lakemark.wait_for_event("snapshot.queued", 480)
        for table, change in CHANGES.items():
            do(source, change, table, 1)
        source.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
        settled(running)


@pytest.mark.parametrize("either_database", NIGHTLY, indirect=True)
def test_a_table_of_another_name_takes_its_rows_along(source: Database, tmp_path):
    with Running(source, tmp_path, SETTINGS) as running:
        started(running)
        settled(running)
        source.execute("ALTER TABLE vacuumed RENAME TO renamed")
        source.execute("INSERT INTO renamed VALUES (5000, 'new', 1)")
        running.wait_equal("public.renamed")
        events = running.lakemark.events("catalog.changed")
        assert {e["kind"] for e in events if e["table"] == "public.vacuumed"} == {"table-renamed"}


def test_a_slot_that_was_dropped_and_made_again_while_it_is_down(database: Database, tmp_path):
    """Nothing that is captured has changed since: the slot's own facts alone tell."""
    database.execute(TABLE.replace("mood mood", "mood text").format("lost"))
    database.execute(FILL.format("lost"))
    database.start_connector({"snapshot.mode": "no_data"})
    config = dict(database.config)
    with Running(database, tmp_path, SETTINGS) as running:
        started(running)
        settled(running)
        for n in range(40):
            database.execute(f"UPDATE lost SET price = price + 1 WHERE id = {n}")
        running.wait_equal()
        database.execute("VACUUM FULL lost")
        running.lakemark.wait_for_event("catalog.changed", 60)
        running.lakemark.kill()
        database.forget_connector()
        database.execute("DELETE FROM lost WHERE id % 2 = 0")
        database.execute("UPDATE lost SET a = 'unseen' WHERE id % 3 = 0")
        database.start_connector(config)
        running.lakemark.start()
        running.wait_equal()
        kinds = {e["kind"] for e in running.lakemark.events("catalog.changed")}
        assert "slot-made-anew" in kinds
