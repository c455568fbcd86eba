"""What every benchmark shows and writes: the machine, the versions, one row per contestant."""

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from stack.java import find_java

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("lakemark", "pyspark", "delta-spark", "deltalake", "pyarrow", "msgspec")
LESS: Final = ("seconds", "cpu_seconds", "read_seconds", "late", "cores", "requests")  # is better
HEADINGS: Final = {
    "start_rows": "rows",
    "tables": "tables",
    "who": "",
    "correct": "correct",
    "events_per_s": "events/s",
    "steady_events_per_s": "steady",
    "offered_per_s": "offered/s",
    "batches": "batches",
    "events_per_batch": "events/batch",
    "seconds_per_batch": "s/batch",
    "seconds_for_batch": "s for as many",
    "requests": "requests",
    "seconds": "seconds",
    "late_p50": "late p50 s",
    "late_p99": "p99 s",
    "late_first_half": "p50, 1st half",
    "late_second_half": "2nd half",
    "cores_used": "cores",
    "cpu_seconds": "CPU s",
    "peak_rss_mb": "peak MB",
    "written_per_byte": "written",
    "read_seconds": "read s",
}


def machine() -> dict[str, Any]:
    """What the figures hang on, and when they were begun; names no host."""
    return {
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_mb": int(_field("/proc/meminfo", "MemTotal").split(" ")[0] or 0) // 1024,
        "system": f"{platform.system()} {platform.release()}",
        "load_before": [round(load, 2) for load in os.getloadavg()],
    }


def versions() -> dict[str, str]:
    """Versions of what runs."""
    return {
        "python": platform.python_version(),
        "java": _java(),
        **{package: version(package) for package in PACKAGES},
    }


def keep(
    file: Path,
    bench: str,
    settings: Mapping[str, Any],
    before: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    **more: Any,
) -> None:
    """Writes the figures of a benchmark as JSON, with what they hang on.

    Args:
        file: where.
        bench: its name.
        settings: its sizes and rates, JSON-ready.
        before: the machine as it was before.
        rows: one for each figure or contestant, JSON-ready.
        more: what else was found, JSON-ready.
    """
    report = {
        "bench": bench,
        "settings": dict(settings),
        "machine": dict(before),
        "versions": versions(),
        "rows": list(rows),
        **more,
    }
    file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def ratios(rows: Sequence[Mapping[str, Any]], measures: Sequence[str]) -> list[dict[str, Any]]:
    """How many times lakemark's figure is each other's (for seconds: the other way).

    lakemark with several engines is shown for each.
    """
    found = []
    for ours in (row for row in rows if is_ours(row)):
        for other in rows:
            if is_ours(other) or size_of(ours) != size_of(other):
                continue
            times = {measure: times_of(ours, other, measure) for measure in measures}
            found.append({**size_of(ours), "ours": ours["who"], "other": other["who"], **times})
    return found


def is_ours(row: Mapping[str, Any]) -> bool:
    """Whether a row is one of lakemark."""
    return str(row["who"]).startswith("lakemark")


def times_of(ours: Mapping[str, Any], other: Mapping[str, Any], measure: str) -> float | None:
    """How many times better one figure of ours is; None if there is none."""
    one, two = ours[measure], other[measure]
    if not one or not two:
        return None
    less = measure.startswith(LESS)
    return round(float(two / one if less else one / two), 2)


def show(
    bench: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    settings: dict[str, Any],
    before: dict[str, Any],
    wrong: Sequence[tuple[str, Mapping[str, str]]],
    measures: Sequence[str],
    json_file: Path | None,
    rounds: Sequence[Mapping[str, Any]] = (),
    calculated: Sequence[Mapping[str, Any]] = (),
    also: Mapping[str, str] | None = None,
) -> int:
    """Prints the table, writes the JSON file; the exit code: 1 if any result is wrong.

    Args:
        bench: the benchmark's name.
        rows: `Run.row` of each contestant, or `median` of its rounds.
        settings: sizes and limits, as they were.
        before: `machine()`, taken before the runs.
        wrong: what differs in whose tables, by table.
        measures: keys of the rows whose ratio is shown, the most important one first.
        json_file: where to write, if anywhere.
        rounds: `Run.row` of every round, for the JSON file.
        calculated: figures that follow from those of the rows, with some of their keys.
        also: more versions than `versions`.
    """
    compared, found = ratios(rows, measures), {**versions(), **(also or {})}
    report = {
        "bench": bench,
        "settings": settings,
        "machine": before,
        "versions": found,
        "rows": list(rows),
        "ratios": compared,
        "rounds": list(rounds),
        "calculated": list(calculated),
        "wrong": [
            {"who": who, "table": table, "difference": difference.replace(str(ROOT), ".")}
            for who, tables in wrong
            for table, difference in tables.items()
        ],
    }
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    console.print(f"[bold]{bench}[/]: " + ", ".join(f"{k} {v}" for k, v in settings.items()))
    console.print(", ".join(f"{name} {number}" for name, number in found.items()))
    _print(rows, HEADINGS, console)
    _print(compared, {"start_rows": "rows before", "tables": "tables", "ours": "",
                      "other": "times better than",
                      **{measure: HEADINGS[measure] for measure in measures}}, console)  # fmt: skip
    _print(calculated, HEADINGS, console)
    for who, tables in wrong:
        for name, difference in tables.items():
            console.print(f"[red]{who} {name}: {difference}[/]")
    if json_file:
        json_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row["correct"] for row in rows) else 1


def size_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a series is over: rows are compared with those of the same size only."""
    return {key: row[key] for key in ("start_rows", "tables") if row.get(key) is not None}


def _print(
    rows: Sequence[Mapping[str, Any]], headings: Mapping[str, str], console: Console
) -> None:
    """Rows as a table; headings that no row has are left out."""
    if not rows:
        return
    shown = [key for key in headings if key in rows[0]]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for key in shown:
        texts = isinstance(rows[0][key], str)
        table.add_column(headings[key], justify="left" if texts else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell(row[key]) for key in shown))
    console.print(table)


def cell(value: Any) -> str:
    """A figure as text, as exact as it is."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "NO", None: "-"}[value]
    return f"{value:,}" if isinstance(value, int) else str(value)


def _field(file: str, name: str) -> str:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else ""


def _java() -> str:
    result = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "([^"]+)"', result.stderr + result.stdout)
    return found.group(1) if found else "unknown"
