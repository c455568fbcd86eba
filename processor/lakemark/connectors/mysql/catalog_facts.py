"""The facts about the captured tables in MySQL's or MariaDB's catalog at one moment; pure.

Two such moments are compared by `catalog_differences`. The facts are kept as JSON between two
looks, so everything here is a plain value.
"""

from collections.abc import Mapping
from typing import Self

import msgspec

from lakemark.connectors.catalog_changes import Cascades, TableLook
from lakemark.connectors.mysql.positions import pack


class ColumnFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """One column.

    Attributes:
        name: of it.
        type: as the catalog writes it, such as ``int(10) unsigned``, in lower case but for labels.
        base: its base type, such as ``int``.
        nullable: whether it may be NULL.
        charset: of its texts; "" for others.
        generated: whether the database computes it.
    """

    name: str
    type: str
    base: str
    nullable: bool = True
    charset: str = ""
    generated: bool = False


class Cascade(msgspec.Struct, frozen=True, omit_defaults=True):
    """A foreign key that changes or deletes rows of its table without an event.

    Attributes:
        name: of the constraint.
        parent: the table that it refers to.
        updates: whether it does so also when an event updates the parent's row. A change of the
            parent's own key comes as a delete and a create.
    """

    name: str
    parent: str
    updates: bool = False


class TableFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """One captured table, as a `TableLook`.

    Attributes:
        name: its text.
        made: when the table, or its present form, was made, by the server's clock; "" where the
            engine does not say it. DROP and CREATE, TRUNCATE, and statements that write the table
            anew change it.
        columns: in the table's order.
        key: columns of the key, in its order: the primary one, else the unique index that the
            connector takes; empty if there is none.
        partitions: their names, in the table's order; none of a table without.
        cascades: foreign keys that change or delete its rows without an event.
    """

    name: str
    made: str = ""
    columns: tuple[ColumnFacts, ...] = ()
    key: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    cascades: tuple[Cascade, ...] = ()

    @property
    def column_names(self) -> tuple[str, ...]:
        """See `TableLook`."""
        return tuple(column.name for column in self.columns)

    @property
    def numerics(self) -> frozenset[str]:
        """See `TableLook`: every decimal has its scale."""
        return frozenset()

    @property
    def has_key(self) -> bool:
        """See `TableLook`."""
        return bool(self.key)

    @property
    def is_whole(self) -> bool:
        """See `TableLook`: the log has all of a table."""
        return True

    @property
    def changed_by(self) -> Cascades:
        """See `TableLook`."""
        updating = {one.parent for one in self.cascades if one.updates}
        return {one.parent: one.parent in updating for one in self.cascades}

    @property
    def may_fill(self) -> bool:
        """See `TableLook`: nothing in the catalog proves which rows are older than a column."""
        return False

    def forgotten(self) -> Self:
        """See `TableLook`."""
        return msgspec.structs.replace(self, made="forgotten")


class SourceFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The server and the captured tables: a `CatalogLook`.

    Attributes:
        server_id: as it writes it into its log.
        server_uuid: MySQL's own; "" of MariaDB.
        version: as it says it.
        file: number of the log file in which the log ended after all of this was seen.
        pos: place in it; 0 where we must not ask.
        tables: by their texts.
    """

    server_id: int = 0
    server_uuid: str = ""
    version: str = ""
    file: int = 0
    pos: int = 0
    tables: dict[str, TableFacts] = {}

    @property
    def end(self) -> bytes:
        """See `CatalogLook`."""
        return pack(0, self.file, self.pos)[4:]

    def kept(self, before: "SourceFacts | None") -> "SourceFacts":  # noqa: ARG002
        """See `CatalogLook`: of the log's end nothing."""
        return msgspec.structs.replace(self, file=0, pos=0)

    def having(self, tables: Mapping[str, TableLook]) -> "SourceFacts":
        """See `CatalogLook`."""
        ours = {name: table for name, table in tables.items() if isinstance(table, TableFacts)}
        return msgspec.structs.replace(self, tables=ours)
