"""Batches over a Kafka in memory: a `BatchRunner` that calls the two tasks, and the shards between.

The third runner beside Spark's and the local one: no JVM, no broker, no thread.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakemark import tasks
from lakemark.pipeline import Results
from lakemark.reconcile import operator, window
from lakemark.reconcile.state import decode_state
from lakemark.sink.lake_plan import STREAM
from lakemark.source.offset_ranges import OffsetRange
from lakemark.tasks import BatchPlan

PASSED = pa.schema([field for field in tasks.DECODED if field.name != "shard"])


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


@dataclass
class Shards:
    """The shards' states by batch, and what goes to them beside what is decoded.

    Attributes:
        controls: records of the control topic from one place to before another.
        parts: the chunks topic: a shard and what it takes.
        states: by batch and shard.
        ends: by batch: how many control records and parts it and those before it have taken.
    """

    controls: Callable[[int, int], Sequence[Mapping[str, Any]]]
    parts: list[tuple[int, bytes]] = field(default_factory=list)
    states: dict[int, dict[int, bytes | None]] = field(default_factory=lambda: {-1: {}})
    ends: dict[int, tuple[int, int]] = field(default_factory=lambda: {-1: (0, 0)})

    def begin(self, batch: int, control: int) -> None:
        """A batch begins, perhaps again: it takes what the first attempt took."""
        self.ends.setdefault(batch, (control, len(self.parts)))

    def reconciled(self, decoded: pa.Table, plan: BatchPlan) -> pa.Table:
        """As `operator.reconciled`."""
        batch, before = plan.lake.batch, self.states[plan.lake.batch - 1]
        rows = pa.concat_tables([decoded, self._of_snapshots(batch, plan.decode.shards)])
        states = {shard: Kept(before.get(shard)) for shard in range(plan.decode.shards)}
        passed = [
            pa.Table.from_pandas(found, PASSED, preserve_index=False)
            for shard, frame in rows.to_pandas().groupby("shard")
            for found in operator.fold_group(
                shard,
                [frame],
                states[shard],  # type: ignore[arg-type]
                slot_of=plan.decode.slot,
            )
        ]
        self.states[batch] = {shard: state.blob for shard, state in states.items()}
        return pa.concat_tables([PASSED.empty_table(), *passed])

    def _of_snapshots(self, batch: int, shards: int) -> pa.Table:
        """The batch's control records, to every shard, and its parts of chunks."""
        begin, end = self.ends[batch - 1], self.ends[batch]
        records = [json.dumps(record).encode() for record in self.controls(begin[0], end[0])]
        rows = [
            (shard, window.CONTROL, "", "control/0", at, 0, blob)
            for at, blob in enumerate(records)
            for shard in range(shards)
        ]
        rows += [
            (shard, window.CHUNK, "", "chunks/0", at, 0, blob)
            for at, (shard, blob) in enumerate(self.parts[begin[1] : end[1]])
        ]
        columns = zip(*rows, strict=True) if rows else [()] * len(tasks.DECODED)
        return pa.table([*map(list, columns)], tasks.DECODED)

    def touches(self) -> int:
        """How many the shards remember after the newest batch."""
        newest = self.states[max(self.states)]
        return sum(sum(decode_state(blob).rows) for blob in newest.values())


class MemoryRunner:
    """Runs the stages of batches.

    Args:
        read: the records of a range of a partition, as Arrow batches.
        shuffled: numbers of so many rows in the order in which a shuffle brings them.
        shards: without them a batch has nothing of snapshots.
        attempts: how often each stage runs, as speculated tasks do. Once with shards: the second
            time a table asks again for keys whose halves wait.

    Attributes:
        armed: whether the newest batch had a run of snapshots.
        inserted: rows that come to the merge as if from the shards, for the next step only.
        own_ranges: whether the tasks read what the pipeline says, as they do in quiet times, and
            not what the query brings.
    """

    slots = 2
    errors = ()
    kind = "memory"

    def __init__(
        self,
        read: Callable[[OffsetRange], list[pa.RecordBatch]],
        shuffled: Callable[[int], pa.Array],
        *,
        shards: Shards | None = None,
        attempts: int = 2,
    ) -> None:
        self.read, self.shuffled, self.shards = read, shuffled, shards
        self.attempts = 1 if shards is not None else attempts
        self.armed = False
        self.inserted: list[dict[str, Any]] = []
        self.own_ranges = False

    def require(self, *, armed: bool) -> None:
        """A batch has whatever it needs."""

    def stream(
        self, rows: Any, plan: BatchPlan, news: Callable[[], Sequence[OffsetRange]]
    ) -> Results:
        """See `BatchRunner`; rows are Arrow batches, a partition after the other."""
        self.armed = plan.decode.armed
        if self.own_ranges and not self.armed:
            rows = [batch for one in news() for batch in self.read(one)]
        return self._stages(rows, plan)

    def reread(self, ranges: Sequence[OffsetRange], plan: BatchPlan) -> Results:
        """See `BatchRunner`."""
        return self._stages([batch for one in ranges for batch in self.read(one)], plan)

    def finish(self, *_: object) -> None:
        """See `BatchRunner`; no engine here leaves anything to the driver."""
        raise AssertionError("nothing is left to the driver")

    def _stages(self, rows: Sequence[pa.RecordBatch], plan: BatchPlan) -> Results:
        inserted, self.inserted = self.inserted, []
        for _ in range(self.attempts):
            results = self._once(rows, plan, inserted)
        return results

    def _once(
        self, rows: Sequence[pa.RecordBatch], plan: BatchPlan, inserted: list[dict[str, Any]]
    ) -> Results:
        results = Results()
        decoded = pa.Table.from_batches(tasks.decode(iter(rows), plan.decode), tasks.DECODED)
        if self.shards is not None and plan.lake.step == STREAM:
            decoded = self.shards.reconciled(decoded, plan)
        if inserted:
            more = pa.Table.from_pylist(inserted, decoded.schema)
            decoded = pa.concat_tables([decoded, more])
        decoded = decoded.take(self.shuffled(decoded.num_rows))
        for slot in range(plan.decode.slots):
            mine = decoded.filter(pc.equal(decoded.column("slot"), slot))
            for result in tasks.merge(iter(mine.to_batches()), plan.lake, plan.publishing):
                for row in result.to_pylist():
                    results.take(row["kind"], row["blob"])
        return results
