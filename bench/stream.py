"""One busy table: how many events a second, and is the result right?

    ./dev bench stream [--events N] [--keys N] [--batch N] [--rounds N] [--only WHO] [--json FILE]
    ./dev bench stream --start-rows 100000,1000000,10000000 [--hot 0.8]
    ./dev bench stream --database mariadb --only lakemark
    ./dev bench stream --format avro --only lakemark --only usual

The same topic, one contestant after the other, on the same machine. With `--start-rows` the table
has so many rows before the first event; several numbers are a series. With `--database mariadb`
lakemark applies the same events once more, as MariaDB's connector writes them; the types of both
come from the catalogs of databases then. With `--format avro` lakemark and the usual pipeline apply
the same events once more, in Avro. See bench/README.md.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench import report
from bench.delta_rs import DeltaRs
from bench.events import AVRO, MARIADB, POSTGRES, Orders
from bench.ours import ENGINES, Lakemark
from bench.paimon import Paimon
from bench.runs import Contestant, Run, contest, median
from bench.usual import Usual
from stack import flink
from stack.local import service_of
from stack.processes import StackError

TABLE: Final = "orders"
CONTESTANTS: Final[tuple[Contestant, ...]] = (
    *map(Lakemark, ENGINES),
    Usual(),
    Paimon(),
    DeltaRs(),
)
FURTHER: Final = (10, 100)  # times the largest table, by calculation
# What a row of the table costs a batch at least. With deletion vectors every file's index is asked
# for the batch's keys: 23 ms for 200,000 keys among 5,000,000 rows (`key_index.lookup` alone, the
# best of five). Two runs differ by more, so that a line through them may not show it.
LEAST_S: Final = {"lakemark-deletion-vectors": 0.023 / 5_000_000}
MEASURES: Final = ("events_per_s", "steady_events_per_s", "cpu_seconds", "read_seconds")


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if a result is wrong."""
    options = parse(argv)
    chosen = [one for one in CONTESTANTS if is_chosen(one.who, options.only)]
    if options.database:
        chosen += [Lakemark(one.engine, MARIADB) for one in chosen if isinstance(one, Lakemark)]
    if options.format == "avro":
        chosen += [one for contestant in chosen if (one := in_avro(contestant))]
    if any(isinstance(one, Paimon) for one in chosen):
        flink.ensure_flink(say)
    if options.warm_up:
        say("each runs once over a few events (not measured)")
        warm_up(chosen, options.memory, options.database or "")
    before = report.machine()
    runs: list[list[Run]] = []
    rows: list[dict[str, Any]] = []
    for start in options.start_rows:
        orders = orders_of(options, start)
        found = contest(
            chosen,
            orders,
            partitions=options.partitions,
            batch=options.batch,
            memory=options.memory,
            fresh_s=options.fresh,
            rounds=options.rounds,
            keep=options.keep,
            database=options.database or "",
            say=say,
        )
        runs += found
        rows += [{"start_rows": start, **timed(median(rounds), options.batch)} for rounds in found]
    for line in beside(rows):
        say(line)
    return report.show(
        "stream",
        rows,
        settings=settings_of(options, orders),
        before=before,
        wrong=[(run.who, run.wrong) for rounds in runs for run in rounds],
        measures=MEASURES,
        rounds=[run.row() for rounds in runs for run in rounds],
        calculated=beyond(rows),
        also=flink.versions(),
        json_file=options.json,
    )


def in_avro(contestant: Contestant) -> Contestant | None:
    """A contestant that reads PostgreSQL's events, reading them in Avro; None if it cannot."""
    able = isinstance(contestant, Lakemark | Usual) and contestant.form is POSTGRES
    return replace(contestant, form=AVRO) if able else None


