"""One Spark session for all tests: a process has one JVM, whose class path is set at its start."""

from pathlib import Path

import pytest

from lakemark.state.checkpoint import Checkpoint
from lakemark.state.checkpoint_files import LocalFiles
from tests.kit.spark_session import session


@pytest.fixture(params=["hadoop", "local"])
def checkpoint_of(request):
    """Makes the checkpoint of a folder, through Hadoop's client or without a JVM."""

    def hadoop(path):
        from lakemark.spark.hadoop_files import HadoopFiles

        spark = request.getfixturevalue("spark")
        settings = spark.sparkContext._jsc.hadoopConfiguration()
        return Checkpoint(HadoopFiles(spark._jvm, settings, str(path)), str(path))

    def local(path):
        return Checkpoint(LocalFiles(Path(path)), str(path))

    return hadoop if request.param == "hadoop" else local


@pytest.fixture(scope="session")
def spark(java_home):
    with session() as started:
        yield started
