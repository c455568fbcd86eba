"""The state of the coordinator: runs, chunks, attempts, windows, and the stream's newest; pure.

All parts of the coordinator share it, each with the `Ports` that it needs. It is in memory:
`run_store` stores those parts of it that outlive the process.
"""

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from lakemark.backoff import Backoff
from lakemark.connectors.database import Proof
from lakemark.errors import LakemarkError
from lakemark.model.comparisons import ComparedChunk
from lakemark.model.control import TableVerified
from lakemark.snapshot import runs
from lakemark.snapshot.chunks import BLIND, ChunkResult
from lakemark.snapshot.ports import Stream
from lakemark.snapshot.runs import Chunk, Run, TableRun
from lakemark.snapshot.signal_parts import own_id
from lakemark.snapshot.verification import Limits, Verification
from lakemark.snapshot.windows import Windows

SHORTEST_S: Final = 0.1  # between window rows


@dataclass(frozen=True, slots=True)
class Settings:
    """The coordinator's settings, from the configuration and the connector.

    Attributes:
        pipeline: its name.
        shards: number of shards.
        chunk_rows, parallelism, delay: of runs that do not say otherwise; parallelism is also the
            most that all runs together get.
        interval: seconds between window rows, at most.
        rest: seconds after a run in which its tables get none by themselves, at least.
        ordered: whether chunks wait for the fence: where there are output topics.
        completes: whether tables that have never been complete are read by themselves.
        own_rows: whether the connector reads tables itself as it begins.
        own_whole: whether it reads all of their rows then.
        connector: `source.connector`: whose positions these are, see `positions.KINDS`.
        watch: seconds between two looks for tables that are not complete, at most.
        qualifier: of the connector's tables, where there are several, see `Connector.qualifier`.
        every: the qualifiers of all of them, of those too that are away.
        speaks: whether it answers what is nobody's part, since it cannot be read.
        verification: by itself; None = tables are verified by signals alone.
    """

    pipeline: str
    shards: int
    chunk_rows: int = 100_000
    parallelism: int = 4
    delay: float = 0.0
    interval: float = 1.0
    rest: float = 60.0
    ordered: bool = False
    completes: bool = False
    own_rows: bool = False
    own_whole: bool = True
    connector: str = ""
    watch: float = 30.0
    qualifier: str = ""
    every: tuple[str, ...] = ()
    speaks: bool = True
    verification: Verification | None = None

    @property
    def early(self) -> float:
        """The seconds by which window rows come earlier when a chunk waits for them."""
        return self.interval - max(self.interval / 4, min(self.interval, SHORTEST_S))

    @property
    def windows(self) -> str:
        """The name of the run in window rows: all runs of the connector share them."""
        name = f"lakemark:{self.pipeline}"
        return f"{name}:{self.qualifier}" if self.qualifier else name

    def own_id(self, name: str) -> str:
        """Return the id of a run of this connector."""
        return own_id(name, self.qualifier)


@dataclass(slots=True)
class ChunkAttempt:
    """One reading of one chunk.

    Attributes:
        begun: `TableRun.begun` when it was given out: a table that began again ignores it.
        floor: oldest window that it may take as its `lo`.
        epoch: of positions when it was given out.
        result: what was read; None while it is being read.
        lo, hi: its windows, once known.
        shards: that have settled it.
        void: why it does not count.
        since: when its manifest was written.
        at_ms: when it entered its state, for people.
        compared: what its shards' rows were compared with, of a verify run.
    """

    number: int
    run: Run
    table: TableRun
    chunk: int
    begun: int
    floor: str
    epoch: int = 0
    result: ChunkResult | None = None
    lo: str = ""
    hi: str = ""
    shards: set[int] = field(default_factory=set)
    void: str = ""
    rows: int = 0
    low: str = ""
    since: float = 0.0
    at_ms: int = 0
    compared: list[ComparedChunk] = field(default_factory=list)


@dataclass(slots=True)
class TableDelay:
    """A table that cannot be read for now: when it is tried again, and why it is not read."""

    table: TableRun
    backoff: Backoff
    until: float
    error: LakemarkError


