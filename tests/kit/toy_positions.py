"""Positions of a toy database: wider than PostgreSQL's, in two parts of another form.

A change has the number of its block, of eleven bytes, and its place in it. `RULES` and `KINDS` of
`model.positions` get a line each, as for any other database: see `use`.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from lakemark.model import positions

KIND: Final = 200
CONNECTOR: Final = "toy"
EPOCH: Final = KIND << 24
"""The first one."""
BLOCK: Final = 11  # bytes
_READ: Final = 1 << 80  # blocks below it are none: rows that were read outside the log


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process know the toy's positions."""
    monkeypatch.setitem(positions.RULES, KIND, __name__)
    monkeypatch.setitem(positions.KINDS, CONNECTOR, KIND)


def pack(epoch: int, block: int, row: int) -> bytes:
    """Return a position; `epoch` has its kind, as whoever asks for one must know."""
    return epoch.to_bytes(4) + block.to_bytes(BLOCK) + row.to_bytes(9)


def parts(position: bytes) -> tuple[int, int, int]:
    """Epoch, block and row."""
    at = 4 + BLOCK
    return (
        int.from_bytes(position[:4]),
        int.from_bytes(position[4:at]),
        int.from_bytes(position[at:]),
    )


class ToyPositions:
    """See `PositionRules`. A row of an own snapshot has block 0, an incremental read block 1."""

    width: Final = 4 + BLOCK + 9
    fields: Final[Mapping[str, type]] = {"block": int, "row": int}
    of_transaction: Final[Mapping[str, type]] = {}
    compiled: Final = ("block",)
    most: Final = ((1 << 63) - 1,) * 2
    missing: Final = "no source.block"
    of_entries: Final = ("row",)
    identity: Final = ""
    across_partitions: Final = True

    def from_source(
        self, fields: Mapping[str, Sequence[Any]], own: Sequence[bool] | None, epoch: int
    ) -> list[bytes | None]:
        read = own or [False] * len(fields["block"])
        return [
            None
            if block is None
            else pack(epoch, 0, block)
            if is_own
            else pack(epoch, _READ + block, row or 0)
            for block, row, is_own in zip(fields["block"], fields["row"], read, strict=True)
        ]

    def of_numbers(self, numbers: npt.NDArray[np.int64], epoch: int) -> npt.NDArray[np.uint8]:
        rows = [pack(epoch, _READ + block, row) for block, row in numbers.tolist()]
        return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, self.width)

    def numbers_of(self, position: bytes) -> tuple[int, ...]:
        _, block, row = parts(position)
        return block - _READ, row

    def transactions(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return numbers[:, 0]

    def to_source(self, position: bytes, like: Mapping[str, Any]) -> dict[str, Any]:
        block, row = self.numbers_of(position)
        return {"block": block, "row": row}

    def one_transaction(self, before: bytes, after: bytes) -> bool:
        return parts(before)[:2] == parts(after)[:2]

    def may_be_counted_anew(self, position: bytes, applied: bytes) -> bool:
        """See `PositionRules`: nobody counts."""
        return False

    def event_of(self, identity: str, position: bytes) -> None:
        return None

    def ended(self, transaction: str) -> positions.LoggedEvent | None:
        return positions.LoggedEvent("", int(transaction), 0) if transaction.isdecimal() else None

    def numbering(self, ended: Sequence[str], newest: Mapping[str, int]) -> positions.Numbering:
        blocks = [newest.get("", -1), *map(int, ended)]
        return lambda _, position: bisect_left(blocks, parts(position)[1]) - 1

    def has_ended(
        self, position: bytes, seen: Mapping[str, tuple[int, int]], newest: Mapping[str, int]
    ) -> bool:
        return parts(position)[1] <= newest.get("", -1)

    def left_at(self, arrived: bytes) -> bytes:
        return arrived

    def is_ordered(self, position: bytes) -> bool:
        return True

    def is_own_snapshot(self, position: bytes) -> bool:
        return parts(position)[1] == 0

    def snapshot_of(self, position: bytes) -> int:
        return parts(position)[2]

    def which_first(self, positions: Sequence[bytes]) -> list[int]:
        return []

    def outside_stream(self, position: bytes) -> bytes:
        epoch, block, _ = parts(position)
        return pack(epoch, 1, block - _READ)

    def in_stream(self, position: bytes) -> bytes:
        epoch, block, row = parts(position)
        if block > 1:
            return position
        return pack(epoch, _READ + row, 0 if block == 0 else (1 << 72) - 1)

    def taken_before(self, own_snapshot: bytes, position: bytes) -> bool:
        epoch, block, _ = parts(position)
        return (parts(own_snapshot)[0], parts(own_snapshot)[2]) < (epoch, block - _READ)

    def below_truncate(self, position: bytes, truncate: bytes) -> bool:
        epoch, block, row = parts(position)
        of, cut, _ = parts(truncate)
        if epoch == of and block in (0, 1):
            return row < cut - _READ
        return position < truncate

    def which_below_truncate(
        self, column: pa.FixedSizeBinaryArray, truncate: bytes
    ) -> npt.NDArray[np.bool_]:
        return np.array([self.below_truncate(at, truncate) for at in column.to_pylist()], bool)

    def ranges_below_truncate(self, truncate: bytes) -> list[tuple[bytes | None, bytes, bool]]:
        epoch, cut, _ = parts(truncate)
        ends = [pack(epoch, block, (1 << 72) - 1) for block in (0, 1)]
        return [
            (None, pack(epoch, 0, cut - _READ), False),
            (ends[0], pack(epoch, 1, cut - _READ), False),
            (ends[1], truncate, False),
        ]


POSITIONS: Final = ToyPositions()
