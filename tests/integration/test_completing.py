"""Tables that are equal without a command: read by themselves where nobody else reads them."""

from typing import Any

import pytest

from lakemark.state.table_parts import BY_SNAPSHOT
from stack.local import Database
from tests.kit.running import STATE_S, Running

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# What is created later is in the publication.
NO_ROWS = {"snapshot.mode": "no_data", "publication.autocreate.mode": "all_tables"}
AUTO = {"snapshot": {"incomplete": "auto", "chunk_rows": 50, "window_interval": "100ms"}}


def table(database: Database, name: str, *, rows: int) -> None:
    database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    if rows:
        database.execute(f"INSERT INTO {name} SELECT n, 'v' || n FROM generate_series(1, {rows}) n")


def queued(running: Running) -> list[list[str]]:
    return [
        event["tables"] for event in running.lakemark.events("snapshot.queued") if "tables" in event
    ]


def is_complete(record: dict[str, Any]) -> bool:
    return record.get("complete") == BY_SNAPSHOT


def started(running: Running) -> None:
    running.lakemark.environment["LAKEMARK_SOURCE__WATCH_INTERVAL"] = "1s"
    running.lakemark.start()


@pytest.fixture
def filled(database: Database) -> Database:
    table(database, "old", rows=220)
    table(database, "empty", rows=0)
    return database


def test_beside_a_connector_that_reads_no_rows(filled: Database, tmp_path):
    """Nothing happens in the source: not one event comes before the first run."""
    filled.start_connector(NO_ROWS)
    with Running(filled, tmp_path, AUTO) as running:
        started(running)
        running.wait_equal("public.old", "public.empty")
        assert queued(running) == [["public.empty", "public.old"]]
        for name in ("public.old", "public.empty"):
            running.wait_progress(name, "it to be complete", is_complete)
        running.lakemark.kill()
        filled.execute("UPDATE old SET v = 'new' WHERE id % 3 = 0")
        table(filled, "made_meanwhile", rows=3)
        running.lakemark.start()
        running.wait_progress("public.made_meanwhile", "it to be complete", is_complete)
        running.wait_equal()
        assert queued(running) == [["public.made_meanwhile"]], "what is complete is not read again"


def test_beside_a_connector_that_reads_them_itself(filled: Database, tmp_path):
    """Its rows count; those of a table that it was told of later do not come from it."""
    filled.execute("CREATE SCHEMA other")
    table(filled, "other.hidden", rows=40)
    filled.start_connector({"schema.include.list": "public"})
    with Running(filled, tmp_path, AUTO) as running:
        started(running)
        running.wait_equal("public.old")
        filled.execute("INSERT INTO old VALUES (1000, 'streamed')")
        running.wait_equal("public.old", "public.empty")
        filled.config = {**filled.config, "schema.include.list": "public,other"}
        filled.stack.connect.put_connector(filled.name, filled.config)
        running.wait_equal("other.hidden", "public.old")
        read = {name for names in queued(running) for name in names}
        assert "other.hidden" in read
        assert "public.old" not in read


def test_not_where_it_is_left_to_people(filled: Database, tmp_path):
    filled.start_connector(NO_ROWS)
    manual = {"snapshot": {**AUTO["snapshot"], "incomplete": "manual"}}
    with Running(filled, tmp_path, manual) as running:
        started(running)
        filled.execute("INSERT INTO empty VALUES (1, 'v')")
        running.wait_equal("public.empty", deadline_s=STATE_S)
        assert queued(running) == []