@dataclass(slots=True)
class SnapshotState:
    """The snapshots of one pipeline, for one thread.

    Attributes:
        settings: of the coordinator.
        stream: the stream's state after the newest batch.
        runs: by id, also ended ones.
        chunks: of open runs, by run and table.
        attempts: under way, by number.
        next_attempt: the next one's number.
        windows: that are open, or may still be used.
        since: by run, the number of ticks begun when it was armed, or when something was to be read
            again: the run takes none of the windows that were opened by then. Before it was armed
            the shards did not know of its tables' changes; what is to be read again must be read
            after that moment.
        pauses: by run, until when no chunk of it is given out.
        delays: tables that cannot be read for now, by run and table.
        rests: by table, until when it gets no run that nobody asked for.
        blocked: proof of a chunk to which no window was visible; no chunk begins until one is.
        hidden: proof of the newest tick, while it holds up only runs that were armed late.
        blocker: the transaction that is waited for, in words.
        trouble: the error of the dependency that was away last; None if none is.
        limits: of verification by itself, as a signal has set them.
        said_verified: by table, what its newest verify run was and the stream may not know yet.
        inbox: work that other threads hand over, in their order.
    """

    settings: Settings
    stream: Stream = field(default_factory=lambda: Stream("", -1, frozenset(), {}))
    runs: dict[str, Run] = field(default_factory=dict)
    chunks: dict[tuple[str, str], list[Chunk]] = field(default_factory=dict)
    attempts: dict[int, ChunkAttempt] = field(default_factory=dict)
    next_attempt: int = 0
    windows: Windows = field(default_factory=Windows)
    since: dict[str, int] = field(default_factory=dict)
    pauses: dict[str, float] = field(default_factory=dict)
    delays: dict[tuple[str, str], TableDelay] = field(default_factory=dict)
    rests: dict[str, float] = field(default_factory=dict)
    blocked: Proof | None = None
    hidden: Proof | None = None
    blocker: str = ""
    trouble: LakemarkError | None = None
    limits: Limits = field(default_factory=Limits)
    said_verified: dict[str, TableVerified] = field(default_factory=dict)
    inbox: queue.SimpleQueue[Callable[[], None]] = field(default_factory=queue.SimpleQueue)

    def open_runs(self) -> list[Run]:
        """Return the runs that have not ended."""
        return [run for run in self.runs.values() if not run.over]

    def active(self) -> list[Run]:
        """Return the runs that read, the most urgent first."""
        found = [run for run in self.runs.values() if run.state == runs.READING]
        return sorted(found, key=lambda run: (-run.priority, run.number))

    def others_read(self) -> bool:
        """Say whether a run that is not of `own_verifying` reads, or is about to.

        One that is paused does not, nor one whose tables all stand still or are put off.
        """
        return any(
            not table.over and self.streams(table) and (run.id, table.table) not in self.delays
            for run in self.open_runs()
            if not run.automatic and not run.paused
            for table in run.tables
        )

    def is_loading(self, table: TableRun) -> bool:
        """Say whether rows of a snapshot of the connector's own came in the newest batch."""
        now = self.stream.tables.get(table.table)
        return now is not None and 0 <= now.own_batch == self.stream.batch

    def streams(self, table: TableRun) -> bool:
        """Say whether the stream applies the table's changes, and so its chunks, now."""
        found = self.stream.tables.get(table.table)
        return found is None or found.streaming

    def rebuild_of(self, table: str) -> str:
        """Return the name of the rebuild that a table is in; empty = none."""
        found = self.stream.tables.get(table)
        return "" if found is None else found.rebuild

    def attempts_of(self, run: Run, table: TableRun | None = None) -> list[ChunkAttempt]:
        """Return the attempts of a run, or of one table in it."""
        return [
            attempt
            for attempt in self.attempts.values()
            if attempt.run is run and (table is None or attempt.table is table)
        ]

    def windows_in_use(self) -> list[str]:
        """Return the windows that attempts took as their `lo`, or may take."""
        return [attempt.lo or attempt.floor for attempt in self.attempts.values()]

    def waits_for(self, window: str) -> bool:
        """Say whether a chunk waits for this window's close row, or a run for the next one."""
        late = any(not self.windows.has_opened(since) for since in self.since.values())
        used = any(attempt.hi == window for attempt in self.attempts.values())
        return bool(window) and (used or late)

    def is_read(self, run: Run, table: TableRun) -> bool:
        """Say whether all chunks are settled, or have closed windows and wait for shards."""
        attempts = self.attempts_of(run, table)
        still_open = {"", self.windows.current, self.windows.closing}
        return table.settled + len(attempts) == table.chunks and not any(
            attempt.hi in still_open for attempt in attempts
        )

    def may_read(self, run: Run, table: TableRun, now: float) -> bool:
        """Say whether the table streams, and nothing keeps it alone from being read."""
        delay = self.delays.get((run.id, table.table))
        return self.streams(table) and (delay is None or now >= delay.until)

    def answered(self, run: Run, table: TableRun, *, settled: bool = False) -> None:
        """End a table's delay: the database has answered; after `BLIND`, a chunk is settled."""
        delay = self.delays.get((run.id, table.table))
        if delay is not None and (table.over or settled == (delay.error.code == BLIND)):
            del self.delays[run.id, table.table]
