"""Which records a batch reads, by what Spark has planned and where the batch before it ended."""

from types import SimpleNamespace

import pytest

from lakemark.errors import DependencyError
from lakemark.model.offsets import Offsets
from lakemark.pipeline import Pipeline
from lakemark.source.offset_ranges import OffsetRange
from lakemark.sources.cutting import Cutting, TransactionTopic
from lakemark.spark.query import QUIET_S, OtherStagesError, Stages
from lakemark.state.tables import PipelineState

CONTROL: Offsets = {"control": {0: 9}}


class Checkpoint:
    """Offsets of batches as Spark plans them: of three sources, the first that of the changes."""

    def __init__(self, begun: Offsets, *batches: Offsets) -> None:
        self.planned, self._begun = batches, begun

    def offsets(self, batch: int) -> list[Offsets]:
        return [self.planned[batch], {"chunks": {0: 1, 1: 2}}, CONTROL]

    def begun(self) -> Offsets:
        return {**self._begun, **CONTROL}


def news(
    begun: Offsets,
    *batches: Offsets,
    before: PipelineState | None = None,
    cutting: Cutting | None = None,
) -> list[OffsetRange]:
    pipeline = SimpleNamespace(
        cutting=cutting or Cutting(),
        checkpoint=Checkpoint(begun, *batches),
        config=SimpleNamespace(topics=SimpleNamespace(all=lambda: ("control", "chunks"))),
    )
    pipeline._changes = lambda ends: Pipeline._changes(pipeline, ends)
    return Pipeline._news(pipeline, len(batches) - 1, before or PipelineState())


def test_what_a_batch_held_back_is_the_next_ones():
    held = PipelineState(offsets={"a": {0: 6, 1: 3}}, held=1)
    planned = {"a": {0: 7, 1: 3}}, {"a": {0: 9, 1: 5}}
    assert news({}, *planned, before=held) == [OffsetRange("a", 0, 6, 9), OffsetRange("a", 1, 3, 5)]
    topic = TransactionTopic("t", None, None, bool)  # type: ignore[arg-type]
    cutting = Cutting([topic], offsets={"a": {0: 8, 1: 3}, "t": {0: 4}})
    ends = {"a": {0: 7, 1: 3}, "t": {0: 1}}, {"a": {0: 9, 1: 5}, "t": {0: 4}}
    found = news({}, *ends, before=held, cutting=cutting)
    assert found == [OffsetRange("a", 0, 6, 8)], "the ends of transactions are the driver's"


def test_the_first_batch_begins_where_the_query_does():
    assert news({"a": {0: 5}}, {"a": {0: 7}}) == [OffsetRange("a", 0, 5, 7)]
    assert news({}, {"a": {0: 7}}) == [OffsetRange("a", 0, 0, 7)]


def test_a_later_batch_begins_where_the_one_before_ended():
    assert news({"a": {0: 5}}, {"a": {0: 7}}, {"a": {0: 9}}) == [OffsetRange("a", 0, 7, 9)]
    assert news({"a": {0: 5}}, {"a": {0: 7}}, {"a": {0: 7}}) == []


def test_a_topic_that_was_taken_out_and_comes_again_is_read_from_its_beginning():
    """Spark has no offsets of it any more; where the query once began is of another topic."""
    assert news({"a": {0: 5}}, {}, {}) == []
    assert news({"a": {0: 5}}, {}, {"a": {0: 3}}) == [OffsetRange("a", 0, 0, 3)]
    assert news({"a": {0: 5}}, {}, {"a": {0: 8}}) == [OffsetRange("a", 0, 0, 8)]


def test_a_partition_that_is_gone_is_an_error():
    with pytest.raises(DependencyError, match="a-0 is gone"):
        news({}, {"a": {0: 7}}, {"b": {0: 1}})


def stages(*, armed: bool, wanted: bool, quiet_for: float) -> bool | None:
    """Which stages a batch asks for; None if it takes those of its query."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakemark.spark.query.monotonic", lambda: quiet_for)
        try:
            Stages(armed, 0.0).require(armed=wanted)
        except OtherStagesError as error:
            return error.armed
    return None


def test_a_run_has_its_stages_from_its_first_batch_and_the_next_one_for_a_while():
    assert stages(armed=False, wanted=False, quiet_for=QUIET_S + 1) is None
    assert stages(armed=False, wanted=True, quiet_for=QUIET_S + 1) is True
    assert stages(armed=True, wanted=True, quiet_for=QUIET_S + 1) is None
    assert stages(armed=True, wanted=False, quiet_for=QUIET_S - 1) is None
    assert stages(armed=True, wanted=False, quiet_for=QUIET_S + 1) is False
