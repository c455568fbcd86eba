"""More snapshots beside the stream, on real servers: choices of rows, several runs, other schemas.

One pipeline serves all tests; each has tables of its own and leaves no run behind.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lakemark.connectors.postgres import positions as lsns
from lakemark.model import positions
from stack.local import Database, Servers
from stack.processes import wait_for
from tests.kit.running import STATE_S, Running
from tests.kit.snapshots import SLOW, SNAPSHOT, Snapshots, windows_held_open

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

PLAIN = (
    "chosen", "other_form", "ordered", "listed", "ghosts", "shared", "sized", "again", "widened",
    "growing", "typed", "beside", "swapped", "defaults", "cut_off", "twofold",
    "locked", "sealed", "last",
)  # fmt: skip
SOME = 12345678
EMPTY_STATE = 1000  # bytes: which runs and windows were last, and no row or key of any table
ODD = "id with \"quotes\", 'others', \\, \t, \n and \x01"


@pytest.fixture(scope="module")
def pipeline(stack: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with stack.fresh_database() as database:
        for table in PLAIN:
            database.execute(f"CREATE TABLE {table} (pk serial PRIMARY KEY, aa integer)")
            database.execute(
                f"INSERT INTO {table} (aa) SELECT n - 1 FROM generate_series(1, 1000) n"
            )
        partitioned(database)
        looking_like_envelopes(database)
        database.start_connector(
            {
                "snapshot.mode": "no_data",
                "signal.data.collection": 'public."debezium_signal"',
                "incremental.snapshot.watermarking.strategy": "insert_delete",
            }
        )
        with Running(database, tmp_path_factory.mktemp("pipeline"), SNAPSHOT) as running:
            running.lakemark.start()
            yield running


def partitioned(database: Database) -> None:
    database.execute(
        "CREATE TABLE part (pk int, aa int, PRIMARY KEY (pk, aa)) PARTITION BY RANGE (aa)"
    )
    database.execute("CREATE TABLE part_low PARTITION OF part FOR VALUES FROM (0) TO (500)")
    database.execute("CREATE TABLE part_high PARTITION OF part FOR VALUES FROM (500) TO (5000)")
    database.execute("INSERT INTO part SELECT n, n - 1 FROM generate_series(1, 1000) n")


MARK = "__debezium_unavailable_value"
AUDIT = "(id bigint PRIMARY KEY, op text, before jsonb, after jsonb, source text, doc text)"


def looking_like_envelopes(database: Database) -> None:
    """Tables that look like a change event or a wrapped key; the one elsewhere is not captured."""
    database.execute(f"CREATE TABLE audit {AUDIT}")
    database.execute("ALTER TABLE audit ALTER COLUMN doc SET STORAGE EXTERNAL")
    database.execute("CREATE SCHEMA elsewhere")
    database.execute(f"CREATE TABLE elsewhere.audit {AUDIT}")
    database.execute(
        'CREATE TABLE "Wrapped" (schema numeric, payload numeric, "MORE" text, "_CDC" point,'
        " PRIMARY KEY (schema, payload))"
    )
    database.execute("CREATE TABLE named (payload text PRIMARY KEY, after point, op text)")


def equal(pipeline: Running, *tables: str) -> None:
    pipeline.wait_equal(*(f"public.{table}" for table in tables))


@contextmanager
def unseen(database: Database, table: str) -> Iterator[None]:
    """What is done to a table in the block is in no log that the connector reads."""
    database.execute(f"ALTER PUBLICATION {database.name} DROP TABLE {table}")
    try:
        yield
    finally:
        database.execute(f"ALTER PUBLICATION {database.name} ADD TABLE {table}")


def test_a_signal_table_whose_rows_do_not_come_back_ends_the_run(
    pipeline: Running, snapshots: Snapshots
):
    with unseen(pipeline.database, "debezium_signal"):
        run = snapshots.start("public.ordered")
        said = snapshots.wait_note(run, "ABORTED").additional_data
        assert said["code"] == "signal-table-unpublished"
        assert "ADD TABLE public.debezium_signal" in said["hint"]
    snapshots.run("public.ordered")


def test_only_the_rows_of_a_condition(pipeline: Running, snapshots: Snapshots):
    """In both forms, cut by the key or another column; later a run over all rows."""
    for table in ("chosen", "other_form"):
        pipeline.database.execute(
            f"INSERT INTO {table} (aa) SELECT {SOME} FROM generate_series(1, 10)"
        )
    listed = [{"data-collection": "public.chosen", "filter": f"aa = {SOME}"}]
    first = snapshots.start("public.chosen", additional_conditions=listed, surrogate_key="aa")
    second = snapshots.start("public.other_form", additional_condition=f"aa = {SOME}")
    for run, table in ((first, "public.chosen"), (second, "public.other_form")):
        assert snapshots.completed(run)["total_rows_scanned"] == "10"
        assert pipeline.rows(table).column("aa").to_pylist() == [SOME] * 10
        assert snapshots.commands("sweep", run) == []
    whole = snapshots.run("public.chosen", additional_conditions=[])
    assert len(snapshots.commands("sweep", whole)) == 1
    equal(pipeline, "chosen")
    for text, code in (("aa = ", "bad-condition"), ("bb = 1", "unknown-column")):
        refused = snapshots.rejected(snapshots.start("public.chosen", additional_condition=text))
        assert refused["code"] in {code, "bad-condition"}, refused


def test_chunks_cut_by_another_column(pipeline: Running, snapshots: Snapshots):
    """Also one that is not unique; one that is no column is refused, and nothing is stuck."""
    pipeline.database.execute("UPDATE ordered SET aa = pk % 7 WHERE pk > 500")
    for column in ("totally_invalid_column_name", "ctid"):
        refused = snapshots.rejected(snapshots.start("public.ordered", surrogate_key=column))
        assert refused["code"] == "unknown-column"
    run = snapshots.start("public.ordered", surrogate_key="aa", chunk_rows=50)
    pipeline.database.execute("UPDATE ordered SET aa = aa + 5000 WHERE pk % 50 = 0")
    pipeline.database.execute("INSERT INTO ordered VALUES (1001, 1000)")
    snapshots.completed(run)
    equal(pipeline, "ordered")


def test_listed_keys_are_read_and_absent_ones_deleted(pipeline: Running, snapshots: Snapshots):
    database = pipeline.database
    snapshots.run("public.listed")
    equal(pipeline, "listed")
    with unseen(database, "listed"):
        database.execute("DELETE FROM listed WHERE pk IN (3, 4, 5, 6)")
        database.execute("UPDATE listed SET aa = -1 WHERE pk IN (7, 8)")
    assert not pipeline.compare("public.listed").is_equal
    run = snapshots.run("public.listed", keys=[3, 4, 7, 2000], chunk_rows=2)
    snapshots.run("public.listed", keys=[{"pk": 5}])
    assert snapshots.commands("sweep", run) == []
    found = pipeline.compare("public.listed")["public.listed"]
    assert (found.extra, found.different, found.missing) == (1, 1, 0), "only 6 and 8 are left"
    snapshots.run("public.listed", keys=[[6], [8]])
    equal(pipeline, "listed")
    several = snapshots.start("public.listed", "public.ghosts", keys=[1])
    assert snapshots.rejected(several)["code"] == "bad-value"
    wrong = snapshots.start("public.listed", keys=[["a", "b"]])
    assert snapshots.rejected(wrong)["code"] == "bad-value"


def test_rows_that_only_the_lake_has_go_with_a_whole_run(pipeline: Running, snapshots: Snapshots):
    database = pipeline.database
    snapshots.run("public.ghosts")
    with unseen(database, "ghosts"):
        database.execute("DELETE FROM ghosts WHERE pk % 10 = 0")
        database.execute("UPDATE ghosts SET aa = -1 WHERE pk % 10 = 1")
        database.execute("INSERT INTO ghosts SELECT n, n FROM generate_series(1001, 1100) n")
    run = snapshots.start("public.ghosts", delay="50ms")
    database.execute("UPDATE ghosts SET aa = -2 WHERE pk % 10 = 2")
    snapshots.completed(run)
    equal(pipeline, "ghosts")


def test_several_runs_over_one_table_and_one_id_twice(pipeline: Running, snapshots: Snapshots):
    database = pipeline.database
    started = [snapshots.start("public.shared", chunk_rows=rows) for rows in (30, 100, 400)]
    snapshots.start("public.again", name=ODD)
    snapshots.start("public.shared", name=ODD)
    for number in range(10):
        database.execute("UPDATE shared SET aa = aa + 5000 WHERE pk %% 10 = %s", [number])
    for run in started:
        snapshots.completed(run)
        assert list(snapshots.scans(run)) == ["public.shared"]
    snapshots.completed(ODD)
    said = len(snapshots.notes(ODD))
    snapshots.start("public.shared", name=ODD)
    snapshots.wait_note(ODD, "COMPLETED", count=2)
    assert len(snapshots.notes(ODD)) == said + 1
    assert list(snapshots.scans(ODD)) == ["public.again"]
    assert len(snapshots.commands("run-start", ODD)) == 1
    equal(pipeline, "shared", "again")

    unnamed = {"type": "execute-snapshot", "data": {"data-collections": ["public.again"]}}
    snapshots.send_raw(json.dumps(unnamed).encode())
    snapshots.send_raw(json.dumps(unnamed).encode(), key=b"somebody else")
    snapshots.send_raw(b"no JSON")
    last = snapshots.send("log", {"message": "hello"})
    assert snapshots.rejected(last)["code"] == "unknown-type"
    by_place = snapshots.names.signals
    refused = [n for n in snapshots.notes() if n.id.startswith(by_place) and n.type == "REJECTED"]
    assert [n.additional_data["code"] for n in refused] == ["other-pipeline", "not-json"]
    (given,) = [r["run"] for r in snapshots.commands("run-start") if r["run"].startswith(by_place)]
    snapshots.completed(given)


def test_a_snapshot_of_debeziums_own_beside_ours(pipeline: Running, snapshots: Snapshots):
    """It deletes its window rows, and we delete ours; what it reads overwrites nothing."""
    database = pipeline.database
    run = snapshots.start("public.twofold", chunk_rows=50, parallelism=1, delay="50ms")
    snapshots.wait_settled(run, "public.twofold", 2)
    asked = {"type": "incremental", "data-collections": ["public.twofold"]}
    database.execute(
        "INSERT INTO debezium_signal VALUES ('own', 'execute-snapshot', %s)", [json.dumps(asked)]
    )
    database.execute("UPDATE twofold SET aa = -1 WHERE pk % 7 = 0")
    ours = 'data LIKE \'%"run":"lakemark:%\''
    deleted = database.execute(f"DELETE FROM debezium_signal WHERE {ours} RETURNING id")
    assert any(row.endswith("-open") for (row,) in deleted)
    snapshots.completed(run)

    def own_reads() -> set[int]:
        return {e["after"]["pk"] for e in events(database, "twofold") if e["op"] == "r"}

    # A row that is updated within the connector's window is not read by it: its update is newer.
    untouched = {pk for (pk,) in database.execute("SELECT pk FROM twofold WHERE pk % 7 <> 0")}
    wait_for(lambda: own_reads() >= untouched, STATE_S, "the connector's own reads")
    equal(pipeline, "twofold")
    rows = pipeline.rows("public.twofold").to_pylist()
    read = {row["_cdc"]["position"] for row in rows if row["aa"] != -1}
    windows = [event for event in events(database, "debezium_signal") if event["op"] == "c"]
    ours_only = [event for event in windows if "lakemark:" in (event["after"]["data"] or "")]
    assert read <= {opened_at(event) for event in ours_only}
    left = {row for (row,) in database.execute(f"SELECT id FROM debezium_signal WHERE NOT {ours}")}
    assert not {row for row in left if row.endswith(("-open", "-close"))}, "Debezium's are deleted"


def opened_at(event: dict[str, Any]) -> bytes:
    """The position of a window's chunks: its row's, or where the log ended if that is before it."""
    source, bound = event["source"], json.loads(event["after"]["data"])["bound"]
    place = lsns.of_stream(source["sequence"], source["lsn"])
    assert place is not None
    return min(lsns.pack(0, *place), positions.of_epoch(0, bytes.fromhex(bound)))


def events(database: Database, table: str) -> list[dict[str, Any]]:
    """All events of a table so far."""
    kafka, topic = database.stack.kafka, database.topic(table)
    records = kafka.read(topic, count=sum(kafka.end_offsets(topic).values()))
    found = [json.loads(record.value()) for record in records if record.value()]
    return [value.get("payload", value) for value in found]


def test_a_run_is_changed_while_it_reads(pipeline: Running, snapshots: Snapshots):
    run = snapshots.start("public.sized", chunk_rows=10, parallelism=1, delay="1s")
    snapshots.wait_settled(run, "public.sized", 2)
    change = {"id": run, "chunk-rows": 200, "parallelism": 4, "delay": "0s"}
    changed = snapshots.send("set-snapshot", change)
    assert snapshots.wait_note(changed, "CHANGED").additional_data["run"] == run
    done = snapshots.completed(run)
    assert int(done["total_chunks"]) < 40
    assert int(done["total_rows_scanned"]) == 1000
    equal(pipeline, "sized")
    late = snapshots.send("set-snapshot", {"id": run, "delay": "1s"})
    assert snapshots.rejected(late)["code"] == "unknown-run"


def inserted(pipeline: Running, table: str, insert: str, rows: int = 1) -> None:
    """Inserts rows and returns when the connector has read them.

    It takes a table's columns from the catalog as that is when it meets the first row after a
    change of them: one that lags behind several such changes reads rows of one with the columns of
    another, and ends with a NumberFormatException (seen with 3.7).
    """
    database = pipeline.database
    kafka, topic = database.stack.kafka, database.topic(table)

    def count() -> int:
        return sum(kafka.end_offsets(topic).values()) if topic in kafka.topics() else 0

    wanted = count() + rows
    database.execute(insert)
    wait_for(lambda: count() >= wanted, 60, f"{rows} rows in {topic}")


def test_columns_that_come_and_go(pipeline: Running, snapshots: Snapshots):
    """Before a run, without any event; and three times while chunks are read."""
    database = pipeline.database
    database.execute("ALTER TABLE widened ADD COLUMN c int")
    snapshots.run("public.widened")
    equal(pipeline, "widened")
    database.execute("ALTER TABLE widened DROP COLUMN c")
    snapshots.run("public.widened")
    equal(pipeline, "widened")
    assert pipeline.rows("public.widened").column("c").null_count == 1000

    run = snapshots.start("public.growing", chunk_rows=50, parallelism=2, delay="50ms")
    snapshots.wait_settled(run, "public.growing", 2)
    for number in range(3):
        database.execute("ALTER TABLE growing ADD COLUMN c int")
        inserted(pipeline, "growing", "INSERT INTO growing (aa, c) VALUES (1, 1)")
        database.execute("ALTER TABLE growing ALTER COLUMN c TYPE bigint")
        inserted(pipeline, "growing", "INSERT INTO growing (aa, c) VALUES (1, 5000000000)")
        database.execute("ALTER TABLE growing DROP COLUMN c")
        inserted(pipeline, "growing", f"INSERT INTO growing (aa) VALUES ({number})")
    snapshots.completed(run)
    equal(pipeline, "growing")


def test_tables_that_look_like_envelopes(pipeline: Running, snapshots: Snapshots):
    """Read by a run and changed in the log; the placeholder's text is a value where it is one."""
    database, tables = pipeline.database, ("audit", "Wrapped", "named")
    for schema in ("public", "elsewhere"):
        database.execute(
            f"INSERT INTO {schema}.audit SELECT n, 'c', NULL, '{{\"op\": \"c\"}}', %s, repeat('x', 5000)"
            " FROM generate_series(1, 20) n",
            [MARK],
        )
    database.execute(
        "INSERT INTO \"Wrapped\" SELECT n, n / 2.0, 'p', NULL FROM generate_series(1, 20) n"
    )
    database.execute(
        "INSERT INTO named VALUES (%s, point(1, 2), 'u'), ('k', NULL, %s)", [MARK, MARK]
    )
    snapshots.run(*(f"public.{table}" for table in tables))
    equal(pipeline, *tables)

    database.execute("UPDATE audit SET op = 'u', before = after WHERE id <= 10")  # doc is elsewhere
    database.execute("UPDATE audit SET id = id + 100 WHERE id <= 5")
    database.execute("INSERT INTO audit VALUES (50, %s, NULL, NULL, 'source', %s)", [MARK, MARK])
    database.execute("DELETE FROM audit WHERE id > 15 AND id < 50")
    database.execute('UPDATE "Wrapped" SET "MORE" = %s WHERE schema = 1', ["changed"])
    database.execute(
        'UPDATE "Wrapped" SET payload = payload + 1, "_CDC" = \'(1,2)\' WHERE schema = 2'
    )
    database.execute('DELETE FROM "Wrapped" WHERE schema = 3')
    database.execute("UPDATE named SET after = point(3, 4) WHERE payload = %s", [MARK])
    database.execute("DELETE FROM named WHERE payload = 'k'")
    pipeline.wait_drained()
    equal(pipeline, *tables)
    assert pipeline.dead_letters() == []
    kept = pipeline.lakemark.progress()
    assert not any("elsewhere" in table for table in kept)
    assert {kept[f"public.{table}"].get("state", "streaming") for table in tables} == {"streaming"}


