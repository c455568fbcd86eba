"""PostgreSQL: a place in the log, as ``pg_current_wal_lsn()`` prints it: ``0/16B3748``. Pure.

A transaction's events are sent when it has committed, in the order of commits. So an event whose
own LSN is at or behind the place is of a transaction that has committed behind it, and comes after
all that committed before.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from lakemark.connectors.log_place import offsets_of, unreadable
from lakemark.connectors.postgres.positions import POSITIONS, unpack

_LSN: Final = re.compile(r"\s*([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})\s*")
EXPECTED: Final = "what SELECT pg_current_wal_lsn() prints, such as 0/16B3748"
_WIDTH_64: Final = 1 << 64  # Debezium prints a Java long: above 2**63 it is negative


@dataclass(frozen=True, slots=True)
class Lsn:
    """See `LogPlace`.

    Attributes:
        number: bytes of the log before it.
    """

    number: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what the database prints.

        Raises:
            RefusedError: it is none.
        """
        found = _LSN.fullmatch(text)
        if found is None:
            raise unreadable(text, EXPECTED)
        return cls(int(found[1], 16) << 32 | int(found[2], 16))

    @property
    def text(self) -> str:
        """See `LogPlace`."""
        return f"{self.number >> 32:X}/{self.number & 0xFFFFFFFF:X}"

    def is_sent(self, entries: Sequence[Mapping[str, Any]], *, server: str) -> bool:
        """See `LogPlace`."""
        return any(
            isinstance(lsn, int) and lsn % _WIDTH_64 >= self.number
            for offset in offsets_of(entries, server)
            for lsn in (offset.get("lsn_commit"), offset.get("lsn"))
        )

    def is_passed(self, position: bytes) -> bool:
        """See `LogPlace`: the commit before the event, or the event itself, is behind it."""
        return max(unpack(position)[1:]) >= self.number

    def has(self, transaction: str, position: bytes) -> bool:  # noqa: ARG002
        """See `LogPlace`: its commit tells."""
        ended = POSITIONS.ended(transaction)
        return ended is not None and ended.number <= self.number
