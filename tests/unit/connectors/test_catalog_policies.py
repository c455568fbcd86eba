"""What the policies make of differences of the catalog, and what is said of it."""

from dataclasses import replace
from itertools import product
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from lakemark.connectors.catalog_changes import Action, Difference
from lakemark.connectors.catalog_policies import CODES, judged, outcome_of
from lakemark.connectors.connector import parse
from lakemark.connectors.postgres.catalog_differences import are_fills, differences
from lakemark.connectors.postgres.catalog_facts import ColumnFacts, TableFacts, UniqueKey
from lakemark.ops.catalog_watch import has_to_wait, records
from lakemark.settings.config import Config
from lakemark.settings.schema_policy import BEHAVIORS, SchemaPolicy
from lakemark.sink.delta import delta_rs
from lakemark.sink.names import folder_of
from lakemark.state.policies import Policies, can_rebuild
from lakemark.state.tables import CATCHING_UP, ERRORED, PAUSED, PipelineState, TableState
from tests.kit.catalog_looks import CONFIG, SETTINGS, T, U, facts, source, state
from tests.kit.table_states import table_state
from tests.kit.write_sets import table_schema

CAPTURES = parse({**SETTINGS, "signal.data.collection": "public.signals"}, config=CONFIG)
BEFORE = facts(columns=("id", "v", "w"))


def rekeyed(**more: Any):
    return facts(
        columns=("id", "v", "w"), key=(2,), identity_columns=(2,),
        unique_keys=(UniqueKey("pk", (2,), not_null=True),), **more,
    )  # fmt: skip


def added(fill: str | None):
    after = facts(columns=("id", "v", "w", "x"))
    *old, new = after.columns
    return msgspec.structs.replace(
        after, columns=(*old, msgspec.structs.replace(new, missing=fill))
    )


NOW = {
    "add-column": source(added("7")),
    "drop-column": source(facts(columns=("id", "v"))),
    "rename-column": source(facts(columns=("id", "v", "x"))),
    "change-key": source(rekeyed()),
    "drop-table": source(),
    "rename-table": source(facts(U, columns=("id", "v", "w"))),
}
# What is said of the table: r = it is read again, b = it is rebuilt, s = it stops.
SAID = {
    # kind              exception, evolve, try_evolve, lenient, ignore; where it can be rebuilt
    "add-column": ("sr", "r", "r", "r", ""),
    "drop-column": ("s", "rb", "rb", "", ""),
    "rename-column": ("sr", "rb", "rb", "r", ""),
    "change-key": ("s", "srb", "srb", "srb", "s"),
    "drop-table": ("s", "", "", "", ""),
    "rename-table": ("s", "", "", "", ""),
}
CANNOT = {
    **SAID,
    "drop-column": ("s", "s", "", "", ""),
    "rename-column": ("sr", "sr", "r", "r", ""),
    "change-key": ("s", "s", "s", "s", "s"),
}
LETTERS = {"table-resnapshot": "r", "table-rebuild": "b", "table-stop": "s"}


def said(now, policy, *, can_rebuild=True, has=(), entry=None, before=None):
    """The records about a table when its catalog has changed."""
    outcome = outcome_of(lambda _: policy, lambda _: can_rebuild)
    found = differences(before or source(BEFORE), now)
    changes = list(judged(found, outcome, lambda _, column: column in has))
    kept = state(a=entry or table_state(key=["id"]))
    every = records(changes, kept, there=now.tables, outcome=outcome)
    return [(kind, more) for kind, table, more in every if table == T]


def letters(found):
    return "".join(LETTERS[kind] for kind, _ in found)


@pytest.mark.parametrize(("kind", "behavior"), list(product(NOW, BEHAVIORS)))
@pytest.mark.parametrize(("can_rebuild", "expected"), [(True, SAID), (False, CANNOT)])
def test_every_change_under_every_policy(kind, behavior, can_rebuild, expected):
    found = said(NOW[kind], SchemaPolicy.of(behavior), can_rebuild=can_rebuild)
    assert letters(found) == expected[kind][BEHAVIORS.index(behavior)]
    for name, more in found:
        assert more["reason"]
        if name == "table-stop":
            code = "key-changed" if kind == "change-key" else "schema-change-refused"
            assert more["code"] == code
            assert more["hint"]


