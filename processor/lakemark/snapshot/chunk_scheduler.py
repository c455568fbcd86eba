"""Gives chunks out, takes their results, tells the shards, and waits until they have decided.

    attempt    set by                     meaning
    ---------  -------------------------  ----------------------------------------------------------
    reading    a free reader              a Spark task reads the chunk and writes its parts
    read       the task's result          waits for an open window: its close row will be its `hi`
    settling   its manifest               the shards wait for its windows, then decide
    (settled)  the last shard             the chunk is done; or void, and waits for another attempt

An *attempt* is one reading of one chunk. Doubt voids it, and its chunk gets another one.
"""

from typing import Final

import structlog

from lakemark.connectors.database import Proof
from lakemark.errors import LakemarkError
from lakemark.model import positions
from lakemark.model.comparisons import ComparedChunk
from lakemark.model.control import ChunkComplete
from lakemark.snapshot import runs
from lakemark.snapshot.chunk_splitter import ChunkSplitter
from lakemark.snapshot.chunks import (
    BLIND,
    BY_NO_KEY,
    ChunkError,
    ChunkResult,
    ChunkSpec,
    blinded,
)
from lakemark.snapshot.ports import Executor, SourceReader
from lakemark.snapshot.retries import Retries
from lakemark.snapshot.run_store import RunStore, place_of
from lakemark.snapshot.runs import Run, TableRun
from lakemark.snapshot.snapshot_state import ChunkAttempt, SnapshotState
from lakemark.snapshot.tally import VerifyTally

log = structlog.get_logger(__name__)

# Rows that wait in the shards, in memory: each shard's state is written anew in every batch, and
# what a batch decides of one table goes through one task.
MAX_WAITING_BYTES: Final = 128 << 20
MAX_WAITING: Final = 64  # attempts
# A shard that has not decided while later attempts were: a part of it was lost.
STUCK_S: Final = 120.0
# One that nothing later tells about. Window rows may only be late: it is doubled each time.
PATIENCE_S: Final = 600.0


