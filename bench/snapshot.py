"""A table of a million rows: how fast does a snapshot bring it where it belongs?

    ./dev bench snapshot [--rows N] [--rate N] [--parallelism 1,2,4] [--chunk-rows N]
                         [--only WHO] [--json FILE]

One database, one contestant after the other:

- *copy*: COPY of the table to nowhere: what the database itself can give;
- *debezium N*: the connector's own incremental snapshot with chunks of N rows, from the signal to
  the last row in Kafka (no table is written);
- *lakemark N*: one execute-snapshot signal with parallelism N, from the signal to COMPLETED: every
  row is committed in Delta; each time into a table of its own that does not exist yet;
- *lakemark N busy*: the same while a workload changes the table.

Log latency is the age of a row that beats, looked at in the lake after each batch: without a
snapshot, and during the snapshots.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psycopg
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.report import machine, versions
from lakemark.config import load
from lakemark.records import Tail, publish
from lakemark.sink.names import folder_of
from lakemark.snapshot import notifications
from stack.lakemark_process import LakemarkProcess, write_config
from stack.local import Database, LocalStack
from stack.processes import StackError, wait_for

LONGEST_S: Final = 1200.0
BEAT_S: Final = 0.1
QUIET_S: Final = 20.0  # log latency without a snapshot is looked at for so long
ORDERS: Final = """
CREATE TABLE {} (
    id bigint PRIMARY KEY, customer int NOT NULL, status text NOT NULL, note text NOT NULL,
    total numeric(12,2) NOT NULL, at timestamptz NOT NULL
)
"""
FILL: Final = """
INSERT INTO {} SELECT g, g % 5000, 'status-' || g % 7, md5(g::text), g * 0.37,
    timestamptz '2026-01-01' + g * interval '1 second' FROM generate_series(1, %s) AS g
"""
PULSE: Final = (
    "CREATE TABLE pulse (id int PRIMARY KEY, at timestamptz NOT NULL)",
    "INSERT INTO pulse VALUES (1, clock_timestamp())",
)


@dataclass(slots=True)
class Row:
    """One contestant: rows, seconds, and the lags of the log meanwhile."""

    who: str
    rows: int
    seconds: float
    lags: list[float] = field(default_factory=list)
    correct: bool = True

    def data(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "who": self.who,
            "rows": self.rows,
            "seconds": round(self.seconds, 1),
            "rows_per_s": round(self.rows / self.seconds),
            "lag_s": round(statistics.median(self.lags), 2) if self.lags else None,
            "correct": self.correct,
        }


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if a table is not as the database's."""
    options = parse(argv)
    before = machine()
    rows: list[Row] = []
    with LocalStack(name="bench-snapshot", quick=False) as stack:
        database = stack.fresh_database(*PULSE)
        say(f"filling {options.rows:,} rows")
        fill(database, "orders", options.rows)
        if options.only in (None, "copy"):
            rows.append(copied(database, options.rows))
        if options.only in (None, "debezium"):
            rows += [debezium(database, options.rows, chunk) for chunk in (1024, 10240)]
        if options.only in (None, "lakemark"):
            rows += lakemark(database, options)
    return show(rows, options, before)


def fill(database: Database, table: str, rows: int) -> None:
    """A table of orders, analysed."""
    with database.connect() as connection:
        connection.execute(ORDERS.format(table).encode())
        connection.execute(FILL.format(table).encode(), [rows])
        connection.execute(f"ANALYZE {table}".encode())


def copied(database: Database, rows: int) -> Row:
    """COPY alone."""
    begun = time.monotonic()
    query = b"COPY orders TO STDOUT (FORMAT binary)"
    with database.connect() as connection, connection.cursor() as cursor, cursor.copy(query) as out:
        for _ in out:
            pass
    return Row("copy", rows, time.monotonic() - begun)


def debezium(database: Database, rows: int, chunk: int) -> Row:
    """The connector's own incremental snapshot, into Kafka."""
    say(f"debezium, chunks of {chunk}")
    database.start_connector(
        {"snapshot.mode": "no_data", "incremental.snapshot.chunk.size": str(chunk)}
    )
    kafka, topic = database.stack.kafka, database.topic("orders")

    def count() -> int:
        return sum(kafka.end_offsets(topic).values()) if topic in kafka.topics() else 0

    already = count()
    data = json.dumps({"data-collections": ["public.orders"], "type": "incremental"})
    begun = time.monotonic()
    database.execute(
        "INSERT INTO debezium_signal VALUES (%s, 'execute-snapshot', %s)", [f"bench-{chunk}", data]
    )
    wait_for(lambda: count() >= already + rows, LONGEST_S, f"{rows} rows in {topic}")
    seconds = time.monotonic() - begun
    database.stack.connect.delete_connector(database.name)
    return Row(f"debezium {chunk}", rows, seconds)


def lakemark(database: Database, options: argparse.Namespace) -> Iterator[Row]:
    """One pipeline, one signal after the other, each over a table of its own."""
    database.start_connector({"snapshot.mode": "no_data"})
    most = max(options.parallelism)
    config = write_config(
        database,
        database.stack.directory / "lakemark",
        {
            "snapshot": {"parallelism": most, "chunk_rows": options.chunk_rows},
            "stream": {"trigger": "500ms", "shards": 4},
        },
    )
    process = LakemarkProcess(config)
    process.start()
    try:
        with beating(database, process) as lags:
            warm_up(database, process)
            time.sleep(QUIET_S)
            quiet = lags[-20:]
            yield Row("log, no snapshot", 0, 1, quiet)
            for busy in (False, True):
                for parallelism in options.parallelism:
                    yield taken(database, process, options, parallelism, lags, busy=busy)
    finally:
        process.kill()


