"""`lakemark status`: from the topics or from the process itself, once, again and again, as JSON."""

import json
import re
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from jsonschema import Draft202012Validator
from rich.console import Console

from lakemark.cli import status_view
from lakemark.converters.arrival_order import UNPROMISED
from lakemark.errors import DependencyError
from lakemark.model.cuts import SourceCut
from lakemark.ops import overview, served
from lakemark.ops.board import Board
from lakemark.ops.http.server import serving
from lakemark.ops.metrics import Metrics
from lakemark.ops.overview import Lookout, Overview
from lakemark.ops.status import BatchDone, CatalogChange, CatalogNow, SourceNow, SourceProblem
from lakemark.settings import masking
from lakemark.settings.config import load
from lakemark.snapshot import notifications
from lakemark.snapshot.flight import ChunkInFlight, Flight
from lakemark.snapshot.notifications import Progress, Subject
from lakemark.state.progress import kept
from lakemark.state.stored_form import encode
from lakemark.state.tables import PipelineState
from stack.processes import free_port
from tests.kit.command_line import SMALL, Kept, invoke
from tests.kit.table_states import table_state
from tests.unit.ops.test_board import A, at, board, clock, ends, entry

__all__ = ["board", "clock"]

SCHEMA = json.loads((Path(__file__).parents[3] / "schemas" / "status.json").read_text())


@pytest.fixture(autouse=True)
def nobody_answers(monkeypatch):
    """No process listens where the command asks, whatever runs on this machine."""
    monkeypatch.setenv("LAKEMARK_HTTP__BIND", f"127.0.0.1:{free_port()}")


def record(**fields) -> bytes:
    return json.dumps({"table": "t", "batch": 7, **fields}).encode()


WHY = {"code": "schema-incompatible", "reason": "total: int64 to string"}
STATES = {
    b"_pipeline": b'{"state": "degraded", "code": "kafka-unavailable", "reason": "hush-4hush is away",'
    b' "batch": 7, "ts_ms": 1}',
    b"public.orders": record(
        state="errored", hint="lakemark table resume public.orders", events=1200, rows=11,
        newest_ts=1_000_000, dead_letters=3, **WHY,
    ),
    # Defaults are left out of the records.
    b"public.customers": record(committed_ms=5000, resnapshot="why", reread_keys={"[1]": 7, "[2]": 7}),
    b"public.odd": b"{",
}  # fmt: skip


def lines(text: str) -> dict[str, list[str]]:
    found = [line.split() for line in text.splitlines() if line.startswith("public")]
    return {words[0]: words for words in found if not words[0].endswith(":")}


def test_every_table_and_what_to_do(folder, kafka):
    kafka.records = STATES
    result = invoke("status")
    assert result.exit_code == 0
    text = result.output
    assert re.search(r"^pipeline: degraded, said \d+\w ago in shop.progress$", text, re.MULTILINE)
    assert "pipeline: ••• is away (kafka-unavailable; it is retried)" in text
    tables = lines(text)
    assert list(tables) == ["public.customers", "public.odd", "public.orders"]
    assert tables["public.customers"][1:8] == ["streaming", "?", "?", "0", "?", "0", "0"]
    assert tables["public.odd"] == ["public.odd", "unreadable"]
    assert tables["public.orders"][1:8] == ["errored", "?", "?", "1,200", "?", "11", "3"]
    assert tables["public.orders"][9] == "ago"
    assert "public.orders: total: int64 to string (schema-incompatible; it is not retried)" in text
    assert "→ lakemark table resume public.orders" in text
    assert "public.customers: may differ from the source: why" in text
    assert "public.customers: 2 rows to be read again" in text


def test_json_is_that_of_the_page_and_more(folder, kafka):
    kafka.records = STATES
    shown = json.loads(invoke("status", "--output", "json").stdout)
    tables = {table["name"]: table for table in shown["tables"]}
    assert tables["public.orders"]["rows"] == 11
    assert tables["public.orders"]["lag"] == {"seconds": None, "records": None}
    assert tables["public.orders"]["committed_ms"] is None
    assert tables["public.customers"]["committed_ms"] == 5000
    assert tables["public.customers"].pop("reread_keys") == ["[1]", "[2]"]
    assert tables["public.orders"].pop("reread_keys") == []
    assert shown["pipeline"]["state"] == "degraded"
    assert (shown.pop("asked"), shown.pop("unreadable")) == ("topics", ["public.odd"])
    Draft202012Validator(SCHEMA).validate(shown)


