"""The coordinator's start, when what it keeps cannot be read: batches go on meanwhile."""

import threading

from lakemark.errors import StateVersionError
from lakemark.snapshot import snapshots
from lakemark.snapshot.ports import Stream
from lakemark.snapshot.snapshots import Snapshots
from stack.processes import wait_for
from tests.kit.fake_world import ORDERS, FakeWorld


def test_what_they_say_is_taken_and_the_start_begins_with_it(monkeypatch, logs):
    monkeypatch.setattr(snapshots, "_AGAIN_S", 0.01)
    world, told = FakeWorld(), []
    real, broken = world.load, threading.Event()
    broken.set()

    def load():
        if broken.is_set():
            raise StateVersionError("it cannot be read", hint="start a newer one")
        return real()

    world.load = load
    ours = Snapshots(world, world.settings, query=lambda: "q1")
    stopping = threading.Event()
    first = Stream("q1", 0, frozenset(), {})
    thread = threading.Thread(target=snapshots._run, args=(ours, first, stopping, told.append))
    thread.start()
    try:
        for number in range(1, 50):
            world.stream.table(ORDERS)
            now = Stream("q1", number, frozenset(), dict(world.stream.tables))
            ours.coordinator.committed(now, lambda _: None)
        wait_for(ours.coordinator.state.inbox.empty, 10, "what was said to be taken")
        assert told[-1].code == StateVersionError.code
        broken.clear()
        wait_for(lambda: not told[-1].code, 10, "the start")
        assert ours.coordinator.state.stream.batch == 49
    finally:
        stopping.set()
        thread.join(10)
    assert not thread.is_alive()
