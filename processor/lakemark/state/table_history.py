"""The definitions of a connector's tables by place in the log, as far as they are needed; pure.

Two tell of them. The schema topic has the very place of each statement, in the connector's words.
The catalog has the newest definition, the authority for all that the connector's words leave open,
but not since when. So:

- the first definition of a table is what the catalog had when the table was first known;
- a record of the schema topic puts one at its place;
- where the catalog has another one than the newest, a statement is in the log that no record has
  told of yet. Rows before it may still come, so nothing changes; but once the catalog has been
  looked at again, all that comes from the end of the log of then on is read by it.

Records of one topic come in the log's order, but nothing orders them against the events of others.
One that comes when events behind it have been read already is *late*: these may have been read by
the wrong definition, and the table is read again.

What is left of a table that has passed its last statement is what the catalog has.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from lakemark.model import positions
from lakemark.model.definitions import (
    Definition,
    Definitions,
    StoredDefinition,
    above,
    alike,
    in_force,
    inserted,
    stored,
    without_repeats,
)
from lakemark.model.schema import TableSchema

MOST: Final = 50
"""Definitions of a table. Partitions without events hold up for ever what all have to pass."""
MOST_STRANGERS: Final = 1000
"""Tables that the catalog has not shown: some are made and dropped before anybody looks."""


class _Kept(msgspec.Struct, omit_defaults=True):
    """The stored form of a history.

    Attributes:
        modes: how the connector wrote values then: columns are read otherwise under others.
        epoch: the newest one of its log.
        read: where reading of its schema topic goes on.
        tables: their definitions.
        untold: see `TableHistory`.
    """

    modes: str = ""
    epoch: int = 0
    read: dict[int, int] = {}
    tables: dict[str, list[StoredDefinition]] = {}
    untold: list[str] = []


@dataclass(slots=True)
class TableHistory:
    """The definitions of one connector's tables.

    Attributes:
        modes: a text of the connector's handling modes.
        epoch: the newest one of its log.
        read: by partition, where reading of its schema topic goes on; empty before the first time.
        tables: by name, in the log's order.
        behind: tables read by the catalog's definition alone, as records did not fit the newest
            one that is known: the record of the statement has not come.
        untold: tables of which events may have been read by what the catalog had, or had not yet:
            of the statement no record has come.
        catalog: what the catalog had of tables when it was read last.
        differs: the time by which it was read, of those that have another definition there than
            the newest one.
    """

    modes: str = ""
    epoch: int = 0
    read: dict[int, int] = field(default_factory=dict)
    tables: dict[str, Definitions] = field(default_factory=dict)
    behind: set[str] = field(default_factory=set)
    untold: set[str] = field(default_factory=set)
    catalog: dict[str, TableSchema] = field(default_factory=dict)
    differs: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, blob: bytes | None, modes: str) -> "TableHistory":
        """Return what was stored; nothing under other modes, or in another form."""
        try:
            kept = msgspec.json.decode(blob or b"{}", type=_Kept)
            tables = {
                table: tuple(one.definition() for one in found)
                for table, found in kept.tables.items()
            }
        except (msgspec.MsgspecError, KeyError, ValueError):
            return cls(modes)
        if kept.modes != modes or not all(tables.values()):
            return cls(modes, kept.epoch, kept.read)
        return cls(modes, kept.epoch, kept.read, tables, untold={*kept.untold})

    def to_json(self) -> bytes:
        """Return what is stored."""
        return msgspec.json.encode(
            _Kept(self.modes, self.epoch, self.read, stored(self.tables), sorted(self.untold))
        )

    def differs_from(self, other: "TableHistory") -> bool:
        """Say whether other things would be stored of it."""
        mine, theirs = ((one.modes, one.epoch, one.read, one.untold) for one in (self, other))
        return mine != theirs or self.tables != other.tables

    def copied(self) -> "TableHistory":
        """Return another one that is equal; definitions do not change."""
        return replace(
            self,
            read={**self.read},
            tables={**self.tables},
            behind={*self.behind},
            untold={*self.untold},
            catalog={**self.catalog},
            differs={**self.differs},
        )

    def is_in_epoch(self, number: int) -> None:
        """Forget places in an older epoch: those of the new one begin anew."""
        if number != self.epoch:
            self.epoch, self.tables, self.behind, self.untold = number, {}, set(), set()
            self.catalog, self.differs = {}, {}

    def has(self, table: str, schema: TableSchema, *, now: float) -> None:
        """Take in what the catalog has of a table.

        Args:
            table: its name.
            schema: as the catalog was last read.
            now: a time by which it had been read.
        """
        if self.catalog.get(table) is schema:
            return
        self.catalog[table] = schema
        known = self.tables.get(table)
        if known is None:
            self.tables[table] = (Definition(positions.LOWEST, schema),)
        elif alike(known[-1].schema, schema):
            self.differs.pop(table, None)
        else:
            self.differs[table] = now

    def says(
        self,
        table: str,
        told: Definition,
        *,
        reached: Callable[[str], bytes],
    ) -> bool:
        """Take in what a record of the schema topic says of a table.

        What the catalog has may be older than the statement, so it does not count until it has been
        read again.

        Args:
            table: its name.
            told: the definition.
            reached: the newest position of events of a table that were read before, or `LOWEST`.

        Returns:
            whether it is late, and rows may have been read by another definition.
        """
        known = self.tables.get(table)
        if known is None:  # the catalog is asked for it when its first event comes
            strangers = [name for name in self.tables if name not in self.catalog]
            for name in strangers[: -MOST_STRANGERS or None]:
                del self.tables[name]
            self.tables[table] = (replace(told, position=positions.LOWEST),)
            return False
        at = in_force(known, told.position)
        is_other = table in self.untold or not alike(known[at].schema, told.schema)
        if is_other or at + 1 < len(known):
            self.tables[table] = inserted(known, told)[-MOST:]
        self.behind.discard(table)
        self.untold.discard(table)
        self.differs.pop(table, None)
        return is_other and reached(table) > told.position

    def looked(self, begun: float, end: bytes) -> None:
        """Take in that the log ended at a position when the catalog had been looked at again.

        Args:
            begun: when the look began.
            end: the position.
        """
        for table, read in [*self.differs.items()]:
            known = self.tables[table]
            if read < begun and end > known[-1].position:
                self.tables[table] = (*known, Definition(end, self.catalog[table]))[-MOST:]
                self.untold.add(table)
                del self.differs[table]

    def of_batch(
        self, schemas: Mapping[str, TableSchema], again: Collection[str] = ()
    ) -> dict[str, Definitions]:
        """Return the definitions of tables that have others than the catalog's.

        Args:
            schemas: as the catalog was last read. A table that it lacks has none.
            again: tables whose events did not fit, for which it was read just now.
        """
        found: dict[str, Definitions] = {}
        for table, known in [*self.tables.items()]:
            schema = schemas.get(table)
            if schema is None:
                continue
            if table in again and not (known[-1].told and alike(known[-1].schema, schema)):
                self.behind.add(table)
                self.untold.add(table)
            if len(known) == 1 and known[0].schema is schema:
                continue
            needed = self.tables[table] = tuple(
                replace(one, schema=schema) if alike(one.schema, schema) else one
                for one in without_repeats(known)
            )
            if table not in self.behind and (len(needed) > 1 or needed[0].schema is not schema):
                found[table] = needed
        return found

    def passed(self, tables: Iterable[tuple[str, bytes | None]]) -> None:
        """Drop definitions that no event can have any more.

        Args:
            tables: that stream, and the position that all partitions of each have passed; None
                where that is not known.
        """
        for table, position in tables:
            known = self.tables.get(table)
            if known is None or position is None or len(known) == 1:
                continue
            first, *others = above(known, position)
            self.tables[table] = (replace(first, position=positions.LOWEST), *others)
            if not others:
                self.behind.discard(table)
