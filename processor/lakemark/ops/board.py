"""The board: what the process knows now. Threads write on it, threads read it; pure.

| who writes | what |
|---|---|
| supervisor | the pipeline's state, the tables' states after a batch, captured tables |
| pipeline | what a batch did |
| feeds | Kafka's end offsets, or that it is away; signals, notifications; the last hour as kept |
| snapshots | windows and chunks in flight |

Nothing here decides anything: the states are the pipeline's, shown in the words of `status`.
"""

import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from lakemark import tables
from lakemark.errors import LakemarkError
from lakemark.ops import lag, status
from lakemark.ops.answers import Answers, delay_of, windows_of
from lakemark.ops.history import Batches, Pace
from lakemark.ops.status import (
    BatchDone,
    History,
    Lag,
    PipelineNow,
    PipelineWord,
    Status,
    Stretch,
    TableNow,
)
from lakemark.snapshot.flight import Flight
from lakemark.snapshot.notifications import Notification
from lakemark.tables import PipelineState, TableState
from lakemark.version import __version__

_WORDS: dict[str, status.TableWord] = {
    tables.CATCHING_UP: "catching_up",
    tables.PAUSED: "paused",
    tables.ERRORED: "errored",
}


class Board:
    """What the process knows; every method may be called from any thread.

    Args:
        name: the pipeline's.
        clock: seconds since the epoch, the clock that source times are compared with.
    """

    def __init__(self, name: str, *, clock: Callable[[], float] = time.time) -> None:
        self._name, self._clock = name, clock
        self._lock = threading.Lock()
        now = self._now_ms()
        self._pipeline = PipelineNow("starting", now, now)
        self._captured: frozenset[str] = frozenset()
        self._state = PipelineState()
        self._clocks: dict[str, lag.Clock] = {}
        self._paces: dict[str, Pace] = {}
        self._ends: lag.Ends | None = None
        self._away: PipelineNow | None = None
        self._flight = Flight()
        self._batches = Batches()
        self._answers = Answers()

    # -- what is written ------------------------------------------------------------------------

    def pipeline(
        self, state: PipelineWord, *, code: str = "", reason: str = "", hint: str = ""
    ) -> None:
        """The pipeline is in this state."""
        with self._lock:
            before = self._pipeline
            since = before.since_ms if before.state == state else self._now_ms()
            self._pipeline = PipelineNow(state, since, before.started_ms, code, reason, hint)
            self._away = None

    def captured(self, names: Iterable[str]) -> None:
        """Tables that the connector captures."""
        with self._lock:
            self._captured = frozenset(names)

    def began(self, state: PipelineState) -> None:
        """The query starts from this state: nothing of it was applied just now."""
        now = self._clock()
        with self._lock:
            self._state = state
            self._paces = {name: Pace(now, entry.events) for name, entry in state.tables.items()}

    def tables(self, state: PipelineState) -> None:
        """The tables' states as a batch left them; the state is not changed any more."""
        now = self._clock()
        with self._lock:
            for name, entry in state.tables.items():
                before = self._state.tables.get(name, TableState())
                if before.newest_ts != entry.newest_ts:
                    self._clocks.setdefault(name, lag.Clock()).applied_at = now
                pace = self._paces.setdefault(name, Pace(now, before.events))
                pace.add(now, entry.events)
            self._state = state

    def batch(self, done: BatchDone) -> None:
        """A batch has ended; its `ended_ms` is set here."""
        with self._lock:
            self._batches.add(msgspec.structs.replace(done, ended_ms=self._now_ms()))

    def ends(self, known: lag.Ends | None, *, why: LakemarkError | None = None) -> None:
        """What Kafka holds of the change topics; None if it could not be asked.

        Args:
            known: the offsets.
            why: Kafka is away: until the next offsets, or the supervisor's next word, a pipeline
                that streams is degraded.
        """
        with self._lock:
            self._ends = known
            if known is not None or why is not None:
                self._away = self._degraded(why) if why is not None else None
            if known is not None:
                self._batches.lagging(self._lags()[1], self._now_ms())

    def signal(self, value: bytes | None, *, sent_ms: int, unnamed: str) -> None:
        """A record of the signals topic."""
        with self._lock:
            self._answers.signal(value, sent_ms=sent_ms, unnamed=unnamed)

    def flight(self, now: Flight | None) -> None:
        """Windows and chunks of snapshots as they are now; None when nobody carries any out."""
        with self._lock:
            self._flight = now or Flight()

    def notification(self, found: Notification) -> None:
        """A record of the notifications topic."""
        with self._lock:
            self._answers.notification(found)

    def recalled(self, kept: Iterable[Stretch]) -> None:
        """The last hour as it was kept before this process, or by another one meanwhile."""
        with self._lock:
            self._batches.recall(kept, self._now_ms())

    # -- what is read ---------------------------------------------------------------------------

    def status(self) -> Status:
        """Everything, as it is now."""
        with self._lock:
            lags, whole = self._lags()
            reading = self._answers.reading()
            names = sorted({*self._state.tables, *self._captured})
            shown = tuple(self._table(name, lags.get(name, Lag()), reading) for name in names)
            return Status(
                self._name,
                __version__,
                self._now_ms(),
                msgspec.structs.replace(self._now(), batch=self._state.batch),
                whole,
                self._batches.slowest(),
                shown,
                self._batches.newest(),
                self._answers.runs(self._flight),
                self._answers.signals(),
                windows_of(self._flight),
                delay_of(self._flight),
            )

    def history(self) -> History:
        """The last hour."""
        with self._lock:
            return self._batches.history(self._now_ms())

    def totals(self) -> tuple[int, int, int, dict[str, float]]:
        """Batches, events, rows and seconds by step since the process began."""
        with self._lock:
            done = self._batches
            return done.count, done.events, done.rows, dict(done.seconds)

    # -- with the lock held ---------------------------------------------------------------------

    def _degraded(self, why: LakemarkError) -> PipelineNow:
        since = self._away.since_ms if self._away is not None else self._now_ms()
        started = self._pipeline.started_ms
        return PipelineNow("degraded", since, started, why.code, why.message, why.hint)

    def _now(self) -> PipelineNow:
        """The supervisor's word, but a query that still runs while Kafka is away does nothing."""
        streams = self._pipeline.state == status.STREAMING
        return self._away if streams and self._away is not None else self._pipeline

    def _lags(self) -> tuple[dict[str, Lag], Lag]:
        """The lag of every table that has one, and the pipeline's."""
        known, applied, now = self._ends, self._state.offsets, self._clock()
        if known is None:
            return {}, Lag()
        found = {
            name: lag.lag_of(
                entry,
                lag.unread_of(entry, applied, known),
                self._clocks.setdefault(name, lag.Clock()),
                now,
            )
            for name, entry in self._state.tables.items()
        }
        # What has stopped says so itself; its lag would hide that of all others.
        going = [
            found[name]
            for name, entry in self._state.tables.items()
            if entry.state in {tables.STREAMING, tables.CATCHING_UP} and entry.topics
        ]
        return found, lag.worst(going, lag.unread(known.ends, applied, known))

    def _table(self, name: str, behind: Lag, reading: frozenset[str]) -> TableNow:
        entry = self._state.tables.get(name)
        if entry is None:
            return TableNow(name, "snapshotting" if name in reading else "waiting")
        word: status.TableWord = "snapshotting" if name in reading else "streaming"
        return TableNow(
            name,
            _WORDS.get(entry.state, word),
            entry.code,
            entry.reason,
            entry.hint,
            entry.retried,
            entry.rows,
            entry.bytes,
            entry.events,
            entry.replays,
            entry.dead_letters,
            len(entry.reread_keys),
            entry.reread_missed >= 0,
            entry.resnapshot,
            entry.engine,
            _newest_ms(entry),
            entry.committed_ms or None,
            behind,
            round(pace.now(self._clock()), 3) if (pace := self._paces.get(name)) else None,
        )

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _newest_ms(entry: TableState) -> int | None:
    return entry.newest_ts // 1000 or None
