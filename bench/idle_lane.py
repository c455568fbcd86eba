"""What the stateful operator costs while no snapshot runs.

    ./dev bench idle-lane [--events N] [--batch N] [--rounds N] [--json FILE]

lakemark as it is, and lakemark without the operator (`without_lane.py`), over the same topic, in
turns. No run is active: the shards let packets pass and keep nothing. The goal is a throughput
within 10 %.
"""

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path

from rich.console import Console

from bench.events import SCHEMA, Orders
from bench.ours import run_lakemark, write_config
from bench.report import machine, versions
from bench.runs import Run, check, limit_for, local_kafka, produce, topic_of

LEAST = 0.9  # share of the throughput that the operator must leave
PARTITIONS = 4
MODULES = {"lakemark": "lakemark", "without": "bench.without_lane"}


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if a result is wrong, or the operator costs more than a tenth."""
    options = parse(argv)
    orders = Orders("orders", events=options.events, keys=max(1, options.events // 5))
    before, runs = machine(), {who: list[Run]() for who in MODULES}
    with local_kafka() as stack:
        stack.kafka.create_topic(topic_of(orders.table), partitions=PARTITIONS)
        say(f"writing {len(orders):,} events")
        produce(stack.kafka, {topic_of(orders.table): orders})
        for number in range(options.rounds + 1):
            for who in sorted(MODULES, reverse=bool(number % 2)):
                say(f"{'warm-up' if not number else f'round {number}'}: {who}")
                work = stack.directory / "work"
                config = write_config(
                    work,
                    stack.kafka,
                    [orders.table],
                    max_events=limit_for(options.batch, PARTITIONS),
                    memory="2g",
                )
                path = {orders.table: str(work / "lake" / SCHEMA / orders.table)}
                run = check(
                    run_lakemark(config, work, module=MODULES[who]), {orders.table: orders}, path
                )
                shutil.rmtree(work, ignore_errors=True)
                if number:
                    runs[who].append(run)
    return show(runs, options, before)


def show(runs: dict[str, list[Run]], options: argparse.Namespace, before: dict[str, object]) -> int:
    """Prints the medians and writes the JSON file."""
    console = Console()
    medians: dict[str, dict[str, float]] = {}
    for who, found in runs.items():
        medians[who] = {
            "steady_events_per_s": round(
                statistics.median(run.steady_events_per_s or 0.0 for run in found)
            ),
            "seconds": round(statistics.median(run.used.seconds for run in found), 1),
            "cpu_seconds": round(statistics.median(run.used.cpu_seconds for run in found), 1),
        }
        console.print(f"{who:10}", medians[who])
    share = medians["lakemark"]["steady_events_per_s"] / medians["without"]["steady_events_per_s"]
    console.print(f"with the operator, steady: [bold]{share:.1%}[/] of the throughput without it")
    if options.json:
        report = {
            "bench": "idle-lane",
            "settings": {"events": options.events, "batch": options.batch},
            "machine": before,
            "versions": versions(),
            "medians": medians,
            "rounds": {who: [run.row() for run in found] for who, found in runs.items()},
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    correct = all(run.correct for found in runs.values() for run in found)
    if share < LEAST:
        console.print(f"[red]less than {LEAST:.0%}[/]")
    return 0 if correct and share >= LEAST else 1


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="./dev bench idle-lane", description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=200_000, help="events per micro-batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def say(text: str) -> None:
    """One line of progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
