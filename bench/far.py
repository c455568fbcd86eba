"""Small batches into many tables of an object store whose every answer is late.

    ./dev bench far [--tables 12] [--delay-ms 30] [--batches 6] [--per-table 10] [--json FILE]

The store speaks S3 over HTTP, in memory, in a process of its own (`stack.object_store`). The
engines get the events of a batch as one of its merge tasks does, without Spark and Kafka. delta-rs
alone gets the same rows decoded, by tables that stay open: one after another, and eight at a
time; it compacts nothing and writes no checkpoints. The batch that
makes the tables and the one after it do not count; seconds of a batch are the mean of the others. 33
batches and more have compaction in them, 50 and more checkpoints. *requests*: what the store is
asked for each table in a batch. All tables must hold the rows that are left in the end: else the
exit code is 1.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from deltalake import DeltaTable

from bench import delta_rs, report
from bench.checks import differences
from bench.events import ARROW, COLUMNS, CONNECTOR, SCHEMA, Orders
from bench.ours import ENGINES
from bench.runs import topic_of
from lakemark import tasks
from lakemark.connectors.postgres.schema_file import schemas_from_file
from lakemark.model.decoding import StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.sink.lake_plan import STREAM, LakePlan, TableOutcome, TablePlan
from lakemark.source.fetch import HEADERS
from stack.object_store import Address, serving

LAKE: Final = "s3://lake"
MODES: Final = HandlingModes(decimal_format="NUMERIC")
NOT_COUNTED: Final = 2  # batches
MEASURES: Final = ("seconds_per_batch", "requests")

Batch = Callable[[int], None]
"""Applies a batch by its number."""


@dataclass(frozen=True, slots=True)
class Work:
    """What every contestant is given.

    Attributes:
        orders: the events of each table.
        per_table: how many of them a batch has.
        store: where the tables are.
        folder: within the store.
        schemas: of the tables.
    """

    orders: dict[str, Orders]
    per_table: int
    store: Address
    folder: str
    schemas: dict[str, TableSchema]

    def path(self, table: str) -> str:
        """The folder of a table."""
        return f"{LAKE}/{self.folder}/{table}"

    def records(self, table: str, batch: int) -> list[tuple[bytes, bytes]]:
        """Keys and values of a table's events."""
        begin = batch * self.per_table
        return list(self.orders[table].records(begin, begin + self.per_table))


def lakemark(work: Work, engine: str) -> Batch:
    """By what merges the tables of a batch in a worker of Spark."""
    decode = tasks.DecodePlan(
        StretchPlan(SourceIdentity("postgresql", CONNECTOR), MODES, schemas=work.schemas)
    )

    def apply(batch: int) -> None:
        rows = pa.Table.from_batches(tasks.decode(raw(work, batch), decode))
        plan = LakePlan(
            "bench",
            batch,
            STREAM,
            lambda table: TablePlan(
                work.path(table.partition(".")[2]), engine=engine, key=("id",), written=batch > 0
            ),
            options=work.store.options,
        )
        (packed,) = rows.drop_columns("shard").combine_chunks().to_batches()
        for result in tasks.merge([packed], plan):
            for row in result.to_pylist():
                if row["kind"] == tasks.OUTCOME:
                    outcome = msgspec.msgpack.decode(row["blob"], type=TableOutcome)
                    if outcome.code:
                        raise RuntimeError(f"{outcome.table}: {outcome.reason}")

    return apply


def raw(work: Work, batch: int) -> Iterator[pa.RecordBatch]:
    """The events of a batch as Spark's Kafka source hands them over."""
    for table in work.orders:
        records = work.records(table, batch)
        count, begin = len(records), batch * work.per_table
        yield pa.RecordBatch.from_arrays(
            [
                pa.repeat(topic_of(table), count),
                pa.array([0] * count, pa.int32()),
                pa.array(range(begin, begin + count), pa.int64()),
                pa.array([key for key, _ in records], pa.binary()),
                pa.array([value for _, value in records], pa.binary()),
                pa.nulls(count, HEADERS),
            ],
            names=["topic", "partition", "offset", "key", "value", "headers"],
        )


