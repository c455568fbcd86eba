"""Runs the batches in this process alone: no JVM, no Spark.

The same functions do the work, one after the other in the query's thread: records are read and
decoded (`fetch`, `tasks.decode`), the shards fold theirs (`reconcile.window`), tables are merged
(`tasks.merge`). Chunks are read by the coordinator's threads. The checkpoint has the files that
Spark's has, in their forms; what the shards remember is in `lakemark/shards/<batch>`.

Promises are those of a query of Spark's:

1. end offsets of a batch are noted before it begins: repeated, it has the same records;
2. it is noted as done when `Batches.on_batch` has returned, and only then is another one planned;
3. the shards' state is that of the batch before, however often a batch is repeated.

It is what tests run pipelines on where Spark is not what they test.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import structlog

from lakemark import tasks
from lakemark.errors import TableError
from lakemark.kafka import brokers
from lakemark.kafka.client_settings import by_offset, carried
from lakemark.model.offsets import Offsets
from lakemark.model.schema import TableSchema
from lakemark.reconcile import window
from lakemark.runners.batch_runner import CONTROL_RECORDS, Batches, chunk_records
from lakemark.runners.graceful_stop import QueryStoppedError
from lakemark.settings.config import Config
from lakemark.sink.lake_plan import LakePlan, TableOutcome, TablePlan
from lakemark.snapshot.chunk_task import OpenClients, ReadSettings, run_chunk
from lakemark.snapshot.chunks import ChunkResult, ChunkSpec, parts_of
from lakemark.source import fetch, offset_ranges
from lakemark.source.offset_ranges import OffsetRange
from lakemark.state.advance import Results
from lakemark.state.checkpoint import LOCAL, Checkpoint
from lakemark.state.checkpoint_files import LocalFiles, require_folder
from lakemark.state.control import PARTITION
from lakemark.tasks import BatchPlan

log = structlog.get_logger(__name__)

_GIVEN_UP_S: Final = 1.0
_ROW: Final = pa.schema([field for field in tasks.DECODED if field.name != "shard"])


class QueryFailedError(Exception):
    """The query has ended with an error: its cause."""


class LocalRunner:
    """See `BatchRunner`.

    Raises:
        PipelineError: `checkpoint-unwritable`.
    """

    errors: Final = (QueryFailedError,)
    kind: Final = LOCAL
    slots: Final = 1

    def __init__(self, config: Config) -> None:
        self._config = config
        self._path = Path(config.checkpoint.removeprefix("file:"))
        require_folder(self._path)
        self._client: dict[str, Any] = {}
        self._checkpoint = self.checkpoint()
        self._kept = threading.local()
        fetch.ready()

    def checkpoint(self) -> Checkpoint:
        """See `BatchRunner`."""
        return Checkpoint(LocalFiles(self._path), str(self._path))

    def start(
        self,
        batches: Batches,
        checkpoint: Checkpoint,
        *,
        pattern: str,
        schemas: Mapping[str, TableSchema],  # noqa: ARG002 - a plan has them all
        armed: bool,  # noqa: ARG002 - every batch has all stages
        once: bool,
    ) -> "LocalQuery":
        """See `BatchRunner`."""
        self._checkpoint = checkpoint
        self._client = carried(by_offset(self._config))  # as it is now: a password may be another
        return LocalQuery(batches, checkpoint, _Sources(self._config, pattern), once=once)

    def require(self, *, armed: bool) -> None:
        """See `BatchRunner`."""

    def stream(
        self,
        rows: Sequence[OffsetRange],
        plan: BatchPlan,
        changes: Callable[[], Sequence[OffsetRange]],
    ) -> Results:
        """See `BatchRunner`; `rows` are the records of lakemark's own topics."""
        batch, shards = plan.lake.batch, range(plan.decode.shards)
        passed = list[dict[str, Any]]()
        taken: dict[int, list[window.Row]] = {shard: [] for shard in shards}
        for row in _decoded(changes(), self._client, plan):
            if row["kind"] in window.FOLDED:
                taken[row["shard"]].append((row["kind"], row["source"], row["first"], row["blob"]))
            else:
                passed.append(row)
        for one in fetch.records(rows, self._client) if rows else ():
            for record in one.to_pylist():
                for shard, taken_row in self._own(record, shards):
                    taken[shard].append(taken_row)
        states = self._checkpoint.shards(batch - 1)
        for shard in shards:
            folded = window.fold_rows(shard, taken[shard], states.get(shard))
            if folded is None:
                continue
            if folded.state is not None:
                states[shard] = folded.state
            passed += [
                {
                    "kind": out.kind,
                    "table": out.table,
                    "source": out.source,
                    "first": shard,
                    "slot": 0,
                    "blob": out.blob,
                }
                for out in folded.outputs
            ]
        self._checkpoint.note_shards(batch, states)
        return _merged(passed, plan)

    def _own(self, record: Mapping[str, Any], shards: range) -> Iterator[tuple[int, window.Row]]:
        """Yield the shards and rows that a record of the chunks or control topic becomes.

        See `operator`.
        """
        source, at = f"{record['topic']}/{record['partition']}", record["offset"]
        if record["topic"] == self._config.topics.control:
            if record["value"] is not None:
                for shard in shards:
                    yield shard, (window.CONTROL, source, at, record["value"])
            return
        for shard, blob in parts_of(record):
            if shard in shards:
                yield shard, (window.CHUNK, source, at, blob)

    def reread(self, ranges: Sequence[OffsetRange], plan: BatchPlan) -> Results:
        """See `BatchRunner`."""
        rows = list(_decoded(ranges, self._client, plan))
        return _merged(rows, plan) if ranges else Results()

    def finish(self, table_plan: TablePlan, outcome: TableOutcome, plan: LakePlan) -> None:  # noqa: ARG002
        """See `BatchRunner`.

        Raises:
            TableError: `engine-needs-spark`, always.
        """
        raise TableError(
            f"{outcome.table} has the engine spark-merge, and this pipeline runs without Spark",
            code="engine-needs-spark",
            hint="set the table's engine to task-merge or deletion-vectors",
        )

    def read_chunk(self, spec: ChunkSpec, settings: ReadSettings) -> ChunkResult:
        """See `BatchRunner`."""
        if not hasattr(self._kept, "kept"):
            self._kept.kept = OpenClients()
        return run_chunk(spec, settings, clients=self._kept.kept)


