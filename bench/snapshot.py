"""A table of a million rows: how fast does a snapshot bring it where it belongs?

    ./dev bench snapshot [--database NAME] [--rows N] [--rate N] [--parallelism 1,2,4] [--chunk-rows N]
                         [--connector-chunks 1024,10240] [--engine NAME] [--trigger TIME]
                         [--chunk-delay TIME] [--rounds N] [--only WHO] [--where] [--json FILE]

One database, one contestant after the other:

- *copy*: the whole table as lines of CSV, by COPY or INTO OUTFILE: what the database itself can
  give;
- *copy, parquet*: the same, and one Parquet file written of it: what a table costs without a log
  beside it;
- *debezium N*: the connector's own incremental snapshot with chunks of N rows, from the signal to
  its notification that all rows are in Kafka (no table is written);
- *lakemark N*: one execute-snapshot signal with parallelism N, from the signal to COMPLETED: every
  row is committed in Delta; each time into a table of its own that does not exist yet;
- *busy*: the same while a workload changes the table.

Java compiles for minutes what is used most, so one run of the connector's and four of lakemark's,
which take as long, are made first and do not count, and the workload runs for a while before the
first busy one. Of several rounds the median counts.

With `--where` there is one more run of lakemark's, idle and with the highest parallelism, that is not
in the table: what each stage took of the processors is printed (`where.py`).

Log latency is the time from a row's commit to its being seen in the lake, of ten rows a second into
a table of their own: during the snapshots, and without one, the busy one with the same workload on
a table as large.
"""

import argparse
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.orders import busy_with, dialect_of, equal, fill, source_rows
from bench.report import keep, machine
from bench.where import as_table, looking
from lakemark.kafka.records import Tail, producer
from lakemark.settings.config import load
from lakemark.sink.names import folder_of
from lakemark.snapshot import notifications
from stack.cli import add_database
from stack.lakemark_process import LakemarkProcess, write_config
from stack.local import Database, LocalStack
from stack.processes import StackError, wait_for

LONGEST_S: Final = 1200.0
BEAT_S: Final = 0.1
WARM_ROWS: Final = 1_000_000
WARM: Final = tuple(f"orders_warm_{number}" for number in range(4))
LOOKED_AT: Final = "orders_looked_at"
QUIET_S: Final = 20.0  # log latency without a snapshot is looked at for so long
PULSE: Final = "pulse"


@dataclass(slots=True)
class Row:
    """One contestant: rows, seconds, the lags of the log meanwhile; `correct` None: not looked at."""

    who: str
    rows: int
    seconds: float
    lags: list[float] = field(default_factory=list)
    correct: bool | None = None

    def data(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "who": self.who,
            "rows": self.rows,
            "seconds": round(self.seconds, 1),
            "rows_per_s": round(self.rows / self.seconds),
            "lag_s": round(lag, 2) if (lag := lag_of(self)) else None,
            "correct": self.correct,
        }


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if a table is not as the database's."""
    options = parse(argv)
    before = machine()
    rows: list[Row] = []
    where: list[dict[str, Any]] = []
    services = ("kafka", "connect", options.database)
    with LocalStack(name="bench-snapshot", services=services, quick=False) as stack:
        # filled before any connector: no_data begins behind them, and its publication has them
        if options.only != "lakemark":
            with stack.fresh_database() as database:
                fill(database, "orders", options.rows)
                rows.append(copied(database, options.rows))
                rows.append(filed(database, options.rows))
                if options.only != "copy":
                    rows += debezium(database, options)
        if options.only in (None, "lakemark"):
            with stack.fresh_database() as database:
                moment = f"at {database.INSTANT} NOT NULL"
                database.execute(f"CREATE TABLE {PULSE} (id bigint PRIMARY KEY, {moment})")
                for table in WARM:
                    fill(database, table, WARM_ROWS)
                for case in cases(options):
                    for number in range(options.rounds):
                        fill(database, table_of(*case, number), options.rows)
                if options.where:
                    fill(database, LOOKED_AT, options.rows)
                rows += lakemark(database, options, where)
    return show(rows, options, before, where)


