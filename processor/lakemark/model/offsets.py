"""Kafka offsets."""

from typing import Final

EARLIEST: Final = -2  # Kafka's word for a partition's first offset

Offsets = dict[str, dict[int, int]]
"""Kafka offsets by topic and partition."""


def has_passed(offsets: Offsets, ends: Offsets) -> bool:
    """Say whether a stream that has come to `offsets` has read all that ended at `ends`."""
    return all(
        offsets.get(topic, {}).get(partition, 0) >= end
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )
