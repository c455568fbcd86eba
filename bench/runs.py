"""Running one contestant as a child process: its time, its batches, its memory, its result.

Both contestants are measured the same way. Time runs from the start of the process to its end, so
Python, Java and Spark's start are in it. The end of a batch is when its last table is written, as
the contestant itself noted it. `steady` leaves out everything up to the end of the first batch.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from bench.events import ARROW, COLUMNS, CONNECTOR, SCHEMA, Orders
from bench.usual import Spec
from stack.kafka import Kafka
from stack.local import LocalStack
from stack.processes import StackError

ROOT: Final = Path(__file__).parents[1]
SAMPLE_S: Final = 0.25  # between two looks at a process; shorter peaks are missed
SLICE: Final = 20_000  # records between two polls of the producer


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: when it ended (seconds since 1970) and how many events it had."""

    end: float
    events: int


@dataclass(slots=True)
class Run:
    """What one contestant did.

    Attributes:
        who: `usual` or `lakemark`.
        seconds: from the start of the process to its end.
        batches: those with events, in order.
        peak_rss_mb: largest sum of resident memory over the process and its descendants, in MB
            of 10^6 bytes; pages that processes share count once for each. 0 where /proc is absent.
        cpu_seconds: processor time of all of them, but for what a process used after the last look
            at it.
        correct: whether the tables hold exactly the expected rows.
        wrong: what differs, by table.
    """

    who: str
    seconds: float
    batches: list[Batch]
    peak_rss_mb: int
    cpu_seconds: float = 0.0
    correct: bool = False
    wrong: dict[str, str] = field(default_factory=dict)

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
        return {
            "who": self.who,
            "events": self.events,
            "seconds": round(self.seconds, 1),
            "events_per_s": round(self.events / self.seconds),
            "steady_events_per_s": None if steady is None else round(steady),
            "batches": len(self.batches),
            "seconds_per_batch": None if batch is None else round(batch, 2),
            "cpu_seconds": round(self.cpu_seconds, 1),
            "peak_rss_mb": self.peak_rss_mb,
            "correct": self.correct,
        }


class Watch(threading.Thread):
    """Samples memory and processor time of a process and its descendants until it is stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.peak = 0
        self.cpu: dict[int, float] = {}
        self._done = threading.Event()

    def run(self) -> None:
        """Samples; see `SAMPLE_S`."""
        while not self._done.wait(SAMPLE_S):
            family = tree(self.pid)
            self.peak = max(self.peak, sum(rss for rss, _ in family.values()))
            self.cpu.update({pid: cpu for pid, (_, cpu) in family.items()})

    def stop(self) -> tuple[int, float]:
        """Stops and returns the peak in MB and the processor time in seconds."""
        self._done.set()
        self.join()
        return self.peak // 1_000_000, sum(self.cpu.values())


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


def produce(
    kafka: Kafka, topic: str, orders: Orders, start: int = 0, stop: int | None = None
) -> None:
    """Writes the events from `start` to before `stop`: by key's hash, in order per partition."""
    producer = kafka.producer(
        enable_idempotence=True,
        partitioner="murmur2_random",  # Kafka Connect's own
        linger_ms=50,
        compression_type="lz4",
        queue_buffering_max_messages=4 * SLICE,
    )
    for number, (key, value) in enumerate(orders.records(start, stop)):
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.1)
        if number % SLICE == 0:
            producer.poll(0)
    if producer.flush(120):
        raise StackError(f"not all events of {topic} were written in two minutes")


def limit_for(batch: int, partitions: int) -> int:
    """Spark's limit for batches of this size: it rounds down for each partition.

    Without the allowance a handful of events would be left over and make one more batch.
    """
    return batch + partitions


def topic_of(table: str) -> str:
    """The topic that the connector would write this table's events to."""
    return f"{CONNECTOR}.{SCHEMA}.{table}"


def run_usual(spec: Spec, work: Path) -> Run:
    """Runs the usual pipeline over what is in the topics."""
    work.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "bench.usual", str(spec.write(work / "spec.json"))]
    seconds, (peak, cpu), lines = _run(command, work / "usual.log")
    records: dict[str, int] = next((line["records"] for line in lines if "records" in line), {})
    batches = [Batch(x["end"], records.get(str(x["batch"]), 0)) for x in lines if "end" in x]
    return Run("usual", seconds, [b for b in batches if b.events], peak, cpu)


def run_lakemark(config: Path, work: Path, *, module: str = "lakemark") -> Run:
    """Runs `lakemark run --once`, or a variant of it, over what is in the topics."""
    command = [sys.executable, "-m", module, "run", "--once", "-c", str(config)]
    seconds, (peak, cpu), lines = _run(command, work / "lakemark.log")
    batches = [
        Batch(datetime.fromisoformat(line["timestamp"]).timestamp(), line["events"])
        for line in lines
        if line.get("event") == "batch.done"
    ]
    return Run("lakemark", seconds, [b for b in batches if b.events], peak, cpu)


_Watched = tuple[float, tuple[int, float], list[dict[str, Any]]]


