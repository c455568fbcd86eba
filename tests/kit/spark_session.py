"""A Spark session in the process of the tests: it has one JVM, whose class path is set at its start."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.kit.running import SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def session() -> Iterator["SparkSession"]:
    """Start one, with Delta and the stores of lakemark's; ask for `java_home` before."""
    from pyspark.sql import SparkSession

    from lakemark.spark.jars import runtime_jars

    os.environ["PYSPARK_PYTHON"] = sys.executable
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    started = (
        SparkSession.builder.master("local[2]")
        .config(map=SPARK)
        .config("spark.jars", ",".join(map(str, runtime_jars())))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.streaming.stateStore.providerClass", provider)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .config("spark.sql.execution.arrow.maxBytesPerBatch", "2147483647")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1500m")
        .getOrCreate()
    )
    started.sparkContext.setLogLevel("ERROR")
    try:
        yield started
    finally:
        started.stop()
