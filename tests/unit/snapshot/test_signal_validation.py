"""From an execute-snapshot signal to a run, or to the reason why there is none."""

import json
from datetime import timedelta
from decimal import Decimal

import pytest

from lakemark.errors import ConfigError, DependencyError, LakemarkError, RefusedError, TableError
from lakemark.model.key_ranges import Condition
from lakemark.model.schema import TableSchema
from lakemark.snapshot import signals
from lakemark.snapshot.fields import PrimaryKey
from lakemark.snapshot.runs import FAILED, WAITING, Run
from lakemark.snapshot.signal_validation import SignalContext, accept
from lakemark.snapshot.signals import ExecuteSnapshot, Rejection
from tests.kit.shop import schema_of

ORDERS, ITEMS, PAIRS, LOG = "public.orders", "public.items", "public.pairs", "public.log"


def pairs(table, key):
    columns = schema_of(table, id="int8", a="text", b="int8").columns
    return TableSchema(table, columns, key)


SCHEMAS = {
    ORDERS: schema_of(ORDERS, id="int8", v="text"),
    ITEMS: schema_of(ITEMS, id="int8", v="text"),
    PAIRS: pairs(PAIRS, ("a", "b")),
    LOG: pairs(LOG, ()),
}
FILTERED = Rejection("", "filtered", "the connector filters it", "do not filter it")


def condition(table, text):
    if "bad" in text:
        raise RefusedError(f"{table}: no filter", code="bad-condition", hint="write another")
    return Condition(text)


def run_of(*tables, against=None, **more):
    signal = ExecuteSnapshot("s1", tables, **more)
    return accept(signal, SignalContext(SCHEMAS, condition, (against or {}).get))


def accepted(*tables, **more):
    found = run_of(*tables, **more)
    assert isinstance(found, Run), found
    return found


def refused(*tables, **more):
    found = run_of(*tables, **more)
    assert isinstance(found, Rejection), found
    assert found.id == "s1"
    assert found.hint
    return found


def keys(*values, columns=()):
    return tuple(PrimaryKey(value, columns) for value in values)


def test_what_the_signal_says_holds_for_the_run():
    run = accepted(
        ITEMS,
        ORDERS,
        "no.such",
        chunk_rows=7,
        parallelism=2,
        delay=timedelta(seconds=1.5),
        priority=3,
    )
    assert run.names() == (ITEMS, ORDERS)
    assert (run.chunk_rows, run.parallelism, run.delay, run.priority) == (7, 2, 1.5, 3)
    assert run.unmatched == ["no.such"]
    assert all(table.whole and table.state == WAITING for table in run.tables)
    run = accepted(ORDERS)
    assert (run.id, run.chunk_rows, run.parallelism, run.delay) == ("s1", None, None, None)


def test_tables_that_nobody_knows():
    found = refused("public.order")
    assert (found.code, found.hint) == ("unknown-table", f"did you mean {ORDERS}?")


def test_filters():
    given = json.dumps(
        {
            "id": "s1",
            "type": "execute-snapshot",
            "data": {
                "data-collections": [ORDERS, ITEMS],
                "additional-conditions": [{"data-collection": ITEMS, "filter": "v = 'x'"}],
            },
        }
    )
    signal = signals.read(b"shop", given.encode(), pipeline="shop", unnamed="none")
    run = accept(signal, SignalContext(SCHEMAS, condition, {}.get))
    assert [(table.condition, table.whole) for table in run.tables] == [
        ("", True),
        ("v = 'x'", False),
    ]


@pytest.mark.parametrize(("collection", "text"), [(ITEMS, "bad"), (ORDERS, "v = 'x'")])
def test_filters_that_make_no_sense(collection, text):
    found = refused(ITEMS, conditions=(signals.AdditionalCondition(collection, text),))
    assert found.code == "bad-condition"


def test_tables_that_cannot_be_read_fail_alone():
    run = accepted(LOG, ORDERS, ITEMS, against={ITEMS: FILTERED})
    assert {table.table: (table.state, table.code) for table in run.tables} == {
        LOG: (FAILED, "no-key"),
        ORDERS: (WAITING, ""),
        ITEMS: (FAILED, "filtered"),
    }
    assert run.tables[2].reason == f"{ITEMS}: {FILTERED.message}"
    assert all(table.hint for table in run.tables if table.state == FAILED)


def test_a_key_of_a_type_that_cannot_be_one_is_said_to_be_that():
    def against(table):
        if table == ITEMS:
            raise LakemarkError(f"{ITEMS}: a bit string", code="key-type", hint="another key")

    run = accept(ExecuteSnapshot("s1", (ORDERS, ITEMS)), SignalContext(SCHEMAS, condition, against))
    (_, items) = run.tables
    assert (items.state, items.code, items.hint) == (FAILED, "key-type", "another key")
    assert items.reason == f"{ITEMS}: a bit string"


