"""An output topic as a consumer sees it: committed records only, and none that goes back."""

import json
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Message as Record

from lakemark.connectors.database import DatabaseAccess
from lakemark.connectors.registry import database_of
from lakemark.converters.json.rows import decode_rows
from lakemark.kafka.output_names import topic_of
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.settings.config import DatabaseConfig, load
from lakemark.sink.names import sources_of
from lakemark.sink.output.output_records import Message
from stack.kafka import Kafka
from stack.local import Database
from stack.processes import wait_for
from tests.kit.rendered_rows import members, payload
from tests.kit.running import Running

READ_S = 300.0


def some(*numbers: int, size: int = 1) -> list[Message]:
    """Messages that say where they stand."""
    return [
        Message(
            n, b"k", str(n).encode() * size, [("lakemark.position", b"00"), ("lakemark.id", b"")]
        )
        for n in numbers
    ]


@dataclass
class Seen:
    """One record: where it stands, what it says, and what its headers say."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    headers: dict[str, bytes]
    order: int

    @property
    def position(self) -> bytes:
        """Of the record, as bytes that can be compared."""
        return bytes.fromhex(self.headers["lakemark.position"].decode())

    @property
    def event(self) -> dict[str, Any]:
        """The value, without its wrapper."""
        read = json.loads(self.value or b"{}")
        return read.get("payload", read)


@dataclass
class OutputTopic:
    """All records of a table's output topic, in the order of each partition."""

    kafka: Kafka
    name: str
    seen: list[Seen] = field(default_factory=list)

    @classmethod
    def of(cls, running: Running, table: str) -> "OutputTopic":
        """The output topic of a pipeline's table."""
        output = load(running.lakemark.config).output
        assert output is not None
        return cls(running.database.stack.kafka, topic_of(output.topic_prefix, table))

    def read(self) -> list[Seen]:
        """Everything up to the topic's end as of now, transactions' markers and all left out."""
        self.seen = []
        if self.name not in self.kafka.topics():
            return self.seen
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka.bootstrap,
                "group.id": f"test-{uuid.uuid4()}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        try:
            partitions = consumer.list_topics(self.name, timeout=60).topics[self.name].partitions
            consumer.assign([TopicPartition(self.name, number, 0) for number in partitions])
            left = set(partitions)

            def at_the_end() -> bool:
                for message in consumer.consume(10_000, timeout=0.2):
                    if message.error() is not None:
                        left.discard(message.partition())
                    else:
                        self.seen.append(_seen(message, len(self.seen)))
                return not left

            wait_for(at_the_end, READ_S, f"the end of {self.name}")
        finally:
            consumer.close()
        return self.seen

    def steps_back(self) -> list[str]:
        """What must not be: a key in two partitions, a position below one before, an id again."""
        found: list[str] = []
        last: dict[bytes, Seen] = {}
        ids: dict[bytes, Seen] = {}
        for one in self.seen:
            before = last.get(one.key)
            if before is not None:
                if before.partition != one.partition:
                    found.append(
                        f"{one.key!r} is in partitions {before.partition}, {one.partition}"
                    )
                if one.position < before.position:
                    found.append(f"{one.key!r} went back: {before} {one}")
            again = ids.setdefault(one.headers["lakemark.id"], one)
            # A delete that comes once more stands behind its own tombstone, at the same position.
            if again is not one and before is not None and before.position != one.position:
                found.append(f"{one.headers['lakemark.id']!r} comes again after others: {one}")
            last[one.key] = one
        return found

    def falls(self, column: str) -> list[str]:
        """Where a key has a row whose number is below the one of a row before it.

        For a column that one writer sets to a growing number: unlike `steps_back` it takes no
        header's word for the order.
        """
        found: list[str] = []
        highest: dict[bytes, int] = {}
        for one in self.seen:
            row = one.event.get("after") if one.value is not None else None
            if row is None:
                continue
            number, before = row[column], highest.get(one.key, row[column])
            if number < before:
                found.append(f"{one.key!r} fell from {before} to {number}: {one}"[:500])
            highest[one.key] = max(number, before)
        return found

    def repeated(self) -> list[str]:
        """Ids that come more than once; `steps_back` tells those that others stand between."""
        times = Counter(one.headers["lakemark.id"].decode() for one in self.seen)
        return [name for name, count in times.items() if count > 1]

    def newest(self) -> dict[bytes, bytes]:
        """The row of every key that has one, as a consumer that upserts and deletes ends up with."""
        rows: dict[bytes, bytes] = {}
        for one in self.seen:
            if one.value is None:
                rows.pop(one.key, None)
            elif one.event["op"] != "d":
                rows[one.key] = members(payload(one.value))["after"]
        return rows


