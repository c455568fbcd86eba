"""The engines that write Delta tables, by name: which one a table has."""

from collections.abc import Mapping
from typing import Final

ENGINE: Final = "lakemark.engine"  # the table's property that names an engine it was moved to
TASK_MERGE: Final = "task-merge"
SPARK_MERGE: Final = "spark-merge"
DELETION_VECTORS: Final = "deletion-vectors"
NAMES: Final[Mapping[str, str]] = {
    SPARK_MERGE: "the Spark MERGE engine",
    DELETION_VECTORS: "the engine with deletion vectors",
}
IN_TASKS: Final = frozenset({TASK_MERGE, DELETION_VECTORS})
"""Engines that need nobody but the task: without them the driver has to finish a batch."""
TASK_MERGE_BYTES: Final = 2 << 30
"""Of data files: beyond that one task is too slow to rewrite them."""


def engine_for(chosen: str, now: str | None, size: int) -> str:
    """Return the engine of a table: as set, else by its size.

    Never back to one that cannot write what the table has: from Spark MERGE to none, from deletion
    vectors to Spark MERGE alone.

    Args:
        chosen: by the configuration; `auto` leaves it to the size.
        now: that it has; None for a table that is not known.
        size: bytes of its data files.
    """
    if now == SPARK_MERGE or (now == DELETION_VECTORS and chosen != SPARK_MERGE):
        return now
    if chosen != "auto":
        return chosen
    return SPARK_MERGE if size > TASK_MERGE_BYTES else TASK_MERGE
