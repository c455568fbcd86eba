"""How late is a row, how soon does a pipeline start, and what does it cost while nothing happens?

    ./dev bench latency [--tables N] [--rate N] [--seconds N] [--trigger TIME] [--idle-tables N]
                        [--engine NAME] [--json FILE]

One database, one connector; the same pipeline as it is and with output topics:

- *start*: from the command to the first commit, of a row that waits; the second start on this
  machine at least, as every start but the first is;
- *table*: from a row's commit in the database to its being seen in its Delta table;
- *topic*: from a row's commit to its being read, committed, from the output topic;
- *idle*: processor time of all of lakemark's processes while no table changes.

Each transaction changes one row in every table, by turns a new one and an old one. Only new rows
are timed: the moment is taken when their commit has returned.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.report import keep, machine
from bench.runs import tree
from lakemark.settings.config import load
from lakemark.sink.names import folder_of
from stack.lakemark_process import LakemarkProcess, write_config
from stack.local import Database, LocalStack
from stack.processes import StackError, wait_for

WRITERS: Final = 2
WARM_S: Final = 45.0
SEEN_S: Final = 60.0
IDLE_S: Final = 30.0
LOOK_S: Final = 0.02

Times = dict[int, float]


@dataclass(slots=True)
class Row:
    """One figure: what it is of, and its values in seconds, or one share."""

    who: str
    what: str
    values: list[float] = field(default_factory=list)
    lost: int = 0

    def data(self) -> dict[str, Any]:
        """JSON-ready."""
        found = np.array(self.values or [float("nan")])
        return {
            "who": self.who,
            "what": self.what,
            "count": len(self.values),
            "p50": round(float(np.percentile(found, 50)), 3),
            "p99": round(float(np.percentile(found, 99)), 3),
            "lost": self.lost,
        }


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if a row never came."""
    options = parse(argv)
    before, rows = machine(), list[Row]()
    names = [f"t{number}" for number in range(options.tables)]
    idle = [f"quiet{number}" for number in range(options.idle_tables)]
    with LocalStack(name="bench-latency", quick=False) as stack:
        for who in ("tables", "tables and topics"):
            with stack.fresh_database() as database:
                create(database, [*names, *idle])
                database.start_connector({"snapshot.mode": "no_data"})
                rows += measured(who, database, names, idle, options)
    return show(rows, options, before)


def create(database: Database, names: list[str]) -> None:
    """Tables of numbered rows."""
    with database.connect() as connection:
        for name in names:
            connection.execute(
                f"CREATE TABLE {name} (id bigint PRIMARY KEY, n int, note text)".encode()
            )


def measured(
    who: str, database: Database, names: list[str], idle: list[str], options: argparse.Namespace
) -> Iterator[Row]:
    """One pipeline: its start, its latency, and what it costs at rest."""
    topics = who.endswith("topics")
    config = write_config(
        database,
        database.stack.directory / f"lakemark-{database.name}",
        {
            "stream": {"trigger": options.trigger, "shards": 2},
            "lake": {"path": "./lake", "engine": options.engine},
            **({"output": {"topic_prefix": f"{database.name}.clean"}} if topics else {}),
        },
    )
    process = LakemarkProcess(config)
    process.start()
    process.stop()  # jars and the archive of classes are there now
    for name in idle:  # so that each is a table with a state of its own
        database.execute(f"INSERT INTO {name} VALUES (0, 0, '')")
    begun = time.monotonic()
    process.start()
    try:
        path = folder_of(load(config).lake, f"public.{(idle or names)[0]}")
        if not idle:
            database.execute(f"INSERT INTO {names[0]} VALUES (0, 0, '')")
        wait_for((Path(path) / "_delta_log").exists, SEEN_S, "the first commit")
        yield Row(who, "start to first commit", [time.monotonic() - begun])
        committed: dict[str, Times] = {name: {} for name in names}
        tables: dict[str, Times] = {name: {} for name in names}
        read: dict[str, Times] = {name: {} for name in names}
        with watching(process, tables), reading(database, read if topics else {}):
            say(f"{who}: {options.rate} events/s over {len(names)} tables")
            with writing(database, committed, options.rate / len(names)):
                time.sleep(WARM_S + options.seconds)
            yield late(who, "table", committed, tables)
            if topics:
                yield late(who, "topic", committed, read)
        say(f"{who}: at rest")
        yield Row(who, f"idle, {len(names) + len(idle)} tables: cores", [resting(process)])
    finally:
        process.kill()


@contextmanager
def writing(database: Database, committed: Mapping[str, Times], rate: float) -> Iterator[None]:
    """About so many transactions a second, each with a row of every table."""
    done = threading.Event()

    def write(first: int) -> None:
        with database.connect() as connection:
            key, due = first, time.monotonic()
            while not done.is_set():
                new = key // WRITERS % 2 == 0
                with connection.transaction():
                    for name in committed:
                        statement = (
                            f"INSERT INTO {name} VALUES (%s, 0, 'a note of some length')"
                            if new
                            else f"UPDATE {name} SET n = n + 1 WHERE id = %s"
                        )
                        connection.execute(
                            statement.encode(), [key if new else max(first, key - 5 * WRITERS)]
                        )
                if new:
                    now = time.monotonic()
                    for times in committed.values():
                        times[key] = now
                key += WRITERS
                due += WRITERS / rate
                time.sleep(max(0.0, due - time.monotonic()))

    with _threads(done, [lambda n=n: write(n + WRITERS) for n in range(WRITERS)]):
        yield


