"""The source of a simulated history with the rules of MySQL and MariaDB.

Facts that shape it, each of them a reason why a simpler reader is wrong:

* The log is a row of files whose names end with a number; ``binlog.999999`` is followed by
  ``binlog.1000000``. A file ends at any commit, and with each start of the server.
* A transaction stands in the log in one piece, in the order of the commits. All of its events may
  have one place (MariaDB from 11.4 on, MySQL's compressed transactions); their numbers of rows begin
  again with every statement.
* A group of commits is in the log, and the connector may have its events, before any SELECT sees
  one of them; the server's position, and MariaDB's GTID, are as far as the log. Then they become
  visible in the order of the log, unless ``binlog_order_commits`` is OFF.
* A transaction of XA is in the log when it is prepared, and visible when it is committed, while
  others go on.
* Images are whole rows, no key has two rows, and a TRUNCATE is a transaction of its own.
* After a failover, or a reset, the log begins anew with a low number; what was durable is there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lakemark.connectors.mysql import binlog_place
from lakemark.connectors.mysql.binlog_place import BinlogPlace
from tests.kit.simulation.source import Committed, Source, Transaction

FIRST_FILE = 999_998
FIRST_POS = 4
EVENT = 50  # bytes


class Place(NamedTuple):
    """The place of an event in the log.

    Attributes:
        log: 0, and one more after each failover or reset.
        file: number of the file.
        pos: where it begins, or where the first event of its transaction does.
        order: in its transaction, from 1.
        row: in its statement, from 0.
        end: of its transaction.
    """

    log: int
    file: int
    pos: int
    order: int
    row: int
    end: int


@dataclass(eq=False)
class BinlogTransaction(Transaction):
    """One that knows which changes begin a statement, and whether it is one of XA."""

    begins: list[int] = field(default_factory=list)
    prepared: bool = False


@dataclass
class BinlogSource(Source):
    """A server, and after a failover the next one.

    Attributes:
        one_place: whether all events of a transaction have one place.
        has_xa: whether there are transactions of XA.
        ordered: binlog_order_commits.
    """

    one_place: bool = True
    has_xa: bool = False
    ordered: bool = True
    log_number: int = 0
    file: int = FIRST_FILE
    pos: int = FIRST_POS

    # -- statements -----------------------------------------------------------------------------

    def begin(self) -> Transaction:
        transaction = BinlogTransaction(self)  # what is visible is durable (sync_binlog=1)
        self.open.append(transaction)
        return transaction

    def statement(self, of: Transaction, what: Callable[[Transaction], None] | None = None) -> None:
        if of.alone:
            return  # TRUNCATE has ended it
        if isinstance(of, BinlogTransaction):
            of.begins.append(len(of.changes))
        super().statement(of, what)

    def truncate(self, to: Transaction) -> None:  # type: ignore[override]
        if not to.changes and not any(t.rows for t in self.open if t is not to):
            super().truncate(to)

    # -- the log --------------------------------------------------------------------------------

    def commit(self, of: Transaction) -> None:  # type: ignore[override]
        """Into the log; visible at once, unless the history is `slow` or this is one of XA."""
        self.open.remove(of)
        if of.xid is None:
            return
        if self.dice.random() < 0.15:
            self.rotate()
        changes = self._placed(of)
        ts = self._now() + self.dice.randrange(1500)
        self.history.append(Committed(of.xid, 0, ts, changes, of.rows, of.reads))
        of.index = len(self.history) - 1
        self.hidden.append(of)
        if isinstance(of, BinlogTransaction) and self.has_xa and not of.alone and not _ticks(of):
            of.prepared = self.dice.random() < 0.3
        if not self.slow and not _is_prepared(of):
            self.show(of)

    def _now(self) -> int:
        """A time of the log: beyond all times of the logs before."""
        return (len(self.history) + 5 * self.log_number) * 1000

    def _placed(self, of: Transaction) -> list[tuple[Any, Any]]:
        begins = of.begins if isinstance(of, BinlogTransaction) else []
        first, found, row = self.pos, [], 0
        end = first + EVENT * (len(of.changes) + 1)
        for number, (_, change) in enumerate(of.changes):
            row = 0 if number in begins else row + 1
            pos = first if self.one_place else first + EVENT * number
            found.append((Place(self.log_number, self.file, pos, number + 1, row, end), change))
        self.pos = end
        return found

    def rotate(self) -> None:
        """The next file of the log."""
        self.file, self.pos = self.file + 1, FIRST_POS

    def show(self, of: Transaction) -> None:
        """The engine commits it, and in the log's order all before it; XA COMMIT comes at any time."""
        before = sorted(
            (t for t in self.hidden if t.index < of.index and not _is_prepared(t)),
            key=lambda one: one.index,
        )
        if self.ordered and not _is_prepared(of):
            for one in before:
                super().show(one)
        super().show(of)

    def end_of_a_transaction(self) -> None:
        """Nothing: no ids of transactions prove anything here."""

    # -- the server's ends ------------------------------------------------------------------------

    def crash(self) -> None:
        """What is not in the log's file never was. A start begins a file."""
        super().crash()
        self.rotate()

    def fail_over(self) -> None:
        """Another server has what was durable, and a log of its own; so has a log that is reset."""
        super().crash()
        self.log_number += 1
        self.file, self.pos = self.dice.choice([1, 1, 7]), FIRST_POS

    def relocate(self, begin: int) -> None:
        """Transactions from this one on have their places in the log of now."""
        for committed in self.history[begin:]:
            first = self.pos
            for at, (place, change) in enumerate(committed.changes):
                behind = 0 if self.one_place else EVENT * at
                here = place._replace(log=self.log_number, file=self.file, pos=first + behind)
                end = first + EVENT * (len(committed.changes) + 1)
                committed.changes[at] = here._replace(end=end), change
                self.pos = end

    # -- what a read knows ------------------------------------------------------------------------

    @property
    def server(self) -> binlog_place.Server:  # type: ignore[override]
        """One life of a server."""
        return binlog_place.Server(self.log_number + 1, self.starts)

    def prepared(self) -> list[Transaction]:
        """What XA RECOVER shows."""
        return [t for t in self.hidden if _is_prepared(t)]

    def held(self) -> list[Transaction]:
        """What is in the log, and not to be seen before the engine commits it."""
        return [t for t in self.hidden if not _is_prepared(t)]

    def wait(self, awaited: list[Transaction]) -> None:
        """Time goes by until these are visible, and perhaps others, too."""
        for one in self.dice.sample(awaited, len(awaited)):
            if one in self.hidden:
                self.show(one)
        for other in self.held():
            if self.dice.random() < 0.3 and other in self.hidden:
                self.show(other)

    def place_after(self, count: int) -> BinlogPlace:
        """The end of the first `count` transactions in the log, where the next one begins."""
        behind = [c.changes[0][0] for c in self.history[count:] if c.changes]
        if behind:
            return BinlogPlace(self.server, behind[0].file, behind[0].pos)
        return BinlogPlace(self.server, self.file, self.pos)

    def visible(self) -> int:
        """How many transactions at the log's beginning are visible, but for those of XA."""
        hidden = [t.index for t in self.hidden if not _is_prepared(t)]
        return min(hidden, default=len(self.history))


def _is_prepared(of: Transaction) -> bool:
    return isinstance(of, BinlogTransaction) and of.prepared


def _ticks(of: Transaction) -> bool:
    return any("signal" in change for _, change in of.changes)
