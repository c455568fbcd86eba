"""Reading: gives chunks out, takes what was read, tells the shards, and waits until they settled.

    attempt    set by                     meaning
    ---------  -------------------------  ----------------------------------------------------------
    reading    a free reader              a Spark task reads the chunk and writes its parts
    read       the task's result          waits for an open window: its close row will be its `hi`
    settling   its manifest               the shards wait for its windows, then decide
    (settled)  the last shard             the chunk is done; or void, and waits for another attempt

An *attempt* is one reading of one chunk. Doubt voids it, and its chunk gets another one.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from lakemark.backoff import Backoff
from lakemark.connectors.postgres.visibility import Snapshot
from lakemark.errors import LakemarkError
from lakemark.snapshot import runs
from lakemark.snapshot.chunk_splitter import ChunkSplitter
from lakemark.snapshot.chunks import (
    BLIND,
    BY_NO_KEY,
    ChunkError,
    ChunkResult,
    ChunkSpec,
    blinded,
    is_of_a_table,
)
from lakemark.snapshot.runs import Chunk, Run, TableRun

if TYPE_CHECKING:
    from lakemark.snapshot.coordinator import Coordinator

log = structlog.get_logger(__name__)

# Rows that wait in the shards, in memory: each shard's state is written anew in every batch, and
# what a batch decides of one table goes through one task.
MAX_WAITING_BYTES: Final = 128 << 20
MAX_WAITING: Final = 64  # attempts
# A shard that has not decided while later attempts were: a part of it was lost.
STUCK_S: Final = 120.0
# One that nothing later tells about. Window rows may only be late: it is doubled each time.
PATIENCE_S: Final = 600.0


@dataclass(slots=True)
class ChunkAttempt:
    """One reading of one chunk.

    Attributes:
        begun: `TableRun.begun` when it was given out: a table that began again ignores it.
        floor: oldest window that it may take as its `lo`.
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
class Later:
    """A table that cannot be read for now, when it is tried again, and why it is not read."""

    table: TableRun
    backoff: Backoff
    until: float
    error: LakemarkError


