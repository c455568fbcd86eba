"""Batches in one process: which records they have, what is noted when, and what shards remember."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.errors import DependencyError
from lakemark.reconcile import window
from lakemark.reconcile.outputs import ShardOutcome
from lakemark.runners import local_runner
from lakemark.runners.graceful_stop import GracefulStop
from lakemark.runners.local_runner import LocalQuery, LocalRunner, QueryFailedError, limited
from lakemark.runners.trigger import Trigger
from lakemark.settings.config import Config
from lakemark.source import offset_ranges
from lakemark.source.offset_ranges import OffsetRange
from lakemark.state.checkpoint import Checkpoint
from lakemark.state.checkpoint_files import LocalFiles
from lakemark.state.tables import PipelineState

WITHIN_S = 30
BEGUN = [{"t": {0: 5}}, {"chunks": {0: 0}}, {"control": {0: 0}}]


class Sources:
    """The three sources, whose ends a test moves."""

    def __init__(self, changes=5, control=0, most=1000):
        self.changes, self.control, self.most = changes, control, most
        self.closed, self.away = 0, None

    def begin(self, control):
        return [dict(BEGUN[0]), dict(BEGUN[1]), {"control": {0: control}}]

    def ends(self, known):
        if self.away is not None:
            raise self.away
        return [{"t": {0: self.changes}}, {"chunks": {0: 0}}, {"control": {0: self.control}}]

    def next(self, known, ends):
        return [limited(*some, most=self.most) for some in zip(known, ends, strict=True)]

    def close(self):
        self.closed += 1


class Batches:
    """What a query's batches were, by number: where the change topic ended, and own ranges."""

    def __init__(self, checkpoint):
        self.checkpoint, self.done = checkpoint, []
        self.pace, self.draining, self.failure = Trigger(), GracefulStop(), None
        self.fails, self.holds, self.began = None, None, threading.Event()

    def on_batch(self, rows, batch):
        self.began.set()
        if self.holds is not None:
            assert self.holds.wait(WITHIN_S)
        if self.fails is not None:
            self.failure = self.fails
            raise self.fails
        self.checkpoint.save(PipelineState(batch=batch))
        self.done.append((batch, self.checkpoint.offsets(batch)[0]["t"][0], rows))


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(LocalFiles(tmp_path), str(tmp_path))


@contextmanager
def running(batches, sources, *, once):
    query = LocalQuery(batches, batches.checkpoint, sources, once=once)
    try:
        yield query
    finally:
        if batches.holds is not None:
            batches.holds.set()
        query.stop()
        assert sources.closed == 1


def once(batches, sources):
    with running(batches, sources, once=True) as query:
        assert query.awaitTermination(WITHIN_S)
        assert not query.isActive


def test_a_run_reads_what_is_there_in_as_many_batches_as_it_takes(checkpoint):
    batches = Batches(checkpoint)
    once(batches, Sources(changes=12, most=3))
    assert batches.done == [(0, 8, []), (1, 11, []), (2, 12, [])]
    assert checkpoint.newest_committed() == 2
    first = checkpoint.query_id()
    once(batches, Sources(changes=12))
    assert len(batches.done) == 3, "there was nothing new"
    once(batches, Sources(changes=13, control=2))
    assert batches.done[3:] == [(3, 13, [OffsetRange("control", 0, 0, 2)])]
    assert checkpoint.query_id() == first, "commits are named by it"


def test_a_batch_that_failed_is_repeated_with_its_records(checkpoint):
    batches, sources = Batches(checkpoint), Sources(changes=9, control=1)
    batches.fails = DependencyError("the lake is away", code="lake-unavailable")
    with (
        running(batches, sources, once=True) as query,
        pytest.raises(QueryFailedError, match="is away") as caught,
    ):
        query.awaitTermination(WITHIN_S)
    assert caught.value.__cause__ is batches.failure is batches.fails
    assert (checkpoint.newest_planned(), checkpoint.newest_committed()) == (0, -1)
    batches.fails = None
    once(batches, Sources(changes=100, control=7))
    own = OffsetRange("control", 0, 0, 1)
    assert batches.done == [(0, 9, [own]), (1, 100, [OffsetRange("control", 0, 1, 7)])]


def test_brokers_that_are_away_end_the_query_with_what_they_say(checkpoint):
    batches, sources = Batches(checkpoint), Sources()
    sources.away = DependencyError("no broker", code="kafka-unavailable")
    with (
        running(batches, sources, once=False) as query,
        pytest.raises(QueryFailedError, match="no broker"),
    ):
        query.awaitTermination(WITHIN_S)
    assert batches.failure is sources.away


