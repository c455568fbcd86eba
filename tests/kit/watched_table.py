"""A table that two engines read over and over: at every moment it is whole, and of one kind."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

ENDS_S = 60.0


@contextmanager
def read_all_the_while(path: str, *, at_least: int) -> Iterator[set[str]]:
    """Delta-rs and Polars read while the block runs; the types of the column `v` that they saw.

    Args:
        path: of the table.
        at_least: so many rows it has at every moment, each `id` once.
    """
    seen: set[str] = set()
    wrong: list[object] = []
    over = threading.Event()

    def look() -> None:
        table = DeltaTable(path)
        rows = QueryBuilder().register("t", table).execute("SELECT id, v FROM t")
        found = pa.table(rows.read_all())
        polars = pl.read_delta(path, version=table.version())
        seen.add(str(found.schema.field("v").type))
        ids = found.column("id").to_pylist()
        if len(ids) < at_least or len(set(ids)) != len(ids) or polars.height != len(ids):
            wrong.append((table.version(), len(ids), polars.height))

    def read() -> None:
        while not over.is_set():
            try:
                look()
            except Exception as error:  # noqa: BLE001
                wrong.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(ENDS_S)
    assert not wrong, wrong[:3]
