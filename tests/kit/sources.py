"""The package's own sources, parsed: for tests that look at all of the code."""

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
