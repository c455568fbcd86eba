"""Kafka offsets."""

from typing import Final

EARLIEST: Final = -2  # Kafka's word for a partition's first offset

Offsets = dict[str, dict[int, int]]
"""Kafka offsets by topic and partition."""


def lowered(ends: Offsets, now: Offsets) -> Offsets:
    """Return ends that are to be passed, as far as the topics still have them.

    Topics that are gone count no more, and those made anew count to their new end.

    Args:
        ends: as they were.
        now: as they are.
    """
    return {
        topic: {n: min(end, now[topic].get(n, 0)) for n, end in partitions.items()}
        for topic, partitions in ends.items()
        if topic in now
    }


def unread(offsets: Offsets, ends: Offsets) -> int:
    """Return how many records a stream that has come to `offsets` has yet to read to `ends`."""
    return sum(
        max(0, end - offsets.get(topic, {}).get(partition, 0))
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )


def has_passed(offsets: Offsets, ends: Offsets) -> bool:
    """Say whether a stream that has come to `offsets` has read all that ended at `ends`."""
    return all(
        offsets.get(topic, {}).get(partition, 0) >= end
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )
