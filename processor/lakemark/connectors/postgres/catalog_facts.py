"""The facts about the captured tables in PostgreSQL's catalog at one moment; pure.

Two such moments are compared by `catalog_differences`. The facts are kept as JSON between two
looks, so everything here is a plain value.
"""

from collections.abc import Mapping
from typing import Self

import msgspec

from lakemark.connectors.catalog_changes import NO_CASCADES, Cascades, TableLook

Numbers = tuple[int, ...]
"""Columns, each by its attnum."""


class ColumnFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """One column that is not dropped.

    Attributes:
        number: attnum; never used again for another column of the table.
        name: attname.
        type: its type with the schema, without the modifier.
        modifier: atttypmod; -1 for none.
        missing: the text of the value that rows have which are older than the column; None if they
            hold what they have themselves. Of a partitioned table it is that of a partition.
        default: oid of the default in pg_attrdef, 0 for none. SET DEFAULT makes it anew, and so
            does ALTER TYPE; nothing that rewrites the table as a whole does.
        default_xmin: the transaction that wrote the default's row.
        generated: attgenerated: "" for no, "s" for stored, "v" for virtual.
        xmin: the transaction that wrote the column's row of pg_attribute.
    """

    number: int
    name: str
    type: str
    modifier: int = -1
    missing: str | None = None
    default: int = 0
    default_xmin: int = 0
    generated: str = ""
    xmin: int = 0


class UniqueKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """A unique index that is neither partial nor deferred and has no expressions.

    Attributes:
        name: of the index.
        columns: in its order, without those that it only includes.
        not_null: whether none of them may be NULL.
    """

    name: str
    columns: Numbers
    not_null: bool = False


class PartFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """A partition, or a table that inherits, on whatever level below a table.

    Attributes:
        name: ``schema.table``.
        filenode: 0 where it has no rows of its own.
        toast: as in `TableFacts`.
        uncounted: whether reltuples is below 0: nobody has counted its rows since it was made or
            truncated. Before PostgreSQL 14 never.
        pageless: whether relpages is 0.
        is_first: whether it was made as the part that it is, and holds its rows in its first file:
            then events brought whatever rows it ever had.
        identity: its own replica identity: those of its rows' events follow it.
        identity_columns: as in `TableFacts`; numbers of the table that it is a part of.
    """

    name: str
    filenode: int = 0
    toast: int = 0
    uncounted: bool = False
    pageless: bool = False
    is_first: bool = False
    identity: str = "d"
    identity_columns: Numbers = ()


class TableFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """One captured table, as a `TableLook`.

    Attributes:
        oid: the table's own, whatever it is called.
        name: ``schema.table``.
        kind: "r" for a table, "p" for a partitioned one.
        filenode: of the file with its rows; 0 for a partitioned table.
        toast: oid of its TOAST table; 0 for none. ALTER TABLE makes another one when it rewrites
            the rows; VACUUM FULL, CLUSTER and TRUNCATE keep it.
        logged: whether its changes are in the log at all; not so for UNLOGGED.
        columns: by number.
        width: how many columns it has ever had, the dropped ones included; 0 if a version of
            lakemark looked that did not ask.
        key: columns of the primary key, in its order; empty if there is none.
        unique_keys: the index of the primary key first, then as Debezium prefers them.
        identity: replica identity: "d" default, "n" nothing, "f" full, "i" index.
        identity_columns: those that the old row of an update or delete has. Of a partitioned table
            those that all its partitions have in common.
        labels: by enum type, the labels that values of the table may have, in their order: each
            with its oid in pg_enum. Also of enums in arrays and under domains.
        parts: what is below it, by oid.
        published: whether the publication brings changes of it under its own name.
        published_by: oids of the catalog's rows by which it is; another set is another time.
        row_filter: the publication's condition for its rows.
        column_list: names of columns that the publication has; None for all.
        former: of what is kept, names that columns had in earlier looks and none has now, also
            those of another table of the name: the copy may have values under them, which rows
            that are read without the column leave as they are.
    """

    oid: int
    name: str
    kind: str = "r"
    filenode: int = 0
    toast: int = 0
    logged: bool = True
    columns: tuple[ColumnFacts, ...] = ()
    width: int = 0
    key: Numbers = ()
    unique_keys: tuple[UniqueKey, ...] = ()
    identity: str = "d"
    identity_columns: Numbers = ()
    labels: dict[str, tuple[tuple[int, str], ...]] = {}
    parts: dict[int, PartFacts] = {}
    published: bool = True
    published_by: Numbers = ()
    row_filter: str = ""
    column_list: tuple[str, ...] | None = None
    former: tuple[str, ...] = ()

    def names(self, numbers: Numbers) -> tuple[str, ...]:
        """Return the names of these columns, in this order; those that are gone are left out."""
        by_number = {column.number: column.name for column in self.columns}
        return tuple(by_number[number] for number in numbers if number in by_number)

    def numbers(self, names: tuple[str, ...]) -> Numbers:
        """Return the numbers of these columns, in this order; those that are gone are left out."""
        by_name = {column.name: column.number for column in self.columns}
        return tuple(by_name[name] for name in names if name in by_name)

    @property
    def column_names(self) -> tuple[str, ...]:
        """See `TableLook`."""
        return tuple(column.name for column in self.columns)

    @property
    def numerics(self) -> frozenset[str]:
        """See `TableLook`."""
        return frozenset(column.name for column in self.columns if column.type == "numeric")

    @property
    def has_key(self) -> bool:
        """See `TableLook`."""
        return bool(self.key or self.unique_keys)

    @property
    def is_whole(self) -> bool:
        """See `TableLook`: the publication has all of it."""
        is_listed = self.column_list is None or {*self.column_names} <= {*self.column_list}
        return self.published and not self.row_filter and is_listed

    @property
    def changed_by(self) -> Cascades:
        """See `TableLook`: what a foreign key does is in the log."""
        return NO_CASCADES

    @property
    def may_fill(self) -> bool:
        """See `TableLook`."""
        return self.kind == "r" and self.column_list is None

    def forgotten(self) -> Self:
        """See `TableLook`: a table's oid is never 0."""
        return msgspec.structs.replace(self, oid=0)

    def kept(self, before: "TableFacts | None") -> "TableFacts":
        """Return the same with the names that its columns have had; see `CatalogLook.kept`."""
        if before is None:
            return self
        names = {*before.column_names, *before.former} - {*self.column_names}
        return msgspec.structs.replace(self, former=tuple(sorted(names)))

    @property
    def leaves(self) -> dict[int, PartFacts]:
        """The partitions that hold the table's rows; none of a table that holds them itself.

        Rows of tables that inherit from a plain table are their own: events carry their own names,
        and chunks read the plain table with ONLY.
        """
        if self.kind != "p":
            return {}
        return {oid: part for oid, part in self.parts.items() if part.filenode}


class SourceFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The server, the connector's slot and publication, and the captured tables: a `CatalogLook`.

    Attributes:
        system: the server's identifier; "" where the user must not ask.
        timeline: a failover begins another one; 0 where the user must not ask.
        version: such as 150004.
        lsn: where the log ended after all of this was seen.
        slot: its name.
        slot_present: whether it is there.
        slot_sent: so many transactions the slot has sent at least, a power of two or 0; -1 = not
            known.
        slot_counted_since: from when that is counted; another text after a crash or a reset.
        had_slot: of what is kept, whether the slot was ever there; None of what was kept by a
            version that did not say it: it counts as if it had been.
        publication: its name; "" if the connector needs none: then every table counts as published.
        publication_present: whether it is there.
        via_root: publish_via_partition_root.
        sends_generated: whether it has generated columns where no list names columns; from
            PostgreSQL 18 on.
        elsewhere: names of tables that were asked for by oid and have not one of the names.
        tables: by ``schema.table``.
    """

    system: str = ""
    timeline: int = 0
    version: int = 0
    lsn: int = 0
    slot: str = ""
    slot_present: bool = False
    slot_sent: int = -1
    slot_counted_since: str = ""
    had_slot: bool | None = None
    publication: str = ""
    publication_present: bool = False
    via_root: bool = False
    sends_generated: bool = False
    elsewhere: dict[int, str] = {}
    tables: dict[str, TableFacts] = {}

    @property
    def end(self) -> bytes:
        """The end of the log, as a position behind its epoch."""
        return self.lsn.to_bytes(8) + bytes(8)

    def kept(self, before: "SourceFacts | None") -> "SourceFacts":
        """See `CatalogLook`: of the log's end nothing; whether there ever was a slot; old names."""
        had = self.slot_present or (before is not None and before.had_slot is not False)
        were = {} if before is None else before.tables
        tables = {name: table.kept(were.get(name)) for name, table in self.tables.items()}
        return msgspec.structs.replace(self, lsn=0, had_slot=had, tables=tables)

    def having(self, tables: Mapping[str, TableLook]) -> "SourceFacts":
        """See `CatalogLook`."""
        ours = {name: table for name, table in tables.items() if isinstance(table, TableFacts)}
        return msgspec.structs.replace(self, tables=ours)
