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

    from lakemark.spark.class_archive import class_archive
    from lakemark.spark.jars import runtime_jars
    from lakemark.spark.session import JAVA_OPTIONS, LOCAL_CHECKPOINT, SETTINGS

    os.environ["PYSPARK_PYTHON"] = sys.executable
    found = runtime_jars()
    archive = class_archive(found)
    known = archive.options() if archive.is_there() else ""  # a pipeline that was stopped left it
    started = (
        SparkSession.builder.master("local[2]")
        .config(map=SETTINGS | LOCAL_CHECKPOINT | SPARK)
        .config(JAVA_OPTIONS, f"{known} {SPARK[JAVA_OPTIONS]}".strip())
        .config("spark.driver.extraClassPath", os.pathsep.join(map(str, found)))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        # VACUUM has as many tasks, 10,000 of them by default.
        .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
        .config("spark.driver.memory", "1500m")
        .getOrCreate()
    )
    started.sparkContext.setLogLevel("ERROR")
    try:
        yield started
    finally:
        started.stop()
