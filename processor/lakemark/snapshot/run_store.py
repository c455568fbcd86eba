"""The store of all runs: their beginnings and ends, their records, and their notifications.

Order of effects: a step changes the runs in memory and notes the records to write; `keep` ends it:

1. control records and notifications are written;
2. runs that have changed are stored;
3. runs that are stored as begun are armed, those that are stored as ended are disarmed.

Each is done again until it is acknowledged. After a crash 1 follows from what was stored before, 3
from the runs that are stored: so no run is armed that is not known.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import structlog

from lakemark.errors import LakemarkError
from lakemark.model.control import (
    ORDER_MODE,
    TABLE_MODE,
    ChunkVoid,
    ControlRecord,
    RunEnd,
    RunStart,
    Sweep,
    TableRead,
    TableVerified,
)
from lakemark.snapshot import notifications as notes
from lakemark.snapshot import runs
from lakemark.snapshot.notifications import Notification, Progress, ScanStatus, Subject
from lakemark.snapshot.ports import Executor, ProgressStore
from lakemark.snapshot.runs import Run, TableRun
from lakemark.snapshot.signal_skip import SIGNALS_KEY
from lakemark.snapshot.snapshot_state import ChunkAttempt, SnapshotState
from lakemark.snapshot.tally import VerifyTally
from lakemark.snapshot.verification import Limits, outcome

log = structlog.get_logger(__name__)

LIMITS_KEY: Final = b"_verify"
REPORT_EVERY_S: Final = 1.0
KEPT_RUNS: Final = 1000  # so that a signal that comes again is known for one

_STATUS: Final = {
    "no-key": ScanStatus.NO_PRIMARY_KEY,
    "key-type": ScanStatus.SKIPPED,
    "table-gone": ScanStatus.UNKNOWN_SCHEMA,
    "not-a-table": ScanStatus.UNKNOWN_SCHEMA,
    "not-selected": ScanStatus.SKIPPED,
}


class RunStore:
    """Stores the runs of a pipeline, and writes their control records and notifications.

    Attributes:
        place: of the signals, stored with the effects of those before it.
    """

    def __init__(
        self, state: SnapshotState, *, progress: ProgressStore, executor: Executor
    ) -> None:
        self.state = state
        self.progress = progress
        self.executor = executor
        self.place = b""
        self._kept_place = b""
        self._others: dict[bytes, bytes | None] = {}
        self._controls: list[ControlRecord] = []
        self._notes: list[Notification] = []
        self._arming: list[ControlRecord] = []
        self._disarmed: set[str] = set()
        self._dirty: dict[bytes, Run] = {}
        self._pages: dict[bytes, tuple[Run, TableRun, int]] = {}
        self._gone: set[bytes] = set()
        self._reported: dict[tuple[str, str], tuple[int, int]] = {}
        self._next_report = 0.0
        self._since: dict[str, float] = {}

    def begin(self, run: Run) -> None:
        """Accept a run: the shards are told, and it is stored."""
        run.number = 1 + max((one.number for one in self.state.runs.values()), default=0)
        self.state.runs[run.id] = run
        self._disarmed.discard(run.id)
        self.changed(run)
        if run.state == runs.ARMING:
            self.say_start(run)
        else:
            self._started(run)
        over = (r for r in self.state.runs.values() if r.over)
        for old in sorted(over, key=lambda r: (not r.automatic, r.number)):
            if len(self.state.runs) <= KEPT_RUNS:
                break
            del self.state.runs[old.id]
            self._gone.add(runs.run_key(old.id))

    def say_start(self, run: Run) -> None:
        """Arm the shards; writing it again changes nothing."""
        tables = [table.table for table in run.tables]
        self._arming.append(
            RunStart(
                run=run.id,
                tables=tables,
                windows=self.state.settings.windows,
                attempt=self.state.next_attempt,
                mode=ORDER_MODE if self.state.settings.ordered else TABLE_MODE,
                verify=run.verify or None,
                values=run.values or None,
            )
        )

    def arm(self) -> None:
        """Begin to read runs whose start a batch has begun with."""
        for run in [one for one in self.state.runs.values() if one.state == runs.ARMING]:
            if run.id not in self.state.stream.armed:
                continue
            run.state, run.query = runs.READING, self.state.stream.query
            self.state.since[run.id] = self.state.windows.begun
            self.changed(run)
            if not run.scanned:
                self._started(run)

    def _started(self, run: Run) -> None:
        """Say that a run was accepted, and what of it cannot be read."""
        now = self.executor.now_ms()
        self.notify(notes.started(self.subject(run), ts_ms=now, verify=run.verify))
        for pattern in run.unmatched:
            self._scanned(run, TableRun(pattern, state=runs.FAILED, code="table-gone"))
        for table in run.tables:
            if table.state == runs.FAILED:
                self._scanned(run, table)

    def fail_table(self, run: Run, table: TableRun, code: str, reason: str, hint: str) -> None:
        """Fail a table of a run that cannot be read: the others go on."""
        for attempt in self.state.attempts_of(run, table):
            self.void(attempt, "failed")
        table.state, table.code, table.reason, table.hint = runs.FAILED, code, reason, hint
        log.error(
            "snapshot.table_failed", run=run.id, table=table.table, code=code, reason=reason,
            hint=hint,
        )  # fmt: skip
        self.changed(run)
        self._scanned(run, table)

    def fail_all(self, error: LakemarkError) -> None:
        """Fail all active runs, each with the reason: no window can be written."""
        for run in self.state.active():
            self.fail(run, error)

    def fail(self, run: Run, error: LakemarkError) -> None:
        """End a run, and its tables that are not over, with a reason."""
        for table in run.tables:
            for attempt in self.state.attempts_of(run, table):
                self.void(attempt, "failed")
            if not table.over:
                table.state, table.code = runs.FAILED, error.code
                table.reason, table.hint = error.message, error.hint
        run.code, run.reason, run.hint = error.code, error.message, error.hint
        self.end(run)

    def begin_again(self, run: Run, table: TableRun, why: str) -> None:
        """Have all chunks of a table read again: those read before may not go together."""
        for attempt in self.state.attempts_of(run, table):
            self.void(attempt, "begun-again")
        log.info("snapshot.table_begins_again", run=run.id, table=table.table, reason=why)
        self.unsweep(run, table)
        self.forget(run, table)
        self.changed(run)
        table.begun += 1  # what is under way for it is of no use any more
        self.state.since[run.id] = self.state.windows.begun
        table.state = runs.WAITING
        table.rows = table.settled = table.chunks = table.inexact = table.repairs = 0
        table.first_lo = table.fingerprint = ""
        table.seconds = 0.0
        self.state.chunks[run.id, table.table] = []

    def void(self, attempt: ChunkAttempt, reason: str) -> None:
        """End an attempt that does not count: its chunk waits for another one."""
        self.state.attempts.pop(attempt.number, None)
        self.release(attempt)
        log.info("snapshot.chunk_void", reason=reason, **place_of(attempt))
        self.say(ChunkVoid(**place_of(attempt), reason=reason))

    def release(self, attempt: ChunkAttempt) -> None:
        """Take an attempt that is over from its chunk."""
        chunks = self.state.chunks.get((attempt.run.id, attempt.table.table), [])
        if attempt.begun == attempt.table.begun and attempt.chunk < len(chunks):
            chunk = chunks[attempt.chunk]
            chunk.attempt = -1 if chunk.attempt == attempt.number else chunk.attempt

    def rest(self, run: Run) -> None:
        """Give the tables of an ended run no run of their own for some time.

        The stream's state may still ask for what the run has answered. The time is as long as the
        table took, if that is longer than `rest`: so a table that always needs a run is read for
        half of the time. The run may have ended before this process.
        A verify run answers nothing of what the stream asks for.
        """
        if run.verify:
            return
        passed = max(0, self.executor.now_ms() - run.ended) / 1000
        for table in run.tables:
            left = max(self.state.settings.rest, table.seconds) - passed
            until = self.executor.monotonic() + left
            self.state.rests[table.table] = max(until, self.state.rests.get(table.table, until))

    def sweep(self, run: Run, table: TableRun) -> None:
        """Write the sweep: rows below the table's lowest open row are gone from the source."""
        self.changed(run)
        self.say(Sweep(run=run.id, table=table.table, position=table.first_lo))

    def unsweep(self, run: Run, table: TableRun) -> None:
        """Take back a sweep that was not written yet: the table is read again."""

        def is_mine(record: ControlRecord) -> bool:
            mine = run.id, table.table
            return isinstance(record, Sweep) and (record.run, record.table) == mine

        self._controls = [one for one in self._controls if not is_mine(one)]

    def finish(self, run: Run, table: TableRun, *, swept: bool) -> None:
        """End a table: all that had been asked for up to its reading is answered.

        Without a sweep there may be ghosts: only keys that were read are answered.
        """
        table.state = runs.DONE
        keys = set(table.reread)
        if swept:
            self.say(TableRead(table=table.table, until=table.armed))
        elif table.whole:
            now = self.state.stream.tables.get(table.table)
            asked = (now.reread if now else None) or {}
            keys |= {key for key, batch in asked.items() if batch <= table.armed}
        if keys:
            until = max(table.armed, table.repaired)
            self.say(TableRead(table=table.table, until=until, keys=sorted(keys)))
        self.changed(run)
        self.forget(run, table)
        self._scanned(run, table)

    def end(self, run: Run, *, state: str = "", notified: bool = False) -> None:
        """Disarm a run whose tables are all over."""
        failed = [table for table in run.tables if table.state == runs.FAILED]
        run.state = state or (runs.FAILED if failed else runs.COMPLETED)
        if failed and not run.code:
            run.code = failed[0].code if len(failed) == 1 else "tables-failed"
            names = ", ".join(table.table for table in failed)
            run.reason = failed[0].reason if len(failed) == 1 else f"not read: {names}"
            run.hint = failed[0].hint
        self.count_seconds(run)
        run.ended = self.executor.now_ms()
        for table in run.tables:
            if said := outcome(run, table, ended_ms=run.ended):
                self.say_verified(said)
        self._disarm(run.id)
        for table in run.tables:
            self.forget(run, table)
            self.state.chunks.pop((run.id, table.table), None)
            self._reported.pop((run.id, table.table), None)
            self.state.answered(run, table)
        self._since.pop(run.id, None)
        self.state.pauses.pop(run.id, None)
        self.state.since.pop(run.id, None)
        self.rest(run)
        self.changed(run)
        log.info("snapshot.ended", run=run.id, state=run.state, code=run.code)
        if not notified:
            done = run.state == runs.COMPLETED
            self.notify(self.completed(run) if done else self.aborted(run))
        for table in run.tables:
            table.keys, table.reread = None if table.keys is None else [], []

    def stop(self, run: Run) -> None:
        """End a run, and its tables that are not over, though nothing is wrong."""
        for table in run.tables:
            for attempt in self.state.attempts_of(run, table):
                self.void(attempt, "stopped")
            if not table.over:
                table.state = runs.STOPPED
        self.end(run, state=runs.STOPPED)

    def say_verified(self, said: TableVerified) -> None:
        """Say what the newest verify run over a table has shown, or why there is none."""
        self.state.said_verified[said.table] = said
        self.say(said)
        place = {"table": said.table, "run": said.run}
        if said.code:
            log.warning(
                "verify.failed", **place, code=said.code, reason=said.reason, hint=said.hint,
                retried=bool(said.retried),
            )  # fmt: skip
        if said.found:
            log.warning("verify.found", **place, **said.found, mended=bool(said.mended))
        if said.proved:
            log.info(
                "verify.proved", **place, rows=said.rows, newer=said.newer, position=said.position
            )

    def keep_limits(self, limits: Limits) -> None:
        """Note the limits of verification by itself, to be stored."""
        self.note(LIMITS_KEY, msgspec.json.encode(limits))

    def scanned(self, run: Run, table: TableRun) -> None:
        """Say that a table of a verify run was scanned, and that all of it was alike."""
        self._scanned(run, table)

    # -- what is said ---------------------------------------------------------------------------

    def say(self, record: ControlRecord) -> None:
        """Note a control record to be written, after those before."""
        self._controls.append(record)

    def notify(self, notification: Notification) -> None:
        """Note a notification to be written, after those before."""
        self._notes.append(notification)

    def disarm(self) -> None:
        """Disarm armed runs that are over or not stored: an earlier process came no further."""
        for name in sorted(self.state.stream.armed - self._disarmed):
            run = self.state.runs.get(name)
            if run is None or run.over:
                self._disarm(name)

    def _disarm(self, name: str) -> None:
        self._disarmed.add(name)
        self._arming.append(RunEnd(run=name))

    # -- what is kept ---------------------------------------------------------------------------

    def changed(self, run: Run) -> None:
        """Note that the run is to be stored as it is now."""
        key = runs.run_key(run.id)
        self._dirty[key] = run
        self._gone.discard(key)

    def chunks_changed(self, run: Run, table: TableRun, chunks: Iterable[int]) -> None:
        """Note that these chunks of a table, and the run, are to be stored as they are now."""
        self.changed(run)
        for page in {at // runs.PAGE for at in chunks}:
            key = runs.page_key(run.id, table, page)
            self._pages[key] = (run, table, page)
            self._gone.discard(key)

    def forget(self, run: Run, table: TableRun) -> None:
        """Note that a table's chunks are needed no more."""
        self.remove(runs.page_keys(run.id, table))

    def remove(self, keys: Iterable[bytes]) -> None:
        """Note that these pages are to be removed."""
        for key in keys:
            self._pages.pop(key, None)
            self._gone.add(key)

    def note(self, key: bytes, value: bytes | None) -> None:
        """Note another record to be stored with the next changes; None removes it."""
        self._others[key] = value

    def reset(self) -> None:
        """Forget all records to be written and stored: the stored ones are about to be loaded."""
        self._others = {}
        self._controls, self._notes, self._arming = [], [], []
        self._disarmed = set()
        self.state.runs = {}
        self._pages, self._dirty, self._gone = {}, {}, set()

    def keep(self) -> None:
        """Write the noted records, store what has changed since, then arm and disarm.

        Raises:
            DependencyError: nothing is lost: call again.
        """
        if self._controls:
            self.progress.control(self._controls)
            self._controls = []
        if self._notes:
            self.progress.notify(self._notes)
            self._notes = []
        self._save()
        if self._arming:
            self.progress.control(self._arming)
            self._arming = []

    def _save(self) -> None:
        """Store the changed records; their order matters, see `runs.loaded`."""
        records: dict[bytes, bytes | None] = {}
        pages = sorted(self._pages.items(), key=lambda item: -item[1][2])
        for key, (run, table, page) in pages:
            chunks = self.state.chunks[run.id, table.table]
            records[key] = runs.page_value(chunks[page * runs.PAGE : (page + 1) * runs.PAGE])
        for run in self._dirty.values():
            run.batch = self.state.stream.batch
        records.update((key, msgspec.json.encode(run)) for key, run in self._dirty.items())
        records.update(dict.fromkeys(sorted(self._gone)))
        records.update(self._others)
        if self.place != self._kept_place:
            records[SIGNALS_KEY] = self.place
        if not records:
            return
        self.progress.save(records)
        self._pages, self._dirty, self._gone, self._others = {}, {}, set(), {}
        self._kept_place = self.place

    # -- notifications --------------------------------------------------------------------------

    def report(self, now: float) -> None:
        """Notify of the tables' progress, not too often."""
        for run in self.state.active():
            self.count_seconds(run)
        if now < self._next_report:
            return
        self._next_report = now + REPORT_EVERY_S
        scanning = [run for run in self.state.open_runs() if run.state == runs.SCANNING]
        for run in [*self.state.active(), *scanning]:
            for table in run.tables:
                here = (table.settled, table.chunks)
                if run.automatic:  # it may take days: a hundred times, not each chunk
                    here = (self._progress(run, [table]).percent(), 0)
                under_way = table.state in {runs.READING, runs.CHECKING, runs.SCANNING}
                if not under_way or self._reported.get((run.id, table.table)) == here:
                    continue
                self._reported[run.id, table.table] = here
                self.notify(
                    notes.in_progress(
                        self.subject(run),
                        table=table.table,
                        progress=self._progress(run, [table]),
                        ts_ms=self.executor.now_ms(),
                        paused=run.paused,
                    )
                )

    def _scanned(self, run: Run, table: TableRun) -> None:
        status = ScanStatus.SUCCEEDED if table.rows else ScanStatus.EMPTY
        if table.state == runs.FAILED:
            now = self.state.stream.tables.get(table.table)
            stopped = now is not None and now.code == table.code  # nobody has asked the database
            other = ScanStatus.SKIPPED if stopped else ScanStatus.SQL_EXCEPTION
            status = _STATUS.get(table.code, other)
        self.notify(
            notes.table_scan_completed(
                self.subject(run),
                table=table.table,
                status=status,
                progress=self._progress(run, [table]),
                ts_ms=self.executor.now_ms(),
            )
        )
        if run.paused and not run.over:
            self.notify(self.paused(run))

    def paused(self, run: Run) -> Notification:
        """Return the notification that a run is paused, or no longer."""
        say = notes.paused if run.paused else notes.resumed
        progress = self._progress(run, run.tables)
        return say(self.subject(run), progress=progress, ts_ms=self.executor.now_ms())

    def completed(self, run: Run) -> Notification:
        """Return the notification that a run has ended well."""
        progress = self._progress(run, run.tables)
        return notes.completed(self.subject(run), progress=progress, ts_ms=self.executor.now_ms())

    def aborted(self, run: Run) -> Notification:
        """Return the notification that a run has ended otherwise."""
        stopped = [t.table for t in run.tables if t.state != runs.DONE]
        return notes.aborted(
            self.subject(run), stopped=stopped, ts_ms=self.executor.now_ms(), code=run.code,
            reason=run.reason, hint=run.hint,
        )  # fmt: skip

    def _progress(self, run: Run, tables: Sequence[TableRun]) -> Progress:
        totals = [table.total for table in tables]
        tally = VerifyTally()
        for table in tables:
            tally.add(table.tally)
        is_cut = [table.over or table.state not in {runs.WAITING, runs.CUTTING} for table in tables]
        return Progress(
            chunks=sum(table.settled for table in tables),
            total_chunks=sum(table.chunks for table in tables),
            rows=tally.scanned or sum(table.rows for table in tables),
            inexact=sum(table.inexact for table in tables),
            seconds=tables[0].seconds if len(tables) == 1 else run.seconds,
            total_rows=tally.scanned or (None if min(totals, default=-1) < 0 else sum(totals)),
            known=sum(is_cut) / len(is_cut),
            tally=tally if run.verify else None,
        )

    def count_seconds(self, run: Run) -> None:
        """Count the time that a run has been reading."""
        now = self.executor.monotonic()
        since = self._since.get(run.id, now)
        if not run.paused and run.state == runs.READING:
            run.seconds += now - since
            for table in run.tables:
                if table.state not in {runs.WAITING, runs.DONE, runs.FAILED, runs.STOPPED}:
                    table.seconds += now - since
        self._since[run.id] = now

    def subject(self, run: Run) -> Subject:
        """Return a run as the subject of notifications."""
        return Subject(run.id, self.state.settings.pipeline, run.names())


def place_of(attempt: ChunkAttempt) -> dict[str, Any]:
    """Return the fields of a control record that name an attempt at a chunk."""
    return {
        "run": attempt.run.id,
        "table": attempt.table.table,
        "chunk": attempt.chunk,
        "attempt": attempt.number,
    }
