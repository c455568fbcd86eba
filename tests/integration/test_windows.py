"""Window rows against a real server: order, visibility, who is waited for, privileges."""

import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import jsonschema
import psycopg
import pytest

from lakemark.connectors.database import OpenWindow, Watermark, visible
from lakemark.connectors.postgres.postgres_chunks import boundaries, open_table, read_chunk
from lakemark.connectors.postgres.postgres_session import connect, current_snapshot
from lakemark.connectors.postgres.postgres_windows import blocker, require_published, write_window
from lakemark.connectors.postgres.visibility import Snapshot
from lakemark.errors import ConfigError
from stack.local import ROOT, Database
from stack.processes import wait_for
from tests.kit.reader import DEFAULTS, config

pytestmark = pytest.mark.integration


def window(run: str = "r") -> OpenWindow:
    uuid = uuid4()
    return OpenWindow(uuid, run, uuid)


SIGNAL = "public.debezium_signal"
ODD = "run with \"quotes\", 'others', \\, \n, \x01 and \x00"


def test_window_rows_and_the_transaction_that_is_waited_for(source: Database):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    first, second, third = window(ODD), window(), window()
    with connect(config(source)) as session, source.connect() as other:
        opened = write_window(session, SIGNAL, closes=None, opens=first)
        assert isinstance(opened, Watermark)
        assert visible(current_snapshot(session), [opened]) == opened

        other.execute("SET application_name = 'billing'")
        other.execute("BEGIN")
        other.execute("INSERT INTO t VALUES (1)")
        newer = write_window(session, SIGNAL, closes=first, opens=second)
        newest = write_window(session, SIGNAL, closes=second, opens=third)
        snapshot = current_snapshot(session)
        assert visible(snapshot, [opened, newer, newest]) == opened
        assert visible(snapshot, [newer, newest]) is None
        found = blocker(session, snapshot)
        assert (found.pid, found.application) == (other.info.backend_pid, "billing")
        assert found.state == "idle in transaction"
        assert found.since is not None
        assert "billing" in str(found)

        other.execute("PREPARE TRANSACTION 'transfer 7'")
        found = blocker(session, current_snapshot(session))
        assert (found.pid, found.application, found.state) == (None, "transfer 7", "prepared")
        other.execute("COMMIT PREPARED 'transfer 7'")
        assert blocker(session, snapshot).state == "ended"
        assert visible(current_snapshot(session), [opened, newer, newest]) == newest
        after = write_window(session, SIGNAL, closes=third, opens=None)
        assert not isinstance(after, Watermark)
        assert after.xmax >= newest.after.xmax
    schema = json.loads((ROOT / "schemas" / "window-row.json").read_text())
    for id_, type_, data in source.execute("SELECT id, type, data FROM debezium_signal"):
        jsonschema.validate({"id": id_, "type": type_, "data": data}, schema)
        jsonschema.validate(found := json.loads(data), schema["$defs"]["data"])
        assert found.keys() == {"run", "oldest", "server", "bound"}
        assert found["run"] == (ODD if id_.startswith(str(first.uuid)) else "r")
    rows = source.execute("SELECT id, type FROM debezium_signal ORDER BY xmin::text::int, type")
    assert rows == [
        (f"{first.uuid}-open", "snapshot-window-open"),
        (f"{first.uuid}-close", "snapshot-window-close"),
        (f"{second.uuid}-open", "snapshot-window-open"),
        (f"{second.uuid}-close", "snapshot-window-close"),
        (f"{third.uuid}-open", "snapshot-window-open"),
        (f"{third.uuid}-close", "snapshot-window-close"),
    ]


def test_a_crash_of_one_backend_begins_another_life_of_the_server(source: Database):
    """Transactions that were committed asynchronously may be lost in it, though it goes on."""
    source.execute(f"CREATE ROLE {source.name}_reader LOGIN")
    source.execute("GRANT INSERT ON debezium_signal TO PUBLIC")
    reader = config(source, f"{source.name}_reader")
    started = "SELECT pg_postmaster_start_time()"
    before, first = source.execute(started), window()
    with connect(reader) as session:
        opened = write_window(session, SIGNAL, closes=None, opens=first)
        chunk = current_snapshot(session)
        assert visible(chunk, [opened]) == opened
    watch, victim = source.connect(), source.connect()
    os.kill(victim.info.backend_pid, signal.SIGKILL)
    wait_for(lambda: not answers(watch.execute), 60, "the end of all sessions")
    wait_for(lambda: answers(source.execute), 60, "the server to go on")
    assert source.execute(started) == before
    with connect(reader) as session:
        closed = write_window(session, SIGNAL, closes=first, opens=None)
        assert closed.server != chunk.server
        assert visible(current_snapshot(session), [opened]) is None
    rows = source.execute("SELECT type, data::json ->> 'server' FROM debezium_signal")
    assert dict(rows) == {
        "snapshot-window-open": chunk.life,
        "snapshot-window-close": closed.life,
    }


