"""What two looks at PostgreSQL's catalog say of columns, and of what rows hold in them."""

import msgspec
import pytest
from msgspec.structs import replace

from lakemark.connectors.database import DatabaseAccess
from lakemark.connectors.postgres.catalog_differences import differences
from lakemark.connectors.postgres.catalog_facts import (
    SourceFacts,
)
from lakemark.connectors.postgres.postgres_database import PostgresDatabase
from lakemark.model.handling_modes import HandlingModes
from tests.kit.catalog_facts import (
    ID,
    LEAF,
    NOTHING,
    PARTED,
    READ_AGAIN,
    TOASTED,
    A,
    B,
    T,
    X,
    between,
    kinds,
    source,
    with_columns,
)
from tests.kit.connector_settings import config

# --- facts --------------------------------------------------------------------------------------


def test_facts_come_back_from_json():
    facts = source(replace(PARTED, labels={"mood": ((1, "sad"),)}, column_list=("id",)))
    facts = replace(facts, elsewhere={7: "public.x"})
    assert msgspec.json.decode(msgspec.json.encode(facts), type=SourceFacts) == facts


def test_columns_by_number_and_by_name():
    assert T.names((3, 1, 9)) == ("b", "id")
    assert T.numbers(("b", "nope", "id")) == (3, 1)


def test_nothing_differs():
    assert between(T, T) == []
    assert differences(None, source(T)) == []


# --- columns ------------------------------------------------------------------------------------


def test_a_column_without_values():
    assert kinds(T, with_columns(T, ID, A, B, X)) == [("column-added", NOTHING)]


def test_a_column_that_older_rows_have_a_value_of():
    (found,) = between(T, with_columns(T, ID, A, B, replace(X, missing="7")))
    assert (found.kind, found.action, found.column, found.fill) == (
        "column-added",
        READ_AGAIN,
        "x",
        "7",
    )
    assert found.hint == "lakemark snapshot start public.t"


def test_an_empty_text_is_a_value_too():
    (found,) = between(T, with_columns(T, ID, A, B, replace(X, missing="")))
    assert (found.action, found.fill) == (READ_AGAIN, "")


@pytest.mark.parametrize("table", [T, TOASTED])
def test_a_column_that_a_rewrite_filled(table):
    now = with_columns(table, ID, A, B, X, filenode=999)
    assert kinds(table, now) == [("column-added", READ_AGAIN)]


def test_a_column_that_a_rewrite_of_partitions_filled():
    now = with_columns(PARTED, ID, A, B, X, parts={201: replace(LEAF, filenode=999, toast=998)})
    assert kinds(PARTED, now) == [("column-added", READ_AGAIN)]


def test_rows_in_a_new_file():
    assert kinds(T, replace(T, filenode=999)) == [("storage-changed", NOTHING)]


def test_values_that_were_computed():
    now = with_columns(T, ID, replace(A, xmin=20), B, filenode=999)
    (found,) = between(T, now)
    assert (found.kind, found.action, found.column) == ("rewritten", READ_AGAIN, "a")


def test_values_of_another_type_that_were_computed():
    now = with_columns(T, ID, replace(A, type="integer"), B, filenode=999)
    assert kinds(T, now) == [("rewritten", READ_AGAIN)]
    now = with_columns(T, ID, A, replace(B, modifier=44), filenode=999)
    assert kinds(T, now) == [("rewritten", READ_AGAIN)]


def test_a_column_whose_default_was_not_made_anew_was_not_computed():
    now = with_columns(T, ID, A, replace(B, xmin=20), filenode=999)
    assert kinds(T, now) == [("storage-changed", NOTHING)]
    now = with_columns(T, ID, A, replace(B, xmin=20, default=501), filenode=999)
    assert kinds(T, now) == [("rewritten", READ_AGAIN)]


def test_rows_with_the_same_toast_table_were_not_computed():
    now = with_columns(TOASTED, ID, replace(A, xmin=20), replace(B, modifier=44), filenode=999)
    assert kinds(TOASTED, now) == [("type-changed", NOTHING), ("storage-changed", NOTHING)]
    assert kinds(TOASTED, replace(now, toast=998)) == [("rewritten", READ_AGAIN)] * 2


def test_values_of_partitions_that_were_computed():
    moved = {201: replace(LEAF, filenode=999, toast=998)}
    now = with_columns(PARTED, ID, replace(A, xmin=20), B, parts=moved)
    assert kinds(PARTED, now) == [("rewritten", READ_AGAIN)]


def test_a_type_that_has_the_same_values():
    assert kinds(T, with_columns(T, ID, A, replace(B, modifier=44))) == [("type-changed", NOTHING)]
    assert kinds(T, with_columns(T, ID, A, replace(B, type="text"))) == [("type-changed", NOTHING)]


