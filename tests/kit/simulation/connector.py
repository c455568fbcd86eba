"""The connector of a simulated history: from the durable log to Kafka, late, twice, with gaps.

Records wait in a queue per Kafka partition and are stored from any of them: order holds within a
partition only. The topic may get partitions: keys then go elsewhere. A restart empties the queues
and begins again at or before the first record that was not stored. The connector may lose its slot: it reads the table anew (op r at an LSN sampled
outside the stream), and what was committed in between is in no record. Debezium's own incremental
reads carry the position of their close row, which is newer than what they saw.
"""

import json
import random
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

from lakemark.connectors.postgres import positions as lsns
from tests.kit.log_model import STEP, TABLE, TOPIC, Entry, Record
from tests.kit.log_records import key_json, sequence_json, value_json
from tests.kit.simulation.source import Change, Committed, Source

SIGNAL_TABLE = "public.debezium_signal"
SIGNAL_TOPIC = "shop.public.debezium_signal"
Place = tuple[str, int]


@dataclass(frozen=True)
class Event:
    """One event of the connector's stream.

    Attributes:
        commit: index of its transaction in the log, -1 of the connector's own snapshot.
        number: its place among the transaction's changes.
        position: 20 bytes, as lakemark computes it.
    """

    commit: int
    number: int
    change: Change
    sequence: tuple[int | None, int]
    position: bytes
    ts: int
    snapshot: str = "false"

    @property
    def is_change(self) -> bool:
        return self.change["op"] in {"c", "u", "d"} and "signal" not in self.change