def test_defaults_and_nulls_that_no_event_tells(pipeline: Running, snapshots: Snapshots):
    database = pipeline.database
    run = snapshots.start("public.defaults", chunk_rows=50, delay=SLOW)
    snapshots.wait_settled(run, "public.defaults", 1)
    database.execute(
        "ALTER TABLE defaults ALTER COLUMN aa SET DEFAULT -6, ALTER COLUMN aa SET NOT NULL"
    )
    more = "INSERT INTO defaults (pk) SELECT n FROM generate_series({}, {}) n"
    inserted(pipeline, "defaults", more.format(1001, 1100), 100)
    database.execute("ALTER TABLE defaults ADD COLUMN d int DEFAULT 5")
    database.execute(
        "ALTER TABLE defaults ALTER COLUMN aa DROP NOT NULL, ALTER COLUMN aa DROP DEFAULT"
    )
    inserted(pipeline, "defaults", more.format(1101, 1200), 100)
    snapshots.hasten(run)
    snapshots.completed(run)
    equal(pipeline, "defaults")
    rows = pipeline.rows("public.defaults")
    assert set(rows.column("d").to_pylist()) == {5}, "rows that nobody touched have it by a chunk"
    assert all(field.nullable for field in rows.schema if field.name in {"aa", "d"})


