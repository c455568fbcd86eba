"""What the demo reads of a snapshot, and how it shows it."""

import io
import json
import re
from contextlib import nullcontext
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console

from lakemark.model.key_ranges import KeyRange
from lakemark.snapshot import notifications, runs, signals
from lakemark.snapshot.notifications import Progress, ScanStatus, Subject
from lakemark.snapshot.run_tracker import FollowedRun
from lakemark.snapshot.runs import Chunk, TableRun
from stack import demo, demo_load, demo_view, loading, shop
from stack.demo_view import Measured, Screen
from stack.loading import RUN, Loading, settled_in
from stack.local import DATABASES
from stack.mysql import MySqlDatabase
from stack.postgres import PostgresDatabase
from tests.kit.documents import ROOT

A, B, C = "public.a", "public.b", "public.c"
SUBJECT = Subject(RUN, "demo", (A, B))


class Topic:
    """Stands for a topic's tail: what is put into it comes out once."""

    def __init__(self, *_):
        self.values = []

    def value(self, _seconds):
        return self.values.pop(0) if self.values else None

    def __exit__(self, *_):
        pass


@pytest.fixture
def load(monkeypatch):
    monkeypatch.setattr(loading, "Tail", Topic)
    monkeypatch.setattr(
        loading, "publish", lambda _, topic, found: load.sent.append((topic, found))
    )
    topics = SimpleNamespace(notifications="n", control="c", progress="p", signals="s")
    load = Loading(SimpleNamespace(name="demo", topics=topics))
    load.sent = []
    return load


def control(load, **record):
    load._control.values.append(json.dumps(record).encode())


def manifest(load, number, table, chunk, *, run=RUN, hi="w"):
    control(load, type="chunk", run=run, table=table, chunk=chunk, attempt=number, hi=hi)


def said(load, *found):
    load._notifications.values += [one.value() for one in found]
    load.look()


def kept(*tables, run=RUN):
    """Records of the progress topic: (table run, its chunks)."""
    found = {runs.run_key(run): msgspec.json.encode(runs.Run(run, [t for t, _ in tables]))}
    for table, chunks in tables:
        if chunks:
            found[runs.page_key(run, table, 0)] = runs.page_value(chunks)
    return found


def chunk(*, done):
    return Chunk.of(KeyRange(("1",), ("2",))) if not done else Chunk(done=True)


def progress(chunks, total):
    return Progress(chunks=chunks, total_chunks=total, rows=10 * chunks, seconds=1)


@pytest.fixture(params=["postgres", "mariadb-11.4", "mysql-9.7"])
def database(request, tmp_path):
    """A shop's database whose server does not run."""
    server = DATABASES[request.param](directory=tmp_path / "data", log=tmp_path / "log", port=4000)
    kind = PostgresDatabase if request.param == "postgres" else MySqlDatabase
    return kind(SimpleNamespace(), server, "shop")


def test_the_signal_is_one_that_lakemark_takes_for_all_tables_the_largest_first(load, database):
    load.send("execute-snapshot", demo_load.signal_for(database, scale=0.1), RUN)
    ((topic, ((key, value),)),) = load.sent
    signal = signals.read(key, value, pipeline="demo", unnamed="u")
    assert topic == "s"
    assert isinstance(signal, signals.ExecuteSnapshot)
    assert signal.id == RUN
    assert signal.chunk_rows == demo_load.CHUNK_ROWS / 10
    wanted = [*shop.tables(database), database.identifier(demo_load.PULSE)]
    chosen = signals.matching(signal.data_collections, [*wanted, "shopping.orders"])
    assert set(chosen.tables) == set(wanted)
    assert chosen.tables[:2] == tuple(map(database.identifier, ("line_items", "orders")))
    assert chosen.unmatched == ()


@pytest.mark.parametrize("written", ["in the database", "on the control topic"])
def test_windows_are_known_wherever_their_ends_are_written(load, written):
    rows = []
    found = object.__new__(demo_load.Load)
    found._loading = load
    found._connection = SimpleNamespace(execute=lambda _: SimpleNamespace(fetchall=lambda: rows))

    def end(window):
        if written == "in the database":
            rows.append((window,))
        else:
            control(load, type="window", window=window)
        load.look()

    assert found._is_idle()
    assert not found._in_window(), "no chunk was read"
    end("w-open")
    manifest(load, 1, A, 0, hi="w")
    load.look()
    assert not found._is_idle()
    assert found._in_window()
    end("w-close")
    assert found._is_idle()
    assert not found._in_window()


