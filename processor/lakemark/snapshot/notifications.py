"""Notifications: the answers to signals on ``<name>.notifications``, in Debezium's format.

| type | sent when | about |
|---|---|---|
| STARTED | the signal was accepted and its run is armed | run |
| IN_PROGRESS | chunks were settled | table |
| TABLE_SCAN_COMPLETED | all chunks of a table are settled, or it cannot be read | table |
| COMPLETED | all tables are | run |
| PAUSED, RESUMED | asked for | run |
| CHANGED | set-snapshot changed a run (lakemark's own) | run |
| ABORTED | stopped or failed; then with a code, a reason and a hint | run |
| REJECTED | the signal is not carried out (lakemark's own) | signal |

The fields have Debezium's names wherever it has them: `total_rows_scanned`, `total_rows`,
`chunk_index` (here the number of settled chunks: they are read in parallel), `total_chunks`.
lakemark's own are `percent`, `rows_per_second`, `eta_seconds`, `code`, `reason`, `hint`, and of
verify runs `missing_rows`, `extra_rows` and the like (`TALLY`, `COST`). All values are text, as in
Debezium. Keys of rows, which Debezium shows, are left out.

Pure: the time is an argument.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from lakemark.snapshot.signals import Rejection
from lakemark.snapshot.tally import VerifyTally

AGGREGATE_TYPE: Final = "Incremental Snapshot"

TALLY: Final = ("missing", "extra", "differing", "duplicate", "newer", "left")
COST: Final = {"sent": "sent_rows", "source_bytes": "source_bytes", "lake_bytes": "lake_bytes"}
"""What a verify run has read, by names of `VerifyTally`."""
_DELIMITER: Final = ","  # Debezium's, without a space


class ScanStatus(StrEnum):
    """The end of a table's scan, in Debezium's words."""

    SUCCEEDED = "SUCCEEDED"
    EMPTY = "EMPTY"
    NO_PRIMARY_KEY = "NO_PRIMARY_KEY"
    SKIPPED = "SKIPPED"
    SQL_EXCEPTION = "SQL_EXCEPTION"
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"


@dataclass(frozen=True, slots=True)
class Notification:
    """One record of the notifications topic, its fields in Debezium's order.

    Attributes:
        id: id of the signal that is answered.
        type: what happened.
        aggregate_type: Debezium's name of the subject.
        additional_data: details by name.
        timestamp: milliseconds since the epoch.
    """

    id: str
    type: str
    aggregate_type: str
    additional_data: dict[str, str]
    timestamp: int

    def key(self) -> bytes:
        """Return the record's key, as Debezium writes it without schemas."""
        return msgspec.json.encode({"id": self.id})

    def value(self) -> bytes:
        """Return the record's value, as Debezium writes it without schemas."""
        return msgspec.json.encode(self)


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a notification: a run, or a signal.

    Attributes:
        id: id of the signal that is answered.
        pipeline: shown as `connector_name`, the place where Debezium says who speaks.
        tables: all tables of the run, each ``schema.table``.
    """

    id: str
    pipeline: str
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a table or a run.

    Attributes:
        chunks: settled ones.
        total_chunks: all that are known by now.
        rows: read in settled chunks.
        seconds: spent on them, pauses left out.
        total_rows: the database's estimate of all rows; None if it has none.
        inexact: values among them that the lake gets otherwise than the database has them.
        known: share of the tables whose chunks are known by now, from 0 to 1.
        tally: of a verify run; None of a snapshot.
    """

    chunks: int
    total_chunks: int
    rows: int
    seconds: float
    total_rows: int | None = None
    inexact: int = 0
    known: float = 1.0
    tally: VerifyTally | None = None

    def percent(self) -> int:
        """The whole percent of the chunks, cut: 100 only when all are known and settled."""
        if self.total_chunks <= 0:
            return 0
        return min(100, int(100 * self.known * self.chunks / self.total_chunks))

    def rows_per_second(self) -> int | None:
        """The rows a second, rounded; None while no time has passed."""
        return round(self.rows / self.seconds) if self.seconds > 0 else None

    def eta_seconds(self) -> int | None:
        """The seconds to go at the pace so far, rounded up; None before all chunks are known."""
        if self.chunks <= 0 or self.seconds <= 0 or self.known < 1:
            return None
        return math.ceil(self.seconds * max(0, self.total_chunks - self.chunks) / self.chunks)


def started(subject: Subject, *, ts_ms: int, verify: str = "") -> Notification:
    """Return the notification that a run was accepted, and its tables.

    Args:
        subject: the run.
        ts_ms: milliseconds since the epoch.
        verify: how it compares its tables, see `Run`; empty = it reads them.
    """
    return _of_run(subject, "STARTED", {"verify": verify} if verify else {}, ts_ms)


def in_progress(
    subject: Subject, *, table: str, progress: Progress, ts_ms: int, paused: bool = False
) -> Notification:
    """Return the notification of one table's progress.

    A paused run is named as paused: chunks that were under way may settle, and a reader who sees
    only the newest notification must not take the run for one that goes on.
    """
    details = {"current_collection_in_progress": table, **_numbers(progress, paused=paused)}
    return _of_run(subject, "PAUSED" if paused else "IN_PROGRESS", details, ts_ms)


