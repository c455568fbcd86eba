"""Sources that tests look at: the package's own, and those of a package that is made up."""

import ast
from functools import cache
from pathlib import Path

_TRIES = 5


@cache
def parsed(path: Path) -> ast.Module:
    """Return a file's syntax tree; not to be changed.

    CPython 3.11 counts the depth of a tree in one place for all threads: whoever formats a traceback
    meanwhile, which parses a line, makes it fail with a SystemError.
    """
    text = path.read_text(encoding="utf-8")
    for _ in range(_TRIES - 1):
        try:
            return ast.parse(text)
        except SystemError:
            continue
    return ast.parse(text)


def package(folder: Path, **sources: str) -> Path:
    """Write modules, `a__b` as `b` in the folder `a`; returns the package."""
    for name, text in sources.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