@contextmanager
def locked(database: Database, table: str, mode: str) -> Iterator[None]:
    with database.connect() as connection, connection.transaction():
        connection.execute(f"LOCK TABLE {table} IN {mode} MODE".encode())
        yield


def test_a_schema_that_changes_after_the_last_chunk_was_read(
    pipeline: Running, snapshots: Snapshots
):
    """In its window, which cannot be closed yet; no event tells of the column or its default."""
    database, chunks = pipeline.database, 10
    run = snapshots.start("public.sealed", chunk_rows=100, delay=SLOW)

    def read() -> set[int]:
        return set(snapshots.reads(run, "public.sealed"))

    snapshots.wait_settled(run, "public.sealed", 1)
    with windows_held_open(database):
        assert len(read()) < chunks, "too late"
        snapshots.hasten(run)
        wait_for(lambda: len(read()) == chunks, STATE_S, "all chunks to be read")
        database.execute("ALTER TABLE sealed ADD COLUMN d int DEFAULT 5")
    snapshots.completed(run)
    equal(pipeline, "sealed")
    assert set(pipeline.rows("public.sealed").column("d").to_pylist()) == {5}


def test_a_table_that_is_locked_holds_up_no_answer(pipeline: Running, snapshots: Snapshots):
    with locked(pipeline.database, "locked", "ACCESS EXCLUSIVE"):
        waiting = snapshots.start("public.locked")
        assert snapshots.rejected(snapshots.start("public.no_such_table"))
        other = snapshots.start("public.beside")
        snapshots.wait_note(other, "STARTED")
        assert snapshots.reads(waiting, "public.locked") == {}
    snapshots.completed(other)
    snapshots.completed(waiting)
    equal(pipeline, "locked", "beside")


