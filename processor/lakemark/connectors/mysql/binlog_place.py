"""A place in the log that bounds what a read of MySQL or MariaDB has seen: its `Proof`. Pure.

A read sees every change that stands before its place (`binlog_snapshot` sees to it), and may see
some behind it: what was committed while it was waited for. So its place is a chunk's `lo`, and no
window rows are needed.

The place says something only of the log of the server that was read: it must be the one that the
connector reads, and the same life of it: a server that crashed may have lost the end of its log
(``sync_binlog=0``).
"""

import re
from dataclasses import dataclass
from typing import Final

from lakemark.connectors.database import Watermark
from lakemark.connectors.mysql.positions import pack

_SERVERS: Final = re.compile(r"(?=[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-)")
"""Where the next server's uuid begins; nothing stands between it and the thread before it."""
_UUID: Final = 36  # characters


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


def held_ids(owned: str) -> set[str]:
    """Return the transactions of MySQL's ``gtid_owned``, as ``uuid:number`` or ``uuid:tag:number``.

    Args:
        owned: such as ``uuid:7#10:9#11uuid:tag:6#13``, with the thread behind each number.
    """
    ids = set()
    for server in _SERVERS.split(owned):
        name = server[:_UUID]
        for part in server[_UUID:].split(":"):
            number, thread, _ = part.partition("#")
            if thread:
                ids.add(f"{name}:{number}")
            elif number:
                name = f"{server[:_UUID]}:{number}"
    return ids


def covers(seen: str, logged: str) -> bool:
    """Say whether some transactions have all others before them, or among them.

    Args:
        seen: the newest of each domain, as ``binlog_gtid_pos`` has them.
        logged: those that are asked for, as ``gtid_binlog_pos`` has them.
    """
    newest = _newest(seen)
    return all(number <= newest.get(domain, -1) for domain, number in _newest(logged).items())


def _newest(gtids: str) -> dict[str, int]:
    """Return the numbers of ``domain-server-number,…`` by domain."""
    parts = [gtid.split("-") for gtid in gtids.split(",") if gtid]
    return {domain: int(number) for domain, _, number in parts}
