"""Compiled functions: how they are made and cached, and whether this process can run them.

Functions are compiled when they are first called and kept in the cache (`cache.cache_dir`), for any
processor of the kind and wherever the package is, so that an image may bring them. They stand in
modules whose names begin with ``scan_``. Importing this takes a quarter of a second and 60 MB: only
those import it that call them.
"""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

import numba
import numpy as np
import numpy.typing as npt
import structlog

from lakemark.settings import own_files
from lakemark.settings.cache import COMPILED, cache_dir

log = structlog.get_logger(__name__)

Bytes = npt.NDArray[np.uint8]
Whole = npt.NDArray[np.int64]
Offsets = npt.NDArray[np.int32]

_unusable: Final[list[str]] = []
"""Why this process cannot run what is compiled."""


def _digest() -> str:
    """Return the digest of all compiled files: numba looks at a function's own file only."""
    files = sorted(Path(__file__).parents[1].rglob("scan_*.py"))
    text = b"".join(file.read_bytes() for file in (Path(__file__), *files))
    return hashlib.sha256(text + numba.__version__.encode()).hexdigest()[:16]


def _folder() -> Path | None:
    """Return the cache's folder, complete or to be filled; None if there can be none.

    Its files are unpickled: a folder that somebody else may have written is not taken.
    """
    why = ""
    try:
        folder = cache_dir() / COMPILED / DIGEST
        why = own_files.make(folder.parent) or own_files.make(folder)
        if not (folder / WHOLE).exists():
            TemporaryFile(dir=folder).close()
    except PermissionError as error:
        why, folder = str(error), None
    except (OSError, RuntimeError):  # or there is no home
        return None
    if why:
        log.warning("cache.refused", reason=why, hint=own_files.HINT, made_anew=folder is not None)
    return folder


DIGEST: Final = _digest()
WHOLE: Final = "whole"
"""A file that says that all functions are there: nothing more is written."""
KEPT: Final = _folder()


class Place:
    """numba's "cache locator": our folder, whatever the path of the sources is."""

    def __init__(self, line: int) -> None:
        self._line = line

    @classmethod
    def from_function(cls, function: Callable[..., Any], _file: str) -> "Place":
        """Return the place of a function; the cache's files begin with its module and name."""
        return cls(function.__code__.co_firstlineno)

    def ensure_cache_path(self) -> None:
        """Make the folder."""

    def get_cache_path(self) -> str:
        """The folder."""
        return str(KEPT)

    def get_source_stamp(self) -> str:
        """Return the digest, which must be the same."""
        return DIGEST

    def get_disambiguator(self) -> str:
        """Return the line, which tells functions of one name apart."""
        return str(self._line)


vars(numba.config).update(
    CACHE_LOCATOR_CLASSES=f"{__name__}.{Place.__name__}", CPU_NAME="generic", CPU_FEATURES=""
)


def compiled(function: Callable[..., Any]) -> Any:
    """The function, compiled when it is first called with arguments of these types."""
    return numba.njit(function, cache=KEPT is not None, nogil=True, error_model="numpy")


def ready(*examples: Callable[[], None]) -> bool:
    """Compiles what some calls call, or takes it from the cache.

    Args:
        examples: call everything that is compiled once, and raise where it does not work.

    Returns:
        False where that cannot be done: the cache is damaged or full. All records of this process
        go the general way then; what the cache had is removed, for the next one.
    """
    if _unusable:
        return False
    try:
        for example in examples:
            example()
        whole = KEPT and KEPT / WHOLE
        if whole and not whole.exists():  # one that is there may be somebody else's
            whole.touch()
    except Exception as error:  # noqa: BLE001 - whatever it is, records can be read without
        _unusable.append(str(error))
        shutil.rmtree(KEPT or "", ignore_errors=True)
        log.warning(
            "compiling.failed",
            error=f"{type(error).__name__}: {error}",
            folder=str(KEPT),
            hint="changes are applied more slowly; the next start compiles again",
        )
    return not _unusable


def usable() -> bool:
    """Say whether this process can run compiled functions, as far as it knows: see `ready`."""
    return not _unusable