def test_another_relation_under_the_same_name(pipeline: Running, snapshots: Snapshots):
    database = pipeline.database
    run = snapshots.start("public.swapped", chunk_rows=50, delay="50ms")
    snapshots.wait_settled(run, "public.swapped", 2)
    with database.connect() as connection, connection.transaction():
        connection.execute("CREATE TABLE fresh (pk int PRIMARY KEY, aa int, c int)")
        connection.execute("INSERT INTO fresh SELECT pk, aa FROM swapped")
        connection.execute("ALTER TABLE swapped RENAME TO swapped_before")
        connection.execute("ALTER TABLE fresh RENAME TO swapped")
        connection.execute(f"ALTER PUBLICATION {database.name} ADD TABLE swapped".encode())
    database.execute("UPDATE swapped SET c = pk WHERE pk <= 10")
    snapshots.completed(run)
    equal(pipeline, "swapped")


def test_a_type_that_does_not_fit_stops_its_table_alone(pipeline: Running, snapshots: Snapshots):
    database = pipeline.database
    run = snapshots.start("public.typed", "public.beside", chunk_rows=50, delay=SLOW)
    snapshots.wait_settled(run, "public.typed", 1)
    database.execute("ALTER TABLE typed ALTER COLUMN aa TYPE varchar(5)")
    database.execute("INSERT INTO typed VALUES (1001, 'x')")
    state = pipeline.wait_state("public.typed", "errored")
    assert state["code"] == "schema-incompatible"
    assert "aa" in state["reason"]
    snapshots.hasten(run)
    last = snapshots.ended(run)
    assert (last.type, last.additional_data["code"]) == ("ABORTED", "schema-incompatible")
    assert "public.typed" in last.additional_data["reason"]
    assert snapshots.scans(run)["public.beside"][0]["status"] == "SUCCEEDED"
    database.execute("UPDATE beside SET aa = -1 WHERE pk <= 10")
    equal(pipeline, "beside")


