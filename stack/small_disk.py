"""A file system of its own for a lake: it can be full, or read-only, for as long as one likes."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stack.processes import StackError, wait_for

ROOM = "1g"  # of memory, and only what is written is taken
MOUNT_S = 60.0


@dataclass(frozen=True)
class SmallDisk:
    """A folder, and whether it could be made a file system: that takes rights few tests have."""

    folder: Path
    mounted: bool
    room: str = ROOM

    @contextmanager
    def full(self) -> Iterator[None]:
        """Let nothing more be written in the block.

        Raises:
            StackError: file systems cannot be mounted here.
        """
        with self._otherwise(lambda: f"size={self._used()}"):
            yield

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Let nothing be written or removed in the block.

        Raises:
            StackError: file systems cannot be mounted here.
        """
        with self._otherwise(lambda: "ro"):
            yield

    @contextmanager
    def _otherwise(self, options: Callable[[], str]) -> Iterator[None]:
        if not self.mounted:
            raise StackError("file systems cannot be mounted here")
        try:
            # Refused while a file is being written: it may need more room, or is open.
            wait_for(lambda: self._remount(options()), MOUNT_S, "the disk to be small")
            yield
        finally:
            assert self._remount(f"rw,size={self.room}")

    def _remount(self, options: str) -> bool:
        command = ["mount", "-o", f"remount,{options}", str(self.folder)]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    def _used(self) -> int:
        found = os.statvfs(self.folder)
        return (found.f_blocks - found.f_bfree) * found.f_frsize


@contextmanager
def small_disk(folder: Path, *, room: str = ROOM) -> Iterator[SmallDisk]:
    """Mount one in the block; a plain folder where that is not allowed."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={room}", "lakemark-small", str(folder)]
    mounted = shutil.which("mount") is not None and (
        subprocess.run(command, check=False, capture_output=True).returncode == 0
    )
    try:
        yield SmallDisk(folder, mounted, room)
    finally:
        if mounted:  # also where somebody still reads in it
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