class ChunkScheduler:
    """Has the chunks of all runs read, and waits until they are settled."""

    def __init__(
        self,
        state: SnapshotState,
        store: RunStore,
        retries: Retries,
        splitter: ChunkSplitter,
        *,
        reader: SourceReader,
        executor: Executor,
    ) -> None:
        self.state = state
        self.reader = reader
        self.executor = executor
        self.store = store
        self.retries = retries
        self.splitter = splitter
        self._patience = PATIENCE_S
        self._decided: dict[int, float] = {}  # by shard: `since` of the newest it has decided

    def window_lost(self, window: str) -> None:
        """Void the attempts that wait for the close row of a window which may never come."""
        for attempt in [a for a in self.state.attempts.values() if window and a.hi == window]:
            self.store.void(attempt, "window-lost")

    def begin(self, now: float) -> None:
        """Give out chunks, and have the tables cut whose turn comes.

        One table after the other: the next begins when all chunks of the one before are given out,
        not when they are settled. A table that does not stream now is passed over until it does;
        tables that were begun again come after the others.

        Raises:
            LakemarkError: retried: the database is away.
        """
        self.state.hidden = None
        if not self.state.windows.readable or self.state.blocked is not None:
            return
        for run in self.state.active():
            if run.paused or now < self.state.pauses.get(run.id, 0.0) or not self._has_window(run):
                continue
            self.state.pauses.pop(run.id, None)
            limit = min(
                run.parallelism or self.state.settings.parallelism, self.state.settings.parallelism
            )
            for table in sorted(run.tables, key=lambda one: one.begun // 2):
                if self.state.is_loading(table) or not self.state.may_read(run, table, now):
                    continue
                try:
                    self.splitter.cut(run, table)
                    self._begin(run, table, limit, now)
                except LakemarkError as error:
                    if not self.retries.put_off(run, table, error):
                        raise
                cut = table.state not in {runs.WAITING, runs.CUTTING}
                if not cut or self._next(run, table) is not None or run.id in self.state.pauses:
                    break

    def _has_window(self, run: Run) -> bool:
        since = self.state.since.get(run.id, 0)
        if not self.state.windows.leads_to(since) and self.state.windows.has_opened(since):
            self.state.hidden = self.state.windows.usable[-1].after
        return self.state.windows.leads_to(since)

    def _begin(self, run: Run, table: TableRun, limit: int, now: float) -> None:
        while self._free(run, limit):
            at = self._next(run, table)
            if at is None:
                return
            self._give_out(run, table, at)
            delay = self.state.settings.delay if run.delay is None else run.delay
            if delay:
                self.state.pauses[run.id] = now + delay
                return

    def _free(self, run: Run, limit: int) -> bool:
        reading = [a for a in self.state.attempts.values() if a.result is None]
        waiting = [a for a in self.state.attempts.values() if a.result is not None]
        held = sum(a.result.bytes for a in waiting if a.result is not None)
        return (
            len(reading) < self.state.settings.parallelism
            and sum(a.run is run for a in reading) < limit
            and len(waiting) < MAX_WAITING
            and held < MAX_WAITING_BYTES
        )

    def _next(self, run: Run, table: TableRun) -> int | None:
        if table.state != runs.READING:
            return None
        chunks = self.state.chunks[run.id, table.table]
        free = (at for at, chunk in enumerate(chunks) if not chunk.done and chunk.attempt < 0)
        return next(free, None)

    def _give_out(self, run: Run, table: TableRun, at: int) -> None:
        condition = self.splitter.condition(run, table)
        if table.over:
            return
        chunk = self.state.chunks[run.id, table.table][at]
        number = self.state.next_attempt
        self.state.next_attempt += 1
        chunk.attempt = number
        floor = self.state.windows.floor
        epoch = self.state.stream.epoch
        attempt = ChunkAttempt(number, run, table, at, table.begun, floor, epoch)
        attempt.at_ms = self.executor.now_ms()
        self.state.attempts[number] = attempt
        spec = ChunkSpec(
            run=run.id,
            table=table.table,
            chunk=at,
            attempt=number,
            shards=self.state.settings.shards,
            span=chunk.span,
            condition=condition,
            keys=None if chunk.keys is None else tuple(tuple(key) for key in chunk.keys),
            surrogate=run.surrogate,
            opens=self.state.windows.since(floor),
            epoch=epoch,
            rebuild=self.state.rebuild_of(table.table),
        )

        def read() -> None:
            result = self.reader.read(spec)
            self.state.inbox.put(lambda: self._read(number, result))

        self.executor.submit(read)

    def _read(self, number: int, result: ChunkResult) -> None:
        attempt = self.state.attempts.get(number)
        if attempt is None:
            return  # void meanwhile
        attempt.result, attempt.at_ms = result, self.executor.now_ms()
        run, table = attempt.run, attempt.table
        if result.error is not None:
            self.store.void(attempt, result.error.code)
            self._read_failed(attempt, result.error)
            return
        self.state.trouble = None
        self.state.answered(run, table)
        table.fingerprint = table.fingerprint or result.fingerprint
        if result.fingerprint != table.fingerprint:
            self.store.begin_again(run, table, "its schema was changed")
            return
        if result.bad_rows:
            codes = sorted({code for _, code in result.bad})
            log.warning("snapshot.bad_rows", table=table.table, rows=result.bad_rows, codes=codes)
        if result.lo:  # its rows have that position already
            attempt.lo = result.lo if self.state.windows.has(result.lo) else ""
        elif result.proof is not None:
            attempt.lo = self.state.windows.lo(result.proof) or ""
        if not attempt.lo:
            self.store.void(attempt, "not-visible")
            self._wait_for(result.proof)

    def _wait_for(self, proof: Proof | None) -> None:
        """Note that no window is provably visible: chunks wait until one is."""
        if proof is None or self.state.blocked is not None:
            return
        self.state.blocked, self.state.blocker = proof, ""

    def name_blocker(self) -> None:
        """Find and log the transaction that chunks wait for, once for each time that they do.

        Raises:
            LakemarkError: retried: the database is away.
        """
        waits = self.state.blocked or self.state.hidden
        if waits is None:
            self.state.blocker = ""
        elif not self.state.blocker:
            self.state.blocker = self.reader.blocker(waits)
            log.info("snapshot.waits", blocker=self.state.blocker)

    def _read_failed(self, attempt: ChunkAttempt, error: ChunkError) -> None:
        run, table = attempt.run, attempt.table
        if error.trace:
            log.error("snapshot.internal_error", table=table.table, trace=error.trace)
        if self.splitter.halve(run, table, attempt.chunk, error):
            log.info("snapshot.chunk_halved", table=table.table, reason=error.code)
        elif error.code in BY_NO_KEY and table.whole:
            log.warning("snapshot.keys_left", table=table.table, code=error.code, hint=error.hint)
            self.splitter.leave(run, table, attempt.chunk)
        elif error.code == "schema-changed":
            self.store.begin_again(run, table, "its schema was changed")
        elif error.retried:
            why = LakemarkError(error.message, code=error.code, hint=error.hint, retried=True)
            if not self.retries.put_off(run, table, why):
                self.retries.failed(why)
        else:
            self.store.fail_table(run, table, error.code, error.message, error.hint)

    def manifests(self, now: float) -> None:
        """Write which windows bound the chunks that were read, once a window is open."""
        window = self.state.windows.current
        ready = [a for a in self.state.attempts.values() if a.lo and not a.hi]
        if not window or not ready:
            return
        for attempt in ready:
            result = attempt.result
            if result is None or result.proof is None:
                continue
            attempt.hi, attempt.since = window, now
            attempt.at_ms = self.executor.now_ms()
            self.store.say(
                ChunkComplete(
                    **place_of(attempt),
                    parts={str(shard): n for shard, n in result.parts.items()},
                    lo=attempt.lo,
                    hi=attempt.hi,
                    server=result.proof.life,
                    position=_place(attempt, result.proof),
                )
            )

    def compared(self, found: ComparedChunk) -> None:
        """Note what a shard's rows were compared with; it counts once the attempt is settled."""
        attempt = self.state.attempts.get(found.attempt)
        if attempt is not None and found.shard not in attempt.shards:
            attempt.compared.append(found)

    def settled(self, number: int, shard: int, *, rows: int, lo: str, void: str) -> None:
        """Note that a shard has decided an attempt; the decision's effects are in the table.

        Args:
            number: the attempt's.
            shard: the one that has decided.
            rows: of the attempt that the shard had.
            lo: hex position of its open row.
            void: the reason why the attempt does not count; empty if it does.
        """
        attempt = self.state.attempts.get(number)
        if attempt is None or shard in attempt.shards:
            return
        attempt.shards.add(shard)
        self._decided[shard] = max(self._decided.get(shard, 0.0), attempt.since)
        attempt.void = attempt.void or void
        attempt.rows += rows
        attempt.low = lo
        if len(attempt.shards) < self.state.settings.shards:
            return
        del self.state.attempts[number]
        self.store.release(attempt)
        table = attempt.table
        if attempt.void:
            log.info("snapshot.chunk_void", reason=attempt.void, **place_of(attempt))
            if attempt.void == BLIND:  # at once it would be so again, where such events come often
                self.retries.put_off(attempt.run, table, blinded(table.table))
            return
        self._patience = PATIENCE_S
        self.state.answered(attempt.run, table, settled=True)
        if attempt.begun != table.begun or table.over:
            return
        if not self._found(attempt):
            return
        chunk = self.state.chunks[attempt.run.id, table.table][attempt.chunk]
        chunk.done, chunk.rows, chunk.lo = True, attempt.rows, attempt.low
        table.settled += 1
        table.rows += attempt.rows
        if attempt.result is not None and not (chunk.keys and table.whole):  # not read before
            table.inexact += attempt.result.inexact
        table.first_lo = min(table.first_lo or attempt.low, attempt.low)
        self.store.chunks_changed(attempt.run, table, [attempt.chunk])

    def _found(self, attempt: ChunkAttempt) -> bool:
        """Count a chunk of a verify run; say whether all of it was compared."""
        run, table = attempt.run, attempt.table
        failed = next((one for one in attempt.compared if one.code), None)
        if failed is not None and failed.retried:
            why = LakemarkError(failed.reason, code=failed.code, hint=failed.hint, retried=True)
            self.retries.failed(why)
            return False
        if failed is not None:
            self.store.fail_table(run, table, failed.code, failed.reason, failed.hint)
            return False
        for one in attempt.compared:
            table.tally.add(VerifyTally(compared=one.rows, newer=one.newer))
        return True

    def unstick(self, now: float) -> None:
        """Void attempts that lost a part: a shard decided later ones, and not these.

        So are attempts void that are not decided for too long, whatever the reason.
        """
        late = [a for a in self.state.attempts.values() if a.since and now - a.since > STUCK_S]
        for attempt in late:
            missing = set(range(self.state.settings.shards)) - attempt.shards
            if any(self._decided.get(shard, 0.0) > attempt.since for shard in missing):
                self.store.void(attempt, "part-lost")
        if any(now - attempt.since > self._patience for attempt in late):
            self._patience *= 2
            for attempt in [one for one in late if one.number in self.state.attempts]:
                self.store.void(attempt, "not-decided")


def _place(attempt: ChunkAttempt, proof: Proof) -> str | None:
    """Return the position that replaces the open row's, of a read whose place is known."""
    return positions.of_epoch(attempt.epoch, proof.place).hex() if proof.place else None
