"""The usual pipeline, as a competent engineer writes it by hand: a process of its own.

    python -m bench.usual SPEC.json

Kafka → `from_json` or `from_avro` → newest event per key → one Delta MERGE per micro-batch and table, in
`foreachBatch`. What is usually tuned is tuned: as many shuffle partitions as cores (for Delta's own
log too), a limit per batch, the batch persisted, only the newest event per key merged. What it does not do is the point
of lakemark and not of this file: replays, key changes, unavailable values, truncates, bad records,
a batch that is repeated after a crash (the last one it survives, because MERGE is repeatable).

Prints one line of JSON per batch, and at the end the records of each batch as Spark counted them.
`Usual` is the same as a contestant.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from delta.tables import DeltaTable
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

from bench.avro_events import PREFIX, value_schema
from bench.checks import read_delta
from bench.events import AVRO, COLUMNS, POSTGRES, Form, zoned_batches
from bench.runs import ROOT, Batch, Line, Run, Task, execute
from lakemark.spark import jars

ROW = (
    "STRUCT<id: BIGINT, customer_id: BIGINT, status: STRING, quantity: INT, "
    "amount: DECIMAL(12,2), updated_at: BIGINT, note: STRING>"
)
ENVELOPE = f"before {ROW}, after {ROW}, source STRUCT<lsn: BIGINT>, op STRING"
AVRO_JARS: Final = ROOT / "stack" / "spark-avro-jars.json"
LAKE: Final = "lake"
DDL = (
    "id BIGINT, customer_id BIGINT, status STRING, quantity INT, amount DECIMAL(12,2), "
    "updated_at TIMESTAMP, note STRING"
)


@dataclass(frozen=True, slots=True)
class Spec:
    """What to read and where to write.

    Attributes:
        bootstrap: Kafka's address.
        tables: path of each Delta table, by topic.
        checkpoint: Spark's checkpoint.
        max_events: records per micro-batch.
        memory: of the driver, which in local mode is the executor too.
        threads: how many tables are merged at a time; 1 is what is usually written.
        settings: more settings of Spark.
        until: how many records it waits for; None takes what is in the topics.
        schema: of the events, which are Avro then.
    """

    bootstrap: str
    tables: dict[str, str]
    checkpoint: str
    max_events: int
    memory: str = "2g"
    threads: int = 1
    settings: dict[str, str] = field(default_factory=dict)
    until: int | None = None
    schema: str = ""

    def write(self, path: Path) -> Path:
        """Writes the specification for `main` and returns its path."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path


@dataclass(frozen=True, slots=True)
class Usual:
    """The usual pipeline as a contestant."""

    form: Form = POSTGRES

    @property
    def who(self) -> str:
        """Its name with that of what it reads."""
        return f"usual, {self.form.label}" if self.form.label else "usual"

    def fill(self, task: Task, rows: pa.RecordBatchReader) -> None:
        """By delta-rs."""
        write_deltalake(task.home / LAKE, zoned_batches(rows), mode="append")

    def run(self, task: Task) -> Run:
        """Runs to the end of the topic."""
        spec = Spec(
            bootstrap=task.kafka.bootstrap,
            tables={task.topic: str(task.home / LAKE)},
            checkpoint=str(task.home / "checkpoint"),
            max_events=task.limit,
            memory=task.memory,
            schema=value_schema(task.table) if self.form is AVRO else "",
        )
        return run_usual(spec, task.home, who=self.who)

    def read(self, task: Task) -> tuple[pa.Table, float]:
        """By delta-rs."""
        return read_delta(task.home / LAKE)


def run_usual(
    spec: Spec,
    work: Path,
    *,
    who: str = "usual",
    until: Callable[[Sequence[Line]], bool] | None = None,
) -> Run:
    """Runs the usual pipeline to its end, or until it is to be given up: see `execute`."""
    work.mkdir(parents=True, exist_ok=True)
    file = spec.write(work / "spec.json")
    used, lines = execute("bench.usual", str(file), log=work / "usual.log", until=until)
    records: dict[str, int] = next((line["records"] for line in lines if "records" in line), {})
    batches = [Batch(x["end"], records.get(str(x["batch"]), 0)) for x in lines if "end" in x]
    return Run(who, used, [b for b in batches if b.events])