def test_sessions_that_end_are_no_reason_to_give_up(pipeline: Running, snapshots: Snapshots):
    database = pipeline.database
    run = snapshots.start("public.cut_off", chunk_rows=25, delay="1s")
    snapshots.wait_settled(run, "public.cut_off", 2)
    for _ in range(5):
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE"
            " 'lakemark%' AND datname = current_database()"
        )
        settled = len(snapshots.settled(run, "public.cut_off"))
        snapshots.wait_settled(run, "public.cut_off", settled + 1)
    snapshots.hasten(run)
    snapshots.completed(run)
    equal(pipeline, "cut_off")


def test_tables_that_the_publication_does_not_have(pipeline: Running, snapshots: Snapshots):
    """Made while the connector runs: refused with the statement that mends it."""
    database = pipeline.database
    database.execute("CREATE TABLE late (pk int PRIMARY KEY, aa int)")
    database.execute("INSERT INTO late VALUES (1, 1)")
    refused = snapshots.rejected(snapshots.start("public.late"))
    assert refused["code"] == "not-published"
    assert refused["hint"].startswith(f"ALTER PUBLICATION {database.name} ADD TABLE public.late")
    database.execute(f"ALTER PUBLICATION {database.name} ADD TABLE public.late")
    snapshots.run("public.late")
    equal(pipeline, "late")


