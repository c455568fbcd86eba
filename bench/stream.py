"""One busy table: how many events a second, and is the result right?

    ./dev bench stream [--events N] [--keys N] [--batch N] [--full] [--only WHO] [--json FILE]

The same topic, one contestant after the other, on the same machine. See bench/README.md.
"""

import argparse
import sys
from pathlib import Path

from bench import report
from bench.events import Orders
from bench.runs import contest, limit_for, warm_up

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
    runs = contest(
        orders,
        partitions=options.partitions,
        max_events=limit_for(options.batch, options.partitions),
        memory=options.memory,
        only=options.only,
        keep=options.keep,
        say=say,
    )
    settings = {
        "events": options.events,
        "keys": keys,
        "partitions": options.partitions,
        "batch": options.batch,
        "value_bytes": next(len(value) for _, value in orders.records(len(orders) // 2)),
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
