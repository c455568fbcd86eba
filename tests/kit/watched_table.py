"""A table that several engines read over and over: at every moment it is whole, and of one kind."""

import importlib.util
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDS_S = 60.0
REST_S = 0.5
"""Between two looks, which would else take all that is left of a processor."""

Read = Callable[[str, int], list[object]]
"""From a table's path and a version to the values of its column `id`."""


def duckdb_rows(path: str, columns: str, version: int) -> list[tuple[Any, ...]]:
    """The rows of a version, as DuckDB reads them."""
    with duckdb_with_delta() as database:
        query = f"SELECT {columns} FROM delta_scan('{path}', version => {version})"
        return database.execute(query).fetchall()


def duckdb_with_delta() -> duckdb.DuckDBPyConnection:
    """DuckDB reads Delta by an extension of its own, which comes as a package here."""
    spec = importlib.util.find_spec("duckdb_extension_delta")
    assert spec is not None
    assert spec.origin is not None
    (extension,) = Path(spec.origin).parent.rglob("delta.duckdb_extension")
    database = duckdb.connect()
    database.execute(f"LOAD '{extension}'")
    return database


def with_duckdb(path: str, version: int) -> list[object]:
    return [value for (value,) in duckdb_rows(path, "id", version)]


def with_polars(path: str, version: int) -> list[object]:
    return pl.read_delta(path, version=version).get_column("id").to_list()


def with_spark(spark: "SparkSession") -> Read:
    """Delta's own reader, in a session."""

    def read(path: str, version: int) -> list[object]:
        rows = spark.read.format("delta").option("versionAsOf", version).load(path)
        return [row.id for row in rows.select("id").collect()]

    return read


READERS: Mapping[str, Read] = {"duckdb": with_duckdb, "polars": with_polars}


@contextmanager
def read_all_the_while(
    path: str, *, at_least: int, readers: Mapping[str, Read] = READERS
) -> Iterator[set[str]]:
    """Several engines read while the block runs; the types of the column `v` that delta-rs saw.

    All read once before it and once after it too: both its ends are seen, however fast it is.
    In it each look is delta-rs's and that of one other, by turns.

    Args:
        path: of the table.
        at_least: so many rows it has at every moment, each `id` once.
        readers: what reads beside delta-rs, each time the version that it has just read.
    """
    seen: set[str] = set()
    wrong: list[object] = []
    over = threading.Event()

    def look(others: Iterable[str] = readers) -> None:
        table = DeltaTable(path)
        rows = QueryBuilder().register("t", table).execute("SELECT id, v FROM t")
        found = pa.table(rows.read_all())
        seen.add(str(found.schema.field("v").type))
        ids = sorted(found.column("id").to_pylist())
        if len(ids) < at_least or len(set(ids)) != len(ids):
            wrong.append((table.version(), len(ids)))
        wrong.extend(
            (table.version(), name)
            for name in others
            if sorted(readers[name](path, table.version())) != ids
        )

    def read() -> None:
        turns = itertools.cycle(readers)
        while not over.is_set():
            try:
                look([*itertools.islice(turns, 1)])
            except Exception as error:  # noqa: BLE001
                wrong.append(error)
            over.wait(REST_S)

    thread = threading.Thread(target=read, daemon=True)
    look()
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(ENDS_S)
    assert not thread.is_alive(), "a reader hangs"
    look()
    assert not wrong, wrong[:3]
