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
USER_METADATA: Final = "userMetadata"
"""Where Delta keeps what a writer says of its commit, and shows it in the table's history."""
