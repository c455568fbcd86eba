"""Java's class data sharing: a pipeline's second start on a machine takes half the time.

The first local pipeline that stops in good order, and in time, leaves an archive of the classes it
used in the cache (Java's dynamic archive, JEP 350; about 200 MB); later ones map it instead of
loading and checking every class. An archive that does not fit is ignored by Java and by us: its
name says which Java and which jars it belongs to.
"""

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from lakemark.settings import cache, own_files
from lakemark.spark import jars

log = structlog.get_logger(__name__)

_MODE: Final = 0o644
# Says nothing where the archive does not fit after all: the start is slower, that is all.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive of one Java with one list of jars.

    Attributes:
        path: where it is or will be.
    """

    path: Path

    @property
    def part(self) -> Path:
        """The file that this process writes, until it is complete."""
        return self.path.with_suffix(f".{os.getpid()}.part")

    def options(self) -> str:
        """Return Java's options, quoted for Spark: use the archive, or write it at the end."""
        if self.is_there():
            return f'{_QUIET} "-XX:SharedArchiveFile={self.path}"'
        try:
            own_files.make(self.path.parent)
            for left in self.path.parent.glob("*.part"):
                if not _alive(int(left.suffixes[-2][1:])):
                    left.unlink(missing_ok=True)
        except (OSError, ValueError):
            return ""  # a cache that cannot be written: every start is a first one
        return f'{_QUIET} "-XX:ArchiveClassesAtExit={self.part}"'

    def is_there(self) -> bool:
        """Say whether there is an archive that nobody else may have written."""
        try:
            why = own_files.distrust(self.path.parent) if self.path.exists() else ""
        except OSError:
            return False
        if why:
            log.warning("cache.refused", reason=why, hint=own_files.HINT)
        return not why and self.path.exists()

    def discard(self) -> None:
        """Remove what Java began to write; to be called when it has ended."""
        self.part.unlink(missing_ok=True)

    def finish(self) -> None:
        """Move the file that Java wrote at its end to its place; to be called when it has ended."""
        if self.part.exists():
            self.part.chmod(_MODE)  # whatever the umask is
            self.part.replace(self.path)


def class_archive(classpath: Sequence[Path]) -> ClassArchive:
    """Return the archive for Spark's Java with these jars.

    Raises:
        JarError: there is no Java, or no PySpark.
    """
    java = shutil.which(jars.java()) or jars.java()
    home = Path(java).resolve().parents[1]
    release = home / "release"
    said = [str(home), release.read_text(errors="replace") if release.exists() else ""]
    said += [str(jars.pyspark_jars()), *map(str, classpath)]
    name = hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]
    return ClassArchive(cache.cache_dir() / cache.CLASSES / f"{name}.jsa")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
