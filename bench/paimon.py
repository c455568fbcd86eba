"""Paimon's `kafka_sync_table` on Flink: the action as its documents tell to run it.

    python -m bench.paimon SPEC.json

Flink's `run -t local` starts a cluster of two slots in one JVM, which is given the same heap as
Spark's driver. Instead of a limit per batch it has an interval of checkpoints (`fresh_s`): a
checkpoint is a commit of the table, and is noted as a batch when its offsets are committed. The
action has no end of its own: it is stopped when all offsets and the table's snapshot are there.

It needs the row before each update (REPLICA IDENTITY FULL): without it the job fails at the first
update. The topic has no schemas, so the action makes every column a text; values are compared, not types.
It is read by Paimon's own reader in Rust, the counterpart of delta-rs.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.events import ARROW, POSTGRES, Form
from bench.runs import Batch, Run, Task, execute
from stack.flink import OPTIONS, ensure_flink
from stack.java import LOGGING, find_java

DATABASE: Final = "bench"
WAREHOUSE: Final = "warehouse"
BUCKETS: Final = 2  # as many as cores; each is far below the 1 GB that Paimon advises
LOOK_S: Final = 0.1
STILL_S: Final = 5.0  # a snapshot is there some milliseconds after its checkpoint
LONGEST_S: Final = 3600.0
TEXTS: Final = pa.schema([(name, pa.string()) for name in ARROW.names])


@dataclass(frozen=True, slots=True)
class Spec:
    """What to read and where to write.

    Attributes:
        bootstrap: Kafka's address.
        topic: of the table.
        table: its name.
        home: folder of warehouse, checkpoints and log.
        fresh_s: seconds between checkpoints.
        memory: heap of the JVM.
    """

    bootstrap: str
    topic: str
    table: str
    home: str
    fresh_s: float
    memory: str

    def write(self, path: Path) -> Path:
        """Writes the specification for the process of its own."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path


@dataclass(frozen=True, slots=True)
class Paimon:
    """Paimon's action as a contestant."""

    who: str = "paimon"
    form: Form = POSTGRES

    def fill(self, task: Task, rows: pa.RecordBatchReader) -> None:
        """By its reader's writer, then its `compact` action: the rows lie where Flink leaves them."""
        context = connect(task.home)
        context.sql(f"CREATE SCHEMA IF NOT EXISTS paimon.{DATABASE}")
        name = f"paimon.{DATABASE}.{task.table}"
        columns = ", ".join(f"{field} STRING" for field in TEXTS.names)
        context.sql(
            f"CREATE TABLE {name} ({columns}, PRIMARY KEY (id)) WITH ('bucket' = '{BUCKETS}')"
        )
        for number, batch in enumerate(rows):
            source = f"paimon.{DATABASE}.part_{number}"
            context.register_batch(source, as_texts(batch))
            context.sql(f"INSERT INTO {name} SELECT * FROM {source}")
            context.sql(f"DROP TEMPORARY TABLE {source}")
        compact = ["compact", "--warehouse", str(task.home / WAREHOUSE), "--database", DATABASE,
                   "--table", task.table, "--compact_strategy", "full"]  # fmt: skip
        with flink(spec_of(task), compact, settings={"execution.runtime-mode": "BATCH"}) as child:
            if child.wait(LONGEST_S):
                raise RuntimeError(f"Paimon's compaction failed: see {task.home}")

    def run(self, task: Task) -> Run:
        """Runs until everything in the topic is in a snapshot."""
        ensure_flink()
        file = spec_of(task).write(task.home / "spec.json")
        used, lines = execute("bench.paimon", str(file), log=task.home / "paimon.log")
        return Run(self.who, used, [Batch(**line) for line in lines])

    def read(self, task: Task) -> tuple[pa.Table, float]:
        """By Paimon's reader."""
        context = connect(task.home)
        begun = time.perf_counter()
        batches = context.sql(f"SELECT * FROM paimon.{DATABASE}.{task.table}")
        return pa.Table.from_batches(batches), time.perf_counter() - begun


def spec_of(task: Task) -> Spec:
    """The specification of a task."""
    return Spec(
        bootstrap=task.kafka.bootstrap,
        topic=task.topic,
        table=task.table,
        home=str(task.home),
        fresh_s=task.fresh_s,
        memory=task.memory,
    )


def connect(home: Path) -> Any:
    """Paimon's reader on the warehouse."""
    packages = str(ensure_flink().packages)
    if packages not in sys.path:
        sys.path.append(packages)  # last: what lakemark has installed stays what it is
    context = importlib.import_module("pypaimon_rust.datafusion").SQLContext()
    context.register_catalog("paimon", {"warehouse": str(home / WAREHOUSE)})
    return context


