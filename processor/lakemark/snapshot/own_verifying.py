"""Verifying without a command: one table after the other is compared, again and again.

It comes last. A run begins where no other run reads, waits while one does, and ends where one of
the same table comes: that one goes first, and may prove the table itself. A table that cannot be
compared, or stops meanwhile, ends its run and has another turn later; the others go on. What is
known of the turns is in the stream's state (`model.proof`), so no crash and no takeover begins them
anew.
"""

import math
from collections.abc import Mapping
from typing import Final

import msgspec
import structlog

from lakemark.errors import LakemarkError
from lakemark.model.control import REPAIR, REPORT, TableVerified
from lakemark.model.proof import TableProof
from lakemark.snapshot import runs, signal_validation
from lakemark.snapshot.chunks import is_of_a_table
from lakemark.snapshot.fields import MAX_PRIORITY
from lakemark.snapshot.ports import Executor, SignalSource, StreamedTable
from lakemark.snapshot.run_store import LIMITS_KEY, RunStore
from lakemark.snapshot.runs import Run, TableRun
from lakemark.snapshot.signals import Rejection
from lakemark.snapshot.snapshot_state import SnapshotState
from lakemark.snapshot.verification import NAME, Limits, Verification, next_table

log = structlog.get_logger(__name__)

LOOK_S: Final = 1.0
"""Between two looks for a table that is due."""
FEWEST_ROWS: Final = 1000
"""Of a chunk: each is a query, however few rows may be read in a second."""
GIVE_UP: Final = 5
"""Tries that fail one after the other, some 15 s: then the others have their turn."""


class OwnVerifying:
    """Begins verify runs, and ends those that are in somebody's way."""

    def __init__(
        self,
        state: SnapshotState,
        store: RunStore,
        *,
        source: SignalSource,
        executor: Executor,
    ) -> None:
        self.state = state
        self.store = store
        self.source = source
        self.executor = executor
        self._next = -math.inf

    def take_up(self, stored: Mapping[bytes, bytes]) -> None:
        """Take up the limits that a signal has set, unless the configuration was changed since."""
        plan = self.state.settings.verification
        kept = stored.get(LIMITS_KEY)
        limits = msgspec.json.decode(kept, type=Limits) if kept else Limits()
        is_valid = plan is not None and limits.instead_of == plan.rows_per_second
        self.state.limits = limits if is_valid else Limits()

    def step(self, now: float) -> None:
        """Begin the run of the table whose turn it is, or look after the one that is under way.

        Raises:
            LakemarkError: the database is away: the next step asks again.
        """
        plan = self.state.settings.verification
        own = [run for run in self.state.open_runs() if run.automatic]
        for run in own:
            self._look_after(run)
        if plan is None or own or now < self._next:
            return
        self._next = now + LOOK_S
        if self.state.others_read():
            return
        table = self._due(plan)
        if table is not None:
            self._begin(plan, table)

    # -- a run that is under way ----------------------------------------------------------------

    def _look_after(self, run: Run) -> None:
        (table,) = run.tables
        if run.over or table.over:
            return
        others = (one for one in self.state.open_runs() if not one.automatic)
        delay = self.state.delays.get((run.id, table.table))
        if run.state == runs.SCANNING and any(table.table in one.names() for one in others):
            self._leave(run, "another run of the table goes first")
        elif not self.state.streams(table) or self.state.rebuild_of(table.table):
            self._leave(run, "the table does not stream, or is rebuilt")
        elif delay is not None and delay.backoff.attempts >= GIVE_UP:
            table.retried, why = True, delay.error
            self.store.fail_table(run, table, why.code, why.message, why.hint)

    def _leave(self, run: Run, why: str) -> None:
        """End a run as if it had never begun: its table's turn is still to come."""
        log.info("verify.put_off", run=run.id, table=run.tables[0].table, reason=why)
        run.tables[0].turn_ms = 0
        self.store.stop(run)

    # -- the next one ---------------------------------------------------------------------------

    def _due(self, plan: Verification) -> str | None:
        taken = {name for run in self.state.open_runs() for name in run.names()}
        proofs = {
            name: self._newest(name, now.proof)
            for name, now in self.state.stream.tables.items()
            if plan.chooses(name) and name not in taken and self._is_ready(now)
        }
        return next_table(proofs, every_ms=plan.every_ms, now_ms=self.executor.now_ms())

    def _newest(self, name: str, streamed: TableProof) -> TableProof:
        """Return a table's proof, also what no batch has brought to the stream's state yet."""
        said = self.state.said_verified.get(name)
        if said is None or streamed.ended_ms >= said.ended_ms:
            self.state.said_verified.pop(name, None)
            return streamed
        return streamed.after(said)

    def _is_ready(self, now: StreamedTable) -> bool:
        """Say whether there is something to compare: not where all rows are to be read anyway."""
        in_doubt = now.resnapshot_since >= 0 or now.reread_missed >= 0
        is_loading = 0 <= now.own_batch == self.state.stream.batch
        is_whole = bool(now.complete) and not now.rebuild and not in_doubt and not is_loading
        return now.streaming and now.written and is_whole

    def _begin(self, plan: Verification, name: str) -> None:
        now_ms = self.executor.now_ms()
        run = Run(
            self.state.settings.own_id(f"{NAME}-{now_ms}"),
            [TableRun(name)],
            state=runs.SCANNING,
            priority=-MAX_PRIORITY - 1,
            verify=REPAIR if plan.repair else REPORT,
            automatic=True,
        )
        self.state.limits.limit(run, plan.rows_per_second)
        pace = max(FEWEST_ROWS, run.rows_per_second or FEWEST_ROWS)
        run.chunk_rows = run.chunk_rows or min(self.state.settings.chunk_rows, pace)
        reason = self._reason_against(name)
        if reason is None:
            log.info("snapshot.queued", id=run.id, table=name)
            self.store.begin(run)
            return
        said = TableVerified(
            table=name,
            run=run.id,
            turn_ms=now_ms,
            ended_ms=now_ms,
            batch=self.state.stream.batch,
            code=reason.code,
            reason=reason.message,
            hint=reason.hint,
        )
        self.store.say_verified(said)

    def _reason_against(self, name: str) -> Rejection | None:
        refusal = self.source.refusal()
        if refusal is not None:
            return refusal
        try:
            return signal_validation.against(name, self.source.reasons_against)
        except LakemarkError as error:
            if not is_of_a_table(error):
                raise
            return None  # the run's own questions are put off, and given up
