"""The driver's half of a batch for tables of the Spark MERGE engine."""

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from lakemark import failpoints
from lakemark.sink.delta import spark_merge
from lakemark.sink.delta.failures import busy
from lakemark.sink.delta.staging import StagedPart
from lakemark.sink.lake_plan import LakePlan, TableOutcome, TablePlan


def finish(spark: SparkSession, own: TablePlan, outcome: TableOutcome, plan: LakePlan) -> None:
    """Do the part that `apply` left to the driver: make the table fit, or truncate and merge.

    Exactly once per (app id, version), like `apply`; fills in the outcome.

    Raises:
        TableError: this table cannot go on.
        DependencyError: the lake is away; the batch is tried again.
    """
    options = plan.options
    if outcome.needs:
        schema = pa.ipc.read_schema(pa.py_buffer(outcome.needs))
        changed = spark_merge.ensure(
            spark,
            own.path,
            schema,
            key=outcome.key,
            table=outcome.table,
            storage_options=options,
        )
        outcome.evolved(changed)
        return
    failpoints.reach(failpoints.BEFORE_COMMIT)
    if outcome.truncate:
        gone = spark_merge.truncate(
            spark,
            own.path,
            outcome.truncate,
            deletes=own.deletes,
            app_id=plan.cut_id(outcome.table),
            version=outcome.version,
            storage_options=options,
        )
        # Where there is nothing to remove Spark commits nothing.
        outcome.truncated(gone, recorded=gone.skipped or bool(gone.deleted or gone.updated))
        outcome.rows, outcome.bytes = gone.rows, gone.bytes
    if outcome.staged:
        done = spark_merge.merge(
            spark,
            own.path,
            [msgspec.msgpack.decode(outcome.staged, type=StagedPart)],
            deletes=own.deletes,
            app_id=plan.app_id(outcome.table),
            version=outcome.version,
            storage_options=options,
        )
        if done.skipped:  # by another process, since the task has looked: perhaps another content
            raise busy(own.path, 1)
        outcome.merged(done)
    failpoints.reach(failpoints.AFTER_COMMIT)
