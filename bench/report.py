"""What every benchmark shows and writes: the machine, the versions, one row per contestant."""

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.runs import Run
from stack.java import find_java

PACKAGES: Final = ("lakemark", "pyspark", "delta-spark", "deltalake", "pyarrow", "msgspec")
HEADINGS: Final = {
    "who": "",
    "events": "events",
    "seconds": "seconds",
    "events_per_s": "events/s",
    "steady_events_per_s": "steady",
    "batches": "batches",
    "seconds_per_batch": "s/batch",
    "cpu_seconds": "CPU s",
    "peak_rss_mb": "peak MB",
    "correct": "correct",
}


def machine() -> dict[str, Any]:
    """What the figures hang on; names no host."""
    return {
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
) -> None:
    """Writes the figures of a benchmark as JSON, with what they hang on.

    Args:
        file: where.
        bench: its name.
        settings: its sizes and rates, JSON-ready.
        before: the machine as it was before.
        rows: one for each figure or contestant, JSON-ready.
    """
    report = {
        "bench": bench,
        "settings": dict(settings),
        "machine": dict(before),
        "versions": versions(),
        "rows": list(rows),
    }
    file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def ratio(runs: Sequence[Run], measure: str) -> float | None:
    """How many times lakemark's figure is the usual pipeline's (for seconds: the other way)."""
    found = {run.who: run.row()[measure] for run in runs}
    ours, usual = found.get("lakemark"), found.get("usual")
    if not ours or not usual:
        return None
    times: float = usual / ours if "seconds" in measure else ours / usual
    return round(times, 2)


def show(
    bench: str,
    runs: Sequence[Run],
    *,
    settings: dict[str, Any],
    before: dict[str, Any],
    measures: Sequence[str],
    json_file: Path | None,
) -> int:
    """Prints the table, writes the JSON file; the exit code: 1 if any result is wrong.

    Args:
        bench: the benchmark's name.
        runs: one per contestant.
        settings: sizes and limits, as they were.
        before: `machine()`, taken before the runs.
        measures: keys of `Run.row` whose ratio is shown, the most important one first.
        json_file: where to write, if anywhere.
    """
    ratios = {measure: ratio(runs, measure) for measure in measures}
    report = {
        "bench": bench,
        "settings": settings,
        "machine": before,
        "versions": versions(),
        "rows": [run.row() for run in runs],
        "ratio": ratios,
    }
    console = Console()
    if not console.is_terminal:
        console = Console(width=100)
    console.print(f"[bold]{bench}[/]: " + ", ".join(f"{k} {v}" for k, v in settings.items()))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for key, heading in HEADINGS.items():
        table.add_column(heading, justify="left" if key == "who" else "right", no_wrap=True)
    for run in runs:
        row = run.row()
        table.add_row(*(_cell(row[key]) for key in HEADINGS))
    console.print(table)
    for measure, times in ratios.items():
        if times is not None:
            console.print(f"lakemark / usual, {HEADINGS[measure] or measure}: [bold]{times} x[/]")
    for run in runs:
        for name, difference in run.wrong.items():
            console.print(f"[red]{run.who} {name}: {difference}[/]")
    if json_file:
        json_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if all(run.correct for run in runs) else 1


def _cell(value: Any) -> str:
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