@dataclass
class Connector:
    """Emits the log to the partitions of a topic and to the signal table's."""

    source: Source
    dice: random.Random
    partitions: int
    stream: list[Event] = field(default_factory=list)
    kafka: dict[Place, list[Record]] = field(default_factory=dict)
    queues: dict[Place, list[Record]] = field(default_factory=dict)
    read: int = 0  # commits taken into the stream
    last_commit: int | None = None
    at: int = 0  # next event to emit
    oldest: int = 0  # no restart goes behind this event
    snapshots: int = 0
    sent: int = 0  # the next event that was never emitted
    resized: int | None = None  # what that was when the topic got partitions
    repeats: bool = False  # events from before that were sent again, perhaps elsewhere

    def __post_init__(self) -> None:
        places = [(TOPIC, n) for n in range(self.partitions)] + [(SIGNAL_TOPIC, 0)]
        self.kafka = {place: [] for place in places}
        self.queues = {place: [] for place in places}

    # -- the stream -----------------------------------------------------------------------------

    def pull(self) -> None:
        """Takes what has become durable into the stream."""
        history = self.source.history
        while self.read < self.source.durable:
            self._take(self.read, history[self.read])
            self.last_commit = history[self.read].commit
            self.read += 1

    def _take(self, index: int, committed: Committed) -> None:
        for number, (lsn, change) in enumerate(committed.changes):
            self._append(index, number, change, lsn, committed.ts)
        if committed.changes:
            lsn = committed.changes[-1][0]
            for key, row in sorted(committed.reads.items()):
                change = {"op": "r", "key": key, "after": row}
                number = len(committed.changes)
                self._append(index, number, change, lsn, committed.ts, snapshot="incremental")

    def _append(
        self, index: int, number: int, change: Change, lsn: Any, ts: int, *, snapshot: str = "false"
    ) -> None:
        sequence = (self.last_commit, lsn)
        position = stream_position(sequence)
        self.stream.append(Event(index, number, change, sequence, position, ts, snapshot))

    def can_emit(self) -> bool:
        self.pull()
        return self.at < len(self.stream)

    def emit(self) -> None:
        """One event into the queue of its partition."""
        event = self.stream[self.at]
        record = self._record(event, self.at)
        if "signal" in event.change:
            place = (SIGNAL_TOPIC, 0)
        elif record.key is None:
            place = (TOPIC, self.dice.randrange(self.partitions))
        else:
            place = self.place_of(event.change["key"])
        self.queues[place].append(record)
        self.at += 1
        self.sent = max(self.sent, self.at)

    def place_of(self, key: int) -> Place:
        """The partition of a key's records."""
        return TOPIC, crc32(key_json(key, wrapped=False)) % self.partitions

    def _record(self, event: Event, index: int) -> Record:
        change = event.change
        if "signal" in change:
            return self._signal_record(event, index)
        entry = Entry(
            change["op"], event.sequence, event.ts, change.get("key"), change.get("before"),
            change.get("after"), event.snapshot, change.get("new_key"), change.get("old_key"),
        )  # fmt: skip
        if change.get("bad") == "value":
            entry = replace(entry, after={**change["after"], "a": "no number"})
        value = self._value(entry, event)
        headers: list[dict[str, Any]] = []
        if entry.key is None:
            return Record(None, value, headers, index)
        for name in ("new_key", "old_key"):
            if change.get(name) is not None:
                header = f"__debezium.{name.replace('_', '')}"
                text = key_json(change[name], wrapped=False)
                headers.append({"key": header, "value": text})
        key = key_json(entry.key, wrapped=False)
        if change.get("bad") == "key":
            key = b'{"id":"no number"}'
        return Record(key, value, headers, index)

    def _value(self, entry: Entry, event: Event) -> bytes:
        return value_json(entry, wrapped=False)

    def _signal_record(self, event: Event, index: int) -> Record:
        return _signal_record(event, index, self._source_of_signal(event))

    def _source_of_signal(self, event: Event) -> dict[str, Any]:
        return {
            "connector": "postgresql", "name": "shop", "ts_us": event.ts * 1000,
            "snapshot": "false", "db": "shop", "schema": "public", "table": "debezium_signal",
            "sequence": sequence_json(event.sequence), "lsn": event.sequence[1],
        }  # fmt: skip

    # -- Kafka ----------------------------------------------------------------------------------

    def waiting(self) -> list[Place]:
        """Partitions that have records to be stored."""
        return [place for place, queue in self.queues.items() if queue]

    def deliver(self, place: Place, count: int = 1) -> None:
        queue = self.queues[place]
        self.kafka[place] += queue[:count]
        del queue[:count]

    def restart(self, back: int) -> None:
        """Loses what was not stored and begins `back` events before it, or a little later."""
        undelivered = min(
            (record.entry for queue in self.queues.values() for record in queue), default=self.at
        )
        self.at = max(self.oldest, undelivered - back)
        self.repeats |= self.resized is not None and self.at < self.resized
        for queue in self.queues.values():
            queue.clear()

    def resize(self) -> None:
        """The topic gets twice its partitions; what went to the old ones is stored by then.

        No key moves between old ones then, as they would with other numbers.
        """
        for place, queue in self.queues.items():
            self.deliver(place, len(queue))
        self.resized = self.sent
        self.repeats = self.at < self.sent
        for number in range(self.partitions, 2 * self.partitions):
            self.kafka[TOPIC, number], self.queues[TOPIC, number] = [], []
        self.partitions *= 2

    def in_snapshot(self) -> bool:
        """Whether rows of the own snapshot wait: dying now, it would begin a new one."""
        return self.at < self.oldest or any(
            record.entry < self.oldest for queue in self.queues.values() for record in queue
        )

    def lose_slot(self) -> None:
        """A gap in the log, and the table as of its end."""
        source = self.source
        self.pull()
        for queue in self.queues.values():
            queue.clear()
        source.flush()
        source.sampled = source.lsn
        self.read, self.last_commit = len(source.history), None
        rows, _ = source.state(self.read)
        at = lsns.pack(0, 0, source.sampled)
        ts = len(source.history) * 1000
        keys = sorted(rows)
        self.at = len(self.stream)
        for key in keys:
            mark = "last" if key == keys[-1] else "true"
            change = {"op": "r", "key": key, "after": rows[key]}
            self.stream.append(Event(-1, 0, change, (None, source.sampled), at, ts, mark))
        self.oldest = len(self.stream)
        self.snapshots += 1


def stream_position(sequence: tuple[int | None, int]) -> bytes:
    """The position of an event of the stream, as lakemark computes it."""
    assert all(number % STEP == 0 for number in sequence if number is not None), sequence
    parts = lsns.of_stream(sequence_json(sequence), None)
    assert parts is not None
    return lsns.pack(0, *parts)


def _signal_record(event: Event, index: int, source: dict[str, Any]) -> Record:
    uuid, kind, data = event.change["signal"]
    value = {
        "before": None,
        "after": {"id": uuid, "type": kind, "data": data},
        "source": source,
        "op": "c",
        "ts_ms": event.ts,
    }
    return Record(json.dumps({"id": uuid}).encode(), json.dumps(value).encode(), [], index)


__all__ = ["SIGNAL_TABLE", "SIGNAL_TOPIC", "TABLE", "TOPIC", "Connector", "Event"]
