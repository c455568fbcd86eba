"""Facts of PostgreSQL's catalog that are made up, and what two looks at them say."""

from msgspec.structs import replace

from lakemark.connectors.catalog_changes import Action
from lakemark.connectors.postgres.catalog_differences import differences
from lakemark.connectors.postgres.catalog_facts import (
    ColumnFacts,
    PartFacts,
    SourceFacts,
    TableFacts,
    UniqueKey,
)

NOTHING, _, READ_AGAIN, REBUILD, STOP, GONE = Action

ID = ColumnFacts(1, "id", "integer", xmin=10)
A = ColumnFacts(2, "a", "text", xmin=10)
B = ColumnFacts(3, "b", "character varying", 24, default=500, xmin=10)
X = ColumnFacts(4, "x", "integer", xmin=20)
PRIMARY = UniqueKey("t_pkey", (1,), not_null=True)
T = TableFacts(
    oid=100,
    name="public.t",
    filenode=100,
    columns=(ID, A, B),
    key=(1,),
    unique_keys=(PRIMARY,),
    identity_columns=(1,),
    published_by=(900,),
)
U = replace(T, name="public.u")
ANOTHER = replace(T, oid=777)
TOASTED = replace(T, toast=101)
LEAF = PartFacts("public.p1", filenode=201, toast=301, identity_columns=(1,))
PARTED = replace(T, kind="p", filenode=0, parts={201: LEAF})
SOURCE = SourceFacts(
    system="7000",
    timeline=1,
    slot="s",
    slot_present=True,
    publication="pub",
    publication_present=True,
)


def source(*tables, **changed):
    return replace(SOURCE, tables={table.name: table for table in tables}, **changed)


def between(before, now, **more):
    """The differences of one table, or of two sources."""
    if isinstance(before, TableFacts):
        before, now = source(before), source(now)
    return differences(before, now, **more)


def kinds(before, now, **more):
    return [(d.kind, d.action) for d in between(before, now, **more)]


def with_columns(table, *columns, **changed):
    return replace(table, columns=columns, **changed)
