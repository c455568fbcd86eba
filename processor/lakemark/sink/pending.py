"""Halves of key changes that wait beside the table for their other half.

One Arrow file per batch that left some: ``<table>/_lakemark/pending/<query>-<batch>.arrow``.
Delta and its VACUUM leave folders with a leading underscore alone. The file is written before the
batch's commit, so a batch that is repeated after its commit finds it, and one that is repeated
before makes the same one again. Once a later batch has been recorded as done, nobody needs it.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
from deltalake._internal import DeltaFileSystemHandler

from lakemark import packets
from lakemark.errors import DependencyError


def _place(query: str, batch: int) -> str:
    return f"_lakemark/pending/{query[:8]}-{batch}.arrow"


def _handler(path: str, options: Mapping[str, str]) -> Any:
    """delta-rs's own file access, so that every store it knows works here too.

    Its pyarrow wrapper cannot write: it hands the Rust side pyarrow buffers, not bytes.
    """
    return DeltaFileSystemHandler(path, dict(options))


def save(
    packet: pa.Table, path: str, *, query: str, batch: int, options: Mapping[str, str]
) -> None:
    """Writes the halves that batch `batch` leaves.

    Raises:
        DependencyError: the lake did not take them.
    """
    name = _place(query, batch)
    try:
        out = _handler(path, options).open_output_stream(name, None)
        out.write(packets.encode(packet))
        out.close()
    except OSError as error:
        raise DependencyError(
            f"the lake did not take {name} of {path}: {error}", code="lake-unavailable"
        ) from error


def remove(path: str, *, query: str, batch: int, options: Mapping[str, str]) -> None:
    """Deletes what batch `batch` left; what cannot be deleted stays, and harms nobody."""
    with suppress(OSError):
        _handler(path, options).delete_file(_place(query, batch))


def load(path: str, *, query: str, batch: int, options: Mapping[str, str]) -> pa.Table | None:
    """What batch `batch` left; None if it left nothing.

    Raises:
        DependencyError: the lake could not be read.
    """
    name = _place(query, batch)
    try:
        return packets.decode(_handler(path, options).open_input_file(name).read())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DependencyError(
            f"{name} of {path} could not be read: {error}", code="lake-unavailable"
        ) from error
