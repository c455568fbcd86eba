"""How much memory a snapshot of a large table takes while the table is being changed.

    ./dev bench memory [--rows N] [--rate N] [--engine NAME] [--bound MB] [--json FILE]

One table, one signal with the default settings, and a workload on the same table all the time.
Every few seconds the resident memory of lakemark with Spark's JVM and the Python workers is looked
at, and what the shards said after the newest batch: touches they remember, parts that wait, and the
largest state. The run fails above `--bound`, or if the table is not as the database's.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.orders import busy_with, equal, fill
from bench.report import machine, versions
from bench.runs import tree
from bench.snapshot import PULSE, snapshot
from stack.lakemark_process import LakemarkProcess, write_config
from stack.local import LocalStack

EVERY_S: Final = 5.0
SHOWN: Final = 20  # lines of the table
LONGEST_S: Final = 3600.0
GROWTH: Final = 1.5  # of the state: it follows the length of batches, which merges make longer

Sample = dict[str, float]


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if it takes too much, the state grows, or the table is not as the database's."""
    options = parse(argv)
    before, samples = machine(), list[Sample]()
    with LocalStack(name="bench-memory", quick=False) as stack, stack.fresh_database(*PULSE) as db:
        say(f"filling {options.rows:,} rows")
        fill(db, "orders", options.rows)
        db.start_connector({"snapshot.mode": "no_data"})
        settings = {
            "stream": {"trigger": "500ms"},
            "lake": {"path": "./lake", "engine": options.engine},
        }
        config = write_config(db, stack.directory / "lakemark", settings)
        process = LakemarkProcess(config)
        process.start()
        done = threading.Event()
        watch = threading.Thread(target=look, args=(process, samples, done), daemon=True)
        try:
            with busy_with(db, "orders", options.rows, options.rate) as count:
                watch.start()
                found, seconds = snapshot(
                    process, "orders", options.parallelism, longest_s=LONGEST_S
                )
                rate = count[0] / seconds
            done.set()
            watch.join()
            correct = found.type == "COMPLETED" and equal(db, process, "orders", longest_s=600)
        finally:
            process.kill()
    return show(samples, options, before, seconds=seconds, rate=rate, correct=correct)


def look(process: LakemarkProcess, samples: list[Sample], done: threading.Event) -> None:
    """Takes samples until it is told to end."""
    begun = time.monotonic()
    while not done.wait(EVERY_S):
        resident = sum(rss for rss, _ in tree(process.identity.pid).values())
        batches = process.events("batch.done")
        newest: dict[str, Any] = batches[-1] if batches else {}
        samples.append(
            {
                "seconds": round(time.monotonic() - begun),
                "resident_mb": resident // 1_000_000,
                "touches": newest.get("touches", 0),
                "parts": newest.get("parts", 0),
                "largest_state_kb": newest.get("largest_state", 0) // 1000,
                "batch_s": newest.get("tasks_s", 0.0),
            }
        )


def growth(samples: list[Sample]) -> float | None:
    """The largest state of a shard in the last third of a run, by that in the middle third.

    None where there are too few samples, or nothing was remembered.
    """
    states = [sample["largest_state_kb"] for sample in samples]
    third = len(states) // 3
    if third < 2 or not (middle := statistics.median(states[third : 2 * third])):
        return None
    return statistics.median(states[2 * third :]) / middle


def show(
    samples: list[Sample],
    options: argparse.Namespace,
    before: dict[str, Any],
    *,
    seconds: float,
    rate: float,
    correct: bool,
) -> int:
    """Prints some of the samples and writes the JSON file."""
    console = Console() if Console().is_terminal else Console(width=100)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in samples[0] if samples else ():
        table.add_column(heading, justify="right")
    for sample in samples[:: max(1, len(samples) // SHOWN)]:
        table.add_row(*(f"{value:,}" for value in sample.values()))
    console.print(table)
    peak = max((sample["resident_mb"] for sample in samples), default=0)
    verdict = "" if peak <= options.bound else f", more than {options.bound:,} MB"
    console.print(
        f"{options.rows:,} rows in {seconds:.0f} s ({options.rows / seconds:,.0f}/s) under"
        f" {rate:,.0f} transactions/s; peak [bold]{peak:,} MB[/]{verdict};"
        f" {'equal to the database' if correct else 'NOT as the database'}"
    )
    grown = growth(samples)
    if grown is not None:
        flat = "flat" if grown <= GROWTH else "[red]it grows[/]"
        console.print(f"state of a shard, last third by middle third: {grown:.2f} ({flat})")
    if options.json:
        report = {
            "bench": "memory",
            "settings": {"rows": options.rows, "rate": options.rate},
            "machine": before,
            "versions": versions(),
            "seconds": seconds,
            "transactions_per_s": rate,
            "peak_mb": peak,
            "state_growth": grown,
            "correct": correct,
            "samples": samples,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if correct and peak <= options.bound and (grown or 0) <= GROWTH else 1


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="./dev bench memory", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rate", type=int, default=1000, help="transactions per second")
    parser.add_argument("--parallelism", type=int, default=4)
    parser.add_argument(
        "--engine", choices=("task-merge", "deletion-vectors"), default="task-merge"
    )
    parser.add_argument("--bound", type=int, default=8000, help="MB that it may take at most")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def say(text: str) -> None:
    """One line of progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