def cases(options: argparse.Namespace) -> list[tuple[int, bool]]:
    """The snapshots of lakemark: parallelism, and whether the table is changed meanwhile."""
    loads = (False, True) if options.rate else (False,)
    return [(parallelism, busy) for busy in loads for parallelism in options.parallelism]


def table_of(parallelism: int, busy: bool, number: int) -> str:  # noqa: FBT001 - as in `cases`
    """A table of its own for every snapshot of lakemark."""
    return f"orders_{parallelism}_{'busy' if busy else 'idle'}_{number}"


def median(rounds: Sequence[Row]) -> Row:
    """The median round; the lags and the correctness are of all."""
    one = sorted(rounds, key=lambda row: row.seconds)[len(rounds) // 2]
    lags = [lag for row in rounds for lag in row.lags]
    return replace(one, lags=lags, correct=worst(rounds))


def worst(rows: Sequence[Row]) -> bool | None:
    """False if any of them is wrong, else None if any was not looked at."""
    return min((row.correct for row in rows), key=[False, None, True].index)


def copied(database: Database, rows: int) -> Row:
    """What the database gives, alone."""
    begun = time.monotonic()
    dialect_of(database).exported(database, "SELECT * FROM orders")
    return Row("copy", rows, time.monotonic() - begun)


def filed(database: Database, rows: int) -> Row:
    """The same, and a Parquet file of it, compressed like lakemark's."""
    begun = time.monotonic()
    found = source_rows(database, "orders")
    pq.write_table(
        found, database.stack.directory / "orders.parquet", compression="zstd", compression_level=1
    )
    return Row("copy, parquet", rows, time.monotonic() - begun, correct=found.num_rows == rows)


def debezium(database: Database, options: argparse.Namespace) -> Iterator[Row]:
    """The connector's own incremental snapshot, into Kafka."""
    for chunk in options.connector_chunks:
        database.start_connector({
            "snapshot.mode": "no_data", "incremental.snapshot.chunk.size": str(chunk),
            "notification.enabled.channels": "sink",
            "notification.sink.topic.name": f"{database.name}-notes",
        })  # fmt: skip
        if chunk == options.connector_chunks[0]:
            incremental(database, options, chunk, -1, busy=False)
        for busy in (False, True) if options.rate else (False,):
            numbers = range(options.rounds)
            yield median([incremental(database, options, chunk, n, busy=busy) for n in numbers])
        database.stack.connect.delete_connector(database.name)


def incremental(
    database: Database, options: argparse.Namespace, chunk: int, number: int, *, busy: bool
) -> Row:
    """One incremental snapshot of the connector; number -1 is the warm-up."""
    who = f"debezium {chunk}{' busy' if busy else ''}"
    say(who)
    notes, signal = f"{database.name}-notes", f"{who.replace(' ', '-')}-{number}"
    orders = database.identifier("orders")
    data = json.dumps({"data-collections": [orders], "type": "incremental"})

    def ended() -> bool:
        kafka = database.stack.kafka
        count = sum(kafka.end_offsets(notes).values()) if notes in kafka.topics() else 0
        found = [json.loads(r.value() or b"{}") for r in kafka.read(notes, count=count)]
        return any(note["id"] == signal and note["type"] == "COMPLETED" for note in found)

    def written() -> int:
        return sum(database.stack.kafka.end_offsets(database.topic("orders")).values())

    ((rows,),) = database.execute("SELECT count(*) FROM orders")
    before, begun = written() if number >= 0 else 0, time.monotonic()
    with busy_with(database, "orders", options.rows, options.rate if busy else 0):
        database.execute(
            "INSERT INTO debezium_signal VALUES (%s, 'execute-snapshot', %s)", [signal, data]
        )
        wait_for(ended, LONGEST_S, f"the end of {signal}")
        seconds = time.monotonic() - begun
    # Beside a workload that deletes rows too, nobody can say how many there should be.
    correct = None if busy else written() - before == int(rows)
    return Row(who, options.rows, seconds, correct=correct)


def lakemark(
    database: Database, options: argparse.Namespace, where: list[dict[str, Any]]
) -> Iterator[Row]:
    """One pipeline, one signal after the other, each over a table of its own.

    `where` gets what each stage takes, if that is asked for.
    """
    database.start_connector({"snapshot.mode": "no_data"})
    most = max(options.parallelism)
    config = write_config(
        database,
        database.stack.directory / "lakemark",
        {
            "snapshot": {
                "parallelism": most,
                "chunk_rows": options.chunk_rows,
                "chunk_delay": options.chunk_delay,
            },
            "stream": {"trigger": options.trigger, "shards": 2},
            "lake": {"path": "./lake", "engine": options.engine},
        },
    )
    process = LakemarkProcess(config)
    process.start()
    try:
        with beating(database, process) as lags:
            for table in WARM:  # Java compiles what is used most for minutes
                snapshot(process, table, most)
            yield quiet(database, options, lags)
            found: dict[tuple[int, bool], list[Row]] = {}
            for busy in sorted({busy for _, busy in cases(options)}):
                if busy:  # and what only a workload uses
                    quiet(database, options, lags, changed=table_of(*cases(options)[0], 0))
                for number in range(options.rounds):
                    for case in cases(options):
                        if case[1] is busy:
                            row = taken(database, process, options, (*case, number), lags)
                            found.setdefault(case, []).append(row)
            yield from map(median, found.values())
            if options.rate:
                yield quiet(database, options, lags, changed=table_of(*cases(options)[-1], 0))
        if options.where:
            say(f"where the time goes, parallelism {most}")
            with looking(database.stack, process) as stages:
                snapshot(process, LOOKED_AT, most)
            where += stages
    finally:
        process.kill()


def quiet(
    database: Database, options: argparse.Namespace, lags: list[float], changed: str = ""
) -> Row:
    """The log's latency without a snapshot, while a table that is in the lake is changed."""
    with busy_with(database, changed, options.rows, options.rate if changed else 0):
        time.sleep(QUIET_S)
        seen = len(lags)
        time.sleep(QUIET_S)
        return Row(f"log alone{' busy' if changed else ''}", 0, 1, lags[seen:])


def taken(
    database: Database,
    process: LakemarkProcess,
    options: argparse.Namespace,
    case: tuple[int, bool, int],
    lags: list[float],
) -> Row:
    """One snapshot."""
    (parallelism, busy, _), table = case, table_of(*case)
    say(f"lakemark, parallelism {parallelism}{', busy' if busy else ''}")
    seen = len(lags)
    with busy_with(database, table, options.rows, options.rate if busy else 0) as load:
        found, seconds = snapshot(process, table, parallelism)
        until = len(lags)
    if load:
        say(f"  {load[0] / seconds:,.0f} transactions/s meanwhile")
    rows = int(found.additional_data.get("total_rows_scanned", 0))
    correct = found.type == "COMPLETED" and equal(database, process, table)
    who = f"lakemark {parallelism}{' busy' if busy else ''}"
    return Row(who, rows, seconds, lags[seen:until], correct)


def snapshot(
    process: LakemarkProcess, table: str, parallelism: int, *, longest_s: float = LONGEST_S
) -> tuple[notifications.Notification, float]:
    """Sends the signal and waits for the end of its run; the seconds between them."""
    config = load(process.config)
    tail = Tail(config, config.topics.notifications)
    data = {"data-collections": [rf".*\.{table}"], "parallelism": parallelism}
    signal = {"id": f"bench-{table}", "type": "execute-snapshot", "data": data}
    client = producer(config)
    client.list_topics(config.topics.signals)  # it is connected now, as Debezium's client is
    begun = time.monotonic()
    client.produce(config.topics.signals, json.dumps(signal).encode(), config.name.encode())
    client.flush()
    while time.monotonic() < begun + longest_s:
        found = notifications.read(tail.value(1.0))
        ours = found is not None and found.id == signal["id"]
        if found is not None and ours and found.type in {"COMPLETED", "ABORTED", "REJECTED"}:
            say(f"  {found.type}: {found.additional_data}")
            return found, time.monotonic() - begun
        if not process.is_running:
            break
    raise StackError(f"no end of the snapshot of {table}\n{process.log_tail(30)}")


@contextmanager
def beating(database: Database, process: LakemarkProcess) -> Iterator[list[float]]:
    """Rows that say when they were written; their age when they are first seen in the lake."""
    lags: list[float] = []
    done = threading.Event()
    path = folder_of(load(process.config).lake, database.identifier(PULSE))
    numbers = itertools.count(1)

    def beat() -> None:
        insert = f"INSERT INTO {PULSE} VALUES (%s, current_timestamp(6))"
        with database.connect() as connection:
            while not done.wait(BEAT_S):
                connection.execute(insert, [next(numbers)])

    def look() -> None:
        version, newest = -1, 0
        while not done.wait(0.02):
            if not (Path(path) / "_delta_log" / f"{version + 1:020d}.json").exists():
                continue  # that costs nothing; opening the table does
            with suppress(DeltaError, FileNotFoundError, OSError):
                table = DeltaTable(path)
                version, now = table.version(), datetime.now(UTC)
                rows = pa.table(table.scan(columns=["id", "at"])).to_pylist()
                lags.extend((now - row["at"]).total_seconds() for row in rows if row["id"] > newest)
                newest = max([newest, *(row["id"] for row in rows)])

    threads = [threading.Thread(target=one, daemon=True) for one in (beat, look)]
    for thread in threads:
        thread.start()
    try:
        yield lags
    finally:
        done.set()
        for thread in threads:
            thread.join()


def against(rows: Sequence[Row]) -> dict[str, tuple[float | None, float | None]]:
    """For each row of lakemark: times Debezium's best rows/s, and times the log's lag alone."""
    found: dict[str, tuple[float | None, float | None]] = {}
    for busy in (False, True):
        alike = [row for row in rows if ("busy" in row.who) is busy]
        theirs = max((r.rows / r.seconds for r in alike if r.who.startswith("debezium")), default=0)
        alone = next((lag_of(r) for r in alike if r.who.startswith("log alone")), None)
        for row in alike:
            if row.who.startswith("lakemark"):
                lag, speed = lag_of(row), row.rows / row.seconds
                found[row.who] = (
                    speed / theirs if theirs else None,
                    lag / alone if lag and alone else None,
                )
    return found


def lag_of(row: Row) -> float | None:
    """The median; None if nothing was looked at."""
    return statistics.median(row.lags) if row.lags else None


def show(
    rows: Sequence[Row],
    options: argparse.Namespace,
    before: dict[str, Any],
    where: Sequence[dict[str, Any]],
) -> int:
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
            {True: "yes", False: "NO", None: "-"}[one["correct"]],
        )
    console.print(table)
    for who, (speed, lag) in against(rows).items():
        if speed:
            console.print(f"{who} / best of debezium, rows/s: [bold]{speed:.1f} x[/]")
        if lag:
            console.print(f"{who} / log alone, lag: [bold]{lag:.2f} x[/]")
    if where:
        console.print(as_table(where))
    if options.json:
        settings = {
            name: getattr(options, name)
            for name in (
                "database",
                "rows",
                "rate",
                "chunk_rows",
                "chunk_delay",
                "engine",
                "trigger",
            )
        }
        keep(
            options.json,
            "snapshot",
            settings,
            before,
            [row.data() for row in rows],
            **({"where": where} if where else {}),
        )
    return 1 if worst(rows) is False else 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="./dev bench snapshot", description=__doc__)
    add_database(parser)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument(
        "--rate", type=int, default=500, help="transactions/s of the busy runs; 0: none"
    )
    parser.add_argument("--chunk-rows", type=int, default=100_000)
    parser.add_argument("--parallelism", type=numbers, default=[1, 2, 4])
    parser.add_argument(
        "--connector-chunks", type=numbers, default=[1024, 10240],
        help="rows of a chunk of the connector's own incremental snapshots",
    )  # fmt: skip
    parser.add_argument(
        "--engine", choices=("task-merge", "deletion-vectors"), default="task-merge"
    )
    parser.add_argument("--trigger", default="1s", help="of the log's batches")
    parser.add_argument("--chunk-delay", default="0s", help="between the chunks of a run")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=("copy", "debezium", "lakemark"))
    parser.add_argument("--where", action="store_true", help="print what each stage takes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def numbers(text: str) -> list[int]:
    """Several numbers with commas between them."""
    return [int(number) for number in text.split(",")]


def say(text: str) -> None:
    """One line of progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
