"""The board of a pipeline with several connectors: what is each one's, and whose lag a table has."""

import json
import threading
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator
from prometheus_client import CollectorRegistry, generate_latest

from lakemark.connectors.parts import PipelinePart
from lakemark.errors import DependencyError
from lakemark.ops import lag, overview
from lakemark.ops.board import Board
from lakemark.ops.metrics import Metrics
from lakemark.ops.status import CatalogChange, CatalogNow, SourceNow, SourceProblem
from lakemark.snapshot import notifications
from lakemark.snapshot.flight import Flight
from lakemark.snapshot.notifications import Subject
from lakemark.state.tables import PipelineState
from tests.kit.connector_settings import POSTGRES, config
from tests.kit.table_states import table_state
from tests.unit.cli.test_status_cli import output
from tests.unit.ops.test_board import Clock

SCHEMA = json.loads((Path(__file__).parents[3] / "schemas" / "status.json").read_text())
SHOP, CRM = "shop.public.a", '"crm.eu".sales.b'
SHOP_TOPIC, CRM_TOPIC = "shop.public.a", "crm.eu.sales.b"
AWAY = DependencyError("no route to the database", code="database-unavailable", hint="start it")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def board(clock):
    made = Board("mall", clock=clock)
    made.connectors({"shop": "shop-db", "crm.eu": "crm-db"}, [("old", AWAY)])
    made.pipeline("streaming")
    newest = int(clock.now - 300) * 1_000_000
    entries = {
        name: table_state(topics=[topic], events=1, rows=1, newest_ts=newest)
        for name, topic in ((SHOP, SHOP_TOPIC), (CRM, CRM_TOPIC))
    }
    offsets = {SHOP_TOPIC: {0: 5}, CRM_TOPIC: {0: 5}}
    made.tables(PipelineState(batch=1, offsets=offsets, tables=entries))
    made.captured([SHOP, CRM])
    made.ends(lag.Ends({t: {0: 0} for t in offsets}, offsets))
    return made


def source(clock, **more) -> SourceNow:
    now = round(clock.now * 1000)
    return SourceNow(now, watched=True, connector="RUNNING", proven_ms=now, **more)


def broken(clock) -> SourceNow:
    problem = SourceProblem("connector-failed", "the task has failed", "restart it", 1)
    now = round(clock.now * 1000)
    return SourceNow(
        now, watched=True, connector="FAILED", proven_ms=now - 90_000, problems=(problem,)
    )


def sides(board) -> dict:
    return {one.name: one for one in board.status().connectors}


def lags(board) -> dict:
    return {table.name: table.lag.seconds for table in board.status().tables}


def test_a_source_that_has_stopped_is_the_lag_of_its_own_tables(board, clock):
    board.source(source(clock), "shop")
    board.source(broken(clock), "crm.eu")
    assert lags(board) == {SHOP: 0.0, CRM: 90.0}
    assert board.status().lag.seconds == 90.0
    board.source(source(clock), "crm.eu")
    assert lags(board) == {SHOP: 0.0, CRM: 0.0}


def test_what_is_gone_from_one_database_is_there_in_the_other(board):
    board.gone([CRM], "crm.eu")
    states = {table.name: table.state for table in board.status().tables}
    assert states == {SHOP: "streaming", CRM: "dropped"}
    board.gone([], "shop")
    assert board.names("shop") == {SHOP}
    assert board.names("crm.eu") == {CRM}


def test_each_has_its_own_windows_looks_and_problems(board, clock):
    board.source(broken(clock), "crm.eu")
    board.catalog(CatalogNow(1, "it is away"), "crm.eu")
    board.flight(Flight(window="w", opened_ms=5, windows=2), "shop")
    found = sides(board)
    assert found["shop-db"].windows.in_use == 2
    assert found["crm-db"].windows is None
    assert [one.code for one in found["crm-db"].source.problems] == ["connector-failed"]
    assert found["shop-db"].catalog is None
    assert (found["old"].state, found["old"].code) == ("away", "database-unavailable")
    status = board.status()
    assert (status.source, status.catalog, status.windows) == (None, None, None)
    Draft202012Validator(SCHEMA).validate(msgspec.json.decode(msgspec.json.encode(status)))


def test_a_signal_is_answered_by_whoever_answers_last(board):
    board.signal(b'{"id":"s","type":"pause-snapshot"}', sent_ms=1, unnamed="u")
    for number, connector in enumerate(("crm.eu", "shop")):
        subject = Subject(f"s@{connector}", "mall", (SHOP,))
        board.notification(notifications.paused(subject, ts_ms=10 + number))
    (signal,) = board.status().signals
    assert (signal.answer.type, signal.answer.at_ms) == ("PAUSED", 11)


def test_a_start_keeps_what_is_known_of_a_connector(board, clock):
    board.source(source(clock), "shop")
    board.connectors({"shop": "shop-db"}, [("crm-db", AWAY)])
    assert sides(board)["shop-db"].source is not None
    assert sides(board)["crm-db"].state == "away"


def test_people_are_told_of_whom_it_is(board, clock, capsys):
    board.source(broken(clock), "crm.eu")
    changed = CatalogChange(CRM, "rewritten", "read-again", "b was rewritten", "", 1)
    board.catalog(CatalogNow(round(clock.now * 1000), changes=(changed,)), "crm.eu")
    board.catalog(CatalogNow(None, "no rights"), "shop")
    text = output(board, capsys)
    assert "connector old: no route to the database (database-unavailable; its tables wait)" in text
    assert "source crm-db: the task has failed (connector-failed" in text
    assert "catalog shop-db: never seen: no rights (it is retried)" in text


def test_metrics_have_a_label_for_each(board, clock):
    board.source(source(clock), "shop")
    board.source(broken(clock), "crm.eu")
    registry = CollectorRegistry()
    registry.register(Metrics(board))
    text = generate_latest(registry).decode()
    for name, up in (("shop-db", 1), ("crm-db", 0), ("old", 0)):
        assert f'lakemark_source_up{{connector="{name}"}} {up}.0' in text
    assert 'state{connector="crm-db",state="FAILED"} 1.0' in text


def test_one_that_hangs_takes_nobody_elses_time_when_a_command_looks(tmp_path, monkeypatch):
    entries = []
    for name in ("shop", "crm"):
        (tmp_path / f"{name}.json").write_text(json.dumps({**POSTGRES, "topic.prefix": name}))
        entries.append({"connector_file": str(tmp_path / f"{name}.json")})
    hangs, read = threading.Event(), PipelinePart.read

    def reads(part, *, attempts):
        if part.name == "crm.json":
            hangs.wait(60)
        return read(part, attempts=attempts)

    monkeypatch.setattr(PipelinePart, "read", reads)
    monkeypatch.setattr(overview, "_SOURCE_S", 0.1)
    monkeypatch.setattr(overview, "served_status", lambda _: None)
    monkeypatch.setattr(overview, "read_all", lambda *_, **__: [])
    monkeypatch.setattr(
        overview.source_watch, "look_once", lambda _, one, board: board.gone([], one.qualifier)
    )
    settings = config(source={"connectors": entries}, database=None)
    seen = overview.Lookout(settings).look(deadline_s=20).status.connectors
    hangs.set()
    assert {one.name: one.code for one in seen} == {"shop.json": "", "crm.json": "no-answer"}
