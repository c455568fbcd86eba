"""Producers of output topics that have outlived a broker: none is waited for, none is used again."""

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from lakemark.errors import DependencyError
from lakemark.sink.output import transaction
from lakemark.sink.output.transaction import MarkSource, OutputTarget
from tests.kit.output_topics import some

TARGETS = [OutputTarget(f"clean.{name}", f"group.{name}") for name in "abc"]
SOURCE = MarkSource("shop.a", 0)


class Producers:
    """Stands for librdkafka's; `made` has each transactional id that asked for a producer.

    Args:
        stuck: how many of them never come back from sending their mark.
    """

    def __init__(self, stuck: int = 0) -> None:
        self.made: list[str] = []
        self.written: list[int] = []
        self.callbacks = []
        self.stuck, self.waiting = stuck, 0
        self.release = threading.Event()

    def __call__(self, settings):
        producers, settings = self, dict(settings)
        at = len(self.made)
        self.made.append(settings["transactional.id"])
        self.callbacks.append(settings["error_cb"])

        class Producer:
            pending: list[int]

            def init_transactions(self, _):
                pass

            def begin_transaction(self):
                self.pending = []

            def produce(self, _, *, value, **__):
                self.pending.append(int(value))

            def flush(self, _):
                return 0

            def poll(self, _):
                return 0

            def send_offsets_to_transaction(self, *_):
                if at < producers.stuck:
                    producers.waiting += 1
                    producers.release.wait()
                    raise KafkaException(KafkaError(KafkaError._FENCED))

            def commit_transaction(self, _):
                producers.written += self.pending

            def abort_transaction(self, _):
                assert at >= producers.stuck, "a producer whose call does not come back is not used"

        return Producer()


class Marks:
    """A consumer of groups without marks."""

    def __init__(self, _):
        pass

    def consumer_group_metadata(self):
        return object()

    def committed(self, places, **_):
        return places

    def close(self):
        pass


@pytest.fixture
def producers(monkeypatch):
    made = Producers()
    monkeypatch.setattr(transaction, "Producer", made)
    monkeypatch.setattr(transaction, "Consumer", Marks)
    monkeypatch.setattr(transaction, "_ensure", lambda _: None)
    monkeypatch.setattr(transaction, "MARK_S", 0.05)
    transaction._lanes.clear()
    yield made
    made.release.set()
    transaction._lanes.clear()


def test_a_mark_that_is_not_taken_in_time_is_sent_by_another_producer(producers):
    """And none that was there before is used again: each would be stuck in its turn."""
    for target in TARGETS:
        transaction.write(target, SOURCE, 2, some(1))
    producers.stuck = 3
    for target in TARGETS:
        assert transaction.write(target, SOURCE, 3, some(2)) == 1
    assert producers.written == [1, 1, 1, 2, 2, 2]
    assert producers.waiting == 1


@pytest.mark.slow
def test_one_whose_successor_is_stuck_too_is_a_broker_that_is_away(producers):
    producers.stuck = 2
    with pytest.raises(DependencyError, match="coordinator of group") as found:
        transaction.write(TARGETS[0], SOURCE, 2, some(1))
    assert (found.value.code, producers.written) == ("output-unavailable", [])
    assert transaction.write(TARGETS[0], SOURCE, 2, some(1)) == 1


def test_a_producer_that_lost_a_connection_is_not_used_again(producers):
    for target in TARGETS[:2]:
        transaction.write(target, SOURCE, 2, some(1))
    producers.callbacks[0](KafkaError(KafkaError._TRANSPORT))
    for target in TARGETS[:2]:
        transaction.write(target, SOURCE, 3, some(2))
    a, b = (transaction.lane_of(target, SOURCE) for target in TARGETS[:2])
    assert producers.made == [a, b, a]
    assert producers.written == [1, 1, 2, 2]


def test_what_is_refused_is_not_tried_by_another(producers, monkeypatch):
    def refused(*_):
        raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))

    made = producers.__call__

    def one(settings):
        producer = made(settings)
        producer.send_offsets_to_transaction = refused
        return producer

    monkeypatch.setattr(transaction, "Producer", one)
    with pytest.raises(transaction.TableError, match="not taken"):
        transaction.write(TARGETS[0], SOURCE, 2, some(1))
    assert len(producers.made) == 1