def test_partitions_are_read_and_their_root_is_not(pipeline: Running, snapshots: Snapshots):
    root = snapshots.start("public.part")
    run = snapshots.start("public.part_low", "public.part_high", delay="50ms")
    pipeline.database.execute("UPDATE part SET aa = aa + 600 WHERE pk % 20 = 0")
    snapshots.completed(run)
    assert snapshots.rejected(root)["code"] == "not-published"
    equal(pipeline, "part_low", "part_high")


def test_a_partitioned_table_is_read_through_its_root(pipeline: Running, snapshots: Snapshots):
    """Rows move between partitions, and one is added, while the root is read."""
    database = pipeline.database
    database.execute(
        "CREATE TABLE rooted (pk int, aa int, PRIMARY KEY (pk, aa)) PARTITION BY RANGE (aa)"
    )
    database.execute("CREATE TABLE rooted_low PARTITION OF rooted FOR VALUES FROM (0) TO (500)")
    database.execute("CREATE TABLE rooted_high PARTITION OF rooted FOR VALUES FROM (500) TO (1000)")
    database.execute("INSERT INTO rooted SELECT n, n - 1 FROM generate_series(1, 1000) n")
    publication = f"ALTER PUBLICATION {database.name}"
    database.execute(f"{publication} ADD TABLE rooted")
    database.execute(f"{publication} SET (publish_via_partition_root = true)")
    run = snapshots.start("public.rooted", chunk_rows=50, delay=SLOW)
    snapshots.wait_settled(run, "public.rooted", 1)
    database.execute("UPDATE rooted SET aa = aa + 500 WHERE pk % 20 = 0 AND aa < 500")
    database.execute("CREATE TABLE rooted_new PARTITION OF rooted FOR VALUES FROM (1000) TO (5000)")
    database.execute("UPDATE rooted SET aa = aa + 1000 WHERE pk % 20 = 1")
    database.execute("INSERT INTO rooted SELECT n, n + 1000 FROM generate_series(1001, 1050) n")
    database.execute("DELETE FROM rooted WHERE pk % 20 = 2")
    assert 0 < len(snapshots.settled(run, "public.rooted")) < 20, "all of it while it is read"
    snapshots.hasten(run)
    snapshots.completed(run)
    equal(pipeline, "rooted")
    assert pipeline.rows("public.rooted").num_rows == 997
    leaves = {f"{database.name}.public.rooted_{name}" for name in ("low", "high", "new")}
    assert not leaves & database.stack.kafka.topics().keys()
    database.execute(f"{publication} SET (publish_via_partition_root = false)")


