"""Completing: captured tables that have never been complete get a run without being asked.

Events bring the changes since the connector captured a table. The rows before that come by a
snapshot: the connector's own, where it takes one (`snapshot.mode`), or one of lakemark's. A table
that has had neither is read here: beside a connector that reads no rows, and where a table was
added or created later.

Where the connector reads tables itself as it begins, it is waited for: until it streams, and until
the query has read all that was in Kafka then. A table that the connector read in full is complete.
"""

import math
from typing import TYPE_CHECKING, Final

import structlog

from lakemark.model import positions
from lakemark.model.offsets import has_passed
from lakemark.snapshot.ports import Committed, Executor, SignalSource, StreamedTable, WindowLog
from lakemark.snapshot.run_store import RunStore
from lakemark.snapshot.runs import FAILED, STOPPED, Run, TableRun
from lakemark.snapshot.signal_processor import SignalProcessor
from lakemark.snapshot.snapshot_state import SnapshotState
from lakemark.state import table_parts

if TYPE_CHECKING:
    from lakemark.model.offsets import Offsets

log = structlog.get_logger(__name__)

EVERY_S: Final = 30.0  # a created table is noticed so late, or as `source.watch_interval` says
AGAIN_S: Final = 5.0  # while the connector reads tables itself
LONGEST_S: Final = 3600.0  # between two runs of a table that fails again and again
NAME: Final = "complete-"


class Completing:
    """Looks for tables that are not complete, and begins a run over them."""

    def __init__(
        self,
        state: SnapshotState,
        store: RunStore,
        signals: SignalProcessor,
        *,
        source: SignalSource,
        windows: WindowLog,
        executor: Executor,
    ) -> None:
        self.state = state
        self.source = source
        self.windows = windows
        self.executor = executor
        self.store = store
        self.signals = signals
        self._asking = False
        self._next = 0.0
        self._refusals: dict[str, tuple[float, float]] = {}
        self._ends: Offsets | None = None if state.settings.own_rows else {}

    def step(self, now: float) -> None:
        """Begin a run over the tables that lack rows, if there are any.

        Raises:
            LakemarkError: the database is away: the next step asks again.
        """
        settings, stream = self.state.settings, self.state.stream
        if not settings.completes or self._asking or now < self._next:
            return
        if self._ends is None:
            self._ask(now)
        elif has_passed(stream.offsets, self._ends):
            self._next = now + min(EVERY_S, settings.watch)
            self._look(now)

    def _ask(self, now: float) -> None:
        """Ask Connect for a position in the log: then the connector's own snapshot is over."""
        self._asking, self._next = True, now + AGAIN_S
        windows, inbox = self.windows, self.state.inbox
        epoch = self.state.stream.epoch

        def ask() -> None:
            try:
                committed = windows.committed(epoch)
            except Exception as error:  # noqa: BLE001 - asked again; events may tell as well
                log.debug("snapshot.connector_unknown", reason=str(error))
                committed = Committed(b"", {})
            inbox.put(lambda: self._told(committed))

        self.executor.submit(ask)

    def _told(self, committed: Committed) -> None:
        self._asking = False
        if committed.position:
            self._ends, self._next = committed.ends, 0.0
        elif any(
            now.passed and positions.is_of_stream(now.passed)
            for now in self.state.stream.tables.values()
        ):
            self._ends, self._next = {}, 0.0  # nobody tells, but events after its snapshot came

    def _look(self, now: float) -> None:
        source, signals, settings = self.source, self.signals, self.state.settings
        if source.refusal() is not None:
            return
        names = [
            name
            for name in sorted(source.tables())
            if self._lacks_rows(self.state.stream.tables.get(name))
            and source.watched(name)  # what is changed after it was read would stay unknown
            and signals.may_queue(name)
            and now >= self._not_before(name)
            and not self._refused(name, now)
        ]
        if names:
            own_id = settings.own_id(f"{NAME}{self.executor.now_ms()}")
            run = Run(own_id, [TableRun(name) for name in names])
            log.info("snapshot.queued", id=run.id, tables=names)
            self.store.begin(run)

    def _refused(self, name: str, now: float) -> bool:
        """Say whether the table must not be read; the answer is asked for at growing intervals."""
        until, wait = self._refusals.get(name, (0.0, EVERY_S))
        if now < until:
            return True
        refused = self.signals.refused(name)
        if refused:
            self._refusals[name] = now + wait, min(LONGEST_S, 2 * wait)
        else:
            self._refusals.pop(name, None)
        return refused

    def _lacks_rows(self, table: StreamedTable | None) -> bool:
        if table is None:
            return True
        whole = table.complete and (
            table.complete != table_parts.BY_CONNECTOR or self.state.settings.own_whole
        )
        return table.streaming and not whole

    def _not_before(self, name: str) -> float:
        """Return when a table may get its next run: the more runs failed, the later.

        It is never where a person has stopped the last one: then only a signal begins another.
        """
        ended = sorted(
            (run.number, run.ended, table.state)
            for run in self.state.runs.values()
            for table in run.tables
            if run.id.startswith(NAME) and table.table == name
        )
        if ended and ended[-1][2] == STOPPED:
            return math.inf
        failures = [when for _, when, state in ended if state == FAILED]
        if not failures:
            return 0.0
        passed = max(0, self.executor.now_ms() - failures[-1]) / 1000
        wait = min(LONGEST_S, EVERY_S * 2.0 ** min(len(failures), 10))
        return self.executor.monotonic() + wait - passed
