"""Snapshots beside the stream: a coordinator in a thread of its own, told of every batch.

Of several connectors each has one, which waits for its own database alone.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from lakemark.connectors.reached_place import NOWHERE, ReachedPlace
from lakemark.errors import LakemarkError
from lakemark.model import positions
from lakemark.model.comparisons import ComparedChunk
from lakemark.model.proof import UNPROVED
from lakemark.reconcile.chunks import Settled
from lakemark.reconcile.outputs import Swept
from lakemark.settings.table_id import unqualified
from lakemark.snapshot.adapters import Adapters
from lakemark.snapshot.coordinator import Coordinator
from lakemark.snapshot.flight import Flight, flight
from lakemark.snapshot.ports import Stream, StreamedTable
from lakemark.snapshot.signal_parts import own_runs
from lakemark.snapshot.snapshot_state import Settings
from lakemark.state.advance import News
from lakemark.state.table_parts import StoredPosition
from lakemark.state.tables import ERRORED, STREAMING, PipelineState, TableState

log = structlog.get_logger(__name__)

_STEP_S: Final = 0.05  # how late a signal may be noticed; a step without work takes a fraction
_AGAIN_S: Final = 5.0
# A run that waits for a lock, a standby or Connect does not hurry the stream on and on.
_HASTE_S: Final = 3.0
_LEFT_OUT: Final = StreamedTable(
    streaming=False,
    code="not-selected",
    reason="the configuration no longer names it",
    hint="name it again in source.tables and in the connector's lists, start, and snapshot it",
)


class Snapshots:
    """The pipeline's side of a coordinator.

    Attributes:
        stopping: set at the end. Who sets it for several of them first waits for all at once.
    """

    def __init__(self, world: Adapters, settings: Settings, *, query: Callable[[], str]) -> None:
        self.coordinator = Coordinator(world, settings)
        self.query, self.stopping = query, threading.Event()
        self._kind, self._qualifier = settings.connector, settings.qualifier
        self._steps: object = None
        self._since = -math.inf

    @property
    def hasty(self) -> bool:
        """Say whether a run makes progress, so that its steps wait for batches. From any thread."""
        return time.monotonic() - self._since < _HASTE_S

    def noticed(self, now: Flight) -> None:
        """Note the chunks and windows in flight after a step."""
        steps = now.stages, now.chunks
        if steps != self._steps:
            self._steps = steps
            self._since = time.monotonic() if any(steps) else -math.inf

    def planned(self, armed: frozenset[str]) -> None:
        """Note that a batch with the starts of these runs has begun; returns at once."""
        self.coordinator.planned(own_runs(armed, self._qualifier))

    def committed(self, state: PipelineState, news: News) -> None:
        """Note that a batch is done and durable; returns at once."""

        def tell(coordinator: Coordinator) -> None:
            for compared in filter(self._is_own, news.compared):
                coordinator.scheduler.compared(compared)
            for done in filter(self._is_own, news.settled):
                coordinator.scheduler.settled(
                    done.attempt, done.shard, rows=done.rows, lo=done.lo, void=done.void
                )
            for table in sorted(news.restarts):
                coordinator.restarted(table)
            for swept in filter(self._is_own, news.swept):
                coordinator.completion.swept(swept.run, swept.table, void=swept.void)

        self.coordinator.committed(self.stream_of(state), tell)

    def stream_of(self, state: PipelineState) -> Stream:
        """Return the parts of the pipeline's state that the coordinator needs."""
        here = {name: _now(name, entry, state) for name, entry in state.tables.items()}
        known = here | dict.fromkeys(state.left, _LEFT_OUT)
        source_log = state.log_of(self._qualifier)
        epoch = positions.epoch_number(self._kind, len(source_log.epochs))
        return Stream(
            self.query(),
            state.batch,
            own_runs(state.runs, self._qualifier),
            {name: now for name, now in known.items() if self._has(name)},
            state.offsets,
            epoch,
            _reached(state, self._qualifier, epoch),
        )

    def _has(self, table: str) -> bool:
        return unqualified(self._qualifier, table) is not None

    def _is_own(self, said: Settled | Swept | ComparedChunk) -> bool:
        """Say whether an outcome is of a table of this connector: numbers are each one's own."""
        return self._has(said.table)