def _decoded(
    ranges: Sequence[OffsetRange], client: Mapping[str, Any], plan: BatchPlan
) -> Iterator[dict[str, Any]]:
    for rows in tasks.decode_ranges(ranges, client, plan.decode) if ranges else ():
        yield from rows.to_pylist()


def _merged(rows: Sequence[Mapping[str, Any]], plan: BatchPlan) -> Results:
    results, placed = Results(), pa.Table.from_pylist(list(rows), _ROW)
    for found in tasks.merge(placed.to_batches(), plan.lake, plan.publishing):
        for row in found.to_pylist():
            results.take(row["kind"], row["blob"])
    return results


class _Sources:
    """The three sources of the query: change topics, chunks, control; and the end of each.

    Args:
        config: the pipeline's.
        pattern: Java regular expression of the change topics.
    """

    def __init__(self, config: Config, pattern: str) -> None:
        self._config, self._pattern = config, pattern
        self._own = (config.topics.chunks, config.topics.control)
        self._open = ExitStack()
        self._cluster = self._open.enter_context(brokers.Cluster(config))

    def close(self) -> None:
        """Close the connection to the brokers."""
        self._open.close()

    def begin(self, control: int) -> list[Offsets]:
        """Return the offsets at which a new query begins, by source.

        Args:
            control: first offset of the control topic, 0 = its first.
        """
        topics, offsets = self._cluster.topics(self._pattern), dict[tuple[str, int], int]()
        if self._config.stream.starting == "latest":
            offsets |= self._cluster.end_offsets(topics)
        else:
            offsets |= self._cluster.start_offsets(topics)
        begun = self._split(offsets | self._cluster.start_offsets(self._own))
        if control:
            begun[2] = {self._own[1]: {PARTITION: control}}
        return begun

    def ends(self, read: Sequence[Offsets]) -> list[Offsets]:
        """Return the end offsets now, by source.

        Args:
            read: end offsets of what was read of each.

        Raises:
            DependencyError: `source-data-expired`: less is there than was read.
        """
        topics = {*self._cluster.topics(self._pattern), *self._own, *(t for k in read for t in k)}
        found = self._split(self._cluster.end_offsets(sorted(topics)))
        for before, now in zip(read, found, strict=True):
            offset_ranges.between(before, now)  # raises
        return found

    def next(self, read: Sequence[Offsets], ends: Sequence[Offsets]) -> list[Offsets]:
        """Return the ends of the next batch: as many records of each source as a batch may have."""
        stream = self._config.stream
        most = (
            stream.max_events_per_batch,
            chunk_records(stream.shards),
            CONTROL_RECORDS,
        )
        return [limited(*some, most=count) for *some, count in zip(read, ends, most, strict=True)]

    def _split(self, offsets: Mapping[tuple[str, int], int]) -> list[Offsets]:
        found: list[Offsets] = [{}, {}, {}]
        for (topic, partition), offset in sorted(offsets.items()):
            source = 1 + self._own.index(topic) if topic in self._own else 0
            found[source].setdefault(topic, {})[partition] = offset
        return found