def test_settled_are_the_chunks_of_done_tables_and_those_marked_in_the_others():
    done = TableRun(A, state=runs.DONE, settled=2, chunks=2)
    reading = TableRun(B, state=runs.READING, settled=1, chunks=2)
    waiting = TableRun(C)
    records = kept((done, []), (reading, [chunk(done=False), chunk(done=True)]), (waiting, []))
    assert settled_in(records) == {(A, 0), (A, 1), (B, 1)}
    assert settled_in(kept((done, []), run="another")) == frozenset()
    assert settled_in({b"public.a": b"{}"}) == frozenset()


def test_what_was_read_but_not_settled_is_in_flight(load):
    manifest(load, 1, A, 0)
    manifest(load, 2, A, 1)
    manifest(load, 3, A, 2, run="another")
    load.look()
    assert load.in_flight(frozenset({(A, 0)})) == {(A, 1)}
    assert load.read_in_this_life() == {(A, 0), (A, 1)}


def test_readings_of_a_new_life_are_told_from_those_before(load):
    manifest(load, 1, A, 0)
    manifest(load, 2, A, 1)
    control(load, type="attempts", attempt=1 << 32)
    manifest(load, 1 << 32, A, 1)
    load.look()
    assert load.read_in_this_life() == {(A, 1)}


def test_numbers_are_those_of_the_notifications(load):
    said(load, notifications.started(SUBJECT, ts_ms=1))
    assert (load.run.state, load.settled, load.chunks, load.rows) == ("running", 0, 0, 0)
    said(
        load,
        notifications.in_progress(SUBJECT, table=A, progress=progress(2, 3), ts_ms=1),
        notifications.in_progress(SUBJECT, table=B, progress=progress(1, 4), ts_ms=1),
        notifications.paused(SUBJECT, ts_ms=1),
    )
    assert (load.run.state, load.settled, load.chunks, load.rows) == ("paused", 3, 7, 30)


def middle(load, *, settled, screen):
    """The end of the demo's load, after a kill with these chunks settled."""
    found = object.__new__(demo_load.Load)
    found._loading, found._screen, found._seen = load, screen, Measured()
    found._end(frozenset(settled), 2.0)
    return found._seen


def test_a_settled_chunk_that_is_read_again_fails_the_demo(load):
    control(load, type="attempts", attempt=5)
    manifest(load, 5, A, 1)
    said(load, notifications.completed(SUBJECT, progress=progress(2, 2), ts_ms=1))
    screen = Screen(Console(file=io.StringIO()))
    seen = middle(load, settled={(A, 0)}, screen=screen)
    assert seen.killed.startswith("1 chunks were settled before it, none of them was read again")
    assert "20 rows/s" in seen.snapshot
    with pytest.raises(demo_load.StackError, match="1 settled chunks were read again"):
        middle(load, settled={(A, 0), (A, 1)}, screen=screen)


@pytest.mark.parametrize("killed", [False, True])
def test_a_snapshot_that_ends_before_its_kill_or_badly_fails_the_demo(load, killed):
    found = object.__new__(demo_load.Load)
    found._loading, found._seen = load, Measured(applied_s=float(killed))
    found._check("x")
    said(load, notifications.started(SUBJECT, ts_ms=1))
    found._check("x")
    if killed:
        unread = {"status": ScanStatus.SQL_EXCEPTION, "progress": progress(0, 1), "ts_ms": 1}
        said(load, notifications.table_scan_completed(SUBJECT, table=A, **unread))
    said(load, notifications.completed(SUBJECT, progress=progress(2, 2), ts_ms=1))
    with pytest.raises(demo_load.StackError, match="SQL_EXCEPTION" if killed else "before x"):
        found._check("x")


def test_a_slow_machine_gets_no_more_changes_but_goes_on(load):
    out = io.StringIO()
    found = object.__new__(demo_load.Load)
    found._loading, found._seen = load, Measured()
    found._screen = Screen(Console(file=out))
    found._lakemark = SimpleNamespace(is_running=True, events=lambda _: [])
    found._connection = SimpleNamespace(execute=lambda _: None)
    found._beaten = found._write_until = -1.0
    stops = []
    found.workload = SimpleNamespace(
        stop=lambda: stops.append(1) or "7 rows", written=SimpleNamespace(transactions=1, rows=7)
    )
    turns = iter([False, False, False, True])
    found._until(lambda: next(turns), "x")
    found._stop_writing()
    assert stops == [1]
    assert "this machine is slow" in out.getvalue()
    assert "writes have stopped: 7 rows" in out.getvalue()


