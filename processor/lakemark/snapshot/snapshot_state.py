"""What the coordinator knows: runs, chunks, attempts and windows, and what is asked of them; pure.

All who carry out snapshots share it, each with the `Ports` that it needs. It is in memory: what of
it outlives the process is kept by `run_store`.
"""

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from lakemark.backoff import Backoff
from lakemark.connectors.database import Proof
from lakemark.errors import LakemarkError
from lakemark.snapshot import runs
from lakemark.snapshot.chunks import BLIND, ChunkResult
from lakemark.snapshot.ports import Stream
from lakemark.snapshot.runs import Chunk, Run, TableRun
from lakemark.snapshot.windows import Windows

SHORTEST_S: Final = 0.1  # between window rows


@dataclass(frozen=True, slots=True)
class Settings:
    """What the configuration says.

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

    @property
    def early(self) -> float:
        """By how many seconds window rows come earlier when a chunk waits for them."""
        return self.interval - max(self.interval / 4, min(self.interval, SHORTEST_S))

    @property
    def windows(self) -> str:
        """What window rows name as their run: all runs of the pipeline share them."""
        return f"lakemark:{self.pipeline}"


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


@dataclass(slots=True)
class TableDelay:
    """Of a table that cannot be read for now: when it is tried again, and why it is not read."""

    table: TableRun
    backoff: Backoff
    until: float
    error: LakemarkError


@dataclass(slots=True)
class SnapshotState:
    """The snapshots of one pipeline, for one thread.

    Attributes:
        settings: what the configuration says.
        stream: what the newest batch said.
        runs: by id, also ended ones.
        chunks: of open runs, by run and table.
        attempts: under way, by number.
        next_attempt: the next one's number.
        windows: that are open, or may still be used.
        since: by run, ticks that were begun before it was armed, or something was to be read again:
            of windows that were opened by then it takes none. The shards do not know what was done
            to its tables before the former, and the latter is mended by what is read after it.
        pauses: by run, until when no chunk of it is given out.
        delays: tables that cannot be read for now, by run and table.
        rests: by table, until when it gets no run that nobody asked for.
        blocked: what a chunk saw to which no window was visible; no chunk begins until one is.
        hidden: what the newest tick saw, while it keeps only runs that were armed late.
        blocker: the transaction that is waited for, in words.
        trouble: of what was away last; None if nothing is.
        inbox: what other threads have to say, in their order.
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
    inbox: queue.SimpleQueue[Callable[[], None]] = field(default_factory=queue.SimpleQueue)

    def open_runs(self) -> list[Run]:
        """Runs that have not ended."""
        return [run for run in self.runs.values() if not run.over]

    def active(self) -> list[Run]:
        """Runs that read, the most urgent first."""
        found = [run for run in self.runs.values() if run.state == runs.READING]
        return sorted(found, key=lambda run: (-run.priority, run.number))

    def is_loading(self, table: TableRun) -> bool:
        """Whether rows of a snapshot of the connector's own came in the newest batch."""
        now = self.stream.tables.get(table.table)
        return now is not None and 0 <= now.own_batch == self.stream.batch

    def streams(self, table: TableRun) -> bool:
        """Whether the stream applies the table's changes now; only then are its chunks."""
        found = self.stream.tables.get(table.table)
        return found is None or found.streaming

    def rebuild_of(self, table: str) -> str:
        """Name of the rebuild that a table is in; empty = none."""
        found = self.stream.tables.get(table)
        return "" if found is None else found.rebuild

    def attempts_of(self, run: Run, table: TableRun | None = None) -> list[ChunkAttempt]:
        """Attempts of a run, or of one table in it."""
        return [
            attempt
            for attempt in self.attempts.values()
            if attempt.run is run and (table is None or attempt.table is table)
        ]

    def windows_in_use(self) -> list[str]:
        """Windows that attempts took as their `lo`, or may take."""
        return [attempt.lo or attempt.floor for attempt in self.attempts.values()]

    def waits_for(self, window: str) -> bool:
        """Whether what was read waits for the close row of this window, or a run for the next."""
        late = any(not self.windows.has_opened(since) for since in self.since.values())
        used = any(attempt.hi == window for attempt in self.attempts.values())
        return bool(window) and (used or late)

    def is_read(self, run: Run, table: TableRun) -> bool:
        """Whether all chunks are settled, or only the shards are waited for: windows are closed."""
        attempts = self.attempts_of(run, table)
        still_open = {"", self.windows.current, self.windows.closing}
        return table.settled + len(attempts) == table.chunks and not any(
            attempt.hi in still_open for attempt in attempts
        )

    def may_read(self, run: Run, table: TableRun, now: float) -> bool:
        """Whether the table streams, and nothing keeps it alone from being read."""
        delay = self.delays.get((run.id, table.table))
        return self.streams(table) and (delay is None or now >= delay.until)

    def answered(self, run: Run, table: TableRun, *, settled: bool = False) -> None:
        """The database has answered, or a chunk is settled: what kept the table is no more so."""
        delay = self.delays.get((run.id, table.table))
        if delay is not None and (table.over or settled == (delay.error.code == BLIND)):
            del self.delays[run.id, table.table]
