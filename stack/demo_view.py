"""How the demo looks: a line for each step, bars for the snapshot's tables, and the report.

On a terminal the newest state stays at the bottom; elsewhere it is a line every few seconds.
"""

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from lakemark.cli.snapshot_view import Bars, numbers
from lakemark.snapshot.run_tracker import FollowedRun
from stack.compare import Comparison

TOLD_S: Final = 5.0
"""Seconds between lines about the state where there is no terminal."""


@dataclass(slots=True)
class Measured:
    """What the demo has seen.

    Attributes:
        batches: (time of `batch.done`, its events), over both lives of lakemark.
        earlier: those of them that are of the life before.
        lags: seconds from the newest visible change to a look at the lake right after a batch.
        lag: the newest of them; None while lakemark does not apply anything.
        restart_s: from the kill to the query running again.
        applied_s: from the kill to the next finished batch.
        snapshot: its rows, chunks, seconds and rows per second.
        paused: what the pause did to it.
        killed: what the kill did to it.
    """

    batches: list[tuple[float, int]] = field(default_factory=list)
    earlier: list[tuple[float, int]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    lag: float | None = None
    restart_s: float = 0.0
    applied_s: float = 0.0
    snapshot: str = ""
    paused: str = ""
    killed: str = ""

    def see(self, done: Sequence[Mapping[str, Any]]) -> bool:
        """Take the events `batch.done` of lakemark's present life; whether there are new ones."""
        count = len(self.batches)
        found = [(_time(event["timestamp"]), int(event.get("events", 0))) for event in done]
        self.batches = [*self.earlier, *found]
        return len(self.batches) > count

    @property
    def events(self) -> int:
        """All events of all batches."""
        return sum(events for _, events in self.batches)

    def best_rate(self) -> float:
        """Events per second of the best batch, from the end of the one before to its own end."""
        rates = [
            events / (end - begin)
            for (begin, _), (end, events) in itertools.pairwise(sorted(self.batches))
            if events and end > begin
        ]
        return max(rates, default=0.0)


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class Screen:
    """What is shown while the demo runs.

    Args:
        console: where.

    Attributes:
        step: what is being done, empty between two steps.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.step = ""
        self._begun = time.monotonic()
        self._told = 0.0
        self._spinner = Spinner("dots", "starting")
        self._bars: Bars | None = None
        self._ended: set[str] = set()
        self._shown = ""
        self._live = Live(
            console=console, get_renderable=self._newest, refresh_per_second=8, transient=True
        )

    def __enter__(self) -> Self:
        """Shows the newest state from now on."""
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Removes it; lines stay."""
        self._live.stop()

    def say(self, text: str) -> None:
        """Show a line that stays."""
        shown = f"[dim]{time.monotonic() - self._begun:6.1f} s[/]  {text}"
        self.console.print(shown, soft_wrap=not self.console.is_terminal)

    @contextmanager
    def doing(self, step: str) -> Iterator[None]:
        """Show a step while it lasts, and how long it took."""
        self.step = step
        begun = time.monotonic()
        self._spinner.update(text=step)
        self.say(f"{step} …")
        yield
        self.say(f"  done in {time.monotonic() - begun:.1f} s")
        self.step = ""

    def now(self, text: str, run: FollowedRun | None = None) -> None:
        """Show the newest state, and how far the tables of a run are.

        Args:
            text: the state in a line.
            run: its tables are shown until `leave`.
        """
        self._spinner.update(text=text)
        if run is not None:
            self._show(run)
        if not self.console.is_terminal and time.monotonic() - self._told > TOLD_S:
            self._told = time.monotonic()
            self.say(f"  {text}")
            if run is not None:
                self._tell(run)

    def leave(self) -> None:
        """Let the bars stay as they are; what is shown next goes below them."""
        if self._bars is not None and self.console.is_terminal:
            self.console.print(self._bars)
        self._bars = None

    def _show(self, run: FollowedRun) -> None:
        if self.console.is_terminal:
            self._bars = self._bars or Bars(self.console)
            self._bars.update(run)
            return
        for table, scan in run.tables.items():
            if scan.status and table not in self._ended:
                self._ended.add(table)
                self.say(f"  {table}: {numbers(scan)}")

    def _tell(self, run: FollowedRun) -> None:
        """Say how far the table is that is being read."""
        scans = run.tables.items()
        shown = [f"{table}: {numbers(scan)}" for table, scan in scans if not scan.status]
        if shown and shown[0] != self._shown:
            self._shown = shown[0]
            self.say(f"  {self._shown}")

    def _newest(self) -> RenderableType:
        return Group(self._bars, self._spinner) if self._bars is not None else self._spinner


def comparison(found: Comparison, states: dict[str, dict[str, Any]]) -> Table:
    """Return the tables with their rows in the source and in the lake.

    Args:
        found: the comparison.
        states: records of the progress topic by table.
    """
    table = Table(
        title="the lake against the source, row by row",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("table", overflow="fold")
    table.add_column("state", no_wrap=True)
    for name in ("source", "lake", "wrong", "events"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in found.tables:
        state = states.get(one.table, {})
        wrong = one.missing + one.extra + one.different
        counts = (one.source_rows, one.lake_rows, wrong)
        verdict = "[green]equal[/]" if one.is_equal else "[bold red]WRONG[/]"
        events = f"{state.get('events', 0):,}"
        name = str(state.get("state", "streaming" if state else "-"))
        table.add_row(one.table, name, *(f"{n:,}" for n in counts), events, verdict)
    return table


def facts(seen: Measured, written: object) -> Table:
    """Return what was measured.

    Args:
        seen: the measurements.
        written: what the workload has committed.
    """
    table = Table(box=None, show_header=False)
    table.add_row("written", str(written))
    table.add_row("applied", f"{seen.events:,} events in {len(seen.batches)} batches")
    table.add_row("throughput", f"{seen.best_rate():,.0f} events/s in the best batch")
    if seen.lags:
        middle, worst = statistics.median(seen.lags), max(seen.lags)
        table.add_row("lag", f"median {middle:.1f} s, worst {worst:.1f} s (commit to lake)")
    table.add_row("snapshot", seen.snapshot)
    table.add_row("pause", seen.paused)
    table.add_row("kill -9", seen.killed)
    again = f"running again after {seen.restart_s:.1f} s"
    table.add_row("", f"{again}, first batch done after {seen.applied_s:.1f} s")
    return table
