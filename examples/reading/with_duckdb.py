"""Orders of each customer with DuckDB.

python with_duckdb.py lake/public/customers lake/public/orders
"""

import sys

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

customers, orders = sys.argv[1:]


def read(path: str, columns: str) -> pa.Table:
    """Some columns of a table, read by delta-rs."""
    rows = QueryBuilder().register("rows", DeltaTable(path))
    return pa.table(rows.execute(f"SELECT {columns} FROM rows").read_all())


with duckdb.connect() as database:
    database.register("customers", read(customers, "id, name"))
    database.register("orders", read(orders, "id, customer, placed"))
    print(
        database.sql(
            "SELECT name, count(orders.id) AS orders, max(placed) AS newest"
            " FROM customers LEFT JOIN orders ON orders.customer = customers.id"
            " GROUP BY name ORDER BY name"
        )
    )
