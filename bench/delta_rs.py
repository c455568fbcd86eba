"""delta-rs without Spark: consume, decode, newest per key, one MERGE per batch; a process of its own.

    python -m bench.delta_rs SPEC.json

The batches are as large as everybody's and the values are typed by lakemark's own decoder, so that
what differs is the way in which rows get into the table. Of each key only the newest event is
decoded. There is neither a checkpoint nor a second process: after a crash it would begin anew.

Prints one line of JSON per batch. `DeltaRs` is the same as a contestant.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable, write_deltalake

from bench.checks import read_delta
from bench.events import ARROW, COLUMNS, POSTGRES, SCHEMA, Form
from bench.runs import Batch, Run, Task, execute
from lakemark.connectors.postgres.schema_file import schemas_from_file
from lakemark.converters.json.rows import decode_rows
from lakemark.model.handling_modes import HandlingModes

LAKE: Final = "lake"
WAIT_S: Final = 1.0
MODES: Final = HandlingModes(decimal_format="NUMERIC")


class Event(msgspec.Struct, gc=False):
    """What of an event is needed; the image stays as it is until its key's newest is known."""

    op: str
    after: msgspec.Raw = msgspec.Raw(b"null")


EVENT: Final = msgspec.json.Decoder(Event)


@dataclass(frozen=True, slots=True)
class Spec:
    """What to read and where to write.

    Attributes:
        bootstrap: Kafka's address.
        topic: of the table.
        path: of the Delta table.
        schemas: the table's columns, as lakemark's schema file has them.
        batch: records per MERGE.
    """

    bootstrap: str
    topic: str
    path: str
    schemas: str
    batch: int


@dataclass(frozen=True, slots=True)
class DeltaRs:
    """delta-rs as a contestant."""

    who: str = "delta-rs"
    form: Form = POSTGRES

    def fill(self, task: Task, rows: pa.RecordBatchReader) -> None:
        """By its own writer."""
        write_deltalake(task.home / LAKE, rows, mode="append")

    def run(self, task: Task) -> Run:
        """Runs to the end of the topic."""
        schemas = task.home / "tables.yaml"  # JSON is YAML
        columns = {f"{SCHEMA}.{task.table}": {"key": ["id"], "columns": COLUMNS}}
        schemas.write_text(json.dumps(columns), encoding="utf-8")
        spec = Spec(
            bootstrap=task.kafka.bootstrap,
            topic=task.topic,
            path=str(task.home / LAKE),
            schemas=str(schemas),
            batch=task.batch,
        )
        file = task.home / "spec.json"
        file.write_text(json.dumps(asdict(spec)), encoding="utf-8")
        used, lines = execute("bench.delta_rs", str(file), log=task.home / "delta-rs.log")
        return Run(self.who, used, [Batch(**line) for line in lines])

    def read(self, task: Task) -> tuple[pa.Table, float]:
        """By delta-rs."""
        return read_delta(task.home / LAKE)


def consume(arguments: list[str]) -> int:
    """Applies what is in the topic, then stops."""
    spec = Spec(**json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    (schema,) = schemas_from_file(Path(spec.schemas), MODES).values()
    if not DeltaTable.is_deltatable(spec.path):
        DeltaTable.create(spec.path, ARROW)
    consumer = Consumer(
        {
            "bootstrap.servers": spec.bootstrap,
            "group.id": "delta-rs",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 262_144,
        }
    )
    left = assign(consumer, spec.topic)
    table = DeltaTable(spec.path)
    while left:
        records = take(consumer, min(spec.batch, left))
        left -= len(records)
        merge(table, newest(records, schema))
        print(json.dumps({"end": time.time(), "events": len(records)}), flush=True)
    consumer.close()
    return 0


def assign(consumer: Consumer, topic: str) -> int:
    """Begins at the beginning of every partition; how many records there are."""
    partitions = [
        TopicPartition(topic, number, 0)
        for number in consumer.list_topics(topic).topics[topic].partitions
    ]
    consumer.assign(partitions)
    return sum(consumer.get_watermark_offsets(partition)[1] for partition in partitions)


def take(consumer: Consumer, count: int) -> list[tuple[bytes, bytes]]:
    """Keys and values of so many records."""
    records: list[tuple[bytes, bytes]] = []
    while len(records) < count:
        for message in consumer.consume(min(10_000, count - len(records)), WAIT_S):
            if message.error():
                raise RuntimeError(message.error())
            records.append((message.key() or b"", message.value() or b""))
    return records


def newest(records: list[tuple[bytes, bytes]], schema: Any) -> pa.Table:
    """The newest event of each key, typed: rows with `op`; of a deleted one only the key.

    All records of a key are in one partition, so the last one to arrive is the newest.
    """
    last = dict(records)
    events = [EVENT.decode(value) for value in last.values()]
    images = [
        key if event.op == "d" else bytes(event.after)
        for key, event in zip(last, events, strict=True)
    ]
    decoded = decode_rows(images, schema, MODES)
    if decoded.bad:
        raise RuntimeError(f"{len(decoded.bad)} rows cannot be read, first: {decoded.bad[0]}")
    rows = pa.Table.from_batches([pa.RecordBatch.from_struct_array(decoded.columns)])
    return rows.append_column("op", pa.array([event.op for event in events]))


def merge(table: DeltaTable, rows: pa.Table) -> None:
    """One MERGE."""
    values = {name: f"s.{name}" for name in ARROW.names}
    (
        table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_delete("s.op = 'd'")
        .when_matched_update(values)
        .when_not_matched_insert(values, "s.op <> 'd'")
        .execute()
    )


if __name__ == "__main__":
    sys.exit(consume(sys.argv[1:]))