def _run(command: Sequence[str], log: Path) -> _Watched:
    """Runs a child to its end: seconds, peak MB and CPU, and its lines that are JSON objects."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    begun = time.monotonic()
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=log.parent
        ) as child,
    ):
        watch = Watch(child.pid)
        watch.start()
        try:
            code = child.wait()
        except BaseException:
            child.terminate()
            child.wait(30)
            raise
        finally:
            used = watch.stop()
    seconds = time.monotonic() - begun
    text = log.read_text(encoding="utf-8", errors="replace")
    if code:
        raise StackError(f"{command[2]} ended with {code}; {log} ends:\n{text[-3000:]}")
    return seconds, used, [json.loads(line) for line in text.splitlines() if line[:1] == "{"]


def write_config(
    work: Path, kafka: Kafka, tables: Iterable[str], *, max_events: int, memory: str
) -> Path:
    """Writes a lakemark configuration with its connector and schema file; returns its path.

    Calling it again with other limits keeps lake and checkpoint: the next run goes on there.
    """
    work.mkdir(parents=True, exist_ok=True)
    converter = "org.apache.kafka.connect.json.JsonConverter"
    connector = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": CONNECTOR,
        "plugin.name": "pgoutput",
        "skipped.operations": "none",
        "tombstones.on.delete": "false",
        "key.converter": converter,
        "key.converter.schemas.enable": "false",
        "value.converter": converter,
        "value.converter.schemas.enable": "false",
        "value.converter.decimal.format": "NUMERIC",
    }
    schemas = {f"{SCHEMA}.{table}": {"key": ["id"], "columns": COLUMNS} for table in tables}
    config = {
        "name": CONNECTOR,
        "kafka": {"bootstrap_servers": kafka.bootstrap},
        "source": {"connector_file": "connector.json", "schema_file": "tables.yaml"},
        "lake": {"path": "lake"},
        "stream": {"max_events_per_batch": max_events},
        "checkpoint": "checkpoint",
        "log": {"format": "json"},
        "spark": {"spark.driver.memory": memory},
    }
    path = work / "lakemark.yaml"  # JSON is YAML
    for file, data in (("connector.json", connector), ("tables.yaml", schemas), (path, config)):
        (work / file).write_text(json.dumps(data, indent=1), encoding="utf-8")
    return path


def contest(
    orders: Orders,
    *,
    partitions: int,
    max_events: int,
    memory: str,
    only: str | None = None,
    keep: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> list[Run]:
    """Both over one table's events, one after the other, on a broker of their own; checked.

    Args:
        orders: the events.
        partitions: of their topic.
        max_events: limit of a batch, as each contestant is told.
        memory: of Spark's driver, for both.
        only: `usual` or `lakemark`; None is both.
        keep: keeps logs and tables.
        say: told in a few words what takes time.
    """
    table, topic = orders.table, topic_of(orders.table)
    runs: list[Run] = []
    with local_kafka() as stack:
        stack.kafka.create_topic(topic, partitions=partitions)
        say(f"writing {len(orders):,} events to {partitions} partitions")
        produce(stack.kafka, topic, orders)
        work = stack.directory / "work"
        try:
            if only != "lakemark":
                say("the usual pipeline")
                path = str(work / "usual" / "lake" / table)
                spec = Spec(
                    bootstrap=stack.kafka.bootstrap,
                    tables={topic: path},
                    checkpoint=str(work / "usual" / "checkpoint"),
                    max_events=max_events,
                    memory=memory,
                )
                runs.append(check(run_usual(spec, work / "usual"), {table: orders}, {table: path}))
            if only != "usual":
                say("lakemark")
                home = work / "lakemark"
                config = write_config(
                    home, stack.kafka, [table], max_events=max_events, memory=memory
                )
                path = str(home / "lake" / SCHEMA / table)
                runs.append(check(run_lakemark(config, home), {table: orders}, {table: path}))
        finally:
            if not keep:
                shutil.rmtree(work, ignore_errors=True)
    return runs


def warm_up(memory: str) -> None:
    """Runs both once over a few events, not measured.

    Jars, Python's byte code and lakemark's archive of Java classes are then where they are on any
    machine that has run them before.
    """
    orders = Orders("warmup", events=20_000, keys=4_000)
    contest(orders, partitions=4, max_events=20_000, memory=memory)


def check(run: Run, expected: Mapping[str, Orders], path_of: Mapping[str, str]) -> Run:
    """Compares every table with the rows that must be left, and notes what differs."""
    for table, orders in expected.items():
        difference = compare(path_of[table], orders.rows())
        if difference:
            run.wrong[table] = difference
    run.correct = not run.wrong
    return run


def compare(path: str, expected: pa.Table) -> str:
    """What differs between a Delta table and the expected rows; empty if nothing does."""
    try:
        found = DeltaTable(path).to_pyarrow_table(columns=ARROW.names)
    except Exception as error:  # noqa: BLE001 (no table at all is a wrong result, not a crash)
        return f"{type(error).__name__}: {error}"
    found = found.sort_by("id")
    if found.num_rows != expected.num_rows:
        return f"{found.num_rows} rows, expected {expected.num_rows}"
    for name in ARROW.names:
        kind = ARROW.field(name).type
        column = found.column(name)
        if pa.types.is_timestamp(column.type):  # with zone or without: the same microseconds
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).cast(kind)
        if not column.cast(kind).equals(expected.column(name)):
            return f"column {name} differs"
    return ""


def local_kafka() -> LocalStack:
    """A Kafka of our own, with the compiler that long runs need."""
    return LocalStack(name="bench", services=("kafka",), quick=False)
