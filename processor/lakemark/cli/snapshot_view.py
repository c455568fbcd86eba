"""The look of runs: bars on a terminal, lines elsewhere, JSON for programs."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from lakemark.cli.presentation import show_json, show_line, show_table
from lakemark.ops.terminal import shown
from lakemark.snapshot.notifications import Notification
from lakemark.snapshot.run_tracker import FollowedRun, Scan, then

_FOLLOW: Final = "lakemark snapshot status"


class Bars:
    """A bar for each table of a run; without a terminal, a line for each that has ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tasks: dict[str, TaskID] = {}
        self._said: set[str] = set()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[shown]}", markup=False),
            console=console,
            disable=not console.is_terminal,
        )

    def __rich__(self) -> RenderableType:
        """The bars as a part of something larger, which must then be shown by its owner."""
        return self._progress.get_renderable()

    def __enter__(self) -> Self:
        """Shows the bars from now on."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves them as they are."""
        self._progress.stop()

    def update(self, run: FollowedRun) -> None:
        """Shows how far the run has come."""
        for table, scan in run.tables.items():
            if table not in self._tasks:
                self._tasks[table] = self._progress.add_task(shown(table), total=None, shown="")
            far = numbers(scan)
            if run.state == "paused" and not scan.status:
                far += "  paused"
            total = max(1, scan.total_chunks or 0) if scan.total_chunks is not None else None
            done = total if scan.status and total else scan.chunks
            task = self._tasks[table]
            self._progress.update(task, total=total, completed=done, shown=shown(far))
            if scan.status and table not in self._said:
                self._said.add(table)
                if not self._console.is_terminal:
                    show_line(self._console, f"{table}: {far}")


def numbers(scan: Scan) -> str:
    """Return how far a table has come, in one line."""
    total = "?" if scan.total_chunks is None else f"{scan.total_chunks:,}"
    parts = [f"{scan.chunks:,}/{total} chunks"]
    if scan.total_chunks:
        parts.append(f"{min(100, 100 * scan.chunks // scan.total_chunks)} %")
    estimate = "" if scan.total_rows is None else f" of about {scan.total_rows:,}"
    parts.append(f"{scan.rows:,}{estimate} rows")
    if scan.rows_per_second is not None:
        parts.append(f"{scan.rows_per_second:,} rows/s")
    if scan.inexact:
        parts.append(f"{scan.inexact:,} values not exact")
    if scan.tally is not None and scan.status:
        parts.append(f"{scan.unlike:,} not as in the source")
    if scan.status:
        parts.append(scan.status)
    elif scan.eta_seconds is not None:
        # An estimate of years is none.
        parts.append(f"{timedelta(seconds=min(scan.eta_seconds, 10**9))} left")
    return "  ".join(parts)


def show_outcome(console: Console, run: FollowedRun, *, is_run: bool, as_json: bool) -> None:
    """Print what came of a signal: its newest notification, and what can be done next."""
    if as_json and run.last is not None:
        show_json(_data(run.last))
        return
    stopped = f" for {', '.join(run.tables)}" if run.state == "aborted" and not is_run else ""
    show_line(console, f"{run.id}: {run.state}{stopped}")
    details: Mapping[str, str] = run.last.additional_data if run.last else {}
    if details.get("reason"):
        show_line(console, f"{details['reason']} ({details.get('code') or 'no code'})")
    if details.get("hint"):
        show_line(console, f"    → {details['hint']}")
    for table, status in run.unread().items():
        show_line(console, f"{table} was not read: {status}")
    if is_run and not run.has_ended:
        show_line(console, "Follow it with:")
        show_line(console, f"  {_FOLLOW} {run.id}")


def show_answers(found: Sequence[FollowedRun]) -> None:
    """Print the newest notification of each connector's part of a signal, as a list in JSON."""
    show_json([_data(run.last) for run in found if run.last is not None])


def say_left(console: Console, id_: str, *, is_run: bool) -> None:
    """Ctrl-C has ended the waiting, not what was asked for."""
    if not is_run:
        show_line(console, "The signal was sent and will be carried out.")
        return
    show_line(console, "The run goes on. Follow it, or stop it:")
    show_line(console, f"  {_FOLLOW} {id_}")
    show_line(console, "  lakemark snapshot stop")


def show_runs(console: Console, found: Sequence[Notification], *, as_json: bool) -> None:
    """The newest notification of each run, the newest run last."""
    ordered = sorted(found, key=lambda n: n.timestamp)
    if as_json:
        show_json([_data(notification) for notification in ordered])
        return
    if not ordered:
        show_line(console, "no snapshots yet. Take one with `lakemark snapshot start TABLE`.")
        return
    header = ("run", "state", "table", "progress", "at")
    show_table(console, header, [_row(notification) for notification in ordered])
    for notification in ordered:
        details = notification.additional_data
        if details.get("reason"):
            code = details.get("code") or "no code"
            show_line(console, f"{notification.id}: {details['reason']} ({code})")
        if details.get("hint"):
            show_line(console, f"    → {details['hint']}")


def _row(notification: Notification) -> tuple[str, ...]:
    details = notification.additional_data
    run = then(FollowedRun(notification.id), notification)
    table = details.get("current_collection_in_progress") or details.get("scanned_collection")
    scan = run.tables.get(table or "")
    try:
        at = datetime.fromtimestamp(notification.timestamp / 1000, UTC)
        shown = at.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00") + " UTC"
    except (ValueError, OverflowError, OSError):
        shown = ""
    return (
        notification.id,
        run.state if run.last else notification.type,
        table or details.get("data_collections", ""),
        numbers(scan) if scan else "",
        shown,
    )


def _data(notification: Notification) -> dict[str, Any]:
    return {
        "id": notification.id,
        "type": notification.type,
        "aggregate_type": notification.aggregate_type,
        "additional_data": notification.additional_data,
        "timestamp": notification.timestamp,
    }
