"""Tables that the configuration no longer names, and those that it names again; pure.

`source.tables`, `source.topics` and the connector's own lists may change from one start to the
next. A table that they leave out does not stop the pipeline: it is neither read nor shown. Its
place is kept, for the day on which it is named again:

table                       goes on
--------------------------  ----------------------------------------------------------------------
the log still has it all    from where it stopped, as if it had been paused; nothing is missing
Kafka lost events of it     with what there is; it is snapshotted again
the connector left it out   from where it stopped; it is snapshotted again: no log has what it lacks
it comes in another topic   from the first event there; it is snapshotted again: what its old topic
                            had left is not read
"""

from collections.abc import Collection, Container
from dataclasses import dataclass, field

from lakemark.model.offsets import Offsets
from lakemark.model.wanted import Wanted
from lakemark.state.tables import CATCHING_UP, STREAMING, LeftOut, PipelineState

MOVED = "its events come in another topic: those that the old one had left are not read"
NOT_CAPTURED = "the connector left it out for a while: events of it may be missing"


@dataclass(frozen=True, slots=True)
class Streamed:
    """The tables that the stream applies: those that are chosen, without those left out.

    A table that is left out goes on from where it stopped when it is taken back, at a start.
    """

    chosen: Container[str]
    left: frozenset[str]

    def __contains__(self, table: object) -> bool:
        """Say whether a table's events are applied as they come."""
        return table not in self.left and table in self.chosen


@dataclass(frozen=True, slots=True)
class Changed:
    """Tables and topics that were left out or taken back.

    Attributes:
        left, back: tables.
        uncaptured: tables left out before that the connector leaves out, too, from now on.
        topics_left: topics that are read no more.
        topics_back: topics that are read again, each with its offsets.
    """

    left: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    uncaptured: tuple[str, ...] = ()
    topics_left: tuple[str, ...] = ()
    topics_back: Offsets = field(default_factory=dict)


def select(state: PipelineState, wanted: Wanted) -> Changed:
    """Change the state's tables and topics to the wanted ones. Doing it again changes nothing."""
    topics_back = _topics_back(state, wanted)
    back = [name for name, one in state.left.items() if wanted.table(name, one.entry.topics)]
    for name in back:
        _take_back(state, name)
    uncaptured = [n for n, one in state.left.items() if one.captured and not wanted.captured(n)]
    for name in uncaptured:
        state.left[name].captured = False
    left = [name for name, entry in state.tables.items() if not wanted.table(name, entry.topics)]
    for name in left:
        _leave(state, name, captured=wanted.captured(name))
    topics_left = [topic for topic in state.offsets if not wanted.topic(topic)]
    for topic in topics_left:
        state.left_offsets[topic] = state.offsets.pop(topic)
    return Changed(tuple(left), tuple(back), tuple(uncaptured), tuple(topics_left), topics_back)


def move(
    state: PipelineState,
    name: str,
    topics: Collection[str],
    *,
    start: Offsets,
    before: PipelineState,
) -> None:
    """Take back a table left out with its topics: its events come in these ones now.

    Args:
        state: the state being made.
        name: which table.
        topics: where events of it are.
        start: Kafka offsets at which the batch began.
        before: the state before the batch, whose applied positions hold at these offsets.
    """
    entry = state.tables[name] = state.left.pop(name).entry
    entry.topics = sorted(topics)
    entry.progress.hold(entry.topics, start, before.applied)
    if entry.state == STREAMING:
        entry.state, entry.since_batch = CATCHING_UP, state.batch
    entry.repair.doubt_all(MOVED, state.batch)


def _leave(state: PipelineState, name: str, *, captured: bool) -> None:
    entry = state.tables.pop(name)
    if entry.state == STREAMING:
        entry.progress.hold(entry.topics, state.offsets, state.applied)
    state.left[name] = LeftOut(entry, captured)


def _topics_back(state: PipelineState, wanted: Wanted) -> Offsets:
    back = {topic: offsets for topic, offsets in state.left_offsets.items() if wanted.topic(topic)}
    for topic, offsets in back.items():
        del state.left_offsets[topic]
        state.offsets[topic] = dict(offsets)
    return back


def _take_back(state: PipelineState, name: str) -> None:
    one = state.left.pop(name)
    entry = state.tables[name] = one.entry
    if entry.state == STREAMING:
        here = {topic: state.offsets.get(topic, {}) for topic in entry.topics}
        if entry.progress.from_offsets == here:
            entry.stream(state.batch)
        else:  # its topic was read on without it
            entry.state, entry.since_batch = CATCHING_UP, state.batch
    if not one.captured:
        entry.repair.doubt_all(NOT_CAPTURED, state.batch)
