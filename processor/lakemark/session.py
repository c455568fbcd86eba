"""The Spark session a pipeline needs."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakemark import jars
from lakemark.class_archive import ClassArchive, class_archive
from lakemark.config import Config

log = structlog.get_logger(__name__)

END_S: Final = 60.0

SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Exactly this number switches off a size check that Spark 4.2 does for every row that crosses
    # into Python; with arrays and structs that check is quadratic in the batch.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "lakemark.daemon",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.adaptive.enabled": "false",
    # A hash over every shuffled row, to notice stages that say something else when they are run
    # again: ours do not, and with rows of hundreds of kilobytes it was most of the shuffle's CPU.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
    "spark.sql.session.timeZone": "UTC",
    # Spark's default INT96 is misread by other readers outside the years 1678 to 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.task.maxFailures": "4",
    "spark.scheduler.mode": "FAIR",
}
# A local disk needs no Hadoop helper processes for an atomic rename: 174 ms a batch become 114.
LOCAL_CHECKPOINT: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}


JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
MASTER: Final = "spark.master"
PARALLELISM: Final = "spark.default.parallelism"


@contextmanager
def session(config: Config) -> Iterator[SparkSession]:
    """The session: under spark-submit the cluster's, else a local one on all cores.

    Python workers run this very interpreter: Spark would take `python3` from the path.

    Raises:
        JarError: a jar is neither in the cache nor to be had, or there is no Java.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    found = jars.runtime_jars()
    settings = {**SETTINGS, "spark.sql.shuffle.partitions": str(config.stream.shards)}
    if "://" not in config.checkpoint or config.checkpoint.startswith("file:"):
        settings |= LOCAL_CHECKPOINT
        Path(config.checkpoint.removeprefix("file:")).mkdir(parents=True, exist_ok=True)
    archive = None
    if "SPARK_ENV_LOADED" in os.environ:
        settings["spark.jars"] = ",".join(map(str, found))
    else:
        archive = class_archive(found)
        settings |= _local(found, config)
    settings |= config.spark_options()
    if archive is not None:
        settings[JAVA_OPTIONS] = _java_options(archive, settings.get(JAVA_OPTIONS, ""))
    builder = SparkSession.builder.appName(f"lakemark {config.name}")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    threading.Thread(target=_start_python, args=[spark], daemon=True).start()
    try:
        yield spark
    finally:
        spark.stop()
        if archive is not None and not archive.path.exists():
            log.info("java.archiving", path=str(archive.path), why="later starts are faster")
            _end_java()
            archive.finish()


def _start_python(spark: SparkSession) -> None:
    """Has the Python workers' daemon started while the rest of the pipeline gets ready."""
    with suppress(Exception):  # the first batch says what is wrong
        spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()


def _local(found: Sequence[Path], config: Config) -> dict[str, str]:
    """A session on this machine.

    It has slots for chunks beyond those of the stream, so that neither waits for the other: a task
    that reads a chunk mostly waits for the database. `defaultParallelism`, from which the stream
    counts its tasks, stays the number of cores.
    """
    cores = os.cpu_count() or 2
    slots = cores + (config.snapshot.parallelism if config.database is not None else 0)
    settings = {
        MASTER: f"local[{slots},4]",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraClassPath": os.pathsep.join(map(str, found)),
    }
    if MASTER not in config.spark:  # a master of the user's has a number of cores of its own
        settings[PARALLELISM] = str(cores)
    return settings


def _java_options(archive: ClassArchive, own: str) -> str:
    """Ours, then the user's; throughput counts, not pauses."""
    collector = "" if "-XX:+Use" in own else "-XX:+UseParallelGC"
    return " ".join(filter(None, [collector, archive.options(), own]))


def _end_java() -> None:
    """Ends the driver's JVM, which writes its archive then, and waits for that."""
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark ends it only with this process
    if gateway is None or getattr(gateway, "proc", None) is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        gateway.proc.wait(END_S)
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