def test_captured_tables_of_which_nothing_has_come_wait(folder, kafka):
    captured = b'{"tables": ["public.empty", "public.orders"], "ts_ms": 1}'
    kafka.records = {**STATES, b"_captured": captured}
    shown = json.loads(invoke("status", "-o", "json").stdout)
    states = {table["name"]: table["state"] for table in shown["tables"]}
    assert states["public.empty"] == "waiting"
    assert states["public.orders"] == "errored"
    kafka.records = {**STATES, b"_captured": b"{"}
    shown = json.loads(invoke("status", "-o", "json").stdout)
    assert "public.empty" not in {table["name"] for table in shown["tables"]}


def test_what_verify_runs_have_shown_is_said_with_what_to_do(folder, kafka):
    found = {"proved_ms": 1, "ended_ms": 2, "turn_ms": 2, "found": {"missing": 2, "left": 1}}
    why = {"ended_ms": 2, "code": "no-key", "reason": "it has no key", "hint": "give it one"}
    kafka.records = {
        b"public.a": record(proof=found),
        b"public.b": record(proof={**found, "mended": True, "found": {"extra": 3}}),
        b"public.c": record(proof=why),
        b"public.d": record(),
    }
    text = " ".join(invoke("status").output.split())
    assert "public.a: verified: 2 missing in the lake, 1 not compared → " in text
    assert "public.b: verified: 3 only in the lake: all mended" in text
    assert "public.c: not verified: it has no key (no-key; it is not tried again) → give it" in text
    shown = json.loads(invoke("status", "-o", "json").stdout)
    proofs = {table["name"]: table["proof"] for table in shown["tables"]}
    assert (proofs["public.a"]["proved_ms"], proofs["public.a"]["unlike"]) == (1, 3)
    assert proofs["public.d"] is None


def test_before_the_first_start(folder, kafka):
    assert "no state yet: shop.progress is empty" in invoke("status").output
    shown = json.loads(invoke("status", "-o", "json").stdout)
    assert (shown["pipeline"], shown["tables"]) == (None, [])


def test_lag_is_what_kafka_has_beyond_the_checkpoint(folder, kafka):
    late = time.time() - 100
    streaming = record(topics=["t.o"], events=1, newest_ts=int(late * 1e6))
    paused = record(state="paused", topics=["t.p"], from_offsets={"t.p": {"0": 2}})
    kafka.records = {b"public.orders": streaming, b"public.customers": paused}
    kafka.ends = {("t.o", 0): 15, ("t.p", 0): 9}
    states = folder / "checkpoint" / "lakemark" / "state"
    states.mkdir(parents=True)
    state = PipelineState(batch=4, offsets={"t.o": {0: 12}, "t.p": {0: 9}})
    (states / "4.json").write_bytes(encode(state))
    shown = json.loads(invoke("status", "-o", "json").stdout)
    lags = {table["name"]: table["lag"] for table in shown["tables"]}
    assert lags["public.orders"]["records"] == 3
    assert 100 <= lags["public.orders"]["seconds"] < 130
    assert lags["public.customers"]["records"] == 7
    text = invoke("status").output
    assert lines(text)["public.orders"][3] == "3"
    assert "3 records unread" in text


@pytest.mark.slow
def test_brokers_that_are_away_are_the_usual_error(folder):
    text = SMALL.replace("localhost:9092", f"127.0.0.1:{free_port()}")
    (folder / "lakemark.yaml").write_text(text.replace('"}\nsource', '", timeout: 1s}\nsource'))
    for arguments in (["status"], ["status", "--watch", "1"]):
        result = invoke(*arguments)
        assert result.exit_code == 1
        assert "kafka-unavailable" in result.output


