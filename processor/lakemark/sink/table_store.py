"""Files of one table's folder, by delta-rs's own access to whatever store it is in.

Writing a file that may be there is plain; `put_absent` writes one that must not be there yet, which
is what a commit is. On a local disk that is a hard link, in an object store a conditional request.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote
from uuid import uuid4

import obstore
import pyarrow as pa
from deltalake._internal import DeltaFileSystemHandler
from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError
from obstore.store import from_url
from pyarrow import parquet as pq
from pyarrow.fs import FileSelector, FileType

from lakemark.errors import TableError

# Storage options that are about the client and not about the store.
_CLIENT: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "proxy_url",
        "proxy_ca_certificate",
        "timeout",
        "user_agent",
    }
)
_PREFIX: Final = re.compile(r"^(aws|azure|google)_")
# Spark's timestamps: nanoseconds, which they would be otherwise, end in the year 2262.
_INT96: Final = "us"
_LOCKS: Final = "aws_s3_locking_provider"
# With these delta-rs commits without a condition: the user answers for there being one writer.
_UNSAFE: Final = tuple(f"{of}allow_unsafe_rename" for of in ("", "aws_s3_", "mount_"))
_TRUE: Final = frozenset({"1", "true", "on", "yes", "y"})


@dataclass(frozen=True, slots=True)
class TableStore:
    """A table's folder.

    Attributes:
        path: path or URL of the folder.
        options: storage options of delta-rs.
    """

    path: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def local(self) -> Path | None:
        """The folder on this machine's disk; None if it is elsewhere."""
        if self.path.startswith("file://"):
            return Path(unquote(self.path.removeprefix("file://")))
        return None if "://" in self.path else Path(self.path)

    @property
    def is_conditional(self) -> bool:
        """Whether `put_absent` and commits of delta-rs respect each other here.

        Not where delta-rs takes a lock, was told to do without a condition, or knows the store
        alone. It looks into the environment, too.
        """
        given = {name.lower(): value for name, value in {**os.environ, **self.options}.items()}
        unsafe = any(given.get(name, "").lower() in _TRUE for name in _UNSAFE)
        return not (self.path.startswith("hdfs:") or given.get(_LOCKS) or unsafe)

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
        out = self._handler().open_output_stream(name, None)
        out.write(data)
        out.close()

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
            self._handler().delete_file(name)

    def parquet(self, name: str) -> pq.ParquetFile:
        """A Parquet file, open for reading parts of it."""
        if (folder := self.local) is not None:
            return pq.ParquetFile(
                folder / name, memory_map=True, coerce_int96_timestamp_unit=_INT96
            )
        source = pa.PythonFile(self._handler().open_input_file(name), mode="r")
        return pq.ParquetFile(source, pre_buffer=True, coerce_int96_timestamp_unit=_INT96)

    def listing(self, folder: str) -> list[Any]:
        """What is in a folder of the table: `pyarrow.fs.FileInfo` of its files.

        Raises:
            OSError: the store does not answer or refuses.
        """
        selector = FileSelector(folder, allow_not_found=True, recursive=False)
        found: Sequence[Any] = self._handler().get_file_info_selector(
            selector.base_dir,
            selector.allow_not_found,
            selector.recursive,
        )
        return [info for info in found if info.type == FileType.File]

    def stamp(self, name: str) -> tuple[int, int]:
        """Size and time of change of a file: another file of this name has another stamp.

        Raises:
            OSError: the store does not answer or refuses. Without a file both are 0.
        """
        if (folder := self.local) is not None:
            try:
                found = (folder / name).stat()
            except FileNotFoundError:
                return 0, 0
            return found.st_size, found.st_mtime_ns
        (info,) = self._handler().get_file_info([name])
        return int(info.size or 0), int(info.mtime_ns or 0)

    def put_absent(self, name: str, data: bytes) -> bool:
        """Writes a file whole, unless there is one; whether it was written.

        The answer to a request that was carried out may get lost, and its repetition finds the file
        there. So a file of the very same bytes counts as written: no two calls may mean different
        things by the same bytes.

        Raises:
            TableError: `lake-refused`: commits to this store need a lock that we do not take.
            OSError: the store does not answer or refuses.
        """
        if (folder := self.local) is not None:
            return _link(folder / name, data) or self.read(name) == data
        try:
            obstore.put(self.objects(), name, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return self.read(name) == data
        return True

    def objects(self) -> Any:
        """The object store; options that it does not know are left out, as delta-rs does.

        Raises:
            TableError: as `put_absent`.
        """
        given = {name.lower(): value for name, value in self.options.items()}
        if given.get(_LOCKS):
            raise TableError(
                f"commits to {self.path} take a lock ({_LOCKS}), which deletion-vectors does not",
                code="lake-refused",
                hint="use a store with conditional requests, or set this table's engine to "
                "task-merge and its path to a new folder",
            )
        config: Any = {}
        client: Any = {}
        for name, value in given.items():
            bare = _PREFIX.sub("", name)
            if bare in _CLIENT:
                client[bare] = value
            elif self._is_known(name, value):
                config[name] = value
        return from_url(self.path, config=config, client_options=client)

    def _is_known(self, name: str, value: str) -> bool:
        alone: Any = {name: value}
        try:
            from_url(self.path, config=alone)
        except UnknownConfigurationKeyError:
            return False
        except BaseError:
            return True  # it is known, and not enough
        return True


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


def _link(place: Path, data: bytes) -> bool:
    part = place.with_name(f".{place.name}.{uuid4().hex}.part")
    try:
        part.write_bytes(data)
        os.link(part, place)
    except FileExistsError:
        return False
    finally:
        part.unlink(missing_ok=True)
    return True
