"""Schemas on this machine's disk: a restart needs no registry.

A registry never changes a schema under its number, so a copy is right for as long as the registry
is the same. Order of effects of `keep`: the text is written beside its place, then put there in one
step. Several processes may keep and read the same at once.
"""

import hashlib
import os
import re
import stat
import threading
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import structlog

from lakemark.converters.avro import schema_references
from lakemark.converters.avro.schema_source import SchemaReference
from lakemark.settings import own_files

_SUFFIX: Final = ".avsc"
_NAME: Final = re.compile(rf"(id|global|content)-(\d+){re.escape(_SUFFIX)}")
_DIGITS: Final = 16  # of a digest: enough to tell the registries of one machine apart
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
log = structlog.get_logger("lakemark.registry")


class SchemaCopies:
    """The schemas of one registry that are kept in a folder.

    A folder that cannot be had, or that others may write, is as if it were empty.

    Args:
        folder: of all registries.
        registry: tells this one from others, its address.
    """

    def __init__(self, folder: Path, registry: str) -> None:
        digest = hashlib.sha256(registry.encode()).hexdigest()[:_DIGITS]
        host = re.sub(r"[^\w.-]", "_", urlsplit(registry).netloc)
        self._root, self.folder = folder, folder / f"{host}-{digest}"

    def read(self, reference: SchemaReference) -> str | None:
        """Return a schema; None if there is no copy, or one that is damaged."""
        if not self._is_ours:
            return None
        try:
            text = self._place(reference).read_text(encoding="utf-8")
            schema_references.parsed(text)
        except (OSError, ValueError):
            return None
        return text

    def keep(self, reference: SchemaReference, text: str) -> None:
        """Keep a schema; a disk that is full or cannot be written is said in the log."""
        if not self._is_ours:
            return
        place = self._place(reference)
        fresh = place.with_name(f".{place.name}-{os.getpid()}-{threading.get_ident()}")
        try:
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(place)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            log.warning("registry.not_kept", folder=str(self.folder), reason=error.strerror)

    def kept(self) -> Iterator[SchemaReference]:
        """Yield what there are copies of, the newest first."""
        try:
            files = [(file.stat().st_mtime_ns, file.name) for file in self.folder.iterdir()]
        except OSError:
            return
        for _, name in sorted(files, reverse=True):
            if found := _NAME.fullmatch(name):
                yield SchemaReference(found[1], int(found[2]))

    @cached_property
    def _is_ours(self) -> bool:
        try:
            whys = [why for folder in (self._root, self.folder) if (why := _made(folder))]
        except OSError as error:
            whys = [error.strerror or str(error)]
        if whys:
            log.warning("registry.not_kept", folder=str(self.folder), reason=whys[0])
        return not whys

    def _place(self, reference: SchemaReference) -> Path:
        return self.folder / f"{reference.kind}-{reference.number}{_SUFFIX}"


def _made(folder: Path) -> str:
    """Make a folder that is this user's alone; return why one that is there cannot be believed.

    What is in it is not looked at, see `own_files.distrust`: others may be writing it just now.
    """
    folder.mkdir(mode=own_files.PRIVATE, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or not own_files.is_ours(found):
        return f"{folder} is not a folder of this user's"
    return f"others can write {folder}" if found.st_mode & _OTHERS_WRITE else ""
