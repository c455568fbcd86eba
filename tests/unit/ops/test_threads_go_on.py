"""Threads that watch something die of nothing that they meet: they say so, and go on."""

import ast
import errno
import threading
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

import lakemark
from lakemark.connectors import parts
from lakemark.connectors.parts import parts_of
from lakemark.errors import DependencyError
from lakemark.ops import catalog_watch, feeds, source_watch
from lakemark.ops.board import Board
from lakemark.ops.http import server
from lakemark.sink.output import writers
from lakemark.snapshot import adapters, snapshots
from lakemark.snapshot.adapters import Adapters
from lakemark.snapshot.ports import Stream
from lakemark.snapshot.snapshots import Snapshots
from lakemark.sources import connecting
from lakemark.state import connector_drift, ownership
from lakemark.state.connector_drift import Watch
from lakemark.state.ownership import Turn
from tests.kit.connector_settings import config, parse
from tests.kit.fake_world import FakeWorld
from tests.kit.sources import parsed

ERRORS = [
    OSError(errno.EMFILE, "Too many open files"),
    MemoryError(),
    RuntimeError("can't start new thread"),
    KafkaException(KafkaError(KafkaError._RESOLVE, "Failed to create thread")),
    ValueError("a defect"),
    DependencyError("away", code="kafka-unavailable"),
]
WITHIN_S = 20
THREAD = {"Thread", "threading.Thread"}


