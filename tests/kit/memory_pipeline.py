"""The real driver and the real tasks over a Kafka in memory: no JVM, no broker.

`World` runs `Pipeline.batch` as `foreachBatch` would, over `memory_runner`, so that whole scenarios
(errors, pauses, crashes, new partitions, epochs, snapshots) take milliseconds.
"""

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakemark.connectors.connector import parse
from lakemark.errors import LakemarkError
from lakemark.model.decoding import ANY_CONVERTER, LOG_CHANGED, ConverterChoice
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.offsets import Offsets
from lakemark.model.schema import TableSchema
from lakemark.pipeline import Pipeline
from lakemark.settings.config import Config
from lakemark.source import fetch
from lakemark.source.offset_ranges import OffsetRange
from lakemark.sources.source_set import PipelineSource, Sources
from lakemark.state import ownership, stored_form
from lakemark.state.handling import Mark
from lakemark.state.tables import PipelineState
from tests.kit.memory_runner import MemoryRunner, Shards

# Dead letters of a pipeline with shards go to a broker inside of librdkafka.
MOCK = {"test.mock.num.brokers": 1, "log_level": 3}

Message = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]


class DiedError(BaseException):
    """The process is killed here: nothing after this line has happened."""


@dataclass
class Broker:
    """Topics in memory; `dice` say in which order a shuffle brings rows, each time in another."""

    topics: dict[str, list[list[Message]]] = field(default_factory=dict)
    dice: random.Random = field(default_factory=lambda: random.Random(0))

    def put(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        parts = self.topics.setdefault(topic, [])
        while len(parts) <= partition:
            parts.append([])
        parts[partition].append((key, value, headers or []))

    def shuffled(self, count: int) -> pa.Array:
        """So many rows' numbers, as a shuffle brings them."""
        return pa.array(self.dice.sample(range(count), count), pa.int64())

    def ends(self) -> Offsets:
        return {t: {p: len(m) for p, m in enumerate(parts)} for t, parts in self.topics.items()}

    def read(self, start: Offsets, end: Offsets, *, piece: int = 1000) -> list[pa.RecordBatch]:
        """One list of Arrow batches, a partition after the other."""
        found = []
        for topic, partitions in end.items():
            for partition, stop in partitions.items():
                begin = max(0, start.get(topic, {}).get(partition, 0))
                for first in range(begin, stop, piece):
                    last = min(stop, first + piece)
                    found.append(self._batch(topic, partition, first, last))
        return found

    def _batch(self, topic: str, partition: int, first: int, last: int) -> pa.RecordBatch:
        messages = self.topics[topic][partition][first:last]
        count = len(messages)
        return pa.RecordBatch.from_arrays(
            [
                pa.array([topic] * count),
                pa.array([partition] * count, pa.int32()),
                pa.array(range(first, last), pa.int64()),
                pa.array([m[0] for m in messages], pa.binary()),
                pa.array([m[1] for m in messages], pa.binary()),
                pa.array(
                    [[{"key": k, "value": v} for k, v in m[2]] for m in messages], fetch.HEADERS
                ),
            ],
            schema=fetch.SCHEMA,
        )


@dataclass
class MemoryCheckpoint:
    """States and planned offsets, as `checkpoint.Checkpoint` keeps them in files."""

    planned: dict[int, Offsets] = field(default_factory=dict)
    states: dict[int, bytes] = field(default_factory=dict)
    mark: Mark | None = None
    dies_before_saving: bool = False
    asked: int = 0
    taken_after: int | None = None

    def query_id(self) -> str:
        return "query-0000"

    def check_owner(self) -> None:
        """Nobody else is there, until `taken_after` says so: after that many questions."""
        self.asked += 1
        if self.taken_after is not None and self.asked > self.taken_after:
            raise ownership.superseded(None)

    def topics(self) -> dict[str, str]:
        return {}

    def begun(self) -> Offsets:
        return {}

    def offsets(self, batch: int) -> list[Offsets]:
        return [{topic: partitions} for topic, partitions in self.planned[batch].items()]

    def begin(self, state: PipelineState) -> None:
        self.states[-1] = stored_form.encode(state)

    def load(self, batch: int) -> PipelineState:
        return stored_form.decode(self.states[batch]) if batch in self.states else PipelineState()

    def handling(self) -> Mark | None:
        return self.mark

    def note_handling(self, mark: Mark | None) -> None:
        self.mark = mark

    def save(self, state: PipelineState) -> None:
        if self.dies_before_saving:
            self.dies_before_saving = False
            raise DiedError
        self.states[state.batch] = stored_form.encode(state)


@dataclass
class MemoryCatalog:
    """A catalog that can be changed, and counts how often it was asked."""

    schemas: dict[str, TableSchema]
    live: bool = True
    asked: int = 0
    away: LakemarkError | None = None

    def read(self, names: Any) -> dict[str, TableSchema]:
        self.asked += 1
        if self.away is not None:
            raise self.away
        return {t: s for t, s in self.schemas.items() if names is None or t in names}


def reconnected(sources: Sources, **changes: Any) -> Sources:
    """The only connector with other attributes."""
    (source,) = sources.of
    return Sources((replace(source, connector=replace(source.connector, **changes)),))


@dataclass
class World:
    """A pipeline over a broker, batch by batch.

    With a `signal_table` its connector reads one, too, and it has shards. `attempts`: how often
    every stage runs, see `MemoryRunner`. `converter`: the name of what reads its records.
    """

    root: Path
    broker: Broker
    schemas: dict[str, TableSchema]
    settings: dict[str, Any] = field(default_factory=dict)
    sections: dict[str, Any] = field(default_factory=dict)
    batch: int = -1
    read: Offsets = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    signal_table: str | None = None
    attempts: int = 2
    converter: ConverterChoice = ANY_CONVERTER

    def __post_init__(self) -> None:
        self.config = Config.model_validate(
            {
                "name": "memory",
                "kafka": {"bootstrap_servers": "127.0.0.1:1"},
                "source": {"connector_file": str(self._connector_file())},
                "lake": {"path": str(self.root / "lake"), **self.settings},
                "checkpoint": str(self.root / "checkpoint"),
                **self.sections,
            },
            context={"base": self.root},
        )
        self.checkpoint = MemoryCheckpoint()
        self.catalog = MemoryCatalog(self.schemas)
        shards = Shards(self._controls) if self.signal_table else None
        self.runner = MemoryRunner(
            self._range, self.broker.shuffled, shards=shards, attempts=self.attempts
        )
        self.pipeline = self._start()

    def _controls(self, start: int, end: int) -> list[dict[str, Any]]:
        return self.records[start:end]

    def _publish(self, state: PipelineState) -> None:
        """Have another server's log followed, as the supervisor does."""
        changed = [name for name, entry in state.tables.items() if entry.code == LOG_CHANGED]
        found = [self.pipeline.sources.of_table(name) for name in changed]
        for connector in {source.qualifier for source in found if source is not None}:
            said = {"type": "new-epoch", "id": f"e{state.batch}", "follows": True}
            self.records.append({**said, "connector": connector})

    def _range(self, one: OffsetRange) -> list[pa.RecordBatch]:
        start, end = ({one.topic: {one.partition: at}} for at in (one.start, one.end))
        return self.broker.read(start, end)

    @property
    def shards(self) -> Shards:
        assert self.runner.shards is not None
        return self.runner.shards

    def _connector_file(self) -> Path:
        path = self.root / "connector.json"
        path.write_text('{"name": "shop", "config": {}}')
        return path

    def _start(self) -> Pipeline:
        connector = parse(
            {
                "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
                "topic.prefix": "shop",
                "skipped.operations": "none",
                "key.converter": "org.apache.kafka.connect.json.JsonConverter",
                "value.converter": "org.apache.kafka.connect.json.JsonConverter",
                "key.converter.schemas.enable": "false",
                "value.converter.schemas.enable": "false",
            },
            config=self.config,
        )
        connector = replace(connector, signal_table=self.signal_table, converter=self.converter)
        return Pipeline(
            runner=self.runner,  # type: ignore[arg-type]
            config=self.config,
            sources=Sources(
                (PipelineSource(self.config, connector, self.catalog, HandlingModes()),)
            ),
            checkpoint=self.checkpoint,  # type: ignore[arg-type]
            librdkafka=MOCK if self.signal_table else {},
            end_offsets=lambda topics: {t: self.broker.ends()[t] for t in topics},
            controls=self._controls,
            publish=self._publish,
            snapshots=lambda state, news: None,
            schemas=dict(self.schemas),
        )

    def reconnect(self, **changes: Any) -> None:
        """Let the connector have other attributes."""
        self.pipeline.sources = reconnected(self.pipeline.sources, **changes)

    def restart(self) -> None:
        """A new process: only what is durable is known."""
        self.pipeline = self._start()

    def limit(self, events: int) -> None:
        """`stream.max_events_per_batch`, as of now."""
        stream = self.config.stream.model_copy(update={"max_events_per_batch": events})
        self.config = self.pipeline.config = self.config.model_copy(update={"stream": stream})

    def run(self, upto: Offsets | None = None) -> None:
        """One micro-batch up to these offsets (default: everything)."""
        ends = upto or self.broker.ends()
        self.batch += 1
        self.checkpoint.planned[self.batch] = {
            **{t: dict(p) for t, p in ends.items()},
            self.config.topics.control: {0: len(self.records)},
        }
        self.again()
        self.read = {t: dict(p) for t, p in ends.items()}

    def again(self) -> None:
        """The same batch (again): as after a crash before Spark's commit."""
        planned = dict(self.checkpoint.planned[self.batch])
        control = planned.pop(self.config.topics.control)[0]
        if self.runner.shards is not None:
            self.runner.shards.begin(self.batch, control)
        frame = self.broker.read(self.read, planned)
        self.pipeline.batch(frame, self.batch)  # type: ignore[arg-type]

    @property
    def state(self) -> PipelineState:
        return self.checkpoint.load(self.batch)
