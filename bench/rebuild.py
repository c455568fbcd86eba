"""A table of a million rows that is made anew beside itself: what does that cost, above a snapshot?

    ./dev bench rebuild [--rows N] [--rate N] [--parallelism N] [--chunk-rows N] [--engine NAME]
                        [--rounds N] [--json FILE]

One database and one pipeline; every table has its round, in which it is first snapshotted into a
Delta table that does not exist yet (the baseline), and then rebuilt:

- *snapshot*: from the signal to COMPLETED, when every row is committed;
- *rebuild*: from the command's record to the commit that puts the new table in the old one's place.

The first table does not count: Java compiles for minutes what is used most. With `--rate` both are
measured while a workload changes the table. Of several rounds the median counts, and of the
rebuilds the median of what each costs above the snapshot of its own round.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.orders import busy_with, equal, fill
from bench.report import keep, machine
from bench.snapshot import LONGEST_S, Row, median, say, snapshot, worst
from lakemark.settings.config import load
from lakemark.state import control
from stack.lakemark_process import LakemarkProcess, write_config
from stack.local import Database, LocalStack
from stack.processes import wait_for


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if a table is not as the database's."""
    options = parse(argv)
    before = machine()
    tables = [f"orders_{number}" for number in range(options.rounds + 1)]
    with LocalStack(name="bench-rebuild", quick=False) as stack, stack.fresh_database() as database:
        for table in tables:
            fill(database, table, options.rows)
        database.start_connector({"snapshot.mode": "no_data"})
        config = write_config(
            database,
            stack.directory / "lakemark",
            {
                "snapshot": {"parallelism": options.parallelism, "chunk_rows": options.chunk_rows},
                "lake": {"path": "./lake", "engine": options.engine},
            },
        )
        process = LakemarkProcess(config)
        process.start()
        try:
            found = [taken(database, process, options, table) for table in tables][1:]
        finally:
            process.kill()
    return show(found, options, before)


def taken(
    database: Database, process: LakemarkProcess, options: argparse.Namespace, table: str
) -> tuple[Row, Row]:
    """A snapshot of a table, and its rebuild."""
    say(table)
    with busy_with(database, table, options.rows, options.rate):
        note, seconds = snapshot(process, table, options.parallelism)
        first = Row("snapshot", options.rows, seconds, correct=note.type == "COMPLETED")
        again = rebuilt(process, f"public.{table}")
    say(f"  {first.seconds:.1f} s, rebuilt in {again:.1f} s")
    correct = equal(database, process, table)
    return first, Row("rebuild", options.rows, again, correct=correct)


def rebuilt(process: LakemarkProcess, table: str) -> float:
    """Asks for a rebuild and waits for its end; the seconds between them."""
    done = len(process.events("table.rebuilt"))
    begun = time.monotonic()
    control.write(load(process.config), "table-rebuild", table, {"reason": "a benchmark"})
    ended = lambda: len(process.events("table.rebuilt")) > done  # noqa: E731
    wait_for(ended, LONGEST_S, f"the end of the rebuild of {table}")
    return time.monotonic() - begun


def show(found: list[tuple[Row, Row]], options: argparse.Namespace, before: dict[str, Any]) -> int:
    """Prints the table and writes the JSON file."""
    console = Console() if Console().is_terminal else Console(width=100)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "rows", "seconds", "rows/s", "correct"):
        table.add_column(heading, justify="left" if not heading else "right")
    rows = [median(one) for one in zip(*found, strict=True)]
    for row in rows:
        one = row.data()
        said = {True: "yes", False: "NO", None: "-"}[one["correct"]]
        numbers = f"{one['rows']:,}", str(one["seconds"]), f"{one['rows_per_s']:,}"
        table.add_row(one["who"], *numbers, said)
    console.print(table)
    times = statistics.median(again.seconds / first.seconds for first, again in found)
    console.print(f"rebuild / snapshot, seconds: [bold]{times:.2f} x[/]")
    if options.json:
        names = ("rows", "rate", "parallelism", "chunk_rows", "engine", "rounds")
        settings = {name: getattr(options, name) for name in names}
        data = [row.data() for row in rows]
        keep(options.json, "rebuild", settings, before, data, times=round(times, 2))
    return 1 if worst(rows) is False else 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="./dev bench rebuild", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=0, help="transactions/s meanwhile; 0: none")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--chunk-rows", type=int, default=100_000)
    parser.add_argument(
        "--engine", choices=("task-merge", "deletion-vectors"), default="task-merge"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)
