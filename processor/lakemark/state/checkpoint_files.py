"""The files of a checkpoint, on the file system that it is on.

The file system need only do what `Files` says: not all of Hadoop's can replace a file in one step.
`checkpoint` makes of it files that are whole whenever a process ends.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from lakemark.errors import DependencyError, PipelineError


class Files(Protocol):
    """The files below the checkpoint's folder, by name.

    Raises (every method):
        DependencyError: `checkpoint-unavailable`: the file system refuses, or does not answer.
    """

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, None if there is none."""

    def create(self, name: str, blob: bytes) -> None:
        """Write a file to the disk, over another one if need be; not in one step."""

    def exists(self, name: str) -> bool:
        """Say whether there is such a file or folder."""

    def rename(self, name: str, to: str) -> bool:
        """Give a file a name that is free; say whether that was done."""

    def delete(self, name: str) -> None:
        """Remove a file, if there is one."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if there is no such folder."""


class LocalFiles:
    """`Files` of this machine, without a JVM.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> bytes | None:
        """See `Files`."""
        with self._reached():
            try:
                return (self._path / name).read_bytes()
            except FileNotFoundError:
                return None

    def create(self, name: str, blob: bytes) -> None:
        """See `Files`."""
        place = self._path / name
        with self._reached():
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as file:
                file.write(blob)
                file.flush()
                os.fsync(file.fileno())

    def exists(self, name: str) -> bool:
        """See `Files`."""
        with self._reached():
            return (self._path / name).exists()

    def rename(self, name: str, to: str) -> bool:
        """See `Files`."""
        with self._reached():
            (self._path / name).rename(self._path / to)
        return True

    def delete(self, name: str) -> None:
        """See `Files`."""
        with self._reached():
            (self._path / name).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        """See `Files`."""
        with self._reached():
            place = self._path / folder
            return [found.name for found in place.iterdir()] if place.exists() else []

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"{error.strerror}: {error.filename}"
            raise unavailable(str(self._path), reason) from error


def require_folder(path: Path) -> None:
    """Make a local checkpoint's folder where there is none.

    Raises:
        PipelineError: `checkpoint-unwritable`: it cannot be made, or lakemark may not write there.
    """
    reason = ""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "is no folder" if path.exists() else f"cannot be made: {error.strerror}"
    else:
        if not os.access(path, os.W_OK | os.X_OK):
            reason = "cannot be written"
    if reason:
        raise PipelineError(
            f"the checkpoint {path} {reason}",
            code="checkpoint-unwritable",
            hint="give the user that runs lakemark the right to write there, or correct checkpoint",
        )


def unavailable(path: str, reason: str) -> DependencyError:
    """Return the error for a file system that refuses, or does not answer."""
    return DependencyError(
        f"the checkpoint {path} cannot be used: {reason}",
        code="checkpoint-unavailable",
        hint="check its file system: is it there, has it room, may lakemark read and write",
    )
