"""The look of what a verify run has found."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.filesize import decimal

from lakemark.cli import presentation
from lakemark.cli.presentation import show_line
from lakemark.snapshot.run_tracker import FollowedRun, Scan

_SHOWN: Final = 20  # rows of a table; all are in the lake's table, and in JSON
_WORDS: Final = {
    "missing": "missing in the lake",
    "extra": "only in the lake",
    "differing": "different",
    "duplicate": "more than once in the lake",
    "newer": "left to newer events",
    "left": "not compared",
}


def show_found(
    console: Console, run: FollowedRun, found: Sequence[Mapping[str, Any]], *, repair: bool
) -> None:
    """Print for each table how many rows were compared, and those that are not alike."""
    for table, scan in run.tables.items():
        if scan.tally is None or not run.has_ended:
            continue
        show_line(console, f"{table}: {_numbers(scan, repair=repair)}")
        if scan.cost.get("lake_bytes"):
            show_line(console, _cost(scan))
        mine = [row for row in found if row["table"] == table]
        for row in mine[:_SHOWN]:
            columns = f"  {', '.join(row['columns'])}" if row["columns"] else ""
            show_line(console, f"    {row['kind']:9}  {row['key']}{columns}")
            for side in ("source", "lake"):
                if row[side]:
                    show_line(console, f"        {side:6}  {row[side]}")
        if len(mine) > _SHOWN:
            show_line(console, f"    and {len(mine) - _SHOWN:,} more")
        if scan.tally.get("duplicate"):
            hint = "rows that are there more than once are not mended one by one: "
            show_line(console, f"    → {hint}lakemark table rebuild {table}")


def _numbers(scan: Scan, *, repair: bool) -> str:
    tally = scan.tally or {}
    rows = f"{scan.rows:,} row{'s' * (scan.rows != 1)}"
    parts = [f"{tally[name]:,} {word}" for name, word in _WORDS.items() if tally.get(name)]
    if not parts:
        return f"{rows}, as in the source"
    mended = repair and any(tally.get(name) for name in ("missing", "extra", "differing"))
    return f"{rows}: {', '.join(parts)}{'; mended' if mended else ''}"


def _cost(scan: Scan) -> str:
    sent, size = scan.cost.get("sent", 0), decimal(scan.cost.get("source_bytes", 0))
    rows = f"{sent:,} row{'s' * (sent != 1)}" if sent < scan.rows else "all rows"
    lake = decimal(scan.cost.get("lake_bytes", 0))
    return f"    read: {rows} of the source, {size}; {lake} of the lake"


def show_json(
    runs: Sequence[FollowedRun], found: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
    """Print one object for each run, as a list where there are several connectors."""
    said = [_data(run, found.get(run.id, ())) for run in runs if run.last is not None]
    presentation.show_json(said[0] if len(said) == 1 else said)


def _data(run: FollowedRun, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    tables = {
        name: {"status": scan.status, "rows": scan.rows, **(scan.tally or {}), **scan.cost}
        for name, scan in run.tables.items()
    }
    rows = [{**row, "found_at": row["found_at"].isoformat()} for row in found]
    why: Mapping[str, str] = run.last.additional_data if run.last else {}
    told: dict[str, Any] = {n: why[n] for n in ("code", "reason", "hint") if n in why}
    return {"id": run.id, "state": run.state, **told, "tables": tables, "found": rows}
