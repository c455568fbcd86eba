"""The published figures: runs the benchmarks, then writes RESULTS.md and its pictures.

    ./dev bench results                  # all of them, one after the other: hours
    ./dev bench results --only series    # some of them again; may be given repeatedly
    ./dev bench results --write          # none; only the report, from the files that are there

Each benchmark writes bench/results/<name>.json, which is kept until it brings new figures. See
bench/README.md.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from bench.page import Published, document, is_wrong
from bench.report import is_ours
from stack.bench_packages import ensure_packages
from stack.cli import run_child
from stack.processes import StackError

PUBLISHED: Final = (
    Published(
        "small",
        "stream",
        ("--events", "1000000", "--keys", "200000", "--rounds", "3"),
        "One busy table, small",
        "Events a second without the first batch",
    ),
    Published(
        "small-fresh",
        "stream",
        ("--events", "1000000", "--batch", "50000", "--fresh", "1", "--rounds", "3"),
        "One busy table, small, with rows that are fresh",
    ),
    Published(
        "large-random",
        "stream",
        ("--start-rows", "10000000", "--rounds", "3"),
        "One busy table, large, random keys",
    ),
    Published(
        "large-hot",
        "stream",
        ("--start-rows", "10000000", "--hot", "0.8", "--rounds", "3"),
        "One busy table, large, hot keys",
    ),
    Published(
        "series",
        "stream",
        ("--start-rows", "100000,1000000,10000000"),
        "One busy table, by its size",
        "Seconds for as many events as a batch has, by the rows of the table",
    ),
    Published(
        "mariadb",
        "stream",
        ("--database", "mariadb", "--only", "lakemark-deletion-vectors", "--rounds", "3"),
        "One busy table, the same events of MariaDB and of PostgreSQL",
    ),
    Published(
        "avro",
        "stream",
        (
            *("--format", "avro", "--only", "lakemark-deletion-vectors", "--only", "usual"),
            *("--rounds", "2", "--full"),
        ),
        "One busy table, the same events in JSON and in Avro",
    ),
    Published(
        "tables",
        "tables",
        ("--tables", "50,200", "--per-table", "25", "--hot", "0.9", "--poisoned"),
        "Many tables, one in a hundred of them hot",
    ),
    Published(
        "rate",
        "rate",
        ("--tables", "200", "--rate", "5000", "--poisoned"),
        "Many tables, events at a rate of their own",
    ),
    Published(
        "far",
        "far",
        ("--batches", "3"),
        "Many tables in an object store, 30 ms away",
    ),
    Published(
        "snapshot",
        "snapshot",
        ("--engine", "deletion-vectors", "--rounds", "3"),
        "A snapshot by a signal",
        "Rows a second of a snapshot, idle and beside a workload",
    ),
    Published(
        "snapshot-large",
        "snapshot",
        (
            *("--rows", "10000000", "--rate", "0", "--parallelism", "4"),
            *("--connector-chunks", "10240", "--engine", "deletion-vectors", "--where"),
        ),
        "A snapshot of ten million rows",
    ),
    Published(
        "snapshot-mariadb",
        "snapshot",
        (
            *("--database", "mariadb", "--rows", "10000000", "--rate", "0", "--rounds", "2"),
            *("--parallelism", "2", "--chunk-delay", "150ms", "--connector-chunks", "10240"),
            *("--engine", "deletion-vectors"),
        ),
        "A snapshot of MariaDB, ten million rows",
    ),
    Published(
        "verify",
        "verify",
        ("--rows", "10000000", "--engine", "deletion-vectors"),
        "Verifying a table of ten million rows",
    ),
    Published(
        "latency",
        "latency",
        (),
        "Latency, start and rest",
    ),
    Published(
        "cluster",
        "cluster",
        (),
        "A cluster of two workers",
    ),
)
ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "bench" / "results"
REPORT: Final = ROOT / "bench" / "RESULTS.md"
OURS_ALONE: Final = ("verify", "latency", "cluster")
STOPPED: Final = 128  # exit codes from here on: a signal has ended it


def main(argv: list[str]) -> int:
    """Runs what is asked for and writes the report.

    Returns:
        1 if a benchmark brought no figures, a result of lakemark is wrong or the pictures could
        not be drawn; the report is written all the same. That of the signal if one has ended a
        benchmark; nothing more is run or written then.

    Raises:
        StackError: if a file in bench/results/ cannot be read.
    """
    options = parse(argv)
    RESULTS.mkdir(exist_ok=True)
    failed = []
    for one in [] if options.write else chosen(options.only):
        code = measure(one)
        if code >= STOPPED:
            return code
        if code:
            say(f"{one.name}: no new figures. Again: ./dev bench results --only {one.name}")
            failed.append(one.name)
    found = read()
    pictures = draw(found)
    REPORT.write_text(document(PUBLISHED, found, pictures), encoding="utf-8")
    say(f"written: {REPORT.relative_to(ROOT)}")
    drawn = pictures == {one.name for one in PUBLISHED if one.picture and one.name in found}
    return 1 if failed or not drawn or any(map(is_ours_wrong, found.values())) else 0


def chosen(only: Collection[str] | None) -> list[Published]:
    """Those with these names; all without names."""
    return [one for one in PUBLISHED if not only or one.name in only]


def measure(one: Published) -> int:
    """Runs a benchmark and notes the command in its file.

    Returns:
        0 if it has written figures, right or wrong; else its exit code.
    """
    say(shlex.join(one.command))
    file = ROOT / one.file
    before = file.stat().st_mtime_ns if file.exists() else 0
    code = run_child(one.command)
    if not file.exists() or file.stat().st_mtime_ns == before:
        return code or 1
    figures = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(
        json.dumps({**figures, "command": one.command}, indent=2) + "\n", encoding="utf-8"
    )
    return code if code >= STOPPED else 0


def read() -> dict[str, dict[str, Any]]:
    """What the files hold, by name."""
    found = {}
    for one in PUBLISHED:
        file = ROOT / one.file
        if not file.exists():
            continue
        text = file.read_text(encoding="utf-8")
        try:  # a median of nothing is NaN, which is no figure
            found[one.name] = json.loads(text, parse_constant=lambda _: None)
        except ValueError as error:
            raise StackError(
                f"{one.file} is no JSON ({error}): remove it, or run it again by"
                f" ./dev bench results --only {one.name}"
            ) from error
    return found


def is_ours_wrong(found: Mapping[str, Any]) -> bool:
    """Whether a result of lakemark is wrong; some benchmarks are of lakemark alone."""
    ours = [row for row in found["rows"] if is_ours(row) or found["bench"] in OURS_ALONE]
    return any(map(is_wrong, ours))


def draw(found: Mapping[str, Any]) -> set[str]:
    """Draws anew, in the environment that has matplotlib.

    Returns:
        The names whose picture is there. None is left of figures that are no more.
    """
    names = [one.name for one in PUBLISHED if one.picture]
    for name in names:
        for kind in ("png", "svg"):
            (RESULTS / f"{name}.{kind}").unlink(missing_ok=True)
    wanted = [name for name in names if name in found]
    if not wanted:
        return set()
    try:
        packages = ensure_packages(say)
    except StackError as error:
        say(f"no pictures: {error}")
        return set()
    settings = packages.with_name("matplotlib")  # not those of whoever runs it
    environment = {**os.environ, "PYTHONPATH": str(packages), "MPLCONFIGDIR": str(settings)}
    script = Path(__file__).with_name("plots.py")
    drawn = subprocess.run(
        [sys.executable, "-P", str(script), str(RESULTS), *wanted],
        env=environment, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if drawn.returncode:
        say("no pictures, or not all: see above; again: ./dev bench results --write")
    return {
        name
        for name in wanted
        if all((RESULTS / f"{name}.{kind}").exists() for kind in ("png", "svg"))
    }


def parse(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="./dev bench results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    names = [one.name for one in PUBLISHED]
    what.add_argument("--only", action="append", choices=names, help="may be given repeatedly")
    what.add_argument("--write", action="store_true", help="run nothing, only write the report")
    return parser.parse_args(argv)


def say(text: str) -> None:
    """One line of progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