def consume(arguments: list[str]) -> int:
    """Applies what is in the topics, then stops."""
    spec = Spec(**json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    spark = session(spec)
    for path in spec.tables.values():
        if not DeltaTable.isDeltaTable(spark, path):
            spark.sql(f"CREATE TABLE delta.`{path}` ({DDL}) USING delta")
    merge = upsert_one if len(spec.tables) == 1 else upsert_all

    def on_batch(batch: DataFrame, number: int) -> None:
        merge(batch, spec)
        say({"batch": number, "end": time.time()})

    writer = changes(spark, spec).writeStream.option("checkpointLocation", spec.checkpoint)
    if spec.until is None:
        writer = writer.trigger(availableNow=True)
    query = writer.foreachBatch(on_batch).start()
    if spec.until is not None:
        while sum(p["numInputRows"] for p in query.recentProgress) < spec.until:
            if query.awaitTermination(1):  # it has failed
                break
        query.stop()
    query.awaitTermination()
    say({"records": {p["batchId"]: p["numInputRows"] for p in query.recentProgress}})
    spark.stop()
    return 0


def session(spec: Spec) -> SparkSession:
    """A local session on all cores."""
    cores = os.cpu_count() or 2
    needed = [*jars.runtime_jars(), *(jars.fetch(AVRO_JARS) if spec.schema else [])]
    builder = SparkSession.builder.appName("usual").master(f"local[{cores}]")
    settings = {
        "spark.jars": ",".join(map(str, needed)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.driver.memory": spec.memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Delta's default of 50 tasks per look at a table's log is meant for logs of millions.
        "spark.databricks.delta.snapshotPartitions": str(cores),
        **spec.settings,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def changes(spark: SparkSession, spec: Spec) -> DataFrame:
    """The stream: one row per event, typed."""
    event = f.from_json(f.col("value").cast("string"), ENVELOPE)
    if spec.schema:  # Spark knows no registry: its reader gets the schema as a text
        event = from_avro(f.expr(f"substring(value, {PREFIX + 1})"), spec.schema)
    columns = [name for name in COLUMNS if name not in {"id", "updated_at"}]
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", spec.bootstrap)
        .option("subscribe", ",".join(spec.tables))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(spec.max_events))
        .load()
        .select("topic", event.alias("e"))
        .select(
            "topic",
            f.col("e.op").alias("op"),
            f.col("e.source.lsn").alias("lsn"),
            f.coalesce("e.after.id", "e.before.id").alias("id"),
            f.timestamp_micros("e.after.updated_at").alias("updated_at"),
            *[f.col(f"e.after.{name}").alias(name) for name in columns],
        )
    )


def upsert_one(batch: DataFrame, spec: Spec) -> None:
    """One table: reduce, persist (MERGE reads its source twice), merge."""
    ((_, path),) = spec.tables.items()
    newest = latest(batch, "id").persist()
    merge(newest, path)
    newest.unpersist()


def upsert_all(batch: DataFrame, spec: Spec) -> None:
    """Many tables: reduce and persist the batch once, then merge table after table."""
    newest = latest(batch, "topic", "id").persist()

    def upsert(table: tuple[str, str]) -> None:
        topic, path = table
        merge(newest.where(f.col("topic") == topic), path)

    if spec.threads == 1:
        for table in spec.tables.items():
            upsert(table)
    else:
        with ThreadPoolExecutor(spec.threads) as pool:
            list(pool.map(upsert, spec.tables.items()))
    newest.unpersist()


def latest(batch: DataFrame, *key: str) -> DataFrame:
    """The newest event of each key."""
    order = Window.partitionBy(*key).orderBy(f.col("lsn").desc())
    return batch.withColumn("nth", f.row_number().over(order)).where("nth = 1").drop("nth", "lsn")


def merge(newest: DataFrame, path: str) -> None:
    """One Delta MERGE."""
    values: dict[str, Any] = {name: f"s.{name}" for name in COLUMNS}
    (
        DeltaTable.forPath(newest.sparkSession, path)
        .alias("t")
        .merge(newest.alias("s"), "t.id = s.id")
        .whenMatchedDelete("s.op = 'd'")
        .whenMatchedUpdate(set=values)
        .whenNotMatchedInsert("s.op <> 'd'", values=values)
        .execute()
    )


def say(line: dict[str, Any]) -> None:
    """One line for the parent."""
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(consume(sys.argv[1:]))
