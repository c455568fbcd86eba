"""PostgreSQL's positions: ``epoch (4) | major (8) | minor (8)``, big endian, 20 bytes. Pure.

Major is the LSN of the last commit before the event and minor the event's own LSN: the two numbers
of ``source.sequence``. ``lsn`` alone is never a position: transactions arrive in commit order, a
change's own LSN does not (Debezium's WalPositionLocator says the same).

The first transaction of a new slot has no last commit. Its events have their own LSN as major, and
as minor the same with the lowest bit set: LSNs are multiples of 8, so no other event has that.
Equal numbers would not do: the first change of a transaction that follows another at once has them.

Two majors are no LSNs and mark what was read outside the stream's order: 0 the connector's own
snapshot, 1 Debezium's incremental reads (`outside_stream`).
"""

import re
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model.positions import LoggedEvent, Numbering

WIDTH: Final = 20
OWN_SNAPSHOT: Final = 0
INCREMENTAL: Final = 1
_LAYOUT: Final = struct.Struct(">IQQ")
_PARTS: Final = np.dtype([("epoch", ">u4"), ("major", ">u8"), ("minor", ">u8")])
_SEQUENCE: Final = re.compile(r'\[(?:"(-?[0-9]{1,20})"|null),(?:"(-?[0-9]{1,20})"|null)\]')
_SAFE_DIGITS: Final = 18  # fits 64 bits for sure
_WIDTH_64: Final = 1 << 64
_MOST_DIGITS: Final = 20


def pack(epoch: int, major: int, minor: int) -> bytes:
    """Return the position as 20 bytes whose byte order is commit order.

    Raises:
        struct.error: a part is negative or wider than its field.
    """
    return _LAYOUT.pack(epoch, major, minor)


def packed(epoch: int, numbers: npt.NDArray[np.int64 | np.uint64]) -> npt.NDArray[np.uint8]:
    """Return `pack` of many: a row of 20 bytes for each row of major and minor."""
    found = np.empty((len(numbers), WIDTH), np.uint8)
    found[:, :4] = np.frombuffer(epoch.to_bytes(4), np.uint8)
    found[:, 4:] = numbers.astype(">u8").view(np.uint8)
    return found


def unpack(position: bytes) -> tuple[int, int, int]:
    """Return epoch, major and minor of a position made by `pack`."""
    return _LAYOUT.unpack(position)


