"""The pace of scans: when a verify run may read its next chunk. Pure."""

from lakemark.snapshot.runs import Run
from lakemark.snapshot.snapshot_state import SnapshotState


class ScanPace:
    """Holds scans to the rows that their runs may read in a second.

    A run with such a limit reads one chunk after the other, and rests after each for as long as its
    rows take at that pace: so it reads no more than that, but for one chunk. A limit that changes
    counts at once. Runs of lakemark's own wait while any other run reads.
    """

    def __init__(self, state: SnapshotState) -> None:
        self._state = state
        self._debts: dict[str, tuple[float, float]] = {}  # by run: rows read ahead, as of when

    def allows(self, run: Run, now: float, *, under_way: int, most: int) -> bool:
        """Say whether a chunk may be read now.

        Args:
            run: whose.
            now: monotonic seconds.
            under_way: reads that have not come back.
            most: as many as there may be of a run without a limit.
        """
        if run.automatic and self._state.others_read():
            return False
        if run.rows_per_second is None:
            return under_way < most
        return not under_way and not self._debt(run, now)

    def read(self, run: Run, rows: int, now: float) -> None:
        """Note that so many rows of a run were read."""
        if run.rows_per_second is not None:
            self._debts[run.id] = (self._debt(run, now) + rows, now)

    def forget(self, run: Run) -> None:
        """Note that a run reads no more chunks."""
        self._debts.pop(run.id, None)

    def _debt(self, run: Run, now: float) -> float:
        """Return the rows that were read ahead of the run's pace, as of now."""
        rows, since = self._debts.get(run.id, (0.0, now))
        left = max(0.0, rows - (now - since) * (run.rows_per_second or 0))
        self._debts[run.id] = (left, now)
        return left