def alone(work: Work, at_once: int) -> Batch:
    """By delta-rs's MERGE, so many tables at a time."""
    opened: dict[str, DeltaTable] = {}
    pool = ThreadPoolExecutor(at_once)

    def apply(batch: int) -> None:
        def merge(table: str) -> None:
            if table not in opened:
                opened[table] = DeltaTable.create(
                    work.path(table), ARROW, storage_options=work.store.options
                )
            rows = delta_rs.newest(work.records(table, batch), work.schemas[f"{SCHEMA}.{table}"])
            delta_rs.merge(opened[table], rows)

        list(pool.map(merge, work.orders))

    return apply


def measured(
    who: str, work: Work, apply: Batch, batches: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Applies all batches; the figures, and what differs by table."""
    seconds: list[float] = []
    asked: list[float] = []
    for batch in range(batches + NOT_COUNTED):
        work.store.requests()
        begun = time.perf_counter()
        apply(batch)
        seconds.append(time.perf_counter() - begun)
        asked.append(len(work.store.requests()) / len(work.orders))
    wrong = {}
    for table, orders in work.orders.items():
        left = DeltaTable(work.path(table), storage_options=work.store.options)
        found = pa.table(left.scan(columns=ARROW.names))
        if difference := differences(found, orders.rows()):
            wrong[table] = difference
    row = {
        "tables": len(work.orders),
        "who": who,
        "correct": not wrong,
        "seconds_per_batch": round(statistics.mean(seconds[NOT_COUNTED:]), 2),
        "requests": round(statistics.mean(asked[NOT_COUNTED:]), 1),
    }
    return row, wrong


def schemas_of(tables: list[str]) -> dict[str, TableSchema]:
    """As a schema file gives them."""
    columns = {f"{SCHEMA}.{table}": {"key": ["id"], "columns": COLUMNS} for table in tables}
    with tempfile.TemporaryDirectory(prefix="lakemark-far-") as folder:
        file = Path(folder) / "tables.yaml"  # JSON is YAML
        file.write_text(json.dumps(columns), encoding="utf-8")
        return schemas_from_file(file, MODES)


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="./dev bench far",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tables", type=int, default=12)
    parser.add_argument("--delay-ms", type=float, default=30.0, help="of every answer")
    parser.add_argument("--batches", type=int, default=6, help="that count")
    parser.add_argument("--per-table", type=int, default=10, help="events of a table in a batch")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if a result is wrong."""
    options = parse(argv)
    before = report.machine()
    names = [f"orders_{number}" for number in range(options.tables)]
    count = options.per_table * (options.batches + NOT_COUNTED)
    orders = {
        name: Orders(name, events=count, keys=max(1, count // 2), seed=number)
        for number, name in enumerate(names)
    }
    contestants: dict[str, Callable[[Work], Batch]] = {
        f"lakemark-{engine}": lambda work, engine=engine: lakemark(work, engine)
        for engine in ENGINES
    }
    contestants["delta-rs"] = lambda work: alone(work, 1)
    contestants["delta-rs, eight at a time"] = lambda work: alone(work, 8)
    rows, wrong = [], []
    with serving(delay_s=options.delay_ms / 1000) as store:
        for who, begin in contestants.items():
            work = Work(orders, options.per_table, store, who, schemas_of(names))
            row, differ = measured(who, work, begin(work), options.batches)
            rows.append(row)
            wrong.append((who, differ))
            print(f"bench: {json.dumps(row)}", file=sys.stderr, flush=True)
    settings = {key: value for key, value in vars(options).items() if key != "json"}
    return report.show(
        "far",
        rows,
        settings=settings,
        before=before,
        wrong=wrong,
        measures=MEASURES,
        json_file=options.json,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