def test_what_else_is_set_of_a_column():
    assert kinds(T, with_columns(T, ID, replace(A, xmin=20), replace(B, default=501))) == []


def test_a_column_that_was_renamed():
    now = with_columns(T, ID, replace(A, name="x", xmin=20), B)
    (found,) = between(T, now)
    assert (found.kind, found.action) == ("column-renamed", READ_AGAIN)
    assert (found.column, found.other) == ("x", "a")


def test_a_column_that_was_made_anew():
    (found,) = between(T, with_columns(T, ID, B, replace(X, name="a")))
    assert (found.kind, found.action) == ("column-replaced", READ_AGAIN)
    assert (found.column, found.other) == ("a", "")


def test_columns_whose_names_were_swapped():
    now = with_columns(T, ID, replace(A, name="b"), replace(B, name="a"))
    found = between(T, now)
    assert [(d.kind, d.action, d.column, d.other) for d in found] == [
        ("column-replaced", READ_AGAIN, "b", "a"),
        ("column-replaced", READ_AGAIN, "a", "b"),
    ]


@pytest.mark.parametrize("there", [(ID, B), (ID, B, replace(A, name="y"))])
@pytest.mark.parametrize("looks", [1, 2])
def test_a_column_with_the_name_of_one_that_is_gone_since_an_earlier_look(there, looks):
    """The copy keeps the values of the one that is gone, also where it has no value to give."""
    kept = source(T).kept(None)
    for _ in range(looks):
        kept = source(with_columns(T, *there)).kept(kept)
    assert kept.tables[T.name].former == ("a",)
    back = source(with_columns(T, *there, replace(X, name="a")))
    assert kinds(kept, back) == [("column-added", READ_AGAIN)]
    assert kinds(kept, source(with_columns(T, *there, X))) == [("column-added", NOTHING)]
    assert back.kept(kept).tables[T.name].former == ()
    anew = source(replace(with_columns(T, *there), oid=777))
    assert anew.kept(kept).tables[T.name].former == ("a",), "its copy is the same"


def test_a_column_that_was_dropped():
    (found,) = between(T, with_columns(T, ID, A))
    assert (found.kind, found.action, found.column) == ("column-dropped", NOTHING, "b")


def test_a_column_that_events_have_from_now_on():
    before = with_columns(T, ID, replace(A, generated="s"), B)
    assert kinds(before, T) == [("generated-no-more", READ_AGAIN)]
    assert kinds(T, before) == []


# --- labels -------------------------------------------------------------------------------------


def test_labels():
    before = replace(T, labels={"mood": ((1, "sad"), (2, "ok"))})
    renamed = replace(T, labels={"mood": ((1, "sad"), (2, "fine"))})
    (found,) = between(before, renamed)
    assert (found.kind, found.action, found.other) == ("label-renamed", READ_AGAIN, "ok")
    assert kinds(before, replace(T, labels={"mood": ((1, "sad"), (3, "new"), (2, "ok"))})) == []
    assert kinds(before, replace(T, labels={"feeling": ((1, "sad"), (2, "ok"))})) == []
    swapped = replace(T, labels={"mood": ((1, "ok"), (2, "sad"))})
    assert kinds(before, swapped) == [("label-renamed", READ_AGAIN)] * 2


# --- truncates that no event tells -----------------------------------------------------------------

ALL = {"skipped.operations": "none", "plugin.name": "pgoutput"}
FLAT = {
    "transforms": "flat",
    "transforms.flat.type": "io.debezium.transforms.ExtractNewRecordState",
}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (ALL, True),
        ({**ALL, "skipped.operations": "x"}, True),
        ({"plugin.name": "pgoutput"}, False),  # Debezium's default
        ({**ALL, "skipped.operations": "none, T"}, False),
        ({**ALL, "plugin.name": "decoderbufs"}, False),
        ({**ALL, **FLAT}, False),
    ],
)
def test_rows_in_a_new_file_may_be_gone_where_truncates_are_in_no_event(settings, told):
    access = DatabaseAccess(config().database, HandlingModes(), settings)
    before, now = source(T), source(replace(T, filenode=999))
    (found,) = PostgresDatabase(access).differences(before, now)
    expected = ("storage-changed", NOTHING) if told else ("rewritten", READ_AGAIN)
    assert (found.kind, found.action) == expected


def test_where_values_were_computed_anew_they_are_read_again_once():
    now = with_columns(T, ID, replace(A, xmin=20), B, filenode=999)
    assert between(T, now, truncates_come=False) == between(T, now)