def test_a_lag_is_that_of_a_process_which_lives(load, monkeypatch):
    out = io.StringIO()
    found = object.__new__(demo_load.Load)
    found._loading, found._seen = load, Measured(lags=[0.7], lag=0.7)
    monkeypatch.setattr(load, "look", lambda _: None)
    monkeypatch.setattr(load, "kept", frozenset)
    found._screen = SimpleNamespace(now=lambda text, _: out.write(f"{text}\n"))
    written = SimpleNamespace(transactions=1, rows=7)
    found.workload = SimpleNamespace(written=written)
    found._show()
    assert "lag 0.7 s" in out.getvalue()
    killed = []
    found._lakemark = SimpleNamespace(kill=lambda: killed.append(1), start=found._show)
    found._screen.say, found._screen.doing = lambda _: None, lambda _: nullcontext()
    found._until, found._batch = lambda *_: None, lambda: None
    found._write_until = -1.0
    found._kill()
    assert killed
    shown = out.getvalue().splitlines()[1:]
    assert len(shown) == 2  # at once, and while it starts
    assert all("nobody applies them" in line and "0.7" not in line for line in shown)


def shown(*, terminal, monkeypatch):
    monkeypatch.setattr(demo_view, "TOLD_S", -1.0)
    out = io.StringIO()
    run = FollowedRun(RUN)
    with Screen(Console(file=out, force_terminal=terminal, width=100)) as screen:
        for found in (
            notifications.started(SUBJECT, ts_ms=1),
            notifications.in_progress(SUBJECT, table=A, progress=progress(1, 2), ts_ms=1),
            notifications.table_scan_completed(
                SUBJECT, table=A, status=ScanStatus.SUCCEEDED, progress=progress(2, 2), ts_ms=1
            ),
            notifications.in_progress(SUBJECT, table=B, progress=progress(1, 4), ts_ms=1),
        ):
            run = loading.then(run, found)
            screen.now("written a lot", run)
            screen.now("written a lot", run)
        screen.leave()
    return out.getvalue()


def test_on_a_pipe_each_table_has_lines_but_none_twice(monkeypatch):
    lines = [line.strip() for line in shown(terminal=False, monkeypatch=monkeypatch).splitlines()]
    tables = [line.partition("s  ")[2].strip() for line in lines if "public." in line]
    assert tables == [
        "public.a: 0/? chunks  0 rows",
        "public.a: 1/2 chunks  50 %  10 rows  10 rows/s  0:00:01 left",
        "public.a: 2/2 chunks  100 %  20 rows  20 rows/s  SUCCEEDED",
        "public.b: 0/? chunks  0 rows",
        "public.b: 1/4 chunks  25 %  10 rows  10 rows/s  0:00:03 left",
    ]


def test_on_a_terminal_each_table_has_a_bar(monkeypatch):
    text = shown(terminal=True, monkeypatch=monkeypatch)
    last = text[text.rindex("public.a") :]
    assert "━" in last
    assert "2/2 chunks  100 %" in last
    assert "public.b" in last


def test_batches_of_both_lives_are_counted():
    def done(second, events):
        return {"timestamp": f"2026-01-01T00:00:{second:02}Z", "events": events}

    seen = Measured()
    assert seen.see([done(1, 5)])
    assert not seen.see([done(1, 5)])
    seen.earlier = seen.batches
    assert not seen.see([])
    assert seen.see([done(3, 20), done(7, 20)])
    assert (seen.events, len(seen.batches), seen.best_rate()) == (45, 3, 10.0)


def test_what_is_kept_running_can_be_asked_by_the_commands_that_are_shown(
    database, tmp_path, monkeypatch
):
    out = io.StringIO()
    one = demo.Demo(Console(file=out, width=200), keep=True)
    server = SimpleNamespace(bootstrap="b:1", url="http://c")
    one._stack = SimpleNamespace(logs=tmp_path, kafka=server, connect=server)
    one._database = database
    monkeypatch.setattr(demo, "load", lambda _: SimpleNamespace(lake=None))
    monkeypatch.setattr(demo, "folder_of", lambda *_: str(tmp_path / "lake" / "public" / "orders"))
    page = "http://127.0.0.1:8780"
    said = {"http.listening": [{"address": page}]}
    one._where_next(SimpleNamespace(config=tmp_path / "lakemark.yaml", events=said.get))
    orders = database.identifier("orders")
    assert f" {database.dsn} " in out.getvalue()
    for command in ("status", f"snapshot start {orders} --wait", "snapshot status"):
        assert f".venv/bin/lakemark {command} -c {tmp_path}/lakemark.yaml" in out.getvalue()
    assert page in out.getvalue()


def test_the_page_shows_what_the_demo_says():
    """Every word that is quoted stands in what it prints."""
    page = (ROOT / "docs" / "demo.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    quoted = [words for row in rows for words in re.findall(r"`([^`]+)`", row)]
    sources = "".join(
        (ROOT / "stack" / f"{name}.py").read_text(encoding="utf-8")
        for name in ("demo", "demo_load", "demo_view")
    )
    assert len(quoted) > 10
    assert [words for words in quoted if words not in sources] == []
    assert f"in {len(shop.TABLES)} tables" in page
