"""A producer's queue is waited for as long as it gets on, and letters wait for room in it."""

import pytest

from lakemark.errors import DependencyError
from lakemark.model.decoding import DeadLetter
from lakemark.sink.output import dead_letter
from lakemark.sink.output.flushing import flushed


class Producer:
    """Takes `room` records at once; each flush confirms `speed` of them."""

    def __init__(self, *, speed: int, room: int = 10, queued: int = 0) -> None:
        self.speed, self.room, self.queued, self.taken = speed, room, queued, 0

    def produce(self, topic: str, **_: object) -> None:
        if self.queued >= self.room:
            raise BufferError
        self.queued += 1
        self.taken += 1

    def poll(self, _: float) -> int:
        return 0

    def flush(self, _: float) -> int:
        self.queued = max(0, self.queued - self.speed)
        return self.queued


@pytest.mark.parametrize(("speed", "left"), [(100, 0), (3, 0), (0, 10)])
def test_only_standing_still_is_given_up(speed: int, left: int):
    assert flushed(Producer(speed=speed, queued=10), 0.1) == left


def test_what_gets_on_too_slowly_is_given_up_after_all():
    assert flushed(Producer(speed=1, queued=10), 0.1, longest_s=0.0) == 9


@pytest.mark.parametrize("speed", [10, 3, 0])
def test_more_letters_than_the_clients_queue_takes(monkeypatch: pytest.MonkeyPatch, speed: int):
    producer = Producer(speed=speed)
    monkeypatch.setattr(dead_letter, "Producer", lambda _: producer)
    letters = [DeadLetter("t", 0, n, "not-json", "", None, b"x") for n in range(35)]
    if not speed:
        with pytest.raises(DependencyError, match="10 not confirmed"):
            dead_letter.write(letters, topic="dead", client={})
        return
    dead_letter.write(letters, topic="dead", client={})
    assert (producer.taken, producer.queued) == (35, 0)
