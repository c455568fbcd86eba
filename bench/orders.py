"""The table of the snapshot benchmarks: filled, changed, and compared with its copy in the lake."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import csv

from lakemark.settings.config import load
from lakemark.sink.names import folder_of
from stack.lakemark_process import LakemarkProcess
from stack.local import Database
from stack.processes import StackError, wait_for

ORDERS: Final = """
CREATE TABLE {} (
    id bigint PRIMARY KEY, customer int NOT NULL, status text NOT NULL, note text NOT NULL,
    total numeric(12,2) NOT NULL, at timestamptz NOT NULL
)
"""
FILL: Final = """
INSERT INTO {} SELECT g, g %% 5000, 'status-' || g %% 7, md5(g::text), g * 0.37,
    timestamptz '2026-01-01' + g * interval '1 second' FROM generate_series(1, %s) AS g
"""
# Columns of an order, each as COPY shall write it: a moment as microseconds since the epoch.
COLUMNS: Final = {
    **{name: name for name in ("id", "customer", "status", "note", "total")},
    "at": "(extract(epoch FROM at) * 1000000)::bigint",
}
TYPES: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.int32()),
        ("status", pa.string()),
        ("note", pa.string()),
        ("total", pa.decimal128(12, 2)),
        ("at", pa.int64()),
    ]
)


def fill(database: Database, table: str, rows: int) -> None:
    """A table of orders, analysed."""
    with database.connect() as connection:
        connection.execute(ORDERS.format(table).encode())
        connection.execute(FILL.format(table).encode(), [rows])
        connection.execute(f"ANALYZE {table}".encode())


@contextmanager
def busy_with(database: Database, table: str, rows: int, rate: int) -> Iterator[list[int]]:
    """About so many transactions a second on the table: updates, and some inserts and deletes."""
    done, count = threading.Event(), [0]
    if not rate:
        yield []
        return

    def work(number: int) -> None:
        with database.connect() as connection:
            key, due = number, time.monotonic()
            while not done.is_set():
                key = (key * 1103515245 + 12345) % (2**31)
                _change(connection, table, key % rows + 1, kind=key >> 8 & 15)
                count[0] += 1
                due += 4 / rate
                time.sleep(max(0.0, due - time.monotonic()))

    workers = [threading.Thread(target=work, args=(n + 1,), daemon=True) for n in range(4)]
    for worker in workers:
        worker.start()
    try:
        yield count
    finally:
        done.set()
        for worker in workers:
            worker.join()


def _change(connection: psycopg.Connection[Any], table: str, key: int, *, kind: int) -> None:
    if kind == 0:
        connection.execute(f"DELETE FROM {table} WHERE id = %s".encode(), [key])
    elif kind == 1:
        connection.execute(
            f"INSERT INTO {table} VALUES (%s, 1, 'new', 'n', 1, now()) ON CONFLICT DO NOTHING"
            .encode(), [key + 10_000_000],
        )  # fmt: skip
    else:
        connection.execute(
            f"UPDATE {table} SET customer = customer + 1, at = now() WHERE id = %s".encode(), [key]
        )


def equal(
    database: Database, process: LakemarkProcess, table: str, *, longest_s: float = 120
) -> bool:
    """Whether the Delta table has the database's rows, all columns, once it has caught up."""
    source = source_rows(database, table).sort_by("id")
    path = folder_of(load(process.config).lake, f"public.{table}")

    def same() -> bool:
        return bool(source.equals(lake_rows(path)))

    try:
        wait_for(same, longest_s, f"{table} to be equal")
    except StackError:
        return False
    return True


def source_rows(database: Database, table: str) -> pa.Table:
    """A table of orders as it is in the database."""
    query = f"COPY (SELECT {', '.join(COLUMNS.values())} FROM {table}) TO STDOUT (FORMAT csv)"
    with (
        database.connect() as connection,
        connection.cursor() as cursor,
        cursor.copy(query.encode()) as out,
    ):
        data = b"".join(out)
    return csv.read_csv(
        pa.BufferReader(data),
        read_options=csv.ReadOptions(column_names=list(COLUMNS)),
        convert_options=csv.ConvertOptions(column_types=TYPES),
    ).combine_chunks()


def lake_rows(path: str) -> pa.Table:
    """A table of orders as it is in the lake, sorted by its key."""
    found = pa.table(DeltaTable(path).scan(columns=list(COLUMNS))).select(list(COLUMNS))
    moments = found.column("at").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    found = found.set_column(found.column_names.index("at"), "at", moments)
    return found.cast(TYPES).sort_by("id").combine_chunks()
