"""The board: the state of the process. Threads write to it, threads read it; pure.

| who writes | what |
|---|---|
| supervisor | the pipeline's state, the tables' states after a batch, captured tables |
| pipeline | what a batch did |
| feeds | Kafka's end offsets, or that it is away; signals, notifications; the last hour as kept |
| source watch | whether the source works; tables that it no longer has |
| catalog watch | what the database's catalog has changed |
| snapshots | windows and chunks in flight |

Nothing here decides anything: the states are the pipeline's, shown in the words of `status`.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from lakemark.errors import LakemarkError
from lakemark.model.proof import UNPROVED
from lakemark.ops import lag, status
from lakemark.ops.answers import Answers, delay_of, windows_of
from lakemark.ops.history import BatchHistory, EventRate
from lakemark.ops.proofs import proof_of
from lakemark.ops.status import (
    BatchDone,
    CatalogNow,
    ConnectorNow,
    CutNow,
    History,
    Lag,
    PipelineNow,
    PipelineWord,
    SourceNow,
    SourceProblem,
    Status,
    Stretch,
    TableNow,
)
from lakemark.settings.table_id import unqualified
from lakemark.settings.verify_config import VerifyConfig
from lakemark.snapshot.flight import Flight
from lakemark.snapshot.notifications import Notification
from lakemark.state import tables
from lakemark.state.schema_refresh import UNKNOWN
from lakemark.state.tables import PipelineState, TableState
from lakemark.version import __version__

_WORDS: dict[str, status.TableWord] = {
    tables.CATCHING_UP: "catching_up",
    tables.PAUSED: "paused",
    tables.ERRORED: "errored",
}


_ONLY: Final = ConnectorNow("")
_NOTHING: Final = Flight()


@dataclass(slots=True)
class _Side:
    """The state of one connector's side.

    Attributes:
        connector: as it is shown, in a pipeline of several; else it has no name.
        source: whether it works; None while nobody looks at it.
        gone: tables that it no longer has, with the time at which that was seen.
        catalog: its newest look.
        flight: of its snapshots.
    """

    connector: ConnectorNow = _ONLY
    source: SourceNow | None = None
    gone: dict[str, int] = field(default_factory=dict)
    catalog: CatalogNow | None = None
    flight: Flight = _NOTHING

    def now(self, source: SourceNow | None) -> ConnectorNow:
        """Return what is shown."""
        return msgspec.structs.replace(
            self.connector,
            windows=windows_of(self.flight),
            snapshot_delay=delay_of(self.flight),
            source=source,
            catalog=self.catalog,
        )


class Board:
    """The state of the process; every method may be called from any thread.

    What is one connector's is said with its qualifier, which is empty for the only one.

    Args:
        name: the pipeline's.
        verify: which tables are verified by themselves, and how often.
        clock: seconds since the epoch, the clock that source times are compared with.
    """

    def __init__(
        self,
        name: str,
        *,
        verify: VerifyConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name, self._clock = name, clock
        self._verify = verify or VerifyConfig()
        self._lock = threading.Lock()
        now = self._now_ms()
        self._pipeline = PipelineNow("starting", now, now)
        self._captured: frozenset[str] = frozenset()
        self._state = PipelineState()
        self._clocks: dict[str, lag.Clock] = {}
        self._paces: dict[str, EventRate] = {}
        self._ends: lag.Ends | None = None
        self._away: PipelineNow | None = None
        self._sides: dict[str, _Side] = {"": _Side()}
        self._absent: tuple[ConnectorNow, ...] = ()
        self._batches = BatchHistory()
        self._answers = Answers()

    # -- what is written ------------------------------------------------------------------------

    def pipeline(
        self, state: PipelineWord, *, code: str = "", reason: str = "", hint: str = ""
    ) -> None:
        """Set the pipeline's state, and its reason where it has one."""
        with self._lock:
            before = self._pipeline
            since = before.since_ms if before.state == state else self._now_ms()
            self._pipeline = PipelineNow(state, since, before.started_ms, code, reason, hint)
            self._away = None

    def captured(self, names: Iterable[str]) -> None:
        """Set the tables that the connector captures."""
        with self._lock:
            self._captured = frozenset(names)

    def began(self, state: PipelineState) -> None:
        """Set the state that the query starts from: nothing of it was applied just now."""
        now = self._clock()
        with self._lock:
            self._state = state
            self._paces = {
                name: EventRate(now, entry.size.events) for name, entry in state.tables.items()
            }

    def tables(self, state: PipelineState) -> None:
        """Set the tables' states as a batch left them; the state is not changed any more."""
        now = self._clock()
        with self._lock:
            for name, entry in state.tables.items():
                before = self._state.tables.get(name, TableState())
                if before.size.newest_ts != entry.size.newest_ts:
                    self._clocks.setdefault(name, lag.Clock()).applied_at = now
                pace = self._paces.setdefault(name, EventRate(now, before.size.events))
                pace.add(now, entry.size.events)
            self._state = state

    def batch(self, done: BatchDone) -> None:
        """Add a batch that has ended; its `ended_ms` is set here."""
        with self._lock:
            self._batches.add(msgspec.structs.replace(done, ended_ms=self._now_ms()))

    def ends(self, known: lag.Ends | None, *, why: LakemarkError | None = None) -> None:
        """Set the offsets that Kafka has of the change topics; None if they could not be asked for.

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

    def connectors(
        self, here: Mapping[str, str], away: Iterable[tuple[str, LakemarkError]] = ()
    ) -> None:
        """Set the connectors of a pipeline of several.

        Args:
            here: the names of those that are used, by qualifier.
            away: the names of the others, and why they cannot be.
        """
        with self._lock:
            self._sides = {
                one: replace(self._sides.get(one, _Side()), connector=ConnectorNow(name, one))
                for one, name in here.items()
            }
            self._absent = tuple(
                ConnectorNow(name, "", "away", why.code, why.message, why.hint)
                for name, why in away
            )

    def source(self, now: SourceNow | None, connector: str = "") -> None:
        """Set the state of a source; None when nobody looks at it any more."""
        with self._lock:
            self._side(connector).source = now

    def gone(self, names: Iterable[str], connector: str = "") -> None:
        """Set the tables that are no longer in a source."""
        now = self._now_ms()
        with self._lock:
            side = self._side(connector)
            side.gone = {name: side.gone.get(name, now) for name in names}

    def catalog(self, now: CatalogNow, connector: str = "") -> None:
        """Set the result of the newest look at a catalog."""
        with self._lock:
            self._side(connector).catalog = now

    def signal(self, value: bytes | None, *, sent_ms: int, unnamed: str) -> None:
        """Add a record of the signals topic, see `Answers.signal`."""
        with self._lock:
            self._answers.signal(value, sent_ms=sent_ms, unnamed=unnamed)

    def flight(self, now: Flight | None, connector: str = "") -> None:
        """Set the snapshots' windows and chunks in flight; None while nobody runs snapshots."""
        with self._lock:
            self._side(connector).flight = now or Flight()

    def notification(self, found: Notification) -> None:
        """Add a record of the notifications topic."""
        with self._lock:
            self._answers.notification(found)

    def recalled(self, kept: Iterable[Stretch]) -> None:
        """Add the last hour as it was stored before this process, or by another one meanwhile."""
        with self._lock:
            self._batches.recall(kept, self._now_ms())

    # -- what is read ---------------------------------------------------------------------------

    def names(self, connector: str = "") -> frozenset[str]:
        """Return the names of the tables that are shown, of one connector."""
        with self._lock:
            every = self._captured.union(self._state.tables)
            return frozenset(name for name in every if unqualified(connector, name) is not None)

    def applied(self) -> PipelineState:
        """Return the tables as the newest batch has left them, durably; nobody changes it."""
        with self._lock:
            return self._state

    def source_problem(self, connector: str = "") -> SourceProblem | None:
        """Return why no changes come of a connector, if that is known; the cause before others."""
        with self._lock:
            source = self._side(connector).source
            return next(iter(source.problems), None) if source is not None else None

    def status(self) -> Status:
        """Return everything, as it is now."""
        with self._lock:
            lags, whole = self._lags()
            reading = self._answers.reading()
            gone = {name for side in self._sides.values() for name in side.gone}
            names = sorted({*self._state.tables, *(self._captured - gone)})
            every = self._verify.every
            alone = self._sides.get("", _Side()).now(self._proven(""))
            several = [side.now(self._proven(one)) for one, side in self._sides.items() if one]
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
                self._answers.runs([side.flight for side in self._sides.values()]),
                self._answers.signals(self._sides),
                alone.windows,
                alone.snapshot_delay,
                alone.source,
                alone.catalog,
                (*several, *self._absent),
                every.total_seconds() if every is not None else None,
                (*_cuts(self._state),),
            )

    def history(self) -> History:
        """Return the last hour."""
        with self._lock:
            return self._batches.history(self._now_ms())

    def totals(self) -> tuple[int, int, int, dict[str, float]]:
        """Return batches, events, rows and seconds by step since the process began."""
        with self._lock:
            done = self._batches
            return done.count, done.events, done.rows, dict(done.seconds)

    # -- with the lock held ---------------------------------------------------------------------

    def _degraded(self, why: LakemarkError) -> PipelineNow:
        since = self._away.since_ms if self._away is not None else self._now_ms()
        started = self._pipeline.started_ms
        return PipelineNow("degraded", since, started, why.code, why.message, why.hint)

    def _now(self) -> PipelineNow:
        """Return the supervisor's state; `degraded` where the query runs and Kafka is away."""
        streams = self._pipeline.state == status.STREAMING
        return self._away if streams and self._away is not None else self._pipeline

    def _lags(self) -> tuple[dict[str, Lag], Lag]:
        """Return the lag of every table that has one, and the pipeline's."""
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
        entries = self._state.tables
        sources = {connector: self._proven(connector) for connector in self._sides}
        for name, one in found.items():
            if not self._is_gone(name, one):
                found[name] = lag.bounded(one, sources.get(self._whose(name)), now)
        # What has stopped says so itself; its lag would hide that of all others.
        going = [
            found[name]
            for name, entry in entries.items()
            if entry.state in {tables.STREAMING, tables.CATCHING_UP}
            and entry.topics
            and not self._is_gone(name, found[name])
        ]
        worst = lag.worst(going, lag.unread(known.ends, applied, known))
        for source in sources.values():
            worst = lag.bounded(worst, source, now)
        return found, worst

    def _whose(self, table: str) -> str:
        """Return the connector of a table, by its qualifier."""
        return next((one for one in self._sides if unqualified(one, table) is not None), "")

    def _side(self, connector: str) -> _Side:
        """Return a connector's side; one that goes nowhere if it is not there any more.

        A look that takes long ends after the query, which goes on without the connector perhaps.
        """
        return self._sides.get(connector, _Side())

    def _proven(self, connector: str) -> SourceNow | None:
        """Return a source with the proof that its newest event gives."""
        side = self._sides.get(connector)
        own = [
            entry.size.newest_ts
            for name, entry in self._state.tables.items()
            if unqualified(connector, name) is not None
        ]
        newest = max(own, default=0) / 1_000_000
        return lag.proven_by(side.source if side else None, newest, self._clock())

    def _gone_at(self, table: str) -> int | None:
        """Return when a table was found to be gone; None if it was not."""
        side = self._sides.get(self._whose(table))
        return side.gone.get(table) if side else None

    def _is_gone(self, name: str, behind: Lag) -> bool:
        """Say whether nothing more will come of a table: the source has none, nothing is unread.

        Unread events count for nothing where they cannot be read: their schema went with the table.
        """
        if self._gone_at(name) is None:
            return False
        entry = self._state.tables[name]
        return behind.records == 0 or not entry.topics or entry.code == UNKNOWN

    def _table(self, name: str, behind: Lag, reading: frozenset[str]) -> TableNow:
        entry = self._state.tables.get(name)
        if entry is None:
            return TableNow(name, "snapshotting" if name in reading else "waiting")
        shown = self._shown(name, entry, behind, reading)
        if not self._is_gone(name, behind):
            return shown
        seen = time.strftime("%Y-%m-%d %H:%M", time.gmtime((self._gone_at(name) or 0) / 1000))
        return msgspec.structs.replace(
            shown,
            state="dropped",
            code="table-gone",
            reason=f"the source has no table {name} any more, as was seen at {seen} UTC",
            hint="its Delta table stays as it is; leave it out of source.tables to show it no more",
            retried=False,
            rereads=0,
            more_rereads=False,
            resnapshot="",
            proof=None,
        )

    def _shown(
        self, name: str, entry: TableState, behind: Lag, reading: frozenset[str]
    ) -> TableNow:
        word: status.TableWord = "snapshotting" if name in reading else "streaming"
        return TableNow(
            name,
            _WORDS.get(entry.state, word),
            entry.code,
            entry.reason,
            entry.hint,
            entry.retried,
            entry.size.rows,
            entry.size.bytes,
            entry.size.events,
            entry.size.replays,
            entry.size.dead_letters,
            len(entry.repair.reread_keys),
            entry.repair.reread_missed >= 0,
            entry.repair.resnapshot or entry.rebuilding(),
            entry.files.engine,
            _newest_ms(entry),
            entry.size.committed_ms or None,
            behind,
            round(pace.now(self._clock()), 3) if (pace := self._paces.get(name)) else None,
            entry.size.clamped,
            entry.disagrees,
            entry.hidden_nulls,
            entry.size.maybe_null,
            proof_of(
                self._state.proofs.get(name, UNPROVED), entry, expected=self._verify.chooses(name)
            ),
        )

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _newest_ms(entry: TableState) -> int | None:
    return entry.size.newest_ts // 1000 or None


def _cuts(state: PipelineState) -> Iterator[CutNow]:
    """Yield the newest cut of each connector that has one."""
    for connector, log_state in [("", state), *state.logs.items()]:
        cut = log_state.cutting.last
        if cut is not None:
            newest = max(
                (
                    entry.size.newest_ts / 1000
                    for table, entry in state.tables.items()
                    if unqualified(connector, table) is not None
                ),
                default=0.0,
            )
            behind = round(max(0.0, newest - cut.ended_ms) / 1000, 3)
            yield CutNow(connector, cut.transaction, cut.ended_ms, behind, cut.without)
