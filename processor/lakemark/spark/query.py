"""The stages of a batch as Spark's data frames: reading, decoding, the operator.

    in quiet times                            while runs of snapshots are armed

    changes, offsets only ─┐                  changes ─► decode ─► change batches, keys ─┐
    chunks ────────────────┼─► operator ─┐    chunks ────────────────────────────────────┼► operator
    control ───────────────┘             ├─►  control ───────────────────────────────────┘
    ranges ─► decode ─► change batches ──┘

The operator can get the log's changed keys only within the query's own plan, from rows that Spark's
reader gives. While no run is armed it needs none. Then Spark's source says only which offsets a
batch has (`limit(0)`: Spark plans no reader for it), and the tasks read these records themselves,
beside the operator and not before it: a third of the processor time of a batch was their way
through Java.

Both have the same sources and the same operator, so that either goes on with the checkpoint of the
other.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from lakemark import causes, tasks
from lakemark.kafka.client_settings import by_offset, carried, java_options
from lakemark.reconcile import operator
from lakemark.runners.batch_runner import CONTROL_RECORDS, OtherStagesError, chunk_records
from lakemark.settings.config import Config
from lakemark.source.offset_ranges import OffsetRange, shared
from lakemark.spark import plan_broadcast, topics
from lakemark.spark.plan_broadcast import QueryContext
from lakemark.state.control import PARTITION
from lakemark.tasks import DecodePlan

CHUNK_FETCH: Final = 8 << 20  # bytes of one partition: at 1 MB each part is a request of its own
TASKS_PER_CORE: Final = 4


QUIET_S: Final = 10.0
"""So long without a run the query keeps the stages for runs: the next one may come at once."""


@dataclass(slots=True)
class Stages:
    """The stages of a running query.

    Attributes:
        armed: whether those for runs of snapshots.
    """

    armed: bool = False
    _needed: float = float("-inf")

    def require(self, *, armed: bool) -> None:
        """Check that they are those that a batch needs, before anything of it is done.

        Raises:
            OtherStagesError: they are not, or have been too many for `QUIET_S`.
        """
        if armed:
            self._needed = monotonic()
        if armed != self.armed and (armed or monotonic() > self._needed + QUIET_S):
            raise OtherStagesError(armed=armed)


@dataclass(frozen=True, slots=True)
class ChangeLog:
    """The change topics, and the clients' settings to read them.

    Attributes:
        pattern: Java regular expression of the topics.
        java: the Java client's settings, with Spark's prefix.
        client: librdkafka's, with a group: `client_settings.by_offset`, `carried`.
    """

    pattern: str
    java: Mapping[str, str]
    client: Mapping[str, Any]

    @classmethod
    def of(cls, config: Config, pattern: str) -> "ChangeLog":
        """Return the change topics of a pipeline, with its settings."""
        return cls(pattern, java_options(config), carried(by_offset(config)))


def query(
    spark: SparkSession,
    config: Config,
    change_log: ChangeLog,
    context: QueryContext,
    *,
    armed: bool,
    control: int = 0,
) -> DataFrame:
    """Return the query up to `foreachBatch`.

    Args:
        spark: the session.
        config: the pipeline's.
        change_log: how the change topics are read.
        context: what the tasks know from the start.
        armed: whether the operator needs changed keys.
        control: first offset of the control topic that a new checkpoint reads.
    """
    stream, names = config.stream, config.topics
    changes = topics.change_stream(
        spark,
        change_log.java,
        pattern=change_log.pattern,
        starting=stream.starting,
        max_events=stream.max_events_per_batch,
    )
    chunks = topics.internal_stream(
        spark,
        change_log.java,
        topic=names.chunks,
        max_records=chunk_records(stream.shards),
        fetch_bytes=CHUNK_FETCH,
    )
    controls = topics.internal_stream(
        spark,
        change_log.java,
        topic=names.control,
        max_records=CONTROL_RECORDS,
        starting=json.dumps({names.control: {PARTITION: control}}) if control else "earliest",
    )

    @causes.carrying
    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return tasks.decode(batches, plan_broadcast.receive(context))

    if armed:
        # A task of every partition that has news would cost more than its records where they are
        # many and small.
        decoded = changes.coalesce(_most_tasks(spark)).mapInArrow(decode, tasks.DECODED_DDL)
    else:
        nothing = [f.lit(None).cast(kind).alias(name) for name, kind in tasks.DECODED_TYPES]
        decoded = changes.limit(0).select(*nothing)
    return operator.reconciled(
        decoded,
        chunks,
        controls,
        shards=stream.shards,
        slot_of=lambda table: plan_broadcast.receive(context).slot(table),
    )


def decoded(
    spark: SparkSession,
    change_log: ChangeLog,
    ranges: Sequence[OffsetRange],
    plan: Callable[[], DecodePlan],
) -> DataFrame | None:
    """Return the decoded records that tasks read themselves; None if there are none to read.

    Args:
        spark: the session.
        change_log: how they are read.
        ranges: the records.
        plan: what to do, asked in the task.

    Returns:
        `operator.OUTPUT_DDL`: what the operator would let pass.
    """
    if not ranges:
        return None
    shares, client = shared(ranges, _most_tasks(spark)), dict(change_log.client)

    @causes.carrying
    def decode(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for rows in tasks.decode_ranges(shares[number], client, plan()):
                    yield rows.select(operator.COLUMNS[1:])

    count = len(shares)
    return spark.range(0, count, 1, count).mapInArrow(decode, operator.OUTPUT_DDL)


def _most_tasks(spark: SparkSession) -> int:
    return TASKS_PER_CORE * spark.sparkContext.defaultParallelism
