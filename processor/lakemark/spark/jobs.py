"""Chunks as Spark jobs: one job of one task each, so that more executors mean more readers.

The jobs run in a scheduler pool of their own beside the stream's. What a task needs, secrets among
it, is in its pickled function: never in a local property, a job's description or a plan, which
Spark shows and logs.
"""

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import structlog
from pyspark import TaskContext
from pyspark.sql import SparkSession

from lakemark.snapshot import chunks
from lakemark.snapshot.chunk_task import ReadSettings, run_chunk
from lakemark.snapshot.chunks import ChunkError, ChunkResult, ChunkSpec
from lakemark.spark.plan_broadcast import PROPERTY

if TYPE_CHECKING:
    from pyspark import RDD

log = structlog.get_logger(__name__)

NICE: Final = 10  # a reader's share beside a task of the log is about a tenth
POOL: Final = "snapshot"
_POOL: Final = "spark.scheduler.pool"
_DESCRIPTION: Final = "spark.job.description"


def read(spark: SparkSession, spec: ChunkSpec, settings: ReadSettings) -> ChunkResult:
    """Read one chunk in a Spark task and wait for it. From any thread; never raises.

    A job that fails, is cancelled or loses its worker is an error of the result.
    """

    def task(rows: Iterable[int]) -> Iterator[ChunkResult]:
        for _ in rows:  # Spark ends a worker that leaves input behind
            pass
        context = TaskContext.get()
        again = context is not None and context.attemptNumber() > 0
        with ThreadPoolExecutor(1, initializer=_behind_the_log) as own:
            yield own.submit(run_chunk, spec, settings, again=again).result()

    try:
        with _in_pool(spark, f"snapshot {spec.table} chunk {spec.chunk}", tag(spec.attempt)):
            (result,) = _one_partition(spark).mapPartitions(task).collect()
    except Exception as error:
        log.debug("snapshot.job_failed", table=spec.table, chunk=spec.chunk, exc_info=True)
        return ChunkResult(
            attempt=spec.attempt,
            error=ChunkError(
                code=chunks.JOB_FAILED,
                message=f"Spark did not finish the job of a chunk: {type(error).__name__}",
                hint="the chunk is read again; see the log of Spark if that does not help",
                retried=True,
            ),
        )
    return result


def _behind_the_log() -> None:
    """Give this thread a low priority: its process also works for the log, which comes first.

    Only Linux gives threads a priority each; and the process could not take its own back.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        nice = os.getpriority(os.PRIO_PROCESS, thread)
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, nice + NICE)


@lru_cache(maxsize=1)
def _one_partition(spark: SparkSession) -> "RDD[int]":
    """Return an RDD of one partition: without a plan a job costs half of what it would as SQL."""
    return spark.sparkContext.parallelize([0], 1)


def cancel(spark: SparkSession, attempt: int) -> None:
    """End the job of an attempt, if it runs; its `read` then returns an error."""
    spark.sparkContext.cancelJobsWithTag(tag(attempt))


def tag(attempt: int) -> str:
    """Return Spark's tag of an attempt's job."""
    return f"lakemark-chunk-{attempt}"


def readers(spark: SparkSession, parallelism: int) -> int:
    """Return how many chunks may be read at once, so that the stream always finds a free slot.

    A local session has slots for them (see `session`); on a cluster one slot is left free.
    """
    master = spark.sparkContext.master or ""
    if master.startswith("local"):
        return parallelism
    return max(1, min(parallelism, spark.sparkContext.defaultParallelism - 1))


@contextmanager
def _in_pool(spark: SparkSession, description: str, job_tag: str) -> Iterator[None]:
    """Send this thread's jobs to the pool; afterwards its properties are as before."""
    context = spark.sparkContext
    # The stream's plan is none of a chunk's business: a thread may have inherited it.
    wanted: dict[str, Any] = {_POOL: POOL, _DESCRIPTION: description, PROPERTY: None}
    before: dict[str, Any] = {name: context.getLocalProperty(name) for name in wanted}
    for name, value in wanted.items():
        context.setLocalProperty(name, value)
    context.addJobTag(job_tag)
    try:
        yield
    finally:
        context.removeJobTag(job_tag)
        for name, value in before.items():
            context.setLocalProperty(name, value)
