"""A place in the log that bounds what a read of MySQL or MariaDB has seen: its `Proof`. Pure.

A read sees every change that stands before its place (`binlog_snapshot` sees to it), and may see
some behind it: what was committed while it was waited for. So its place is a chunk's `lo`, and no
window rows are needed.

The place says something only of the log of the server that was read: it must be the one that the
connector reads, and the same life of it: a server that crashed may have lost the end of its log
(``sync_binlog=0``).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from lakemark.connectors.database import Watermark
from lakemark.connectors.mysql.positions import POSITIONS, pack
from lakemark.connectors.reached_place import ReachedPlace
from lakemark.model.positions import LoggedEvent

_SERVERS: Final = re.compile(r"(?=[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-)")
"""Where the next server's uuid begins; nothing stands between it and the thread before it."""
UUID_LENGTH: Final = 36  # characters
_BEGINS: Final = "Gtid"  # of the kind of what begins a transaction, whichever kind
_NAME: Final = re.compile(r"\bGTID(?: |_NEXT= ?')([0-9A-Za-z_:-]+)")


@dataclass(frozen=True, slots=True)
class Server:
    """One life of a server.

    Attributes:
        server_id: as it writes it into its log.
        started: when it was started, seconds since the epoch.
    """

    server_id: int
    started: int

    def __str__(self) -> str:
        """Its name in records."""
        return f"{self.server_id}/{self.started}"


@dataclass(frozen=True, slots=True)
class BinlogPlace:
    """The log up to a place: what a read saw at least.

    Attributes:
        server: that was read.
        file: number of the log file.
        pos: the place in it, where a transaction ends.
    """

    server: Server
    file: int
    pos: int

    @property
    def life(self) -> str:
        """See `Proof`."""
        return str(self.server)

    @property
    def place(self) -> bytes:
        """See `Proof`."""
        return pack(0, self.file, self.pos)[4:]

    def shows(self, watermark: Watermark) -> bool:
        """See `Proof`: an earlier place of the same life."""
        return watermark.after.life == self.life and watermark.bound <= self.place


class WhoseLog(Enum):
    """The owner of a server's log, as far as we know.

    Attributes:
        OWN: it is the connector's.
        OTHER: it is not.
        UNKNOWN: nothing has come yet, or the place is in a file that was removed.
        HIDDEN: nothing speaks against it; we may not look into the log.
    """

    OWN = "own"
    OTHER = "other"
    UNKNOWN = "unknown"
    HIDDEN = "hidden"


def held_ids(owned: str) -> set[str]:
    """Return the transactions of MySQL's ``gtid_owned``, as ``uuid:number`` or ``uuid:tag:number``.

    Args:
        owned: such as ``uuid:7#10:9#11uuid:tag:6#13``, with the thread behind each number.
    """
    ids = set()
    for server in _SERVERS.split(owned):
        name = server[:UUID_LENGTH]
        for part in server[UUID_LENGTH:].split(":"):
            number, thread, _ = part.partition("#")
            if thread:
                ids.add(f"{name}:{number}")
            elif number:
                name = f"{server[:UUID_LENGTH]}:{number}"
    return ids


def covers(seen: str, logged: str) -> bool:
    """Say whether some transactions have all others before them, or among them.

    Args:
        seen: the newest of each domain, as ``binlog_gtid_pos`` has them.
        logged: those that are asked for, as ``gtid_binlog_pos`` has them.
    """
    newest = newest_of(seen)
    return all(number <= newest.get(domain, -1) for domain, number in newest_of(logged).items())


def newest_of(gtids: str) -> dict[str, int]:
    """Return the highest numbers by origin, see `LoggedEvent`.

    Args:
        gtids: ``domain-server-number,…`` of MariaDB, ``uuid:1-7:9:tag:1-3,…`` of MySQL.
    """
    newest: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in gtids.split(","))):
        server, *rest = part.split(":")
        if not rest:
            domain, _, number = (*part.split("-"), "", "")[:3]
            if number.isdecimal():
                newest[domain] = max(newest.get(domain, 0), int(number))
        origin = server
        for numbers in rest:
            last = numbers.rpartition("-")[2]
            if last.isdecimal():
                newest[origin] = max(newest.get(origin, 0), int(last))
            else:
                origin = f"{server}:{numbers}"
    return newest


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry of a server's log, as SHOW BINLOG EVENTS tells it.

    Attributes:
        kind: `Event_type`.
        text: `Info`.
    """

    kind: str
    text: str

    def begins(self) -> LoggedEvent | None:
        """Return the transaction that begins with it; None for any other entry."""
        name = _NAME.search(self.text) if self.kind.startswith(_BEGINS) else None
        return POSITIONS.event_of(name[1], pack(0, 0, 0)) if name else None


def may_stand(entries: Sequence[LogEntry], reached: ReachedPlace) -> bool:
    """Say whether what stands in a server's log at a place may stand there in the connector's.

    Numbers of transactions rise in each log. So in the log of a replica that has an entry at the
    same place by chance, and its transactions at higher places, what follows there is too old.

    Args:
        entries: that at the place, and some behind it; none where the log ends there.
        reached: by the connector.
    """
    if reached.is_between or not reached.transactions:
        return True
    if not entries:
        return False
    here, *later = (entry.begins() for entry in entries)
    if here is not None and reached.transactions.get(here.origin) != here.number:
        return False
    begun = (event for event in later if event is not None)
    return all(event.number > reached.transactions.get(event.origin, 0) for event in begun)
