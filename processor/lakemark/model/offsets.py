"""Kafka offsets."""

from typing import Final

EARLIEST: Final = -2  # Kafka's word for a partition's first offset

Offsets = dict[str, dict[int, int]]
"""Kafka offsets by topic and partition."""
