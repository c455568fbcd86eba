"""Many small tables: how long does a batch take that touches all of them?

    ./dev bench tables [--tables N] [--rows N] [--batches N] [--per-table N] [--json FILE]

Every table starts with its rows in place; then come batches with a few events for each. The usual
pipeline merges table after table. See bench/README.md.
"""

import argparse
import shutil
from pathlib import Path

from deltalake import write_deltalake

from bench import report
from bench.events import SCHEMA, Orders, zoned
from bench.ours import run_lakemark, write_config
from bench.runs import Run, check, limit_for, local_kafka, produce, topic_of
from bench.stream import say
from bench.usual import Spec, run_usual
from stack.kafka import Kafka


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if a result is wrong."""
    options = parse(argv)
    events = options.batches * options.per_table
    tables = {
        f"orders_{n:02d}": Orders(
            f"orders_{n:02d}",
            events=events,
            keys=options.rows + events,
            load=options.rows,
            seed=n,
            full=options.full,
        )
        for n in range(options.tables)
    }
    before = report.machine()
    runs: list[Run] = []
    with local_kafka() as stack:
        work = stack.directory / "work"
        try:
            if options.only != "usual":
                runs.append(ours(tables, options, stack.kafka, work / "lakemark"))
            if options.only != "lakemark":
                runs.insert(0, usual(tables, options, stack.kafka, work / "usual"))
        finally:
            if not options.keep:
                shutil.rmtree(work, ignore_errors=True)
    settings = {
        "tables": options.tables,
        "rows": options.rows,
        "batches": options.batches,
        "events_per_table": options.per_table,
        "threads": options.threads,
        "driver_memory": options.memory,
    }
    return report.show(
        "tables",
        [run.row() for run in runs],
        settings=settings,
        before=before,
        wrong=[(run.who, run.wrong) for run in runs],
        measures=("seconds_per_batch", "cpu_seconds"),
        json_file=options.json,
    )


def ours(tables: dict[str, Orders], options: argparse.Namespace, kafka: Kafka, home: Path) -> Run:
    """Loads the tables by a run of its own (not measured), then runs over the batches."""
    say(f"{options.tables} tables of {options.rows:,} rows, written by lakemark (not measured)")
    for table in tables:
        kafka.create_topic(topic_of(table))
    load(tables, kafka, 0, options.rows)
    names = list(tables)
    config = write_config(home, kafka, names, max_events=200_000, memory=options.memory)
    run_lakemark(config, home)
    load(tables, kafka, options.rows, None)
    say(f"lakemark, {options.batches} batches")
    limit = limit_for(options.tables * options.per_table, options.tables)
    config = write_config(home, kafka, names, max_events=limit, memory=options.memory)
    run = run_lakemark(config, home)
    return check(run, tables, {name: str(home / "lake" / SCHEMA / name) for name in tables})


def usual(tables: dict[str, Orders], options: argparse.Namespace, kafka: Kafka, home: Path) -> Run:
    """Writes the tables as they are after the load, then runs over topics without the load."""
    say(f"the usual pipeline, {options.batches} batches")
    paths = {name: str(home / "lake" / name) for name in tables}
    for name, orders in tables.items():
        write_deltalake(paths[name], zoned(orders.loaded(options.rows)))
        kafka.create_topic(f"usual.{name}")
    load(tables, kafka, options.rows, None, prefix="usual.")
    spec = Spec(
        bootstrap=kafka.bootstrap,
        tables={f"usual.{name}": paths[name] for name in tables},
        checkpoint=str(home / "checkpoint"),
        max_events=limit_for(options.tables * options.per_table, options.tables),
        memory=options.memory,
        threads=options.threads,
    )
    return check(run_usual(spec, home), tables, paths)


def load(
    tables: dict[str, Orders], kafka: Kafka, start: int, stop: int | None, *, prefix: str = ""
) -> None:
    """Writes the events from `start` to before `stop` of every table to its topic."""
    for name, orders in tables.items():
        produce(kafka, f"{prefix}{name}" if prefix else topic_of(name), orders, start, stop)


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="./dev bench tables", description=__doc__)
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--rows", type=int, default=10_000, help="of each table at the start")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--per-table", type=int, default=100, help="events per table and batch")
    parser.add_argument("--threads", type=int, default=1, help="merges at a time, usual pipeline")
    parser.add_argument("--memory", default="2g", help="of Spark's driver, for both")
    parser.add_argument("--full", action="store_true", help="every field that Debezium 3.7 writes")
    parser.add_argument("--only", choices=("usual", "lakemark"))
    parser.add_argument("--keep", action="store_true", help="keep logs and tables")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)
