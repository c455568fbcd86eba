"""Spark runs the batches: a streaming query whose `foreachBatch` is the pipeline's batch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import structlog
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException, PySparkRuntimeError, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from lakemark import causes, tasks
from lakemark.kafka import brokers
from lakemark.model.schema import TableSchema
from lakemark.runners.batch_runner import Batches, OtherStagesError
from lakemark.runners.graceful_stop import QueryStoppedError
from lakemark.settings.config import Config
from lakemark.sink import formats
from lakemark.sink.lake_plan import LakePlan, TableOutcome, TablePlan
from lakemark.snapshot.chunk_task import ReadSettings
from lakemark.snapshot.chunks import ChunkResult, ChunkSpec
from lakemark.source.offset_ranges import OffsetRange
from lakemark.spark import jobs, plan_broadcast, query
from lakemark.spark.hadoop_files import HadoopFiles
from lakemark.spark.plan_broadcast import QueryContext
from lakemark.spark.query import ChangeLog, Stages
from lakemark.spark.session import java_ended, session
from lakemark.state.advance import Results
from lakemark.state.checkpoint import SPARK, Checkpoint
from lakemark.tasks import BatchPlan

log = structlog.get_logger(__name__)


class BatchFailedError(Exception):
    """A batch failed: all that Spark is told."""


@contextmanager
def spark_runner(config: Config, in_hurry: Callable[[], bool]) -> Iterator["SparkRunner"]:
    """Give the runner with a session of its own; see `session` for arguments and errors.

    Raises:
        PipelineError: `java-ended`: whatever is done within finds that Java is gone.
    """
    try:
        with session(config, in_hurry) as spark:
            yield SparkRunner(spark, config)
    except (Py4JNetworkError, PySparkRuntimeError) as error:
        raise java_ended(error) from error


class SparkRunner:
    """See `BatchRunner`."""

    errors: Final = (StreamingQueryException, PySparkException, Py4JError)
    kind: Final = SPARK

    def __init__(self, spark: SparkSession, config: Config) -> None:
        self._spark, self._config = spark, config
        self._stages = Stages()
        self._known = QueryContext({}, {})
        self._change_log = ChangeLog("", {}, {})

    @property
    def slots(self) -> int:
        """See `BatchRunner`."""
        return max(1, self._spark.sparkContext.defaultParallelism)

    def checkpoint(self) -> Checkpoint:
        """See `BatchRunner`."""
        path, context = self._config.checkpoint, self._spark.sparkContext
        hadoop = context._jsc.hadoopConfiguration()  # noqa: SLF001 - no public Python API
        return Checkpoint(HadoopFiles(self._spark._jvm, hadoop, path), path)  # noqa: SLF001

    def start(
        self,
        batches: Batches,
        checkpoint: Checkpoint,
        *,
        pattern: str,
        schemas: Mapping[str, TableSchema],
        armed: bool,
        once: bool,
    ) -> StreamingQuery:
        """See `BatchRunner`."""
        config = self._config
        self._stages = Stages(armed=armed)
        self._known = QueryContext(dict(schemas), brokers.librdkafka_options(config))
        self._change_log = ChangeLog.of(config, pattern)
        frame = query.query(
            self._spark,
            config,
            self._change_log,
            self._known,
            armed=armed,
            control=checkpoint.load(-1).control,
        )

        def on_batch(rows: DataFrame, batch: int) -> None:
            """Carry out a batch; of an error, give Spark a short text only.

            Spark looks for I/O errors in the text with a regular expression that overflows the Java
            stack on a long trace; the query would then end as if all were well.
            """
            draining = batches.draining
            draining.hold(self._sleep)
            try:
                batches.on_batch(rows, batch)
            except BaseException as error:  # noqa: BLE001 - whatever it is, Spark sees a name
                if isinstance(error, OtherStagesError):
                    log.info("query.other_stages", batch=batch, armed=error.armed)
                    draining.end(self._spark)
                if draining.asked:
                    raise QueryStoppedError from None
                raise BatchFailedError(type(error).__name__) from None

        writer = (
            frame.writeStream.queryName(f"lakemark-{config.name}")
            .option("checkpointLocation", config.checkpoint)
            .foreachBatch(on_batch)
        )
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=batches.pace.trigger).start()

    def _sleep(self, ms: int) -> None:
        """Sleep in Java, where the query's end interrupts it."""
        self._spark._jvm.java.lang.Thread.sleep(ms)  # type: ignore[union-attr]  # noqa: SLF001

    def require(self, *, armed: bool) -> None:
        """See `BatchRunner`."""
        self._stages.require(armed=armed)

    def stream(
        self, rows: DataFrame, plan: BatchPlan, changes: Callable[[], Sequence[OffsetRange]]
    ) -> Results:
        """See `BatchRunner`."""
        context = self._known
        plan_broadcast.send(self._spark, plan.decode, context)
        if not self._stages.armed:
            read = query.decoded(
                self._spark, self._change_log, changes(), lambda: plan_broadcast.receive(context)
            )
            rows = rows if read is None else rows.union(read)
        return _merge(rows, plan)

    def reread(self, ranges: Sequence[OffsetRange], plan: BatchPlan) -> Results:
        """See `BatchRunner`."""
        decode = plan.decode
        rows = query.decoded(self._spark, self._change_log, ranges, lambda: decode)
        return _merge(rows, plan) if rows is not None else Results()

    def finish(self, table_plan: TablePlan, outcome: TableOutcome, plan: LakePlan) -> None:
        """See `BatchRunner`."""
        formats.format_named(plan.format).finish(self._spark, table_plan, outcome, plan)

    def read_chunk(self, spec: ChunkSpec, settings: ReadSettings) -> ChunkResult:
        """See `BatchRunner`."""
        return jobs.read(self._spark, spec, settings)


def _merge(rows: DataFrame, plan: BatchPlan) -> Results:
    publish = plan.publishing

    @causes.carrying
    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return tasks.merge(batches, plan.lake, publish)

    results = Results()
    placed = rows.repartitionById(plan.decode.slots, "slot")
    for row in placed.mapInArrow(merge, tasks.RESULT_DDL).collect():
        results.take(row["kind"], bytes(row["blob"]))
    return results
