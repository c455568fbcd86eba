"""Snapshots beside the stream, on real servers: Debezium's cases, see debezium_cases.md.

One pipeline serves all tests; each has tables of its own and leaves no run behind. The connector takes
no snapshot itself (`no_data`): what a table holds came by a chunk or by the log. Tables have deletion
vectors, so rows of chunks go straight into data files; `test_snapshots_more` has them in records.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from stack.local import Database, Servers
from stack.processes import wait_for
from tests.kit.running import Running
from tests.kit.snapshots import LAST, NOTE_S, SLOW, SNAPSHOT, Snapshots, kinds, windows_held_open

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("streaming")]  # fmt: skip

FOUR = "pk1 int, pk2 int, pk3 int, pk4 int, aa int"
PLAIN = (
    "quiet", "good", "re_one", "re_two", "twice", "raised", "whole", "kept", "first", "second",
    "filtered", "stopped", "gone", "stays", "halted",
)  # fmt: skip
SHAPES = {
    "four": f"({FOUR}, PRIMARY KEY (pk1, pk2, pk3, pk4))",
    "no_key": f"({FOUR})",
    "turned": f"({FOUR}, PRIMARY KEY (pk1, pk2, pk3, pk4))",
    "exact": "(pk numeric PRIMARY KEY, aa int)",
    "computed": "(pk int PRIMARY KEY, aa int, twice int GENERATED ALWAYS AS (aa * 2) STORED)",
    "named": "(pk int PRIMARY KEY, mood other.mood, size other.size)",
    "directed": "(pk direction PRIMARY KEY, aa int)",
}
"""Columns of the tables with unusual keys and types."""


def create(database: Database) -> None:
    database.execute("CREATE TYPE direction AS ENUM ('UP', 'DOWN', 'LEFT', 'RIGHT', 'STORY')")
    database.execute("CREATE SCHEMA other")
    database.execute("CREATE TYPE other.mood AS ENUM ('sad', 'glad')")
    database.execute("CREATE DOMAIN other.size AS int CHECK (value > 0)")
    for table in PLAIN:
        database.execute(f"CREATE TABLE {table} (pk serial PRIMARY KEY, aa integer)")
        fill(database, table, 1, 1000)
    for table, columns in SHAPES.items():
        database.execute(f"CREATE TABLE {table} {columns}")
        if table != "directed":
            fill(database, table, 1, 500)
    database.execute(
        "INSERT INTO directed SELECT d, 1 FROM unnest(enum_range(NULL::direction)) AS d"
    )
    database.execute(f"CREATE TABLE holes ({FOUR})")
    database.execute(
        "INSERT INTO holes SELECT a, b, 0, 0, 1 FROM unnest(ARRAY[NULL, 1, 2]) AS a,"
        " unnest(ARRAY[NULL, 1, 2]) AS b"
    )


def fill(database: Database, table: str, first: int, last: int) -> None:
    """Insert rows in one transaction."""
    values = {
        "four": "n / 1000, n / 100 % 10, n / 10 % 10, n % 10, n",
        "named": "n, (ARRAY['sad', 'glad'])[1 + n % 2]::other.mood, n",
    }
    values["no_key"] = values["turned"] = values["four"]
    into = f"{table} (pk, aa)" if table == "computed" else table
    database.execute(
        f"INSERT INTO {into} SELECT {values.get(table, 'n, n - 1')}"
        f" FROM generate_series({first}, {last}) AS n"
    )


@pytest.fixture(scope="module")
def pipeline(stack: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with stack.fresh_database() as database:
        create(database)
        database.start_connector(
            {
                "snapshot.mode": "no_data",
                "message.key.columns": "public.(no_key|holes):pk1,pk2,pk3,pk4;"
                "public.turned:pk2,pk1,pk4,pk3",
            }
        )
        sections = {**SNAPSHOT, "lake": {"path": "./lake", "engine": "deletion-vectors"}}
        with Running(database, tmp_path_factory.mktemp("pipeline"), sections) as running:
            yield running


def equal(pipeline: Running, *tables: str) -> None:
    pipeline.wait_equal(*(f"public.{table}" for table in tables))


def test_a_quiet_table_is_read_whole_and_every_step_is_said(
    pipeline: Running, snapshots: Snapshots
):
    before = time.time()
    done = snapshots.completed(run := snapshots.start("public.quiet"))
    equal(pipeline, "quiet")
    assert (done["total_rows_scanned"], done["percent"]) == ("1000", "100")
    assert (done["chunk_index"], done["total_chunks"]) == ("10", "10")
    notes = snapshots.notes(run)
    steps = ["STARTED", "IN_PROGRESS", "TABLE_SCAN_COMPLETED", "COMPLETED"]
    assert [kind for kind in kinds(notes) if kind != "IN_PROGRESS"] == steps[:1] + steps[2:]
    assert set(kinds(notes)) <= set(steps)
    for note in notes:
        assert note.additional_data["data_collections"] == "public.quiet"
        assert note.additional_data["connector_name"] == snapshots.pipeline
        assert before - 1 < note.timestamp / 1000 < time.time() + 1
    (scan,) = snapshots.scans(run)["public.quiet"]
    assert (scan["status"], scan["total_rows_scanned"]) == ("SUCCEEDED", "1000")

    rows = pipeline.rows("public.quiet").to_pylist()
    assert {row["_cdc"]["op"] for row in rows} == {"r"}
    attempts = snapshots.reads(run, "public.quiet")
    assert {len(found) for found in attempts.values()} == {1}
    manifests = snapshots.commands("chunk", run)
    opened = {m["lo"] for m in manifests} | {m["hi"] for m in manifests}
    written = {row for (row,) in pipeline.database.execute("SELECT id FROM debezium_signal")}
    assert {f"{uuid}-open" for uuid in opened} <= written
    wait_for(lambda: no_window(pipeline.database), NOTE_S, "each window to have both rows")


def no_window(database: Database) -> bool:
    """Whether each window of ours has its close row."""
    ids = {row for (row,) in database.execute("SELECT id FROM debezium_signal")}
    opened = {row.removesuffix("-open") for row in ids if row.endswith("-open")}
    return opened == {row.removesuffix("-close") for row in ids if row.endswith("-close")}


def test_unknown_tables_patterns_and_tables_named_twice(pipeline: Running, snapshots: Snapshots):
    unknown = snapshots.start("public.invalid1", "public.good", "public.invalid2")
    nothing = snapshots.start(".*notExist")
    pipeline.database.execute("CREATE VIEW some_good AS SELECT * FROM good")
    view = snapshots.start("public.some_good")
    family = snapshots.start(r"public\.re_.*")
    twice = snapshots.start("public.twice", "public.twice", r"public\.(twice|good)")

    assert snapshots.completed(unknown)["total_rows_scanned"] == "1000"
    found = {table: scans[0]["status"] for table, scans in snapshots.scans(unknown).items()}
    assert found == {
        "public.invalid1": "UNKNOWN_SCHEMA",
        "public.good": "SUCCEEDED",
        "public.invalid2": "UNKNOWN_SCHEMA",
    }
    assert snapshots.rejected(nothing)["code"] == "unknown-table"
    assert snapshots.rejected(view)["code"] == "not-a-table"
    assert len(snapshots.notes(nothing)) == 1
    assert snapshots.commands("run-start", nothing) == []

    assert snapshots.completed(family)["data_collections"] == "public.re_one,public.re_two"
    assert snapshots.completed(twice)["data_collections"] == "public.twice,public.good"
    assert {table: len(scans) for table, scans in snapshots.scans(twice).items()} == {
        "public.twice": 1,
        "public.good": 1,
    }
    assert len(snapshots.reads(twice, "public.twice")) == 10
    equal(pipeline, "good", "re_one", "re_two", "twice")


def test_rows_inserted_meanwhile_whatever_the_key_is(pipeline: Running, snapshots: Snapshots):
    """Keys of several columns, of message.key.columns, numerics, enums; a generated column."""
    run = snapshots.start(*(f"public.{table}" for table in SHAPES), chunk_rows=50)
    for table in SHAPES:
        if table != "directed":
            fill(pipeline.database, table, 501, 1000)
    pipeline.database.execute("UPDATE exact SET aa = -1 WHERE pk = 7.00")
    pipeline.database.execute("UPDATE turned SET aa = -1 WHERE pk4 = 7")
    done = snapshots.completed(run)
    assert int(done["total_rows_scanned"]) >= 500 * 6 + 5
    equal(pipeline, *(table for table in SHAPES if table not in {"computed", "no_key"}))
    keyless = pipeline.rows("public.no_key").drop_columns("_cdc").to_pylist()
    source = pipeline.database.execute("SELECT * FROM no_key ORDER BY aa")
    assert sorted((tuple(row.values()) for row in keyless), key=lambda row: row[-1]) == source
    # A generated column is in no event: a chunk must not fill what events leave stale.
    computed = pipeline.rows("public.computed")
    assert "twice" not in computed.column_names
    assert sorted(computed.column("aa").to_pylist()) == list(range(1000))


def test_a_key_with_a_null_stops_its_table_alone(pipeline: Running, snapshots: Snapshots):
    """The lake has no such key, and neither have the events."""
    run = snapshots.start("public.holes", "public.directed", chunk_rows=1)
    last = snapshots.ended(run)
    assert (last.type, last.additional_data["code"]) == ("ABORTED", "null-key")
    assert last.additional_data["data_collections"] == "public.holes"
    assert last.additional_data["hint"]
    assert snapshots.scans(run)["public.directed"][0]["status"] == "SUCCEEDED"
    pipeline.database.execute("UPDATE directed SET aa = -1 WHERE pk = 'LEFT'")
    equal(pipeline, "directed")


def test_a_chunk_whose_rows_are_all_changed_before_its_window_closes(
    pipeline: Running, snapshots: Snapshots
):
    database = pipeline.database
    wait_for(lambda: no_window(database), NOTE_S, "no window to be open")
    with windows_held_open(database):
        run = snapshots.start("public.whole", chunk_rows=1000)
        wait_for(lambda: snapshots.reads(run, "public.whole"), NOTE_S, "the chunk to be read")
        database.execute("UPDATE whole SET aa = aa + 2000")
    done = snapshots.completed(run)
    assert (done["total_chunks"], done["total_rows_scanned"]) == ("1", "1000")
    equal(pipeline, "whole")
    rows = pipeline.rows("public.whole").to_pylist()
    assert {row["_cdc"]["op"] for row in rows} == {"u"}, "no row is the chunk's"


def test_rows_go_into_data_files_and_their_table_takes_these(
    pipeline: Running, snapshots: Snapshots
):
    """Of the changed ones, and of those of a second run, others hide the old."""
    database, folder = pipeline.database, pipeline.directory / "lake" / "public" / "whole"
    snapshots.completed(snapshots.start("public.whole"))
    equal(pipeline, "whole")
    database.execute("UPDATE whole SET aa = -aa WHERE pk % 10 = 0")
    database.execute("DELETE FROM whole WHERE pk % 7 = 0")
    snapshots.completed(snapshots.start("public.whole"))
    equal(pipeline, "whole")
    added = {
        add["path"]
        for line in (line for log in folder.glob("_delta_log/*.json") for line in log.open())
        if (add := json.loads(line).get("add"))
    }
    written = {file.name for file in folder.glob("chunk-*.parquet")}
    assert len(written) >= 19, "ten chunks, and nine of the rows that are left"
    assert len(written & added) >= 15


def test_rows_changed_meanwhile(pipeline: Running, snapshots: Snapshots):
    """In a hundred transactions beside many chunks."""
    run = snapshots.start("public.raised", chunk_rows=10)
    snapshots.wait_note(run, "STARTED")
    for first in range(1, 1001, 10):
        pipeline.database.execute(
            "UPDATE raised SET aa = aa + 2000 WHERE pk BETWEEN %s AND %s", [first, first + 9]
        )
    snapshots.completed(run)
    equal(pipeline, "raised")
    assert min(pipeline.rows("public.raised").column("aa").to_pylist()) == 2000


def test_what_is_settled_is_not_read_again_after_a_restart(pipeline: Running, snapshots: Snapshots):
    """Four runs over one kill: a table read before it, filters, and a pause that lasts."""
    database = pipeline.database
    fill(database, "kept", 1001, 3000)
    database.execute("UPDATE filtered SET aa = 12345678 WHERE pk > 990")
    both = snapshots.start("public.first", "public.second", priority=3, chunk_rows=50, delay="50ms")
    some = snapshots.start(
        "public.filtered", chunk_rows=1, parallelism=1, delay=SLOW, priority=2,
        additional_conditions=[{"data-collection": "public.filtered", "filter": "aa = 12345678"}],
    )  # fmt: skip
    wait_for(lambda: len(snapshots.reads(both, "public.first")) == 20, NOTE_S, "the first table")
    snapshots.send(
        "set-snapshot", {"id": both, "delay": SLOW}
    )  # the second is not done at the kill
    snapshots.wait_kept(both, "done with the first table", lambda run: run.tables[0].over)
    snapshots.wait_settled(some, "public.filtered", 1)
    many = snapshots.start("public.kept", chunk_rows=20, priority=1, delay="50ms")
    snapshots.wait_settled(many, "public.kept", 5)
    pipeline.lakemark.kill()
    done = snapshots.settled(many, "public.kept")
    before = {run: snapshots.reads(run, table) for run, table in (
        (both, "public.first"), (many, "public.kept"), (some, "public.filtered"))}  # fmt: skip
    assert 5 <= len(done) < 150, "killed too late"
    database.execute("UPDATE kept SET aa = aa + 2000 WHERE pk % 3 = 0")
    pipeline.lakemark.start()
    for run in (both, some, many):
        snapshots.hasten(run)
    for run in (both, some, many):
        snapshots.completed(run)
    equal(pipeline, "first", "second", "kept")

    after = snapshots.reads(many, "public.kept")
    assert len(after) == 150
    assert {n: after[n] for n in done} == {n: before[many][n] for n in done}, "read again"
    assert snapshots.reads(both, "public.first") == before[both]
    assert [len(s) for s in snapshots.scans(both).values()] == [1, 1]
    assert len(pipeline.rows("public.filtered")) == 10
    for run in (both, some, many):
        assert [n.type for n in snapshots.notes(run)].count("COMPLETED") == 1


def test_a_pause_and_a_stop_hold_over_a_restart_while_events_land(
    pipeline: Running, snapshots: Snapshots
):
    over = stopped(snapshots)
    run = snapshots.start("public.halted", chunk_rows=20, parallelism=1, delay=SLOW)
    snapshots.wait_settled(run, "public.halted", 1)
    # The batches that were under way at the stop are done: this one came after them.
    kept = len(pipeline.rows("public.stopped"))
    assert kept >= 2, "what was settled stays"
    pause = snapshots.send("pause-snapshot")
    snapshots.wait_note(run, "PAUSED")
    assert (
        snapshots.wait_note(pause, "PAUSED").additional_data["data_collections"] == "public.halted"
    )
    snapshots.wait_kept(run, "paused", lambda one: one.paused)
    before = parts(snapshots)
    pipeline.lakemark.kill()
    pipeline.lakemark.start()
    read = parts(snapshots)
    assert read - before == Counter({run: read[run] - before[run]}), "only what was on its way"
    pipeline.database.execute("UPDATE halted SET aa = -5 WHERE pk = 1000")
    pipeline.wait_drained()
    for _ in range(5):  # batches, in which a chunk could be read
        pipeline.database.execute("UPDATE halted SET aa = aa - 1 WHERE pk = 1000")
        pipeline.lakemark.wait_for_batch(60)
    assert parts(snapshots) == read
    assert len(pipeline.rows("public.stopped")) == kept
    ends = Counter((note.id, note.type) for note in snapshots.notes() if note.type in LAST)
    assert {(one, "ABORTED") for one in over} <= ends.keys()
    assert set(ends.values()) == {1}, "said again after the restart"
    assert (
        snapshots.rejected(snapshots.start("public.halted", type="blocking"))["code"] == "blocking"
    )
    snapshots.hasten(run)
    resume = snapshots.send("resume-snapshot")
    snapshots.wait_note(resume, "RESUMED")
    done = snapshots.completed(run)
    assert done["total_chunks"] == "50"
    steps = [kind for kind in kinds(snapshots.notes(run)) if kind != "IN_PROGRESS"]
    assert list(dict.fromkeys(steps)) == [
        *("STARTED", "PAUSED", "RESUMED", "TABLE_SCAN_COMPLETED", "COMPLETED")
    ]
    progress = [n.additional_data for n in snapshots.notes(run) if n.type == "IN_PROGRESS"]
    assert progress, "progress is said"
    assert {p["current_collection_in_progress"] for p in progress} == {"public.halted"}
    shown = [int(p["chunk_index"]) for p in progress]
    assert shown == sorted(shown)
    assert snapshots.rejected(snapshots.send("resume-snapshot"))["code"] == "nothing-to-resume"
    anew = snapshots.start("public.stopped")
    fill(pipeline.database, "stopped", 1001, 2000)
    snapshots.completed(anew)
    equal(pipeline, "halted", "stopped")


def parts(snapshots: Snapshots) -> Counter[str]:
    """How much of each run has come to the chunks topic."""
    return Counter(
        json.loads(record.key() or b"{}")["run"] for record in snapshots.chunks.records()
    )


def stopped(snapshots: Snapshots) -> list[str]:
    """Runs that were stopped: one of everything, the other one by the name of its only table."""
    slow = {"chunk_rows": 1, "parallelism": 1, "delay": "50ms"}
    everything = snapshots.start("public.stopped", **slow)
    snapshots.wait_settled(everything, "public.stopped", 2)
    stop = snapshots.send("stop-snapshot")
    assert snapshots.ended(stop).additional_data["data_collections"] == "public.stopped"
    named = snapshots.start("public.stopped", **slow)
    snapshots.wait_note(named, "STARTED")
    snapshots.send("stop-snapshot", {"data-collections": ["public.stopped"]})
    for run in (everything, named):
        assert snapshots.ended(run).type == "ABORTED"
        snapshots.wait_disarmed(run)
    return [everything, named]


def test_runs_end_when_they_are_told_to(pipeline: Running, snapshots: Snapshots):
    """One table that waits for its turn, one that is being read; for all of them see `stopped`."""
    slow = {"chunk_rows": 20, "parallelism": 1, "delay": "100ms"}
    waiting = snapshots.start("public.stays", "public.gone", **slow)
    snapshots.wait_settled(waiting, "public.stays", 1)
    assert snapshots.rejected(
        snapshots.send("stop-snapshot", {"data-collections": [["public.stays"]]})
    )["code"] == "wrong-type"  # fmt: skip
    snapshots.send("stop-snapshot", {"data-collections": ["public.gone"]})
    aborted = snapshots.wait_note(waiting, "ABORTED")
    assert aborted.additional_data["data_collections"] == "public.gone"
    fill(pipeline.database, "stays", 1001, 2000)
    snapshots.wait_note(waiting, "COMPLETED")
    assert "public.gone" not in snapshots.scans(waiting)
    assert not [s for s in snapshots.commands("sweep", waiting) if s["table"] == "public.gone"]
    assert snapshots.rejected(snapshots.send("stop-snapshot"))["code"] == "nothing-to-stop"

    running = snapshots.start("public.gone", "public.stays", chunk_rows=100, delay="100ms")
    snapshots.wait_settled(running, "public.gone", 1)
    snapshots.send("stop-snapshot", {"data-collections": ["public.gone"]})
    snapshots.wait_note(running, "COMPLETED")
    pipeline.database.execute("UPDATE gone SET aa = -1")
    fill(pipeline.database, "gone", 1001, 2000)
    equal(pipeline, "stays", "gone")


def test_a_long_trigger_holds_up_neither_a_snapshot_nor_a_stop(
    pipeline: Running, snapshots: Snapshots
):
    config = pipeline.lakemark.config
    pipeline.lakemark.stop()
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("trigger: 500ms", "trigger: 10h"), encoding="utf-8")
    assert "trigger: 10h" in config.read_text(encoding="utf-8")
    fill(pipeline.database, "stays", 2001, 2010)
    pipeline.wait_drained()
    pipeline.lakemark.start()  # its first batch has them, and rests for hours afterwards
    equal(pipeline, "stays")
    snapshots.completed(snapshots.start("public.stays", chunk_rows=500))
    equal(pipeline, "stays")
    pipeline.lakemark.stop()
