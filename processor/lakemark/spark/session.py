"""The Spark session a pipeline needs."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import structlog
from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakemark.errors import PipelineError
from lakemark.runners.batch_runner import JAVA_ENDED
from lakemark.settings.config import Config
from lakemark.settings.security import AWS_MSK_IAM
from lakemark.sink.output import writers
from lakemark.spark import jars
from lakemark.spark.class_archive import ClassArchive, class_archive
from lakemark.state.checkpoint_files import require_folder

log = structlog.get_logger(__name__)

END_S: Final = 60.0  # that Java may take for its archive where nobody waits
LOOK_S: Final = 0.05

SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Exactly this number switches off a size check that Spark 4.2 does for every row that crosses
    # into Python; with arrays and structs that check is quadratic in the batch.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "lakemark.spark.daemon",
    # Set by Spark for what runs as SQL, and not for jobs over RDDs, which read chunks: with two
    # environments there were two daemons, each with all imports, 200 MB and writers of its own.
    "spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK": "1",
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
    # A consumer for every Kafka partition stays for the next batch; of more than these, 64 unless
    # set, some are made anew: 200 small tables took 3.8 s a batch instead of 4.2.
    "spark.kafka.consumer.cache.capacity": "1024",
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
# A local disk needs no Hadoop helper processes for an atomic rename: 174 ms a batch become 114. Nor
# a second file of checksums beside each: Hadoop starts a `chmod` for every file that it writes, and
# without these a batch of a few rows takes 238 ms instead of 282.
LOCAL_CHECKPOINT: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}


JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
MASTER: Final = "spark.master"
PYTHON: Final = "spark.pyspark.python"
PARALLELISM: Final = "spark.default.parallelism"
# Lists to which a user adds, each with what separates its members.
LISTS: Final = {"spark.jars": ",", "spark.driver.extraClassPath": os.pathsep}

SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set in the environment of a Python that spark-submit has started: Java runs already."""

_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


@contextmanager
def session(config: Config, in_hurry: Callable[[], bool] = lambda: False) -> Iterator[SparkSession]:
    """Open the session: spark-submit's, else on the cluster `spark.master`, else on this machine.

    Args:
        config: the configuration.
        in_hurry: whether Java, when all is done, is to leave its archive of classes unwritten.

    Raises:
        PipelineError: `checkpoint-unwritable`.
        JarError: a jar is neither in the cache nor to be had, there is no Java, or spark-submit
            was not given the jars.
    """
    os.environ["PYSPARK_PYTHON"] = workers_python(config, os.environ)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = {**SETTINGS, "spark.sql.shuffle.partitions": str(config.stream.shards)}
    if "://" not in config.checkpoint or config.checkpoint.startswith("file:"):
        settings |= LOCAL_CHECKPOINT
        require_folder(Path(config.checkpoint.removeprefix("file:")))
    if config.output is not None:
        settings[f"spark.executorEnv.{writers.COUNT}"] = str(_writers(config))
    archive = None
    if SUBMITTED not in os.environ:
        found = jars.runtime_jars(
            msk_iam=config.kafka.security.sasl_mechanism == AWS_MSK_IAM,
            progress=lambda said: log.info("jars.fetching", progress=said),
        )
        archive = class_archive(found)
        settings |= _launched(found, config)
    settings = with_own(settings, config.spark_options())
    if archive is not None:
        settings[JAVA_OPTIONS] = _java_options(archive, settings.get(JAVA_OPTIONS, ""))
    builder = SparkSession.builder.appName(f"lakemark {config.name}")
    for name, value in settings.items():
        builder = builder.config(name, value)
    if archive is None:
        _require_jars()
    spark: SparkSession = _keeping_signals(builder.getOrCreate)
    spark.sparkContext.setLogLevel("ERROR")
    threading.Thread(target=_start_python, args=[spark], daemon=True).start()
    try:
        yield spark
    finally:
        spark.stop()
        if archive is not None and not archive.path.exists():
            log.info("java.archiving", path=str(archive.path), why="later starts are faster")
            if _end_java(in_hurry):
                archive.finish()
            else:
                log.info("java.not_archived", hint="`lakemark warm` makes the archive beforehand")
                archive.discard()


def _keeping_signals(start: Callable[[], SparkSession]) -> SparkSession:
    """Start the session; PySpark would end the process at Ctrl-C, wherever it is."""
    before = signal.getsignal(signal.SIGINT)
    spark = start()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)
    return spark