class Fails:
    """Stands in for something: it raises, every time, and knows when it has done so thrice."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.calls, self.thrice = error, 0, threading.Event()

    def __call__(self, *_, **__):
        self.calls += 1
        if self.calls >= 3:
            self.thrice.set()
        raise self.error


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    for module, names in (
        (feeds, ("_ENDS_EVERY_S", "_AGAIN_S", "_KEEP_EVERY_S")),
        (source_watch, ("EVERY_S",)),
        (ownership, ("_AGAIN_S",)),
        (snapshots, ("_AGAIN_S",)),
        (server, ("_AGAIN_S",)),
        (writers, ("_REFUSED_S",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, 0.001)


@contextmanager
def running(target, *arguments):
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    yield thread


def feed(target):
    @contextmanager
    def _feed():
        stopping = threading.Event()
        more = {
            feeds._ends: ("shop.*",),
            feeds._history: (threading.Event(),),
            source_watch.keep_looking: (parse(),),
        }.get(target, ())
        with running(target, config(), Board("shop"), stopping, *more) as thread:
            yield thread
            stopping.set()
            thread.join(WITHIN_S)

    return _feed


@contextmanager
def watch():
    watching = Watch(config(), None, None, every_s=0.001)
    with running(watching._run) as thread:
        yield thread
        watching._over.set()
        thread.join(WITHIN_S)


@contextmanager
def absent():
    (part,) = parts_of(config())
    asking = connecting.Absent({}, every_s=0.001)
    with running(lambda: asking._run("shop", part.read)) as thread:
        yield thread
        asking._over.set()
        thread.join(WITHIN_S)


@contextmanager
def catalog():
    soon = SimpleNamespace(
        database=object(), source=SimpleNamespace(watch_interval=timedelta(milliseconds=1))
    )
    before = set(threading.enumerate())
    with catalog_watch.CatalogWatch(soon, parse(), None, None).running():
        (thread,) = set(threading.enumerate()) - before
        yield thread
    thread.join(WITHIN_S)


@contextmanager
def turn():
    ours = Turn(config())
    with ours:
        yield ours._thread
        assert not ours.held


@contextmanager
def coordinator():
    outside, stopping = FakeWorld(), threading.Event()
    ours = Snapshots(outside, outside.settings, query=lambda: "q")
    first = Stream("q", 0, frozenset(), {})
    with running(snapshots._run, ours, first, stopping, lambda _: None) as thread:
        yield thread
        stopping.set()
        thread.join(WITHIN_S)


@contextmanager
def http():
    made = server._Server(None, None)
    with running(made.run) as thread:
        yield thread
        made.stop()
        thread.join(WITHIN_S)


WATCHING = {
    ("ops.feeds", "run"): [
        (feed(feeds._ends), feeds, "Cluster"),
        (feed(feeds._answers), feeds, "Cluster"),
        (feed(feeds._answers), feeds, "Consumer"),
        (feed(feeds._history), feeds, "read_compacted"),
        (feed(feeds._history), feeds, "publish"),
        (feed(source_watch.keep_looking), source_watch.SourceWatch, "look"),
    ],
    ("ops.catalog_watch", "keep_looking"): [(catalog, catalog_watch.CatalogWatch, "look")],
    ("state.connector_drift", "self._run"): [(watch, connector_drift.connectors, "read")],
    ("sources.connecting", "self._run"): [(absent, parts.connectors, "read")],
    ("state.ownership", "self._queue"): [
        (turn, ownership.brokers, "Cluster"),
        (turn, ownership, "Consumer"),
    ],
    ("snapshot.snapshots", "_run"): [
        (coordinator, FakeWorld, "load"),
        (coordinator, snapshots, "flight"),
        (coordinator, snapshots.Coordinator, "missed"),
    ],
    ("ops.http.server", "server.run"): [(http, server._Server, "_listening")],
}
"""Threads that run for as long as the pipeline does: what they use, each of which may fail."""

ONCE = {
    ("ops.question", "self._ask"),
    ("runners.graceful_stop", "stop"),
    ("runners.local_runner", "self._run"),  # a query's: what ends it, `awaitTermination` raises
    ("sink.delta.schema_evolution", "run"),
    ("ops.starting", "self._watch"),  # of one start
    ("spark.session", "_start_python"),
    ("sink.output.transaction", "call"),  # of one transaction
    ("sink.output.writers", "_answer"),  # of one connection
    ("converters.avro.registry_api", "ask"),  # gives its caller whatever it raises
    ("sink.output.writers", "_end_with"),  # does nothing that could fail
}
"""Threads that do one thing: whoever waits for it is told, or nobody does."""


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize(
    ("made", "module", "name"),
    [one for many in WATCHING.values() for one in many],
    ids=[f"{m[0]}-{one[2]}" for m, many in WATCHING.items() for one in many],
)
@pytest.mark.sampled(20)
def test_it_goes_on(made, module, name, error, monkeypatch, logs):
    fails = Fails(error)
    if name in {"Consumer", "publish"}:

        class Reached:
            """The brokers, as far as is needed to come to what fails."""

            def __init__(self, *_, **__):
                pass

            def __enter__(self):
                return self

            def __exit__(self, *_):
                return None

            def partition_counts(self, _):
                return {"shop.control": 1}

            def start_offsets(self, _):
                return {}

            end_offsets = start_offsets

        monkeypatch.setattr(feeds, "Cluster", Reached)
        monkeypatch.setattr(ownership.brokers, "Cluster", Reached)
        monkeypatch.setattr(feeds, "read_compacted", lambda *_: {})
    if name == "missed":
        monkeypatch.setattr(FakeWorld, "load", Fails(DependencyError("away")))
    monkeypatch.setattr(module, name, fails)
    with made() as thread:
        assert fails.thrice.wait(WITHIN_S), f"it was tried {fails.calls} times"
        assert thread.is_alive()
    assert not thread.is_alive()


def test_every_thread_is_known_here():
    package = Path(lakemark.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        module = ".".join(path.relative_to(package).with_suffix("").parts)
        text = path.read_text()
        for node in ast.walk(parsed(path)) if "Thread(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in THREAD:
                (target,) = [k.value for k in node.keywords if k.arg == "target"]
                found.add((module, ast.unparse(target)))
    assert found == ONCE | set(WATCHING)


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("what", ["accept", "thread"])
def test_the_process_that_keeps_producers_goes_on(what, error, monkeypatch):
    calls = []

    def accept():
        calls.append(1)
        if len(calls) > 3:
            raise SystemExit
        if what == "accept":
            raise error

    monkeypatch.setattr(writers.threading, "Thread", Fails(error))
    with pytest.raises(SystemExit):
        writers._serve(SimpleNamespace(accept=accept))


def test_what_the_coordinator_has_done_elsewhere_is_done_without_more_threads(monkeypatch):
    pool = adapters._pool(4, "x")
    done = threading.Event()
    busy = threading.Barrier(2)
    pool.submit(busy.wait)
    monkeypatch.setattr(threading.Thread, "start", Fails(RuntimeError("can't start new thread")))
    ours = SimpleNamespace(_closed=False)
    Adapters._queue(ours, pool, done.set)
    busy.wait(WITHIN_S)
    assert done.wait(WITHIN_S)
    pool.shutdown()
    ours._closed = True
    with pytest.raises(RuntimeError, match="shutdown"):
        Adapters._queue(ours, pool, done.set)
