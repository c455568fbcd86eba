"""Events come at a rate of their own: does a pipeline keep up with many tables, how late is it?

    ./dev bench rate [--tables N,N] [--rate N] [--seconds N] [--warm-up N] [--hot SHARE]
                     [--engine NAME] [--poisoned] [--only WHO] [--json FILE]

The tables and events of `tables`, but nobody waits: the events of all tables, mixed, are written at
a rate while the pipeline runs, so a batch that takes longer has more to do. How late an event is
counts from when it is due to the end of its batch, when the last table of the batch is written.
Whoever does not keep up gets later and later: see the two halves. See bench/README.md.
"""

import argparse
import json
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from deltalake import write_deltalake

from bench import report
from bench.events import HEADERS, SCHEMA, zoned_batches
from bench.ours import ENGINES, fill, run_lakemark, write_config
from bench.runs import Batch, Run, check, local_kafka, topic_of
from bench.stream import say
from bench.tables import POISONED, USUAL, Tables, add_options, made
from bench.usual import Spec, run_usual
from stack.kafka import Kafka
from stack.processes import StackError

LIMIT: Final = 1_000_000  # events a batch may have: none is held back
QUEUE: Final = 100_000

BROKEN: Final = b'{"before":null,"after":{"id":'

Record = tuple[str, bytes, bytes]


@dataclass(slots=True)
class Offer:
    """Records that are written at a rate, whatever the reader does.

    Attributes:
        records: topic, key and value of each, in their order.
        rate: records a second.
        begun: when the first was due, seconds since 1970.
        ended: when the last was written.
    """

    records: Sequence[Record]
    rate: float
    begun: float = 0.0
    ended: float = 0.0
    _failed: list[BaseException] = field(default_factory=list)

    def write(self, kafka: Kafka) -> None:
        """Writes all, each not before it is due."""
        producer = kafka.producer(
            enable_idempotence=True,  # else a record that is sent again may come after later ones
            partitioner="murmur2_random",
            linger_ms=20,
            queue_buffering_max_messages=QUEUE,
        )
        self.begun = time.time()
        written = 0
        while written < len(self.records):
            due = min(len(self.records), int((time.time() - self.begun) * self.rate) + 1)
            for topic, key, value in self.records[written:due]:
                producer.produce(topic, value, key, headers=HEADERS)
            written = due
            producer.poll(0.01)
        if producer.flush(60):
            raise StackError("not all events were written within a minute of the last one")
        self.ended = time.time()

    def beside(self, kafka: Kafka) -> threading.Thread:
        """Starts writing in a thread of its own."""

        def write() -> None:
            try:
                self.write(kafka)
            except BaseException as error:  # noqa: BLE001 - said by `figures`
                self._failed.append(error)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        return thread

    @property
    def has_failed(self) -> bool:
        """Whether no more records come: whoever waits for all of them would wait for ever."""
        return bool(self._failed)

    def late(self, batches: Sequence[Batch], warm_up: float) -> Any:
        """How late each record was that was due after the warm-up, in seconds, in their order."""
        if self._failed:
            raise self._failed[0]
        ends = np.array([batch.end for batch in batches])
        counts = np.cumsum([batch.events for batch in batches])
        numbers = np.arange(int(warm_up * self.rate), min(len(self.records), int(counts[-1])))
        due = self.begun + numbers / self.rate
        return ends[np.searchsorted(counts, numbers, side="right")] - due


@dataclass(frozen=True, slots=True)
class Contest:
    """What every contestant is told."""

    tables: Tables
    records: Sequence[Record]
    options: argparse.Namespace
    kafka: Kafka
    home: Path


def main(argv: list[str]) -> int:
    """Runs the benchmark; 1 if a result is wrong."""
    options = parse(argv)
    before = report.machine()
    rows: list[dict[str, Any]] = []
    wrong = []
    contestants: dict[str, Callable[[Contest, Offer], Run]] = {
        USUAL: usual,
        **{
            f"lakemark-{name}": (lambda one, offer, name=name: ours(one, offer, name))
            for name in options.engine or ENGINES
        },
    }
    poisoned = f"{list(contestants)[-1]}, one poisoned"
    if options.poisoned:
        contestants[poisoned] = list(contestants.values())[-1]
    for count in map(int, options.tables.split(",")):
        events = round(options.rate * (options.warm_up + options.seconds))
        tables = made(count, events, rows=options.rows, hot=options.hot, full=options.full)
        for who, contestant in contestants.items():
            if options.only and (who == USUAL) != (options.only == USUAL):
                continue
            say(f"{count} tables of {options.rows:,} rows, {options.rate:,} events/s: {who}")
            records = mixed(tables, poisoned=cold(tables) if who == poisoned else 0)
            with local_kafka() as stack:
                home = stack.directory / "work"
                try:
                    contest = Contest(tables, records, options, stack.kafka, home)
                    offer = Offer(records, options.rate)
                    run = contestant(contest, offer)
                    rows.append(
                        {**figures(run, offer, options.warm_up), "who": who, "tables": count}
                    )
                    wrong.append((who, run.wrong))
                    say(json.dumps(rows[-1]))
                finally:
                    if not options.keep:
                        shutil.rmtree(home, ignore_errors=True)
    settings = {
        name: getattr(options, name)
        for name in ("rows", "rate", "seconds", "warm_up", "hot", "threads", "memory")
    }
    return report.show(
        "rate",
        rows,
        settings=settings,
        before=before,
        wrong=wrong,
        measures=("late_p50", "late_p99", "cores_used"),
        json_file=options.json,
    )


