"""Snapshots while what they need is killed, restarted, locked, changed or hidden.

The tests share one pipeline that runs through all of them; each leaves everything running. The
connector takes no snapshot itself, so that what a chunk loses is lost. Workloads have different
seeds: the same one would write the same keys again.
"""

import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from lakemark.connectors.database import OpenWindow
from lakemark.connectors.postgres.facts_database import database_facts
from lakemark.connectors.postgres.postgres_session import connect
from lakemark.connectors.postgres.postgres_windows import write_window
from lakemark.errors import DependencyError
from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.config import DatabaseConfig, load
from lakemark.snapshot.chunk_task import ReadSettings, run_chunk
from lakemark.snapshot.chunks import ChunkSpec
from lakemark.snapshot.notifications import tables_of
from stack import shop
from stack.local import Database, Servers
from stack.postgres import Standby
from stack.processes import wait_for
from stack.workload import Workload
from tests.kit.broken import alone, revive
from tests.kit.nightly import NIGHTLY, nightly
from tests.kit.running import STATE_S, Running
from tests.kit.servers import (
    EACH,
    choose_pipelines,
    database_server,
    ends_servers,
    own_processes,
    pipeline_of,
)
from tests.kit.snapshots import NOTE_S, SNAPSHOT, Snapshots

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("streaming")]  # fmt: skip

KILLS = 20 if NIGHTLY else 2
RUN_S = 900.0 + 150.0 * KILLS
"""Within this a run over the shop ends, kills and restarts included."""
BY_FILE = ("orders", "products", "emptied", "ghosts")
"""Of these, rows of chunks go into data files; of the others through Kafka."""
RATE = {"writers": 2, "rows_per_s": 200}
FAST = {"writers": 6, "rows_per_s": 2500, "sizes": (1, 1, 1, 1, 2)} if NIGHTLY else RATE
"""About 500 transactions a second; not beside other tests, whose deadlines would not stand it."""
LEAST_PACE = 400.0 if NIGHTLY else 0.0
BESIDE = {
    "key changes": ("move_customers", "chain_customers", "move_lines", "shift_shelves"),
    "changes that leave out columns outside the row": ("rename_customers",),
    "long transactions": ("long",),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    choose_pipelines(metafunc)


@pytest.fixture(scope="module")
def pipeline(
    stack: Servers, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Running]:
    with stack.fresh_database(server=database_server(stack, request.param)) as database:
        shop.create(database)
        shop.fill(database, scale=0.05)
        for table in ("hidden", "ghosts", "emptied"):
            database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, note text, big text)")
            rows = ((number, "n", str(number) * 3000) for number in range(1, 301))
            database.insert(table, ("id", "note", "big"), rows)
        if request.param == "postgres":
            for table in ("hidden", "ghosts", "emptied"):
                database.execute(f"ALTER TABLE {table} ALTER COLUMN big SET STORAGE EXTERNAL")
        database.start_connector({"snapshot.mode": "no_data"})
        tables = {database.identifier(name): {"engine": "deletion-vectors"} for name in BY_FILE}
        sections = {**SNAPSHOT, "lake": {"path": "./lake", "tables": tables}}
        with Running(database, tmp_path_factory.mktemp("pipeline"), sections) as running:
            yield running


def wait_more(snapshots: Snapshots, records: int) -> None:
    """Wait until so many more records of snapshots were written: a moment that no clock chose."""

    def written() -> int:
        return len(snapshots.control.records()) + len(snapshots.chunks.records())

    enough = written() + records
    wait_for(lambda: written() >= enough, STATE_S, f"{records} more records of snapshots")


@pipeline_of(*EACH)
def test_killed_at_any_moment_of_a_run(pipeline: Running, snapshots: Snapshots):
    """Beside key changes, columns outside the row, long transactions and rollbacks.

    The next kill comes between a few records of snapshots and a few seconds after each start.
    """
    rng = random.Random(os.environ.get("SEED", "11"))
    everything = pipeline.database.identifier("") + ".*"
    with Workload(pipeline.database, **FAST, seed=11) as workload:
        begun = time.monotonic()
        run = snapshots.start(everything, chunk_rows=400, delay="20ms")
        started = snapshots.wait_note(run, "STARTED")
        assert set(tables_of(started)) == set(pipeline.tables()), "but the signal table"
        for _ in range(KILLS):
            wait_more(snapshots, rng.randint(1, 15))
            if [n for n in snapshots.notes(run) if n.type == "COMPLETED"]:  # a fast machine
                snapshots.completed(run)
                run = snapshots.start(everything, chunk_rows=400, delay="20ms")
                snapshots.wait_note(run, "STARTED")
            pipeline.lakemark.kill()
            pipeline.lakemark.start()
        snapshots.completed(run, deadline_s=RUN_S)
        written, seconds = workload.stop(), time.monotonic() - begun
    pace = written.transactions / seconds
    print(f"{KILLS} kills; {written} in {seconds:.0f} s: {pace:.0f} tx/s")
    for what, actions in BESIDE.items():
        assert sum(written.actions[one] for one in actions), f"no {what}"
    assert written.rolled_back
    assert pace >= LEAST_PACE
    pipeline.wait_equal()


