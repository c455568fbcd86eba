"""What a Spark cluster spends on an event, and on a row of a snapshot: workers, and the driver.

    ./dev bench cluster [--events N] [--batch N] [--rows N] [--chunk-rows N] [--engine NAME]
                        [--json FILE]

A standalone cluster of two workers with a core each, on this machine. Events of one table are
applied twice, a quarter of them and all, each by a run of its own; then two tables are snapshotted,
one with a quarter of the rows. What is shown is the difference, by the difference of events or
rows: so the start, and what a batch costs at rest, fall out.

Processor time is that of the process trees of workers and driver. What the driver receives are the
results of tasks, what executors send each other is shuffled: as Spark's event log has them.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.events import SCHEMA, Orders
from bench.orders import equal, fill
from bench.ours import ENGINES, run_lakemark
from bench.ours import write_config as write_bare_config
from bench.report import cell, keep, machine
from bench.runs import Run, Watch, check, limit_for, local_kafka, produce, topic_of
from bench.snapshot import snapshot
from stack.lakemark_process import LakemarkProcess, write_config
from stack.local import Database, LocalStack
from stack.spark import SparkCluster

PARTITIONS: Final = 4
KEYS: Final = 200_000
WARM: Final = tuple(f"orders_warm_{number}" for number in range(5))  # Java compiles for long
TASK_END: Final = '"SparkListenerTaskEnd"'


@dataclass(frozen=True, slots=True)
class Spent:
    """What something took; bytes of the log and microseconds of processor time."""

    count: int
    driver_bytes: int
    shuffled_bytes: int
    driver_us: float
    workers_us: float

    def by_one(self, less: "Spent") -> dict[str, float]:
        """The difference to what took less, for each that is more."""
        more = self.count - less.count
        names = self.__slots__[1:]
        pairs = zip(names, astuple(self)[1:], astuple(less)[1:], strict=True)
        return {name: round((one - two) / more, 2) for name, one, two in pairs}


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if a table is wrong."""
    options = parse(argv)
    before = machine()
    rows = [events(options), snapshots(options)]
    console = Console() if Console().is_terminal else Console(width=120)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in rows[0]:
        table.add_column(heading, justify="left" if heading == "who" else "right")
    for row in rows:
        table.add_row(*map(cell, row.values()))
    console.print(table)
    if options.json:
        settings = {
            name: getattr(options, name)
            for name in ("events", "batch", "rows", "chunk_rows", "engine")
        }
        keep(options.json, "cluster", {"workers": 2, **settings}, before, rows)
    return 0 if all(row["correct"] for row in rows) else 1


def events(options: argparse.Namespace) -> dict[str, Any]:
    """Two runs over events, of which the second has four times as many."""
    found, correct = [], True
    for count in (options.events // 4, options.events):
        say(f"{count:,} events")
        orders = Orders("orders", events=count, keys=KEYS)
        with (
            local_kafka() as stack,
            cluster(home := stack.directory / f"work-{count}") as (spark, workers, log),
        ):
            topic = topic_of(orders.table)
            stack.kafka.create_topic(topic, partitions=PARTITIONS)
            size = produce(stack.kafka, {topic: orders})
            config = write_bare_config(
                home, stack.kafka, [orders.table],
                max_events=limit_for(options.batch, PARTITIONS), memory="2g",
                engine=options.engine, spark=spark,
            )  # fmt: skip
            run: Run = run_lakemark(config, home)
            check(run, {"orders": orders}, {"orders": str(home / "lake" / SCHEMA / "orders")})
            correct &= run.correct
            driver_us = run.used.cpu_seconds * 1e6
            found.append(Spent(count, *received(log), driver_us, processor(workers)))
        shutil.rmtree(home, ignore_errors=True)
        say(f"{size / count:,.0f} bytes an event")
    return {"who": "an event", "correct": correct, "count": count, **found[1].by_one(found[0])}


def snapshots(options: argparse.Namespace) -> dict[str, Any]:
    """Two snapshots by a signal, of which the second has four times as many rows."""
    found, correct, sizes = [], True, (options.rows // 4, options.rows)
    with (
        LocalStack(name="bench-cluster", quick=False) as stack,
        stack.fresh_database() as database,
        cluster(stack.directory / "cluster") as (spark, workers, log),
    ):
        for table in WARM:
            fill(database, table, sizes[0])
        for count in sizes:
            fill(database, f"orders_{count}", count)
        process = pipeline(database, spark, options)
        assert process.identity is not None
        driver = Watch(process.identity.pid)
        driver.start()
        try:
            for table in WARM:
                snapshot(process, table, 2)
            for count in sizes:
                say(f"a snapshot of {count:,} rows")
                driver_us, workers_us, since = processor([driver]), processor(workers), time.time()
                ended, _ = snapshot(process, f"orders_{count}", 2)
                spent = processor([driver]) - driver_us, processor(workers) - workers_us
                found.append(Spent(count, *received(log, since), *spent))
                correct &= ended.type == "COMPLETED" and equal(database, process, f"orders_{count}")
        finally:
            driver.stop()
            process.kill()
    one = found[1].by_one(found[0])
    return {"who": "a row of a snapshot", "correct": correct, "count": sizes[1], **one}


def pipeline(
    database: Database, spark: dict[str, str], options: argparse.Namespace
) -> LakemarkProcess:
    """A running pipeline on the cluster."""
    database.start_connector({"snapshot.mode": "no_data"})
    sections = {
        "spark": spark,
        "snapshot": {"parallelism": 2, "chunk_rows": options.chunk_rows},
        "stream": {"trigger": "1s"},
        "lake": {"path": "./lake", "engine": options.engine},
    }
    config = write_config(database, database.stack.directory / "lakemark", sections)
    process = LakemarkProcess(config)
    process.start()
    return process


@contextmanager
def cluster(home: Path) -> Iterator[tuple[dict[str, str], list[Watch], Path]]:
    """A cluster: settings for its driver, a watch for each worker, and the folder of the log."""
    log = home / "events"
    log.mkdir(parents=True)
    with SparkCluster(home / "spark") as made:
        watches = [Watch(w.identity.pid) for w in made.workers if w.identity is not None]
        for watch in watches:
            watch.start()
        settings = {
            "spark.master": made.url,
            "spark.pyspark.python": sys.executable,
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "768m",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": log.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.buffer.kb": "1k",
        }
        try:
            yield settings, watches, log
        finally:
            for watch in watches:
                watch.stop()


def received(log: Path, since: float = 0.0) -> tuple[int, int]:
    """Bytes of results that the driver received, and bytes that were shuffled, by tasks since."""
    results = shuffled = 0
    for file in log.rglob("events_*"):
        for line in file.read_text(encoding="utf-8").splitlines():
            if TASK_END not in line:
                continue
            task = json.loads(line)
            metrics = task.get("Task Metrics")
            if metrics and task["Task Info"]["Finish Time"] >= since * 1000:
                results += metrics["Result Size"]
                shuffled += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
    return results, shuffled


def processor(watches: Sequence[Watch]) -> float:
    """Microseconds of processor time that the trees of these have used."""
    return sum(sum(watch.cpu.values()) for watch in watches) * 1e6


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="./dev bench cluster", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100_000, help="events per micro-batch")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--chunk-rows", type=int, default=100_000)
    parser.add_argument("--engine", choices=ENGINES, default="deletion-vectors")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def say(text: str) -> None:
    """One line of progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