def taken(
    database: Database,
    process: LakemarkProcess,
    options: argparse.Namespace,
    parallelism: int,
    lags: list[float],
    *,
    busy: bool,
) -> Row:
    """One snapshot."""
    table = f"orders_{parallelism}_{'busy' if busy else 'idle'}"
    fill(database, table, options.rows)
    wait_for(lambda: bool(process.events("batch.done")), 60, "a batch")
    say(f"lakemark, parallelism {parallelism}{', busy' if busy else ''}")
    seen, begun = len(lags), time.monotonic()
    with busy_with(database, table, options.rows, options.rate if busy else 0) as load:
        found = snapshot(process, table, parallelism)
        seconds = time.monotonic() - begun
    if load:
        say(f"  {load[0] / seconds:,.0f} transactions/s meanwhile")
    rows = int(found.additional_data.get("total_rows_scanned", 0))
    correct = found.type == "COMPLETED" and equal(database, process, table)
    who = f"lakemark {parallelism}{' busy' if busy else ''}"
    return Row(who, rows, seconds, lags[seen:], correct)


def snapshot(process: LakemarkProcess, table: str, parallelism: int) -> notifications.Notification:
    """Sends the signal and waits for the end of its run."""
    config = load(process.config)
    tail = Tail(config, config.topics.notifications)
    data = {"data-collections": [f"public.{table}"], "parallelism": parallelism}
    signal = {"id": f"bench-{table}", "type": "execute-snapshot", "data": data}
    publish(config, config.topics.signals, [(config.name.encode(), json.dumps(signal).encode())])
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        found = notifications.read(tail.value(1.0))
        ours = found is not None and found.id == signal["id"]
        if found is not None and ours and found.type in {"COMPLETED", "ABORTED", "REJECTED"}:
            say(f"  {found.type}: {found.additional_data}")
            return found
        if not process.is_running:
            break
    raise StackError(f"no end of the snapshot of {table}\n{process.log_tail(30)}")


def warm_up(database: Database, process: LakemarkProcess) -> None:
    """A small snapshot that is not measured: classes, workers and codes are then where they are."""
    fill(database, "orders_warm", 20_000)
    snapshot(process, "orders_warm", 2)


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


@contextmanager
def beating(database: Database, process: LakemarkProcess) -> Iterator[list[float]]:
    """A row that says when it was written; its age in the lake right after a batch is the lag."""
    lags: list[float] = []
    done = threading.Event()
    path = folder_of(load(process.config).lake, "public.pulse")

    def beat() -> None:
        with database.connect() as connection:
            while not done.wait(BEAT_S):
                connection.execute("UPDATE pulse SET at = clock_timestamp() WHERE id = 1")

    def look() -> None:
        version = -1
        while not done.wait(0.02):
            with suppress(DeltaError, FileNotFoundError, OSError):
                table = DeltaTable(path)
                if table.version() == version:
                    continue
                version = table.version()
                held = table.to_pyarrow_table(columns=["at"]).column("at").to_pylist()
                lags.extend((datetime.now(UTC) - at).total_seconds() for at in held)

    threads = [threading.Thread(target=one, daemon=True) for one in (beat, look)]
    for thread in threads:
        thread.start()
    try:
        yield lags
    finally:
        done.set()
        for thread in threads:
            thread.join()


def equal(database: Database, process: LakemarkProcess, table: str) -> bool:
    """Whether the Delta table has the database's rows, by count and sums, once it has caught up."""
    ((count, ids, customers),) = database.execute(
        f"SELECT count(*), sum(id), sum(customer) FROM {table}"
    )
    path = folder_of(load(process.config).lake, f"public.{table}")

    def same() -> bool:
        rows = DeltaTable(path).to_pyarrow_table(columns=["id", "customer"])
        found = [int(rows.column(name).to_numpy().sum()) for name in ("id", "customer")]
        return [rows.num_rows, *found] == [int(count), int(ids), int(customers)]

    try:
        wait_for(same, 120, f"{table} to be equal")
    except StackError:
        return False
    return True


def show(rows: Sequence[Row], options: argparse.Namespace, before: dict[str, Any]) -> int:
    """Prints the table and writes the JSON file."""
    console = Console() if Console().is_terminal else Console(width=100)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "rows", "seconds", "rows/s", "log lag s", "correct"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        one = row.data()
        table.add_row(
            one["who"],
            f"{one['rows']:,}" if one["rows"] else "-",
            str(one["seconds"]) if one["rows"] else "-",
            f"{one['rows_per_s']:,}" if one["rows"] else "-",
            str(one["lag_s"] or "-"),
            "yes" if one["correct"] else "NO",
        )
    console.print(table)
    best = {row.who: row.rows / row.seconds for row in rows if row.rows}
    theirs = max((rate for who, rate in best.items() if who.startswith("debezium")), default=0)
    for who, rate in best.items():
        if who.startswith("lakemark") and theirs:
            console.print(f"{who} / best of debezium: [bold]{rate / theirs:.1f} x[/]")
    if options.json:
        report = {
            "bench": "snapshot",
            "settings": {"rows": options.rows, "rate": options.rate, "chunk": options.chunk_rows},
            "machine": before,
            "versions": versions(),
            "rows": [row.data() for row in rows],
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row.correct for row in rows) else 1


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="./dev bench snapshot", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=500, help="transactions/s of the busy runs")
    parser.add_argument("--chunk-rows", type=int, default=10_000)
    parser.add_argument(
        "--parallelism", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4]
    )
    parser.add_argument("--only", choices=("copy", "debezium", "lakemark"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def say(text: str) -> None:
    """One line of progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