def limited(read: Offsets, ends: Offsets, *, most: int) -> Offsets:
    """Return ends of at most about `most` records, as Spark limits them.

    Each partition has as large a share of them as of all, and one at least if it has any.
    """
    sizes = {
        (topic, partition): end - read.get(topic, {}).get(partition, 0)
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    }
    total = sum(sizes.values())
    if total <= most:
        return ends
    found: Offsets = {}
    for (topic, partition), size in sizes.items():
        share = min(size, max(1, most * size // total)) if size else 0
        begin = read.get(topic, {}).get(partition, 0)
        found.setdefault(topic, {})[partition] = begin + share
    return found


class LocalQuery:
    """A query in a thread of its own; see `Query`."""

    def __init__(
        self, batches: Batches, checkpoint: Checkpoint, sources: _Sources, *, once: bool
    ) -> None:
        self._batches, self._checkpoint, self._sources = batches, checkpoint, sources
        self._once = once
        self._stopped, self._ended = threading.Event(), threading.Event()
        self._triggered = True
        self._error: BaseException | None = None
        if not checkpoint.query_id():
            begun = sources.begin(checkpoint.load(-1).control)
            checkpoint.note_query(str(uuid.uuid4()), begun)
        self.id = checkpoint.query_id()
        self._thread = threading.Thread(target=self._run, name="query", daemon=True)
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """See `Query`."""
        return not self._ended.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """See `Query`."""
        message = "Processing new data" if self._triggered else "Waiting for data to arrive"
        return {"isTriggerActive": self._triggered, "message": message}

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - Spark's name
        """See `Query`.

        Raises:
            QueryFailedError: it has ended with an error.
        """
        if not self._ended.wait(timeout):
            return False
        if self._error is not None:
            raise QueryFailedError(str(self._error)) from self._error
        return True

    def stop(self) -> None:
        """End the query with the batch under way, unless that was given up, as the process ends."""
        self._stopped.set()
        self._ended.wait(_GIVEN_UP_S if self._batches.draining.asked else None)

    def _run(self) -> None:
        try:
            self._all()
        except QueryStoppedError:
            log.debug("query.stopped")
        except BaseException as error:  # noqa: BLE001 - whoever waits for the end is told
            self._error = error
            self._batches.failure = self._batches.failure or error
        finally:
            self._sources.close()
            self._ended.set()

    def _all(self) -> None:
        checkpoint, sources = self._checkpoint, self._sources
        batch = checkpoint.newest_committed()
        if checkpoint.newest_planned() > batch:
            before, batch = self._known(batch), batch + 1
            self._one(batch, before, checkpoint.offsets(batch))
        read = self._known(batch)
        target = sources.ends(read) if self._once else None
        while not self._stopped.is_set():
            self._triggered = True
            ends = sources.next(read, target or sources.ends(read))
            if any(offset_ranges.between(*some) for some in zip(read, ends, strict=True)):
                batch += 1
                checkpoint.note_planned(batch, ends)
                self._one(batch, read, ends)
                read = ends
                continue
            if self._once:
                return
            self._triggered = False
            self._stopped.wait(max(0.01, self._batches.pace.look_ms / 1000))

    def _known(self, batch: int) -> list[Offsets]:
        """Return the end offsets of a batch, by source."""
        return self._checkpoint.offsets(batch) if batch >= 0 else self._checkpoint.begun_by_source()

    def _one(self, batch: int, before: list[Offsets], now: list[Offsets]) -> None:
        self._batches.draining.hold(self._sleep)
        own = [
            one
            for some in zip(before[1:], now[1:], strict=True)
            for one in offset_ranges.between(*some)
        ]
        self._batches.on_batch(own, batch)
        self._checkpoint.note_committed(batch)

    def _sleep(self, ms: int) -> None:
        self._stopped.wait(ms / 1000)