def test_a_new_key_is_followed_only_where_the_table_has_stopped_for_it():
    *_, (name, more) = said(NOW["change-key"], SchemaPolicy.of("lenient"))
    assert (name, more["code"]) == ("table-rebuild", "key-changed")
    *_, (name, more) = said(NOW["drop-column"], SchemaPolicy.of("evolve"))
    assert more["code"] == "", "this one does not stop before"
    assert more["automatic"]


@pytest.mark.parametrize("kind", ["add-column", "rename-column"])
def test_what_is_left_out_of_a_table_that_has_a_column_of_that_name_is_read_again(kind):
    """Another column had the name before: the values are others."""
    assert letters(said(NOW[kind], SchemaPolicy.of("ignore"), has={"x"})) == "r"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (TableState(), "rb"),
        (TableState(state=CATCHING_UP), "rb"),
        (TableState(state=ERRORED, code="columns-unseen", retried=True), "rb"),
        (TableState(state=PAUSED, code="paused"), ""),
        (TableState(state=PAUSED, code="skipping"), ""),
        (TableState(state=ERRORED, code="too-many-bad-records"), ""),
        (TableState(state=ERRORED, code="lake-unavailable", retried=True), ""),
    ],
)
@pytest.mark.parametrize(
    ("kind", "behavior"), [("drop-column", "evolve"), ("drop-column", "exception")]
)
def test_a_table_that_stands_still_hears_of_it_later(kind, behavior, entry, expected):
    policy = SchemaPolicy.of(behavior)
    expected = expected.replace("rb", "s") if behavior == "exception" else expected
    assert letters(said(NOW[kind], policy, entry=entry)) == expected
    found = differences(source(BEFORE), NOW[kind])
    (change,) = judged(found, outcome_of(lambda _: policy, lambda _: True), lambda *_: False)
    assert has_to_wait(change, entry) == (not expected)


def test_a_key_that_stops_a_table_by_itself_never_waits():
    """It comes with every look, or with the next event."""
    found = differences(source(BEFORE), NOW["change-key"])
    outcome = outcome_of(lambda _: SchemaPolicy(), lambda _: True)
    for change in judged(found, outcome, lambda *_: False):
        assert not has_to_wait(change, TableState(state=PAUSED))


@pytest.mark.parametrize("entry", [
    table_state(key=["id"], state=PAUSED, code="paused"),
    table_state(key=["id"], state=ERRORED, code="too-many-bad-records"),
])  # fmt: skip
def test_what_a_table_that_stands_still_has_missed_is_read_again_when_it_goes_on(entry):
    """The rebuild is not carried out; another key of the same names stops nothing later."""
    other = source(facts(columns=("id", "v", "w"), key=(4,), identity_columns=(4,)))
    columns = [c for c in other.tables[T].columns if c.name != "id"]
    made = msgspec.structs.replace(other.tables[T].columns[0], number=4)
    unique = (UniqueKey("pk", (4,), not_null=True),)
    now = source(
        msgspec.structs.replace(other.tables[T], columns=(*columns, made), unique_keys=unique)
    )
    found = said(now, SchemaPolicy(), entry=entry)
    assert letters(found) == "rb"
    assert "another one than before" in found[0][1]["reason"]


@pytest.mark.parametrize("key", [["v"], []])
def test_a_table_that_has_the_new_key_already_is_not_made_anew_for_it(key):
    assert said(NOW["change-key"], SchemaPolicy(), entry=table_state(key=key)) == []


def test_a_table_whose_source_went_back_in_time_is_not_made_anew():
    entry = TableState(state=ERRORED, code="key-changed", reason="it could not", topics=["t"])
    now = PipelineState(tables={T: entry}, regressed={"t": {0: 5}})
    outcome = outcome_of(lambda _: SchemaPolicy(), lambda _: True)
    assert list(records([], now, there=[T], outcome=outcome)) == []


def test_two_changes_are_one_rebuild():
    both = source(facts(columns=("id", "x")))
    (_, (name, more)) = said(both, SchemaPolicy.of("evolve"))
    assert name == "table-rebuild"
    assert "v of public.a was renamed" in more["reason"]
    assert "w of public.a was dropped" in more["reason"]