@ends_servers
@pipeline_of(*EACH)
@pytest.mark.parametrize(
    "what", ["connector", *(pytest.param(one, marks=nightly) for one in ("worker", "database"))]
)
def test_what_writes_the_log_restarts_inside_a_window(
    pipeline: Running, snapshots: Snapshots, stack: Servers, what: str
):
    database = pipeline.database
    tables = [database.identifier(table) for table in ("customers", "orders")]

    def restart_worker() -> None:
        stack.connect.kill()
        alone(database, "orders", "DELETE FROM orders WHERE id % 97 = 0")
        stack.connect.start()

    def restart_database() -> None:
        database.server.kill()
        database.server.start()

    restarts: dict[str, Callable[[], None]] = {
        "connector": lambda: stack.connect.restart_connector(database.name),
        "worker": restart_worker,
        "database": restart_database,
    }
    with Workload(database, **RATE, seed=20 + list(restarts).index(what)) as workload:
        # So slow that the restart is over before the run is, however fast the machine.
        run = snapshots.start(*tables, chunk_rows=50, delay="1s")
        snapshots.wait_note(run, "STARTED")
        wait_more(snapshots, 8)
        restarts[what]()
        revive(pipeline)
        assert not [n for n in snapshots.notes(run) if n.type == "COMPLETED"], "too late"
        snapshots.hasten(run)
        snapshots.completed(run, deadline_s=RUN_S)
        workload.stop()
    pipeline.wait_equal(*tables)


def test_truncated_and_widened_in_the_middle_of_a_run(pipeline: Running, snapshots: Snapshots):
    database = pipeline.database
    run = snapshots.start("public.emptied", chunk_rows=10, delay="50ms")
    snapshots.wait_settled(run, "public.emptied", 3)
    database.execute("ALTER TABLE emptied ADD COLUMN more int DEFAULT 5")
    database.execute("UPDATE emptied SET id = id + 1000 WHERE id % 10 = 0")
    # As they are kept now: the table may have begun again.
    wait_for(lambda: len(snapshots.settled(run, "public.emptied")) >= 3, NOTE_S, "three chunks")
    with database.connect() as connection, connection.transaction():
        connection.execute("CREATE TEMPORARY TABLE kept AS SELECT * FROM emptied WHERE id % 2 = 0")
        connection.execute("TRUNCATE emptied")
        connection.execute("INSERT INTO emptied SELECT * FROM kept WHERE id < 1250")
    database.execute("UPDATE emptied SET note = 'after' WHERE id % 4 = 0")
    snapshots.completed(run, deadline_s=RUN_S)
    pipeline.wait_equal("public.emptied")


@pytest.fixture(scope="module")
def standby(stack: Servers) -> Iterator[Standby]:
    """A standby of the stack's PostgreSQL, for which no commit waits yet."""
    made = Standby(
        stack.postgres,
        directory=stack.directory / "standby",
        log=stack.logs / "standby.log",
    )
    made.start()
    yield made
    made.kill()
    shutil.rmtree(made.directory, ignore_errors=True)


@contextmanager
def committed_but_not_visible(
    database: Database, standby: Standby, statement: str, *, default: str
) -> Iterator[int]:
    """A transaction whose commit is in the log, and which nobody sees until the block ends.

    It waits until the standby shows it, which takes in the log but does not replay it.

    Args:
        database: where it is done.
        standby: what it waits for.
        statement: what it does.
        default: `synchronous_commit` of all others; with ``on`` they wait for less.

    Yields:
        the pid of its session.
    """
    settings = {
        "synchronous_standby_names": standby.application,
        "synchronous_commit": default,
    }
    pid: list[int] = []

    def commit() -> None:
        with database.connect() as connection:
            pid.append(connection.info.backend_pid)
            connection.execute("SET synchronous_commit = remote_apply")
            connection.execute(statement.encode())

    def shows(query: str, *wanted: object) -> None:
        wait_for(lambda: wanted in database.execute(query), STATE_S, f"{query}: {wanted}")

    thread = threading.Thread(target=commit)
    with standby.connect() as session:
        try:
            session.execute("SELECT pg_wal_replay_pause()")
            paused = "SELECT pg_get_wal_replay_pause_state()"
            wait_for(lambda: session.execute(paused).fetchone() == ("paused",), STATE_S, paused)
            for name, value in settings.items():
                database.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            database.execute("SELECT pg_reload_conf()")
            for name, value in settings.items():
                shows(f"SHOW {name}", value)
            shows("SELECT sync_state FROM pg_stat_replication", "sync")
            thread.start()
            wait_for(lambda: pid, STATE_S, "the transaction to begin")
            shows("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'", pid[0])
            yield pid[0]
            session.execute("SELECT pg_wal_replay_resume()")
            thread.join(30)
            assert not thread.is_alive()
        finally:
            for name in settings:
                database.execute(f"ALTER SYSTEM RESET {name}")
            database.execute("SELECT pg_reload_conf()")
            session.execute("SELECT pg_wal_replay_resume()")


