"""A simulated PostgreSQL table and the log that its Debezium connector reads.

`Database` runs transactions on one table and writes its log in commit order;
`log_records.Connector` emits the log to the partitions of one topic, with restarts, records lost in
flight and snapshots of its own.
The events are those of Debezium 3.7 on PostgreSQL 15 (tests/golden has real ones): TOAST
placeholders, key changes in two halves, truncates without a key, JSON with and without the schema
wrapper.

Facts that shape it: LSNs are multiples of 8; own LSNs of transactions interleave while commits do
not, and the first change of a transaction that follows at once has the LSN at which the commit
before it ends; PostgreSQL refuses updates of a published table whose primary key is deferrable
unless its replica identity is FULL, and with FULL the connector knows every column.
"""

import base64
import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from lakemark.model.schema import TableSchema, from_envelope

STEP = 8  # PostgreSQL aligns its records
TABLE = "public.things"
TOPIC = "shop.public.things"
COLUMNS = ("id", "a", "b", "c")
PLACEHOLDER = "__debezium_unavailable_value"
BYTES_PLACEHOLDER = base64.b64encode(PLACEHOLDER.encode()).decode()
_FIELDS = [
    {"type": "int64", "optional": False, "field": "id"},
    {"type": "int32", "optional": True, "field": "a"},
    {"type": "string", "optional": True, "field": "b"},
    {"type": "bytes", "optional": True, "field": "c"},
]
_VALUE = {"type": "struct", "fields": _FIELDS, "optional": True, "name": "shop.public.things.Value"}
VALUE_SCHEMA = {
    "type": "struct",
    "fields": [
        {**_VALUE, "field": "before"},
        {**_VALUE, "field": "after"},
        {"type": "struct", "fields": [], "optional": False, "field": "source"},
        {"type": "string", "optional": False, "field": "op"},
    ],
    "optional": False,
    "name": "shop.public.things.Envelope",
    "version": 2,
}
KEY_SCHEMA = {"type": "struct", "fields": [_FIELDS[0]], "optional": False, "name": "Key"}

GRID = 2 * STEP * 64  # in it every transaction has a place of its own
Row = dict[str, Any]


def table_schema() -> TableSchema:
    return from_envelope(TABLE, VALUE_SCHEMA, KEY_SCHEMA)


@dataclass(frozen=True)
class Shape:
    """What a history may hold.

    Attributes:
        partitions: of the topic.
        wrapped: JSON with the schema wrapper.
        full: REPLICA IDENTITY FULL: whole before images, no placeholders.
        deferrable: a deferrable key (`full` then): rows may share it until their transaction ends.
        truncates, reads, snapshots, restarts: whether there are any.
        transactions: how many.
        keys: ids are 1 … keys.
    """

    partitions: int = 2
    wrapped: bool = False
    full: bool = False
    deferrable: bool = False
    truncates: bool = True
    reads: bool = True
    snapshots: bool = True
    restarts: bool = True
    transactions: int = 8
    keys: int = 6


def shapes(*, transactions: int, keys: int) -> st.SearchStrategy[Shape]:
    """Shapes to be drawn, of at most so many transactions and keys."""
    return st.builds(
        Shape,
        partitions=st.integers(1, 3),
        wrapped=st.booleans(),
        full=st.booleans(),
        transactions=st.integers(1, transactions),
        keys=st.integers(2, keys),
    )


@dataclass(frozen=True)
class Entry:
    """One event of the log, before it is bytes."""

    op: str
    sequence: tuple[int | None, int]
    ts: int
    key: int | None = None
    before: Row | None = None
    after: Row | None = None
    snapshot: str = "false"
    new_key: int | None = None
    old_key: int | None = None


@dataclass(frozen=True)
class Record:
    """One Kafka record."""

    key: bytes | None
    value: bytes | None
    headers: list[dict[str, Any]]
    entry: int  # index in the log


