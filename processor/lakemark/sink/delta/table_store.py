"""Files of one table's folder, in whatever store it is.

A local disk is used directly, an object store by a client of its own (`object_client`), every other
store, and what needs more than whole files, by delta-rs's access.

Writing a file that may be there is plain; `put_absent` writes one that must not be there yet, which
is what a commit is. On a local disk that is a hard link, in an object store a conditional request.

A local disk forgets what it was not told to keep when the machine loses its power. So a commit is
put in place when its bytes and the files that it names are on the disk, and `settle` waits for the
commits themselves: before the pipeline's state counts on them. Files are synced together, since a
disk that is asked for many at once writes its journal once: 4 ms a table instead of 39.
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
from deltalake._internal import DeltaFileSystemHandler
from obstore.exceptions import BaseError
from pyarrow import parquet as pq
from pyarrow.fs import FileSelector, FileType

from lakemark.errors import TableError
from lakemark.sink.delta import object_client
from lakemark.sink.delta.file_cache import KeptFiles
from lakemark.sink.delta.object_client import NO_FILE, Objects, Stamp

# Spark's timestamps: nanoseconds, which they would be otherwise, end in the year 2262.
_INT96: Final = "us"
_LOCKS: Final = "aws_s3_locking_provider"
# With these delta-rs commits without a condition: the user answers for there being one writer.
_UNSAFE: Final = tuple(f"{of}allow_unsafe_rename" for of in ("", "aws_s3_", "mount_"))
_TRUE: Final = frozenset({"1", "true", "on", "yes", "y"})
# Files up to this size are read by one request, and not in parts.
_WHOLE_BYTES: Final = 1 << 20

_SYNCS: Final = 16  # at once

_kept: Final = KeptFiles(64 << 20)
_unsettled: Final[set[Path]] = set()


@dataclass(frozen=True, slots=True)
class TableStore:
    """A table's folder.

    Attributes:
        path: path or URL of the folder.
        options: storage options of delta-rs.
        native: whether delta-rs reads and writes, which finds credentials in places where the
            client of object stores does not look. `put_absent` is that client's in any case.
    """

    path: str
    options: Mapping[str, str] = field(default_factory=dict)
    native: bool = False

    @property
    def local(self) -> Path | None:
        """The folder on this machine's disk; None if it is elsewhere."""
        if self.path.startswith("file://"):
            return Path(unquote(self.path.removeprefix("file://")))
        return None if "://" in self.path else Path(self.path)

    @property
    def is_conditional(self) -> bool:
        """Say whether `put_absent` and commits of delta-rs respect each other here.

        Not where delta-rs takes a lock, was told to do without a condition, or knows the store
        alone. It looks into the environment, too.
        """
        given = {name.lower(): value for name, value in {**os.environ, **self.options}.items()}
        unsafe = any(given.get(name, "").lower() in _TRUE for name in _UNSAFE)
        return not (self.path.startswith("hdfs:") or given.get(_LOCKS) or unsafe)

    @property
    def is_object_store(self) -> bool:
        """Say whether every file is a request to somewhere else."""
        return self.local is None and not self.path.startswith("hdfs:")

    def _objects(self) -> Objects | None:
        """The object store by a client that stays; None where delta-rs is to be asked."""
        if self.native or not self.is_object_store:
            return None
        try:
            return object_client.client(self.path, self.options)
        except (BaseError, ValueError):
            return None

    def _handler(self) -> Any:
        return DeltaFileSystemHandler(self.path, dict(self.options))

    def read(self, name: str) -> bytes:
        """A whole file.

        Raises:
            FileNotFoundError: there is none.
            OSError: the store does not answer or refuses.
        """
        if (folder := self.local) is not None:
            return (folder / name).read_bytes()
        if (objects := self._objects()) is not None:
            return objects.read(name)
        found: bytes = self._handler().open_input_file(name).read()
        return found

    def write(self, name: str, data: bytes) -> None:
        """Writes a whole file: nobody sees half of it.

        Raises:
            OSError: the store does not answer or refuses.
        """
        if (folder := self.local) is not None:
            _replace(folder, name, data)
            return
        if (objects := self._objects()) is not None:
            objects.write(name, data)
            return
        out = self._handler().open_output_stream(name, None)
        out.write(data)
        out.close()

    def read_kept(self, name: str) -> bytes:
        """Read a file that never changes: kept in memory where reading is a request."""
        if not self.is_object_store:
            return self.read(name)
        found = _kept.get((self.path, name))
        if found is None:
            found = self.read(name)
            _kept.put((self.path, name), found)
        return found

    def write_kept(self, name: str, data: bytes) -> None:
        """Write a file that never changes and is read again soon."""
        self.write(name, data)
        if self.is_object_store:
            _kept.put((self.path, name), data)

    def make(self) -> None:
        """Makes the folder; elsewhere than on a local disk there is nothing to make.

        Raises:
            OSError: the disk refuses.
        """
        if (folder := self.local) is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def delete(self, name: str) -> None:
        """Deletes a file; one that cannot be deleted stays."""
        with suppress(OSError):
            if (objects := self._objects()) is not None:
                objects.delete(name)
            else:
                self._handler().delete_file(name)

    def copy(self, name: str, to: str) -> None:
        """Gives a file of the folder a second name in it; one that has it already stays.

        Raises:
            OSError: there is no such file; the store does not answer or refuses.
        """
        if (folder := self.local) is not None:
            (folder / to).parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.link(folder / name, folder / to)
            return
        if (objects := self._objects()) is not None:
            if objects.stamp(to)[0] != objects.stamp(name)[0]:
                objects.copy(name, to)
            return
        with self._handler().open_input_file(name) as file:
            out = self._handler().open_output_stream(to, None)
            while part := file.read(_WHOLE_BYTES):
                out.write(part)
            out.close()

    def delete_folder(self, folder: str) -> None:
        """Deletes a folder with all that is in it, if there is one.

        Raises:
            OSError: the store does not answer or refuses.
        """
        if (root := self.local) is not None:
            with suppress(FileNotFoundError):
                shutil.rmtree(root / folder)
            return
        if (objects := self._objects()) is not None:
            objects.delete_all(f"{folder}/")
            return
        selector = FileSelector(folder, allow_not_found=True, recursive=True)
        for info in self._handler().get_file_info_selector(
            selector.base_dir, selector.allow_not_found, selector.recursive
        ):
            if info.type == FileType.File:
                self._handler().delete_file(info.path)

    def parquet(self, name: str, size: int = 0) -> pq.ParquetFile:
        """A Parquet file, open for reading parts of it; its `size` in bytes, if that is known."""
        if (folder := self.local) is not None:
            return pq.ParquetFile(
                folder / name, memory_map=True, coerce_int96_timestamp_unit=_INT96
            )
        objects = self._objects() if 0 < size <= _WHOLE_BYTES else None
        if objects is not None:
            source = pa.BufferReader(objects.read(name))
        else:
            source = pa.PythonFile(self._handler().open_input_file(name), mode="r")
        return pq.ParquetFile(source, pre_buffer=True, coerce_int96_timestamp_unit=_INT96)

    def listing(self, folder: str) -> list[Any]:
        """Return `pyarrow.fs.FileInfo` of the files in a folder of the table.

        Raises:
            OSError: the store does not answer or refuses.
        """
        if (objects := self._objects()) is not None:
            return list(objects.listing(folder))
        selector = FileSelector(folder, allow_not_found=True, recursive=False)
        found: Sequence[Any] = self._handler().get_file_info_selector(
            selector.base_dir,
            selector.allow_not_found,
            selector.recursive,
        )
        return [info for info in found if info.type == FileType.File]

    def stamp(self, name: str) -> Stamp:
        """Tells a file from every other one of this name; `NO_FILE` without one.

        Raises:
            OSError: the store does not answer or refuses.
        """
        if (folder := self.local) is not None:
            try:
                found = (folder / name).stat()
            except FileNotFoundError:
                return NO_FILE
            return found.st_size, found.st_mtime_ns
        if (objects := self._objects()) is not None:
            return objects.stamp(name)
        (info,) = self._handler().get_file_info([name])
        return int(info.size or 0), int(info.mtime_ns or 0)

    def keep(self, names: Iterable[str]) -> None:
        """Make files durable that are there, and the folders on the way to them, where a disk is
        local.

        Raises:
            OSError: the disk refuses.
        """
        if (folder := self.local) is not None:
            _sync([*_with_folders(folder, names), folder.parent, folder.parent.parent])

    def put_absent(self, name: str, data: bytes, *, names: Iterable[str] = ()) -> Stamp | None:
        """Writes a file whole, unless there is one; its stamp, None if it was not written.

        The files of these `names` are durable before, and the file itself after `settle`.

        The answer to a request that was carried out may get lost, and its repetition finds the file
        there. So a file of the very same bytes counts as written: no two calls may mean different
        things by the same bytes.

        Raises:
            TableError: `lake-refused`: commits to this store need a lock that we do not take.
            OSError: the store does not answer or refuses.
        """
        if (folder := self.local) is not None:
            put = _link(folder / name, data, _with_folders(folder, names))
            return self.stamp(name) if put else self._same(name, data)
        written = self._conditional().create(name, data)
        if written is None:
            return self._same(name, data)
        return self.stamp(name) if self.native else written  # as it will be asked for again

    def _same(self, name: str, data: bytes) -> Stamp | None:
        return self.stamp(name) if self.read(name) == data else None

    def _conditional(self) -> Objects:
        """The object store, for requests with a condition.

        Raises:
            TableError: as `put_absent`.
        """
        if any(name.lower() == _LOCKS and value for name, value in self.options.items()):
            raise TableError(
                f"commits to {self.path} take a lock ({_LOCKS}), which deletion-vectors does not",
                code="lake-refused",
                hint="use a store with conditional requests, or set this table's engine to "
                "task-merge and its path to a new folder",
            )
        return object_client.client(self.path, self.options)


