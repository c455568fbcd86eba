"""What two looks at PostgreSQL's catalog say of the publication, the server and the slot."""

import pytest
from msgspec.structs import replace

from lakemark.connectors.postgres.catalog_differences import differences
from tests.kit.catalog_facts import (
    ANOTHER,
    GONE,
    ID,
    NOTHING,
    READ_AGAIN,
    STOP,
    A,
    B,
    T,
    U,
    between,
    kinds,
    source,
    with_columns,
)

# --- the publication ----------------------------------------------------------------------------

UNPUBLISHED = replace(T, published=False, published_by=())


def unpublished_hint(table, **changed):
    now = source(table, **changed)
    (found,) = differences(None, now)
    assert (found.kind, found.action) == ("not-published", STOP)
    assert differences(now, now) == [found]
    return found.hint


def test_a_table_that_the_publication_does_not_have():
    add = 'ALTER PUBLICATION "pub" ADD TABLE "public"."t"'
    assert unpublished_hint(UNPUBLISHED) == add
    made = unpublished_hint(UNPUBLISHED, publication_present=False)
    assert made == 'CREATE PUBLICATION "pub" FOR TABLE "public"."t"'
    assert unpublished_hint(replace(UNPUBLISHED, logged=False)).endswith("SET LOGGED")
    root = 'ALTER PUBLICATION "pub" SET (publish_via_partition_root = true)'
    parent = replace(UNPUBLISHED, kind="p", filenode=0)
    assert unpublished_hint(parent) == f"{add}; {root}"
    assert unpublished_hint(replace(parent, published_by=(900,))) == root
    assert unpublished_hint(parent, via_root=True) == add
    leaf = unpublished_hint(replace(UNPUBLISHED, published_by=(900,)), via_root=True)
    assert "table.include.list" in leaf


def test_a_table_that_the_publication_has_again():
    assert kinds(UNPUBLISHED, T) == [("published-again", READ_AGAIN)]
    assert kinds(T, replace(T, published_by=(901,))) == [("published-again", READ_AGAIN)]
    assert kinds(T, replace(T, published_by=(900, 901))) == []
    assert kinds(replace(T, published_by=()), T) == []


def test_other_rows_or_columns_of_a_table():
    filtered = replace(T, row_filter="(id > 1)", published_by=(901,))
    assert kinds(T, filtered) == kinds(filtered, T) == [("row-filter-changed", READ_AGAIN)]
    listed = replace(T, column_list=("id",), published_by=(901,))
    assert kinds(T, listed) == kinds(listed, T) == [("column-list-changed", READ_AGAIN)]


def test_generated_columns_that_begin_to_come():
    table = with_columns(T, ID, replace(A, generated="s"), B)
    now = source(table, sends_generated=True)
    assert kinds(source(table), now) == [("column-list-changed", READ_AGAIN)]
    assert kinds(source(T), source(T, sends_generated=True)) == []


# --- the server and the slot --------------------------------------------------------------------


def test_another_server():
    before, now = source(T, U), source(ANOTHER, replace(U, oid=5), system="8000", timeline=3)
    assert kinds(before, now) == [("other-server", READ_AGAIN)] * 2
    assert kinds(before, source(ANOTHER, system="8000")) == [
        ("other-server", READ_AGAIN),
        ("table-dropped", GONE),
    ]
    same_oid = with_columns(T, ID, replace(A, name="x"), filenode=999)
    assert kinds(source(T), source(same_oid, system="8000")) == [("other-server", READ_AGAIN)]
    gone = source(system="8000", elsewhere={100: "public.x"})
    assert kinds(source(T), gone) == [("table-dropped", GONE)]
    assert kinds(source(T), source(T, system="")) == kinds(source(T, system=""), source(T)) == []


def test_another_timeline():
    (found,) = between(source(T), source(T, timeline=2))
    assert (found.table, found.kind, found.action) == ("", "timeline-changed", NOTHING)
    assert kinds(source(T), source(T, timeline=0)) == kinds(source(T, timeline=0), source(T)) == []


def test_a_slot_that_is_gone_and_comes_again():
    without = source(T, U, slot_present=False)
    (found,) = between(source(T, U), without)
    assert (found.table, found.kind, found.action) == ("", "slot-gone", NOTHING)
    assert kinds(without, without) == []
    assert [(d.table, d.kind, d.action) for d in between(without, source(T, U))] == [
        ("public.t", "slot-made-anew", READ_AGAIN),
        ("public.u", "slot-made-anew", READ_AGAIN),
    ]


@pytest.mark.parametrize(
    ("sent", "since", "expected"),
    [
        (8, "1 2", ["slot-made-anew"]),
        (0, "1 2", ["slot-made-anew"]),
        (16, "1 2", []),
        (32, "1 2", []),
        (8, "1 3", []),  # the server has crashed, or its statistics were reset
        (-1, "1 2", []),  # nothing counts: before PostgreSQL 14
    ],
)
def test_a_slot_that_was_made_anew_between_two_looks_has_sent_less(sent, since, expected):
    before = source(T, slot_sent=16, slot_counted_since="1 2")
    assert kinds(before, source(T, slot_sent=sent, slot_counted_since=since)) == [
        (kind, READ_AGAIN) for kind in expected
    ]
    other = source(T, slot="another", slot_sent=sent, slot_counted_since=since)
    assert kinds(before, other) == []


def test_a_slot_of_which_nothing_was_known_is_the_same():
    assert kinds(source(T), source(T, slot_sent=0)) == []
    assert kinds(source(T, slot_sent=0), source(T, slot_sent=0)) == []