@dataclass
class Database:
    """One table under random transactions. `rows` is what every mirror must come to."""

    shape: Shape
    dice: random.Random
    rows: dict[int, Row] = field(default_factory=dict)
    log: list[Entry] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)  # log indices that no restart goes behind
    transaction: int = 0
    committed: int = 10_000 + STEP  # unlike the changes' LSNs no multiple of 16
    fresh_slot: bool = False
    sampled: int = 0  # LSN of the last snapshot

    # -- transactions ---------------------------------------------------------------------------

    def run(self) -> "Database":
        """A whole history; half of them begin with the connector's own snapshot of some rows."""
        if self.shape.snapshots and self.dice.random() < 0.5:
            self.commit(lost=True)
            self.own_snapshot()
        for _ in range(self.shape.transactions):
            self.commit()
            if self.shape.reads and self.dice.random() < 0.15:
                self.incremental_read()
            if self.shape.snapshots and self.dice.random() < 0.06:
                self.own_snapshot()
        return self

    def commit(self, *, lost: bool = False) -> None:
        """One transaction of one to five statements; `lost` ones no connector sees."""
        self.transaction += 1
        open_ = _Transaction(self)
        for _ in range(self.dice.choice([1, 1, 1, 2, 3, 5])):
            self._statement(open_, lost=lost)
        if not lost:
            self.log += open_.entries()
            self.fresh_slot = self.fresh_slot and not open_.changes
        self.committed = open_.end()

    def _statement(self, to: "_Transaction", *, lost: bool) -> None:
        choices = [(4, self.insert), (5, self.update)]
        if not lost:
            choices += [(3, self.delete), (5, self.move), (1, self.chain), (1, self.copy)]
            if self.shape.truncates:
                choices.append((1, self.truncate))
            if self.shape.deferrable:
                choices += [(3, self.shift), (2, self.collide), (1, self.swap)]
        weights = [weight for weight, _ in choices]
        self.dice.choices([do for _, do in choices], weights)[0](to)

    def _free(self) -> list[int]:
        return [k for k in range(1, self.shape.keys + 1) if k not in self.rows]

    def _new_row(self, key: int) -> Row:
        return {
            "id": key,
            "a": self.dice.choice([None, 1, 2]),
            "b": self._text(),
            "c": self._blob(),
        }

    def _text(self) -> str | None:
        n = self.dice.randrange(1000)
        return self.dice.choice([None, "small", f"T{n}", f"T{n}", f"T{n}"])

    def _blob(self) -> bytes | None:
        n = self.dice.randrange(1000)
        return self.dice.choice([None, b"small", b"T%d" % n, b"T%d" % n])

    def _changed(self, row: Row, *, key: int | None = None) -> Row:
        new = {**row, "a": self.dice.choice([None, 1, 2])}
        if key is not None:
            new["id"] = key
        if self.dice.random() < 0.3:
            new["b"] = self._text()
        if self.dice.random() < 0.3:
            new["c"] = self._blob()
        return new

    def insert(self, to: "_Transaction") -> None:
        if free := self._free():
            row = self._new_row(self.dice.choice(free))
            self.rows[row["id"]] = row
            to.add("c", key=row["id"], after=row)

    def copy(self, to: "_Transaction") -> None:
        """Rows of one COPY share one WAL record."""
        for n, key in enumerate(self._free()[:3]):
            self.rows[key] = self._new_row(key)
            to.add("c", key=key, after=self.rows[key], same_record=n > 0)

    def update(self, to: "_Transaction") -> None:
        if self.rows:
            self.update_at(to, self.dice.choice(list(self.rows)))

    def update_at(self, to: "_Transaction", key: int) -> None:
        if key in self.rows:
            old = self.rows[key]
            new = self.rows[old["id"]] = self._changed(old)
            to.add("u", key=old["id"], before=old if self.shape.full else None,
                   after=self._image(old, new))  # fmt: skip

    def delete(self, to: "_Transaction") -> None:
        if self.rows:
            old = self.rows.pop(self.dice.choice(list(self.rows)))
            to.add("d", key=old["id"], before=self._before(old))

    def move(self, to: "_Transaction") -> None:
        """A key change to a free key."""
        if self.rows and (free := self._free()):
            old = self.rows.pop(self.dice.choice(list(self.rows)))
            self._arrive(to, old, self.dice.choice(free))

    def chain(self, to: "_Transaction") -> None:
        """1 → 2 → 3 in one transaction."""
        if self.rows:
            key = self.dice.choice(list(self.rows))
            for _ in range(2):
                if free := self._free():
                    next_key = self.dice.choice(free)
                    self._arrive(to, self.rows.pop(key), next_key)
                    key = next_key

    def truncate(self, to: "_Transaction") -> None:
        self.rows.clear()
        # Its lock waits for the snapshot's reads, or they for it: it is not older than they are.
        to.place = max(to.place, self.sampled + GRID)
        to.add("t")

    # -- only under a deferrable key --------------------------------------------------------------

    def shift(self, to: "_Transaction") -> None:
        """`id = id + 1` over neighbouring keys, in ascending order: d1 c2 d2 c3 …"""
        if not self.rows:
            return
        first = self.dice.choice(list(self.rows))
        run = [first]
        while run[-1] + 1 in self.rows and self.dice.random() < 0.9:
            run.append(run[-1] + 1)
        if run[-1] + 1 in self.rows:
            return
        moving = [self.rows.pop(key) for key in run]
        for row in moving:
            self._arrive(to, row, row["id"] + 1)

    def swap(self, to: "_Transaction") -> None:
        if len(self.rows) > 1:
            one, two = (self.rows.pop(k) for k in self.dice.sample(list(self.rows), 2))
            self._arrive(to, one, two["id"])
            self._arrive(to, two, one["id"])

    def collide(self, to: "_Transaction") -> None:
        """A row moves to a taken key, then one of the two goes."""
        if len(self.rows) < 2:
            return
        one, two = (self.rows.pop(k) for k in self.dice.sample(list(self.rows), 2))
        self._arrive(to, one, two["id"])
        here = self.rows.pop(two["id"])
        goes, stays = self.dice.sample([here, two], 2)
        free = [k for k in self._free() if k != two["id"]]
        if free and self.dice.random() < 0.5:
            self._arrive(to, goes, self.dice.choice(free))
        else:
            to.add("d", key=goes["id"], before=self._before(goes))
        self.rows[stays["id"]] = stays

    def _arrive(self, to: "_Transaction", old: Row, key: int) -> None:
        """The two halves of a key change."""
        new = self.rows[key] = self._changed(old, key=key)
        to.add("d", key=old["id"], before=self._before(old), new_key=key)
        to.add("c", key=key, after=self._image(old, new), old_key=old["id"], same_record=True)

    # -- images -----------------------------------------------------------------------------------

    def _before(self, row: Row) -> Row:
        return row if self.shape.full else {"id": row["id"], "a": None, "b": None, "c": None}

    def _image(self, old: Row, new: Row) -> Row:
        """The after image: stored values that did not change are not in the log."""
        if self.shape.full:
            return new
        image = dict(new)
        for name, mark in (("b", PLACEHOLDER), ("c", PLACEHOLDER.encode())):
            value = new[name]
            if value is not None and value[:1] in {"T", b"T"} and value == old[name]:
                image[name] = mark
        return image

    # -- reads ------------------------------------------------------------------------------------

    def incremental_read(self) -> None:
        """A chunk of Debezium's incremental snapshot, at the position of its close row."""
        self.transaction += 1
        close = _Transaction(self)
        where = close.number()
        sequence = (None if self.fresh_slot else self.committed, where)
        for key, row in sorted(self.rows.items()):
            if self.dice.random() < 0.7:
                self.log.append(
                    Entry("r", sequence, close.ts, key, after=row, snapshot="incremental")
                )
        self.committed = close.end()
        self.fresh_slot = False

    def own_snapshot(self) -> None:
        """The connector is created anew. What it missed are inserts and updates only."""
        for _ in range(self.dice.choice([0, 0, 1])):
            self.commit(lost=True)
        for _ in range(self.dice.choice([1, 1, 2])):  # the second: it died in the first
            self.sampled = self.committed = self.committed + 10 * GRID
            ts = self.transaction * 1000
            keys = sorted(self.rows)
            for key in keys:
                mark = "last" if key == keys[-1] else "true"
                self.log.append(
                    Entry("r", (None, self.committed), ts, key, after=self.rows[key], snapshot=mark)
                )
        self.fences.append(len(self.log))
        self.fresh_slot = True