def figures(run: Run, offer: Offer, warm_up: float) -> dict[str, Any]:
    """The run as JSON-ready data; without batches after the warm-up it has no figures."""
    since = offer.begun + warm_up
    later = [batch for batch in run.batches if batch.end > since]
    found: dict[str, Any] = {
        "who": run.who,
        "correct": run.correct,
        "events": run.events,
        "offered_per_s": None,
        "batches": len(later),
        "cpu_seconds": round(run.used.cpu_seconds, 1),
        "peak_rss_mb": run.used.peak_rss_mb,
    }
    keys = ("events_per_batch", "seconds_per_batch", "late_p50", "late_p99", "late_first_half",
            "late_second_half", "cores_used")  # fmt: skip
    late = offer.late(run.batches, warm_up) if later else np.array([])
    if not late.size:
        return {**found, **dict.fromkeys(keys)}
    first, second = np.array_split(late, 2)
    steady = max(later[-1].end - since, 1e-9)
    return {
        **found,
        "offered_per_s": round(len(offer.records) / (offer.ended - offer.begun)),
        "events_per_batch": round(sum(batch.events for batch in later) / len(later)),
        "seconds_per_batch": round(steady / len(later), 2),
        "late_p50": _percentile(late, 50),
        "late_p99": _percentile(late, 99),
        "late_first_half": _percentile(first, 50),
        "late_second_half": _percentile(second, 50),
        "cores_used": round(run.used.cpu_seconds / run.used.seconds, 2),
    }


def _percentile(values: Any, which: float) -> float | None:
    return round(float(np.percentile(values, which)), 2) if values.size else None


def mixed(tables: Tables, *, poisoned: int = 0) -> list[Record]:
    """The events of all tables in one order by dice, each table's in their own.

    Args:
        tables: by name.
        poisoned: how many records beside them nobody can read.
    """
    names = list(tables)
    counts = [*map(len, tables.values()), poisoned]
    order = np.random.default_rng(11).permutation(np.repeat(np.arange(len(counts)), counts))
    streams = [
        *((topic_of(name), tables[name].records()) for name in names),
        (topic_of(POISONED), ((b'{"id":%d}' % n, BROKEN) for n in range(poisoned))),
    ]
    return [(streams[at][0], *next(streams[at][1])) for at in order.tolist()]


def cold(tables: Tables) -> int:
    """How many events a table has that is not hot."""
    return min(map(len, tables.values()))


def ours(contest: Contest, offer: Offer, engine: str) -> Run:
    """lakemark beside the writer, until it has all."""
    tables, home, kafka = contest.tables, contest.home, contest.kafka
    paths = {name: str(home / "lake" / SCHEMA / name) for name in tables}
    for name, orders in tables.items():
        fill(paths[name], orders.base())
    kafka.create_topics({topic for topic, _, _ in contest.records})
    known = dict.fromkeys(topic.rpartition(".")[2] for topic, _, _ in contest.records)
    config = write_config(
        home, kafka, known, max_events=LIMIT, memory=contest.options.memory, engine=engine
    )
    writing = offer.beside(kafka)
    run = run_lakemark(
        config, home, who=f"lakemark-{engine}",
        until=lambda events: events >= len(contest.records) or offer.has_failed,
    )  # fmt: skip
    writing.join()
    return check(run, tables, paths)


def usual(contest: Contest, offer: Offer) -> Run:
    """The usual pipeline beside the writer."""
    tables, home, options = contest.tables, contest.home, contest.options
    paths = {name: str(home / "lake" / name) for name in tables}
    for name, orders in tables.items():
        write_deltalake(paths[name], zoned_batches(orders.base()))
    contest.kafka.create_topics({topic_of(name) for name in tables})
    spec = Spec(
        bootstrap=contest.kafka.bootstrap,
        tables={topic_of(name): paths[name] for name in tables},
        checkpoint=str(home / "checkpoint"),
        max_events=LIMIT,
        memory=options.memory,
        threads=options.threads,
        until=len(contest.records),
    )
    writing = offer.beside(contest.kafka)
    run = run_usual(spec, home, until=lambda _: offer.has_failed)
    writing.join()
    return check(run, tables, paths)


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="./dev bench rate", description=__doc__)
    parser.add_argument("--tables", default="200", help="how many; several numbers are a series")
    parser.add_argument("--rate", type=int, default=5000, help="events a second, of all tables")
    parser.add_argument("--seconds", type=float, default=60, help="how long is measured")
    parser.add_argument("--warm-up", type=float, default=45, help="seconds before, with the start")
    add_options(parser, hot=0.9)
    options = parser.parse_args(argv)
    if min(options.rate, options.seconds) <= 0 or options.warm_up < 0:
        parser.error("--rate and --seconds are more than 0, --warm-up is not less")
    return options