def test_who_hangs_is_not_waited_for(folder, monkeypatch):
    monkeypatch.setattr(overview, "read_all", lambda *_, **__: time.sleep(60))
    lookout = Lookout(load(folder / "lakemark.yaml"))
    begun = time.monotonic()
    with pytest.raises(overview.LakemarkError, match="did not answer everything within 0 s"):
        lookout.look(deadline_s=0.2)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("arguments", [["status", "5"], ["status", "--watch", "0"]])
def test_seconds_that_make_no_sense_are_a_usage_error(folder, kafka, arguments):
    assert invoke(*arguments).exit_code == 2


# --- the process itself -----------------------------------------------------------------------


def serve(folder, *, state="streaming", name="shop", token="long-enough-token"):
    own = f"http: {{bind: '127.0.0.1:{free_port()}', token: {token}}}\n"
    (folder / "lakemark.yaml").write_text(SMALL.replace("name: shop", f"name: {name}") + own)
    known = Board(name)
    known.pipeline(state)
    known.began(PipelineState(batch=9, tables={A: table_state(topics=["t.a"], events=5)}))
    return known, load(folder / "lakemark.yaml")


@pytest.mark.parametrize("token", ["long-enough-token", "schlüssel-àéî-鍵"])
def test_a_running_pipeline_is_asked_itself(folder, kafka, token):
    known, config = serve(folder, token=token)
    kafka.records = STATES
    with serving(config, known, Metrics(known)):
        shown = json.loads(invoke("status", "-o", "json").stdout)
        assert shown["asked"] == "pipeline"
        assert [(t["name"], t["events"]) for t in shown["tables"]] == [(A, 5)]
        assert shown["pipeline"]["batch"] == 9
    assert json.loads(invoke("status", "-o", "json").stdout)["asked"] == "topics"


def test_rows_of_which_nobody_knows_how_many_are_not_said_to_be_none(folder, kafka):
    """A list of keys that was too long to keep leaves the word that there are more."""
    known, _ = serve(folder)
    known.began(PipelineState(batch=9, tables={A: table_state(topics=["t.a"], reread_missed=3)}))
    text = "\n".join(status_view._of_tables(seen(known).status.tables))
    assert f"{A}: rows to be read again from the source" in text
    assert "0 rows" not in text


@pytest.mark.parametrize("given", [None, "shop config.yaml"])
def test_commands_that_are_shown_name_the_configuration_as_the_users_did(folder, kafka, given):
    kafka.records = STATES
    named = ["-c", given] if given else []
    if given:
        (folder / "lakemark.yaml").rename(folder / given)
    option = " -c 'shop config.yaml'" if given else ""
    text = invoke("status", *named).output
    assert f"→ lakemark table resume{option} public.orders" in text
    assert f"`lakemark status{option} --output json`" in text
    refused = invoke("table", "pause", "orders", *named).output
    assert f"lakemark status{option} shows the tables" in refused
    assert ("-c" in refused) == bool(given)
    paused = invoke("table", "pause", "public.orders", *named).output
    assert f"  lakemark table resume{option} public.orders" in paused


@pytest.mark.parametrize("listed", [{}, {"[1]": 7}])
def test_a_running_pipeline_answers_also_where_the_brokers_do_not(folder, monkeypatch, listed):
    def away(*_, **__):
        raise DependencyError("away", code="kafka-unavailable")

    monkeypatch.setattr(overview, "read_all", away)
    known, config = serve(folder, state="degraded")
    known.began(PipelineState(batch=9, tables={A: table_state(topics=["t.a"], reread_keys=listed)}))
    with serving(config, known, Metrics(known)):
        result = invoke("status")
    assert result.exit_code == 0
    assert "pipeline: degraded" in result.output
    assert (f"{A}: 1 row to be read again" in result.output) == bool(listed)


@pytest.mark.parametrize("state", ["standby", "starting"])
def test_a_process_that_does_not_run_the_query_is_not_asked(folder, state):
    known, config = serve(folder, state=state)
    with serving(config, known, Metrics(known)):
        assert served.served_status(config) is None
        known.pipeline("streaming")
        assert served.served_status(config) is not None
        other = config.model_copy(update={"name": "other"})
        assert served.served_status(other) is None


# --- what is drawn ----------------------------------------------------------------------------


def seen(found: Board) -> Overview:
    return Overview(found.status(), began=True, asked="topics", reread_keys={}, unreadable=())