def table_scan_completed(
    subject: Subject, *, table: str, status: ScanStatus, progress: Progress, ts_ms: int
) -> Notification:
    """Return the notification that a table of the run has been read, or will not be (`status`)."""
    details = {"scanned_collection": table, "status": status.value, **_numbers(progress)}
    return _of_run(subject, "TABLE_SCAN_COMPLETED", details, ts_ms)


def completed(subject: Subject, *, progress: Progress, ts_ms: int) -> Notification:
    """Return the notification that the run is over, and all its rows are in the tables."""
    return _of_run(subject, "COMPLETED", _numbers(progress), ts_ms)


def paused(subject: Subject, *, ts_ms: int, progress: Progress | None = None) -> Notification:
    """Return the notification that a run begins no more chunks until it is resumed.

    With a run's progress it is about that run; without, it is the signal's answer.
    """
    return _of_run(subject, "PAUSED", _numbers(progress, paused=True), ts_ms)


def resumed(subject: Subject, *, ts_ms: int, progress: Progress | None = None) -> Notification:
    """Return the notification that a run goes on where it was paused; progress as in `paused`."""
    return _of_run(subject, "RESUMED", _numbers(progress), ts_ms)


def aborted(
    subject: Subject,
    *,
    stopped: Sequence[str],
    ts_ms: int,
    code: str = "",
    reason: str = "",
    hint: str = "",
) -> Notification:
    """Return the notification that these tables of the run are no longer read.

    Args:
        subject: the run, or the signal that stopped it.
        stopped: the tables that it ends for.
        ts_ms: milliseconds since the epoch.
        code: stable name of the failure, kebab case; empty when it was stopped by a signal.
        reason: why it failed, one sentence; empty when it was stopped by a signal.
        hint: what to do about the failure.
    """
    why = {"code": code, "reason": reason, "hint": hint}
    given = {name: text for name, text in why.items() if text}
    details = {"data_collections": _DELIMITER.join(stopped), **given}
    return _of_run(subject, "ABORTED", details, ts_ms)


def changed(subject: Subject, *, run: str, ts_ms: int) -> Notification:
    """Return the notification that a set-snapshot signal has changed the run."""
    return _of_run(subject, "CHANGED", {"run": run}, ts_ms)


def rejected(rejection: Rejection, *, pipeline: str, ts_ms: int) -> Notification:
    """Return the notification that a signal is not carried out, and why."""
    details = {
        "connector_name": pipeline,
        "code": rejection.code,
        "reason": rejection.message,
        "hint": rejection.hint,
    }
    return Notification(rejection.id, "REJECTED", AGGREGATE_TYPE, details, ts_ms)


def read(value: bytes | None) -> Notification | None:
    """Return the notification about a snapshot that a record holds; None if it holds none.

    Never raises. Fields that are not known are left out, and so are details that are no text.
    """
    try:
        fields = msgspec.json.decode(value or b"null")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.get("aggregate_type") != AGGREGATE_TYPE:
        return None
    id_, kind, ts_ms = (fields.get(name) for name in ("id", "type", "timestamp"))
    if not (isinstance(id_, str) and isinstance(kind, str)):
        return None
    data = fields.get("additional_data")
    details = data.items() if isinstance(data, dict) else ()
    texts = {name: text for name, text in details if isinstance(text, str)}
    return Notification(id_, kind, AGGREGATE_TYPE, texts, ts_ms if isinstance(ts_ms, int) else 0)


def is_of_run(notification: Notification) -> bool:
    """Say whether it tells a run's progress: answers to pause and resume signals do not."""
    return "total_chunks" in notification.additional_data


def tables_of(notification: Notification) -> tuple[str, ...]:
    """Return the tables that a notification names as those of its run, or as stopped."""
    return tuple(filter(None, notification.additional_data.get("data_collections", "").split(",")))


def _of_run(subject: Subject, kind: str, details: dict[str, str], ts_ms: int) -> Notification:
    data = {
        "connector_name": subject.pipeline,
        "data_collections": _DELIMITER.join(subject.tables),
        **details,
    }
    return Notification(subject.id, kind, AGGREGATE_TYPE, data, ts_ms)


def _numbers(progress: Progress | None, *, paused: bool = False) -> dict[str, str]:
    if progress is None:
        return {}
    numbers = {
        "chunk_index": progress.chunks,
        "total_chunks": progress.total_chunks,
        "total_rows_scanned": progress.rows,
        "total_rows": progress.total_rows,
        "inexact_values": progress.inexact or None,
        "percent": progress.percent(),
        "rows_per_second": progress.rows_per_second(),
        "eta_seconds": None if paused else progress.eta_seconds(),
    }
    if progress.tally is not None:
        numbers |= {f"{name}_rows": getattr(progress.tally, name) for name in TALLY}
        numbers |= {field: getattr(progress.tally, name) for name, field in COST.items()}
    return {name: str(number) for name, number in numbers.items() if number is not None}
