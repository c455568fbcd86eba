"""Catching up: from the first event that a table has not applied into the stream, slice by slice.

A table that catches up is read beside the stream, a bounded stretch of its topics at a time, until
it is where the stream is. What old partitions held when new ones came is read first, in one piece
(`new_partitions`).

The stream waits for it, so a batch has one turn: one read of at most as many records as the stream
may have, for a few tables. Who has waited longest is first. Tables that stand at different places
of a topic that they share have their turns in different batches. No clock decides, so a repeated
batch has the same turn. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lakemark.model.offsets import EARLIEST, Offsets
from lakemark.state.table_parts import StoredPosition, StoredPositions
from lakemark.state.tables import CATCHING_UP, PipelineState, TableState

TABLES_A_SLOT: Final = 8
"""Tables of a merge task that begin, or that have a turn, in one batch: 50 ms for each new one."""


@dataclass(slots=True)
class CatchUpTurn:
    """The read of a batch for tables that catch up.

    Attributes:
        tables: whose turn it is.
        start, end: Kafka offsets of what is read.
        applied: the partitions' applied positions at `start`.
    """

    tables: list[str] = field(default_factory=list)
    start: Offsets = field(default_factory=dict)
    end: Offsets = field(default_factory=dict)
    applied: StoredPositions = field(default_factory=dict)


def turn(state: PipelineState, *, limit: int, most: int) -> CatchUpTurn:
    """Return whose turn it is in this batch, and what is read; empty if nobody's.

    Args:
        state: the state being made; tables without anything to read have gone on (`go_on`).
        limit: records of all tables together; a piece that is read whole may have more.
        most: tables.
    """
    found, places, left = CatchUpTurn(), dict[str, Any](), limit
    for name in sorted(state.catching_up(), key=lambda name: (_waits_since(state, name), name)):
        entry = state.tables[name]
        work, mine = slice_of(entry, state.offsets, limit=left), _places(entry)
        if work is None or any(places.get(topic, at) != at for topic, at in mine.items()):
            continue
        places |= mine
        found.tables.append(name)
        for topic in work[0].keys() - found.start.keys():
            start, end = work[0][topic], work[1][topic]
            found.start[topic], found.end[topic] = start, end
            left -= sum(end[partition] - max(0, begin) for partition, begin in start.items())
        found.applied |= entry.progress.applied
        if left <= 0 or len(found.tables) == most:
            break
    return found


def _waits_since(state: PipelineState, table: str) -> int:
    entry = state.tables[table]
    return max(entry.since_batch, entry.progress.slice_batch)


def _places(entry: TableState) -> dict[str, Any]:
    """Return a table's place in each of its topics: all that its slice there depends on."""
    progress = entry.progress
    old = bool(progress.old_ends)
    return {
        topic: (
            old,
            *(d.get(topic) for d in (progress.from_offsets, progress.applied, progress.old_ends)),
        )
        for topic in entry.topics
    }


def go_on(state: PipelineState) -> list[str]:
    """Let the tables stream that catch up and have nothing to read; return all of these."""
    idle = [
        name
        for name in state.catching_up()
        if slice_of(state.tables[name], state.offsets, limit=1) is None
    ]
    for name in idle:
        advance(state.tables[name], {}, {}, state.offsets, state.batch)
    return idle


def end(
    state: PipelineState, had: CatchUpTurn, applied: Mapping[tuple[str, int], StoredPosition]
) -> None:
    """Move the tables on whose turn it was, unless something stopped them in it.

    Args:
        state: the state being made, with the turn's outcomes in it.
        had: the turn.
        applied: the partitions' applied positions at its end.
    """
    for name in had.tables:
        entry = state.tables[name]
        entry.progress.had_turn(state.batch)
        if entry.state == CATCHING_UP and not entry.code:
            own = {topic: had.end[topic] for topic in entry.topics if topic in had.end}
            passed = {place: reached for place, reached in applied.items() if place[0] in own}
            advance(entry, own, passed, state.offsets, state.batch)


def slice_of(entry: TableState, end: Offsets, *, limit: int) -> tuple[Offsets, Offsets] | None:
    """Return the next read of a table that catches up, from and to offsets; None = no records.

    Args:
        entry: the table.
        end: end offsets of the batch: how far the running query has come.
        limit: records per read, spread over the partitions; the part before a changed partition
            count is read in one piece, because keys changed partitions inside it.
    """
    old = bool(entry.progress.old_ends)
    target = entry.progress.old_ends if old else end
    start: Offsets = {}
    stop_at: Offsets = {}
    count = sum(len(target.get(topic, {})) for topic in entry.topics)
    share = max(1, limit // max(1, count))
    for topic in entry.topics:
        known = entry.progress.from_offsets.get(topic, {})
        goals = target.get(topic, {})
        for partition, goal in goals.items():
            begin = known.get(partition, EARLIEST)
            if begin < goal:
                whole = old or begin == EARLIEST
                start.setdefault(topic, {})[partition] = begin
                stop_at.setdefault(topic, {})[partition] = (
                    goal if whole else min(goal, begin + share)
                )
    return (start, stop_at) if start else None


def advance(
    entry: TableState,
    to: Offsets,
    applied: Mapping[tuple[str, int], StoredPosition],
    end: Offsets,
    batch: int,
) -> None:
    """Move a table on after a slice, into the stream once it is at the batch's end."""
    if entry.progress.advance(entry.topics, to, applied, end):
        entry.stream(batch)
