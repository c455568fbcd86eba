"""One batch into one table: task merge against deletion vectors, by the size of the table.

    ./dev bench merge [--rows 100000,1000000,10000000] [--batch 10000,100000] [--batches 5]

No server is started: both engines get the same write sets. Keys are integers; the table's rows lie
in random order, so that every file has every range of keys. *random*: the batch's keys are drawn
from the whole table; *hot*: from the same 1 % of it (or as many as the batch has), spread over all of it. 90 % of a batch are
updates, 5 % deletes, 5 % new rows. The first batch of each run is not counted: it builds the
indexes that the engine keeps, and that is shown as `first`. What the engine does between batches
(`maintenance`) is part of its time.

`read`: seconds in which delta-rs reads the whole table afterwards; `MB/batch`: bytes written, log
and upkeep included. Both tables must be equal in the end: else the exit code is 1.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.report import machine
from lakemark.connectors.postgres import positions as lsns
from lakemark.sink.delta import deletion_vectors, delta_rs, maintenance
from lakemark.sink.delta.engines import DELETION_VECTORS, TASK_MERGE
from lakemark.sink.delta.schema_evolution import TARGET_FILE_BYTES
from lakemark.sink.names import CDC
from lakemark.sink.row_images import cdc_type

ENGINES: Final = (TASK_MERGE, DELETION_VECTORS)
KEYS: Final = ("random", "hot")
SEED: Final = 7
HOT: Final = 100  # one key in so many
SLICE: Final = 1_000_000  # rows that are made at once
NOTE: Final = 40  # characters


@dataclass(slots=True)
class Contestant:
    """One engine with its table.

    Attributes:
        seconds: of each batch, its upkeep included.
        bytes: written by each batch.
    """

    engine: str
    path: str
    seconds: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    read: float = 0.0
    files: int = 0

    def apply(self, rows: pa.Table, version: int) -> None:
        """One batch, timed."""
        before = sizes(self.path)
        begun = time.perf_counter()
        more: dict[str, Any] = {"key": ["id"], "deletes": "hard", "app_id": "bench"}
        if self.engine == TASK_MERGE:
            merged = delta_rs.merge(self.path, rows, version=version, **more)
            due = maintenance.wants_upkeep(self.path, merged)
        else:
            deletion_vectors.merge(self.path, rows, version=version, **more)
            due = True
        if due:
            maintenance.maintain(self.path, key=["id"], engine=self.engine)
        self.seconds.append(time.perf_counter() - begun)
        after = sizes(self.path)
        self.bytes.append(sum(n for name, n in after.items() if before.get(name) != n))

    def content(self) -> tuple[int, int, int]:
        """Rows, and two sums that differ where a row does; notes how long reading took."""
        table = DeltaTable(self.path)
        begun = time.perf_counter()
        rows = ids = amounts = 0
        for batch in pa.RecordBatchReader.from_stream(table.scan()):
            rows += batch.num_rows
            numbers = batch.column("id").to_numpy()
            ids += int(numbers.sum())
            amounts += int((numbers * batch.column("amount").to_numpy() % 1_000_003).sum())
        self.read = time.perf_counter() - begun
        self.files = len(table.file_uris())
        return rows, ids, amounts


def sizes(path: str) -> dict[str, int]:
    """Bytes of every file of the table, by name."""
    return {str(p): p.stat().st_size for p in Path(path).rglob("*") if p.is_file()}


def rows_of(ids: npt.NDArray[np.int64], batch: int) -> dict[str, Any]:
    """Columns of rows as they are after this batch."""
    count = len(ids)
    start = np.int64(batch + 1) << np.int64(32)
    packed = [lsns.pack(0, int(start) + at, 0) for at in range(count)]
    stamp = pa.scalar(datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("us", "UTC"))
    cdc = [
        pa.array(packed, pa.binary()),
        pa.repeat(pa.scalar("u"), count),
        pa.repeat(stamp, count),
        pa.nulls(count, pa.list_(pa.string())),
        pa.nulls(count, pa.binary()),
    ]
    kind = cdc_type(deletes="hard")
    notes = pc.utf8_lpad(pa.array(ids * 7919 + batch).cast(pa.string()), NOTE, "n")
    return {
        "id": pa.array(ids),
        "amount": pa.array((ids * 37 + batch) % 1_000_003),
        "note": notes,
        CDC: pa.StructArray.from_arrays(cdc, fields=list(kind)),
    }


def create(path: str, rows: int) -> None:
    """A table of so many rows, in random order, in files as compaction would leave them."""
    ids = np.random.default_rng(SEED).permutation(rows).astype(np.int64) * 2
    schema = pa.schema({n: a.type for n, a in rows_of(ids[:1], 0).items()})
    delta_rs.ensure(path, schema, key=["id"])

    def batches() -> Iterator[pa.RecordBatch]:
        for at in range(0, rows, SLICE):
            yield from pa.table(rows_of(ids[at : at + SLICE], 0)).to_batches(50_000)

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    write_deltalake(path, reader, mode="append", target_file_size=TARGET_FILE_BYTES)


def write_sets(rows: int, size: int, count: int, keys: str) -> Iterator[pa.Table]:
    """The batches: even keys are the table's, odd ones new."""
    dice = np.random.default_rng(SEED + 1)
    step = min(HOT, rows // size) if keys == "hot" else 1
    for batch in range(1, count + 1):
        known = dice.choice(rows // step, size, replace=False).astype(np.int64) * 2 * step
        fresh = dice.random(size) < 0.05
        ids = np.where(fresh, known + 1, known)
        action = np.where(~fresh & (dice.random(size) < 0.05), "delete", "upsert")
        control = {
            "__action": pa.array(action),
            "__patch": pa.nulls(size, pa.list_(pa.string())),
            "__force": pa.repeat(pa.scalar(False), size),  # noqa: FBT003
            "__barrier": pa.nulls(size, pa.binary()),
        }
        yield pa.table({**rows_of(ids, batch), **control})


def compare(work: Path, rows: int, size: int, options: argparse.Namespace, keys: str) -> list[Any]:
    """Both engines over the same batches; their lines of the report."""
    contestants = []
    for engine in options.engines:
        path = work / f"{engine}-{rows}-{size}-{keys}"
        shutil.copytree(work / f"table-{rows}", path)
        contestants.append(Contestant(engine, str(path)))
    for version, write_set in enumerate(write_sets(rows, size, options.batches + 1, keys)):
        for one in contestants:
            one.apply(write_set, version)
    contents = [one.content() for one in contestants]
    equal = len(set(contents)) == 1
    for one in contestants:
        shutil.rmtree(one.path)
    return [
        {
            "engine": one.engine,
            "rows": rows,
            "batch": size,
            "keys": keys,
            "first": round(one.seconds[0], 2),
            "seconds": round(mean(one.seconds[1:]), 3),
            "worst": round(max(one.seconds[1:]), 2),
            "mb": round(mean(one.bytes[1:]) / 1e6, 1),
            "read": round(one.read, 2),
            "files": one.files,
            "equal": equal,
        }
        for one in contestants
    ]


def show(lines: list[Any]) -> None:
    """Prints the table."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    names = ("rows", "batch", "keys", "engine", "first", "s/batch", "worst", "MB/batch", "read",
             "files", "equal")  # fmt: skip
    for name in names:
        table.add_column(name, justify="left" if name in {"keys", "engine"} else "right")
    for line in lines:
        table.add_row(
            f"{line['rows']:,}", f"{line['batch']:,}", line["keys"], line["engine"],
            str(line["first"]), str(line["seconds"]), str(line["worst"]), str(line["mb"]),
            str(line["read"]), str(line["files"]), "yes" if line["equal"] else "NO",
        )  # fmt: skip
    Console(width=110).print(table)


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if the engines leave different tables."""
    parser = argparse.ArgumentParser(prog="./dev bench merge", description=__doc__)
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--rows", type=numbers, default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--batch", type=numbers, default=[10_000, 100_000])
    parser.add_argument("--batches", type=int, default=5, help="that are counted")
    parser.add_argument("--keys", choices=KEYS, help="only these")
    parser.add_argument("--only", choices=ENGINES)
    options = parser.parse_args(argv)
    options.engines = [options.only] if options.only else list(ENGINES)
    lines: list[Any] = []
    before = machine()
    print(f"merge: {before['cpu']}, {before['cores']} cores, load {before['load_before'][0]}")
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakemark-merge-")))
        for rows in options.rows:
            create(str(work / f"table-{rows}"), rows)
            for size in (size for size in options.batch if size <= rows):
                for keys in [options.keys] if options.keys else KEYS:
                    lines += compare(work, rows, size, options, keys)
                    print(lines[-len(options.engines) :], file=sys.stderr, flush=True)
            shutil.rmtree(work / f"table-{rows}")
    show(lines)
    return 0 if all(line["equal"] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
