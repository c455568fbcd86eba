"""The Spark session a pipeline needs."""

import os
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from lakemark import jars
from lakemark.config import Config

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


def session(config: Config) -> SparkSession:
    """The session: under spark-submit the cluster's, else a local one on all cores.

    Python workers run this very interpreter: Spark would take `python3` from the path.

    Raises:
        JarError: a jar is neither in the cache nor to be had.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"lakemark {config.name}")
    if "SPARK_ENV_LOADED" not in os.environ:
        cores = os.cpu_count() or 2
        builder = builder.master(f"local[{cores},4]")
        builder = builder.config("spark.driver.memory", "2g")
        builder = builder.config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    found = jars.runtime_jars()
    builder = builder.config("spark.jars", ",".join(str(jar) for jar in found))
    settings = {**SETTINGS, "spark.sql.shuffle.partitions": str(config.stream.shards)}
    if "://" not in config.checkpoint or config.checkpoint.startswith("file:"):
        settings |= LOCAL_CHECKPOINT
        Path(config.checkpoint.removeprefix("file:")).mkdir(parents=True, exist_ok=True)
    for name, value in {**settings, **config.spark_options()}.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
