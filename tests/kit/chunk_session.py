"""Reads chunks in a real session of Spark, in a process of its own: `tests/spark/test_chunk_jobs.py`.

Arguments: the configuration file and the table. Prints one JSON object.
"""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key_ranges import Condition
from lakemark.settings.config import load
from lakemark.snapshot.chunk_task import ReadSettings
from lakemark.snapshot.chunks import ChunkSpec
from lakemark.spark import jobs
from lakemark.spark.session import session
from stack.processes import wait_for

SLEEPING = (
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
)


@dataclass(frozen=True, slots=True)
class Deadly(ReadSettings):
    """Settings that end the worker process of the first attempt."""

    marker: str = ""

    @property
    def access(self):
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return ReadSettings.access.fget(self)
        os._exit(1)


def main(file: str, table: str) -> dict:
    config = load(Path(file))
    settings = ReadSettings(config, HandlingModes(), {"database.password": "connector-secret"})
    found = {}
    with session(config) as spark:
        context = spark.sparkContext
        found["master"], found["parallelism"] = context.master, context.defaultParallelism
        found["readers"] = jobs.readers(spark, config.snapshot.parallelism)
        cut = settings.source.cut(table, 100)

        def read(at: int, **changed):
            given = {"run": "r1", "table": table, "chunk": at, "attempt": at, "shards": 2}
            return jobs.read(spark, ChunkSpec(**{**given, **changed}), settings)

        context.setLocalProperty("spark.scheduler.pool", "own")
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda n: read(n[0], span=n[1]), enumerate(cut.spans)))
        found["rows"] = [r.rows for r in results]
        found["errors"] = [r.error.code for r in results if r.error]
        found["snapshots"] = all(r.proof.server.timeline == 1 for r in results)

        dead = Deadly(config, settings.modes, {}, marker=str(Path(file).with_name("marker")))
        lost = jobs.read(
            spark, ChunkSpec(run="r1", table=table, chunk=90, attempt=90, shards=2), dead
        )
        found["lost"] = [lost.error.code, lost.error.retried]

        def cancel_in_its_sleep() -> None:
            try:
                with psycopg.connect(config.database.url, autocommit=True) as watcher:
                    wait_for(lambda: watcher.execute(SLEEPING).fetchall(), 60, "a chunk to sleep")
            finally:
                jobs.cancel(spark, 91)

        napping = Condition("pg_sleep(60) IS NULL")
        begun = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            cancelled = pool.submit(cancel_in_its_sleep)
            found["cancelled"] = read(91, condition=napping).error.code
            cancelled.result()
        found["cancelled_s"] = time.monotonic() - begun
        found["after"] = read(92).rows
        found["sql"] = spark.range(1).mapInArrow(lambda batches: batches, "id long").count()
        found["daemons"] = daemons()
        found["pool"] = context.getLocalProperty("spark.scheduler.pool")
        found["tags"] = sorted(context.getJobTags())
    return found


def daemons() -> int:
    """Count the processes from which Spark forks Python workers."""

    def is_daemon(process: psutil.Process) -> bool:
        try:
            return (
                "lakemark.spark.daemon" in process.cmdline() and process.parent().name() == "java"
            )
        except psutil.NoSuchProcess:  # a worker that ends, a zombie too
            return False

    return sum(map(is_daemon, psutil.Process().children(recursive=True)))


if __name__ == "__main__":
    print("\n" + json.dumps(main(*sys.argv[1:])))