@pytest.mark.parametrize(("code", "behavior"), list(product(CODES, BEHAVIORS)))
@pytest.mark.parametrize("can_rebuild", [False, True])
def test_a_table_that_could_not_follow_is_made_anew_by_itself(code, behavior, can_rebuild):
    entry = TableState(state=ERRORED, code=code, reason="it could not")
    now = source(BEFORE)
    found = said(now, SchemaPolicy.of(behavior), can_rebuild=can_rebuild, entry=entry)
    if behavior in {"exception", "ignore"} or not can_rebuild:
        assert found == []
    else:
        more = {"reason": "it could not", "code": code, "automatic": True}
        assert found == [("table-rebuild", more)]


def test_one_that_the_database_no_longer_has_or_was_told_already_is_not():
    entry = state(a=TableState(state=ERRORED, code="key-changed", reason="it could not"))
    outcome = outcome_of(lambda _: SchemaPolicy(), lambda _: True)
    assert list(records([], entry, there=[], outcome=outcome)) == []
    assert list(records([], entry, there=[T], commanded={T}, outcome=outcome)) == []
    assert len(list(records([], entry, there=[T], outcome=outcome))) == 1


def test_a_refusal_is_said_even_if_something_else_was_said_just_now():
    """It is seen once; what lasts comes with the next look."""
    refused = Difference(T, "column-dropped", Action.STOP, "it was dropped", refused=True)
    lasting = Difference(T, "not-published", Action.STOP, "it is not published")
    assert len(list(records([refused], state(a=TableState()), there=[T], commanded={T}))) == 1
    assert list(records([lasting], state(a=TableState()), there=[T], commanded={T})) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"database": None}, False),
        ({"snapshot": {"incomplete": "manual"}}, False),
        ({"lake": {"path": "hdfs://name/lake"}}, False),
        ({"lake": {"path": "/nowhere/lake", "deletes": "soft"}}, False),
        ({"output": {"topic_prefix": "clean"}}, False),
    ],
)
def test_when_a_table_can_be_made_anew_by_itself(changes, expected):
    config = Config.model_validate({**CONFIG.model_dump(exclude_unset=True), **changes})
    assert can_rebuild(config, CAPTURES, T) is expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"signal.data.collection": ""}, False),
        ({"converters": "mine", "mine.type": "x.Y"}, False),
        ({"column.mask.with.3.chars": "public.a.v"}, False),
    ],
)
def test_a_table_of_which_no_snapshot_can_be_taken_is_not_made_anew(settings, expected):
    connector = parse({**CAPTURES.settings, **settings}, config=CONFIG)
    assert can_rebuild(CONFIG, connector, T) is expected


@pytest.mark.parametrize(
    ("entry", "column", "expected"),
    [
        (TableState(), "w", Action.NOTHING),
        (TableState(), "v", Action.READ_AGAIN),
        (table_state(rebuild="rebuild-a-1"), "w", Action.READ_AGAIN),
        (None, "w", Action.NOTHING),
    ],
)
def test_what_is_left_out_is_read_again_if_the_table_has_or_may_get_it(
    tmp_path, entry, column, expected
):
    lake = {"path": str(tmp_path / "lake"), "schema_changes": {"behavior": "ignore"}}
    config = Config.model_validate({**CONFIG.model_dump(exclude_unset=True), "lake": lake})
    kept = PipelineState(tables={T: entry} if entry else {})
    policies = Policies(config, CAPTURES, lambda: kept)
    change = Difference(T, "column-added", Action.READ_AGAIN, "it was added", column=column)
    assert [c.action for c in policies.judged([change])] == [Action.READ_AGAIN], "no table yet"
    columns = {"id": pa.int64(), "v": pa.int64()}
    delta_rs.ensure(folder_of(config.lake, T), table_schema(columns), key=["id"], table=T)
    assert [c.action for c in policies.judged([change])] == [expected]


