"""Retries of dependencies that are away, for all tables, and of a table that cannot be read."""

from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from lakemark.backoff import Backoff
from lakemark.errors import LakemarkError
from lakemark.snapshot import runs
from lakemark.snapshot.chunks import INTERNAL, REPORT, is_of_a_table
from lakemark.snapshot.ports import Executor
from lakemark.snapshot.run_store import RunStore
from lakemark.snapshot.runs import Run, TableRun
from lakemark.snapshot.snapshot_state import SnapshotState, TableDelay

T = TypeVar("T")

FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 30.0

log = structlog.get_logger(__name__)


class Retries:
    """The times of the next tries.

    Attributes:
        not_before: monotonic seconds; before it nothing that needs a dependency is done.
    """

    def __init__(self, state: SnapshotState, store: RunStore, *, executor: Executor) -> None:
        self.state = state
        self.executor = executor
        self.store = store
        self.not_before = 0.0
        self._wait = FIRST_WAIT_S

    def failed(self, error: LakemarkError) -> None:
        """Delay everything that needs a dependency: one is away.

        A failure during the delay does not prolong it.
        """
        self.state.trouble = error
        now = self.executor.monotonic()
        if now >= self.not_before:
            self.not_before = now + self._wait
            self._wait = min(LONGEST_WAIT_S, self._wait * 2)
        self.delayed(error, self.not_before - now)

    def over(self, now: float) -> None:
        """Make the next delay short again if nothing has failed for as long as the last one."""
        if now >= self.not_before + self._wait:
            self._wait = FIRST_WAIT_S
            self.state.trouble = None

    def delayed(self, error: LakemarkError, wait: float) -> None:
        """Log an error and after how many seconds there is another try."""
        log.warning(
            "snapshot.delayed", code=error.code, reason=error.message, hint=error.hint,
            next_try_s=round(wait, 1),
        )  # fmt: skip

    def put_off(self, run: Run, table: TableRun, error: LakemarkError) -> bool:
        """Put a table off if the error is of this table alone; say whether it is."""
        if not is_of_a_table(error):
            return False
        now = self.executor.monotonic()
        delay = self.state.delays.setdefault(
            (run.id, table.table), TableDelay(table, Backoff(), now, error)
        )
        if now >= delay.until:  # chunks that were read together are put off once
            delay.until = now + delay.backoff.failed(after_s=now - delay.until)
            log.warning(
                "snapshot.delayed", table=table.table, code=error.code, reason=error.message,
                hint=error.hint, next_try_s=round(delay.until - now, 1),
            )  # fmt: skip
        delay.error = error
        return True

    @property
    def table_trouble(self) -> LakemarkError | None:
        """The reason why a table is put off; None if none is."""
        return next((one.error for one in self.state.delays.values() if not one.table.over), None)

    def ask(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        run: Run,
        table: TableRun,
        begun: int,
    ) -> None:
        """Have work done in another thread; its result is dealt with in a later step."""

        def run_it() -> None:
            try:
                answer = work()
            except LakemarkError as error:
                failure = error
                self.state.inbox.put(lambda: self.work_failed(run, table, begun, failure))
            except Exception as error:
                log.exception("snapshot.internal_error", table=table.table)
                defect = LakemarkError(type(error).__name__, code=INTERNAL, hint=REPORT)
                self.state.inbox.put(lambda: self.work_failed(run, table, begun, defect))
            else:
                self.state.inbox.put(lambda: tell(answer))

        def tell(answer: T) -> None:
            self.state.answered(run, table)
            done(answer)

        self.executor.submit(run_it)

    def work_failed(self, run: Run, table: TableRun, begun: int, error: LakemarkError) -> None:
        """Deal with work for a table that failed: it is tried again, or the table fails."""
        if table.begun != begun or table.over or run.over:
            return
        table.state = runs.READING if table.chunks else runs.WAITING
        if error.retried:
            if not self.put_off(run, table, error):
                self.failed(error)
        else:
            self.store.fail_table(run, table, error.code, error.message, error.hint)
