"""Kafka in: the change topics as one stream, the internal topics, and bounded reads."""

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from lakemark.tables import Offsets

COLUMNS = ("topic", "partition", "offset", "key", "value", "headers")
TASKS_PER_CORE: Final = 4
_CLIENT: Final = {
    # A consumer that is asked for other records than those it has asked for ahead waits for that
    # answer first: by default half a second.
    "kafka.fetch.max.wait.ms": "5",
    # A batch is read at once, not as it trickles in: the defaults are 500 records and 1 MB.
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(4 << 20),
}


def change_stream(
    spark: SparkSession,
    kafka: Mapping[str, str],
    *,
    pattern: str,
    starting: str,
    max_events: int,
) -> DataFrame:
    """One `readStream` on all change topics.

    Args:
        spark: the session.
        kafka: the Java client's settings, with Spark's `kafka.` prefix.
        pattern: Java regular expression of the topics; new tables need no restart.
        starting: `earliest` or `latest`, for partitions without a checkpoint.
        max_events: records per micro-batch over all partitions.

    Records of open or aborted transactions are never seen, and a gap in the offsets stops the
    query: neither is a setting.

    Spark makes a task of every partition that has news; those of many small tables would cost more
    than their records, so that no more than `TASKS_PER_CORE` are made.
    """
    tasks = TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    reader = spark.readStream.format("kafka")
    for name, value in _client(kafka).items():
        reader = reader.option(name, value)
    return (
        reader.option("subscribePattern", pattern)
        .option("startingOffsets", starting)
        .option("maxOffsetsPerTrigger", str(max_events))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .load()
        .select(*COLUMNS)
        .coalesce(tasks)
    )


def internal_stream(
    spark: SparkSession,
    kafka: Mapping[str, str],
    *,
    topic: str,
    max_records: int,
    fetch_bytes: int = 1 << 20,
) -> DataFrame:
    """One of lakemark's own topics, from its beginning; `fetch_bytes` of a partition at a time."""
    reader = spark.readStream.format("kafka")
    client = {"kafka.max.partition.fetch.bytes": str(fetch_bytes), **_client(kafka)}
    for name, value in client.items():
        reader = reader.option(name, value)
    return (
        reader.option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(max_records))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .load()
        .select(*COLUMNS)
    )


def bounded_read(
    spark: SparkSession, kafka: Mapping[str, str], *, start: Offsets, end: Offsets
) -> DataFrame:
    """A batch read of exactly the records from `start` to before `end`, per topic partition."""
    reader = spark.read.format("kafka")
    for name, value in _client(kafka).items():
        reader = reader.option(name, value)
    assign = {topic: sorted(partitions) for topic, partitions in start.items()}
    return (
        reader.option("assign", json.dumps(assign))
        .option("startingOffsets", _offsets(start))
        .option("endingOffsets", _offsets(end))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .load()
        .select(*COLUMNS)
    )


def _client(kafka: Mapping[str, str]) -> dict[str, str]:
    return {**_CLIENT, **kafka, "kafka.isolation.level": "read_committed"}


def _offsets(offsets: Offsets) -> str:
    return json.dumps(
        {topic: {str(p): o for p, o in partitions.items()} for topic, partitions in offsets.items()}
    )