def test_nothing_is_left_when_no_snapshot_runs(pipeline: Running, snapshots: Snapshots):
    """Windows are closed, runs disarmed, and what comes later is none of a snapshot's business."""
    snapshots.run("public.last")
    newest = (
        "SELECT count(*) OVER (), type FROM debezium_signal ORDER BY xmin::text::bigint DESC,"
        " type DESC LIMIT 1"
    )
    wait_for(
        lambda: database_says(pipeline, newest)[1] == "snapshot-window-close",
        STATE_S,
        "the last window to be closed",
    )
    before = database_says(pipeline, newest)

    def no_run() -> bool:
        pipeline.database.execute("UPDATE last SET aa = aa WHERE pk = 1")  # else no batch may come
        return "touches" not in pipeline.lakemark.events("batch.done")[-1]

    wait_for(no_run, STATE_S, "a batch without a run")
    done = len(pipeline.lakemark.events("batch.done"))
    pipeline.database.execute("INSERT INTO last SELECT n, n FROM generate_series(2001, 3000) n")
    equal(pipeline, "last")
    pipeline.database.execute("UPDATE last SET aa = -1 WHERE pk = 3000")
    equal(pipeline, "last")  # so the batches before this one have been told of
    assert database_says(pipeline, newest) == before, "a window row was written without a snapshot"
    batches = pipeline.lakemark.events("batch.done")[done:]
    assert sum(batch["events"] for batch in batches) >= 1000
    held = {(batch.get("touches", 0), batch.get("parts", 0)) for batch in batches}
    assert held == {(0, 0)}, "the shards hold something"
    told = [b for b in pipeline.lakemark.events("batch.done") if "touches" in b][-1]
    assert (told["touches"], told["parts"]) == (0, 0)
    assert told["largest_state"] < EMPTY_STATE
    started = {r["run"] for r in snapshots.commands("run-start")}
    assert started == {r["run"] for r in snapshots.commands("run-end")}
    assert all(run.over for run, _ in snapshots.kept().values())


def database_says(pipeline: Running, query: str) -> tuple[Any, ...]:
    (row,) = pipeline.database.execute(query)
    return row
