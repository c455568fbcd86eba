"""What two looks at the catalog say, rule by rule, and whether a copy that goes by it stays right."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lakemark.connectors.catalog_changes import Action, differences
from lakemark.connectors.catalog_facts import (
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

X = ColumnFacts(4, "x", "integer", xmin=20)


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


def test_a_column_that_was_dropped():
    (found,) = between(T, with_columns(T, ID, A))
    assert (found.kind, found.action, found.column) == ("column-dropped", NOTHING, "b")


def test_a_column_that_events_have_from_now_on():
    before = with_columns(T, ID, replace(A, generated="s"), B)
    assert kinds(before, T) == [("generated-no-more", READ_AGAIN)]
    assert kinds(T, before) == []


# --- tables -------------------------------------------------------------------------------------

U = replace(T, name="public.u")
ANOTHER = replace(T, oid=777)


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


# --- a copy that goes by the differences --------------------------------------------------------

MOODS = ("sad", "ok")


class Model:
    """A table of a database with its rows, and a copy that has events and what is read again.

    Rows by key; the copy's by the names of their columns, the table's by their numbers.
    """

    def __init__(self, *, toast):
        self.ids = itertools.count(1000)
        self.labels = dict(zip((1, 2), MOODS, strict=True))
        self.published, self.membership = True, next(self.ids)
        self.copy, self.swapped = {}, False
        self._make(toast=toast)

    def _make(self, *, toast):
        self.oid = self.filenode = next(self.ids)
        self.toast = next(self.ids) if toast else 0
        self.xid = next(self.ids)
        named = [("id", "integer"), ("a", "integer"), ("b", "integer"), ("mood", "mood")]
        self.columns = {
            number: ColumnFacts(number, name, kind, xmin=self.xid, default=next(self.ids))
            for number, (name, kind) in enumerate(named, 1)
        }
        self.last, self.rows = 4, {}

    def facts(self):
        table = TableFacts(
            oid=self.oid,
            name="public.t",
            filenode=self.filenode,
            toast=self.toast,
            columns=tuple(self.columns[number] for number in sorted(self.columns)),
            key=(1,),
            unique_keys=(PRIMARY,),
            identity_columns=(1,),
            labels={"mood": tuple(self.labels.items())},
            published=self.published,
            published_by=(self.membership,) if self.published else (),
        )
        return source(table)

    def shown(self, row):
        return {
            column.name: self.labels[row[number]] if column.type == "mood" else row[number]
            for number, column in self.columns.items()
        }

    def source(self):
        return {key: self.shown(row) for key, row in self.rows.items()}

    def read_again(self):
        self.copy = self.source()

    def is_right(self):
        if self.rows.keys() != self.copy.keys():
            return False
        return all(
            self.copy[key].get(name) == value
            for key, row in self.source().items()
            for name, value in row.items()
        )

    def free(self, wanted):
        """The number of a column that may be changed."""
        numbers = [n for n, c in self.columns.items() if n > 1 and c.type == "integer"]
        return numbers[wanted % len(numbers)] if numbers else None

    def touch(self, number, **changed):
        self.columns[number] = replace(self.columns[number], xmin=next(self.ids), **changed)

    def move(self, *, by_alter):
        self.filenode = next(self.ids)
        if by_alter and self.toast:
            self.toast = next(self.ids)
        for number, column in list(self.columns.items()):
            if column.missing is not None:
                self.touch(number, missing=None)

    # -- what is in the log

    def put(self, key, value):
        self.rows[key] = {
            n: key if n == 1 else 1 + value % 2 if c.type == "mood" else value + n
            for n, c in self.columns.items()
        }
        if self.published:
            self.copy[key] = {**self.copy.get(key, {}), **self.shown(self.rows[key])}

    def truncate(self, *_):
        self.rows.clear()
        self.filenode = next(self.ids)
        if self.published:
            self.copy.clear()

    # -- what is not

    def add(self, *_):
        self._new(f"c{next(self.ids)}", lambda key: None)

    def add_with_default(self, _, value):
        self._new(f"c{next(self.ids)}", lambda key: value, missing=str(value), default=True)

    def add_with_values(self, *_):
        self._new(f"c{next(self.ids)}", lambda key: key * 10)
        self.move(by_alter=True)

    def _new(self, name, value, *, missing=None, default=False):
        self.last += 1
        made = next(self.ids) if default else 0
        self.columns[self.last] = ColumnFacts(
            self.last, name, "integer", missing=missing, default=made, xmin=next(self.ids)
        )
        for key, row in self.rows.items():
            row[self.last] = value(key)

    def drop(self, wanted, _):
        number = self.free(wanted)
        if number is not None:
            del self.columns[number]
            for row in self.rows.values():
                del row[number]

    def make_anew(self, wanted, _):
        number = self.free(wanted)
        if number is not None:
            name = self.columns[number].name
            self.drop(wanted, 0)
            self._new(name, lambda key: None)

    def rename(self, wanted, _):
        number = self.free(wanted)
        if number is not None:
            self.touch(number, name=f"c{next(self.ids)}")

    def swap(self, wanted, _):
        first, second = self.free(wanted), self.free(wanted + 1)
        if first == second or self.swapped:  # twice between two looks cannot be seen
            return
        self.swapped = True
        names = self.columns[first].name, self.columns[second].name
        self.touch(first, name=names[1])
        self.touch(second, name=names[0])

    def compute(self, wanted, value):
        number = self.free(wanted)
        if number is not None:
            self.move(by_alter=True)
            default = self.columns[number].default
            self.touch(number, default=next(self.ids) if default else 0)
            for row in self.rows.values():
                row[number] = value - (row[number] or 0)

    def rename_label(self, *_):
        self.labels[1] = f"l{next(self.ids)}"

    def make_table_anew(self, *_):
        self._make(toast=bool(self.toast))

    def leave_publication(self, *_):
        self.published = False

    def enter_publication(self, *_):
        if not self.published:
            self.published, self.membership = True, next(self.ids)

    # -- what changes no value

    def vacuum_full(self, *_):
        self.move(by_alter=False)

    def set_statistics(self, wanted, _):
        number = self.free(wanted)
        if number is not None:
            self.touch(number)

    def set_default(self, wanted, _):
        number = self.free(wanted)
        if number is not None:
            self.touch(number, default=next(self.ids))

    def widen(self, wanted, value):
        number = self.free(wanted)
        if number is not None:
            self.touch(number, modifier=value, default=next(self.ids))


LOGGED = (Model.put, Model.truncate)
SILENT = (
    *(Model.add, Model.add_with_default, Model.add_with_values, Model.make_anew, Model.rename),
    *(Model.swap, Model.compute, Model.rename_label, Model.make_table_anew),
    *(Model.leave_publication, Model.enter_publication),
)
HARMLESS = (Model.vacuum_full, Model.set_statistics, Model.set_default, Model.widen, Model.drop)
ARGUMENTS = st.tuples(st.integers(1, 5), st.integers(1, 50))
EDITS = st.tuples(st.sampled_from((*LOGGED, Model.put, *SILENT, *HARMLESS)), ARGUMENTS)
HARMLESS_EDITS = st.tuples(st.sampled_from(HARMLESS), ARGUMENTS)


def filled(*, toast):
    model = Model(toast=toast)
    for key in (1, 2, 3):
        model.put(key, key)
    return model


@given(st.lists(st.tuples(EDITS, st.booleans()), max_size=12), st.booleans())
def test_a_copy_that_is_read_again_when_it_is_said_is_right(edits, toast):
    model = filled(toast=toast)
    before = model.facts()
    for (edit, arguments), looks in [*edits, ((Model.enter_publication, (0, 0)), True)]:
        edit(model, *arguments)
        if looks:
            now = model.facts()
            actions = {d.action for d in differences(before, now)}
            if READ_AGAIN in actions:
                model.read_again()
            assert STOP in actions or model.is_right()
            before, model.swapped = now, False


@given(st.lists(st.tuples(EDITS, st.booleans()), max_size=6), st.lists(HARMLESS_EDITS, max_size=8),
       st.booleans())  # fmt: skip
def test_what_changes_no_value_is_not_read_again(edits, harmless, toast):
    model = filled(toast=toast)
    for (edit, arguments), _ in edits:
        edit(model, *arguments)
    before = model.facts()
    model.read_again()
    for edit, arguments in harmless:
        if edit is Model.vacuum_full and any(
            c.missing is not None and not c.default for c in model.columns.values()
        ):
            continue
        edit(model, *arguments)
        now = model.facts()
        assert READ_AGAIN not in {d.action for d in differences(before, now)}
        assert model.is_right()
        before = now


@given(st.lists(HARMLESS_EDITS, max_size=8))
def test_with_a_toast_table_these_are_told_apart_whenever_somebody_looks(harmless):
    model = filled(toast=True)
    before = model.facts()
    for edit, arguments in harmless:
        edit(model, *arguments)
    assert READ_AGAIN not in {d.action for d in differences(before, model.facts())}
    assert model.is_right()
