"""Signals and the notifications that answer them, the newest of each; pure.

A run is known from its first notification that only runs have: a signal that pauses, stops or is
rejected is answered under its own id too, and is no run.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from lakemark.ops.status import (
    Answer,
    ChunkNow,
    Delay,
    RunNow,
    ScanNow,
    SignalSeen,
    WindowsNow,
)
from lakemark.snapshot.flight import Flight
from lakemark.snapshot.notifications import Notification, is_of_run
from lakemark.snapshot.run_tracker import ENDED, FollowedRun, Scan, then
from lakemark.snapshot.signal_parts import own_id

_KEPT: Final = 50  # of signals, of runs, and of answers to signals that are not known
_OF_RUNS: Final = frozenset({"STARTED", "IN_PROGRESS", "TABLE_SCAN_COMPLETED", "COMPLETED"})
_SHOWN: Final = 200  # characters of what a sender wrote

_Kept = TypeVar("_Kept")


class Answers:
    """Signals and the notifications that answer them; not thread-safe: the board holds the lock."""

    def __init__(self) -> None:
        self._signals: OrderedDict[str, SignalSeen] = OrderedDict()
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._runs: OrderedDict[str, FollowedRun] = OrderedDict()

    def signal(self, value: bytes | None, *, sent_ms: int, unnamed: str) -> None:
        """Add a record of the signals topic, whatever it holds.

        Args:
            value: of the record.
            sent_ms: when it was written, in milliseconds since the epoch.
            unnamed: stands for the id of a signal that has none.
        """
        try:
            found = msgspec.json.decode(value or b"null")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = None
        record: Mapping[str, Any] = found if isinstance(found, dict) else {}
        name = _text(record.get("id")) or unnamed
        data = record.get("data")
        tables = data.get("data-collections") if isinstance(data, dict) else None
        names = tables if isinstance(tables, list) else []
        seen = SignalSeen(
            name,
            _text(record.get("type")) or "unreadable",
            tuple(_text(n) for n in names[:_KEPT]),
            sent_ms,
        )
        _keep(self._signals, name, seen)

    def notification(self, notification: Notification) -> None:
        """Add a record of the notifications topic."""
        why = _why(notification)
        _keep(
            self._answers, notification.id, Answer(notification.type, notification.timestamp, *why)
        )
        if (
            notification.id in self._runs
            or notification.type in _OF_RUNS
            or is_of_run(notification)
        ):
            run = self._runs.get(notification.id, FollowedRun(notification.id))
            _keep(
                self._runs, notification.id, then(run, notification), over=lambda one: one.has_ended
            )

    def reading(self) -> frozenset[str]:
        """Return the tables that a run has not read to their end; one that compares reads none."""
        return frozenset(
            table
            for run in self._runs.values()
            if run.state not in ENDED and not run.compares
            for table, scan in run.tables.items()
            if not scan.status
        )

    def signals(self, connectors: Iterable[str] = ("",)) -> tuple[SignalSeen, ...]:
        """Return the signals, newest first, each with its newest answer.

        Args:
            connectors: the qualifiers of those that answer; see `signal_parts`.
        """
        every = [*connectors]
        return tuple(
            msgspec.structs.replace(seen, answer=self._answer(name, every))
            for name, seen in reversed(self._signals.items())
        )

    def _answer(self, name: str, connectors: Sequence[str]) -> Answer | None:
        names = {name, *(own_id(name, connector) for connector in connectors)}
        found = [answer for one, answer in self._answers.items() if one in names]
        return max(found, key=lambda answer: answer.at_ms, default=None)

    def runs(self, flights: Sequence[Flight]) -> tuple[RunNow, ...]:
        """Return the runs with their chunks in flight: unfinished ones first, then the newest.

        Args:
            flights: of each connector.
        """
        chunks: dict[tuple[str, str], list[ChunkNow]] = {}
        stages = {place: stage for now in flights for place, stage in now.stages.items()}
        for one in (one for now in flights for one in now.chunks):
            chunks.setdefault((one.run, one.table), []).append(
                ChunkNow(one.chunk, one.attempt, one.state, one.since_ms, one.rows, one.lo, one.hi)
            )
        shown = [_shown(run, stages, chunks) for run in self._runs.values()]
        return tuple(sorted(shown, key=lambda r: (r.state in ENDED, -r.updated_ms)))


def _keep(
    entries: OrderedDict[str, _Kept],
    name: str,
    value: _Kept,
    over: Callable[[_Kept], bool] = lambda _: True,
) -> None:
    """Put a value last; where there are too many, remove the oldest one that has ended.

    Where none has ended the oldest of all is removed.
    """
    entries[name] = value
    entries.move_to_end(name)
    if len(entries) > _KEPT:
        del entries[next((n for n, one in entries.items() if over(one)), next(iter(entries)))]


def _why(notification: Notification) -> tuple[str, str, str]:
    data = notification.additional_data
    return data.get("code", ""), data.get("reason", ""), data.get("hint", "")


def _text(value: object) -> str:
    return value[:_SHOWN] if isinstance(value, str) else ""


def windows_of(now: Flight) -> WindowsNow | None:
    """Return the windows in use; None if there are none and nothing waits for one."""
    if not (now.windows or now.waits_for):
        return None
    return WindowsNow(now.window, now.opened_ms or None, now.windows, now.waits_for)


def delay_of(now: Flight) -> Delay | None:
    """Return the reason why snapshots are delayed; None where they are not."""
    return Delay(now.code, now.reason, now.hint) if now.reason else None


def _shown(
    run: FollowedRun,
    stages: Mapping[tuple[str, str], str],
    chunks: Mapping[tuple[str, str], list[ChunkNow]],
) -> RunNow:
    last = run.last
    why = _why(last) if last else ("", "", "")
    scans = tuple(
        _scan(
            table,
            scan,
            "" if scan.status else stages.get((run.id, table), ""),
            tuple(chunks.get((run.id, table), ())),
        )
        for table, scan in run.tables.items()
    )
    return RunNow(run.id, run.state, last.timestamp if last else 0, scans, *why)


def _scan(table: str, scan: Scan, stage: str, chunks: tuple[ChunkNow, ...]) -> ScanNow:
    total = scan.total_chunks
    percent = min(100, 100 * scan.chunks // total) if total else 0
    if scan.status in {"SUCCEEDED", "EMPTY"}:
        percent = 100
    return ScanNow(
        table,
        scan.status,
        percent,
        scan.chunks,
        total,
        scan.rows,
        scan.total_rows,
        scan.rows_per_second,
        scan.eta_seconds,
        scan.inexact,
        None if scan.tally is None else dict(scan.tally),
        stage,
        chunks,
    )
