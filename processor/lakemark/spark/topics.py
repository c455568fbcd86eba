"""Kafka's topics, read by Spark: the change topics as one stream, and the internal topics."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("topic", "partition", "offset", "key", "value", "headers")
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
    """Return one `readStream` on all change topics.

    Args:
        spark: the session.
        kafka: the Java client's settings, with Spark's `kafka.` prefix.
        pattern: Java regular expression of whole names of topics; new tables need no restart.
        starting: `earliest` or `latest`, for partitions without a checkpoint.
        max_events: records per micro-batch over all partitions.

    Records of open or aborted transactions are never seen, and a gap in the offsets stops the
    query: neither is a setting.
    """
    reader = spark.readStream.format("kafka")
    for name, value in _client(kafka).items():
        reader = reader.option(name, value)
    return (
        reader.option("subscribePattern", f"^(?:{pattern})$")  # Spark looks for it within names
        .option("startingOffsets", starting)
        .option("maxOffsetsPerTrigger", str(max_events))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .load()
        .select(*COLUMNS)
    )


def internal_stream(
    spark: SparkSession,
    kafka: Mapping[str, str],
    *,
    topic: str,
    max_records: int,
    fetch_bytes: int = 1 << 20,
    starting: str = "earliest",
) -> DataFrame:
    """Return the stream of one of lakemark's own topics.

    Args:
        spark: the session.
        kafka: the Java client's settings, with Spark's `kafka.` prefix.
        topic: its name.
        max_records: per micro-batch.
        fetch_bytes: of a partition at a time.
        starting: where a new checkpoint begins, as Spark's `startingOffsets`.
    """
    reader = spark.readStream.format("kafka")
    client = {"kafka.max.partition.fetch.bytes": str(fetch_bytes), **_client(kafka)}
    for name, value in client.items():
        reader = reader.option(name, value)
    return (
        reader.option("subscribe", topic)
        .option("startingOffsets", starting)
        .option("maxOffsetsPerTrigger", str(max_records))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .load()
        .select(*COLUMNS)
    )


def _client(kafka: Mapping[str, str]) -> dict[str, str]:
    return {**_CLIENT, **kafka, "kafka.isolation.level": "read_committed"}
