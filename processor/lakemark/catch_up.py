"""Catching up: from the first event that a table has not applied into the stream, slice by slice.

A table that catches up is read by itself, a bounded stretch of its topics in each batch, until it
is where the stream is. What old partitions held when new ones came is read first, in one piece
(`new_partitions`). Pure.
"""

from collections.abc import Mapping

from lakemark import tables
from lakemark.tables import EARLIEST, Offsets, TableState, Water


def slice_of(entry: TableState, end: Offsets, *, limit: int) -> tuple[Offsets, Offsets] | None:
    """The next bounded read of a table that catches up: from and to offsets; None = no records.

    Args:
        entry: the table.
        end: end offsets of the batch: how far the running query has come.
        limit: records per read, spread over the partitions; the part before a changed partition
            count is read in one piece, because keys changed partitions inside it.
    """
    old = bool(entry.old_ends)
    target = entry.old_ends if old else end
    start: Offsets = {}
    stop_at: Offsets = {}
    for topic in entry.topics:
        known = entry.from_offsets.get(topic, {})
        goals = target.get(topic, {})
        share = max(1, limit // max(1, len(goals)))
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
    waters: Mapping[tuple[str, int], Water],
    end: Offsets,
    batch: int,
) -> None:
    """A slice was applied: moves the table on, into the stream once it is at the batch's end."""
    for topic, partitions in to.items():
        entry.from_offsets.setdefault(topic, {}).update(partitions)
    for (topic, partition), water in waters.items():
        entry.high_waters.setdefault(topic, {})[partition] = water
    reached_old = all(
        entry.from_offsets.get(topic, {}).get(partition, 0) >= goal
        for topic, partitions in entry.old_ends.items()
        for partition, goal in partitions.items()
    )
    if reached_old:
        entry.old_ends = {}
    here = all(
        entry.from_offsets.get(topic, {}).get(partition, 0) == goal
        for topic in entry.topics
        for partition, goal in end.get(topic, {}).items()
    )
    if reached_old and here:
        tables.stream(entry, batch)