def test_settings_of_one_table_go_before_those_of_all():
    of_all = {"behavior": "exception", "exclude": ["truncate"]}
    own = {
        "public.a": {"schema_changes": {"behavior": "ignore"}},
        U: {"schema_changes": {"exclude": []}},
    }
    lake = {"path": "/nowhere/lake", "schema_changes": of_all, "tables": own}
    config = Config.model_validate({**CONFIG.model_dump(exclude_unset=True), "lake": lake})
    assert config.lake.policy_of(T) == SchemaPolicy.of("ignore", exclude=["truncate"])
    assert config.lake.policy_of(U) == SchemaPolicy.of("exception")
    assert config.lake.policy_of("public.c") == SchemaPolicy.of("exception", exclude=["truncate"])


# -- values that older rows have -------------------------------------------------------------------

ALTER = 9  # the transaction that did it


def table(*columns, width=None, oid=1, kind="r", **more):
    """Columns by number: names, or name, xmin and xmin of the default; "" is dropped."""
    found = []
    for number, given in enumerate(columns, 1):
        name, xmin, default_xmin = (given, 1, 0) if isinstance(given, str) else (*given, 0)[:3]
        if name:
            found.append(ColumnFacts(number, name, "text", xmin=xmin, default_xmin=default_xmin))
    return TableFacts(
        oid=oid, name=T, kind=kind, columns=tuple(found),
        width=len(columns) if width is None else width, **more,
    )  # fmt: skip


ADDED = Difference(T, "column-added", Action.READ_AGAIN, "w came", column="w", fill="11")
NAMED = Difference(T, "column-renamed", Action.READ_AGAIN, "", column="w", other="v")
NOTHING = Difference(T, "column-dropped", Action.NOTHING, "x went", column="x")
W, X = ("w", ALTER, ALTER), ("x", ALTER, ALTER)
RENAMED = ("w", ALTER)


@pytest.mark.parametrize(
    ("before", "now", "changes", "expected"),
    [
        (table("id"), table("id", W), [ADDED], True),
        (table("id"), table("id", W, X), [ADDED, replace(ADDED, column="x")], True),
        (table("id", "v"), table("id", RENAMED), [NAMED], True),
        (table("id", "x"), table("id", "", W), [ADDED, NOTHING], True),
        (table("id", "v"), table("id", RENAMED, X), [NAMED, replace(ADDED, column="x")], True),
        # nothing to do, or something else
        (table("id"), table("id", W), [replace(ADDED, action=Action.NOTHING)], False),
        (table("id"), table("id", W), [ADDED, replace(ADDED, kind="rewritten")], False),
        (table("id"), table("id", W), [ADDED, replace(NOTHING, action=Action.STOP)], False),
        (table("id"), table("id", W), [replace(ADDED, action=Action.REBUILD)], False),
        (table("id"), table("id", W), [replace(ADDED, fill=None)], False),
        (table("id", "v"), table("id", RENAMED), [replace(NAMED, other="")], False),
        (table("id", "v"), table("id", RENAMED), [replace(NAMED, kind="column-replaced")], False),
        # a column came and went: events may have had it by the name of this one
        (table("id"), table("id", "", W), [ADDED], False),
        (table("id", "v"), table("id", RENAMED, ""), [NAMED], False),
        (table("id", "v"), table("id", RENAMED, width=3), [NAMED], False),
        # it was written since it was made, or another one was: by another name in between
        (table("id"), table("id", ("w", ALTER, 7)), [ADDED], False),
        (table("id"), table("id", ("w", ALTER)), [ADDED], False),
        (table("id", "u"), table("id", ("u", 8), W), [ADDED], False),
        (table("id", "v", "u"), table("id", RENAMED, ("u", ALTER)), [NAMED], False),
        (table("id"), table("id", W, ("x", 8, 8)), [ADDED, replace(ADDED, column="x")], False),
        (table("id", "v"), table("id", ("w", 8), X), [NAMED, replace(ADDED, column="x")], False),
        # nobody knows, or another table
        (None, table("id", W), [ADDED], False),
        (table("id", width=0), table("id", W), [ADDED], False),
        (table("id", oid=2), table("id", W), [ADDED], False),
        (table("id", kind="p"), table("id", W, kind="p"), [ADDED], False),
        (table("id"), table("id", W, column_list=("id", "w")), [ADDED], False),
    ],
)
def test_where_a_value_or_a_name_is_all_that_rows_lack(before, now, changes, expected):
    assert are_fills(before, now, changes) is expected