def as_texts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as the action writes them: every column a text, times in microseconds."""
    times = rows.schema.get_field_index("updated_at")
    numbers = rows.set_column(times, "updated_at", rows.column(times).cast(pa.int64()))
    return numbers.cast(TEXTS)


def apply(arguments: list[str]) -> int:
    """Runs the action until the table has everything, noting checkpoints."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else Flink would outlive us
    spec = Spec(**json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    group = f"paimon-{os.getpid()}"  # one for each run
    with flink(spec, action(spec, group)) as child:
        for batch in checkpoints(spec, group, child):
            print(json.dumps(asdict(batch)), flush=True)
    return 0


def action(spec: Spec, group: str) -> list[str]:
    """Arguments of the action."""
    kafka = {
        "properties.bootstrap.servers": spec.bootstrap,
        "properties.group.id": group,
        "topic": spec.topic,
        "scan.startup.mode": "earliest-offset",
        "value.format": "debezium-json",
    }
    table = {"bucket": BUCKETS, "sink.parallelism": BUCKETS}
    return [
        *("kafka_sync_table", "--warehouse", str(Path(spec.home) / WAREHOUSE)),
        *("--database", DATABASE, "--table", spec.table, "--primary_keys", "id"),
        *(part for name, value in kafka.items() for part in ("--kafka_conf", f"{name}={value}")),
        *(part for name, value in table.items() for part in ("--table_conf", f"{name}={value}")),
    ]


@contextmanager
def flink(
    spec: Spec, arguments: list[str], *, settings: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs an action of Paimon in a JVM of its own, and ends it."""
    home = Path(spec.home)
    found = ensure_flink()
    conf = home / "conf"
    conf.mkdir(exist_ok=True)
    lines = {
        "parallelism.default": BUCKETS,
        "execution.checkpointing.interval": f"{round(spec.fresh_s * 1000)} ms",
        "execution.checkpointing.dir": (home / "checkpoints").as_uri(),
        "taskmanager.memory.managed.size": "1m",  # Paimon's advice for jobs without state
        # Paimon's jar is on the class path already; twice it would not be itself.
        "classloader.resolve-order": "parent-first",
        "rest.bind-port": 0,
        "restart-strategy.type": "none",  # what stops it once would stop it again
        **(settings or {}),
    }
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in lines.items())
    (conf / "config.yaml").write_text(text, encoding="utf-8")
    command = [
        *(
            str(find_java()),
            f"-Xmx{spec.memory}",
            *OPTIONS,
            f"-Dlog4j2.configurationFile={LOGGING}",
        ),
        *(
            "-cp",
            os.pathsep.join(map(str, found.classpath)),
            "org.apache.flink.client.cli.CliFrontend",
        ),
        *("run", "-t", "local", "-c", "org.apache.paimon.flink.action.FlinkActions"),
        *(str(found.paimon), *arguments),
    ]
    with (
        (home / "flink.log").open("ab") as log,
        subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=home,
            env={**os.environ, "FLINK_CONF_DIR": str(conf)},
        ) as child,
    ):  # fmt: skip
        try:
            yield child
        finally:
            child.kill()  # a snapshot is complete or not there; nothing of an end is measured


def checkpoints(spec: Spec, group: str, child: subprocess.Popen[bytes]) -> Iterator[Batch]:
    """What each checkpoint has brought, until nothing is left and the table stands still."""
    consumer = Consumer({"bootstrap.servers": spec.bootstrap, "group.id": group})
    topic = consumer.list_topics(spec.topic).topics[spec.topic]
    partitions = [TopicPartition(spec.topic, number) for number in topic.partitions]
    total = sum(consumer.get_watermark_offsets(partition)[1] for partition in partitions)
    done, last = 0, Batch(0.0, 0)
    deadline = time.monotonic() + LONGEST_S
    while done < total:
        if child.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"Flink has ended or stands still: {reason(spec)}")
        time.sleep(LOOK_S)
        now = committed(consumer, partitions)
        if now == done:
            continue
        if last.events and time.time() - last.end > spec.fresh_s / 2:
            yield last
            last = Batch(0.0, 0)
        # Each of the two readers commits its own offsets, both at the end of one checkpoint.
        last, done = Batch(time.time(), last.events + now - done), now
    consumer.close()
    yield Batch(max(last.end, settled(spec)), last.events)


def committed(consumer: Consumer, partitions: list[TopicPartition]) -> int:
    """Events whose offsets are committed; 0 while the broker does not know the group yet."""
    try:
        return sum(max(0, one.offset) for one in consumer.committed(partitions))
    except KafkaException:
        return 0


def reason(spec: Spec) -> str:
    """The innermost cause that Flink's log has."""
    text = (Path(spec.home) / "flink.log").read_text(encoding="utf-8", errors="replace")
    causes = [line for line in text.splitlines() if line.startswith("Caused by: ")]
    return causes[-1] if causes else text[-1000:]


def settled(spec: Spec) -> float:
    """When the snapshot of the newest checkpoint was there.

    Offsets and snapshot are committed at the same moment of a checkpoint, in no certain order. A
    snapshot says which checkpoint it is of; after `STILL_S` there is none for want of changes.
    """
    home = Path(spec.home)
    folder = home / WAREHOUSE / f"{DATABASE}.db" / spec.table / "snapshot"
    wanted = max((int(one.name[4:]) for one in (home / "checkpoints").glob("*/chk-*")), default=0)
    begun = time.time()
    while time.time() - begun < STILL_S:
        for one in folder.glob("snapshot-*"):
            if int(json.loads(one.read_bytes())["commitIdentifier"]) >= wanted:
                return one.stat().st_mtime
        time.sleep(LOOK_S)
    return begun


if __name__ == "__main__":
    sys.exit(apply(sys.argv[1:]))