@contextmanager
def watching(process: LakemarkProcess, tables: Mapping[str, Times]) -> Iterator[None]:
    """When each row is first seen in its Delta table."""
    done = threading.Event()
    lake = load(process.config).lake

    def watch() -> None:
        versions = dict.fromkeys(tables, -1)
        newest = dict.fromkeys(tables, WRITERS - 1)
        paths = {name: folder_of(lake, f"public.{name}") for name in tables}
        while not done.wait(LOOK_S):
            for name, path in paths.items():
                if not (Path(path) / "_delta_log" / f"{versions[name] + 1:020d}.json").exists():
                    continue  # that costs nothing; opening the table does
                with suppress(DeltaError, OSError):
                    table = DeltaTable(path)
                    now, versions[name] = time.monotonic(), table.version()
                    # writers are not in step: rows a little below the newest may be new
                    low = newest[name] - 100 * WRITERS
                    found = pa.table(table.scan(columns=["id"], predicate=f"id > {low}"))
                    for key in found.column("id").to_pylist():
                        tables[name].setdefault(key, now)
                        newest[name] = max(newest[name], key)

    with _threads(done, [watch]):
        yield


@contextmanager
def reading(database: Database, read: Mapping[str, Times]) -> Iterator[None]:
    """When each row is first read from its output topic."""
    if not read:
        yield
        return
    done, by_topic = threading.Event(), {f"{database.name}.clean.public.{n}": n for n in read}

    def consume() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": database.stack.kafka.bootstrap,
                "group.id": "latency",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        assigned = False
        while not done.is_set():
            if not assigned:
                there = consumer.list_topics(timeout=10).topics
                if by_topic.keys() <= there.keys():
                    consumer.assign(
                        [TopicPartition(t, p, 0) for t in by_topic for p in there[t].partitions]
                    )
                    assigned = True
                continue
            for record in consumer.consume(1000, timeout=0.1):
                if not record.error():
                    key = json.loads(record.key())["id"]
                    read[by_topic[record.topic()]].setdefault(key, time.monotonic())
        consumer.close()

    with _threads(done, [consume]):
        yield


@contextmanager
def _threads(done: threading.Event, works: list[Any]) -> Iterator[None]:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def late(who: str, what: str, committed: Mapping[str, Times], seen: Mapping[str, Times]) -> Row:
    """How late the rows were that were written after the warm-up; all of them must come."""

    def missing() -> int:
        return sum(len(times.keys() - seen[name].keys()) for name, times in committed.items())

    with suppress(StackError):
        wait_for(lambda: missing() == 0, SEEN_S, "the last rows")
    begun = min(min(times.values()) for times in committed.values()) + WARM_S
    values = [
        seen[name][key] - moment
        for name, times in committed.items()
        for key, moment in times.items()
        if moment >= begun and key in seen[name]
    ]
    return Row(who, what, values, missing())


def resting(process: LakemarkProcess) -> float:
    """Cores that lakemark uses, with Spark's Java and the Python workers."""
    time.sleep(IDLE_S / 3)
    before, begun = tree(process.identity.pid), time.monotonic()
    time.sleep(IDLE_S)
    after = tree(process.identity.pid)
    used = sum(cpu - before.get(pid, (0, 0.0))[1] for pid, (_, cpu) in after.items())
    return used / (time.monotonic() - begun)


def show(rows: list[Row], options: argparse.Namespace, before: dict[str, Any]) -> int:
    """Prints the table and writes the JSON file."""
    console = Console() if Console().is_terminal else Console(width=100)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "", "rows", "p50", "p99", "never seen"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        one = row.data()
        many = one["count"] > 1
        table.add_row(
            one["who"],
            one["what"],
            f"{one['count']:,}" if many else "-",
            f"{one['p50']:.2f}",
            f"{one['p99']:.2f}" if many else "-",
            str(one["lost"]) if many else "-",
        )
    console.print(table)
    if options.json:
        settings = {n: v for n, v in vars(options).items() if n != "json"}
        keep(options.json, "latency", settings, before, [row.data() for row in rows])
    return 1 if any(row.lost for row in rows) else 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="./dev bench latency", description=__doc__)
    parser.add_argument("--tables", type=int, default=10, help="tables that change")
    parser.add_argument("--idle-tables", type=int, default=40, help="tables that do not")
    parser.add_argument("--rate", type=int, default=1000, help="events per second, over all tables")
    parser.add_argument("--seconds", type=float, default=60, help="how long is measured")
    parser.add_argument("--trigger", default="1s")
    parser.add_argument(
        "--engine", choices=("task-merge", "deletion-vectors"), default="task-merge"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def say(text: str) -> None:
    """One line of progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
