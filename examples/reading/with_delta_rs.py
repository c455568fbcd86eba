"""A table of the lake with delta-rs: python with_delta_rs.py lake/public/customers."""

import sys

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

table = DeltaTable(sys.argv[1])
query = "SELECT * EXCEPT (_cdc) FROM rows ORDER BY id"
rows = pa.table(QueryBuilder().register("rows", table).execute(query).read_all())
print(f"version {table.version()}, {rows.num_rows} rows")
for row in rows.to_pylist():
    print(row)
