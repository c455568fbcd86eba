"""One Spark session for all tests: a process has one JVM, whose class path is set at its start."""

import os
import sys
from pathlib import Path

import pytest

from lakemark.checkpoint import Checkpoint
from lakemark.checkpoint_files import LocalFiles
from tests.kit.running import SPARK


@pytest.fixture(params=["hadoop", "local"])
def checkpoint_of(request):
    """Makes the checkpoint of a folder, through Hadoop's client or without a JVM."""

    def hadoop(path):
        from lakemark.hadoop_files import HadoopFiles

        spark = request.getfixturevalue("spark")
        settings = spark.sparkContext._jsc.hadoopConfiguration()
        return Checkpoint(HadoopFiles(spark._jvm, settings, str(path)), str(path))

    def local(path):
        return Checkpoint(LocalFiles(Path(path)), str(path))

    return hadoop if request.param == "hadoop" else local


@pytest.fixture(scope="session")
def spark(java_home):
    from pyspark.sql import SparkSession

    from lakemark.jars import runtime_jars

    os.environ["PYSPARK_PYTHON"] = sys.executable
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    session = (
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
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
