"""Takes signals, answers them, starts and ends runs, and stores the outcome.

Every signal gets an answer on the notifications topic, under its own id. A signal whose id is that
of an earlier run runs nothing: the run's answer is repeated.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import msgspec
import structlog

from lakemark.backoff import Backoff
from lakemark.errors import LakemarkError, PipelineError
from lakemark.snapshot import notifications as notes
from lakemark.snapshot import runs, signal_skip, signal_validation
from lakemark.snapshot.chunks import BY_NO_KEY, INTERNAL, REPORT, is_of_a_table
from lakemark.snapshot.notifications import Subject
from lakemark.snapshot.ports import (
    Executor,
    ProgressStore,
    SignalSource,
    SourceReader,
    StreamedTable,
)
from lakemark.snapshot.retries import Retries
from lakemark.snapshot.run_store import RunStore
from lakemark.snapshot.runs import Run, TableRun
from lakemark.snapshot.signal_parts import part_of
from lakemark.snapshot.signals import (
    ExecuteSnapshot,
    PauseSnapshot,
    Rejection,
    ResumeSnapshot,
    SetSnapshot,
    Signal,
    SignalRecord,
    StopSnapshot,
    matching,
    read,
)
from lakemark.snapshot.snapshot_state import SnapshotState
from lakemark.snapshot.verification import NAME, Verification
from lakemark.state import handling
from lakemark.state.handling import Mark

log = structlog.get_logger(__name__)

HANDLING_KEY: Final = b"_handling"


class SignalProcessor:
    """Takes signals and answers them."""

    def __init__(
        self,
        state: SnapshotState,
        store: RunStore,
        retries: Retries,
        *,
        progress: ProgressStore,
        source: SignalSource,
        reader: SourceReader,
        executor: Executor,
    ) -> None:
        self.state = state
        self.progress = progress
        self.source = source
        self.reader = reader
        self.executor = executor
        self.store = store
        self.retries = retries
        self._rebuilds: dict[str, str] = {}  # for which a table was allowed a run at once
        self._told: dict[str, str] = {}  # why a table's repair was refused last
        self._signals: deque[SignalRecord] = deque()
        self._mark: Mark | None = None
        self._skipped: set[str] = set()
        self.process = handling.PROCESS
        self._until, self._backoff = -math.inf, Backoff()
        self.trouble: LakemarkError | None = None

    def take_up(self, stored: Mapping[bytes, bytes]) -> None:
        """Take up the stored mark of signals under way, and the ids that a person has left out."""
        self._mark = handling.decode(stored.get(HANDLING_KEY))
        self._skipped = signal_skip.names_in(stored)

    def skips(self, run: Run) -> bool:
        """End a run that a person has left out; say whether it is one."""
        if run.id not in self._skipped:
            return False
        self.store.fail(
            run, PipelineError(signal_skip.REASON, code=signal_skip.CODE, hint=signal_skip.HINT)
        )
        self._skip_done(run.id)
        return True

    def _skip_done(self, name: str) -> None:
        self._skipped.discard(name)
        self.store.note(signal_skip.key_of(name), None)

    # -- signals --------------------------------------------------------------------------------

    def answer(self) -> None:
        """Deal with the signals that have come; their place is stored after their effects.

        The next signal is taken when that is stored. After a crash only the newest is carried out
        again, and the runs that a stop or a pause hits then were there before it.

        A dependency of a signal may be away: the signal is dealt with later, and the others after
        it. Runs that are there already do not wait for that.
        """
        now = self.executor.monotonic()
        if now < self._until:
            return
        try:
            self._answer()
        except LakemarkError as error:
            wait = self._backoff.failed(after_s=now - self._until)
            self._until, self.trouble = now + wait, error
            self.retries.delayed(error, wait)
        else:
            self.trouble = None

    def _answer(self) -> None:
        if not self._signals:
            self._signals.extend(self.source.signals())
        while self._signals:
            self.store.keep()
            record = self._signals[0]
            self._handle(record)
            self._signals.popleft()
            self.store.place = record.stands

    def _handle(self, record: SignalRecord) -> None:
        """Read and carry out one signal, under a mark: see `handling`."""
        if record.id in self._skipped:
            self._reject(
                Rejection(record.id, signal_skip.CODE, signal_skip.REASON, signal_skip.HINT)
            )
            self._skip_done(record.id)
            return
        past = handling.past(self._mark, [record.place], self.process)
        if past.left:
            self._reject(Rejection(record.id, handling.CODE, handling.REASON, handling.HINT))
            self._note(None)
            return
        self._mark = Mark((record.place,), self.process, past.deaths)
        self.progress.save({HANDLING_KEY: handling.encode(self._mark)})
        settings = self.state.settings
        said = read(record.key, record.value, pipeline=settings.pipeline, unnamed=record.unnamed)
        try:
            if isinstance(said, Rejection):
                if settings.speaks:
                    self._reject(said)
            elif (own := part_of(said, settings.qualifier, settings.every)) is not None:
                self._take(own)
        except LakemarkError:  # it waits; who ends meanwhile does not end over it
            self._note(msgspec.structs.replace(self._mark, process="") if past.deaths else None)
            raise
        self._note(None)

    def _note(self, mark: Mark | None) -> None:
        self._mark = mark
        self.store.note(HANDLING_KEY, handling.encode(mark) if mark else None)

    def _take(self, signal: Signal) -> None:
        try:
            self._carry_out(signal)
        except LakemarkError as error:
            if error.retried:
                raise
            self._reject(Rejection(signal.id, error.code, error.message, error.hint))
        except Exception as error:  # it would hold up all signals and runs, also after a restart
            log.exception("snapshot.internal_error", id=signal.id)
            self._reject(Rejection(signal.id, INTERNAL, type(error).__name__, REPORT))

    def _carry_out(self, signal: Signal) -> None:
        log.info("snapshot.signal", id=signal.id, type=type(signal).__name__)
        if isinstance(signal, ExecuteSnapshot):
            self._execute(signal)
        elif isinstance(signal, StopSnapshot):
            self._stop(signal)
        elif isinstance(signal, PauseSnapshot | ResumeSnapshot):
            self._pause(signal, paused=isinstance(signal, PauseSnapshot))
        else:
            self._set(signal)

    def _execute(self, signal: ExecuteSnapshot) -> None:
        known = self.state.runs.get(signal.id)
        if known is not None:
            self._say_again(known)
            return
        refusal = self.source.refusal()
        if refusal is not None:
            self._reject(replace(refusal, id=signal.id))
            return
        world = signal_validation.SignalContext(
            self.source.tables(),
            self.reader.condition,
            self.source.reasons_against,
        )
        found = signal_validation.accept(signal, world)
        if isinstance(found, Rejection):
            self._reject(found)
            return
        self.store.begin(found)

    def _stop(self, signal: StopSnapshot) -> None:
        stopped: list[str] = []
        for run in [one for one in self.state.runs.values() if not one.over]:
            chosen = (
                set(matching(signal.data_collections, run.names()).tables)
                if signal.data_collections
                else set(run.names())
            )
            tables = [t for t in run.tables if t.table in chosen and not t.over]
            for table in tables:
                for attempt in self.state.attempts_of(run, table):
                    self.store.void(attempt, "stopped")
                table.state = runs.STOPPED
            if not tables:
                continue
            names = [table.table for table in tables]
            stopped += names
            self.store.changed(run)
            self.store.notify(
                notes.aborted(self.store.subject(run), stopped=names, ts_ms=self.executor.now_ms())
            )
            if all(table.over for table in run.tables):
                done = any(table.state == runs.DONE for table in run.tables)
                self.store.end(run, state="" if done else runs.STOPPED, notified=not done)
        if not stopped:
            self._reject(
                Rejection(
                    signal.id, "nothing-to-stop", "no snapshot of these tables is active",
                    "see lakemark snapshot status",
                )
            )  # fmt: skip
            return
        once = tuple(dict.fromkeys(stopped))
        subject = Subject(signal.id, self.state.settings.pipeline, once)
        self.store.notify(notes.aborted(subject, stopped=once, ts_ms=self.executor.now_ms()))

    def _pause(self, signal: PauseSnapshot | ResumeSnapshot, *, paused: bool) -> None:
        active = [one for one in self.state.runs.values() if not one.over]
        if not active:
            word = "pause" if paused else "resume"
            self._reject(
                Rejection(
                    signal.id, f"nothing-to-{word}", "no snapshot is active",
                    "see lakemark snapshot status",
                )
            )  # fmt: skip
            return
        for run in active:
            if run.paused != paused:
                self.store.count_seconds(run)
                run.paused = paused
                self.store.changed(run)
                self.store.notify(self.store.paused(run))
        say = notes.paused if paused else notes.resumed
        tables = tuple(dict.fromkeys(name for run in active for name in run.names()))
        self.store.notify(
            say(
                Subject(signal.id, self.state.settings.pipeline, tables),
                ts_ms=self.executor.now_ms(),
            )
        )

    def _set(self, signal: SetSnapshot) -> None:
        run, plan = self.state.runs.get(signal.run), self.state.settings.verification
        if (run is None or run.over) and plan and signal.run == self.state.settings.own_id(NAME):
            self._set_own(signal, plan)
            return
        if run is None or run.over:
            self._reject(
                Rejection(
                    signal.id, "unknown-run", "there is no active run with this id",
                    "see lakemark snapshot status for the ids",
                )
            )  # fmt: skip
            return
        if signal.chunk_rows is not None:
            run.chunk_rows = signal.chunk_rows
        if signal.parallelism is not None:
            run.parallelism = signal.parallelism
        if signal.delay is not None:
            run.delay = signal.delay.total_seconds()
            self.state.pauses.pop(run.id, None)
        if signal.rows_per_second is not None:
            run.rows_per_second = signal.rows_per_second
        self.store.changed(run)
        subject = Subject(signal.id, self.state.settings.pipeline, run.names())
        self.store.notify(notes.changed(subject, run=run.id, ts_ms=self.executor.now_ms()))

    def _set_own(self, signal: SetSnapshot, plan: Verification) -> None:
        """Change all runs of verification by itself: the one under way, and those to come."""
        self.state.limits.change(signal, plan.rows_per_second)
        self.store.keep_limits(self.state.limits)
        own = [run for run in self.state.open_runs() if run.automatic]
        for run in own:
            self.state.limits.limit(run, plan.rows_per_second)
            self.state.pauses.pop(run.id, None)
            self.store.changed(run)
        tables = tuple(name for run in own for name in run.names())
        subject = Subject(signal.id, self.state.settings.pipeline, tables)
        self.store.notify(notes.changed(subject, run=signal.run, ts_ms=self.executor.now_ms()))

    def _say_again(self, run: Run) -> None:
        """Answer a repeated signal with the answer that its run has got so far."""
        if run.state == runs.COMPLETED:
            self.store.notify(self.store.completed(run))
        elif run.over:
            self.store.notify(self.store.aborted(run))
        elif run.state == runs.READING:
            now = self.executor.now_ms()
            self.store.notify(notes.started(self.store.subject(run), ts_ms=now, verify=run.verify))

    def _reject(self, rejection: Rejection) -> None:
        log.warning(
            "snapshot.rejected", id=rejection.id, code=rejection.code, reason=rejection.message,
            hint=rejection.hint,
        )  # fmt: skip
        self.store.notify(
            notes.rejected(
                rejection, pipeline=self.state.settings.pipeline, ts_ms=self.executor.now_ms()
            )
        )

    # -- what the stream asks for ---------------------------------------------------------------

    def queue_repairs(self) -> None:
        """Begin a run for each table that needs rows again and has none."""
        for name, now in self.state.stream.tables.items():
            if now.rebuild != self._rebuilds.get(name, ""):  # somebody waits for it
                self._rebuilds[name] = now.rebuild
                self.state.rests.pop(name, None)
            if not now.streaming or not _wants(now) or not self.may_queue(name):
                continue
            if self.source.refusal() is not None:
                return
            if not self.refused(name):
                self._repair(name, now)

    def may_queue(self, name: str) -> bool:
        """Say whether a table may get a run unasked: it has none, nor just had one."""
        if self.executor.monotonic() < self.state.rests.get(name, 0.0):
            return False
        return not any(name in run.names() for run in self.state.open_runs() if not run.verify)

    def refused(self, name: str) -> bool:
        """Say whether a signal would be refused for what the connector does to the table's rows.

        Either way, `may_queue` is false for some time: unless refused, the caller begins a run now.
        """
        self.state.rests[name] = self.executor.monotonic() + self.state.settings.rest
        try:
            reason = signal_validation.against(name, self.source.reasons_against)
        except LakemarkError as error:
            if not is_of_a_table(error):
                raise
            return False  # each chunk asks again
        if reason is None:
            self._told.pop(name, None)
            return False
        if self._told.get(name) != reason.code:  # once, not every minute
            self._told[name] = reason.code
            log.warning(
                "snapshot.refused", table=name, code=reason.code, reason=reason.message,
                hint=reason.hint,
            )  # fmt: skip
        return True

    def _repair(self, name: str, now: StreamedTable) -> None:
        batch, own_id = self.state.stream.batch, self.state.settings.own_id
        whole = now.resnapshot_since >= 0 or now.reread_missed >= 0 or self._in_vain(name)
        keys = [] if whole else sorted(now.reread or {})
        texts = self.reader.texts(name, keys)
        if len(texts) < len(keys) or whole:  # also where a key is none that can be asked for
            run = Run(own_id(f"resnapshot-{name}-{batch}"), [TableRun(name)])
        else:
            table = TableRun(name, keys=list(texts.values()), reread=keys)
            run = Run(own_id(f"reread-{name}-{batch}"), [table])
        if run.id in self.state.runs:
            return  # there was one since the last batch
        log.info("snapshot.queued", id=run.id, table=name)
        self.store.begin(run)

    def _in_vain(self, name: str) -> bool:
        """Say whether the table's newest run asked for keys that find no row."""
        found = [run for run in self.state.runs.values() if name in run.names()]
        newest = sorted(found, key=lambda run: run.number)[-1:]
        return any(run.id.startswith(f"reread-{name}-") and run.code in BY_NO_KEY for run in newest)


def _wants(now: StreamedTable) -> bool:
    return now.resnapshot_since >= 0 or now.reread_missed >= 0 or bool(now.reread)
