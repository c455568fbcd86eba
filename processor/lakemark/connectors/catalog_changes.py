"""Looks at a source's catalog, and the changes that two of them show and no event tells.

Pure. What is in a look, and how two of them are compared, is for the database to know (`Database`).
To others a look is a value that is kept as JSON until the next one; what they may ask of it stands
in `CatalogLook` and `TableLook`.

The log has rows that were inserted, updated and deleted. It does not have what the definition of a
table does to the rows that are there. So each difference of the catalog says what has become of the
rows of its table's copy:

action      means
----------  ----------------------------------------------------------------------------------------
NOTHING     the copy is right; or it is for others to see to it
FILL        rows of the copy lack values that are known: they get them, see `fills`. Only the watch
            says so, of a table of which `Database.are_fills` does
READ_AGAIN  rows of the copy may be wrong, and none is told again: the table has to be snapshotted
REBUILD     the copy has to be made anew: only the table's policy says so, see `catalog_policies`
STOP        further events would make it wrong, or there are none: somebody has to mend it first
GONE        there is no such table any more

What is in doubt is read again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final, Protocol, Self

Cascades = Mapping[str, bool]
"""By parent whether its updates change a child's rows without an event; its deletes do always."""

NO_CASCADES: Final[Cascades] = MappingProxyType({})

SourceKeys = Mapping[str, Sequence[str]]
"""By table the columns of its key, in their order."""

NO_KEYS: Final[SourceKeys] = MappingProxyType({})


class Action(IntEnum):
    """The action that a difference asks for; stored by number."""

    NOTHING = 0
    FILL = 5
    READ_AGAIN = 1
    REBUILD = 2
    STOP = 3
    GONE = 4


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that is not as it was, or that must not be as it is.

    Attributes:
        table: as the lake knows it; "" for the server and what it keeps for the connector.
        kind: stable name, kebab case. `catalog_policies.KINDS` has those that a table's policy is
            about; the others are the database's own.
        action: what it asks for.
        what: one sentence for operators.
        hint: the statement or command that mends it; "" if nothing is to be done.
        column: the column concerned, by its name of now, or by its last one.
        other: the name that something had before, or has now: of a table, a column, a label, or of
            partitions.
        fill: the value that rows hold which are older than the column, as text; None if there is
            no such value.
        key: the key's columns of now, where they have other names than before.
        refused: whether it is the table's policy that stops it, and not what the change does.
        at_once: whether it stops also a table of which nothing has come: the first event of it
            would be lost.
    """

    table: str
    kind: str
    action: Action
    what: str
    hint: str = ""
    column: str = ""
    other: str = ""
    fill: str | None = None
    key: tuple[str, ...] = ()
    refused: bool = False
    at_once: bool = False


def read_again(
    table: str,
    kind: str,
    what: str,
    *,
    column: str = "",
    other: str = "",
    fill: str | None = None,
) -> Difference:
    """Return a difference that has its table read again; arguments as `Difference` has them."""
    hint = f"lakemark snapshot start {table}"
    return Difference(table, kind, Action.READ_AGAIN, what, hint, column, other, fill)


class TableLook(Protocol):
    """The findings of one look about a table: a msgspec struct, which JSON holds."""

    @property
    def name(self) -> str:
        """As events have it."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """Its columns, in the table's order."""

    @property
    def numerics(self) -> frozenset[str]:
        """The columns that hold decimal numbers of any scale."""

    @property
    def has_key(self) -> bool:
        """Say whether the table itself says which columns tell its rows apart."""

    @property
    def is_whole(self) -> bool:
        """Say whether every row and every column of it is sent."""

    @property
    def changed_by(self) -> Cascades:
        """The tables whose changes change its rows, by foreign keys, without an event."""

    @property
    def may_fill(self) -> bool:
        """Say whether `Database.are_fills` may ever be true of it."""

    def forgotten(self) -> Self:
        """Return the same as of another table, which had this name before it was gone."""


class CatalogLook(Protocol):
    """The findings of one look: a msgspec struct, which JSON holds."""

    @property
    def tables(self) -> Mapping[str, TableLook]:
        """The captured tables that are there, by name."""

    @property
    def end(self) -> bytes:
        """The end of the log after all of this was seen, as a position behind its epoch."""

    def kept(self, before: Self | None) -> Self:
        """Return what is kept of it for the next look.

        It equals what was kept before where nothing has changed that anybody has to know.

        Args:
            before: what was kept of the look before; None for none.
        """

    def having(self, tables: Mapping[str, TableLook]) -> Self:
        """Return the same with these tables instead of its own."""


def children_of(look: CatalogLook) -> dict[str, Cascades]:
    """Return all tables that change without an event with another one's rows, by the latter.

    Theirs as well that follow those: nothing tells the change in between either. What follows a
    row's own change goes as far as what follows its end.

    Args:
        look: at the captured tables.

    Returns:
        by table, see `Cascades`: whether its updates do it, too.
    """
    near: dict[str, dict[str, bool]] = {}
    named = {table.name: name for name, table in look.tables.items()}  # see `QualifiedDatabase`
    for child, table in look.tables.items():
        for parent, updates in table.changed_by.items():
            near.setdefault(named.get(parent, parent), {})[child] = updates
    found: dict[str, Cascades] = {}
    for parent, children in near.items():
        every = _below(near, children)
        updating = _below(near, [child for child, updates in children.items() if updates])
        found[parent] = {child: child in updating for child in sorted(every)}
    return found


def _below(near: Mapping[str, Mapping[str, bool]], tables: Iterable[str]) -> set[str]:
    """Return tables and all that follow them."""
    found: set[str] = set()
    waiting = [*tables]
    while waiting:
        table = waiting.pop()
        if table not in found:
            found.add(table)
            waiting += near.get(table, {})
    return found
