"""A table of the lake with Spark: see README.md for how it is started."""

import sys

from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.appName("reading")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
rows = spark.read.format("delta").load(sys.argv[1])
rows.drop("_cdc").orderBy("id").show()
rows.selectExpr("count(*) AS rows", "max(_cdc.source_ts) AS newest").show(truncate=False)
spark.stop()
