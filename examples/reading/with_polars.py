"""A table of the lake with Polars: python with_polars.py lake/public/customers."""

import sys

import polars as pl

rows = pl.scan_delta(sys.argv[1])

# The rows as the source has them; with soft deletes those that are gone would be marked.
print(rows.drop("_cdc").sort("id").collect())

# What came last, and when the source made it.
newest = rows.select("id", pl.col("_cdc").struct.field("op", "source_ts")).sort("source_ts")
print(newest.tail(1).collect())
