"""Visibility: the open rows that a chunk may take as its `lo`; commits may be seen out of order.

Pure. On a PostgreSQL primary a transaction's commit record can be in the log, before an open row's,
while the transaction is not visible yet to a snapshot that shows the open row. A chunk read in
between would hold a stale row that the log never corrects. `Snapshot.shows` excludes it (the xmin
rule):

    After an open row's commit returned, a transaction N takes the next id and ends, then
    ``S0 = pg_current_snapshot()`` is taken. A chunk with snapshot S may use the open row if
    ``S.xmin >= S0.xmax``.

Proof. Let T be a transaction whose commit record precedes the open row's and which S does not see.
T was in progress at S, so xid(T) >= S.xmin >= S0.xmax. But T had its id before it wrote its commit
record, before the open row's, before N had its own, and N had ended at S0: xid(T) < xid(N) <
S0.xmax. The open row itself is visible by the same argument. All are 64-bit and from one server, so
nothing wraps around.

Without N the rule has a hole: xmax is one more than the newest id that has *ended*. While the open
row's transaction runs, T may take a higher id and write its commit record first; both S0.xmax and a
chunk's S.xmin can then be xid(T), and T is not visible yet.
"""

import re
from dataclasses import dataclass
from typing import Final

from lakemark.connectors.database import Watermark
from lakemark.connectors.postgres.positions import pack

_SNAPSHOT: Final = re.compile(r"(\d+):(\d+):[\d,]*")


@dataclass(frozen=True, slots=True)
class Server:
    """One life of a database server; ids of transactions compare only within it.

    A recovery from a crash begins another one: what was committed asynchronously, and seen, may be
    lost. That somebody resets the statistics does too: it costs a few chunks another reading.

    Attributes:
        start: when it was started, or recovered from a crash since, as ISO text in UTC.
        timeline: of its log; raised by a promotion or a restore.
    """

    start: str
    timeline: int

    def __str__(self) -> str:
        """Its name in records."""
        return f"{self.start}/{self.timeline}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The transactions that a statement saw: PostgreSQL's `Proof`.

    Attributes:
        xmin: all transactions below it had ended (64 bit, no wraparound).
        xmax: no transaction from it on had begun.
        server: whose transactions these are.
    """

    xmin: int
    xmax: int
    server: Server

    @classmethod
    def parse(cls, text: str, server: Server) -> "Snapshot":
        """The snapshot that ``pg_current_snapshot()::text`` wrote.

        Raises:
            ValueError: the text is none.
        """
        match = _SNAPSHOT.fullmatch(text)
        if match is None:
            raise ValueError("snapshot")
        return cls(int(match[1]), int(match[2]), server)

    @property
    def life(self) -> str:
        """See `Proof`."""
        return str(self.server)

    @property
    def place(self) -> bytes:
        """See `Proof`: the transactions that a snapshot shows do not tell where the log was."""
        return b""

    def shows(self, watermark: Watermark) -> bool:
        """See `Proof`: the xmin rule."""
        after = watermark.after
        return (
            isinstance(after, Snapshot) and after.server == self.server and self.xmin >= after.xmax
        )


def bound_of(wal: int) -> bytes:
    """A position behind its epoch for rows of a chunk, known before the open row has come back.

    Whatever commits after the open row's transaction names its commit, or a later one, as the last
    before it: its events have a higher position than this, which is below that commit. So all
    events up to it are visible to a chunk that may use the open row.

    Args:
        wal: where the log ended before the open row's transaction committed.
    """
    return pack(0, wal, wal)[4:]


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction that keeps newer open rows from being used.

    Attributes:
        xid: its 64-bit id.
        pid: its backend; None for a prepared transaction, or when it has ended meanwhile.
        application: application_name of its session, or the prepared transaction's own name.
        since: when its current or last query began (a prepared one: when it was prepared), ISO
            text in UTC; None when unknown or hidden (grant pg_read_all_stats).
        state: as pg_stat_activity has it, or ``prepared`` or ``ended``.
    """

    xid: int
    pid: int | None
    application: str
    since: str | None
    state: str

    def __str__(self) -> str:
        """Return it for logs and status: without the query's text, which may hold values."""
        who = f"pid {self.pid}" if self.pid is not None else self.state
        since = f", query of {self.since}" if self.since else ""
        return f"transaction {self.xid} ({who}, {self.application or 'unnamed'}{since})"
