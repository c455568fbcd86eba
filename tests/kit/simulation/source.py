"""The source of a simulated history: one PostgreSQL table under open, interleaved transactions.

Facts that shape it, each of them a reason why a simpler reconciliation is wrong:

* LSNs are multiples of 8. Own LSNs of transactions interleave; the log holds whole transactions in
  commit order. A change is named by where its record begins, a commit by where its record ends:
  the first change of a transaction that follows at once has the number of the commit before it.
* A commit is in the log first and visible later (flush, synchronous standby, a descheduled
  backend), and transactions do not become visible in the order of their commits. Its row locks,
  and a truncate's table lock, last until then.
* ``pg_current_snapshot()`` has ``xmax`` = newest *ended* transaction + 1 (GetSnapshotData), not
  the next id to be given away: a transaction that runs may have an id at or above it.
* With asynchronous commit a transaction can be visible and not durable: a crash forgets it, and
  the ids and LSNs it had are given away again. The connector only ever sees what is durable.
* Statements, key changes and images are those of `log_model.Database`.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from lakemark.connectors.postgres.visibility import Server, Snapshot
from tests.kit.log_model import STEP, Database, Row, Shape
from tests.kit.simulation.alters import ADD, NEW, Alter

FIRST_XID = 700
FIRST_LSN = 1_000
Change = dict[str, Any]


@dataclass
class Transaction:
    """One transaction: open, or committed and not visible yet.

    Attributes:
        xid: None until its first change.
        durable: whether its end waits for the flush (``synchronous_commit``).
        changes: LSN and event, as they will stand in the log.
        rows: the rows it has locked, as it leaves them; None = no row.
        alone: it truncated: nobody else may use the table.
        index: of its commit in the log.
        reads: keys that an incremental read of Debezium's emits after it.
    """

    source: "Source"
    durable: bool = True
    xid: int | None = None
    changes: list[tuple[int, Change]] = field(default_factory=list)
    rows: dict[int, Row | None] = field(default_factory=dict)
    alone: bool = False
    index: int = -1
    reads: dict[int, Row] = field(default_factory=dict)

    def add(self, op: str, *, same_record: bool = False, **rest: Any) -> None:
        """One event; events of one WAL record share its LSN."""
        if not (same_record and self.changes):
            where = self.source.new_record()
        else:
            where = self.changes[-1][0]
        if self.xid is None:
            self.xid = self.source.new_xid()
        self.changes.append((where, {"op": op, **rest}))


@dataclass(frozen=True)
class Committed:
    """A transaction in the log."""

    xid: int
    commit: int
    ts: int
    changes: list[tuple[int, Change]]
    rows: dict[int, Row | None]
    reads: dict[int, Row]


@dataclass
class Source(Database):
    """The database. `seen` is what a new snapshot sees, `rows` only a statement's working copy."""

    slow: bool = False  # commits become visible some time after they are in the log
    loses: bool = False  # some transactions commit asynchronously
    history: list[Committed] = field(default_factory=list)
    initial: dict[int, Row] = field(default_factory=dict)
    seen: dict[int, Row] = field(default_factory=dict)
    seen_at: dict[int, int] = field(default_factory=dict)  # newest visible commit per key
    open: list[Transaction] = field(default_factory=list)
    hidden: list[Transaction] = field(default_factory=list)
    lsn: int = FIRST_LSN  # where our newest record ends
    durable: int = 0  # commits of the log that are flushed
    next_xid: int = FIRST_XID
    newest_ended: int = FIRST_XID - 1
    starts: int = 1
    locked: set[int] = field(default_factory=set)
    altered: Alter | None = None

    # -- statements -----------------------------------------------------------------------------

    def fill(self, count: int) -> None:
        """Rows from before the history."""
        for key in self.dice.sample(range(1, self.shape.keys + 1), count):
            self.initial[key] = self._new_row(key)
        self.seen = dict(self.initial)

    def begin(self) -> Transaction:
        transaction = Transaction(self, durable=not (self.loses and self.dice.random() < 0.4))
        self.open.append(transaction)
        return transaction

    def statement(self, of: Transaction, what: Callable[[Transaction], None] | None = None) -> None:
        """One statement of an open transaction; nothing if it would have to wait for a lock."""
        others = [t for t in (*self.open, *self.hidden) if t is not of]
        if any(other.alone for other in others):
            return
        self.locked = {key for other in others for key in other.rows}
        view = {k: row for k, row in self.seen.items() if k not in self.locked}
        view.update({k: row for k, row in of.rows.items() if row is not None})
        for key in [k for k, row in of.rows.items() if row is None]:
            view.pop(key, None)
        self.rows, count = dict(view), len(of.changes)
        if what is None:
            self._statement(of, lost=False)
        else:
            what(of)
        touched = {k for k in view.keys() | self.rows.keys() if view.get(k) is not self.rows.get(k)}
        touched |= {c["key"] for _, c in of.changes[count:] if "key" in c}
        if touched & self.locked:
            del of.changes[count:]
            return
        of.rows.update({key: self.rows.get(key) for key in touched})

    def insert_at(self, to: Transaction, key: int) -> None:
        if key in self._free():
            row = self.rows[key] = self._new_row(key)
            to.add("c", key=key, after=row)

    def null_at(self, to: Transaction, key: int) -> None:
        """The new column of a row becomes null; of a table that has none any other does."""
        if key in self.rows:
            old = self.rows[key]
            new = self.rows[key] = {**old, (NEW if NEW in old else "a"): None}
            before = old if self.shape.full else None
            to.add("u", key=key, before=before, after=self._image(old, new))

    def delete_at(self, to: Transaction, key: int) -> None:
        if key in self.rows:
            to.add("d", key=key, before=self._before(self.rows.pop(key)))

    def move_to(self, to: Transaction, old: int, new: int) -> None:
        if old in self.rows and new in self._free():
            self._arrive(to, self.rows.pop(old), new)  # type: ignore[arg-type]

    def visit(self, to: Transaction, old: int, new: int) -> None:
        """A row moves to a taken key, and goes: under a deferrable constraint."""
        if old in self.rows and new in self.rows:
            stays = self.rows.pop(new)
            self._arrive(to, self.rows.pop(old), new)  # type: ignore[arg-type]
            goes = self.rows.pop(new)
            free = [key for key in self._free() if key != new]
            if free and self.dice.random() < 0.5:
                self._arrive(to, goes, self.dice.choice(free))  # type: ignore[arg-type]
            else:
                to.add("d", key=new, before=self._before(goes))
            self.rows[new] = stays

    def _free(self) -> list[int]:
        return [
            k for k in range(1, self.shape.keys + 1) if k not in self.rows and k not in self.locked
        ]

    def truncate(self, to: Transaction) -> None:  # type: ignore[override]
        """Waits for every other transaction that has a row, also one not visible yet."""
        if self.locked or self.dice.random() < 0.5:
            return
        to.alone = True
        self.rows.clear()
        to.add("t")

    # -- ALTER TABLE ----------------------------------------------------------------------------

    def can_alter(self) -> bool:
        """Whether nobody has a lock on the table."""
        return not any(t.rows or t.alone for t in (*self.open, *self.hidden))

    def alter(self, how: Alter) -> None:
        """All rows are other ones, and none of them is in the log."""
        self.altered = how
        self.lsn += STEP
        self.newest_ended = max(self.newest_ended, self.new_xid())
        self.flush()
        self.seen = {key: how.row(row) for key, row in self.seen.items()}

    def _new_row(self, key: int) -> Row:
        row = super()._new_row(key)
        if self.altered is None:
            return row
        if self.altered.kind == ADD:
            return {**row, NEW: self.dice.choice([None, 5, 7])}
        return self.altered.row(row)

    def _changed(self, row: Row, *, key: int | None = None) -> Row:
        if self.altered is None:
            return super()._changed(row, key=key)
        new = super()._changed(self.altered.named_as_before(row), key=key)
        if self.altered.kind == ADD and self.dice.random() < 0.3:
            new[NEW] = self.dice.choice([None, 5, 7])
        return self.altered.row(new)

    def _before(self, row: Row) -> Row:
        if self.altered is None or self.shape.full:
            return super()._before(row)
        return {**dict.fromkeys(row), "id": row["id"]}

    def _image(self, old: Row, new: Row) -> Row:
        if self.altered is None:
            return super()._image(old, new)
        former = self.altered.named_as_before
        return self.altered.row(super()._image(former(old), former(new)))

    # -- ends -----------------------------------------------------------------------------------

    def commit(self, of: Transaction) -> None:  # type: ignore[override]
        """Into the log; visible at once unless the history is `slow`."""
        self.open.remove(of)
        if of.xid is None:
            return
        self.lsn += STEP
        ts = len(self.history) * 1000 + self.dice.randrange(1500)
        self.history.append(Committed(of.xid, self.lsn, ts, of.changes, of.rows, of.reads))
        of.index = len(self.history) - 1
        self.hidden.append(of)
        if not self.slow:
            self.show(of)

    def show(self, of: Transaction) -> None:
        """The end of a commit: its changes are visible, its locks are gone."""
        self.hidden.remove(of)
        if of.durable:
            self.flush(of.index + 1)
        for key, row in of.rows.items():
            self.seen_at[key] = of.index
            if row is None:
                self.seen.pop(key, None)
            else:
                self.seen[key] = row
        self.newest_ended = max(self.newest_ended, of.xid or 0)

    def rollback(self, of: Transaction) -> None:
        self.open.remove(of)
        self.newest_ended = max(self.newest_ended, of.xid or 0)

    def flush(self, end: int | None = None) -> None:
        """The log up to here is durable, and the connector may read it."""
        self.durable = max(self.durable, len(self.history) if end is None else end)

    def crash(self) -> None:
        """What is not durable never was; what is, is visible. A new life of the server begins."""
        del self.history[self.durable :]
        self.open, self.hidden = [], []
        self.seen, self.seen_at = self.state(self.durable)
        self.lsn = max([self.sampled, *(c.commit for c in self.history[-1:]), FIRST_LSN]) + STEP
        self.newest_ended = max([FIRST_XID, *(c.xid for c in self.history)])
        self.next_xid = self.newest_ended + 1
        self.starts += 1

    def state(self, end: int) -> tuple[dict[int, Row], dict[int, int]]:
        """Rows after the first `end` commits, and the newest commit of each key."""
        rows, newest = dict(self.initial), {}
        for index, committed in enumerate(self.history[:end]):
            for key, row in committed.rows.items():
                newest[key] = index
                if row is None:
                    rows.pop(key, None)
                else:
                    rows[key] = row
        if self.altered is not None:
            rows = {key: self.altered.row(row) for key, row in rows.items()}
        return rows, newest

    def end_of_log(self) -> int:
        """Where the log ends; it has records of others, too."""
        self.lsn += STEP * self.dice.randint(0, 2)
        return self.lsn

    def new_record(self) -> int:
        """Where one more record begins."""
        where = self.end_of_log()
        self.lsn += STEP
        return where

    # -- proofs ---------------------------------------------------------------------------------

    def new_xid(self) -> int:
        self.next_xid += 1
        return self.next_xid - 1

    @property
    def server(self) -> Server:
        return Server(f"start-{self.starts}", 1)

    def snapshot(self) -> Snapshot:
        """``pg_current_snapshot()``."""
        xmax = self.newest_ended + 1
        running = [t.xid for t in (*self.open, *self.hidden) if t.xid and t.xid < xmax]
        return Snapshot(min(running, default=xmax), xmax, self.server)

    def end_of_a_transaction(self) -> None:
        """A transaction with an id that changes nothing: ``SELECT pg_current_xact_id()``."""
        self.newest_ended = max(self.newest_ended, self.new_xid())

    def can_read(self) -> bool:
        """Whether a SELECT need not wait for a truncate."""
        return not any(t.alone for t in (*self.open, *self.hidden))


def new_source(shape: Shape, dice: random.Random, **more: Any) -> Source:
    return Source(shape, dice, **more)


def describe(change: Change) -> str:
    """An event in the words of the scenarios."""
    if "signal" in change:
        return str(change["signal"][0])
    rest = "".join(f" {n}={change[n]}" for n in ("new_key", "old_key", "bad") if change.get(n))
    after = change.get("after")
    cells = "" if after is None else f" = {cells_of(after)}"
    return f"{change['op']} {change.get('key', '')}{cells}{rest}"


def cells_of(row: Row) -> str:
    return "/".join(str(row[name])[:28] for name in ("a", "b", "c", "d") if name in row)


def keys_of(changes: Iterable[tuple[int, Change]]) -> set[int]:
    return {change["key"] for _, change in changes if "key" in change}