@own_processes
@pytest.mark.parametrize("default", ["on", pytest.param("remote_apply", marks=nightly)])
def test_a_commit_that_the_log_has_and_nobody_sees(
    pipeline: Running, snapshots: Snapshots, standby: Standby, default: str
):
    """A chunk would have the row as it was before, in a window after the commit.

    With ``on`` window rows wait for less than that commit does. With ``remote_apply`` they wait as
    it does, and are there when their wait is cancelled. The chunk is given back, or not even read,
    until the transaction that it may not have seen has ended.
    """
    database = pipeline.database
    snapshots.run("public.hidden")
    pipeline.wait_equal("public.hidden")
    see = "SELECT note FROM hidden WHERE id = 7"
    before, note = database.execute(see), f"new with {default}"
    change = f"UPDATE hidden SET note = '{note}' WHERE id = 7"
    with committed_but_not_visible(database, standby, change, default=default) as pid:

        def arrived() -> bool:
            rows = pipeline.rows("public.hidden").select(["id", "note"]).to_pylist()
            return {"id": 7, "note": note} in rows

        wait_for(arrived, STATE_S, "the commit to come through the log")
        assert database.execute(see) == before
        run = snapshots.start("public.hidden")
        waiting = (
            "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name"
            " LIKE 'lakemark%windows'"
        )
        if default == "remote_apply":
            wait_for(lambda: database.execute(f"SELECT pid {waiting}"), STATE_S, "a window to wait")
            assert snapshots.reads(run, "public.hidden") == {}, "in a window that nobody may use"

        def waits() -> bool:
            if default == "remote_apply":
                database.execute(f"SELECT pg_cancel_backend(pid) {waiting}")
            said = pipeline.lakemark.events("snapshot.waits")
            return any(f"(pid {pid}," in event["blocker"] for event in said)

        wait_for(waits, STATE_S, "the run to wait for that transaction")
        assert snapshots.commands("chunk", run) == []
        assert database.execute(see) == before
        assert arrived(), "an older state was written over a newer one"
    snapshots.completed(run)
    pipeline.wait_equal("public.hidden")


@own_processes
def test_a_standby_is_no_source_of_chunks_or_windows(pipeline: Running, standby: Standby):
    """Its transaction ids prove nothing about the log, whatever it has replayed."""
    config = load(pipeline.lakemark.config)
    there = DatabaseConfig(url=standby.dsn(pipeline.database.name))
    config = config.model_copy(update={"database": there})
    spec = ChunkSpec(run="r", table="public.hidden", chunk=0, attempt=1, shards=2)
    error = run_chunk(spec, ReadSettings(config, HandlingModes(), {})).error
    assert error is not None
    assert (error.code, error.retried) == ("database-is-standby", True)
    assert "primary" in error.hint
    window = OpenWindow(uuid4(), "r", uuid4())
    with connect(there) as session, pytest.raises(DependencyError) as caught:
        write_window(session, "public.debezium_signal", closes=None, opens=window)
    assert caught.value.code == "database-is-standby"
    facts = database_facts(there, None, HandlingModes(), streams=False)
    assert facts.database.server.standby, "doctor says so"


@pytest.mark.parametrize(
    ("mode", "gone"), [pytest.param("initial", 0, marks=nightly), ("no_data", 1)]
)
def test_rows_deleted_while_no_slot_was_there_go_by_themselves(
    pipeline: Running, snapshots: Snapshots, mode: str, gone: int
):
    """No record of the deletes exists: the table asks for a run with a sweep, and gets it.

    Without a snapshot of the connector's own only its first transaction tells that it began anew.
    """
    database = pipeline.database
    snapshots.run("public.ghosts")
    pipeline.wait_equal("public.ghosts")
    config = dict(database.config)
    database.forget_connector()
    database.execute(f"DELETE FROM ghosts WHERE id % 4 = {gone}")
    database.execute("UPDATE ghosts SET note = 'while nobody looked' WHERE id % 4 = 2")
    database.execute(f"INSERT INTO ghosts VALUES ({1001 + 4 * gone}, 'born unseen', 'x')")
    before = len(pipeline.lakemark.events("snapshot.queued"))
    database.start_connector({**config, "snapshot.mode": mode})
    database.execute("UPDATE ghosts SET note = note || '.' WHERE id % 4 = 3")
    wait_for(
        lambda: any(
            event["table"] == "public.ghosts"
            for event in pipeline.lakemark.events("snapshot.queued")[before:]
        ),
        STATE_S,
        "the table's own run",
    )
    pipeline.wait_equal("public.ghosts")
    pipeline.wait_progress(
        "public.ghosts", "whole again", lambda record: not record.get("resnapshot")
    )
    pipeline.wait_equal()