def beside(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How the events of MariaDB, or in Avro, fare beside PostgreSQL's in JSON, in the same run."""
    by_name = {row["who"]: row for row in rows}
    found = []
    for who, row in by_name.items():
        ours, comma, _ = who.partition(", ")
        one, two = row["steady_events_per_s"], by_name.get(ours, row)["steady_events_per_s"]
        if comma and one and two:
            found.append(f"{who}: {one / two:.2f} times the events/s of {ours}")
    return found


def timed(row: dict[str, Any], batch: int) -> dict[str, Any]:
    """The row with the seconds that a batch's events take, which checkpoints do not hide."""
    steady = row["steady_events_per_s"]
    return {**row, "seconds_for_batch": round(batch / steady, 2) if steady else None}


def beyond(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The seconds for a batch's events in larger tables: the line through the two largest, which
    rises by `LEAST_S` at least.
    """
    found = []
    for who in dict.fromkeys(row["who"] for row in rows):
        own = [row for row in rows if row["who"] == who and row["seconds_for_batch"]]
        if len(own) < 2:
            continue
        one, two = sorted(own, key=lambda row: row["start_rows"])[-2:]
        rise = two["seconds_for_batch"] - one["seconds_for_batch"]
        slope = max(LEAST_S.get(who, 0.0), rise / (two["start_rows"] - one["start_rows"]))
        for times in FURTHER:
            size = two["start_rows"] * times
            seconds = two["seconds_for_batch"] + slope * (size - two["start_rows"])
            found.append({
                "start_rows": size, "who": who, "correct": all(row["correct"] for row in own),
                "seconds_for_batch": round(seconds, 2),
            })  # fmt: skip
    return found


def orders_of(options: argparse.Namespace, start: int) -> Orders:
    """The events over a table of so many rows; without rows, over so many keys."""
    keys = options.keys or max(1, options.events // 5)
    return Orders(
        TABLE,
        events=options.events,
        keys=start + options.events if start else keys,
        start=start,
        hot=options.hot,
        before=options.replica_identity == "full",
        full=options.full,
    )


def settings_of(options: argparse.Namespace, orders: Orders) -> dict[str, Any]:
    """Sizes and limits for the report."""
    return {
        "events": options.events,
        "keys": options.keys or max(1, options.events // 5),
        "hot": options.hot,
        "replica_identity": options.replica_identity,
        "partitions": options.partitions,
        "batch": options.batch,
        "fresh_s": options.fresh,
        "rounds": options.rounds,
        "value_bytes": next(len(value) for _, value in orders.records(len(orders) // 2)),
        "memory": options.memory,
    }


def is_chosen(who: str, only: list[str] | None) -> bool:
    """Whether a contestant is among these; `lakemark` is lakemark with all engines."""
    return not only or who in only or ("lakemark" in only and who.startswith("lakemark-"))


def warm_up(contestants: list[Contestant], memory: str, database: str) -> None:
    """Runs all of them once over a few events, not measured.

    Jars, Python's byte code and lakemark's archive of Java classes are then where they are on any
    machine that has run them before.
    """
    orders = Orders("warmup", events=20_000, keys=4_000, before=True)
    contest(
        contestants, orders, partitions=4, batch=20_000, memory=memory, fresh_s=1, database=database
    )


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(prog="./dev bench stream", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, help="default: a fifth of the events")
    parser.add_argument("--start-rows", type=numbers, default=[0], metavar="N[,N…]")
    parser.add_argument("--hot", type=float, default=0.0, help="share of changes to 1 %% of rows")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--batch", type=int, default=200_000, help="events per micro-batch")
    parser.add_argument("--fresh", type=float, default=3.0, help="Paimon's checkpoints, seconds")
    parser.add_argument("--memory", default="2g", help="of every JVM")
    parser.add_argument("--rounds", type=int, default=1, help="the figures are medians")
    parser.add_argument(
        "--replica-identity", choices=("full", "default"), default="full",
        help="whether events have the row before; without it Paimon cannot take part",
    )  # fmt: skip
    parser.add_argument("--full", action="store_true", help="every field that Debezium 3.7 writes")
    parser.add_argument("--no-warm-up", dest="warm_up", action="store_false")
    names = ["lakemark", *(one.who for one in CONTESTANTS)]
    parser.add_argument("--only", action="append", choices=names, help="may be given repeatedly")
    parser.add_argument(
        "--database", type=mariadb, metavar="NAME",
        help="lakemark once more over its events: mariadb, or mariadb-10.11",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=("json", "avro"), default="json",
        help="avro: lakemark and the usual pipeline once more over the events in Avro",
    )  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep logs and tables")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def mariadb(name: str) -> str:
    """The service of a MariaDB."""
    try:
        service = service_of(name)
    except StackError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not service.startswith("mariadb"):
        raise argparse.ArgumentTypeError("only MariaDB's events are there beside PostgreSQL's")
    return service


def say(text: str) -> None:
    """One line of progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
