"""What two looks at PostgreSQL's catalog say of tables: names, partitions, keys."""

import pytest
from msgspec.structs import replace

from lakemark.connectors.postgres.catalog_differences import differences
from lakemark.connectors.postgres.catalog_facts import (
    UniqueKey,
)
from tests.kit.catalog_facts import (
    ANOTHER,
    GONE,
    ID,
    LEAF,
    NOTHING,
    PARTED,
    PRIMARY,
    READ_AGAIN,
    STOP,
    A,
    B,
    T,
    U,
    X,
    between,
    kinds,
    source,
    with_columns,
)

# --- tables -------------------------------------------------------------------------------------


def test_a_table_that_was_renamed():
    (found,) = between(source(T), source(elsewhere={100: "other.new"}))
    assert (found.table, found.kind, found.action) == ("public.t", "table-renamed", GONE)
    assert found.other == "other.new"
    assert found.hint.endswith(
        'ALTER TABLE "other"."new" RENAME TO "t"; ALTER TABLE "other"."t" SET SCHEMA "public"'
    )


def test_a_table_that_was_renamed_to_a_name_that_is_captured():
    gone, new = between(source(T), source(U))
    assert (gone.table, gone.kind, gone.action, gone.other) == (
        "public.t",
        "table-renamed",
        GONE,
        "public.u",
    )
    assert (new.table, new.kind, new.action, new.other) == (
        "public.u",
        "table-renamed-to",
        READ_AGAIN,
        "public.t",
    )


def test_tables_that_were_swapped_are_both_there():
    both = source(T, replace(ANOTHER, name="public.u"))
    swapped = source(replace(ANOTHER, name="public.t"), U)
    assert kinds(both, swapped) == [("table-renamed-to", READ_AGAIN)] * 2


def test_a_table_that_was_dropped():
    assert kinds(source(T), source()) == [("table-dropped", GONE)]


def test_a_table_that_was_made_anew():
    assert kinds(T, ANOTHER) == [("table-made-anew", READ_AGAIN)]
    assert kinds(source(T), source(ANOTHER, elsewhere={100: "public.old"})) == [
        ("table-made-anew", READ_AGAIN)
    ]


def test_a_table_that_is_new():
    assert kinds(source(), source(T)) == [("table-new", NOTHING)]


# --- partitions ---------------------------------------------------------------------------------

CHANGED = ("partitions-changed", READ_AGAIN)
ALIKE = ("storage-changed", NOTHING)
MORE = replace(LEAF, name="public.p2", filenode=202)


def parted(*parts):
    return replace(PARTED, parts=dict(enumerate(parts, 201)))


def test_partitions_that_come_and_go():
    (found,) = between(parted(LEAF), parted(LEAF, MORE))
    assert (found.kind, found.action, found.other) == (*CHANGED, "public.p2")
    assert kinds(parted(LEAF, MORE), parted(LEAF)) == [CHANGED]


def test_a_partition_that_was_made_as_one():
    made = replace(MORE, is_first=True)
    assert kinds(parted(LEAF), parted(LEAF, made)) == [("partitions-made", NOTHING)]


def test_a_part_without_a_file_may_bring_rows_as_well():
    assert kinds(parted(LEAF), parted(LEAF, replace(MORE, filenode=0))) == [CHANGED]


def test_a_partition_with_another_file_may_have_been_truncated():
    assert kinds(parted(LEAF), parted(replace(LEAF, filenode=999))) == [ALIKE, CHANGED]
    narrow = replace(LEAF, toast=0)
    assert kinds(parted(narrow), parted(replace(narrow, filenode=999))) == [ALIKE, CHANGED]
    widened = replace(narrow, filenode=999, toast=301)
    assert kinds(parted(narrow), parted(widened)) == [ALIKE, CHANGED]


def test_a_partition_with_another_toast_table_was_rewritten():
    rewritten = replace(LEAF, filenode=999, toast=998)
    assert kinds(parted(LEAF), parted(rewritten)) == [ALIKE]
    empty = replace(rewritten, pageless=True)
    assert kinds(parted(LEAF), parted(empty)) == [ALIKE, CHANGED]
    assert kinds(parted(replace(LEAF, pageless=True)), parted(empty)) == [ALIKE]


def test_tables_that_inherit_are_no_part_of_a_plain_tables_rows():
    plain = replace(T, parts={201: LEAF})
    assert kinds(plain, T) == kinds(T, plain) == []
    assert kinds(plain, replace(T, parts={201: replace(LEAF, filenode=999)})) == []


def test_a_sentence_names_few_partitions():
    many = [replace(LEAF, name=f"public.p{n}") for n in range(9)]
    (found,) = between(parted(), parted(*many))
    assert found.what.endswith("public.p0, public.p1, public.p2, …")
    assert len(found.other.split(", ")) == 9


# --- keys ---------------------------------------------------------------------------------------

BY_B = UniqueKey("t_b", (3,), not_null=True)


def keyed(*key, **changed):
    return replace(T, key=key, unique_keys=(UniqueKey("t_pkey", key, True),), identity_columns=key,
                   **changed)  # fmt: skip


