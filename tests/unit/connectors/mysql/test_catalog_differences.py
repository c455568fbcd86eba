"""What two looks at MariaDB's or MySQL's catalog say of the rows of a copy."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.catalog_changes import Action
from lakemark.connectors.mysql.catalog_differences import differences
from lakemark.connectors.mysql.catalog_facts import Cascade, ColumnFacts, SourceFacts, TableFacts

T = "shop.orders"
ID = ColumnFacts("id", "int(11)", "int", nullable=False)
NOTE = ColumnFacts("note", "varchar(20)", "varchar", charset="utf8mb4")
BEFORE = TableFacts(T, "2026-01-01 10:00:00", (ID, NOTE), ("id",))


def altered(facts=BEFORE, **changes):
    return msgspec.structs.replace(facts, **changes)


def having(column, *, made=BEFORE.made):
    return altered(columns=(ID, column), made=made)


def looked(*tables, **server):
    return SourceFacts(**{"server_id": 7, **server}, tables={table.name: table for table in tables})


def found(before, now, **more):
    return [(one.kind, one.action) for one in differences(looked(before), looked(now), **more)]


READ, NOTHING, STOP, GONE = Action.READ_AGAIN, Action.NOTHING, Action.STOP, Action.GONE


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (BEFORE, []),
        (altered(made="2026-01-02 10:00:00"), [("rewritten", READ)]),
        (altered(key=("note",)), [("key-changed", STOP)]),
        (altered(key=()), [("key-changed", STOP)]),
        (altered(columns=(ID,)), [("column-dropped", NOTHING)]),
        (altered(columns=(NOTE, ID)), []),
        (altered(cascades=(Cascade("fk", "shop.parent"),)), []),
        (having(msgspec.structs.replace(NOTE, type="varchar(30)")), [("type-changed", NOTHING)]),
        (having(msgspec.structs.replace(NOTE, type="varchar(10)")), [("rewritten", READ)]),
        (having(msgspec.structs.replace(NOTE, type="text", base="text")), [("rewritten", READ)]),
        (having(msgspec.structs.replace(NOTE, charset="latin1")), [("rewritten", READ)]),
        (having(msgspec.structs.replace(NOTE, nullable=False)), [("rewritten", READ)]),
        (having(msgspec.structs.replace(NOTE, generated=True)), [("rewritten", READ)]),
    ],
)
def test_what_a_look_says_of_a_table(now, expected):
    assert found(BEFORE, now) == expected


def test_a_table_that_is_written_anew_for_a_column_is_read_again_once():
    now = altered(columns=(ID, NOTE, ColumnFacts("n", "int(11)", "int")), made="later")
    (change,) = differences(looked(BEFORE), looked(now))
    assert (change.kind, change.action) == ("column-added", READ)


@pytest.mark.parametrize(
    ("was", "is_", "same"),
    [
        ("int(11)", "bigint(20)", True),
        ("int(10) unsigned", "bigint(20)", False),
        ("int(10) unsigned", "bigint(20) unsigned", True),
        ("bigint(20)", "int(11)", False),
        ("int(11)", "int", True),
        ("int(11)", "int(4)", True),
        ("enum('a','b')", "enum('a','b','c')", True),
        ("enum('a','b')", "enum('b','a')", False),
        ("enum('a','b')", "enum('a','bc')", False),
        ("set('a')", "set('a','b')", True),
        ("text", "longtext", True),
        ("blob", "text", False),
        ("decimal(5,2)", "decimal(7,2)", False),
        ("varbinary(5)", "varbinary(9)", True),
        ("varchar(5)", "varbinary(9)", False),
    ],
)
def test_only_a_wider_type_keeps_every_value(was, is_, same):
    def column(kind):
        return ColumnFacts("note", kind, kind.partition("(")[0])

    actions = [action for _, action in found(having(column(was)), having(column(is_)))]
    assert actions == ([] if was == is_ else [NOTHING if same else READ])


def test_what_is_gone_is_gone_and_what_is_new_has_nothing_to_lose():
    other = altered(name="shop.other")
    assert [(one.table, one.action) for one in differences(looked(BEFORE), looked(other))] == [
        (T, GONE)
    ]
    assert differences(None, looked(BEFORE)) == []


def test_another_server_has_every_table_read_again():
    server = looked(BEFORE, server_id=8)
    assert [(one.table, one.kind, one.action) for one in differences(looked(BEFORE), server)] == [
        (T, "other-server", READ)
    ]
    same = looked(BEFORE, server_id=8, server_uuid="u")
    assert differences(looked(BEFORE, server_uuid="u"), same) == [], "an id may be changed"


def test_a_key_that_the_connector_was_given_is_not_that_of_the_database():
    now = altered(key=("note",))
    assert found(BEFORE, now, source_key={T: ("region",)}) == []
    assert found(BEFORE, now, source_key={T: ("note",)}) == [("key-changed", STOP)]


def test_partitions_that_went_took_their_rows_along():
    was = altered(partitions=("p1", "p2"))
    assert found(was, altered(partitions=("p1", "p2", "p3"))) == []
    assert found(was, altered(partitions=("p2",))) == [("partitions-changed", READ)]


COLUMN = st.builds(
    ColumnFacts,
    name=st.sampled_from(["a", "b", "c"]),
    type=st.sampled_from(["int(11)", "bigint(20)", "varchar(5)", "varchar(9)", "json"]),
    base=st.sampled_from(["int", "bigint", "varchar", "json"]),
    nullable=st.booleans(),
    charset=st.sampled_from(["", "latin1", "utf8mb4"]),
    generated=st.booleans(),
)
TABLE = st.builds(
    TableFacts,
    name=st.sampled_from([T, "shop.items"]),
    made=st.sampled_from(["", "one", "two"]),
    columns=st.lists(COLUMN, max_size=3, unique_by=lambda c: c.name).map(tuple),
    key=st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True).map(tuple),
    partitions=st.lists(st.sampled_from(["p", "q"]), unique=True).map(tuple),
)
LOOK = st.builds(
    lambda tables, uuid: SourceFacts(
        server_id=1, server_uuid=uuid, tables={table.name: table for table in tables}
    ),
    st.lists(TABLE, max_size=2, unique_by=lambda table: table.name),
    st.sampled_from(["", "u", "v"]),
)


@given(before=LOOK, now=LOOK)
def test_looks_are_kept_as_json_and_equal_ones_differ_in_nothing(before, now):
    stored = msgspec.json.decode(msgspec.json.encode(now.kept(before)), type=SourceFacts)
    assert stored == now
    assert differences(stored, now) == []
    changes = differences(before, now)
    assert all(change.table in {*before.tables, *now.tables} for change in changes)
    same = [name for name in now.tables if before.tables.get(name) == now.tables[name]]
    assert before.server_uuid != now.server_uuid or not {c.table for c in changes} & set(same)
