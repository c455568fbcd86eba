"""Files of an object store, by one client for all tables of a bucket, whose connections are kept.

delta-rs connects anew for every file that it is asked for; where an answer takes tens of
milliseconds that is most of what a small batch waits for.
"""

import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock
from typing import Any, Final

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import from_url
from pyarrow.fs import FileInfo, FileType

Stamp = tuple[int, int | str]
"""Size, and time of change (nanoseconds) or ETag: another file of one name has another stamp."""

NO_FILE: Final[Stamp] = (0, 0)

# Storage options that are about the client and not about the store.
_CLIENT: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "timeout",
        "user_agent",
    }
)
_PREFIX: Final = re.compile(r"^(aws|azure|google)_")
# Of these URLs it is certain where the bucket ends, and that their text is the folder's name.
_BUCKET: Final = re.compile(
    r"^((?:s3a?|gs|az|abfss?)://[\w.@-]+)/((?:[\w=~-][\w.=~-]*/)*(?:[\w=~-][\w.=~-]*)?)$", re.ASCII
)
_UNTOLD: Final = re.compile(r"\b400\b")
_RETRIES: Final = "max_retries"
_RETRY_TIMEOUT: Final = "retry_timeout"
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h)[a-z]*\s*")  # `90s`, `1m 30sec`
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_OWN: Final = {"gs": "GOOGLE_", "az": "AZURE_", "abfs": "AZURE_"}  # else AWS_
_TWICE: Final = "Duplicate key"
# What a client has read when it was made, such as a file with a key, may have been changed since.
_CLIENT_S: Final = 3600.0
_MOST_CLIENTS: Final = 512


@dataclass(frozen=True, slots=True)
class Objects:
    """A folder of an object store.

    All methods raise FileNotFoundError where there is no such file, PermissionError where the store
    refuses, and OSError where it does not answer.

    Attributes:
        store: obstore's.
        folder: within it; empty, or with a slash at its end.
    """

    store: Any
    folder: str

    def read(self, name: str) -> bytes:
        """A whole file."""
        with _as_os_errors():
            return bytes(obstore.get(self.store, self.folder + name).bytes())

    def write(self, name: str, data: bytes) -> None:
        """Writes a whole file."""
        with _as_os_errors():
            obstore.put(self.store, self.folder + name, data)

    def create(self, name: str, data: bytes) -> Stamp | None:
        """Writes a whole file, unless there is one: then None."""
        with _as_os_errors():
            try:
                put = obstore.put(
                    self.store, self.folder + name, data, mode="create", use_multipart=False
                )
            except AlreadyExistsError:
                return None
        tag = put["e_tag"]
        return (len(data), tag) if tag else self.stamp(name)

    def stamp(self, name: str) -> Stamp:
        """Return the stamp of a file; `NO_FILE` without one."""
        try:
            with _as_os_errors():
                found = obstore.head(self.store, self.folder + name)
        except FileNotFoundError:
            return NO_FILE
        except OSError as error:
            if _UNTOLD.search(str(error)):
                self.read(name)  # only this answer has a body that says why
            raise
        changed = int(found["last_modified"].timestamp() * 1_000_000) * 1000
        return found["size"], found["e_tag"] or changed

    def listing(self, folder: str) -> list[FileInfo]:
        """The files of a folder, without those of folders in it."""
        with _as_os_errors():
            found = obstore.list_with_delimiter(self.store, self.folder + folder)["objects"]
        return [
            FileInfo(
                one["path"].removeprefix(self.folder),
                FileType.File,
                size=one["size"],
                mtime_ns=int(one["last_modified"].timestamp() * 1_000_000) * 1000,
            )
            for one in found
        ]

    def copy(self, name: str, to: str) -> None:
        """Makes a file the same as another one, within the store."""
        with _as_os_errors():
            obstore.copy(self.store, self.folder + name, self.folder + to)

    def delete_all(self, prefix: str) -> None:
        """Deletes all files of a folder and of folders in it; `prefix` ends with a slash."""
        with _as_os_errors():
            for found in obstore.list(self.store, self.folder + prefix):
                obstore.delete(self.store, [one["path"] for one in found])

    def delete(self, name: str) -> None:
        """Deletes a file, if there is one."""
        with _as_os_errors():
            obstore.delete(self.store, self.folder + name)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotFoundError) as error:
        raise FileNotFoundError(_short(error)) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise PermissionError(_short(error)) from error
    except BaseError as error:
        raise OSError(_short(error)) from error


def _short(error: Exception) -> str:
    return str(error).partition("\n\nDebug source")[0]


def client(path: str, options: Mapping[str, str]) -> Objects:
    """The folder of an object store, by the client that this process has for its bucket.

    Args:
        path: URL of the folder.
        options: storage options of delta-rs; those that the store does not know are left out, as
            delta-rs does.

    Raises:
        BaseError, ValueError: obstore has no such store, or the options are not enough.
    """
    bucket = _BUCKET.match(path)
    root, folder = bucket.groups() if bucket else (path, "")
    made = _made(root, tuple(sorted(options.items())))
    return Objects(made, f"{folder.rstrip('/')}/" if folder.strip("/") else "")


Given = tuple[tuple[str, str], ...]

_clients: OrderedDict[tuple[str, Given], tuple[float, Any]] = OrderedDict()
_guard: Final = Lock()


def _made(root: str, options: Given) -> Any:
    now = time.monotonic()
    with _guard:
        made, known = _clients.get((root, options), (0.0, None))
        if known is None or now - made > _CLIENT_S:
            made, known = now, _new(root, options)
            _clients[root, options] = made, known
        _clients.move_to_end((root, options))
        while len(_clients) > _MOST_CLIENTS:
            _clients.popitem(last=False)
    return known


def _new(root: str, options: Given) -> Any:
    config: Any = {}
    about: Any = {}
    retry: Any = {}
    for given, value in options:
        name = given.lower()
        bare = _PREFIX.sub("", name)
        if bare in _CLIENT:
            about[bare] = value
        elif name == _RETRIES and value.isdecimal():
            retry[name] = int(value)
        elif name == _RETRY_TIMEOUT and value and not _DURATION.sub("", value):
            parts = _DURATION.findall(value)
            retry[name] = timedelta(seconds=sum(int(n) * _SECONDS[unit] for n, unit in parts))
        elif _is_taken(root, {**config, name: value}):
            config[name] = value
    if about:  # obstore forgets those of the environment where it is given any
        prefix = next((own for scheme, own in _OWN.items() if root.startswith(scheme)), "AWS_")
        for name in _CLIENT:
            if found := os.environ.get(prefix + name.upper()):
                about.setdefault(name, found)
    return from_url(root, config=config, client_options=about or None, retry_config=retry or None)


def _is_taken(root: str, config: Any) -> bool:
    """Say whether the store knows the last of these options, and by no other name already."""
    try:
        from_url(root, config=config)
    except UnknownConfigurationKeyError:
        return False
    except BaseError as error:
        return _TWICE not in str(error)  # it is known, and not enough
    return True
