"""The memory of one shard between batches, as one blob: magic, version, msgpack.

Of several connectors each has a memory of its own, since positions are of one log: such a blob has
theirs, whole, by connector.

Blobs of any other version are refused. Versions 1 and 2 lack parts that decisions need now, and
shards were grouped by other numbers while they were written, which no blob says.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from lakemark.errors import StateVersionError
from lakemark.model import positions
from lakemark.model.control import ORDER_MODE, REPORT, TABLE_MODE
from lakemark.reconcile.chunks import Attempt, Closed

VERSION: Final = 3
_MAGIC: Final = b"LKMW"
_SEVERAL: Final = b"LKMS"
# Who wrote a blob of another version, and what to do.
_NEWER: Final = ("a newer one", "a newer one")
_OLDER: Final = ("an older one", "start a new checkpoint and snapshot the tables again")


_Content = TypeVar("_Content")


class Window(msgspec.Struct):
    """One window.

    Attributes:
        open, close: positions of its rows; empty while not seen.
        server: life of the server that wrote the close row.
    """

    open: bytes = b""
    close: bytes = b""
    server: str = ""


class ArmedRun(msgspec.Struct):
    """An armed run.

    Attributes:
        tables: that it reads.
        mode: TABLE_MODE, or ORDER_MODE if its chunks wait for a fence.
        windows: what its window rows name as their run.
        verify, values: see `control.RunStart`; empty = its rows are merged.
    """

    tables: list[str]
    mode: str = TABLE_MODE
    windows: str = ""
    verify: str = ""
    values: bool = False

    @property
    def is_ordered(self) -> bool:
        """Say whether its rows go out, and no older ones of other runs may follow them."""
        return self.mode == ORDER_MODE and self.verify != REPORT

    @property
    def waits(self) -> bool:
        """Say whether its chunks wait for a fence: all events up to their `hi` are applied then."""
        return self.mode == ORDER_MODE or bool(self.verify)


class ShardState(msgspec.Struct):
    """The memory of one shard.

    Attributes:
        runs: armed runs.
        forgotten_below: a chunk with a lower `lo` cannot be decided any more.
        highest: highest position of anything remembered since the first run was armed.
        segments: touches as Arrow IPC, see `key_log`.
        rows: number of touches per segment.
        truncated_at, blind, own: newest truncate, unreadable key, own snapshot per table.
        windows: by uuid.
        attempts: attempts that are not decided yet.
        closed: attempts that are over.
        fence: every event up to this position has been applied.
        decided: highest `lo` of decided chunks by table and run, of tables in order mode.
    """

    runs: dict[str, ArmedRun] = {}
    forgotten_below: bytes = positions.LOWEST
    highest: bytes = positions.LOWEST
    segments: list[bytes] = []
    rows: list[int] = []
    truncated_at: dict[str, bytes] = msgspec.field(default_factory=dict, name="floors")
    blind: dict[str, bytes] = {}
    own: dict[str, bytes] = {}
    windows: dict[str, Window] = {}
    attempts: dict[int, Attempt] = {}
    closed: Closed = msgspec.field(default_factory=Closed)
    fence: bytes = positions.LOWEST
    decided: dict[str, dict[str, bytes]] = {}

    def tables(self) -> set[str]:
        """Tables that an armed run reads."""
        return {table for run in self.runs.values() for table in run.tables}


def encode_state(state: ShardState) -> bytes:
    """The blob of a state: magic, version, msgpack."""
    return _MAGIC + VERSION.to_bytes(2) + msgspec.msgpack.encode(state)


def decode_state(blob: bytes | None) -> ShardState:
    """Invert `encode_state`; None is the empty state.

    Raises:
        StateVersionError: the blob is of another version, damaged, or no state at all.
    """
    if blob is None:
        return ShardState()
    _require_version(blob, _MAGIC)
    return _decoded(blob[6:], ShardState)


def parted(blob: bytes | None) -> dict[str, bytes]:
    """Return the blobs of the connectors in a shard's, by qualifier; empty for the only one's.

    Raises:
        StateVersionError: as `decode_state`.
    """
    if blob is None or not blob.startswith(_SEVERAL):
        return {} if blob is None else {"": blob}
    _require_version(blob, _SEVERAL)
    return _decoded(blob[6:], dict[str, bytes])


def joined(blobs: Mapping[str, bytes]) -> bytes:
    """Invert `parted`."""
    if blobs.keys() == {""}:
        return blobs[""]
    return _SEVERAL + VERSION.to_bytes(2) + msgspec.msgpack.encode(dict(sorted(blobs.items())))


def _require_version(blob: bytes, magic: bytes) -> None:
    version = int.from_bytes(blob[4:6])
    if blob[:4] != magic or not version:
        raise StateVersionError(
            "the checkpoint's reconcile state was not written by lakemark",
            hint="point `checkpoint` at a folder of its own",
        )
    if version != VERSION:
        other = _NEWER if version > VERSION else _OLDER
        raise StateVersionError(
            f"the checkpoint's reconcile state has version {version}, this lakemark reads version"
            f" {VERSION}: it was written by {other[0]}",
            hint=f"run the version of lakemark that wrote the checkpoint, or {other[1]}",
        )


def _decoded(content: bytes, kind: type[_Content]) -> _Content:
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StateVersionError(
            "the checkpoint's reconcile state is damaged",
            hint="restore the checkpoint from a copy, or start a new one and run a snapshot",
        ) from error