def test_the_slowest_step_and_the_pace_of_each_table(board, clock, capsys):
    board.began(at(10, a=entry(events=5)))
    clock.now += 10
    board.tables(at(20, a=entry(events=30)))
    board.batch(BatchDone(1, 25, 25, {"tasks": 3.0, "state": 1.0}))
    status_view.show(
        status_view.Console(), seen(board), topic="t", as_json=False, hide=lambda text: text
    )
    text = capsys.readouterr().out
    assert "slowest step: tasks, 75 % of the newest batches' time" in text
    assert lines(text)[A][4:6] == ["30", "2.5"]


def test_the_newest_cut_of_each_connector_is_said(board, capsys):
    state = at(20, a=entry(newest_ts=9_000_000))
    state.cutting.last = SourceCut(1, "742:16", ended_ms=7000)
    state.own_log("crm").cutting.last = SourceCut(1, "3e1:5", 10_000, without=("crm.b", "crm.c"))
    board.tables(state)
    status_view.show(
        status_view.Console(width=200), seen(board), topic="t", as_json=False, hide=masking.own
    )
    text = capsys.readouterr().out
    assert "\ncut: 2s before the newest change, transaction 742:16\n" in text
    of_crm = "cut of crm: 0s before the newest change, transaction 3e1:5, without crm.b, crm.c\n"
    assert of_crm in text


def test_the_newest_snapshot_says_how_far_it_is_and_how_fast(board, capsys):
    run = Subject("r1", "shop", (A,))
    board.notification(notifications.started(run, ts_ms=1))
    progress = Progress(chunks=1, total_chunks=4, rows=1000, seconds=2, total_rows=4000)
    board.notification(notifications.in_progress(run, table=A, progress=progress, ts_ms=2))
    board.tables(at(1, a=entry()))
    board.ends(ends(3))
    status_view.show(
        status_view.Console(), seen(board), topic="t", as_json=False, hide=lambda text: text
    )
    text = capsys.readouterr().out
    assert "snapshot r1: running, 25 %" in text
    assert f"{A}: 1/4 chunks  25 %  1,000 of about 4,000 rows  500 rows/s" in text
    assert lines(text)[A][1:4] == ["snapshotting", "0s", "2"]


def test_what_is_in_flight_and_what_snapshots_wait_for(board, clock, capsys):
    run = Subject("r1", "shop", (A, "public.b"))
    board.notification(notifications.started(run, ts_ms=1))
    since = int(clock.now * 1000)
    chunks = [("reading", None), ("reading", None), ("settling", 9)]
    flying = tuple(
        ChunkInFlight("r1", A, at, at, state, since, rows)
        for at, (state, rows) in enumerate(chunks)
    )
    stages = {("r1", A): "reading", ("r1", "public.b"): "cutting"}
    why = {"code": "database-refused", "reason": "hush-4hush is wrong", "hint": "mend it"}
    board.flight(Flight(stages, flying, "w", since - 3000, 2, "transaction 9 (pid 4, psql)", **why))
    shown = seen(board)
    masking.know(lambda: masking.Masks(["hush-4hush"]))
    status_view.show(
        status_view.Console(width=200), shown, topic="t", as_json=False, hide=masking.own
    )
    text = capsys.readouterr().out
    assert "in flight: 2 reading, 1 settling" in text
    assert "public.b: 0/? chunks" in text
    assert "cutting" in text
    assert "windows in use: 2, the newest opened 3s ago" in text
    assert "chunks wait for the end of transaction 9 (pid 4, psql)" in text
    assert "snapshots wait: ••• is wrong (database-refused; it is retried)" in text
    assert "→ mend it" in text
    found = status_view.document(shown)
    assert found["snapshot_delay"]["reason"] == "••• is wrong"
    assert found["windows"]["in_use"] == 2
    assert [c["state"] for c in found["snapshots"][0]["tables"][0]["in_flight"]] == [
        "reading",
        "reading",
        "settling",
    ]