def answers(execute: Callable[[str], object]) -> bool:
    try:
        execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.parametrize(
    ("default", "used"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")]
)
def test_window_rows_are_never_committed_weaker_than_on(source: Database, default, used):
    source.execute("CREATE TABLE seen (how text)")
    source.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NEW;"
        " END $$"
    )
    source.execute(
        "CREATE TRIGGER note BEFORE INSERT ON debezium_signal FOR EACH ROW EXECUTE FUNCTION note()"
    )
    source.execute(f"ALTER DATABASE {source.name} SET synchronous_commit = {default}")
    with connect(config(source)) as session:
        write_window(session, SIGNAL, closes=None, opens=window())
        assert session.execute("SHOW synchronous_commit").fetchone() == (default,)
    assert source.execute("SELECT how FROM seen") == [(used,)]


def test_the_least_privileges_are_enough_and_their_lack_says_what_to_grant(source: Database):
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.execute("INSERT INTO t VALUES (1)")
    source.execute("REVOKE ALL ON SCHEMA public FROM public")
    source.execute(f"CREATE ROLE {source.name}_reader LOGIN")
    user = f"{source.name}_reader"
    reader = config(source, user)
    try:
        with connect(reader) as session, pytest.raises(ConfigError) as caught:
            write_window(session, SIGNAL, closes=None, opens=window())
        mend(source, caught.value.hint, user)
        with connect(reader) as session:
            with (
                pytest.raises(ConfigError) as caught,
                open_table(session, "public.t", DEFAULTS, settings={}) as opened,
            ):
                read_chunk(opened)
            mend(source, caught.value.hint.partition(" (with")[0], user)
            write_window(session, SIGNAL, closes=None, opens=window())
            with open_table(session, "public.t", DEFAULTS, settings={}) as opened:
                assert boundaries(opened, 1) == []
                assert read_chunk(opened).rows.num_rows == 1
            with source.connect() as other:
                other.execute("BEGIN; INSERT INTO t VALUES (2)")
                found = blocker(session, current_snapshot(session))
                assert found.pid == other.info.backend_pid
        source.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        with (
            connect(reader) as session,
            pytest.raises(ConfigError, match="all rows"),
            open_table(session, "public.t", DEFAULTS, settings={}) as opened,
        ):
            read_chunk(opened)
    finally:
        source.execute(f"DROP OWNED BY {user}")
        source.execute(f"DROP ROLE {user}")


def mend(database: Database, hint: str, user: str) -> None:
    for statement in hint.replace("<lakemark's user>", user).split(";"):
        if statement.strip():
            database.execute(statement)


@pytest.mark.parametrize(
    ("table", "code"),
    [
        (None, "signal-table-missing"),
        ("id varchar(42) PRIMARY KEY, type varchar(32)", "signal-table-columns"),
        ("a varchar(42) PRIMARY KEY, b varchar(8), c varchar(2048)", "signal-table-refuses"),
        ("id varchar(42), type int, data text", "signal-table-refuses"),
    ],
)
def test_a_signal_table_that_does_not_fit_is_mended_by_the_hint(source: Database, table, code):
    source.execute("DROP TABLE debezium_signal")
    if table is not None:
        source.execute(f"CREATE TABLE debezium_signal ({table})")
    with connect(config(source)) as session:
        with pytest.raises(ConfigError) as caught:
            write_window(session, SIGNAL, closes=None, opens=window())
        assert caught.value.code == code
        mend(source, caught.value.hint, "postgres")
        write_window(session, SIGNAL, closes=None, opens=window())
    assert len(source.execute("SELECT * FROM debezium_signal")) == 1


@pytest.mark.parametrize(
    "unfit",
    [
        "CREATE PUBLICATION ours",
        "CREATE PUBLICATION ours FOR TABLE debezium_signal WITH (publish = 'update, delete')",
    ],
)
def test_a_signal_table_whose_rows_do_not_come_back_is_mended_by_the_hint(
    source: Database, unfit: str
):
    connector = {"plugin.name": "pgoutput", "publication.name": "ours"}
    source.execute(unfit)
    with connect(config(source)) as session:
        with pytest.raises(ConfigError, match="do not come back") as caught:
            require_published(session, SIGNAL, connector)
        assert caught.value.code == "signal-table-unpublished"
        source.execute(caught.value.hint.partition(";")[0])
        require_published(session, SIGNAL, connector)


def test_a_transaction_that_began_while_the_open_row_was_committed_is_waited_for(source: Database):
    """Its id is higher than the open row's, and its commit record may be older than that one's."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.execute(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$"
    )
    source.execute(
        "CREATE TRIGGER hold AFTER INSERT ON debezium_signal FOR EACH ROW EXECUTE FUNCTION hold()"
    )
    with source.connect() as gate, source.connect() as other, ThreadPoolExecutor(1) as pool:
        gate.execute("SELECT pg_advisory_lock(7)")

        def tick() -> Watermark | Snapshot:
            with connect(config(source)) as session:
                return write_window(session, SIGNAL, closes=None, opens=window())

        waiting = pool.submit(tick)
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_for(lambda: gate.execute(held).fetchone() == (1,), 30, "the open row to be held")
        other.execute("BEGIN")
        other.execute("INSERT INTO t VALUES (1)")
        gate.execute("SELECT pg_advisory_unlock(7)")
        opened = waiting.result(30)
        assert isinstance(opened, Watermark)
        with connect(config(source)) as session:
            assert visible(current_snapshot(session), [opened]) is None
            other.execute("COMMIT")
            assert visible(current_snapshot(session), [opened]) == opened
