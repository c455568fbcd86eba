"""Verification by itself: which table is compared next, and what a run of it has shown. Pure.

Each table has its turn once in a period, the one whose proof is the oldest first. What could not be
compared is tried again after a while, longer each time, and never before the others had theirs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from lakemark.model.control import REPAIR, TableVerified
from lakemark.model.proof import KINDS, TableProof
from lakemark.snapshot.runs import DONE, FAILED, Run, TableRun
from lakemark.snapshot.signals import SetSnapshot

NAME: Final = "verify"
"""Stands for the runs of verification by itself where a signal names a run."""
FIRST_WAIT_MS: Final = 60_000
"""After a first failure that may pass; it is doubled each time."""
LONGEST_WAIT_MS: Final = 86_400_000
"""After any failure, or the period where that is shorter: somebody may have mended the cause."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The settings of verification by itself.

    Attributes:
        every_ms: the period.
        rows_per_second: of the database, at most.
        repair: whether what differs is mended.
        chooses: whether a table is verified, given its name.
    """

    every_ms: int
    rows_per_second: int
    repair: bool = False
    chooses: Callable[[str], bool] = lambda _: True


def due_ms(proof: TableProof, *, every_ms: int, now_ms: int) -> int:
    """Return when a table's next turn is, in milliseconds since the epoch; 0 = it never had one.

    From the beginning of one turn to that of the next it is a period. A turn that was in vain is
    repeated: after a minute, two, four where the cause may pass by itself, else after a day. A time
    that has not come yet is no time: the clock was set back.
    """
    if not proof.ended_ms or max(proof.turn_ms, proof.ended_ms) > now_ms:
        return 0
    if not proof.code:
        return proof.turn_ms + every_ms
    longest = min(every_ms, LONGEST_WAIT_MS)
    if not proof.retried:
        return proof.ended_ms + longest
    doublings = min(max(0, proof.failures - 1), 30)  # there may be any number of failures
    return proof.ended_ms + min(longest, FIRST_WAIT_MS << doublings)


def next_table(proofs: Mapping[str, TableProof], *, every_ms: int, now_ms: int) -> str | None:
    """Return the table whose turn it is: of those that are due the one with the oldest proof.

    Args:
        proofs: of all tables that can be verified now.
        every_ms: the period.
        now_ms: milliseconds since the epoch.

    Returns:
        None if none is due.
    """
    due = [
        (proof.proved_ms, proof.ended_ms, name)
        for name, proof in proofs.items()
        if due_ms(proof, every_ms=every_ms, now_ms=now_ms) <= now_ms
    ]
    return min(due)[2] if due else None


def outcome(run: Run, table: TableRun, *, ended_ms: int) -> TableVerified | None:
    """Return what a run that has ended says of a table; None if that is nothing.

    Only runs over all of a table's rows prove it, whoever has asked for them. That it could not be
    compared is said of runs of lakemark's own: whoever asks for one gets an answer.
    """
    if not run.verify or table.condition or not table.turn_ms:
        return None
    said = TableVerified(
        table=table.table,
        run=run.id,
        turn_ms=table.turn_ms,
        ended_ms=ended_ms,
        batch=table.scanned_after,
    )
    if table.state == DONE:
        tally = table.tally
        left = tally.duplicate + tally.left
        unlike = left if run.verify == REPAIR else tally.unlike + tally.left
        return msgspec.structs.replace(
            said,
            compared=True,
            proved=not unlike or None,
            mended=run.verify == REPAIR or None,
            position=table.scanned_at,
            rows=tally.scanned,
            newer=tally.newer,
            found={kind: number for kind in KINDS if (number := getattr(tally, kind))},
        )
    if not run.automatic:
        return None
    if table.state == FAILED:
        return msgspec.structs.replace(
            said,
            code=table.code,
            reason=table.reason,
            hint=table.hint,
            retried=table.retried or None,
        )
    return said  # a person has stopped it: that was its turn


class Limits(msgspec.Struct, omit_defaults=True):
    """Limits that a signal has set for all runs of verification by itself, see `Run`.

    Attributes:
        instead_of: `verify.rows_per_second` as it was then: with another one they are over.
        rows_per_second, chunk_rows, parallelism, delay: as in `Run`; None = as configured.
    """

    instead_of: int = 0
    rows_per_second: int | None = None
    chunk_rows: int | None = None
    parallelism: int | None = None
    delay: float | None = None

    def change(self, signal: SetSnapshot, configured: int) -> None:
        """Take what a signal says.

        Args:
            signal: it leaves as it is what it does not name.
            configured: `verify.rows_per_second`.
        """
        self.instead_of = configured
        self.rows_per_second = signal.rows_per_second or self.rows_per_second
        self.chunk_rows = signal.chunk_rows or self.chunk_rows
        self.parallelism = signal.parallelism or self.parallelism
        if signal.delay is not None:
            self.delay = signal.delay.total_seconds()

    def limit(self, run: Run, configured: int) -> None:
        """Give a run these limits."""
        run.rows_per_second = self.rows_per_second or configured
        run.chunk_rows = self.chunk_rows or run.chunk_rows
        run.parallelism, run.delay = self.parallelism, self.delay
