"""Rows of an output topic in Avro as they are now, with Spark: README.md says how to start it."""

import functools
import sys

import httpx
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

brokers, topic, registry = sys.argv[1:4]
# A record is a 0, the number of its schema in four bytes, and the datum.
NUMBER = "cast(conv(hex(substring(value, 2, 4)), 16, 10) AS INT)"
DATUM = "substring(value, 6)"


def rows_of(number: int) -> DataFrame:
    """Rows whose records have this schema: Spark knows no registry and gets it as a text."""
    answer = httpx.get(f"{registry}/schemas/ids/{number}").raise_for_status()
    event = from_avro(f.expr(DATUM), answer.json()["schema"])
    events = newest.where(f.expr(NUMBER) == number).select(event.alias("event"))
    return events.where("event.op <> 'd'").select("event.after.*")


spark = SparkSession.builder.appName("outputs").getOrCreate()
records = (
    spark.read.format("kafka")
    .option("kafka.bootstrap.servers", brokers)
    .option("kafka.isolation.level", "read_committed")
    .option("subscribe", topic)
    .load()
)
# A key's records stand in one partition, in the source's order: the last one is the row.
newest = records.groupBy("key").agg(f.max_by("value", "offset").alias("value"))
numbers = newest.where("value IS NOT NULL").select(f.expr(NUMBER)).distinct().collect()
parts = [rows_of(number) for (number,) in sorted(numbers)]
if parts:
    # A column that was added later is null in rows of older schemas.
    rows = functools.reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)
    for line in rows.orderBy(rows.columns[0]).toJSON().collect():
        print(line)
spark.stop()
