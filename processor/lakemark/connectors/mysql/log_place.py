"""MySQL and MariaDB: a place in the log, by file and offset or by its transactions. Pure.

``binlog.000003:1234`` is the place behind which the log's file goes on at that byte; a GTID set
is the place behind all of its transactions: ``uuid:1-77`` on MySQL, ``0-101-193`` on MariaDB. Both
together, with a blank between them, are one place in two words: either proves it. A log that was
rotated at rest begins with entries that are of no transaction, which the connector does not count.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from lakemark.connectors.log_place import offsets_of, unreadable
from lakemark.connectors.mysql.positions import POSITIONS, number_of, unpack

EXPECTED: Final = (
    "file and offset of SHOW BINARY LOG STATUS (SHOW MASTER STATUS), such as binlog.000003:1234, "
    "or a GTID set: @@global.gtid_executed on MySQL, @@gtid_binlog_pos on MariaDB"
)
_PLACE: Final = re.compile(r"([^\s:,]+\.[0-9]{1,10}):([0-9]{1,19})")
_UUID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_NUMBERS: Final = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")
_OF_MYSQL: Final = re.compile(rf"{_UUID}(?::[0-9a-z_-]+)+")
_OF_MARIADB: Final = re.compile(r"([0-9]{1,10})-[0-9]{1,10}-([0-9]{1,19})")

Intervals = list[tuple[int, int]]
"""Numbers of transactions, from the first to the last of each interval."""


def transactions_of(gtids: str) -> dict[str, Intervals] | None:
    """Return the transactions of a GTID set by origin; None if it is none.

    Args:
        gtids: ``uuid:1-7:9:tag:1-3,…`` of MySQL. Of MariaDB ``domain-server-number,…``, which
            stands for all numbers of the domain up to that one.
    """
    found: dict[str, Intervals] = {}
    for part in re.sub(r"\s", "", gtids).lower().split(","):
        if mariadb := _OF_MARIADB.fullmatch(part):
            found.setdefault(mariadb[1], []).append((0, int(mariadb[2])))
        elif _OF_MYSQL.fullmatch(part):
            server, *rest = part.split(":")
            origin = server
            for piece in rest:
                if numbers := _NUMBERS.fullmatch(piece):
                    first, last = int(numbers[1]), int(numbers[2] or numbers[1])
                    found.setdefault(origin, []).append((first, last))
                else:
                    origin = f"{server}:{piece}"
            if origin not in found:
                return None  # a tag without numbers
        elif part:
            return None
    return found or None


def has_all(transactions: Mapping[str, Intervals], wanted: Mapping[str, Intervals]) -> bool:
    """Say whether a set has all transactions of another one."""
    return all(
        any(first <= begin and end <= last for first, last in _joined(transactions.get(origin, [])))
        for origin, intervals in wanted.items()
        for begin, end in intervals
    )


def _joined(intervals: Intervals) -> Intervals:
    joined: Intervals = []
    for first, last in sorted(intervals):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined


@dataclass(frozen=True, slots=True)
class BinlogEnd:
    """See `LogPlace`.

    Attributes:
        text: see `LogPlace`.
        place: number of the file, and offset in it; None if they are not known.
        transactions: by origin; empty if they are not known.
    """

    text: str
    place: tuple[int, int] | None = None
    transactions: Mapping[str, Intervals] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what the database prints.

        Raises:
            RefusedError: it is none.
        """
        place, transactions = None, None
        words = re.sub(r",\s+", ",", text.strip()).split()
        for word in words:
            found = _PLACE.fullmatch(word)
            file = number_of(found[1]) if found else None
            if found and file is not None and place is None:
                place = file, int(found[2])
            elif transactions is None and (known := transactions_of(word)):
                transactions = known
            else:
                raise unreadable(text, EXPECTED)
        if not words:
            raise unreadable(text, EXPECTED)
        return cls(" ".join(words), place, transactions or {})

    def is_sent(self, entries: Sequence[Mapping[str, Any]], *, server: str) -> bool:
        """See `LogPlace`.

        `file` and `pos` are where the connector would go on; `gtids` are the transactions that have
        been sent to their ends.
        """
        return any(
            self._is_before(offset) or self._is_among(offset)
            for offset in offsets_of(entries, server)
        )

    def _is_before(self, offset: Mapping[str, Any]) -> bool:
        file, pos = offset.get("file"), offset.get("pos")
        number = number_of(file) if isinstance(file, str) else None
        if self.place is None or number is None or not isinstance(pos, int):
            return False
        return (number, pos) >= self.place

    def _is_among(self, offset: Mapping[str, Any]) -> bool:
        gtids = offset.get("gtids")
        sent = transactions_of(gtids) if self.transactions and isinstance(gtids, str) else None
        return sent is not None and has_all(sent, self.transactions)

    def is_passed(self, position: bytes) -> bool:
        """See `LogPlace`: an event stands where its transaction begins, or behind that."""
        _, *event, _ = unpack(position)
        return self.place is not None and tuple(event) >= self.place

    def has(self, transaction: str, position: bytes) -> bool:
        """See `LogPlace`: by its GTID where the place has transactions, else by the event."""
        ended = POSITIONS.ended(transaction)
        if self.transactions and ended is not None:
            return has_all(self.transactions, {ended.origin: [(ended.number, ended.number)]})
        return bool(position) and self.place is not None and not self.is_passed(position)
