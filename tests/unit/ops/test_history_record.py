"""The last hour outlives the process: its record, and who reads and writes it when."""

import json
import threading
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from lakemark.errors import DependencyError
from lakemark.ops import feeds, history_record
from lakemark.ops.board import Board
from lakemark.ops.history import STRETCHES
from lakemark.ops.history_record import KEY, MOST_BYTES, UnreadableError
from lakemark.ops.status import BatchDone, Stretch
from tests.unit.ops.test_board import START, Clock
from tests.unit.ops.test_settings_record import SCHEMA, config

MS = int(START) * 1000
AT_ONCE = threading.Event()
AT_ONCE.set()
TEN_S = 10_000
DEADLINE_S = 30.0


def stretch(number: int, **more) -> Stretch:
    return Stretch(MS + number * TEN_S, **{"batches": 2, "events": 30, "rows": 20, **more})


def filled(clock: Clock, *, batches: int = 3) -> Board:
    """A board of a process that does a batch every ten seconds."""
    board = Board("shop", clock=clock)
    for number in range(batches):
        board.batch(BatchDone(number, events=10, rows=5, seconds={"tasks": 1.5}))
        clock.now += 10
    return board


def kept_by(board: Board) -> bytes:
    return history_record.encode(board.history().stretches)


# -- the record ------------------------------------------------------------------------------------


def test_a_board_is_restored_from_the_record():
    clock = Clock()
    before = filled(clock)
    value = kept_by(before)
    Draft202012Validator(json.loads(Path(SCHEMA).read_text())).validate(json.loads(value))
    after = Board("shop", clock=clock)
    after.recalled(history_record.decode(value))
    assert after.history() == before.history()
    assert len(after.history().stretches) == 3
    assert after.totals()[0] == 0, "counters are this process's"
    after.batch(BatchDone(9, events=1, rows=1, seconds={}))
    assert [s.events for s in after.history().stretches] == [10, 10, 10, 1]


def test_what_this_process_has_seen_counts_and_what_others_did_meanwhile_is_put_in_place():
    clock = Clock()
    board = filled(clock, batches=1)
    clock.now += 100
    board.batch(BatchDone(9, events=7, rows=7, seconds={}))
    others = [stretch(n) for n in (-2, 0, 5, 11, 40)]
    for _ in range(2):  # as often as the query starts
        board.recalled(others)
        found = board.history().stretches
        assert [(s.at_ms - MS) // TEN_S for s in found] == [-2, 0, 5, 11]
        assert [s.events for s in found] == [30, 10, 30, 7]


def test_no_more_than_an_hour_is_kept_and_the_record_is_bounded():
    most = stretch(
        0,
        batches=10**12 - 1,
        events=10**12 - 1,
        rows=10**12 - 1,
        longest_s=999_999_999.999,
        lag_s=999_999_999.999,
        lag_records=10**12 - 1,
    )
    value = history_record.encode([most] * 1000)
    assert len(history_record.decode(value)) == STRETCHES
    assert len(value) < MOST_BYTES
    usual = stretch(0, events=123_456, rows=98_765, longest_s=1.234, lag_s=0.731, lag_records=1234)
    assert len(history_record.encode([usual] * 1000)) < 18_000


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "damaged"),
        (b"\xff\xfe", "damaged"),
        (b"[1]", "damaged"),
        (b'{"stretch_s": 10, "stretches": []}', "damaged"),
        (b'{"form": 1, "stretch_s": 10, "stretches": [[1, 2]]}', "damaged"),
        (b'{"form": 1, "stretch_s": 10, "stretches": [[1, 2, 3, 4, 5, 6, "7"]]}', "damaged"),
        (b'{"form": 1, "stretch_s": 10, "stretches": [[1, -2, 3, 4, 5, 6, 7]]}', "damaged"),
        (b'{"form": 1, "stretch_s": 60, "stretches": []}', "others"),
        (b'{"form": 2, "stretches": "compressed"}', "form 2"),
    ],
)
def test_garbage_or_a_newer_form_is_not_read(value, why):
    with pytest.raises(UnreadableError, match=why):
        history_record.decode(value)


# -- who reads and writes it -----------------------------------------------------------------------


class Topic:
    """The progress topic in memory; a call fails while `away` says so."""

    def __init__(self, monkeypatch, value: bytes | None = None) -> None:
        self.value, self.away, self.order = value, 0, list[str]()
        self.written = threading.Event()
        monkeypatch.setattr(feeds, "read_compacted", self.read)
        monkeypatch.setattr(feeds, "publish", self.publish)

    def _asked(self, what: str) -> None:
        self.order.append(what)
        if self.away:
            self.away -= 1
            raise DependencyError("away", code="kafka-unavailable", hint="")

    def read(self, config, topic) -> dict[bytes, bytes]:
        self._asked("read")
        assert topic == config.topics.progress
        return {} if self.value is None else {KEY: self.value}

    def publish(self, config, topic, records) -> None:
        self._asked("write")
        ((key, self.value),) = records
        assert (topic, key) == (config.topics.progress, KEY)
        self.written.set()


def history(board: Board, *, stopping=AT_ONCE, leaving=None) -> None:
    feeds._history(config(), board, stopping, leaving or threading.Event())


def test_it_is_read_before_it_is_written_and_written_when_the_process_leaves(monkeypatch):
    clock = Clock()
    topic = Topic(monkeypatch, history_record.encode([stretch(-3)]))
    history(board := filled(clock), leaving=AT_ONCE)
    assert topic.order == ["read", "write"]
    assert topic.value == kept_by(board)
    assert [s.at_ms for s in history_record.decode(topic.value)] == [
        MS + n * TEN_S for n in (-3, 0, 1, 2)
    ]


def test_whoever_lost_the_pipeline_writes_nothing(monkeypatch):
    topic = Topic(monkeypatch)
    history(filled(Clock()))
    assert topic.order == ["read"]


def test_it_is_written_again_and_again(monkeypatch):
    monkeypatch.setattr(feeds, "_KEEP_EVERY_S", 0.01)
    topic, stopping = Topic(monkeypatch), threading.Event()
    thread = threading.Thread(
        target=history, args=(filled(Clock()),), kwargs={"stopping": stopping}
    )
    thread.start()
    try:
        for _ in range(2):
            assert topic.written.wait(DEADLINE_S)
            topic.written.clear()
    finally:
        stopping.set()
        thread.join()


def test_a_record_that_cannot_be_read_is_ignored_with_a_word_and_replaced(monkeypatch, logs):
    topic = Topic(monkeypatch, b'{"form": 2}')
    history(filled(Clock()), leaving=AT_ONCE)
    assert len(history_record.decode(topic.value)) == 3
    (said,) = logs
    assert (said["event"], said["log_level"]) == ("history.ignored", "warning")
    assert "form 2" in said["reason"]


def test_nothing_is_written_over_what_could_not_be_read_yet(monkeypatch, logs):
    """The brokers are away at the start: what they hold is read later, and only then replaced."""
    monkeypatch.setattr(feeds, "_AGAIN_S", 0.01)
    monkeypatch.setattr(feeds, "_KEEP_EVERY_S", 0.01)
    topic, stopping = Topic(monkeypatch), threading.Event()
    topic.away = 3
    thread = threading.Thread(
        target=history, args=(filled(Clock()),), kwargs={"stopping": stopping}
    )
    thread.start()
    try:
        assert topic.written.wait(DEADLINE_S)
    finally:
        stopping.set()
        thread.join()
    assert topic.order[:5] == ["read"] * 4 + ["write"]
    assert [said["code"] for said in logs] == ["kafka-unavailable"] * 3