def test_another_key():
    (found,) = between(T, keyed(1, 3))
    assert (found.kind, found.action) == ("key-changed", STOP)
    assert "id, b instead of id" in found.what
    assert found.key == ("id", "b")
    assert "lakemark table rebuild public.t" in found.hint


def test_the_order_of_a_key_is_no_matter():
    assert kinds(keyed(1, 3), keyed(3, 1)) == []


def test_a_key_of_another_column_that_has_its_name():
    now = keyed(4, columns=(A, B, replace(X, name="id")))
    assert kinds(T, now) == [("column-replaced", READ_AGAIN), ("key-changed", STOP)]


def test_a_key_whose_column_was_renamed():
    now = with_columns(T, replace(ID, name="x"), A, B)
    assert kinds(T, now) == [("column-renamed", READ_AGAIN), ("key-changed", STOP)]


def test_a_key_that_is_gone_and_the_index_that_debezium_takes_instead():
    indexed = replace(T, key=(), unique_keys=(BY_B,), identity="f", identity_columns=(1, 2, 3))
    assert kinds(T, indexed) == [("key-changed", STOP)]
    assert kinds(T, indexed, source_key={"public.t": ["b"]}) == [("key-changed", STOP)]
    assert kinds(T, replace(indexed, unique_keys=())) == [("key-changed", STOP)]
    same = replace(indexed, unique_keys=(replace(BY_B, columns=(1,)),))
    assert kinds(T, same) == kinds(same, T) == []


def test_a_key_that_the_connector_names_is_none_of_the_tables():
    full = {"identity": "f", "identity_columns": (1, 2, 3)}
    before = replace(T, **full)
    now = replace(keyed(1, 3), **full)
    assert kinds(before, now, source_key={"public.t": ["a"]}) == []
    keyless = replace(before, key=(), unique_keys=())
    assert kinds(before, keyless, source_key={"public.t": ["a"]}) == []
    assert kinds(before, now, source_key={"public.t": ["id", "b"]}) == [("key-changed", STOP)]


def test_a_table_that_had_no_key_has_no_rows_to_tell_apart():
    assert kinds(replace(T, key=(), unique_keys=()), T) == []


def test_the_key_of_a_table_made_anew_goes_by_names():
    columns = (A, replace(X, name="id"))
    now = keyed(4, oid=777, columns=columns)
    assert kinds(T, now) == [("table-made-anew", READ_AGAIN)]
    now = keyed(2, oid=777, columns=columns)
    assert kinds(T, now) == [("table-made-anew", READ_AGAIN), ("key-changed", STOP)]


# --- replica identity ---------------------------------------------------------------------------


def identity_hint(table, **more):
    (found,) = differences(None, source(table), **more)
    assert (found.kind, found.action) == ("identity-without-key", STOP)
    assert found.at_once, "the first delete would be lost"
    assert found in between(table, table, **more)
    return found.hint


def test_a_replica_identity_without_the_key():
    nothing = replace(T, identity="i", identity_columns=(2,))
    begin = 'ALTER TABLE "public"."t" REPLICA IDENTITY '
    assert identity_hint(nothing) == begin + "DEFAULT"
    by_index = replace(T, identity="i", identity_columns=(3,), unique_keys=(PRIMARY, BY_B))
    assert identity_hint(by_index) == begin + "DEFAULT"
    keyless = replace(nothing, key=(), unique_keys=(BY_B,))
    assert identity_hint(keyless) == begin + 'USING INDEX "t_b"'
    nullable = replace(keyless, unique_keys=(replace(BY_B, not_null=False),))
    assert identity_hint(nullable) == begin + "FULL"
    deferred = replace(nothing, unique_keys=())
    assert identity_hint(deferred) == begin + "FULL"


@pytest.mark.parametrize("identity", ["n", "d"])
def test_an_identity_without_columns_is_guarded_by_the_server(identity):
    """It refuses updates and deletes of published tables then; inserts are right."""
    assert differences(None, source(replace(T, identity=identity, identity_columns=()))) == []


def test_the_key_is_the_connectors():
    assert identity_hint(T, source_key={"public.t": ["a"]}).endswith("FULL")
    assert differences(None, source(T), source_key={"public.t": ["id"]}) == []
    by_index = replace(T, identity="i", identity_columns=(3,))
    assert differences(None, source(by_index), source_key={"public.t": ["b"]}) == []
    assert (
        differences(None, source(replace(T, identity_columns=())), source_key={"public.t": []})
        == []
    )


def test_events_of_partitions_have_the_identities_of_these():
    first, second = (
        replace(LEAF, name=f"public.p{n}", identity="i", identity_columns=(3,)) for n in (1, 2)
    )
    hint = 'ALTER TABLE "public"."{}" REPLICA IDENTITY DEFAULT'
    assert identity_hint(parted(LEAF, second)) == hint.format("p2")
    assert identity_hint(parted(first, second)) == f"{hint.format('p1')}; {hint.format('p2')}"
    assert differences(None, source(replace(parted(LEAF), identity="n", identity_columns=()))) == []
