"""A contest: every contestant over the same topic, one after the other, each measured alike.

A contestant (`Contestant`) fills a table, applies what is in the topic by a process of its own, and
has a reader. Time runs from the start of that process to its end, so Python, Java and Spark's start
are in it. The end of a batch is when its last table is written, as the contestant itself noted it.
`steady` leaves out everything up to the end of the first batch.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from bench.avro_events import AvroOrders, registered
from bench.checks import compare, differences
from bench.events import AVRO, HEADERS, MARIADB, POSTGRES, Form, Orders
from stack.kafka import Kafka
from stack.local import LocalStack
from stack.processes import StackError

ROOT: Final = Path(__file__).parents[1]
SAMPLE_S: Final = 0.25  # between two looks at a process; shorter peaks are missed
SLICE: Final = 20_000  # records between two polls of the producer
SAID: Final = 3000  # characters of a log that a failure shows


Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: when it ended (seconds since 1970) and how many events it had."""

    end: float
    events: int


@dataclass(frozen=True, slots=True)
class Used:
    """What a process and its descendants have taken.

    Attributes:
        seconds: from its start to its end.
        peak_rss_mb: largest sum of resident memory over all of them, in MB of 10^6 bytes; pages
            that processes share count once for each. 0 where /proc is absent.
        cpu_seconds: processor time of all of them, but for what a process used after the last
            look at it.
        written: bytes that all of them gave to file systems (`write_bytes` of /proc), tables,
            checkpoints, spilled data and logs alike, up to the last look.
    """

    seconds: float
    peak_rss_mb: int = 0
    cpu_seconds: float = 0.0
    written: int = 0


@dataclass(slots=True)
class Run:
    """What one contestant did.

    Attributes:
        who: the contestant.
        used: what it took.
        batches: those with events, in order.
        correct: whether the tables hold exactly the expected rows.
        wrong: what differs, by table.
        read_seconds: a full scan of the table afterwards, by the contestant's natural reader.
        input_bytes: of keys and values in the topic.
    """

    who: str
    used: Used
    batches: list[Batch]
    correct: bool = False
    wrong: dict[str, str] = field(default_factory=dict)
    read_seconds: float | None = None
    input_bytes: int = 0

    @property
    def events(self) -> int:
        """Events of all batches."""
        return sum(batch.events for batch in self.batches)

    @property
    def steady_seconds(self) -> float:
        """From the end of the first batch to the end of the last."""
        return self.batches[-1].end - self.batches[0].end if len(self.batches) > 1 else 0.0

    @property
    def steady_events_per_s(self) -> float | None:
        """Events per second without the first batch; None if there was only one."""
        later = self.events - self.batches[0].events if self.batches else 0
        return later / self.steady_seconds if self.steady_seconds > 0 else None

    @property
    def batch_seconds(self) -> float | None:
        """Seconds per batch without the first; None if there was only one."""
        return self.steady_seconds / (len(self.batches) - 1) if len(self.batches) > 1 else None

    def row(self) -> dict[str, Any]:
        """The run as JSON-ready data."""
        steady, batch = self.steady_events_per_s, self.batch_seconds
        used, read = self.used, self.read_seconds
        times = used.written / self.input_bytes if self.input_bytes else None
        return {
            "who": self.who,
            "correct": self.correct,
            "events": self.events,
            "seconds": round(used.seconds, 1),
            "events_per_s": round(self.events / used.seconds) if used.seconds else 0,
            "steady_events_per_s": None if steady is None else round(steady),
            "batches": len(self.batches),
            "seconds_per_batch": None if batch is None else round(batch, 2),
            "cpu_seconds": round(used.cpu_seconds, 1),
            "peak_rss_mb": used.peak_rss_mb,
            "written_per_byte": None if times is None else round(times, 2),
            "read_seconds": None if read is None else round(read, 2),
        }


def median(runs: Sequence[Run]) -> dict[str, Any]:
    """The rows of one contestant's rounds as one: medians; correct if all were."""
    rows = [run.row() for run in runs]
    middle = dict(rows[0])
    for key, value in middle.items():
        if key == "correct":
            middle[key] = all(row[key] for row in rows)
        elif key != "who":
            found = [row[key] for row in rows if row[key] is not None]
            whole = isinstance(value, int)
            middle[key] = (statistics.median(found) if found else None) if not whole else round(
                statistics.median(found)
            )  # fmt: skip
    return middle


@dataclass(frozen=True, slots=True)
class Task:
    """What every contestant is told.

    Attributes:
        home: a folder of the contestant's own, with the filled table if there is one.
        kafka: the broker.
        table: the table's name, in schema `public`.
        partitions: of the table's topic.
        batch: events per micro-batch, where a contestant has a limit.
        fresh_s: how often a contestant without such a limit commits, in seconds.
        memory: of the JVM, for contestants that have one.
        form: how its events are written.
        database: the address of a database whose catalog has the table, if that is needed.
        registry: the address of a registry that has the schemas of events in Avro, if some are.
    """

    home: Path
    kafka: Kafka
    table: str
    partitions: int
    batch: int
    fresh_s: float
    memory: str
    form: Form = POSTGRES
    database: str = ""
    registry: str = ""

    @property
    def topic(self) -> str:
        """The topic that the connector would write this table's events to."""
        return self.form.topic_of(self.table)

    @property
    def limit(self) -> int:
        """Spark's limit for batches of this size."""
        return limit_for(self.batch, self.partitions)


