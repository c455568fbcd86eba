"""Ranges of offsets: the records of change topics that a step reads, shared by its tasks. Pure."""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from lakemark.errors import lost
from lakemark.model.offsets import Offsets


class OffsetRange(NamedTuple):
    """The records of a Kafka partition from offset `start` to before `end`.

    `start` may be `offsets.EARLIEST`: from the first that is left.
    """

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of records at most."""
        return self.end - max(self.start, 0)


def between(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """Return the ranges between two sets of offsets; without a start a partition begins at 0.

    Raises:
        DependencyError: `source-data-expired`: a partition ends before its start, or is gone.
    """
    found = []
    for topic, partitions in start.items():
        for partition, begin in partitions.items():
            if (now := end.get(topic, {}).get(partition)) is None:
                raise lost(f"{topic}-{partition} is gone; it was read up to offset {begin}")
            if now < begin:
                raise lost(f"{topic}-{partition} ends at offset {now}, and was read up to {begin}")
    for topic, partitions in end.items():
        known = start.get(topic, {})
        found += [
            OffsetRange(topic, partition, known.get(partition, 0), at)
            for partition, at in sorted(partitions.items())
            if known.get(partition, 0) < at
        ]
    return found


def shared(ranges: Sequence[OffsetRange], tasks: int) -> list[list[OffsetRange]]:
    """The ranges of each task: the largest first, each to the task that has least by then.

    Args:
        ranges: the ranges; none is cut, a partition's records keep their order in one task.
        tasks: how many tasks at most.
    """
    shares: list[list[OffsetRange]] = [[] for _ in range(min(tasks, len(ranges)))]
    loads = [(0, number) for number in range(len(shares))]
    for one in sorted(ranges, key=lambda one: (-one.size, one)):
        load, number = heapq.heappop(loads)
        shares[number].append(one)
        heapq.heappush(loads, (load + one.size, number))
    return shares
