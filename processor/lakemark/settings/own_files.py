"""Files that are run or believed: nobody but this user and root may have written them.

What lakemark compiles is unpickled, and Java maps its archive of classes: whoever can write one of
them runs what they like as this user. A secret's file must not be read by everybody.
"""

import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o700
HINT: Final = (
    "see who may write there; chmod -R go-w mends the rights, LAKEMARK_CACHE names another folder"
)
_OTHERS: Final = 0o077
_WRITE: Final = 0o022
_ALL_READ: Final = 0o004
_ROOT: Final = 0


def distrust(folder: Path) -> str:
    """Return why somebody else may have written what is in a folder; empty if nobody may.

    Raises:
        OSError: it cannot be looked at.
    """
    folder = folder.absolute()
    for part in (*reversed(folder.parents), folder):
        found = part.lstat()
        if stat.S_ISLNK(found.st_mode) and not is_ours(found):
            return f"{part} is a link made by user {found.st_uid}"
    own = folder.stat()
    if why := _whose(folder, own):
        return why
    for file in sorted(folder.iterdir()):
        found = file.lstat()
        if stat.S_ISLNK(found.st_mode):
            return f"{file} is a link"
        open_ = own.st_mode & _OTHERS  # into a private folder nobody comes
        if (open_ or not is_ours(found)) and (why := _whose(file, found)):
            return why
    return ""


def make(folder: Path) -> str:
    """Make a folder that is this user's alone, in place of one of this user that others may write.

    Returns:
        why the one that was there could not be believed; empty if it can be.

    Raises:
        OSError: it cannot be made, or is not this user's.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=PRIVATE, exist_ok=True)
    why = distrust(folder)
    if why:
        if folder.lstat().st_uid != os.geteuid() or folder.is_symlink():
            raise PermissionError(why)
        shutil.rmtree(folder)
        folder.mkdir(mode=PRIVATE)
        if after := distrust(folder):
            raise PermissionError(after)
    return why


def bared(files: Iterable[Path]) -> list[tuple[Path, str]]:
    """Return those of some secrets' files that others can read or write, and who can do what."""
    found = []
    for file in files:
        try:
            mode = file.stat().st_mode
        except OSError:
            continue  # it is said elsewhere that it cannot be read
        if mode & _WRITE:
            found.append((file, f"others can write it (mode {stat.S_IMODE(mode):o})"))
        elif mode & _ALL_READ:
            found.append((file, f"every user can read it (mode {stat.S_IMODE(mode):o})"))
    return found


def is_ours(found: os.stat_result) -> bool:
    """Return whether a file belongs to this user, or to root, who may write anything anyway."""
    return found.st_uid in {os.geteuid(), _ROOT}


def _whose(place: Path, found: os.stat_result) -> str:
    if not is_ours(found):
        return f"{place} belongs to user {found.st_uid}"
    if found.st_mode & _WRITE:
        return f"others can write {place} (mode {stat.S_IMODE(found.st_mode):o})"
    return ""
