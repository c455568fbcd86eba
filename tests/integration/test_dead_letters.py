"""What cannot be applied, by the command line, on real servers: dead letters replayed, a table skipped."""

import json

import pytest
from deltalake import DeltaTable

from stack.local import Database
from stack.processes import wait_for
from tests.kit.documents import DOCS, typed
from tests.kit.page_shell import PageShell
from tests.kit.running import STATE_S, Running, header
from tests.kit.snapshots import SNAPSHOT, Snapshots

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

LETTER = "shop.public.orders-0-4711"
ORDERS, LINES, ITEMS = "public.orders", "public.lines", "public.items"


def create(database: Database) -> None:
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, note text, status text DEFAULT 'open',"
        " placed date DEFAULT '2026-02-01')"
    )
    database.execute("CREATE TABLE customers (id int PRIMARY KEY)")
    database.execute(
        "CREATE TABLE lines (sku text, at timestamp, amount numeric(8, 2), PRIMARY KEY (at, sku))"
    )
    database.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO orders SELECT n, 'order ' || n FROM generate_series(1, 20) n")
    database.execute(
        """INSERT INTO lines SELECT 'a"' || n, '2024-01-01'::timestamp + n * interval '1.5 s', n / 4.0"""
        " FROM generate_series(1, 20) n"
    )
    database.execute("INSERT INTO items SELECT n, 'item ' || n FROM generate_series(1, 20) n")


def poison(running: Running, table: str) -> bytes:
    """Put half a record behind the newest one of a table, under its key; return the key."""
    kafka, topic = running.database.stack.kafka, running.database.topic(table.partition(".")[2])
    newest = kafka.read(topic, count=20)[-1]
    key, value = newest.key() or b"", newest.value() or b""
    producer = kafka.producer()
    producer.produce(topic, key=key, value=value[: len(value) // 2])
    assert producer.flush(30) == 0
    return key


def read_again_by_itself(running: Running) -> bool:
    """Whether both tables have had the rows that their dead letters were about."""
    ended = {e["run"].rpartition("-")[0] for e in running.lakemark.events("snapshot.ended")}
    return ended >= {f"reread-{table}" for table in (ORDERS, LINES)}


def test_rows_of_dead_letters_come_back(database: Database, tmp_path):
    create(database)
    database.start_connector(
        {"topic.creation.default.partitions": "1", "key.converter.schemas.enable": "true"}
    )
    with Running(database, tmp_path, SNAPSHOT) as running:
        running.lakemark.start()
        running.wait_equal()
        assert "no dead letters" in running.lakemark.command("dlq", "ls")
        bad = {table: poison(running, table) for table in (ORDERS, LINES)}
        wait_for(lambda: read_again_by_itself(running), STATE_S, "the keys to be read again")
        ids = {header(m, "topic").split(".", 1)[1]: header(m, "id") for m in running.dead_letters()}

        ls, show, raw, replay = (
            line.replace(LETTER, ids[ORDERS])
            for line in typed(DOCS / "dead-letters.md", "lakemark dlq")
        )
        shell = PageShell(tmp_path / "shell", here=running.directory)
        listed = shell.run(ls)
        assert ids[ORDERS] in listed
        assert ids[LINES] not in listed
        assert f"{ORDERS}  invalid-json: 1" in listed
        assert "order 20" not in listed
        shown = json.loads(running.lakemark.command("dlq", "show", ids[ORDERS], "-o", "json"))
        assert (shown["reason"], shown["table"]) == ("invalid-json", ORDERS)
        assert shown["key"]["data"].encode() == bad[ORDERS]
        assert ids[ORDERS] in shell.run(show)
        shell.run(raw)
        assert (running.directory / "record.json").read_bytes() == letter(running, ids[ORDERS])

        # As if the rows had been lost: nothing but the replay brings them back.
        for table in (ORDERS, LINES):
            assert (
                DeltaTable(running.table(table).table_uri).delete(
                    "note = 'order 20'" if table == ORDERS else "amount = 5.00"
                )["num_deleted_rows"]
                == 1
            )
        assert not running.compare(ORDERS, LINES).is_equal

        replayed = shell.run(replay)
        replayed += running.lakemark.command("dlq", "replay", ids[LINES], "--wait")
        assert replayed.count(": completed") == 2
        found = running.compare()
        assert found.is_equal, str(found)
        snapshots_as_the_page_starts_them(running, shell)


def letter(running: Running, name: str) -> bytes:
    """The bytes of a dead letter."""
    (found,) = [m for m in running.dead_letters() if header(m, "id") == name]
    return found.value() or b""


def snapshots_as_the_page_starts_them(running: Running, shell: PageShell) -> None:
    """Whole tables, rows by condition, rows by key; and one that is changed while it runs."""
    database = running.database
    database.execute("UPDATE orders SET status = 'closed' WHERE id <= 5")
    database.execute("UPDATE orders SET placed = '2025-12-31' WHERE id = 6")
    database.execute("INSERT INTO orders VALUES (42, 'asked for'), (43, 'asked for')")
    running.wait_equal()
    whole, some, keys, _, change = typed(DOCS / "snapshots.md", "lakemark snapshot")
    assert "completed" in shell.run(whole)
    with Snapshots(running) as snapshots:
        for line, rows in ((some, 20 + 2 - 6), (keys, 2)):
            shell.run(f"{line} --wait")
            ended = [note for note in snapshots.notes() if note.type == "COMPLETED"][-1]
            assert ended.additional_data["total_rows_scanned"] == str(rows)
        run = snapshots.start(ORDERS, chunk_rows=5, delay="1h")
        snapshots.wait_note(run, "STARTED")
        shell.run(change.replace("RUN", run))
        wait_for(lambda: snapshots.kept()[run][0].parallelism == 8, STATE_S, "eight at once")


def test_a_table_that_skips_is_read_again(database: Database, tmp_path):
    create(database)
    database.start_connector({"topic.creation.default.partitions": "1"})
    with Running(database, tmp_path, SNAPSHOT) as running:
        running.lakemark.start()
        running.wait_equal()
        running.lakemark.command("table", "pause", ITEMS)
        running.wait_state(ITEMS, "paused")
        database.execute("DELETE FROM items WHERE id = 1")
        database.execute("UPDATE items SET note = 'changed' WHERE id = 2")
        database.execute("INSERT INTO items VALUES (21, 'new')")
        running.wait_drained()

        said = running.lakemark.command("table", "skip", ITEMS, "--yes")
        assert f"{database.topic('items')}-0: offsets 20 to " in said
        running.wait_equal()
        state = running.wait_state(ITEMS, "streaming")
        assert running.lakemark.events("table.skipped")
        assert not running.lakemark.events("table.caught_up"), "its events were left out"
        running.wait_progress(ITEMS, "the snapshot", lambda r: not r.get("resnapshot"))
        assert not state.get("from_offsets")
