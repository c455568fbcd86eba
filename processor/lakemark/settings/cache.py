"""The folder on this machine's disk for what lakemark fetches and makes."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from lakemark.settings import own_files

CLASSES: Final = "classes"
COMPILED: Final = "compiled"
"""Folders of the cache whose files are run: see `class_archive` and `converters.compiler`."""


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where lakemark keeps what it fetches.

    The first of `$LAKEMARK_CACHE`, `$XDG_CACHE_HOME/lakemark` and `~/.cache/lakemark`.
    """
    if own := environ.get("LAKEMARK_CACHE"):
        return Path(own).expanduser().absolute()
    if xdg := environ.get("XDG_CACHE_HOME"):
        return Path(xdg).absolute() / "lakemark"
    return Path.home() / ".cache" / "lakemark"


def trust() -> Iterator[tuple[Path, str]]:
    """Return the folders whose files are run, and why somebody else may have written them."""
    for name in (CLASSES, COMPILED):
        with suppress(FileNotFoundError, RuntimeError):  # it is not there yet, or there is no home
            folder = cache_dir() / name
            try:
                inner = [folder, *(one for one in folder.iterdir() if one.is_dir())]
                yield folder, next(filter(None, map(own_files.distrust, inner)), "")
            except PermissionError as error:
                yield folder, f"it cannot be looked at: {error.strerror}"
