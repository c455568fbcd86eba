"""The rows of an output topic as they are now, with Spark: see README.md for how it is started."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

brokers, topic, columns = sys.argv[1:4]
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
event = f.from_json(f.col("value").cast("string"), f"op STRING, after STRUCT<{columns}>")
rows = newest.select(event.alias("event")).where("event.op <> 'd'").select("event.after.*")
for line in rows.orderBy(rows.columns[0]).toJSON().collect():
    print(line)
spark.stop()
