"""The driver of `memory_pipeline` with its shards: what Spark's operator does, by its own function."""

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakemark import tasks
from lakemark.converters.json.envelope import SourceIdentity
from lakemark.reconcile import operator, window
from lakemark.reconcile.state import decode_state
from lakemark.sink.lake_plan import STREAM
from lakemark.tasks import BatchPlan
from tests.kit.memory_pipeline import MemoryPipeline
from tests.kit.shop import Shop

SIGNALS = "public.debezium_signal"
PASSED = pa.schema([field for field in tasks.DECODED if field.name != "shard"])
# Dead letters go to a broker inside of librdkafka.
MOCK = {"test.mock.num.brokers": 1, "log_level": 3}


@dataclass
class Kept:
    """What Spark keeps of one shard, as `operator.fold_group` asks for it."""

    blob: bytes | None

    @property
    def exists(self) -> bool:
        return self.blob is not None

    @property
    def get(self) -> tuple[bytes | None]:
        return (self.blob,)

    def update(self, value: tuple[bytes]) -> None:
        (self.blob,) = value


class ShardedPipeline(MemoryPipeline):
    """The driver with its tasks and its shards.

    Attributes:
        shards: their states, by batch.
        parts: the chunks topic: a shard and what it takes.
        ends: by batch: how many control records and parts it and those before it have taken.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.number = -1
        numbers = range(self.config.stream.shards)
        self.shards: dict[int, dict[int, bytes | None]] = {-1: dict.fromkeys(numbers)}
        self.parts: list[tuple[int, bytes]] = []
        self.ends = {-1: (0, 0)}

    def batch(self, frame: Any, batch: int) -> None:
        self.number = batch
        control = self.checkpoint.planned[batch][self.config.topics.control][0]  # type: ignore[attr-defined]
        self.ends.setdefault(batch, (control, len(self.parts)))
        super().batch(frame, batch)

    def stream(self, frame: Any, plan: BatchPlan) -> Any:
        """Stages run once: the second time a table asks for keys again whose halves wait."""
        self.armed = plan.decode.armed
        return self._finished(self._stages(frame, plan), plan)

    def reconciled(self, decoded: pa.Table, plan: BatchPlan) -> pa.Table:
        """As `operator.reconciled`; what is read again does not go through the shards."""
        if plan.lake.step != STREAM:
            return decoded
        rows = pa.concat_tables([decoded, self._of_snapshots(plan)]).to_pandas()
        states = {shard: Kept(blob) for shard, blob in self.shards[self.number - 1].items()}
        passed = [
            pa.Table.from_pandas(found, PASSED, preserve_index=False)
            for shard, frame in rows.groupby("shard")
            for found in operator.fold_group(
                shard,
                [frame],
                states[shard],  # type: ignore[arg-type]
                slot_of=plan.decode.slot,
            )
        ]
        self.shards[self.number] = {shard: state.blob for shard, state in states.items()}
        return pa.concat_tables([PASSED.empty_table(), *passed])

    def _of_snapshots(self, plan: BatchPlan) -> pa.Table:
        """The batch's control records, to every shard, and its parts of chunks."""
        begin, end = self.ends[self.number - 1], self.ends[self.number]
        records = [json.dumps(record).encode() for record in self.controls(begin[0], end[0])]
        rows = [
            (shard, window.CONTROL, "", "control/0", at, 0, blob)
            for at, blob in enumerate(records)
            for shard in range(plan.decode.shards)
        ]
        rows += [
            (shard, window.CHUNK, "", "chunks/0", at, 0, blob)
            for at, (shard, blob) in enumerate(self.parts[begin[1] : end[1]])
        ]
        columns = zip(*rows, strict=True) if rows else [()] * len(tasks.DECODED)
        return pa.table([*map(list, columns)], tasks.DECODED)

    def touches(self) -> int:
        """How many the shards remember after the newest batch."""
        return sum(sum(decode_state(blob).rows) for blob in self.shards[self.number].values())


class ShardedShop(Shop):
    """A shop whose connector reads a signal table, too."""

    driver = ShardedPipeline
    pipeline: ShardedPipeline

    def _start(self) -> Any:
        pipeline = super()._start()
        pipeline.identity = SourceIdentity("postgresql", "shop", SIGNALS)
        pipeline.librdkafka = MOCK
        return pipeline
