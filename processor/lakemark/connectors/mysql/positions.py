"""Positions of MySQL and MariaDB: ``epoch (4) | file (4) | pos (8) | order (4)``, big endian. Pure.

`file` is the number at the end of the log file's name (as texts ``binlog.999999`` and
``binlog.1000000`` would stand the wrong way round), `pos` the place in it. Transactions never
interleave in the log, so places are in commit order.

Within a transaction file and place are no order: MariaDB from 11.4 on, and MySQL in a compressed
transaction, give every event the place of the first one, and ``source.row`` begins again with every
statement. `order` is ``transaction.total_order``, which the connector writes with
``provide.transaction.metadata=true``; without it such events are equal, and count in the order of
their partition, which all events of a key share. A connector that was started again in the midst of
a transaction counts what is left of it from 1: see `may_be_counted_anew`.

Two numbers of files are none and mark what was read outside the stream's order: 0 the connector's
own snapshot, 1 Debezium's incremental reads. Both have file and place in the eight bytes of `pos`.
`order` begins with 1: with 0 a position stands before all events of its place, as a chunk does.
"""

import re
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
FIRST_FILE: Final = 2
"""What is added to a file's number."""
_LAYOUT: Final = struct.Struct(">IIQI")
_PARTS: Final = np.dtype([("epoch", ">u4"), ("file", ">u4"), ("pos", ">u8"), ("order", ">u4")])
_FILE: Final = re.compile(r".*\.([0-9]{1,10})", re.DOTALL)
_MOST_FILE: Final = (1 << 23) - 1  # 23 and 40 bits: file and place in a signed word
_POS_BITS: Final = 40
_MOST_POS: Final = (1 << _POS_BITS) - 1
_MOST_ORDER: Final = (1 << 32) - 2
_DIGITS: Final = 20
_UNTOLD: Final = 1  # order of an event where nobody tells it; the first one of a transaction has 2


def pack(epoch: int, file: int, pos: int, order: int = 0) -> bytes:
    """Return the position of a place in the log as 20 bytes whose byte order is the log's.

    Args:
        epoch: with its kind, as `positions.epoch_number` gives it.
        file: number of the log file.
        pos: place in it.
        order: of the event in its transaction, from 1; 0 = before all events of this place.

    Raises:
        struct.error: a part is negative or wider than its field.
    """
    return _LAYOUT.pack(epoch, file + FIRST_FILE, pos, order)


def unpack(position: bytes) -> tuple[int, int, int, int]:
    """Return epoch, file, place and order of a position of the stream."""
    epoch, file, pos, order = _LAYOUT.unpack(position)
    return epoch, file - FIRST_FILE, pos, order


def number_of(file: str | None) -> int | None:
    """Return the number of a log file by its name; None if it has none, or too large a one."""
    found = _FILE.fullmatch(file) if file else None
    number = int(found[1]) if found else -1
    return number if 0 <= number <= _MOST_FILE else None


def place_of(position: bytes) -> tuple[int, int]:
    """Return the number of the file and the place that a position has, also what was read has."""
    _, file, pos, _ = _LAYOUT.unpack(position)
    return (file - FIRST_FILE, pos) if file >= FIRST_FILE else (pos >> _POS_BITS, pos & _MOST_POS)


def begun_place(number: int) -> tuple[int, int] | None:
    """Return file and place of `MySqlPositions.snapshot_of`; None for 0."""
    return (number >> _POS_BITS, number & _MOST_POS) if number else None