def test_watching_draws_again_until_ctrl_c_and_shows_what_passes(board, clock, capsys, monkeypatch):
    looks = []

    def look() -> Overview:
        looks.append(1)
        if len(looks) == 2:
            raise overview.LakemarkError("away", code="gone", hint="wait", retried=True)
        board.tables(at(1, a=entry(events=len(looks))))
        return seen(board)

    def sleep(seconds: float) -> None:
        assert seconds == 5
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(status_view, "time", SimpleNamespace(sleep=sleep))  # of nobody else
    console = status_view.Console(force_terminal=True, width=200)
    with pytest.raises(KeyboardInterrupt):
        status_view.watch(console, look, 5, topic="t", as_json=False, hide=lambda text: text)
    text = capsys.readouterr().out
    assert "not up to date: away (gone; it is tried again)" in text
    assert text.count("Ctrl-C ends this") >= 3
    assert "\x1b[1A" in text  # drawn over what stood there


def test_ctrl_c_is_a_good_end(folder, kafka, monkeypatch):
    kafka.records = STATES
    monkeypatch.setattr(status_view, "time", SimpleNamespace(sleep=_interrupt))
    result = invoke("status", "--watch", "5", "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout.strip().splitlines()[0])["asked"] == "topics"


def _interrupt(_: float) -> None:
    raise KeyboardInterrupt


# --- records ----------------------------------------------------------------------------------


def test_the_newest_record_of_a_table_counts():
    one, more = record(rows=1), record(rows=2, committed_ms=20)
    paused = record(rows=2, committed_ms=20, state="paused")
    found = kept([Kept(b"a", one), Kept(b"a", more), Kept(b"a", paused)])
    assert (found.tables["a"].state, found.tables["a"].size.committed_ms) == ("paused", 20)
    assert kept([Kept(b"a", one), Kept(b"a", None)]).tables == {}
    assert kept([Kept(b"a", b"{"), Kept(b"a", one)]).unreadable == ()


def test_a_table_whose_name_begins_with_an_underscore_is_a_table():
    ours = [b"_pipeline", b"_config", b"_run/shop.1", b'_page/["1","public.orders",0,0]']
    found = kept([Kept(key, record(rows=1)) for key in (b"_realtime.tenants", *ours)])
    assert list(found.tables) == ["_realtime.tenants"]
    assert list(found.others) == ours


# --- the source, and many tables -------------------------------------------------------------


def output(found: Board, capsys) -> str:
    masking.know(lambda: masking.Masks(["hush-4hush"]))
    status_view.show(Console(width=200), seen(found), topic="t", as_json=False, hide=masking.own)
    return capsys.readouterr().out


def test_a_source_in_trouble_stands_first_and_behind_is_no_lie(board, clock, capsys):
    board.pipeline("streaming")
    board.tables(at(10, a=entry()))
    board.ends(ends(10))
    now = round(clock.now * 1000)
    wrong = SourceProblem("connector-failed", "task 0 hush-4hush", "restart it", now - 120_000)
    board.source(SourceNow(now, watched=True, proven_ms=now - 180_000, problems=(wrong,)))
    lines = output(board, capsys).splitlines()
    assert lines[1:4] == [
        "source: task 0 ••• (connector-failed, seen first 2m ago)",
        "    → restart it",
        "behind the source: 3m, 0 records unread; all sent as of 3m ago",
    ]
    shown = status_view.document(seen(board))
    assert shown["source"]["problems"][0]["reason"] == "task 0 •••"
    board.source(SourceNow(now, watched=False))
    assert "behind the source: ?, 0 records unread\n    → nothing tells" in output(board, capsys)
    board.source(SourceNow(now, watched=True, unpromised=UNPROMISED))
    assert f"source: {UNPROMISED}" in output(board, capsys)


def change(action: str, at_ms: int, **more: str) -> CatalogChange:
    told = {"table": "t.a", "kind": "rewritten", "reason": "a was rewritten", "hint": ""} | more
    return CatalogChange(action=action, at_ms=at_ms, **told)


def test_what_looks_at_the_catalog_have_found_is_said(board, clock, capsys):
    board.pipeline("streaming")
    board.tables(at(10, a=entry()))
    now = round(clock.now * 1000)
    stop = {"reason": "t.b hush-4hush", "kind": "not-published", "hint": "ALTER PUBLICATION p"}
    old = [change("nothing", now - 90_000_000, reason="yesterday")]
    found = [change("read-again", now - 120_000), change("stop", now - 180_000, **stop), *old]
    board.catalog(CatalogNow(now, changes=tuple(found)))
    text = output(board, capsys)
    assert text.splitlines()[-3:] == [
        "catalog, 2m ago: a was rewritten (rewritten; snapshotted by itself)",
        "catalog, 3m ago: t.b ••• (not-published; the table stops until it is mended)",
        "    → ALTER PUBLICATION p",
    ]
    assert "yesterday" not in text
    assert "catalog:" not in text, "the looks themselves are well"
    told = status_view.document(seen(board))["catalog"]
    assert [one["reason"] for one in told["changes"]] == ["a was rewritten", "t.b •••", "yesterday"]
    Draft202012Validator(SCHEMA).validate(msgspec.json.decode(msgspec.json.encode(board.status())))


@pytest.mark.parametrize(("looked", "since"), [(300_000, "seen last 5m ago"), (None, "never seen")])
def test_a_catalog_that_nobody_sees_is_said(board, clock, capsys, looked, since):
    board.pipeline("streaming")
    board.tables(at(10, a=entry()))
    when = None if looked is None else round(clock.now * 1000) - looked
    board.catalog(CatalogNow(when, "the database is away", (change("nothing", 1),)))
    assert f"catalog: {since}: the database is away (it is retried)" in output(board, capsys)


def test_only_the_newest_changes_of_the_catalog_are_listed(board, clock, capsys):
    board.pipeline("streaming")
    board.tables(at(10, a=entry()))
    now = round(clock.now * 1000)
    board.catalog(
        CatalogNow(now, changes=tuple(change("dropped", now, reason=f"c{n}") for n in range(9)))
    )
    text = output(board, capsys)
    assert ("c4" in text, "c5" in text) == (True, False)
    assert "its Delta table stays as it is" in text


def test_what_is_the_same_for_many_tables_is_said_once(board, capsys):
    names = [f"t{number:03}" for number in range(250)]
    doubt = {"resnapshot": "events may be missing", "reread_keys": {"[1]": 1}}
    why = {"state": "errored", "code": "no-key", "hint": "x"}
    other = entry(**{**why, "reason": "this one alone"})
    tables = {
        name: entry(
            **{**why, "reason": f"public.{name} has no key", "hint": f"resume public.{name}"},
            **doubt,
        )
        for name in names
    }
    board.pipeline("streaming")
    board.tables(at(1, **tables, z=other))
    text = output(board, capsys)
    below = text[text.index("public.z ") :].splitlines()[1:]
    some = "public.t000, public.t001, public.t002 and 247 more"
    assert below == [
        f"{some}: TABLE has no key (no-key; it is not retried)",
        "    → resume TABLE",
        f"{some}: may differ from the source: events may be missing",
        f"    → {status_view.RESNAPSHOT}",
        f"{some}: 1 row to be read again from the source",
        f"    → {status_view.REREADS}",
        "public.z: this one alone (no-key; it is not retried)",
        "    → x",
    ]
    shown = status_view.document(seen(board))
    assert sum(table["reason"].endswith("has no key") for table in shown["tables"]) == 250


def test_a_table_shows_where_its_records_and_the_database_differ(board, capsys):
    one, other = entry(), entry()
    one.disagrees = "n is int32 in its records and int64 in the database"
    other.hidden_nulls, other.size.maybe_null = ("score", "word"), 1234
    board.tables(at(10, a=one, b=other))
    shown = seen(board)
    status_view.show(
        status_view.Console(width=300), shown, topic="t", as_json=False, hide=lambda text: text
    )
    text = capsys.readouterr().out
    assert f"public.a: its records and the database do not agree: {one.disagrees}" in text
    told = "public.b: NULL arrives as the default in score, word: 1,234 rows came with it"
    assert told in text
    assert "ignore.default.for.nullables=true" in text
    found = {table["name"]: table for table in status_view.document(shown)["tables"]}
    assert found["public.a"]["disagrees"] == one.disagrees
    assert found["public.b"]["maybe_null"] == 1234
    assert found["public.b"]["hidden_nulls"] == ["score", "word"]
