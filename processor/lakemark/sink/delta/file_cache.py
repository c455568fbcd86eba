"""Files that never change, kept in memory up to a number of bytes: the most recently used ones."""

from collections import OrderedDict
from threading import Lock
from typing import Final

# What Python takes for an entry beside the file itself.
_ENTRY: Final = 512

Name = tuple[str, str]
"""A table's folder, and a file in it."""


class KeptFiles:
    """Files by name. Threads may share it.

    Args:
        most: bytes, with what keeping a file takes.
    """

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._files: OrderedDict[Name, bytes] = OrderedDict()
        self._guard = Lock()

    def get(self, name: Name) -> bytes | None:
        """A file that was `put`; None if it is gone."""
        with self._guard:
            found = self._files.get(name)
            if found is not None:
                self._files.move_to_end(name)
            return found

    def put(self, name: Name, data: bytes) -> None:
        """Keeps a file; one that is larger than all that is kept is not."""
        if len(data) + _ENTRY > self._most:
            return
        with self._guard:
            if name in self._files:
                self._bytes -= len(self._files.pop(name)) + _ENTRY
            self._files[name] = data
            self._bytes += len(data) + _ENTRY
            while self._bytes > self._most:
                _, gone = self._files.popitem(last=False)
                self._bytes -= len(gone) + _ENTRY

    def clear(self) -> None:
        """Drops all of them."""
        with self._guard:
            self._files.clear()
            self._bytes = 0