def _reached(state: PipelineState, connector: str, epoch: int) -> ReachedPlace:
    """Return the place that was reached in the newest epoch of a connector's log."""
    topics = set(state.applied)
    if connector:  # positions of other logs are no answer
        own = (e.topics for t, e in state.named_entries() if unqualified(connector, t) is not None)
        topics &= set().union(*own)
    stored = (one for topic in topics for one in state.applied[topic].values())
    newest = max(stored, key=lambda one: one.position, default=StoredPosition()).reached()
    source_log = state.log_of(connector)
    if source_log.begun > newest.source_ts:
        return ReachedPlace(begun_at=source_log.begun_at)
    if positions.epoch_of(newest.position) != positions.epoch_of(positions.of_epoch(epoch, b"")):
        return NOWHERE  # what is known is of a log that is over
    transactions = {origin: number for origin, (number, _) in newest.seen.items()}
    return ReachedPlace(newest.position, transactions)


def _passed(entry: TableState, state: PipelineState) -> bytes:
    applied = [
        state.applied.get(topic, {}).get(partition)
        for topic in entry.topics
        for partition in state.offsets.get(topic, {})
    ]
    known = [bytes.fromhex(reached.position) for reached in applied if reached is not None]
    return min(known) if known and len(known) == len(applied) else b""


def _now(name: str, entry: TableState, state: PipelineState) -> StreamedTable:
    stopped = entry.state == ERRORED and not entry.retried
    return StreamedTable(
        streaming=entry.state == STREAMING,
        code=entry.code if stopped else "",
        reason=entry.reason if stopped else "",
        hint=entry.hint if stopped else "",
        own_batch=entry.repair.own_batch,
        resnapshot_since=entry.repair.resnapshot_since,
        reread=dict(entry.repair.reread_keys),
        reread_missed=entry.repair.reread_missed,
        passed=_passed(entry, state),
        partial=entry.repair.partial,
        complete=entry.repair.complete,
        rebuild=entry.files.rebuild,
        written=bool(entry.files.engine),
        proof=state.proofs.get(name, UNPROVED),
    )


@contextmanager
def running(
    world: Adapters,
    settings: Settings,
    state: PipelineState,
    query: Callable[[], str],
    tell: Callable[[Flight | None], None],
) -> Iterator[Snapshots]:
    """Run snapshots while the block runs.

    Args:
        world: the coordinator's ports; closed at the end.
        settings: of the coordinator.
        state: the pipeline's as it begins.
        query: id of the streaming query, empty before its first start.
        tell: is told what is in flight when that has changed; None at the end.
    """
    snapshots = Snapshots(world, settings, query=query)
    stopping = snapshots.stopping
    thread = threading.Thread(
        target=_run, args=(snapshots, snapshots.stream_of(state), stopping, tell),
        name="snapshots", daemon=True,
    )  # fmt: skip
    thread.start()
    try:
        yield snapshots
    finally:
        stopping.set()
        thread.join(timeout=10)
        world.close()
        tell(None)


def _run(
    snapshots: Snapshots,
    stream: Stream,
    stopping: threading.Event,
    tell: Callable[[Flight | None], None],
) -> None:
    coordinator = snapshots.coordinator
    started, told = False, Flight()
    while not stopping.is_set():
        try:
            try:
                if not started:
                    coordinator.start(stream)
                    started = True
                coordinator.step(_STEP_S)
                now = flight(coordinator)
                snapshots.noticed(now)
                if now != told and not stopping.is_set():
                    tell(now)
                    told = now
            except LakemarkError as error:
                log.warning(
                    "snapshots.delayed", code=error.code, reason=error.message, hint=error.hint
                )
                if not started:
                    stream, coordinator.state.trouble = coordinator.missed(), error
                    told = flight(coordinator)
                    tell(told)
                stopping.wait(_AGAIN_S)
        except Exception:
            log.exception("snapshots.internal_error")
            stopping.wait(_AGAIN_S)
