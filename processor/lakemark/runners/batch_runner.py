"""The runner of a pipeline's batches: Spark (`spark_runner`) or this process (`local_runner`).

Both keep the same promises with the same functions (`tasks`, `reconcile.window`). A runner plans
the records of a batch, notes that before the batch begins, calls `Batches.on_batch`, and notes
afterwards that it is done; within the batch the pipeline asks it for its stages.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from lakemark.model.schema import TableSchema
from lakemark.runners.graceful_stop import GracefulStop
from lakemark.runners.trigger import Trigger
from lakemark.sink.lake_plan import LakePlan, TableOutcome, TablePlan
from lakemark.snapshot.chunk_task import ReadSettings
from lakemark.snapshot.chunks import ChunkResult, ChunkSpec
from lakemark.source.offset_ranges import OffsetRange
from lakemark.state.advance import Results
from lakemark.state.checkpoint import Checkpoint
from lakemark.tasks import BatchPlan

JAVA_ENDED: Final = "java-ended"
"""Code of the error of a runner whose Java did not start, or is gone."""


CONTROL_RECORDS: Final = 10_000
"""Of the control topic in a batch."""

CHUNK_RECORDS: Final = 16
RECORDS_A_SHARD: Final = 4


def chunk_records(shards: int) -> int:
    """Return how many records of the chunks topic a batch has; more where each chunk has many.

    The memory that their rows take is bounded where they are made:
    `chunk_scheduler.MAX_WAITING_BYTES`.
    """
    return max(CHUNK_RECORDS, RECORDS_A_SHARD * shards)


class OtherStagesError(Exception):
    """The query has not the stages that the batch needs: it is to be started anew.

    Attributes:
        armed: whether with those for runs of snapshots.
    """

    def __init__(self, *, armed: bool) -> None:
        super().__init__(f"armed={armed}")
        self.armed = armed


class Query(Protocol):
    """A running query, with the names of Spark's `StreamingQuery`."""

    @property
    def id(self) -> Any:
        """The query's id, the same after every restart with its checkpoint."""

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Say whether the query has not ended."""

    @property
    def status(self) -> dict[str, Any]:
        """The query's status: `isTriggerActive` is false between two batches.

        `message` begins with what the query does.
        """

    def awaitTermination(self, timeout: int) -> bool | None:  # noqa: N802 - Spark's name
        """Wait for the query's end, at most so many seconds; return whether it has ended.

        Raises:
            one of `BatchRunner.errors`: it has failed.
        """

    def stop(self) -> None:
        """End the query."""


class Batches(Protocol):
    """The receiver of a query's batches: the pipeline."""

    pace: Trigger
    draining: GracefulStop
    failure: BaseException | None

    def on_batch(self, rows: Any, batch: int) -> None:
        """Carry out one batch.

        Args:
            rows: the runner's own: what it is asked to go on with in `BatchRunner.stream`.
            batch: its number.
        """


class BatchRunner(Protocol):
    """Runs one pipeline's batches. Not for two pipelines at once."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The errors of a query that has failed; the cause may be the pipeline's `failure`."""

    @property
    def kind(self) -> str:
        """The kind of the checkpoint: a runner does not go on with a checkpoint of another kind."""

    @property
    def slots(self) -> int:
        """The number of merge tasks that can run at once."""

    def checkpoint(self) -> Checkpoint:
        """Return the pipeline's checkpoint.

        Raises:
            DependencyError: `checkpoint-unavailable`.
        """

    def start(
        self,
        batches: Batches,
        checkpoint: Checkpoint,
        *,
        pattern: str,
        schemas: Mapping[str, TableSchema],
        armed: bool,
        once: bool,
    ) -> Query:
        """Start the query; a batch that was planned and is not done comes first.

        Args:
            batches: told of every batch, from the query's own thread.
            checkpoint: the pipeline's.
            pattern: Java regular expression of the change topics.
            schemas: those known by now.
            armed: whether a run of snapshots goes on.
            once: end with what is there now, in as many batches as that takes.
        """

    def require(self, *, armed: bool) -> None:
        """Check, before anything of a batch is done, that the query can run the batch's stages.

        Raises:
            OtherStagesError: it is to be started anew.
        """

    def stream(
        self, rows: Any, plan: BatchPlan, changes: Callable[[], Sequence[OffsetRange]]
    ) -> Results:
        """Run all stages over a batch of the query.

        Args:
            rows: what `on_batch` was given.
            plan: what to do.
            changes: the records of the change topics that the batch has.
        """

    def reread(self, ranges: Sequence[OffsetRange], plan: BatchPlan) -> Results:
        """Decode and merge records of the change topics, without the shards."""

    def finish(self, table_plan: TablePlan, outcome: TableOutcome, plan: LakePlan) -> None:
        """Do the driver's part of a merge by the engine spark-merge; fill in the outcome.

        Raises:
            TableError: this table cannot go on.
            DependencyError: the lake is away.
        """

    def read_chunk(self, spec: ChunkSpec, settings: ReadSettings) -> ChunkResult:
        """Read one chunk and wait for it. From any thread; never raises."""