class _Transaction:
    """The changes of an open transaction; their LSNs may lie before the last commit."""

    def __init__(self, database: Database) -> None:
        dice = database.dice
        self.database = database
        self.place = database.committed - GRID * dice.choice([0, 0, 2, 9])
        if database.fresh_slot:  # a slot's first transaction begins after it
            self.place = database.committed
        self.ts = database.transaction * 1000 + dice.randrange(1500)
        self.changes: list[tuple[int, dict[str, Any]]] = []

    def number(self) -> int:
        """The next LSN of this transaction; no other transaction has the same."""
        database = self.database
        if self.place == database.committed and not self.changes and database.dice.random() < 0.3:
            return self.place  # it follows at once
        self.place += GRID * database.dice.randint(1, 3)
        return self.place - self.place % GRID + 2 * STEP * (database.transaction % 64)

    def add(self, op: str, *, same_record: bool = False, **rest: Any) -> None:
        where = self.changes[-1][0] if same_record else self.number()
        self.changes.append((where, {"op": op, **rest}))

    def entries(self) -> list[Entry]:
        before = None if self.database.fresh_slot else self.database.committed
        return [Entry(sequence=(before, at), ts=self.ts, **rest) for at, rest in self.changes]

    def end(self) -> int:
        """LSN of the commit."""
        return max(self.place, self.database.committed) + GRID


# -- the connector ---------------------------------------------------------------------------------
