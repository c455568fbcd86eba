"""The connector of `log_model`: its log as the bytes that come to Kafka's partitions."""

import base64
import json
import random
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from tests.kit.log_model import (
    KEY_SCHEMA,
    VALUE_SCHEMA,
    Database,
    Entry,
    Record,
    Row,
)


@dataclass
class Connector:
    """Emits a log to the partitions of a topic, as often as its restarts make it."""

    database: Database
    dice: random.Random
    partitions: list[list[Record]] = field(default_factory=list)

    def run(self, *, start: int = 0) -> list[list[Record]]:
        """All records by partition. `start`: log index at which the mirror's topic begins."""
        log, shape = self.database.log, self.database.shape
        self.partitions = [[] for _ in range(shape.partitions)]
        at, restarts = start, self.dice.choice([0, 1, 3, 6]) if shape.restarts else 0
        fences = {0, start, *self.database.fences}
        while at < len(log):
            self._emit(at)
            at += 1
            if log[at - 1].snapshot in {"true", "last"}:
                continue  # dying in its snapshot, it begins a new one: see `own_snapshot`
            if restarts and self.dice.random() < restarts / len(log):
                restarts -= 1
                lowest = max(f for f in fences if f <= at)
                at = max(lowest, at - self.dice.choice([1, 1, 2, 5, 50]), start)
                self._lose_in_flight(at)
        return self.partitions

    def _lose_in_flight(self, at: int) -> None:
        """Records that were sent but not stored: any tail of a partition that comes again."""
        for records in self.partitions:
            while records and records[-1].entry >= at and self.dice.random() < 0.5:
                records.pop()

    def _emit(self, index: int) -> None:
        entry = self.database.log[index]
        wrapped = self.database.shape.wrapped
        value = value_json(entry, wrapped=wrapped)
        if entry.key is None:
            place = self.dice.choice(self.partitions)
            place.append(Record(None, value, [], index))
            return
        key = key_json(entry.key, wrapped=wrapped)
        headers = [{"key": "__debezium.context.connectorName", "value": b"postgresql"}]
        if entry.new_key is not None:
            text = key_json(entry.new_key, wrapped=False)
            headers.append({"key": "__debezium.newkey", "value": text})
        if entry.old_key is not None:
            text = key_json(entry.old_key, wrapped=False)
            headers.append({"key": "__debezium.oldkey", "value": text})
        place = self.partitions[crc32(key) % len(self.partitions)]
        place.append(Record(key, value, headers, index))
        if entry.op == "d":
            place.append(Record(key, None, headers, index))


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


_KEY_PREFIX = f'{{"schema":{_dump(KEY_SCHEMA)},"payload":'
_VALUE_PREFIX = f'{{"schema":{_dump(VALUE_SCHEMA)},"payload":'


def key_json(key: int, *, wrapped: bool) -> bytes:
    plain = f'{{"id":{key}}}'
    return (f"{_KEY_PREFIX}{plain}}}" if wrapped else plain).encode()


def sequence_json(sequence: tuple[int | None, int]) -> str:
    """`source.sequence`: the last commit before the event, if there was one, and its own LSN."""
    last, own = sequence
    return f'[null,"{own}"]' if last is None else f'["{last}","{own}"]'


def value_json(entry: Entry, *, wrapped: bool) -> bytes:
    own = entry.sequence[1]
    streamed = entry.snapshot == "false"
    source = {
        "version": "3.7.0.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": entry.ts,
        "snapshot": entry.snapshot,
        "db": "shop",
        "sequence": sequence_json(entry.sequence),
        "ts_us": entry.ts * 1000,
        "ts_ns": entry.ts * 1000000,
        "schema": "public",
        "table": "things",
        "txId": 700 if streamed else None,
        "lsn": None if entry.snapshot == "incremental" else own,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    }
    payload = _dump(
        {
            "before": _json_row(entry.before),
            "after": _json_row(entry.after),
            "source": source,
            "transaction": None,
            "op": entry.op,
            "ts_ms": entry.ts + 5,
        }
    )
    return (f"{_VALUE_PREFIX}{payload}}}" if wrapped else payload).encode()


def _json_row(row: Row | None) -> Row | None:
    if row is None:
        return None
    blob = row["c"]
    return {**row, "c": None if blob is None else base64.b64encode(blob).decode()}
