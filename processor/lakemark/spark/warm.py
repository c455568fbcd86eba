"""Makes Java's archive of classes without a pipeline: `lakemark warm`.

A pipeline that stops in good order leaves the archive by itself. That is too late where a cache is
filled once and only read later, as in an image, and for one that is killed. So here is a query with
the stages of a pipeline's, over rows that Spark makes up; what needs a broker is loaded by name.
"""

import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from lakemark import tasks
from lakemark.converters import compiler
from lakemark.errors import LakemarkError
from lakemark.reconcile import operator
from lakemark.settings import cache
from lakemark.settings.config import Config
from lakemark.source import fetch
from lakemark.spark import jars
from lakemark.spark.class_archive import class_archive
from lakemark.spark.session import session

LONGEST_S: Final = 120.0
BATCHES: Final = 3  # the first makes the state, the next ones read it
SHARDS: Final = 2
_KAFKA: Final = ("org/apache/kafka/clients/", "org/apache/kafka/common/", "org/apache/spark/")
"""Beginnings of the classes' names in the jars of Kafka's clients and of Spark's part for them."""


class ArchiveError(LakemarkError):
    """Java could not write the archive, or had nothing to put into it; or nothing can be kept."""

    code = "no-class-archive"


def warm(*examples: Callable[[], None]) -> tuple[Path, bool]:
    """Return the archive for this Java and these jars; make it if there is none, and tell so.

    What lakemark compiles itself is then in the cache, too (`converters.compiler`).

    Args:
        examples: call what is compiled beside the reading of records, see `compiler.ready`.

    Raises:
        JarError: there is no Java, or a jar cannot be had.
        ArchiveError: there is none afterwards, or it lacks what a pipeline needs.
    """
    if not (fetch.ready() and compiler.ready(*examples)) or compiler.KEPT is None:
        raise ArchiveError(
            f"what lakemark compiles cannot be kept in {cache.cache_dir()}",
            hint="see that this folder can be written and has 200 MB, or set LAKEMARK_CACHE",
        )
    found = jars.runtime_jars()
    archive = class_archive(found)
    if archive.is_there():
        return archive.path, False
    with TemporaryDirectory(prefix="lakemark-warm-") as place, session(_config(place)) as spark:
        _load(spark, found)
        _stream(spark, place)
    if not archive.path.exists():
        raise ArchiveError(
            f"Java left no archive of its classes in {archive.path.parent}",
            hint="see that this folder can be written and has 200 MB, or set LAKEMARK_CACHE",
        )
    return archive.path, True


def _config(place: str) -> Config:
    """Return as much of a configuration as a session needs: nothing of it is ever reached."""
    return Config.model_validate({
        "name": "warm",
        "kafka": {"bootstrap_servers": "localhost:9092"},
        "source": {"connect": {"url": "http://localhost:8083", "connector": "warm"}},
        "lake": {"path": f"{place}/lake"},
        "checkpoint": f"{place}/checkpoint",
        "stream": {"shards": SHARDS},
    })  # fmt: skip


def _load(spark: SparkSession, jar_files: Sequence[Path]) -> None:
    """Load Kafka's clients and Spark's part for them."""
    java: Any = spark._jvm  # noqa: SLF001 - PySpark has no other way to Java
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    for jar in jar_files:
        if "kafka" not in jar.name:
            continue
        with zipfile.ZipFile(jar) as entries:
            for name in entries.namelist():
                if name.startswith(_KAFKA) and name.endswith(".class"):
                    one = name.removesuffix(".class").replace("/", ".")
                    with suppress(Py4JJavaError):  # some need libraries that are not there
                        java.java.lang.Class.forName(one, False, loader)  # noqa: FBT003


def _stream(spark: SparkSession, place: str) -> None:
    """Run some batches through the stages of a pipeline."""
    enough = threading.Event()

    def nothing(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return iter(())

    def on_batch(frame: DataFrame, batch: int) -> None:
        read = spark.range(0, 1, 1, 1).mapInArrow(nothing, operator.OUTPUT_DDL)
        whole = frame.union(read).repartitionById(SHARDS, "slot")
        whole.mapInArrow(nothing, tasks.RESULT_DDL).collect()
        if batch + 1 >= BATCHES:
            enough.set()

    records = (
        spark.readStream.format("rate")
        .load()
        .select(
            f.lit("t").alias("topic"),
            f.lit(0).alias("partition"),
            f.col("value").alias("offset"),
            f.lit(None).cast("binary").alias("key"),
            f.lit(None).cast("binary").alias("value"),
            f.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers"),
        )
    )
    decoded = records.mapInArrow(nothing, tasks.DECODED_DDL)
    frame = operator.reconciled(decoded, records, records, shards=SHARDS, slot_of=lambda _: 0)
    query = (
        frame.writeStream.option("checkpointLocation", f"{place}/query")
        .foreachBatch(on_batch)
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        if not enough.wait(LONGEST_S):
            raise ArchiveError(
                f"Spark did not get through {BATCHES} batches in {LONGEST_S:g} s",
                hint="see above what Spark says",
            )
    finally:
        query.stop()
