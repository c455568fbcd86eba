"""The flight: windows that are open or in use, chunks that are read or wait to be settled. Pure.

It is looked up after a step of the coordinator, to be shown: nothing decides by it, and it is not
stored.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from lakemark.snapshot import runs

if TYPE_CHECKING:
    from lakemark.snapshot.coordinator import Coordinator
    from lakemark.snapshot.snapshot_state import ChunkAttempt

BEING_READ: Final = "reading"
READ: Final = "read"
SETTLING: Final = "settling"


class ChunkInFlight(msgspec.Struct, frozen=True):
    """An attempt, see `chunk_scheduler`.

    Attributes:
        run, table, chunk, attempt: which.
        state: reading, read (waits for an open window) or settling (waits for the log).
        since_ms: when it entered its state, milliseconds since the epoch.
        rows: that were read; None while it is being read.
        lo, hi: its windows; empty until they are known.
    """

    run: str
    table: str
    chunk: int
    attempt: int
    state: str
    since_ms: int
    rows: int | None = None
    lo: str = ""
    hi: str = ""


class Flight(msgspec.Struct, frozen=True):
    """Everything in flight at one moment.

    Attributes:
        stages: states of the tables, see `runs`, by run and table.
        chunks: attempts, oldest first.
        window: that is open; empty if none is.
        opened_ms: when it was, milliseconds since the epoch; 0 if none is.
        windows: how many are kept, because they are open or a chunk may need them.
        waits_for: the transaction that keeps chunks waiting; empty if none does.
        code, reason, hint: of what delays everything, all that goes to output topics, or a table;
            empty if nothing does.
    """

    stages: dict[tuple[str, str], str] = {}
    chunks: tuple[ChunkInFlight, ...] = ()
    window: str = ""
    opened_ms: int = 0
    windows: int = 0
    waits_for: str = ""
    code: str = ""
    reason: str = ""
    hint: str = ""


def flight(coordinator: "Coordinator") -> Flight:
    """Return everything in flight now; for the coordinator's own thread."""
    state = coordinator.state
    windows, retries = state.windows, coordinator.retries
    trouble = state.trouble or coordinator.signals.trouble
    trouble = trouble or coordinator.frontier.trouble or retries.table_trouble
    open_runs = state.open_runs()
    return Flight(
        {(run.id, table.table): _stage(run, table) for run in open_runs for table in run.tables},
        tuple(_chunk(attempt) for _, attempt in sorted(state.attempts.items())),
        windows.current,
        coordinator.opened_ms if windows.current else 0,
        len(windows.usable),
        state.blocker,
        trouble.code if trouble else "",
        trouble.message if trouble else "",
        trouble.hint if trouble else "",
    )


def _stage(run: runs.Run, table: runs.TableRun) -> str:
    return runs.ARMING if run.state == runs.ARMING else table.state


def _chunk(attempt: "ChunkAttempt") -> ChunkInFlight:
    read = attempt.result
    return ChunkInFlight(
        attempt.run.id,
        attempt.table.table,
        attempt.chunk,
        attempt.number,
        SETTLING if attempt.hi else BEING_READ if read is None else READ,
        attempt.at_ms,
        None if read is None else read.rows,
        attempt.lo,
        attempt.hi,
    )
