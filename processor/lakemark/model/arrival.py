"""Positions of records that say no place in a log: ``epoch (4) | origin (8) | offset (8)``. Pure.

The place of such a record is the one that it has in its Kafka partition, which all records of a key
share as long as the topic has as many partitions. So positions of one partition compare, and those
of two have nothing to do with each other: nothing that is read beside the log has a place among
them, and the two halves of a key change are a delete and an insert for themselves. What a connector
sends again has a new position: it is a new change.

A topic that is made anew, or gets partitions, begins an epoch: its offsets say nothing any more.

`origin` is 2 for what came with the stream; 0 and 1 mark what all kinds must be able to say, a row
of the connector's own snapshot and an incremental read. Here both come as any change does.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemark.model.positions import LoggedEvent, Numbering

WIDTH: Final = 20
OWN_SNAPSHOT: Final = 0
INCREMENTAL: Final = 1
STREAM: Final = 2
_LAYOUT: Final = struct.Struct(">IQQ")
_PARTS: Final = np.dtype([("epoch", ">u4"), ("origin", ">u8"), ("offset", ">u8")])
_MOST: Final = (1 << 63) - 1


def pack(epoch: int, offset: int, origin: int = STREAM) -> bytes:
    """Return the position of a record.

    Args:
        epoch: with its kind, as `positions.epoch_number` gives it.
        offset: of the record in its partition.
        origin: see the module.

    Raises:
        struct.error: a part is negative or wider than its field.
    """
    return _LAYOUT.pack(epoch, origin, offset)


def unpack(position: bytes) -> tuple[int, int, int]:
    """Return epoch, origin and offset of a position."""
    return _LAYOUT.unpack(position)


class ArrivalPositions:
    """See `positions.PositionRules`. Its source block is made by who reads such records."""

    width: Final = WIDTH
    fields: Final[Mapping[str, type]] = {"offset": int}
    of_transaction: Final[Mapping[str, type]] = {}
    compiled: Final = ("offset",)
    most: Final = (_MOST,)
    missing: Final = "its offset in Kafka is not known"
    of_entries: Final = ()
    identity: Final = ""
    across_partitions: Final = False

    def from_source(
        self, fields: Mapping[str, Sequence[Any]], own: Sequence[bool] | None, epoch: int
    ) -> list[bytes | None]:
        """See `PositionRules`."""
        offsets = fields["offset"]
        read = own or [False] * len(offsets)
        return [
            None
            if offset is None or not 0 <= offset <= _MOST
            else pack(epoch, offset, OWN_SNAPSHOT if is_own else STREAM)
            for offset, is_own in zip(offsets, read, strict=True)
        ]

    def of_numbers(self, numbers: npt.NDArray[np.int64], epoch: int) -> npt.NDArray[np.uint8]:
        """See `PositionRules`: the offset."""
        found = np.empty(len(numbers), _PARTS)
        found["epoch"], found["origin"], found["offset"] = epoch, STREAM, numbers[:, 0]
        return found.view(np.uint8).reshape(-1, WIDTH)

    def numbers_of(self, position: bytes) -> tuple[int, ...]:
        """See `PositionRules`."""
        return unpack(position)[2:]

    def transactions(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `PositionRules`: each record is for itself."""
        return numbers[:, 0]

    def to_source(self, position: bytes, like: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """See `PositionRules`."""
        return {"offset": unpack(position)[2]}

    def one_transaction(self, before: bytes, after: bytes) -> bool:
        """See `PositionRules`: a record has to do with itself alone."""
        return before == after

    def may_be_counted_anew(self, position: bytes, applied: bytes) -> bool:  # noqa: ARG002
        """See `PositionRules`: nobody counts."""
        return False

    def event_of(self, identity: str, position: bytes) -> LoggedEvent | None:  # noqa: ARG002
        """See `PositionRules`: transactions have no names."""
        return None

    def ended(self, transaction: str) -> LoggedEvent | None:  # noqa: ARG002
        """See `PositionRules`: nothing tells of which transaction a record is."""
        return None

    def numbering(self, ended: Sequence[str], newest: Mapping[str, int]) -> Numbering:  # noqa: ARG002
        """See `PositionRules`: never asked, as `ended` reads none."""
        return lambda *_: len(ended)

    def has_ended(
        self,
        position: bytes,  # noqa: ARG002
        seen: Mapping[str, tuple[int, int]],  # noqa: ARG002
        newest: Mapping[str, int],  # noqa: ARG002
    ) -> bool:
        """See `PositionRules`: nobody knows."""
        return False

    def left_at(self, arrived: bytes) -> bytes:
        """See `PositionRules`: never asked, see `across_partitions`."""
        return arrived

    def is_ordered(self, position: bytes) -> bool:  # noqa: ARG002
        """See `PositionRules`: offsets are."""
        return True

    def is_own_snapshot(self, position: bytes) -> bool:
        """See `PositionRules`."""
        return unpack(position)[1] == OWN_SNAPSHOT

    def snapshot_of(self, position: bytes) -> int:
        """See `PositionRules`: the offset, as nothing else is known."""
        return unpack(position)[2]

    def which_first(self, positions: Sequence[bytes]) -> list[int]:  # noqa: ARG002
        """See `PositionRules`: nothing tells a log that was begun anew."""
        return []

    def outside_stream(self, position: bytes) -> bytes:
        """See `PositionRules`."""
        epoch, _, offset = unpack(position)
        return pack(epoch, offset, INCREMENTAL)

    def in_stream(self, position: bytes) -> bytes:
        """See `PositionRules`."""
        epoch, _, offset = unpack(position)
        return pack(epoch, offset)

    def taken_before(self, own_snapshot: bytes, position: bytes) -> bool:
        """See `PositionRules`."""
        return self.in_stream(own_snapshot) < position

    def below_truncate(self, position: bytes, truncate: bytes) -> bool:
        """See `PositionRules`: where the record stands, wherever it is from."""
        return self.in_stream(position) < truncate

    def which_below_truncate(
        self, column: pa.FixedSizeBinaryArray, truncate: bytes
    ) -> npt.NDArray[np.bool_]:
        """Return `below_truncate` of many."""
        start = column.offset * WIDTH
        parts = np.frombuffer(column.buffers()[1], _PARTS, count=len(column), offset=start)
        epoch, _, offset = unpack(truncate)
        earlier: npt.NDArray[np.bool_] = parts["epoch"] < epoch
        earlier |= (parts["epoch"] == epoch) & (parts["offset"] < offset)
        return earlier

    def ranges_below_truncate(self, truncate: bytes) -> list[tuple[bytes | None, bytes, bool]]:
        """See `PositionRules`: own rows, incremental reads, events."""
        epoch, _, offset = unpack(truncate)
        own_end, reads_end = (pack(epoch, (1 << 64) - 1, one) for one in (0, 1))
        return [
            (None, pack(epoch, offset, OWN_SNAPSHOT), False),
            (own_end, pack(epoch, offset, INCREMENTAL), False),
            (reads_end, truncate, False),
        ]


POSITIONS: Final = ArrivalPositions()
