"""A table of many rows: how long does it take to prove that it is its database's?

    ./dev bench verify [--database NAME] [--rows N] [--differing N] [--parallelism N] [--engine NAME]
                       [--rounds N] [--json FILE]

One table in one lake, one contestant after the other:

- *copy*: the whole table as lines of CSV, by COPY or INTO OUTFILE: what the database can give;
- *snapshot*: of the whole table, by a signal, into a table that does not exist yet;
- *verify*: of the table that the snapshot has made, all rows alike;
- *verify, differing*: of the same, after that many rows were changed in the lake alone;
- *repair*: of the same, which mends them; then the table is compared with the database's.

`correct`: a run has found exactly the rows that were changed, or none. CPU and memory are those of
lakemark's processes during the run. Log latency is that of ten rows a second, from the commit to
their being seen in the lake, as in `snapshot.py`; `alone` is without anything beside it.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.orders import equal, fill
from bench.report import keep, machine
from bench.runs import Watch, tree
from bench.snapshot import (
    LONGEST_S,
    PULSE,
    WARM,
    WARM_ROWS,
    Row,
    beating,
    copied,
    quiet,
    say,
    snapshot,
)
from lakemark.kafka.records import Tail, producer
from lakemark.settings.config import load
from lakemark.sink import found_rows
from lakemark.sink.names import folder_of
from lakemark.snapshot import notifications
from stack.cli import add_database
from stack.lakemark_process import LakemarkProcess, write_config
from stack.local import Database, LocalStack
from stack.processes import StackError

TABLE: Final = "orders"


@dataclass(slots=True)
class Measured:
    """A contestant, and what lakemark's processes used meanwhile."""

    row: Row
    cpu_seconds: float | None = None
    peak_rss_mb: int | None = None

    def data(self) -> dict[str, Any]:
        """JSON-ready."""
        used = {"cpu_seconds": self.cpu_seconds, "peak_rss_mb": self.peak_rss_mb}
        return {**self.row.data(), **{name: figure for name, figure in used.items() if figure}}


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if a run has found something else than there is."""
    options = parse(argv)
    before = machine()
    services = ("kafka", "connect", options.database)
    with (
        LocalStack(name="bench-verify", services=services, quick=False) as stack,
        stack.fresh_database() as database,
    ):
        moment = f"at {database.INSTANT} NOT NULL"
        database.execute(f"CREATE TABLE {PULSE} (id bigint PRIMARY KEY, {moment})")
        for table in WARM[:2]:
            fill(database, table, WARM_ROWS)
        fill(database, TABLE, options.rows)
        rows = [Measured(copied(database, options.rows)), *lakemark(database, options)]
    return show(rows, options, before)


def lakemark(database: Database, options: argparse.Namespace) -> Iterator[Measured]:
    """One pipeline, one run after the other."""
    database.start_connector({"snapshot.mode": "no_data"})
    sections = {
        "snapshot": {"parallelism": options.parallelism},
        "stream": {"trigger": "1s", "shards": 2},
        "lake": {"path": "./lake", "engine": options.engine},
    }
    directory = database.stack.directory / "lakemark"
    process = LakemarkProcess(write_config(database, directory, sections))
    process.start()
    try:
        with beating(database, process) as lags:
            bench = Bench(process, options.rows, lags)
            for table in WARM[:2]:
                snapshot(process, table, options.parallelism)
                bench.verify(table, f"warm-{table}")
            yield Measured(quiet(database, options, lags))
            yield bench.measured(
                "snapshot", lambda: snapshot(process, TABLE, options.parallelism)[0]
            )
            path = folder_of(load(process.config).lake, database.identifier(TABLE))
            for number in range(options.rounds):
                yield bench.run("verify", f"equal-{number}", set())
            wrong = change(path, options.differing)
            for number in range(options.rounds):
                yield bench.run("verify, differing", f"wrong-{number}", wrong)
            mended = bench.run("repair", "repair", wrong, repair=True)
            mended.row.correct = mended.row.correct and equal(database, process, TABLE)
            yield mended
    finally:
        process.kill()


@dataclass(slots=True)
class Bench:
    """A pipeline whose runs are measured."""

    process: LakemarkProcess
    rows: int
    lags: list[float]

    def run(self, who: str, name: str, wrong: set[str], *, repair: bool = False) -> Measured:
        """One verify run, and whether it has found what there is."""
        found = self.measured(who, lambda: self.verify(TABLE, name, repair=repair))
        kept = found_rows.of_run(load(self.process.config).lake, name)
        found.row.correct = found.row.correct and {row["key"] for row in kept} == wrong
        return found

    def measured(self, who: str, work: Callable[[], notifications.Notification]) -> Measured:
        """Do something, and see what it takes."""
        say(who)
        assert self.process.identity is not None
        seen, pid = len(self.lags), self.process.identity.pid
        before = sum(cpu for _, cpu in tree(pid).values())
        watch = Watch(pid)
        watch.start()
        found = work()
        used = watch.stop()
        correct = found.type == "COMPLETED"
        row = Row(who, self.rows, used.seconds, self.lags[seen:], correct)
        return Measured(row, round(used.cpu_seconds - before, 1), used.peak_rss_mb)

    def verify(self, table: str, name: str, *, repair: bool = False) -> notifications.Notification:
        """Send the signal and wait for the end of its run."""
        config = load(self.process.config)
        tail = Tail(config, config.topics.notifications)
        data = {"data-collections": [rf".*\.{table}"], "repair": repair}
        value = json.dumps({"id": name, "type": "verify-snapshot", "data": data}).encode()
        client = producer(config)
        client.produce(config.topics.signals, value, config.name.encode())
        client.flush()
        begun = time.monotonic()
        while time.monotonic() < begun + LONGEST_S and self.process.is_running:
            found = notifications.read(tail.value(1.0))
            ended = {"COMPLETED", "ABORTED", "REJECTED"}
            if found is not None and found.id == name and found.type in ended:
                say(f"  {found.type}: {found.additional_data}")
                return found
        raise StackError(f"no end of {name}\n{self.process.log_tail(30)}")


def change(path: str, count: int) -> set[str]:
    """Change so many rows of the lake alone, all over it; the canonical keys."""
    table = DeltaTable(path)
    keys = pa.table(table.scan(columns=["id"])).column("id").to_pylist()
    chosen = sorted(keys)[:: max(1, len(keys) // count)][:count]
    listed = ", ".join(map(str, chosen))
    DeltaTable(path).update({"note": "'changed in the lake'"}, predicate=f"id in ({listed})")
    return {f"[{key}]" for key in chosen}


def show(rows: list[Measured], options: argparse.Namespace, before: dict[str, Any]) -> int:
    """Prints the table and writes the JSON file."""
    console = Console() if Console().is_terminal else Console(width=110)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "rows/s", "seconds", "CPU s", "peak MB", "log lag s", "correct"):
        table.add_column(heading, justify="left" if not heading else "right")
    for one in rows:
        data = one.data()
        table.add_row(
            data["who"],
            f"{data['rows_per_s']:,}" if data["rows"] else "-",
            str(data["seconds"]) if data["rows"] else "-",
            str(data.get("cpu_seconds", "-")),
            f"{data['peak_rss_mb']:,}" if "peak_rss_mb" in data else "-",
            str(data["lag_s"] or "-"),
            {True: "yes", False: "NO", None: "-"}[data["correct"]],
        )
    console.print(table)
    if options.json:
        names = ("database", "rows", "differing", "parallelism", "engine")
        settings = {name: getattr(options, name) for name in names}
        keep(options.json, "verify", settings, before, [one.data() for one in rows])
    return 1 if any(one.row.correct is False for one in rows) else 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="./dev bench verify", description=__doc__)
    add_database(parser)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--differing", type=int, default=100, help="rows changed in the lake")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument(
        "--engine", choices=("task-merge", "deletion-vectors"), default="task-merge"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)
