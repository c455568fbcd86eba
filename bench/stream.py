"""One busy table: how many events a second, and is the result right?

    ./dev bench stream [--events N] [--keys N] [--batch N] [--full] [--only WHO] [--json FILE]

The same topic, one contestant after the other, on the same machine. See bench/README.md.
"""

import argparse
import shutil
import sys
from pathlib import Path

from bench import report
from bench.events import SCHEMA, Orders
from bench.runs import (
    Run,
    check,
    limit_for,
    local_kafka,
    produce,
    run_lakemark,
    run_usual,
    topic_of,
    warm_up,
    write_config,
)
from bench.usual import Spec

TABLE = "orders"


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if a result is wrong."""
    options = parse(argv)
    keys = options.keys or max(1, options.events // 5)
    orders = Orders(TABLE, events=options.events, keys=keys, full=options.full)
    if options.warm_up:
        say("both run once over a few events (not measured)")
        warm_up(options.memory)
    before = report.machine()
    limit = limit_for(options.batch, options.partitions)
    runs: list[Run] = []
    with local_kafka() as stack:
        topic = topic_of(TABLE)
        stack.kafka.create_topic(topic, partitions=options.partitions)
        say(f"writing {options.events:,} events to {options.partitions} partitions")
        produce(stack.kafka, topic, orders)
        size = next(len(value) for _, value in orders.records(len(orders) // 2))
        work = stack.directory / "work"
        try:
            if options.only != "lakemark":
                say("the usual pipeline")
                lake = work / "usual" / "lake" / TABLE
                spec = Spec(
                    bootstrap=stack.kafka.bootstrap,
                    tables={topic: str(lake)},
                    checkpoint=str(work / "usual" / "checkpoint"),
                    max_events=limit,
                    memory=options.memory,
                )
                run = run_usual(spec, work / "usual")
                runs.append(check(run, {TABLE: orders}, {TABLE: str(lake)}))
            if options.only != "usual":
                say("lakemark")
                home = work / "lakemark"
                config = write_config(
                    home, stack.kafka, [TABLE], max_events=limit, memory=options.memory
                )
                run = run_lakemark(config, home)
                path = str(home / "lake" / SCHEMA / TABLE)
                runs.append(check(run, {TABLE: orders}, {TABLE: path}))
        finally:
            if not options.keep:
                shutil.rmtree(work, ignore_errors=True)
    settings = {
        "events": options.events,
        "keys": keys,
        "partitions": options.partitions,
        "batch": options.batch,
        "value_bytes": size,
        "driver_memory": options.memory,
    }
    return report.show(
        "stream",
        runs,
        settings=settings,
        before=before,
        measures=("events_per_s", "steady_events_per_s", "cpu_seconds"),
        json_file=options.json,
    )


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="./dev bench stream", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, help="default: a fifth of the events")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--batch", type=int, default=200_000, help="events per micro-batch")
    parser.add_argument("--memory", default="2g", help="of Spark's driver, for both")
    parser.add_argument("--full", action="store_true", help="every field that Debezium 3.7 writes")
    parser.add_argument("--no-warm-up", dest="warm_up", action="store_false")
    parser.add_argument("--only", choices=("usual", "lakemark"))
    parser.add_argument("--keep", action="store_true", help="keep logs and tables")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def say(text: str) -> None:
    """One line of progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