class Contestant(Protocol):
    """Who takes part."""

    @property
    def who(self) -> str:
        """Its name in the report and on the command line."""

    @property
    def form(self) -> Form:
        """How the events are written that it reads."""

    def fill(self, task: Task, rows: pa.RecordBatchReader) -> None:
        """Makes the table with these rows, the fastest way it has; not measured."""

    def run(self, task: Task) -> Run:
        """Applies what is in the topic from its beginning to its end, by a process of its own."""

    def read(self, task: Task) -> tuple[pa.Table, float]:
        """The whole table as the contestant's natural reader gives it, and the seconds it took."""


class Watch(threading.Thread):
    """Samples what a process and its descendants use until it is stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.peak = self.written = 0
        self.cpu: dict[int, float] = {}
        self._begun = time.monotonic()
        self._done = threading.Event()

    def run(self) -> None:
        """Samples; see `SAMPLE_S`."""
        while not self._done.wait(SAMPLE_S):
            family = tree(self.pid)
            self.peak = max(self.peak, sum(rss for rss, _ in family.values()))
            self.cpu.update({pid: cpu for pid, (_, cpu) in family.items()})
            # A process that is waited for leaves its bytes to who waited: only the living count.
            self.written = max(self.written, sum(map(written, family)))

    def stop(self) -> Used:
        """Stops and returns what was used."""
        seconds = time.monotonic() - self._begun
        self._done.set()
        self.join()
        return Used(seconds, self.peak // 1_000_000, sum(self.cpu.values()), self.written)


def tree(root: int) -> dict[int, tuple[int, float]]:
    """Resident bytes and seconds of processor time of a process and its descendants, by pid.

    Empty where /proc is absent.
    """
    page, tick = os.sysconf("SC_PAGESIZE"), os.sysconf("SC_CLK_TCK")
    found: dict[int, tuple[int, int, float]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        cpu = (int(fields[11]) + int(fields[12])) / tick
        found[int(entry.name)] = int(fields[1]), int(fields[21]) * page, cpu
    family = {root}
    while more := {pid for pid, (parent, *_) in found.items() if parent in family} - family:
        family |= more
    return {pid: found[pid][1:] for pid in family & set(found)}


def written(pid: int) -> int:
    """Bytes that a process, and those it has waited for, gave to file systems; 0 if unknown."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0  # it has just ended, or is not ours
    return next((int(x.split()[1]) for x in lines if x.startswith("write_bytes:")), 0)


def produce(kafka: Kafka, events: Mapping[str, Orders | AvroOrders]) -> int:
    """Writes the events of each topic: by key's hash, in order per partition.

    Returns:
        The bytes of their keys and values.
    """
    producer = kafka.producer(
        enable_idempotence=True,
        partitioner="murmur2_random",  # Kafka Connect's own
        linger_ms=50,
        compression_type="lz4",
        queue_buffering_max_messages=4 * SLICE,
    )
    size = 0
    records = ((topic, one) for topic, orders in events.items() for one in orders.records())
    for number, (topic, (key, value)) in enumerate(records):
        size += len(key) + len(value)
        while True:
            try:
                producer.produce(topic, value, key, headers=HEADERS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % SLICE == 0:
            producer.poll(0)
    if producer.flush(120):
        raise StackError("not all events were written in two minutes")
    return size


def limit_for(batch: int, partitions: int) -> int:
    """Spark's limit for batches of this size: it rounds down for each partition.

    Without the allowance a handful of events would be left over and make one more batch.
    """
    return batch + partitions


def topic_of(table: str) -> str:
    """The topic that PostgreSQL's connector would write this table's events to."""
    return POSTGRES.topic_of(table)


def execute(
    module: str,
    *arguments: str,
    log: Path,
    until: Callable[[Sequence[Line]], bool] | None = None,
) -> tuple[Used, list[Line]]:
    """Runs a module of Python as a child to its end: what it used, its lines that are JSON.

    Args:
        module: what is run.
        arguments: its own.
        log: where it writes.
        until: whether these lines are all that is waited for: then it is told to stop (SIGTERM).
            Without it the child ends by itself.
    """
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable}
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=log.parent,
        ) as child,
    ):  # fmt: skip
        watch = Watch(child.pid)
        watch.start()
        try:
            while until is not None and child.poll() is None and not until(lines_of(log)):
                time.sleep(SAMPLE_S)
            if until is not None:
                child.terminate()
            code = child.wait()
        except BaseException:
            child.terminate()
            child.wait(30)
            raise
        finally:
            used = watch.stop()
    if code:
        text = log.read_text(encoding="utf-8", errors="replace")
        raise StackError(f"{module} ended with {code}; {log} ends:\n{text[-SAID:]}")
    return used, lines_of(log)


