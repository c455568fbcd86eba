"""How late events are that come at a rate of their own."""

import json
from collections import Counter

import numpy as np
import pytest

from bench import rate
from bench.rate import BROKEN, Offer, cold, figures, mixed
from bench.runs import Batch, Run, Used, execute
from bench.tables import made
from stack.processes import StackError

BEGUN = 1_800_000_000.0


class Producer:
    """Notes when what is written."""

    left = 0

    def __init__(self, clock):
        self.clock, self.written = clock, []

    def produce(self, topic, value, key, headers):
        self.written.append((self.clock.now, topic, value, key))

    def poll(self, timeout):
        self.clock.now += timeout

    def flush(self, _timeout):
        self.clock.now += 0.5
        return self.left


class Clock:
    now = BEGUN

    def time(self):
        return self.now


@pytest.fixture
def producer(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(rate, "time", clock)
    return Producer(clock)


def offer_of(count, per_s, begun=BEGUN):
    offer = Offer([("t", b"k", b"v")] * count, per_s, begun)
    offer.ended = begun + count / per_s
    return offer


def test_no_record_is_written_before_it_is_due_and_none_is_left_out(producer):
    kafka = type("Kafka", (), {"producer": lambda _, **__: producer})()
    records = [("t", b"%d" % n, b"") for n in range(500)]
    offer = Offer(records, rate=100.0)
    offer.write(kafka)
    assert [(topic, key, value) for _, topic, value, key in producer.written] == records
    for number, (moment, *_) in enumerate(producer.written):
        assert BEGUN + number / 100 <= moment + 1e-6 < BEGUN + number / 100 + 0.03
    assert (offer.begun, offer.ended) == (BEGUN, pytest.approx(BEGUN + 5.5, abs=0.1))


def test_an_event_is_as_late_as_the_end_of_its_batch():
    offer = offer_of(8, 2.0)  # due at 0, 0.5, … 3.5
    batches = [Batch(BEGUN + 2, 3), Batch(BEGUN + 6, 5)]
    assert offer.late(batches, 0.0).tolist() == [2, 1.5, 1, 4.5, 4, 3.5, 3, 2.5]
    assert offer.late(batches, 2.0).tolist() == [4, 3.5, 3, 2.5]  # those due since


def test_a_writer_that_failed_is_told():
    class Kafka:
        def producer(self, **_):
            raise OSError("no broker")

    offer = offer_of(8, 2.0)
    assert not offer.has_failed
    offer.beside(Kafka()).join()
    assert offer.has_failed
    with pytest.raises(OSError, match="no broker"):
        offer.late([Batch(BEGUN, 8)], 0.0)


def test_records_that_never_arrive_are_told(producer):
    producer.left = 1
    offer = offer_of(8, 2.0)
    offer.beside(type("Kafka", (), {"producer": lambda _, **__: producer})()).join()
    with pytest.raises(StackError, match="not all events"):
        offer.late([Batch(BEGUN, 8)], 0.0)


def test_who_does_not_keep_up_is_later_in_the_second_half():
    offer = offer_of(1000, 10.0)
    slow = [Batch(BEGUN + n * 20, 100) for n in range(1, 11)]  # 5 a second
    fast = [Batch(BEGUN + n * 10 + 1, 100) for n in range(1, 11)]
    used = Used(100.0, 300, 150.0)
    found = figures(Run("x", used, slow, correct=True), offer, 0.0)
    assert found["late_second_half"] > found["late_first_half"] + 40
    found = figures(Run("x", used, fast, correct=True), offer, 0.0)
    assert found["late_second_half"] == found["late_first_half"] == found["late_p50"] == 6.05
    assert (found["batches"], found["events_per_batch"], found["seconds_per_batch"]) == (
        10, 100, 10.1
    )  # fmt: skip
    assert (found["offered_per_s"], found["cores_used"]) == (10, 1.5)


def test_without_a_batch_after_the_warm_up_there_are_no_figures():
    run = Run("x", Used(100.0), [Batch(BEGUN + 5, 1000)])
    found = figures(run, offer_of(1000, 10.0), 30.0)
    assert found["late_p50"] is found["seconds_per_batch"] is None
    assert figures(Run("x", Used(0.0), []), offer_of(10, 1.0), 0.0)["batches"] == 0


def test_events_of_all_tables_are_mixed_and_each_keeps_its_order():
    tables = made(100, 5000, rows=50, hot=0.9)
    assert sum(map(len, tables.values())) == pytest.approx(5000, rel=0.05)
    assert len(tables["orders_000"]) == 4500
    assert cold(tables) == len(tables["orders_099"]) == 5
    found = mixed(tables, poisoned=7)
    for name, orders in tables.items():
        own = [(key, value) for topic, key, value in found if topic == f"bench.public.{name}"]
        assert own == list(orders.records())
    bad = [(key, value) for topic, key, value in found if topic.endswith(".poisoned")]
    assert [json.loads(key)["id"] for key, _ in bad] == list(range(7))
    assert {value for _, value in bad} == {BROKEN}
    places = [n for n, (topic, *_) in enumerate(found) if topic.endswith("orders_000")]
    halves = Counter(np.array(places) < len(found) / 2)
    assert halves[True] == pytest.approx(halves[False], rel=0.1)


def test_a_process_is_stopped_when_it_has_said_what_is_waited_for(tmp_path, monkeypatch):
    (tmp_path / "steady.py").write_text(
        "import itertools, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "for n in itertools.count():\n"
        "    print('{\"n\": %d}' % n, flush=True)\n"
        "    time.sleep(0.02)\n"
    )
    monkeypatch.setattr("bench.runs.ROOT", tmp_path)
    log = tmp_path / "log"
    _, lines = execute("steady", log=log, until=lambda found: len(found) > 20)
    assert len(lines) > 20
    assert lines == [{"n": n} for n in range(len(lines))]