class ChunkScheduler:
    """The chunks of all runs and the attempts under way.

    Attributes:
        blocked: what a chunk saw to which no window was visible; no chunk begins until one is.
        hidden: what the newest tick saw, while it keeps only runs that were armed late.
        blocker: the transaction that is waited for, in words.
        since: by run, ticks that were begun before it was armed, or something was to be read again:
            of windows that were opened by then it takes none. The shards do not know what was done
            to its tables before the former, and the latter is mended by what is read after it.
    """

    def __init__(self, coordinator: "Coordinator") -> None:
        self.coordinator = coordinator
        self.outside = coordinator.outside
        self.settings = coordinator.settings
        self.book = coordinator.book
        self.windows = coordinator.windows
        self.cutting = ChunkSplitter(coordinator)
        self.attempts: dict[int, ChunkAttempt] = {}
        self.chunks: dict[tuple[str, str], list[Chunk]] = {}
        self.next_attempt = 0
        self.blocked: Snapshot | None = None
        self.hidden: Snapshot | None = None
        self.blocker = ""
        self.since: dict[str, int] = {}
        self.delayed: dict[str, float] = {}
        self._later: dict[tuple[str, str], Later] = {}
        self._patience = PATIENCE_S
        self._decided: dict[int, float] = {}  # by shard: `since` of the newest it has decided

    def of(self, run: Run, table: TableRun | None = None) -> list[ChunkAttempt]:
        """Attempts of a run, or of one table in it."""
        return [
            attempt
            for attempt in self.attempts.values()
            if attempt.run is run and (table is None or attempt.table is table)
        ]

    def in_use(self) -> list[str]:
        """Windows that attempts took as their `lo`, or may take."""
        return [attempt.lo or attempt.floor for attempt in self.attempts.values()]

    def waits_for(self, window: str) -> bool:
        """Whether what was read waits for the close row of this window, or a run for the next."""
        late = any(not self.windows.has_opened(since) for since in self.since.values())
        used = any(attempt.hi == window for attempt in self.attempts.values())
        return bool(window) and (used or late)

    def is_read(self, run: Run, table: TableRun) -> bool:
        """Whether all chunks are settled, or only the shards are waited for: windows are closed."""
        attempts = self.of(run, table)
        still_open = {"", self.windows.current, self.windows.closing}
        return table.settled + len(attempts) == table.chunks and not any(
            attempt.hi in still_open for attempt in attempts
        )

    def window_lost(self, window: str) -> None:
        """The close row of a window may never come: attempts that wait for it are void."""
        for attempt in [a for a in self.attempts.values() if window and a.hi == window]:
            self.void(attempt, "window-lost")

    def begin(self, now: float) -> None:
        """Gives out chunks, and cuts the tables whose turn comes.

        One table after the other: the next begins when all chunks of the one before are given out,
        not when they are settled. Tables that do not stream now wait without the others; those that
        were begun again are behind them.

        Raises:
            LakemarkError: retried: the database is away.
        """
        self.hidden = None
        if not self.windows.readable or self.blocked is not None:
            return
        for run in self.coordinator.active():
            if run.paused or now < self.delayed.get(run.id, 0.0) or not self._has_window(run):
                continue
            self.delayed.pop(run.id, None)
            limit = min(run.parallelism or self.settings.parallelism, self.settings.parallelism)
            for table in sorted(run.tables, key=lambda one: one.begun // 2):
                if self.coordinator.is_loading(table) or not self.may_read(run, table, now):
                    continue
                try:
                    self.cutting.cut(run, table)
                    self._begin(run, table, limit, now)
                except LakemarkError as error:
                    if not self.put_off(run, table, error):
                        raise
                cut = table.state not in {runs.WAITING, runs.CUTTING}
                if not cut or self._next(run, table) is not None or run.id in self.delayed:
                    break

    def may_read(self, run: Run, table: TableRun, now: float) -> bool:
        """Whether the table streams, and nothing keeps it alone from being read."""
        later = self._later.get((run.id, table.table))
        return self.coordinator.streams(table) and (later is None or now >= later.until)

    def put_off(self, run: Run, table: TableRun, error: LakemarkError) -> bool:
        """Whether it is this table alone that cannot be read: it is later, and the others are."""
        if not is_of_a_table(error):
            return False
        now = self.outside.monotonic()
        later = self._later.setdefault((run.id, table.table), Later(table, Backoff(), now, error))
        if now >= later.until:  # chunks that were read together are put off once
            later.until = now + later.backoff.failed(after_s=now - later.until)
            log.warning(
                "snapshot.delayed", table=table.table, code=error.code, reason=error.message,
                hint=error.hint, next_try_s=round(later.until - now, 1),
            )  # fmt: skip
        later.error = error
        return True

    def answered(self, run: Run, table: TableRun, *, settled: bool = False) -> None:
        """The database has answered, or a chunk is settled: what kept the table is no more so."""
        later = self._later.get((run.id, table.table))
        if later is not None and (table.over or settled == (later.error.code == BLIND)):
            del self._later[run.id, table.table]

    @property
    def trouble(self) -> LakemarkError | None:
        """Why a table is put off, if one is."""
        return next((one.error for one in self._later.values() if not one.table.over), None)

    def _has_window(self, run: Run) -> bool:
        since = self.since.get(run.id, 0)
        if not self.windows.leads_to(since) and self.windows.has_opened(since):
            self.hidden = self.windows.usable[-1].after
        return self.windows.leads_to(since)

    def _begin(self, run: Run, table: TableRun, limit: int, now: float) -> None:
        while self._free(run, limit):
            at = self._next(run, table)
            if at is None:
                return
            self._give_out(run, table, at)
            delay = self.settings.delay if run.delay is None else run.delay
            if delay:
                self.delayed[run.id] = now + delay
                return

    def _free(self, run: Run, limit: int) -> bool:
        reading = [a for a in self.attempts.values() if a.result is None]
        waiting = [a for a in self.attempts.values() if a.result is not None]
        held = sum(a.result.bytes for a in waiting if a.result is not None)
        return (
            len(reading) < self.settings.parallelism
            and sum(a.run is run for a in reading) < limit
            and len(waiting) < MAX_WAITING
            and held < MAX_WAITING_BYTES
        )

    def _next(self, run: Run, table: TableRun) -> int | None:
        if table.state != runs.READING:
            return None
        chunks = self.chunks[run.id, table.table]
        free = (at for at, chunk in enumerate(chunks) if not chunk.done and chunk.attempt < 0)
        return next(free, None)

    def _give_out(self, run: Run, table: TableRun, at: int) -> None:
        condition = self.cutting.condition(run, table)
        if table.over:
            return
        chunk = self.chunks[run.id, table.table][at]
        number = self.next_attempt
        self.next_attempt += 1
        chunk.attempt = number
        floor = self.windows.floor
        attempt = ChunkAttempt(number, run, table, at, table.begun, floor)
        attempt.at_ms = self.outside.now_ms()
        self.attempts[number] = attempt
        spec = ChunkSpec(
            run=run.id,
            table=table.table,
            chunk=at,
            attempt=number,
            shards=self.settings.shards,
            span=chunk.span,
            condition=condition,
            keys=None if chunk.keys is None else tuple(tuple(key) for key in chunk.keys),
            surrogate=run.surrogate,
            opens=self.windows.since(floor),
            epoch=self.coordinator.stream.epoch,
            rebuild=self.coordinator.rebuild_of(table.table),
        )

        def read() -> None:
            result = self.outside.read(spec)
            self.coordinator.inbox.put(lambda: self._read(number, result))

        self.outside.submit(read)

    def _read(self, number: int, result: ChunkResult) -> None:
        attempt = self.attempts.get(number)
        if attempt is None:
            return  # void meanwhile
        attempt.result, attempt.at_ms = result, self.outside.now_ms()
        run, table = attempt.run, attempt.table
        if result.error is not None:
            self.void(attempt, result.error.code)
            self._read_failed(attempt, result.error)
            return
        self.coordinator.trouble = None
        self.answered(run, table)
        table.fingerprint = table.fingerprint or result.fingerprint
        if result.fingerprint != table.fingerprint:
            self.begin_again(run, table, "its schema was changed")
            return
        if result.bad_rows:
            codes = sorted({code for _, code in result.bad})
            log.warning("snapshot.bad_rows", table=table.table, rows=result.bad_rows, codes=codes)
        if result.lo:  # its rows have that position already
            attempt.lo = result.lo if self.windows.has(result.lo) else ""
        elif result.snapshot is not None:
            attempt.lo = self.windows.lo(result.snapshot) or ""
        if not attempt.lo:
            self.void(attempt, "not-visible")
            self._wait_for(result.snapshot)

    def _wait_for(self, snapshot: Snapshot | None) -> None:
        """No window is provably visible: chunks wait until one is."""
        if snapshot is None or self.blocked is not None:
            return
        self.blocked, self.blocker = snapshot, ""

    def name_blocker(self) -> None:
        """Says which transaction chunks wait for, once for each time that they do.

        Raises:
            LakemarkError: retried: the database is away.
        """
        waits = self.blocked or self.hidden
        if waits is None:
            self.blocker = ""
        elif not self.blocker:
            self.blocker = str(self.outside.blocker(waits))
            log.info("snapshot.waits", blocker=self.blocker)

    def _read_failed(self, attempt: ChunkAttempt, error: ChunkError) -> None:
        run, table = attempt.run, attempt.table
        if error.trace:
            log.error("snapshot.internal_error", table=table.table, trace=error.trace)
        if self.cutting.halve(run, table, attempt.chunk, error):
            log.info("snapshot.chunk_halved", table=table.table, reason=error.code)
        elif error.code in BY_NO_KEY and table.whole:
            log.warning("snapshot.keys_left", table=table.table, code=error.code, hint=error.hint)
            self.cutting.leave(run, table, attempt.chunk)
        elif error.code == "schema-changed":
            self.begin_again(run, table, "its schema was changed")
        elif error.retried:
            why = LakemarkError(error.message, code=error.code, hint=error.hint, retried=True)
            if not self.put_off(run, table, why):
                self.coordinator.failed(why)
        else:
            self.book.fail_table(run, table, error.code, error.message, error.hint)

    def manifests(self, now: float) -> None:
        """Says of what was read which windows bound it, once one is open."""
        window = self.windows.current
        ready = [a for a in self.attempts.values() if a.lo and not a.hi]
        if not window or not ready:
            return
        for attempt in ready:
            result = attempt.result
            if result is None or result.snapshot is None:
                continue
            attempt.hi, attempt.since = window, now
            attempt.at_ms = self.outside.now_ms()
            server = result.snapshot.server
            self.book.say(
                {
                    "type": "chunk",
                    **self._place(attempt),
                    "parts": {str(shard): n for shard, n in result.parts.items()},
                    "lo": attempt.lo,
                    "hi": attempt.hi,
                    "server_start": server.start,
                    "timeline": server.timeline,
                }
            )

    def _place(self, attempt: ChunkAttempt) -> dict[str, object]:
        return {
            "run": attempt.run.id,
            "table": attempt.table.table,
            "chunk": attempt.chunk,
            "attempt": attempt.number,
        }

    def void(self, attempt: ChunkAttempt, reason: str) -> None:
        """The attempt is over and does not count: its chunk waits for another one."""
        self.attempts.pop(attempt.number, None)
        self._release(attempt)
        log.info("snapshot.chunk_void", reason=reason, **self._place(attempt))
        self.book.say({"type": "void", **self._place(attempt), "reason": reason})

    def _release(self, attempt: ChunkAttempt) -> None:
        chunks = self.chunks.get((attempt.run.id, attempt.table.table), [])
        if attempt.begun == attempt.table.begun and attempt.chunk < len(chunks):
            chunk = chunks[attempt.chunk]
            chunk.attempt = -1 if chunk.attempt == attempt.number else chunk.attempt

    def settled(self, number: int, shard: int, *, rows: int, lo: str, void: str) -> None:
        """A shard has decided an attempt, and what it decided is in the table."""
        attempt = self.attempts.get(number)
        if attempt is None or shard in attempt.shards:
            return
        attempt.shards.add(shard)
        self._decided[shard] = max(self._decided.get(shard, 0.0), attempt.since)
        attempt.void = attempt.void or void
        attempt.rows += rows
        attempt.low = lo
        if len(attempt.shards) < self.settings.shards:
            return
        del self.attempts[number]
        self._release(attempt)
        table = attempt.table
        if attempt.void:
            log.info("snapshot.chunk_void", reason=attempt.void, **self._place(attempt))
            if attempt.void == BLIND:  # at once it would be so again, where such events come often
                self.put_off(attempt.run, table, blinded(table.table))
            return
        self._patience = PATIENCE_S
        self.answered(attempt.run, table, settled=True)
        if attempt.begun != table.begun or table.over:
            return
        chunk = self.chunks[attempt.run.id, table.table][attempt.chunk]
        chunk.done, chunk.rows, chunk.lo = True, attempt.rows, attempt.low
        table.settled += 1
        table.rows += attempt.rows
        if attempt.result is not None and not (chunk.keys and table.whole):  # not read before
            table.inexact += attempt.result.inexact
        table.first_lo = min(table.first_lo or attempt.low, attempt.low)
        self.book.touch(attempt.run, table, [attempt.chunk])

    def unstick(self, now: float) -> None:
        """An attempt that a shard does not decide though it decided later ones has lost a part."""
        late = [a for a in self.attempts.values() if a.since and now - a.since > STUCK_S]
        for attempt in late:
            missing = set(range(self.settings.shards)) - attempt.shards
            if any(self._decided.get(shard, 0.0) > attempt.since for shard in missing):
                self.void(attempt, "part-lost")
        if any(now - attempt.since > self._patience for attempt in late):
            self._patience *= 2
            for attempt in [one for one in late if one.number in self.attempts]:
                self.void(attempt, "not-decided")

    def begin_again(self, run: Run, table: TableRun, why: str) -> None:
        """All chunks of a table are read again: what was read may not go together."""
        for attempt in self.of(run, table):
            self.void(attempt, "begun-again")
        log.info("snapshot.table_begins_again", run=run.id, table=table.table, reason=why)
        self.book.unsweep(run, table)
        self.book.forget(run, table)
        self.book.changed(run)
        table.begun += 1  # what is under way for it is of no use any more
        self.since[run.id] = self.windows.begun
        table.state = runs.WAITING
        table.rows = table.settled = table.chunks = table.inexact = table.repairs = 0
        table.first_lo = table.fingerprint = ""
        table.seconds = 0.0
        self.chunks[run.id, table.table] = []
