"""Asking the source: a worker of Connect over HTTP, Kafka's heartbeats, a database that is away."""

import contextlib
import json
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lakemark.connectors import connector as connectors
from lakemark.converters.arrival_order import UNPROMISED
from lakemark.errors import DependencyError
from lakemark.ops import overview, source_watch
from lakemark.ops.board import Board
from lakemark.ops.overview import Lookout
from lakemark.ops.source_side import FAILED, MISSING, SourceSide
from stack.processes import free_port, wait_for
from tests.kit.connector_settings import POSTGRES, config

SETTINGS = {**POSTGRES, "heartbeat.interval.ms": "1000"}


class Connect:
    """A worker of Connect.

    Attributes:
        task: the state of the connector's one task; None where it does not know the connector.
        status: with which it answers.
        asked: paths, in their order.
    """

    def __init__(self) -> None:
        self.task: str | None = "RUNNING"
        self.status = 200
        self.asked: list[str] = []
        worker = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                code, found = worker._answer(self.path)
                body = json.dumps(found).encode()
                self.send_response(code)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def _answer(self, path: str) -> tuple[int, object]:
        self.asked.append(path)
        if path == "/connectors":
            return 200, ["store"]
        if self.task is None or self.status != 200:
            return (404 if self.task is None else self.status), {}
        if path.endswith("/config"):
            return 200, SETTINGS
        task = {"id": 0, "state": self.task, "trace": "java.io.IOException: no way"}
        return 200, {"connector": {"state": "RUNNING"}, "tasks": [task]}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def connect():
    with contextlib.closing(Connect()) as started:
        yield started


@pytest.fixture
def heartbeats(monkeypatch):
    """When the newest heartbeat was written, by the topic; an error where Kafka is away."""
    newest = {"__debezium-heartbeat.shop": 0}

    class Cluster(contextlib.nullcontext):
        def __init__(self, found):
            assert found.kafka.timeout.total_seconds() <= 5
            super().__init__(self)

        def newest_ms(self, topics):
            (topic,) = topics
            if isinstance(newest[topic], Exception):
                raise newest[topic]
            return newest[topic]

    monkeypatch.setattr(source_watch, "Cluster", Cluster)
    return newest


def settings(connect: Connect, **more):
    return config(source={"connect": {"url": connect.url, "connector": "shop"}}, **more)


def told(found) -> list[str]:
    return [] if found is None else [problem.code for problem in found.problems]


def test_what_each_of_them_says(connect, heartbeats):
    heartbeats["__debezium-heartbeat.shop"] = 1_700_000_000_500
    away = {"url": f"postgresql://u@127.0.0.1:{free_port()}/d"}
    found = settings(connect, database=away)
    with source_watch.SourceWatch(found, connectors.read(found)) as watch:
        look = watch.look()
        assert (look.connector.worst, look.heartbeat) == ("RUNNING", 1_700_000_000.5)
        assert look.reader.code == "database-unavailable"
        assert watch.gone(frozenset(["public.a"])) is None, "nobody says so"
        heartbeats["__debezium-heartbeat.shop"] = DependencyError("away", code="kafka-unavailable")
        connect.task = FAILED
        look = watch.look()
        assert (look.connector.worst, look.heartbeat, look.heartbeats_read) == (FAILED, None, False)
        assert look.connector.tasks[0].trace == "java.io.IOException: no way"
        connect.task = None
        look = watch.look()
        assert (look.connector.code, look.connector.hint) == ("connector-missing", "it has: store")
        connect.task, connect.status = "RUNNING", 500
        connect.asked.clear()
        assert watch.look().connector.code == "connect-unavailable"
        assert len(connect.asked) == 1, "it is asked again with the next look"
        connect.status = 403
        assert watch.look().connector.code == "connect-refused"


def test_a_slot_of_which_only_connect_knows_the_name_is_not_asked_for(connect, heartbeats):
    found = settings(connect, database={"url": "postgresql://u@127.0.0.1:1/d"})
    known = connectors.parse({**SETTINGS, "slot.name": "${file:x}"}, config=found)
    assert not source_watch.expected(found, known).database
    with source_watch.SourceWatch(found, known) as watch:
        assert watch.look().reader is None


def test_the_board_is_told_until_it_is_stopped(connect, heartbeats, monkeypatch, logs):
    monkeypatch.setattr(source_watch, "EVERY_S", 0.02)
    heartbeats["__debezium-heartbeat.shop"] = int(time.time() * 1000)
    found, board, stopping = settings(connect), Board("shop"), threading.Event()
    thread = threading.Thread(
        target=source_watch.keep_looking,
        args=(found, board, stopping, connectors.read(found)),
    )
    thread.start()

    def now():
        return board.status().source

    try:
        wait_for(lambda: now() and now().connector == "RUNNING", 20, "the first look")
        connect.task = FAILED
        wait_for(lambda: told(now()) == ["connector-failed"], 20, "the failure")
        assert "(IOException: no way)" in now().problems[0].reason
        connect.status = 500
        wait_for(lambda: told(now()) == ["connect-unavailable"], 20, "that it is away")
        connect.task, connect.status = "RUNNING", 200
        wait_for(lambda: now().connector == "RUNNING" and not told(now()), 20, "that all is well")
    finally:
        stopping.set()
        thread.join(10)
    assert [one["code"] for one in logs if one["event"] == "source.problem"] == [
        "connector-failed",
        "connect-unavailable",
    ], "each is said once"
    assert [one["event"] for one in logs if one["event"] == "source.well"] == ["source.well"]


def test_a_command_looks_itself_where_no_process_answers(connect, heartbeats, monkeypatch):
    heartbeats["__debezium-heartbeat.shop"] = int(time.time() * 1000)
    monkeypatch.setattr(overview, "served_status", lambda _: None)
    monkeypatch.setattr(overview, "read_all", lambda *_, **__: [])
    lookout = Lookout(settings(connect))
    assert told(lookout.look().status.source) == []
    connect.task = FAILED
    assert told(lookout.look().status.source) == ["connector-failed"]
    connect.task = None
    found = lookout.look().status.source
    assert (told(found), found.connector) == (["connector-missing"], MISSING)
    connect.close()
    assert told(lookout.look().status.source) == ["connect-unavailable"]


def test_what_an_order_of_arrival_does_not_promise_is_said_with_the_source(connect):
    found = settings(connect)
    known = connectors.parse(SETTINGS, config=found)
    for by_arrival, said in ((False, ""), (True, UNPROMISED)):
        side = SourceSide(source_watch.expected(found, replace(known, by_arrival=by_arrival)))
        with source_watch.SourceWatch(found, known) as watch:
            seen = side.seen(watch.look())
        assert (side.unseen(1.0).unpromised, seen.unpromised) == (said, said)
