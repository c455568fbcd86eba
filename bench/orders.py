"""The table of the snapshot benchmarks: filled, changed, and compared with its copy in the lake."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import csv

from lakemark.settings.config import load
from lakemark.sink.names import folder_of
from stack.database import Database
from stack.lakemark_process import LakemarkProcess
from stack.mysql import LocalBinlogServer
from stack.processes import StackError, wait_for

ORDERS: Final = """
CREATE TABLE {table} (
    id bigint PRIMARY KEY, customer int NOT NULL, status {text} NOT NULL, note {text} NOT NULL,
    total decimal(12,2) NOT NULL, at {instant} NOT NULL
)
"""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs from one product to another.

    Attributes:
        text: the type of short texts.
        before: what the session needs that fills a table; `{rows}` is how many.
        fill: fills `{table}` with `{rows}` orders.
        analyse: counts the rows of `{table}` for whoever plans queries.
        unless_there: an INSERT of values that leaves a key alone that is there, of `{table}`.
        micros: the column of moments as microseconds since the epoch.
        exported: a query's rows as lines of CSV.
    """

    text: str
    before: tuple[str, ...]
    fill: str
    analyse: str
    unless_there: str
    micros: str
    exported: Callable[[Database, str], bytes]


def _copied(database: Database, query: str) -> bytes:
    with (
        database.connect() as connection,
        connection.cursor() as cursor,
        cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv)".encode()) as out,
    ):
        return b"".join(out)


def _written_out(database: Database, query: str) -> bytes:
    """Have the server write a file among its own, which are on this machine."""
    assert isinstance(database.server, LocalBinlogServer)
    file = database.server.data / f"{time.monotonic_ns()}.csv"
    lines = "FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"'"
    try:
        database.execute(f"{query} INTO OUTFILE '{file}' {lines}")
        return file.read_bytes()
    finally:
        file.unlink(missing_ok=True)


POSTGRES: Final = Dialect(
    text="text",
    before=(),
    fill=(
        "INSERT INTO {table} SELECT g, g % 5000, 'status-' || g % 7, md5(g::text), g * 0.37,"
        " timestamptz '2026-01-01' + g * interval '1 second' FROM generate_series(1, {rows}) AS g"
    ),
    analyse="ANALYZE {table}",
    unless_there="INSERT INTO {table} VALUES {values} ON CONFLICT DO NOTHING",
    micros="(extract(epoch FROM at) * 1000000)::bigint",
    exported=_copied,
)


def _mysql(depth: str) -> Dialect:
    """Return the dialect of a product, by its name for how deep a query may recurse."""
    return Dialect(
        text="varchar(64)",
        before=(f"SET SESSION {depth} = {{rows}}",),
        fill=(
            "INSERT INTO {table} WITH RECURSIVE numbers (g) AS"
            " (SELECT 1 UNION ALL SELECT g + 1 FROM numbers WHERE g < {rows})"
            " SELECT g, g % 5000, concat('status-', g % 7), left(sha2(g, 256), 32), g * 0.37,"
            " timestamp '2026-01-01 00:00:00' + INTERVAL g SECOND FROM numbers"
        ),
        analyse="ANALYZE TABLE {table}",
        unless_there="INSERT IGNORE INTO {table} VALUES {values}",
        micros="timestampdiff(MICROSECOND, '1970-01-01', at)",
        exported=_written_out,
    )


DIALECTS: Final[Mapping[str, Dialect]] = {
    "postgres": POSTGRES,
    "mariadb": _mysql("max_recursive_iterations"),
    "mysql": _mysql("cte_max_recursion_depth"),
}
"""The dialects, by the connector that reads the product's log."""

# Columns of an order; a moment is microseconds since the epoch.
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


def dialect_of(database: Database) -> Dialect:
    """How a database has its orders."""
    return DIALECTS[database.server.connector]


def fill(database: Database, table: str, rows: int) -> None:
    """A table of orders, analysed."""
    dialect = dialect_of(database)
    create = ORDERS.format(table=table, text=dialect.text, instant=database.INSTANT)
    with database.connect() as connection:
        connection.execute(create)
        for statement in (*dialect.before, dialect.fill, dialect.analyse):
            connection.execute(statement.format(table=table, rows=rows))


@contextmanager
def busy_with(database: Database, table: str, rows: int, rate: int) -> Iterator[list[int]]:
    """About so many transactions a second on the table: updates, and some inserts and deletes."""
    done, count = threading.Event(), [0]
    if not rate:
        yield []
        return

    dialect = dialect_of(database)

    def work(number: int) -> None:
        with database.connect() as connection:
            key, due = number, time.monotonic()
            while not done.is_set():
                key = (key * 1103515245 + 12345) % (2**31)
                _change(connection, dialect, table, key % rows + 1, kind=key >> 8 & 15)
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


def _change(connection: Any, dialect: Dialect, table: str, key: int, *, kind: int) -> None:
    if kind == 0:
        connection.execute(f"DELETE FROM {table} WHERE id = %s", [key])
    elif kind == 1:
        values = "(%s, 1, 'new', 'n', 1, current_timestamp(6))"
        insert = dialect.unless_there.format(table=table, values=values)
        connection.execute(insert, [key + 10_000_000])
    else:
        update = "SET customer = customer + 1, at = current_timestamp(6) WHERE id = %s"
        connection.execute(f"UPDATE {table} {update}", [key])


def equal(
    database: Database, process: LakemarkProcess, table: str, *, longest_s: float = 120
) -> bool:
    """Whether the Delta table has the database's rows, all columns, once it has caught up."""
    source = source_rows(database, table).sort_by("id")
    path = folder_of(load(process.config).lake, database.identifier(table))

    def same() -> bool:
        return bool(source.equals(lake_rows(path)))

    try:
        wait_for(same, longest_s, f"{table} to be equal")
    except StackError:
        return False
    return True


def source_rows(database: Database, table: str) -> pa.Table:
    """A table of orders as it is in the database."""
    dialect = dialect_of(database)
    names = [dialect.micros if name == "at" else name for name in TYPES.names]
    data = dialect.exported(database, f"SELECT {', '.join(names)} FROM {table}")
    return csv.read_csv(
        pa.BufferReader(data),
        read_options=csv.ReadOptions(column_names=TYPES.names),
        convert_options=csv.ConvertOptions(column_types=TYPES),
    ).combine_chunks()


def lake_rows(path: str) -> pa.Table:
    """A table of orders as it is in the lake, sorted by its key."""
    found = pa.table(DeltaTable(path).scan(columns=TYPES.names)).select(TYPES.names)
    moments = found.column("at").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    found = found.set_column(found.column_names.index("at"), "at", moments)
    return found.cast(TYPES).sort_by("id").combine_chunks()
