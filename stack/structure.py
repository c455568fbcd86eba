"""How the package is laid out, in figures: `./dev check --structure`.

A figure is to shrink: `tests/unit/stack/test_structure.py` holds each to `LIMITS`, where one that
grew says why. A *group* is a folder of the package or a file at its top. Imports for the type
checker alone count.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from stack.import_rule import KINDS, PACKAGE, Imports, group, imports_of, parsed, reached

ROOT: Final = PACKAGE.parents[1]
LIMITS: Final[Mapping[str, int]] = {
    "modules at the top": 11,
    "groups": 26,  # sources/: what a pipeline knows of each of its connectors, all in one room
    # A trace reads records as the tasks do, and decides chunks as the shards do.
    "imports between groups": 152,
    "pairs of groups that import each other": 0,
    "modules in cycles": 0,
    "names of several classes": 0,
    # And what its commit says of the batch, and where the batch ends.
    "modules that an update of a row enters": 62,
}
"""What each figure is; who makes one smaller lowers it here."""
GOALS: Final[Mapping[str, int]] = {
    "modules at the top": 12,
    "groups": 26,
    "pairs of groups that import each other": 0,
    "modules in cycles": 0,
    "names of several classes": 0,
    "modules that an update of a row enters": 30,
    "lines of ARCHITECTURE.md": 150,
}


def measured(package: Path = PACKAGE) -> dict[str, int]:
    """Return the figures of the sources, by name."""
    ours, _ = imports_of(package, typed=True)
    between = {(group(a), group(b)) for a, found in ours.items() for b in found}
    between = {(a, b) for a, b in between if a != b}
    architecture = ROOT / "ARCHITECTURE.md"
    return {
        "modules": len(ours),
        "modules at the top": sum("." not in name for name in ours if _is_file(name, package)),
        "groups": len({group(name) for name in ours}),
        "imports between groups": len(between),
        "pairs of groups that import each other": len(mutual(between)),
        "modules in cycles": len(in_cycles(ours)),
        "names of several classes": len(doubled(package)),
        "lines of ARCHITECTURE.md": len(architecture.read_text(encoding="utf-8").splitlines()),
    }


def _is_file(name: str, package: Path) -> bool:
    return (package / f"{name}.py").exists()


def mutual(pairs: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs that are there in both directions, each once."""
    return sorted((a, b) for a, b in pairs if a < b and (b, a) in pairs)


def in_cycles(ours: Imports) -> list[str]:
    """Return the modules that import themselves through others."""
    return [name for name in ours if name in reached(name, ours)]


def doubled(package: Path = PACKAGE) -> list[str]:
    """Return the public class names that several modules define.

    Folders of one kind (`import_rule.KINDS`) never meet, and what plays the same part in each may
    have one name.
    """
    homes: dict[str, Counter[tuple[str, ...]]] = {}
    for path in package.rglob("*.py"):
        place = path.relative_to(package)
        kind, *inner = place.parts
        home = (kind, inner[0]) if kind in KINDS and len(inner) > 1 else (str(place),)
        for name in _classes(path):
            homes.setdefault(name, Counter())[home] += 1
    return sorted(
        name
        for name, found in homes.items()
        if max(found.values()) > 1 or (len(found) > 1 and not _are_siblings(found))
    )


def _are_siblings(homes: Iterable[tuple[str, ...]]) -> bool:
    return {len(home) for home in homes} == {2} and len({kind for kind, *_ in homes}) == 1


def _classes(path: Path) -> Iterator[str]:
    for node in parsed(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def show() -> None:
    """Print the figures, and what each is to become; those of a test as the test left them."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "now", "goal"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, now in {**LIMITS, **measured()}.items():
        goal = GOALS.get(name)
        table.add_row(name, f"{now:,}", "" if goal is None else f"{goal:,}")
    Console().print(table)
