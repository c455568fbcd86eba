"""Many tables: how long does a batch take that touches all of them?

    ./dev bench tables [--tables N,N] [--rows N] [--batches N] [--per-table N] [--hot SHARE]
                       [--engine NAME] [--poisoned] [--json FILE]

Every table starts with its rows in place; then come batches with a few events for each, or, with
`--hot`, with most of them for a hundredth of the tables. The usual pipeline merges table after
table. See bench/README.md.
"""

import argparse
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltalake import write_deltalake

from bench import report
from bench.events import SCHEMA, Orders, zoned_batches
from bench.ours import ENGINES, fill, run_lakemark, write_config
from bench.runs import Run, check, limit_for, local_kafka, produce, topic_of
from bench.stream import say
from bench.usual import Spec, run_usual
from stack.kafka import Kafka

HOT: Final = 0.01  # of the tables are hot, if any
POISONED: Final = "poisoned"
USUAL: Final = "usual"
Tables = dict[str, Orders]


@dataclass(frozen=True, slots=True)
class Contest:
    """What every contestant is told.

    Attributes:
        tables: by name, with the events of all batches.
        options: of the command line.
        kafka: the broker.
        home: a folder of the contestant's own.
    """

    tables: Tables
    options: argparse.Namespace
    kafka: Kafka
    home: Path

    @property
    def limit(self) -> int:
        """Spark's limit for a batch: as many events as one round of all tables has."""
        events = sum(map(len, self.tables.values()))
        return limit_for(events // self.options.batches, len(self.tables))


Runner = Callable[[Contest], Run]


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if a result is wrong."""
    options = parse(argv)
    before = report.machine()
    runs: list[tuple[int, Run]] = []
    contestants: dict[str, Runner] = {
        "usual": usual,
        **{name: (lambda one, name=name: ours(one, name)) for name in options.engine or ENGINES},
    }
    if options.poisoned:
        last = list(contestants)[-1]
        contestants[POISONED] = lambda one: ours(one, last, poisoned=True)
    for count in map(int, options.tables.split(",")):
        for who, run in contestants.items():
            if options.only and (who == "usual") != (options.only == "usual"):
                continue
            say(f"{count} tables of {options.rows:,} rows: {who}")
            with local_kafka() as stack:
                home = stack.directory / "work"
                try:
                    events = count * options.per_table * options.batches
                    tables = made(
                        count, events, rows=options.rows, hot=options.hot, full=options.full
                    )
                    contest = Contest(tables, options, stack.kafka, home)
                    runs.append((count, run(contest)))
                finally:
                    if not options.keep:
                        shutil.rmtree(home, ignore_errors=True)
    settings = {
        "rows": options.rows,
        "batches": options.batches,
        "events_per_table": options.per_table,
        "hot": options.hot,
        "threads": options.threads,
        "driver_memory": options.memory,
    }
    return report.show(
        "tables",
        [{**run.row(), "who": run.who, "tables": count} for count, run in runs],
        settings=settings,
        before=before,
        wrong=[(run.who, run.wrong) for _, run in runs],
        measures=("seconds_per_batch", "steady_events_per_s", "cpu_seconds"),
        json_file=options.json,
    )


def made(count: int, events: int, *, rows: int, hot: float = 0.0, full: bool = False) -> Tables:
    """So many tables with these rows each, and about so many events in all.

    Args:
        count: how many tables.
        events: of all of them.
        rows: of each before the first event.
        hot: share of the events of one table in a hundred.
        full: every field that Debezium writes.
    """
    warm = max(1, round(count * HOT)) if hot else 0
    tables = {}
    for n in range(count):
        share = hot / warm if n < warm else (1 - hot) / (count - warm)
        some = max(1, round(events * share))
        name = f"orders_{n:03d}"
        tables[name] = Orders(name, events=some, keys=rows + some, start=rows, seed=n, full=full)
    return tables


def ours(contest: Contest, engine: str, *, poisoned: bool = False) -> Run:
    """Fills the tables, then runs over the batches."""
    tables, options, home, kafka = contest.tables, contest.options, contest.home, contest.kafka
    paths = {name: str(home / "lake" / SCHEMA / name) for name in tables}
    for name, orders in tables.items():
        fill(paths[name], orders.base())
    load(contest)
    if poisoned:
        poison(kafka, options)
    config = write_config(
        home, kafka, [*tables, POISONED] if poisoned else tables,
        max_events=contest.limit, memory=options.memory, engine=engine,
    )  # fmt: skip
    who = f"lakemark-{engine}" + (", one poisoned" if poisoned else "")
    return check(run_lakemark(config, home, who=who), tables, paths)


def usual(contest: Contest) -> Run:
    """The same by the usual pipeline."""
    tables, options, home = contest.tables, contest.options, contest.home
    paths = {name: str(home / "lake" / name) for name in tables}
    for name, orders in tables.items():
        write_deltalake(paths[name], zoned_batches(orders.base()))
    load(contest)
    spec = Spec(
        bootstrap=contest.kafka.bootstrap,
        tables={topic_of(name): paths[name] for name in tables},
        checkpoint=str(home / "checkpoint"),
        max_events=contest.limit,
        memory=options.memory,
        threads=options.threads,
    )
    return check(run_usual(spec, home), tables, paths)


def load(contest: Contest) -> None:
    """Writes the events of every table to its topic."""
    topics = {topic_of(name): orders for name, orders in contest.tables.items()}
    contest.kafka.create_topics(topics)
    produce(contest.kafka, topics)


def poison(kafka: Kafka, options: argparse.Namespace) -> None:
    """A table of which no record can be read: it stops, and must not slow the others."""
    topic = topic_of(POISONED)
    kafka.create_topic(topic)
    producer = kafka.producer()
    for number in range(options.per_table * options.batches):
        producer.produce(topic, b'{"before":null,"after":{"id":', b'{"id":%d}' % number)
    producer.flush(60)


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="./dev bench tables", description=__doc__)
    parser.add_argument("--tables", default="50", help="how many; several numbers are a series")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--per-table", type=int, default=100, help="events per table and batch")
    add_options(parser, hot=0.0)
    return parser.parse_args(argv)


def add_options(parser: argparse.ArgumentParser, *, hot: float) -> None:
    """What every benchmark of many tables can be asked for; `hot` is the default."""
    parser.add_argument("--rows", type=int, default=10_000, help="of each table at the start")
    parser.add_argument("--hot", type=share, default=hot, help="share of 1 %% of the tables")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="of lakemark")
    parser.add_argument("--poisoned", action="store_true", help="once more, beside a broken table")
    parser.add_argument("--threads", type=int, default=1, help="merges at a time, usual pipeline")
    parser.add_argument("--memory", default="2g", help="of Spark's driver, for both")
    parser.add_argument("--full", action="store_true", help="every field that Debezium 3.7 writes")
    parser.add_argument("--only", choices=(USUAL, "lakemark"))
    parser.add_argument("--keep", action="store_true", help="keep logs and tables")
    parser.add_argument("--json", type=Path, metavar="FILE")


def share(text: str) -> float:
    """A number from 0 to below 1."""
    if not 0 <= (found := float(text)) < 1:
        raise argparse.ArgumentTypeError("it is a share: from 0 to below 1")
    return found
