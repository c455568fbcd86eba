"""What writers do in a simulated history: one statement, one end at a time, or small plots."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.kit.simulation.connector import Connector
from tests.kit.simulation.coordinator import Coordinator
from tests.kit.simulation.source import Source, Transaction
from tests.kit.simulation.world import World

Step = Callable[[], object]


class Writes:
    """The steps of `History` that write."""

    dice: random.Random
    world: World
    source: Source
    connector: Connector
    coordinator: Coordinator
    incremental: dict[int, Any] | None
    incremental_since: int
    note: Callable[..., None]
    _read_at_once: Callable[..., None]

    def _writers(self) -> list[Transaction]:
        ticks = [c.tick.transaction for c in self.coordinator.chains() if c.tick is not None]
        return [t for t in self.source.open if t not in ticks]

    def _of_source(self) -> list[tuple[float, Step]]:
        source, dice, found = self.source, self.dice, []
        writers = self._writers()
        if len(writers) < 3:
            found.append((9.0, self._begin))
        if writers:
            one = dice.choice(writers)
            found += [(6.0, lambda: self._statement(one)), (16.0, lambda: self._commit(one))]
            found.append((0.7, lambda: self._rollback(one)))
        if source.hidden:
            found.append((6.0, lambda: source.show(dice.choice(source.hidden))))
        if source.durable < len(source.history):
            found.append((4.0, source.flush))
        if self.world.loses and not self.connector.in_snapshot():
            found.append((0.5, self._crash_server))
        return found

    def _begin(self) -> None:
        self._statement(self.source.begin())

    def _statement(self, of: Transaction) -> None:
        self.source.statement(of)
        if of.changes and self.world.bad and self.dice.random() < self.world.bad:
            change = of.changes[-1][1]
            if change["op"] in {"c", "u"} and "old_key" not in change:
                change["bad"] = self.dice.choice(["value", "value", "key"])

    def _commit(self, of: Transaction) -> None:
        self.source.commit(of)
        self.note("commit", f"#{len(self.source.history) - 1} x={of.xid}")

    def _rollback(self, of: Transaction) -> None:
        self.source.rollback(of)

    def _write_some(self, count: int) -> None:
        for _ in range(count):
            writer = self.source.begin()
            if self.dice.random() < 0.4:
                writer = self._displace(writer)
            else:
                self._statement(writer)
            self._commit(writer)
            if self.source.hidden and self.dice.random() < 0.5:
                self.source.show(self.dice.choice(self.source.hidden))

    def _displace(self, writer: Transaction) -> Transaction:
        """A row leaves its key, and another takes it: in one transaction or in two."""
        source, dice = self.source, self.dice
        every = range(1, self.world.shape.keys + 1)
        taken, free = (
            [k for k in every if k in source.seen],
            [k for k in every if k not in source.seen],
        )
        if not taken:
            return writer
        one = dice.choice(taken)
        if free and dice.random() < 0.7:
            other = dice.choice(free)
            leaves = partial(source.move_to, old=one, new=other)
            comes = partial(source.insert_at, key=one)
        else:
            other = dice.choice(every)
            leaves = partial(source.delete_at, key=one)
            comes = partial(source.move_to, old=other, new=one)
        source.statement(writer, leaves)
        if dice.random() < 0.7:
            self._commit(writer)
            writer = source.begin()
        source.statement(writer, comes)
        return writer

    def _crash_server(self) -> None:
        unread = self.coordinator.unread()
        if unread and self.source.can_read() and self.dice.random() < 0.5:
            self._write_some(2)  # seen by a chunk, and lost if it was not flushed
            if self.source.can_read():
                self._read_at_once(self.dice.choice(unread))
        self._die()

    def _die(self) -> None:
        """The server dies, and what was not durable with it."""
        lost = len(self.source.history) - self.source.durable
        self.source.crash()
        self.coordinator.server_died()
        self.connector.restart(self.dice.choice([0, 1, 9]))
        self.incremental = None
        self.note("crash", f"of the server: {lost} commits are lost")

    def _incremental(self) -> None:
        """Debezium's incremental snapshot: rows read now, emitted behind a later close row."""
        source = self.source
        if self.incremental is None:
            # Stale if a commit is not visible yet. Of a row that is gone by then, a stale read is
            # a ghost that nothing can know to be one: those are left out.
            gone = {k for t in source.hidden for k, row in t.rows.items() if row is None}
            self.incremental = {k: row for k, row in source.seen.items() if k not in gone}
            self.incremental_since = len(source.history)
            return
        since = source.history[self.incremental_since :]
        touched = {key for committed in since for key in committed.rows}
        close = source.begin()
        close.add("c", signal=("debezium-close", "snapshot-window-close", "{}"))
        close.reads = {k: row for k, row in self.incremental.items() if k not in touched}
        source.commit(close)
        self.incremental = None
