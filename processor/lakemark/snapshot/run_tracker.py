"""A run as its notifications show it, from the first answer to the end.

| state | last seen |
|---|---|
| asked | nothing yet |
| running | STARTED, RESUMED; IN_PROGRESS and TABLE_SCAN_COMPLETED unless it is paused |
| paused | PAUSED |
| completed | COMPLETED |
| aborted | ABORTED for all tables that were left |
| rejected | REJECTED |

Pure. Notifications of other runs, and of types that are not known, change nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from lakemark.snapshot.notifications import (
    COST,
    TALLY,
    Notification,
    ScanStatus,
    is_of_run,
    tables_of,
)

ASKED: Final = "asked"
ENDED: Final = frozenset({"completed", "aborted", "rejected"})

_STATES: Final = {
    "STARTED": "running",
    "IN_PROGRESS": "running",
    "TABLE_SCAN_COMPLETED": "running",
    "RESUMED": "running",
    "CHANGED": "running",
    "PAUSED": "paused",
    "COMPLETED": "completed",
    "ABORTED": "aborted",
    "REJECTED": "rejected",
}
_ANSWERS: Final = frozenset({"PAUSED", "RESUMED", "CHANGED", "ABORTED"})
_PROGRESS: Final = frozenset({"IN_PROGRESS", "TABLE_SCAN_COMPLETED"})
_READ: Final = {ScanStatus.SUCCEEDED.value, ScanStatus.EMPTY.value}


@dataclass(frozen=True, slots=True)
class Scan:
    """The progress of a table. A number that is not known is None.

    Attributes:
        status: how it ended, in Debezium's words or STOPPED; empty while it goes on.
        chunks: settled ones.
        total_chunks: all that are known by now.
        rows: read in settled chunks.
        total_rows: the database's estimate.
        rows_per_second: since the table was begun.
        eta_seconds: to go at that pace.
        inexact: values that the lake gets otherwise than the database has them.
        tally: of a verify run; None of a snapshot.
        cost: what a verify run has read, by names of `notifications.COST`.
    """

    status: str = ""
    chunks: int = 0
    total_chunks: int | None = None
    rows: int = 0
    total_rows: int | None = None
    rows_per_second: int | None = None
    eta_seconds: int | None = None
    inexact: int = 0
    tally: Mapping[str, int] | None = None
    cost: Mapping[str, int] = field(default_factory=dict)

    @property
    def unlike(self) -> int:
        """The number of rows that are not as in the source, or were not compared."""
        tally = self.tally or {}
        return sum(tally.get(name, 0) for name in TALLY if name != "newer")


@dataclass(frozen=True, slots=True)
class FollowedRun:
    """A run, or another signal, and what was said about it.

    Attributes:
        id: of the signal.
        state: see the table above.
        tables: by name, in the order in which they were named.
        last: the notification that counted last.
        compares: whether it is a verify run: its tables go on as they are.
    """

    id: str
    state: str = ASKED
    tables: Mapping[str, Scan] = field(default_factory=dict)
    last: Notification | None = None
    compares: bool = False

    @property
    def has_ended(self) -> bool:
        """Say whether nothing more is to come."""
        return self.state in ENDED

    @property
    def is_good(self) -> bool:
        """Say whether it has completed and every table was read to its end."""
        return self.state == "completed" and not self.unread()

    @property
    def unlike(self) -> int:
        """The number of rows of all tables that are not alike, see `Scan.unlike`."""
        return sum(scan.unlike for scan in self.tables.values())

    def unread(self) -> dict[str, str]:
        """Return the tables that ended without being read, each with its end."""
        scans = self.tables.items()
        return {name: s.status for name, s in scans if s.status and s.status not in _READ}


def then(run: FollowedRun, notification: Notification) -> FollowedRun:
    """Return the run after one more notification."""
    kind = notification.type
    if notification.id != run.id or kind not in _STATES or run.has_ended:
        return run
    state, tables = _STATES[kind], dict(run.tables)
    if run.state == "paused" and kind in _PROGRESS:
        state = run.state  # chunks that were under way
    if kind == "ABORTED":
        for table in tables_of(notification) or tuple(tables):
            tables[table] = replace(tables.get(table, Scan()), status="STOPPED")
        # A stop may name some tables: the run goes on for the others.
        if any(not scan.status for scan in tables.values()):
            state = run.state
    else:
        for table in tables_of(notification):
            tables.setdefault(table, Scan())
    data = notification.additional_data
    if scanned := data.get("current_collection_in_progress") or data.get("scanned_collection"):
        tables[scanned] = _scan(data)
    compares = run.compares or "verify" in data or tally_of(data) is not None
    return replace(run, state=state, tables=tables, last=notification, compares=compares)


def newest_of_runs(notifications: Iterable[Notification]) -> list[Notification]:
    """Return the newest notification of every run, in the order in which they were written.

    A signal that pauses, resumes, changes or stops runs is answered under its own id, in the same
    words as its runs. An id with nothing but such answers is that of no run. A run whose tables are
    stopped in part goes on: such a notification is left out.
    """
    newest: dict[str, Notification] = {}
    run_ids: set[str] = set()
    left: dict[str, set[str]] = {}
    for notification in notifications:
        tables = left.setdefault(notification.id, set(tables_of(notification)))
        if notification.type == "ABORTED":
            tables.difference_update(tables_of(notification))
            if tables:
                continue
        newest.pop(notification.id, None)
        newest[notification.id] = notification
        told = notification.type not in _ANSWERS or notification.additional_data.get("code")
        run_ids.update([notification.id] if told or is_of_run(notification) else [])
    return [last for id_, last in newest.items() if id_ in run_ids]


def _scan(data: Mapping[str, str]) -> Scan:
    return Scan(
        status=data.get("status", ""),
        chunks=_number(data, "chunk_index") or 0,
        total_chunks=_number(data, "total_chunks"),
        rows=_number(data, "total_rows_scanned") or 0,
        total_rows=_number(data, "total_rows"),
        rows_per_second=_number(data, "rows_per_second"),
        eta_seconds=_number(data, "eta_seconds"),
        inexact=_number(data, "inexact_values") or 0,
        tally=tally_of(data),
        cost=_numbers(data, COST),
    )


def tally_of(data: Mapping[str, str]) -> Mapping[str, int] | None:
    """Return the numbers of a verify run that a notification has, by name; None of a snapshot."""
    return _numbers(data, {name: f"{name}_rows" for name in TALLY}) or None


def _numbers(data: Mapping[str, str], fields: Mapping[str, str]) -> dict[str, int]:
    found = {name: _number(data, field_) for name, field_ in fields.items()}
    return {name: number for name, number in found.items() if number is not None}


def _number(data: Mapping[str, str], name: str) -> int | None:
    """Return a whole number; None if it is missing or no number."""
    text = data.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None  # noqa: PLR2004 (int8)
