"""Key indexes of data files, kept on this machine's disk and mapped into memory.

An index belongs to one file, which never changes, and to one way of making numbers of keys, so
nothing here is ever out of date. Everything may be deleted at any time: what is missing is built
again from the file's key columns. A damaged file is noticed by its checksum and counts as missing.
"""

import hashlib
import mmap
import os
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from lakemark.settings.cache import cache_dir
from lakemark.settings.own_files import is_ours
from lakemark.sink.delta import key_index
from lakemark.sink.delta.key_index import KeyIndex

FOLDER: Final = "keys"
# On disk, of all tables of this machine: about 300 million rows with one integer as key.
MOST_BYTES: Final = 4 << 30
# Whoever counts them takes a fifth of a second for so many.
MOST_FILES: Final = 50_000
# What is left after too many: the next count that finds too many is far.
_LEFT: Final = 0.75
# In memory, of one process: mapped pages that the kernel may drop, and what no disk would take.
_MOST_MAPPED: Final = 1 << 30
_MOST_ENTRIES: Final = 4096
# Writes between two looks at the size of the folder.
_LOOK_EVERY: Final = 256
_PRIVATE: Final = 0o700

_entries: OrderedDict[str, KeyIndex] = OrderedDict()
_bytes: Final = [0]  # of the entries: counted as they come and go, there are thousands
_guard: Final = Lock()
_writes: Final = [0]


def name_of(table_id: str, file: str, size: int, key: str) -> str:
    """Return the name of a file's index by these key columns.

    Args:
        table_id: of the table's metadata.
        file: path of the data file in the table.
        size: its bytes.
        key: names and types of the key columns.
    """
    said = "\n".join([key_index.fingerprint(), table_id, file, str(size), key])
    return hashlib.sha256(said.encode()).hexdigest()[:40]


def get(name: str) -> KeyIndex | None:
    """An index that was `put`; None if it is gone."""
    with _guard:
        known = _entries.get(name)
        if known is not None:
            _entries.move_to_end(name)
            return known
    found = _mapped(_folder() / name)
    if found is not None:
        _remember(name, found)
    return found


def put(name: str, index: KeyIndex) -> None:
    """Keeps an index; where the disk does not take it, in this process alone."""
    place = _folder() / name
    part = place.with_name(f"{name}.{os.getpid()}.part")
    found = None
    with suppress(OSError):
        place.parent.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        part.write_bytes(key_index.dump(index))
        part.replace(place)
        found = _mapped(place)
        _writes[0] += 1
        if _writes[0] % _LOOK_EVERY == 1:
            prune(place.parent, MOST_BYTES, MOST_FILES)
    _remember(name, found or index)


def drop(name: str) -> None:
    """Deletes an index that is not wanted any more, as its data file has left the table."""
    with _guard:
        _let_go(name)
    with suppress(OSError):
        (_folder() / name).unlink(missing_ok=True)


def prune(folder: Path, most: int, most_files: int) -> None:
    """Deletes the indexes that were used longest ago, if there is more than is to be kept.

    Args:
        folder: where they are.
        most: bytes.
        most_files: of them.
    """
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                stat = entry.stat()
                found.append((stat.st_mtime_ns, stat.st_size, entry.path))
    left = sum(size for _, size, _ in found)
    if left <= most and len(found) <= most_files:
        return
    count = len(found)
    for _, size, place in sorted(found):
        if left <= _LEFT * most and count <= _LEFT * most_files:
            break
        Path(place).unlink(missing_ok=True)
        left -= size
        count -= 1


def forget() -> None:
    """Drops what this process has in memory."""
    with _guard:
        _entries.clear()
        _bytes[0] = 0


def _folder() -> Path:
    return cache_dir() / FOLDER


def _mapped(place: Path) -> KeyIndex | None:
    try:
        with place.open("rb") as file:
            if not is_ours(os.fstat(file.fileno())):
                return None  # somebody else's numbers would hide other rows
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        os.utime(place)
    except (OSError, ValueError):
        return None
    return key_index.load(data)


def _remember(name: str, index: KeyIndex) -> None:
    with _guard:
        _let_go(name)
        _entries[name] = index
        _bytes[0] += index.bytes
        while _entries and (_bytes[0] > _MOST_MAPPED or len(_entries) > _MOST_ENTRIES):
            _let_go(next(iter(_entries)))


def _let_go(name: str) -> None:
    """Drops an entry from memory, if there is one; the lock is the caller's."""
    gone = _entries.pop(name, None)
    if gone is not None:
        _bytes[0] -= gone.bytes