def _with_folders(root: Path, names: Iterable[str]) -> list[Path]:
    """Return files, and all folders that lead to them from the root on."""
    files = [root / name for name in names]
    ways = (file.parents[: len(file.parts) - len(root.parts)] for file in files)
    return [*files, *(folder for way in ways for folder in way)]


def settle() -> None:
    """Make the commits durable that this process has put in place.

    Raises:
        OSError: the disk refuses.
    """
    _sync(folder for folder in _unsettled if folder.is_dir())
    _unsettled.clear()


def _sync(paths: Iterable[Path]) -> None:
    if every := dict.fromkeys(paths):
        list(_pool(os.getpid()).map(_fsync, every))


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a fork has none of these threads
    return ThreadPoolExecutor(_SYNCS, "lakemark-sync")


def _fsync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def forget() -> None:
    """Drops the files that are kept in memory."""
    _kept.clear()


def _replace(folder: Path, name: str, data: bytes) -> None:
    # What a killed process leaves of it is where a vacuum finds it.
    part, place = folder / f"{uuid4().hex}.part", folder / name
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(place)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _link(place: Path, data: bytes, before: Sequence[Path]) -> bool:
    part = place.with_name(f".{place.name}.{uuid4().hex}.part")
    try:
        part.write_bytes(data)
        _sync([part, *before])
        os.link(part, place)
        _unsettled.add(place.parent)
    except FileExistsError:
        return False
    finally:
        part.unlink(missing_ok=True)
    return True