def java_ended(error: Exception) -> PipelineError:
    """Return the error for a Java that did not start, or is gone."""
    began = isinstance(error, Py4JNetworkError)
    return PipelineError(
        "Spark's Java process has ended" if began else f"Spark cannot be started: {error}",
        code=JAVA_ENDED,
        hint="see what Java said above, and whether the system ended it for want of memory "
        "(spark.driver.memory); `lakemark doctor` looks at Java",
    )


def _start_python(spark: SparkSession) -> None:
    """Have the Python workers' daemon started while the rest of the pipeline gets ready."""
    with suppress(Exception):  # the first batch says what is wrong
        spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()


def with_own(settings: Mapping[str, str], user_settings: Mapping[str, str]) -> dict[str, str]:
    """Return our settings under the user's, which win; a setting that is a list keeps ours too."""
    merged = {**settings, **user_settings}
    for name, separator in LISTS.items():
        both = [given for given in (settings.get(name), user_settings.get(name)) if given]
        if both:
            merged[name] = separator.join(both)
    return merged


def workers_python(config: Config, environ: Mapping[str, str]) -> str:
    """Return the interpreter of the workers: the one that is set, else this very one.

    PySpark itself does not regard the setting, and takes `python3` from the path without any.
    """
    given = config.spark_options().get(PYTHON) or environ.get("PYSPARK_PYTHON")
    return given or sys.executable


def _launched(jar_files: Sequence[Path], config: Config) -> dict[str, str]:
    """Return a session's settings whose Java we start: here, or as a cluster's driver."""
    settings = {
        "spark.driver.memory": "2g",
        "spark.driver.extraClassPath": os.pathsep.join(map(str, jar_files)),
    }
    if config.spark_options().get(MASTER, "local").startswith("local"):
        return settings | _local(config)
    # Executors fetch them from the driver, each once.
    return settings | {"spark.jars": ",".join(map(str, jar_files))}


def _local(config: Config) -> dict[str, str]:
    """Return the settings of a session on this machine.

    It has slots for chunks beyond those of the stream, of each connector's own, so that none waits
    for another: a task that reads a chunk mostly waits for the database. `defaultParallelism`, from
    which the stream counts its tasks, stays the number of cores.
    """
    count = cores()
    databases = sum(part.database is not None for part in config.parts)
    slots = count + config.snapshot.parallelism * databases
    settings = {
        MASTER: f"local[{slots},4]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    if MASTER not in config.spark:  # a master of the user's has a number of cores of its own
        settings[PARALLELISM] = str(count)
    return settings


def _writers(config: Config) -> int:
    """Return how many processes of an executor write to output topics: half as many as decode."""
    own = config.spark_options().get("spark.executor.cores", "")
    return max(1, (int(own) if own.isdecimal() else cores()) // 2)


def cores(quota: Path = _QUOTA) -> int:
    """Return the cores that this process may use: a container's limit, not the machine's number.

    Args:
        quota: the control group's `cpu.max`: microseconds of processor time, or `max`, in so many.
    """
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    try:
        allowed, period = quota.read_text(encoding="ascii").split()
        return max(1, min(mine, -(-int(allowed) // int(period))))
    except (OSError, ValueError):  # no control groups, or no limit
        return mine


def _require_jars() -> None:
    """Check that the Java that spark-submit has started has Delta.

    Raises:
        JarError: it has none.
    """
    SparkContext._ensure_initialized()  # noqa: SLF001 - there is no session to ask yet
    java: Any = SparkContext._jvm  # noqa: SLF001
    if not isinstance(java.io.delta.sql.DeltaSparkSessionExtension, JavaClass):
        raise jars.JarError(
            "spark-submit was not given the jars that lakemark needs",
            hint='start it with --jars "$(lakemark jars)"',
        )


def _java_options(archive: ClassArchive, user_options: str) -> str:
    """Return our Java options, then the user's; throughput counts, not pauses."""
    collector = "" if "-XX:+Use" in user_options else "-XX:+UseParallelGC"
    return " ".join(filter(None, [collector, archive.options(), user_options]))


def _end_java(in_hurry: Callable[[], bool]) -> bool:
    """End the driver's JVM, which may write its archive then; say whether it ended by itself."""
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark ends it only with this process
    if gateway is None or getattr(gateway, "proc", None) is None:
        return False
    gateway.shutdown()
    gateway.proc.stdin.close()
    end, ended = time.monotonic() + END_S, False
    while not (ended := gateway.proc.poll() is not None) and not in_hurry():
        if time.monotonic() > end:
            break
        time.sleep(LOOK_S)
    if not ended:
        gateway.proc.kill()
        gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    return ended