@pytest.mark.parametrize("retried", [False, True])
def test_a_table_that_the_database_keeps_from_us_fails_alone(retried):
    def against(table):
        if table == ITEMS:
            raise LakemarkError("no SELECT", code="configuration", hint="GRANT", retried=retried)

    signal = ExecuteSnapshot("s1", (ORDERS, ITEMS))
    known = SignalContext(SCHEMAS, condition, against)
    if retried:  # the database is away: the signal waits
        with pytest.raises(LakemarkError):
            accept(signal, known)
        return
    found = accept(signal, known)
    assert [(table.state, table.hint) for table in found.tables] == [
        (WAITING, ""),
        (FAILED, "GRANT"),
    ]


def test_no_table_that_can_be_read():
    assert refused(LOG).code == "no-key"
    assert refused(ITEMS, LOG, against={ITEMS: FILTERED}).code == "filtered"


def test_a_column_that_orders_chunks():
    assert accepted(PAIRS, surrogate_key="id").surrogate == "id"
    found = refused(PAIRS, ORDERS, surrogate_key="b")
    assert found.code == "unknown-column"
    assert ORDERS in found.message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (True, "true"),
        (False, "false"),
        ("a b", "a b"),
        (Decimal("1.50"), "1.50"),
        (Decimal("1E+3"), "1000"),
    ],
)
def test_values_of_keys_are_written_as_the_database_reads_them(value, text):
    assert accepted(ORDERS, keys=keys((value,))).tables[0].keys == [[text]]


def test_keys_of_several_columns_by_name_or_in_order_each_once():
    by_name = keys((2, "x"), (3, "y"), (2, "x"), columns=("b", "a"))
    run = accepted(PAIRS, keys=by_name)
    assert run.tables[0].keys == [["x", "2"], ["y", "3"]]
    assert not run.tables[0].whole
    assert accepted(PAIRS, keys=keys(("x", 2))).tables[0].keys == [["x", "2"]]


@pytest.mark.parametrize(
    "more",
    [
        {"keys": keys((1,))},
        {"keys": keys((1, 2, 3))},
        {"keys": keys((1, 2), columns=("a", "c"))},
        {"keys": keys((1, 2), columns=("a", "a"))},
        {"keys": keys(("x", 1)), "surrogate_key": "id"},
        {"keys": keys(("x", 1)), "conditions": (signals.AdditionalCondition(".*", "b > 1"),)},
    ],
)
def test_keys_that_do_not_go_with_the_table(more):
    assert refused(PAIRS, **more).code == "bad-value"


def test_keys_are_of_one_table_that_can_be_read():
    assert refused(ORDERS, ITEMS, keys=keys((1,))).code == "bad-value"
    assert refused(LOG, keys=keys((1,))).code == "no-key"
    assert refused(ITEMS, keys=keys((1,)), against={ITEMS: FILTERED}).code == "filtered"


def answers(errors):
    """What the database says of names, when it is asked."""

    def against(name):
        if name in errors:
            raise errors[name]

    return against


VIEW = TableError("public.v is no table", code="not-a-table", hint="name the table behind it")


@pytest.mark.parametrize(
    ("names", "errors", "code"),
    [
        (["public.v"], {"public.v": VIEW}, "not-a-table"),
        (["no.such", "public.v"], {"public.v": VIEW}, "not-a-table"),
        (["public.v.*"], {"public.v.*": VIEW}, "unknown-table"),
        (["no.such"], {"no.such": TableError("gone", code="table-gone")}, "unknown-table"),
        (["no.such"], {"no.such": ConfigError("no rights")}, "unknown-table"),
        (["no.such"], {"no.such": DependencyError("x", code="table-locked")}, "unknown-table"),
    ],
)
def test_a_view_is_told_from_a_table_that_the_connector_does_not_capture(names, errors, code):
    found = accept(
        ExecuteSnapshot("s1", tuple(names)), SignalContext(SCHEMAS, condition, answers(errors))
    )
    assert isinstance(found, Rejection)
    assert found.code == code
    if code == "not-a-table":
        assert (found.id, found.message, found.hint) == ("s1", VIEW.message, VIEW.hint)


def test_a_database_that_is_away_is_asked_again_whether_it_is_a_view():
    away = {"no.such": DependencyError("away", code="database-unavailable")}
    with pytest.raises(DependencyError):
        accept(
            ExecuteSnapshot("s1", ("no.such",)), SignalContext(SCHEMAS, condition, answers(away))
        )
