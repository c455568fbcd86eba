"""A connector that joins a query which goes on: where the topics begin that were not read yet."""

import contextlib
import json

import pytest

from lakemark.connectors.table_choice import TableChoice
from lakemark.model.wanted import Wanted
from lakemark.state import recovery
from lakemark.state.checkpoint import Checkpoint
from lakemark.state.checkpoint_files import LocalFiles
from lakemark.state.tables import PipelineState
from tests.kit.connector_settings import config

READ, NEW, JOINS = "shop.public.a", "shop.public.new", "crm.public.b"
ENDS = {READ: 9, NEW: 4, JOINS: 5}
SPARKS = b"\0v1\n"  # as Spark begins such a file
EVERYTHING = Wanted(lambda _: True, TableChoice({}, []), lambda _: True)


class Cluster(contextlib.nullcontext):
    """Brokers with these topics."""

    def __init__(self, _):
        super().__init__(self)

    def topics(self, *_):
        return [*ENDS]

    def topic_ids(self, names):
        return {name: f"id of {name}" for name in names if name in ENDS}

    def start_offsets(self, names):
        return {(name, 0): 0 for name in names if name in ENDS}

    def end_offsets(self, names, *, committed=True):
        return {(name, 0): ENDS[name] for name in names if name in ENDS}


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """One whose query has read a part of a topic."""
    monkeypatch.setattr(recovery.brokers, "Cluster", Cluster)
    made = Checkpoint(LocalFiles(tmp_path), str(tmp_path))
    made.note_query("q", [{}, {}, {}])
    made.note_planned(0, [{READ: {0: 7}}, {}, {}])
    made.save(PipelineState(batch=0, offsets={READ: {0: 7}}))
    made.note_committed(0)
    return made


def begun(checkpoint, starting="latest", begins=JOINS.__eq__):
    """Start again; where the query reads on, and the state."""
    settings = config(stream={"starting": starting})
    state = recovery.go_over(settings, checkpoint, EVERYTHING, [".*"], begins=begins)
    changes, *_ = checkpoint.offsets(0)
    return {topic: partitions[0] for topic, partitions in changes.items()}, state


def test_one_that_joins_begins_at_the_end_if_the_pipeline_did(checkpoint):
    reads, state = begun(checkpoint)
    assert reads == {READ: 7, JOINS: 5}, "a new topic of one that is read is read whole"
    assert state.offsets == {READ: {0: 7}, JOINS: {0: 5}}
    assert checkpoint.topics()[JOINS] == f"id of {JOINS}"


def test_it_does_so_once(checkpoint, monkeypatch):
    begun(checkpoint)
    monkeypatch.setitem(ENDS, JOINS, 8)
    for begins in (JOINS.__eq__, lambda _: False):
        assert begun(checkpoint, begins=begins)[0] == {READ: 7, JOINS: 5}


def test_else_its_topics_are_read_whole(checkpoint):
    assert begun(checkpoint, "earliest")[0] == {READ: 7}


def test_those_that_are_read_go_on_where_they_were(checkpoint):
    assert begun(checkpoint, begins=lambda _: False)[0] == {READ: 7}


# --- a connector that goes away before what was planned of it has been read -------------------------

WITHOUT = Wanted(READ.__eq__, TableChoice({}, []), lambda _: True)


def again(checkpoint, wanted):
    """Start again with what is wanted now; return the state."""
    return recovery.go_over(config(), checkpoint, wanted, [".*"])


def test_a_planned_batch_has_nothing_of_a_topic_that_nobody_reads(checkpoint):
    """The batch is repeated: its records would be taken for another connector's, and be lost."""
    checkpoint.note_planned(1, [{READ: {0: 9}, JOINS: {0: 5}}, {}, {}])
    state = again(checkpoint, WITHOUT)
    assert checkpoint.offsets(1) == [{READ: {0: 9}}, {}, {}]
    assert state.offsets == {READ: {0: 7}}
    again(checkpoint, EVERYTHING)
    assert checkpoint.offsets(1) == [{READ: {0: 9}}, {}, {}], "it begins with the batch after"


@pytest.fixture
def first(tmp_path, monkeypatch):
    """One whose query has planned its first batch: with an end of the log, and with more."""
    monkeypatch.setattr(recovery.brokers, "Cluster", Cluster)
    made = Checkpoint(LocalFiles(tmp_path), str(tmp_path))
    made.begin(PipelineState())
    made.note_query("q", [{}, {}, {}])
    made._write("sources/0/0", SPARKS + json.dumps({READ: {0: 3}, JOINS: {0: 2}}).encode())
    made.note_planned(0, [{READ: {0: 9}, JOINS: {0: 5}}, {}, {}])
    return made


@pytest.mark.parametrize("saved", [True, False])
def test_so_has_the_first_one_and_where_a_topic_was_to_begin_is_kept(first, saved):
    if saved:  # the batch came as far as that
        first.save(PipelineState(batch=0, offsets={READ: {0: 9}, JOINS: {0: 5}}))
    again(first, WITHOUT)
    assert first.begun_by_source() == [{READ: {0: 3}}, {}, {}]
    assert (first._read("sources/0/0") or b"").startswith(SPARKS)
    assert first.offsets(0) == [{READ: {0: 9}}, {}, {}]
    state = first.load(-1)
    assert state.left_offsets == {JOINS: {0: 2}}

    state.batch, state.offsets = 0, {READ: {0: 9}}
    first.save(state)
    first.note_committed(0)
    assert again(first, EVERYTHING).offsets == {READ: {0: 9}, JOINS: {0: 2}}
    assert first.offsets(0) == [{READ: {0: 9}, JOINS: {0: 2}}, {}, {}]


@pytest.mark.parametrize("saved", [True, False])
def test_it_is_back_before_the_first_commit(first, saved):
    if saved:
        first.save(PipelineState(batch=0, offsets={READ: {0: 9}, JOINS: {0: 5}}))
    again(first, WITHOUT)
    again(first, EVERYTHING)
    assert first.begun_by_source() == [{READ: {0: 3}, JOINS: {0: 2}}, {}, {}]
    ends, *_ = first.offsets(0)
    assert ends == {READ: {0: 9}, JOINS: {0: 2}}, "nothing of it: that comes with the next batch"