class MySqlPositions:
    """See `positions.PositionRules`. No key has two rows within a transaction, as none can."""

    width: Final = WIDTH
    fields: Final[Mapping[str, type]] = {"file": str, "pos": int}
    of_transaction: Final[Mapping[str, type]] = {"total_order": int}
    compiled: Final = ("file", "pos", "total_order")
    most: Final = (_MOST_FILE, _MOST_POS, _MOST_ORDER + 1)
    missing: Final = "no usable source.file and source.pos (source rewritten)"
    of_entries: Final = ("gtid", "thread", "query")
    identity: Final = "gtid"
    across_partitions: Final = True

    def from_source(
        self, fields: Mapping[str, Sequence[Any]], own: Sequence[bool] | None, epoch: int
    ) -> list[bytes | None]:
        """See `PositionRules`."""
        files, places, orders = fields["file"], fields["pos"], fields["total_order"]
        numbers = {file: number_of(file) for file in set(files)}
        found: list[bytes | None] = []
        read = own or [False] * len(files)
        for file, pos, order, is_own in zip(files, places, orders, read, strict=True):
            number = numbers[file]
            if number is None or pos is None or not 0 <= pos <= _MOST_POS:
                found.append(None)
            elif is_own:
                found.append(_read(epoch, OWN_SNAPSHOT, number, pos))
            else:
                found.append(pack(epoch, number, pos, _order(order)))
        return found

    def of_numbers(self, numbers: npt.NDArray[np.int64], epoch: int) -> npt.NDArray[np.uint8]:
        """See `PositionRules`: the file's number, the place, the order in the transaction."""
        found = np.empty(len(numbers), _PARTS)
        found["epoch"] = epoch
        found["file"] = numbers[:, 0] + FIRST_FILE
        found["pos"] = numbers[:, 1]
        found["order"] = numbers[:, 2]
        return found.view(np.uint8).reshape(-1, WIDTH)

    def numbers_of(self, position: bytes) -> tuple[int, ...]:
        """See `PositionRules`."""
        return unpack(position)[1:]

    def transactions(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `PositionRules`: each event one of its own, see `one_transaction`."""
        _, which = np.unique(numbers, axis=0, return_inverse=True)
        return which.reshape(-1).astype(np.int64)

    def to_source(self, position: bytes, like: Mapping[str, Any]) -> dict[str, Any]:
        """See `PositionRules`: `file`, called as in the other block, and `pos`."""
        _, file, pos, _ = unpack(position)
        base, _, digits = str(like.get("file") or "binlog.000001").rpartition(".")
        return {"file": f"{base}.{file:0{len(digits)}d}", "pos": pos, "row": 0}

    def one_transaction(self, before: bytes, after: bytes) -> bool:
        """See `PositionRules`.

        It is asked where a key may have two rows for a while, under a constraint that is checked at
        the commit. There are none such here: an event has to do with itself alone.
        """
        return before == after

    def may_be_counted_anew(self, position: bytes, applied: bytes) -> bool:
        """See `PositionRules`: an event of the same place, where its order is told.

        A connector that is started again goes over what it has sent of the transaction in which it
        had ended, and does not count it.
        """
        *place, order = unpack(position)
        *newest, _ = unpack(applied)
        return place == newest and order > _UNTOLD and self.is_ordered(applied)

    def event_of(self, identity: str, position: bytes) -> LoggedEvent | None:
        """See `PositionRules`: MySQL numbers by server and tag, MariaDB by domain."""
        named = self.ended(identity)
        order = int.from_bytes(position[16:])
        return named and named._replace(order=0 if order == _UNTOLD else order)

    def ended(self, transaction: str) -> LoggedEvent | None:
        """See `PositionRules`: its GTID; without GTIDs nothing tells."""
        origin, colon, number = transaction.rpartition(":")
        if not colon:
            origin, _, rest = transaction.partition("-")
            number = rest.rpartition("-")[2]
        if not origin or not (number.isascii() and number.isdecimal() and len(number) < _DIGITS):
            return None
        return LoggedEvent(origin, int(number), 0)

    def numbering(self, ended: Sequence[str], newest: Mapping[str, int]) -> Numbering:
        """See `PositionRules`: by GTID."""
        numbers = {gtid: number for number, gtid in enumerate(ended)}

        def number(gtid: str | None, _: bytes) -> int:
            named = self.ended(gtid or "")
            if named is not None and named.number <= newest.get(named.origin, -1):
                return -1
            return numbers.get(gtid or "", len(ended))

        return number

    def has_ended(
        self,
        position: bytes,  # noqa: ARG002
        seen: Mapping[str, tuple[int, int]],
        newest: Mapping[str, int],
    ) -> bool:
        """See `PositionRules`: of each origin."""
        return all(number <= newest.get(origin, -1) for origin, (number, _) in seen.items())

    def left_at(self, arrived: bytes) -> bytes:
        """See `PositionRules`: of the same place, and one before it where their order is told."""
        order = int.from_bytes(arrived[16:])
        return arrived if order <= _UNTOLD else arrived[:16] + (order - 1).to_bytes(4)

    def is_ordered(self, position: bytes) -> bool:
        """See `PositionRules`: not where the connector sends no metadata of transactions."""
        return int.from_bytes(position[16:]) != _UNTOLD

    def is_own_snapshot(self, position: bytes) -> bool:
        """See `PositionRules`."""
        return position[4:8] == bytes(4)

    def snapshot_of(self, position: bytes) -> int:
        """See `PositionRules`: file and place at which it was taken."""
        return int.from_bytes(position[8:16])

    def which_first(self, positions: Sequence[bytes]) -> list[int]:  # noqa: ARG002
        """See `PositionRules`: nothing tells a log's first transaction from others."""
        return []

    def outside_stream(self, position: bytes) -> bytes:
        """See `PositionRules`.

        Debezium's incremental reads carry the place of the stream when they are sent, at their
        window's close, which is newer than what they saw.
        """
        epoch, file, pos, _ = unpack(position)
        return _read(epoch, INCREMENTAL, file, pos)

    def in_stream(self, position: bytes) -> bytes:
        """See `PositionRules`."""
        kind = int.from_bytes(position[4:8])
        if kind >= FIRST_FILE:
            return position
        epoch, place = int.from_bytes(position[:4]), int.from_bytes(position[8:16])
        order = 0 if kind == OWN_SNAPSHOT else _MOST_ORDER + 1
        return pack(epoch, place >> _POS_BITS, place & _MOST_POS, order)

    def taken_before(self, own_snapshot: bytes, position: bytes) -> bool:
        """See `PositionRules`: the log ended there, so an event that begins there came after it."""
        epoch, file, pos, _ = unpack(position)
        return own_snapshot[:16] <= _read(epoch, OWN_SNAPSHOT, file, pos)[:16]

    def below_truncate(self, position: bytes, truncate: bytes) -> bool:
        """See `PositionRules`: what was read is compared by the place that it has."""
        epoch, file, pos, _ = unpack(truncate)
        kind = int.from_bytes(position[4:8])
        if position[:4] == truncate[:4] and kind < FIRST_FILE:
            end = _read(epoch, kind, file, pos)
            return position <= end if kind == OWN_SNAPSHOT else position < end
        return position < truncate

    def which_below_truncate(
        self, column: pa.FixedSizeBinaryArray, truncate: bytes
    ) -> npt.NDArray[np.bool_]:
        """Return `below_truncate` of many."""
        start = column.offset * WIDTH
        parts = np.frombuffer(column.buffers()[1], _PARTS, count=len(column), offset=start)
        cut = np.frombuffer(truncate, _PARTS, count=1)[0]
        below: npt.NDArray[np.bool_] = parts["epoch"] < cut["epoch"]
        same = parts["epoch"] == cut["epoch"]
        for name in ("file", "pos", "order"):
            below |= same & (parts[name] < cut[name])
            same &= parts[name] == cut[name]
        ours = parts["epoch"] == cut["epoch"]
        end = int.from_bytes(_read(0, 0, int(cut["file"]) - FIRST_FILE, int(cut["pos"]))[8:16])
        own = ours & (parts["file"] == OWN_SNAPSHOT)
        reads = ours & (parts["file"] == INCREMENTAL)
        below = np.where(own, parts["pos"] <= end, below)
        return np.where(reads, parts["pos"] < end, below)

    def ranges_below_truncate(self, truncate: bytes) -> list[tuple[bytes | None, bytes, bool]]:
        """See `PositionRules`: own rows, incremental reads, events."""
        epoch, file, pos, _ = unpack(truncate)
        own_end, reads_end = (
            _LAYOUT.pack(epoch, kind, (1 << 64) - 1, (1 << 32) - 1)
            for kind in (OWN_SNAPSHOT, INCREMENTAL)
        )
        return [
            (None, _read(epoch, OWN_SNAPSHOT, file, pos), True),
            (own_end, _read(epoch, INCREMENTAL, file, pos), False),
            (reads_end, truncate, False),
        ]


POSITIONS: Final = MySqlPositions()


def _order(total_order: int | None) -> int:
    """Return the order of an event in its transaction; 1 for all where nobody tells it."""
    return _UNTOLD if total_order is None else min(max(total_order, 0), _MOST_ORDER) + 1


def _read(epoch: int, kind: int, file: int, pos: int) -> bytes:
    """Return the position of what was read at a place in the log."""
    return _LAYOUT.pack(epoch, kind, file << _POS_BITS | min(pos, _MOST_POS), 0)