def schema_of(running: Running, table: str) -> TableSchema:
    """A table as the source's catalog has it."""
    database = running.database
    access = DatabaseAccess(DatabaseConfig(url=database.dsn), database.modes, database.config)
    return database_of(access).schemas([table])[table]


def settled(running: Running, table: str, *, placeholders: int = 0) -> OutputTopic:
    """The topic of a table that nothing changes any more: nothing went back, its rows are there."""
    topic = OutputTopic.of(running, table)
    topic.read()
    back = topic.steps_back()
    assert back == [], back
    found = different(running, table, schema_of(running, table), topic.newest())
    lacking = [one for one in found if one.startswith("placeholder")]
    assert found == lacking, [one for one in found if one not in lacking]
    assert len(lacking) <= placeholders, lacking
    return topic


def came_again(database: Database, table: str) -> int:
    """Events that the connector has sent more than once."""
    kafka, topic = database.stack.kafka, database.topic(table)
    count = sum(kafka.end_offsets(topic).values())
    sent = Counter[tuple[bytes | None, str, str]]()
    for record in kafka.read(topic, count=count):
        if record.value() is not None:
            event = json.loads(record.value())
            event = event.get("payload", event)
            sent[record.key(), event["op"], event["source"]["sequence"]] += 1
    return sum(times - 1 for times in sent.values())


def _seen(message: Record, order: int) -> Seen:
    headers = dict(message.headers() or [])
    return Seen(
        message.partition(), message.offset(), message.key(), message.value(), headers, order
    )


def different(
    running: Running, table: str, schema: TableSchema, rows: dict[bytes, bytes]
) -> list[str]:
    """Where a consumer's rows are not those of the Delta table, key by key and typed.

    Placeholders that were passed on are left out, and counted under the key ``""``.
    """
    modes = HandlingModes.from_connector(running.database.config)
    delta = running.rows(table)
    sources = {**sources_of(delta.schema), "_cdc": "_cdc"}
    delta = delta.rename_columns([sources[n] for n in delta.schema.names]).drop_columns(["_cdc"])
    wanted = {tuple(row[name] for name in schema.key): row for row in delta.to_pylist()}
    read = decode_rows(list(rows.values()), schema, modes, partial=range(len(rows)))
    found = [f"{bad}" for bad in read.bad]
    got = {
        tuple(row[name] for name in schema.key): (row, missing or ())
        for row, missing in zip(read.columns.to_pylist(), read.unavailable, strict=True)
        if row is not None
    }
    for key in wanted.keys() | got.keys():
        if key not in got or key not in wanted:
            found.append(f"{key}: only {'in the table' if key in wanted else 'in the topic'}")
            continue
        row, missing = got[key]
        if missing:
            found.append(f"placeholder {key} {missing}")
        pairs = {n: (row[n], wanted[key][n]) for n in row if n not in missing}
        odd = {n: p for n, p in pairs.items() if not _same(*p)}
        if odd:
            found.append(f"{key}: {odd}"[:300])
    return found


def _same(one: Any, other: Any) -> bool:
    """NaN is NaN; the last moment that there is stands for infinity, in any precision."""
    last = [getattr(value, "year", 0) in {1, 9999} for value in (one, other)]
    return repr(one) == repr(other) or all(last)
