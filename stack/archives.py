"""Archives of Maven repositories, unpacked once into the cache and kept there."""

import fcntl
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lakemark.settings.cache import cache_dir
from lakemark.spark.jars import Progress, fetch, read_list

_EXECUTABLE: Final = 0o755


def unpacked(
    jar_list: Path, kind: str, *, progress: Progress | None = None, inside: str = ""
) -> Path:
    """Return the directory with the content of a pinned archive, fetched and unpacked if needed.

    Args:
        jar_list: names one archive and its SHA-256, see `lakemark.spark.jars`.
        kind: the folder of the cache that it goes to.
        progress: told in a few words what is being fetched.
        inside: the folder of a zip archive that is wanted; the others are left out.
    """
    (pinned,) = read_list(jar_list)

    def unpack(scratch: Path) -> None:
        (archive,) = fetch(jar_list, progress=progress)
        if archive.suffix == ".jar":
            _unzip(archive, scratch, inside)
        else:
            _untar(archive, scratch)

    name = f"{pinned.artifact}-{pinned.version}-{pinned.sha256[:12]}"
    return made_once(cache_dir() / kind / name, unpack)


def made_once(place: Path, make: Callable[[Path], None]) -> Path:
    """Return a directory, made if it is not there; one process makes it and the others wait.

    Args:
        place: the directory.
        make: fills an empty one, which takes the place in one step: a half-made one is never seen.
    """
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f".{place.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the process ends, however it ends
        if not place.exists():
            scratch = place.with_name(f".{place.name}-{os.getpid()}")
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            try:
                make(scratch)
                scratch.rename(place)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return place


def _untar(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(target)


def _unzip(archive: Path, target: Path, inside: str) -> None:
    """Unpack a folder of a zip archive; what stands in its `bin` can be run."""
    prefix = f"{inside.rstrip('/')}/" if inside else ""
    with zipfile.ZipFile(archive) as jar:
        for entry in jar.infolist():
            name = entry.filename.removeprefix(prefix)
            if entry.is_dir() or not entry.filename.startswith(prefix):
                continue
            path = target / name  # the archive is pinned: it has no names that lead elsewhere
            path.parent.mkdir(parents=True, exist_ok=True)
            with jar.open(entry) as source, path.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
            if path.parent.name == "bin":
                path.chmod(_EXECUTABLE)