def test_a_stop_waits_for_the_batch_under_way_and_no_other_begins(checkpoint):
    batches, sources = Batches(checkpoint), Sources(changes=9, most=1)
    batches.holds = threading.Event()
    with running(batches, sources, once=False) as query:
        assert batches.began.wait(WITHIN_S)
        stopping = threading.Thread(target=query.stop)
        stopping.start()
        assert query.isActive
        assert query.status["isTriggerActive"]
        batches.holds.set()
        stopping.join(WITHIN_S)
        assert not query.isActive
    assert [number for number, *_ in batches.done] == [0]
    assert checkpoint.newest_committed() == 0


def test_a_drained_query_has_ended_its_batch_and_begins_no_other(checkpoint):
    batches, sources = Batches(checkpoint), Sources(changes=9, most=1)
    batches.holds = threading.Event()
    with running(batches, sources, once=False) as query:
        assert batches.began.wait(WITHIN_S)
        threading.Timer(0.2, batches.holds.set).start()
        assert batches.draining.drain(query, grace_s=WITHIN_S, hurry=threading.Event())
        query.stop()
    assert query.awaitTermination(WITHIN_S), "it has not failed"
    assert [number for number, *_ in batches.done] == [0]


def test_a_batch_that_is_given_up_does_not_hold_up_the_end(checkpoint):
    batches, hurry = Batches(checkpoint), threading.Event()
    batches.holds = threading.Event()
    with running(batches, Sources(changes=9), once=False) as query:
        assert batches.began.wait(WITHIN_S)
        hurry.set()
        assert not batches.draining.drain(query, grace_s=WITHIN_S, hurry=hurry)
        query.stop()
        assert query.isActive
    assert query.awaitTermination(WITHIN_S)


# -- what shards remember ---------------------------------------------------------------------------


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """Its shards remember all that they were told; nothing is read or merged."""
    (tmp_path / "c.json").write_text("{}")
    document = {
        "name": "one",
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "source": {"connector_file": "c.json"},
        "lake": {"path": "lake"},
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    told = lambda _, rows, before: (  # noqa: E731
        ShardOutcome((before or b"") + b"".join(row[3] for row in rows), []) if rows else None
    )
    monkeypatch.setattr(window, "fold_rows", told)
    monkeypatch.setattr(local_runner, "_decoded", lambda rows, *_: iter(rows))
    monkeypatch.setattr(local_runner, "_merged", lambda rows, _: rows)
    return LocalRunner(Config.model_validate(document, context={"base": tmp_path}))


def batch(runner, number, *blobs):
    """One batch with touches for shards: what passes them."""
    rows = [
        {"kind": window.TOUCHES, "shard": s, "source": "t/0", "first": 0, "blob": b}
        for s, b in blobs
    ]
    passes = {"kind": "packet", "shard": 0, "source": "t/0", "first": 0, "blob": b"p"}
    plan = SimpleNamespace(lake=SimpleNamespace(batch=number), decode=SimpleNamespace(shards=2))
    assert runner.stream([], plan, lambda: [*rows, passes]) == [passes]


def test_shards_go_on_from_the_batch_before_however_often_one_is_repeated(runner):
    batch(runner, 0, (0, b"a"), (1, b"b"))
    for _ in range(3):
        batch(runner, 1, (0, b"c"))
    assert runner.checkpoint().shards(1) == {0: b"ac", 1: b"b"}
    batch(runner, 2)
    batch(runner, 3, (1, b"d"))
    assert runner.checkpoint().shards(3) == {0: b"ac", 1: b"bd"}


def test_a_repetition_leaves_nothing_of_a_batch_that_had_other_records(runner):
    batch(runner, 0, (0, b"a"))
    batch(runner, 0)
    assert runner.checkpoint().shards(0) == {}
    batch(runner, 1, (0, b"b"))
    assert runner.checkpoint().shards(1) == {0: b"b"}


# -- how many records -------------------------------------------------------------------------------

OFFSETS = st.dictionaries(
    st.sampled_from("ab"), st.dictionaries(st.integers(0, 3), st.integers(0, 500)), max_size=2
)


@given(OFFSETS, OFFSETS, st.integers(1, 400))
def test_a_batch_has_a_share_of_every_partition(known, more, most):
    ends = {
        t: {p: known.get(t, {}).get(p, 0) + size for p, size in sizes.items()}
        for t, sizes in more.items()
    }
    ends = {
        **{t: dict(p) for t, p in known.items()},
        **{t: {**known.get(t, {}), **p} for t, p in ends.items()},
    }
    found = limited(known, ends, most=most)
    there, taken = offset_ranges.between(known, ends), offset_ranges.between(known, found)
    assert sum(one.size for one in taken) <= most + len(there)
    assert {one[:3] for one in taken} == {one[:3] for one in there}, "none waits for others"
    assert all(found[one.topic][one.partition] <= one.end for one in there)
    if sum(one.size for one in there) <= most:
        assert found == ends