class PostgresPositions:
    """See `positions.PositionRules`."""

    width: Final = WIDTH
    fields: Final[Mapping[str, type]] = {"sequence": str, "lsn": int}
    of_transaction: Final[Mapping[str, type]] = {}
    compiled: Final = ("sequence",)
    most: Final = ((1 << 63) - 1,) * 2
    missing: Final = "no usable source.sequence (Debezium before 1.5, or source rewritten)"
    of_entries: Final = ("txId", "lsn", "xmin", "origin", "origin_lsn")
    identity: Final = ""
    across_partitions: Final = True

    def from_source(
        self, fields: Mapping[str, Sequence[Any]], own: Sequence[bool] | None, epoch: int
    ) -> list[bytes | None]:
        """See `PositionRules`; neighbours mostly share a transaction, and often all."""
        sequences, lsns = fields["sequence"], fields["lsn"]
        if own is None and (found := all_of_stream(sequences, epoch)) is not None:
            return list(found)
        result: list[bytes | None] = []
        last: tuple[object, ...] = ()
        at_last: bytes | None = None
        read = own or [False] * len(sequences)
        for this in zip(sequences, lsns, read, strict=True):
            if this != last:
                last = this
                sequence, lsn, is_own = this
                parts = own_snapshot(sequence, lsn) if is_own else of_stream(sequence, lsn)
                at_last = None if parts is None else pack(epoch, *parts)
            result.append(at_last)
        return result

    def of_numbers(self, numbers: npt.NDArray[np.int64], epoch: int) -> npt.NDArray[np.uint8]:
        """See `PositionRules`: the two numbers of the sequence."""
        return packed(epoch, numbers)

    def numbers_of(self, position: bytes) -> tuple[int, ...]:
        """See `PositionRules`."""
        return unpack(position)[1:]

    def transactions(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `PositionRules`: the commit before it."""
        return numbers[:, 0]

    def to_source(self, position: bytes, like: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """See `PositionRules`: `sequence` as Debezium writes it, and `lsn`."""
        last_commit, own = sequence_of(position)
        last = None if last_commit is None else str(last_commit)
        return {"sequence": msgspec.json.encode([last, str(own)]).decode(), "lsn": own}

    def one_transaction(self, before: bytes, after: bytes) -> bool:
        """See `PositionRules`: equal majors, or a slot's first one."""
        one, other = unpack(before), unpack(after)
        return one[:2] == other[:2] or (_is_first(*one[1:]) and _is_first(*other[1:]))

    def may_be_counted_anew(self, position: bytes, applied: bytes) -> bool:  # noqa: ARG002
        """See `PositionRules`: nobody counts."""
        return False

    def event_of(self, identity: str, position: bytes) -> LoggedEvent | None:  # noqa: ARG002
        """See `PositionRules`: another server has the same numbers for other transactions."""
        return None

    def ended(self, transaction: str) -> LoggedEvent | None:
        """See `PositionRules`: ``txId:LSN``, the LSN of its commit."""
        _, colon, lsn = transaction.rpartition(":")
        is_one = bool(colon) and lsn.isascii() and lsn.isdecimal() and len(lsn) <= _MOST_DIGITS
        return LoggedEvent("", int(lsn), 0) if is_one else None

    def numbering(self, ended: Sequence[str], newest: Mapping[str, int]) -> Numbering:
        """See `PositionRules`: the first one that commits behind the commit before the event."""
        commits = [newest.get("", 0), *(int(one.rpartition(":")[2]) for one in ended)]
        return lambda _, position: bisect_right(commits, unpack(position)[1]) - 1

    def has_ended(
        self,
        position: bytes,
        seen: Mapping[str, tuple[int, int]],  # noqa: ARG002
        newest: Mapping[str, int],
    ) -> bool:
        """See `PositionRules`: a later one begins at that commit, or behind it."""
        return unpack(position)[1] < newest.get("", 0)

    def left_at(self, arrived: bytes) -> bytes:
        """See `PositionRules`: one entry of the log makes both events."""
        return arrived

    def is_ordered(self, position: bytes) -> bool:  # noqa: ARG002
        """See `PositionRules`: each change has its own place in the log."""
        return True

    def is_own_snapshot(self, position: bytes) -> bool:
        """See `PositionRules`: major 0."""
        return position[4:12] == bytes(8)

    def snapshot_of(self, position: bytes) -> int:
        """See `PositionRules`: the LSN at which it was taken."""
        return unpack(position)[2]

    def which_first(self, positions: Sequence[bytes]) -> list[int]:
        """See `PositionRules`: those of a slot's first transaction."""
        minors = np.frombuffer(b"".join(positions), np.uint8)[WIDTH - 1 :: WIDTH]
        odd = np.flatnonzero(minors & 1)  # LSNs are even
        return [at for at in odd.tolist() if _is_first(*unpack(positions[at])[1:])]

    def outside_stream(self, position: bytes) -> bytes:
        """See `PositionRules`.

        Debezium's incremental reads carry the position of their close row, which is newer than what
        they saw; in a table nothing must lose against them. What is kept is the commit before the
        close row's: a truncate that commits later removes the row, also one that was written before
        the close row, by a transaction that was still open then.
        """
        return position[:4] + INCREMENTAL.to_bytes(8) + position[4:12]

    def in_stream(self, position: bytes) -> bytes:
        """See `PositionRules`; of an incremental read only the commit before it is kept."""
        epoch, major, lsn = unpack(position)
        if major == OWN_SNAPSHOT:
            return pack(epoch, lsn, 0)
        return pack(epoch, lsn, _WIDTH_64 - 1) if major == INCREMENTAL else position

    def taken_before(self, own_snapshot: bytes, position: bytes) -> bool:
        """See `PositionRules`.

        Its LSN was sampled outside the stream, at or before the moment that its rows show: so it is
        compared with the event's own LSN, and equal says nothing.
        """
        return (own_snapshot[:4], own_snapshot[12:]) < (position[:4], position[12:])

    def below_truncate(self, position: bytes, truncate: bytes) -> bool:
        """See `PositionRules`.

        A row of the connector's own snapshot carries an LSN sampled outside the stream, so only
        that LSN is compared with the truncate's own: where the log ended then is where the next
        record begins, so that equal means later. An incremental read carries a commit, which is
        compared with the commit before the truncate.
        """
        epoch, major, minor = unpack(position)
        if epoch == unpack(truncate)[0]:
            if major == OWN_SNAPSHOT:
                return minor <= unpack(truncate)[2]
            if major == INCREMENTAL:
                return minor < unpack(truncate)[1]
        return position < truncate

    def which_below_truncate(
        self, column: pa.FixedSizeBinaryArray, truncate: bytes
    ) -> npt.NDArray[np.bool_]:
        """Return `below_truncate` of many."""
        start = column.offset * WIDTH
        parts = np.frombuffer(column.buffers()[1], _PARTS, count=len(column), offset=start)
        epoch, major, minor = unpack(truncate)
        same = parts["epoch"] == epoch
        earlier = (parts["major"] < major) | ((parts["major"] == major) & (parts["minor"] < minor))
        found: npt.NDArray[np.bool_] = (parts["epoch"] < epoch) | (same & earlier)
        own, incremental = (same & (parts["major"] == r) for r in (OWN_SNAPSHOT, INCREMENTAL))
        found = np.where(own, parts["minor"] <= minor, found)
        return np.where(incremental, parts["minor"] < major, found)

    def ranges_below_truncate(self, truncate: bytes) -> list[tuple[bytes | None, bytes, bool]]:
        """See `PositionRules`: own rows, incremental reads, events."""
        epoch, major, minor = unpack(truncate)
        last = _WIDTH_64 - 1
        own_end, reads_end = (pack(epoch, read, last) for read in (OWN_SNAPSHOT, INCREMENTAL))
        return [
            (None, pack(epoch, OWN_SNAPSHOT, minor), True),
            (own_end, pack(epoch, INCREMENTAL, major), False),
            (reads_end, truncate, False),
        ]


POSITIONS: Final = PostgresPositions()


def sequence_of(position: bytes) -> tuple[int | None, int]:
    """Return last commit and own LSN of a stream position, as `of_stream` read them."""
    _, major, minor = unpack(position)
    return (None, major) if _is_first(major, minor) else (major, minor)


def of_stream(sequence: str | None, lsn: int | None) -> tuple[int, int] | None:
    """Return major and minor of a record: last commit and own LSN, both unsigned 64 bit.

    Args:
        sequence: `source.sequence`, e.g. ``["26749936","26750304"]``. With a null first number
            (the first transaction of a new slot) see the module; a null second one is taken
            from `lsn`.
        lsn: `source.lsn`; absent in incremental reads.

    Returns:
        None when there is no usable sequence. `lsn` alone never makes a position.
    """
    numbers = _numbers(sequence, lsn)
    if numbers is None:
        return None
    last, own = numbers
    return (own, own | 1) if last is None else (last, own)


def own_snapshot(sequence: str | None, lsn: int | None) -> tuple[int, int] | None:
    """Return major 0 and the LSN at which the connector's own snapshot was taken, if it is there.

    That LSN was sampled outside the stream, so it never stands beside stream positions.
    """
    numbers = _numbers(sequence, lsn)
    if numbers is not None:
        return OWN_SNAPSHOT, numbers[1]
    if lsn is None or not -(_WIDTH_64 >> 1) <= lsn < _WIDTH_64:
        return None
    return OWN_SNAPSHOT, lsn % _WIDTH_64


def _is_first(major: int, minor: int) -> bool:
    """Say whether an event is of a slot's first transaction."""
    return not major & 7 and minor == major + 1


def _numbers(sequence: str | None, lsn: int | None) -> tuple[int | None, int] | None:
    """Return last commit, if there was one, and own LSN."""
    match = _SEQUENCE.fullmatch(sequence) if sequence else None
    if match is None:
        return None
    major, minor = match.groups()
    own = int(minor) if minor is not None else lsn
    if own is None:
        return None
    last = int(major) if major is not None else None
    low = -(_WIDTH_64 >> 1)
    if not (low <= own < _WIDTH_64 and (last is None or low <= last < _WIDTH_64)):
        return None
    # Debezium prints a Java long: above 2**63 it is negative.
    return None if last is None else last % _WIDTH_64, own % _WIDTH_64


def all_of_stream(sequences: Sequence[str | None], epoch: int) -> list[bytes] | None:
    """Positions of many stream records at once: equal to `pack` of `of_stream`, six times faster.

    Returns:
        None when any sequence is not of the common form with two decimal numbers below 2**63.
    """
    if not sequences:
        return []
    texts = pa.array(sequences, pa.string())
    framed = pc.and_(pc.starts_with(texts, '["'), pc.ends_with(texts, '"]'))
    if not pc.all(framed, skip_nulls=False).as_py():
        return None
    pairs = pc.split_pattern(pc.utf8_slice_codeunits(texts, 2, -2), '","')
    if pc.min_max(pc.list_value_length(pairs)).as_py() != {"min": 2, "max": 2}:
        return None
    digits = pairs.flatten()
    # The cast also reads hexadecimal, and a sign would be a number of the other form.
    if (
        not pc.all(pc.ascii_is_decimal(digits)).as_py()
        or pc.max(pc.binary_length(digits)).as_py() > _SAFE_DIGITS
    ):
        return None
    numbers = digits.cast(pa.uint64()).to_numpy().reshape(-1, 2)
    found: list[bytes] = packed(epoch, numbers).view(f"V{WIDTH}").ravel().tolist()
    return found