def lines_of(log: Path) -> list[Line]:
    """The lines of a log that are JSON; what is being written just now has no end yet."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return [
        json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line[:1] == "{"
    ]


def contest(
    contestants: Sequence[Contestant],
    orders: Orders,
    *,
    partitions: int,
    batch: int,
    memory: str,
    fresh_s: float = 3.0,
    rounds: int = 1,
    keep: bool = False,
    database: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> list[list[Run]]:
    """All of them over one table's events, one after the other, on a broker of their own; checked.

    Args:
        contestants: who takes part.
        orders: the events, and the rows that the table has before.
        partitions: of their topic.
        batch: see `Task`.
        memory: see `Task`.
        fresh_s: see `Task`.
        rounds: how often; each begins with another one.
        keep: keeps logs and tables.
        database: the service of `stack.local.DATABASES` whose events some of them read.
        say: told in a few words what takes time.

    Returns:
        The runs of each contestant, in the order of the contestants.
    """
    runs: list[list[Run]] = [[] for _ in contestants]
    sizes: dict[Form, int] = {}
    forms = dict.fromkeys(one.form for one in contestants)
    beside = ["registry"] if AVRO in forms else []
    with local_kafka(*beside, *["postgres", database] if database else []) as stack:
        registry = stack.registry.compatible_url if beside else ""
        for form in forms:
            topic = form.topic_of(orders.table)
            stack.kafka.create_topic(topic, partitions=partitions)
            say(f"writing {len(orders):,} events to {partitions} partitions of {topic}")
            written: Orders | AvroOrders = orders.in_form(form)
            if form is AVRO:
                written = AvroOrders(orders, registered(registry, orders.table))
            sizes[form] = produce(stack.kafka, {topic: written})
        catalogs = with_tables(stack, orders.table, database) if database else {}
        expected = orders.rows()
        work = stack.directory / "work"
        try:
            for number in range(rounds):
                for at in ((number + n) % len(contestants) for n in range(len(contestants))):
                    one, home = contestants[at], work / contestants[at].who
                    task = Task(
                        home, stack.kafka, orders.table, partitions, batch, fresh_s, memory,
                        form=one.form, database=catalogs.get(one.form, ""), registry=registry,
                    )  # fmt: skip
                    say(f"round {number + 1} of {rounds}: {one.who}")
                    run = measured(one, task, orders, expected)
                    run.input_bytes = sizes[one.form]
                    runs[at].append(run)
                    say(json.dumps(run.row()))
                    if not keep:
                        shutil.rmtree(home)
        finally:
            if not keep:
                shutil.rmtree(work, ignore_errors=True)
    return runs


def measured(one: Contestant, task: Task, orders: Orders, expected: pa.Table) -> Run:
    """One contestant's run over a table that is filled before, read and compared after."""
    shutil.rmtree(task.home, ignore_errors=True)
    task.home.mkdir(parents=True)
    if orders.start:
        one.fill(task, orders.base())
        os.sync()  # what filling has written must not be written while we measure
    try:
        run = one.run(task)
        found, run.read_seconds = one.read(task)
        difference = differences(found, expected)
    except StackError as error:  # who cannot go on has lost, and the others go on
        run, difference = Run(one.who, Used(0.0), []), str(error)
    except Exception as error:  # noqa: BLE001 (no table at all is a wrong result, not a crash)
        difference = f"{type(error).__name__}: {error}"
    if difference:
        run.wrong[task.table] = difference
    run.correct = not run.wrong
    return run


def check(run: Run, expected: Mapping[str, Orders], path_of: Mapping[str, str]) -> Run:
    """Compares every Delta table with the rows that must be left, and notes what differs."""
    for table, orders in expected.items():
        difference = compare(path_of[table], orders.rows())
        if difference:
            run.wrong[table] = difference
    run.correct = not run.wrong
    return run


def local_kafka(*beside: str) -> LocalStack:
    """A Kafka of our own, with the compiler that long runs need, and other servers beside it."""
    return LocalStack(name="bench", services=("kafka", *beside), quick=False)


def with_tables(stack: LocalStack, table: str, service: str) -> dict[Form, str]:
    """Make the table, empty, in PostgreSQL and in another database: their catalogs type the events.

    Returns:
        The addresses of the two.
    """
    found = {}
    for form, moment in ((POSTGRES, "timestamp"), (MARIADB, "datetime(6)")):
        server = stack.postgres if form is POSTGRES else stack.database_server(service)
        database = stack.fresh_database(name="shop", server=server)
        database.execute(
            f"CREATE TABLE {table} (id bigint PRIMARY KEY, customer_id bigint NOT NULL,"
            " status varchar(20) NOT NULL, quantity int NOT NULL, amount decimal(12, 2) NOT NULL,"
            f" updated_at {moment} NOT NULL, note varchar(100))"
        )
        found[form] = database.dsn
    return found
