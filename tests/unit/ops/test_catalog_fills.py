"""What a look at the catalog says of values that older rows have in columns."""

import msgspec
import pyarrow as pa
import pytest

from lakemark.connectors.connector import parse
from lakemark.connectors.postgres import positions as lsns
from lakemark.errors import DependencyError
from lakemark.model.fills import UNSEEN, Fill
from lakemark.ops.catalog_watch import CatalogWatch
from lakemark.settings.config import Config
from lakemark.state.tables import ERRORED, PAUSED
from tests.kit.catalog_looks import (
    CONFIG,
    CONNECTOR,
    SETTINGS,
    AskedDatabase,
    T,
    U,
    facts,
    source,
    state,
    told,
)
from tests.kit.table_states import altered, table_state

pytestmark = pytest.mark.usefixtures("logs")

WHOLE = table_state(complete="snapshot", engine="task-merge")


def wide(missing="11", **more):
    """Table a with one column more, which older rows have a value in."""
    after = facts(columns=("id", "v", "w"), width=3, **more)
    *old, new = after.columns
    new = msgspec.structs.replace(new, missing=missing, xmin=9, default_xmin=9)
    return source(msgspec.structs.replace(after, columns=(*old, new)), lsn=800)


@pytest.fixture
def whole(looks, monkeypatch):
    """A table that is whole, and of which one look was taken."""

    def missing_values(_, facts, missing):
        assert (facts.name, facts.oid) == (T, 1)
        given = {n: None if text == "odd" else pa.array([text]) for n, text in missing.items()}
        return {"id": None, "v": None} | dict.fromkeys(columns) | given

    columns = ["w"]

    monkeypatch.setattr(AskedDatabase, "missing_values", missing_values)
    looks.state = state(a=WHOLE)
    looks.now = type(looks).now = source(facts(width=2))
    looks.watched = looks.watch()
    looks.watched.look()
    return looks


def called_otherwise():
    """Its second column has another name."""
    after = facts(columns=("id", "w"), width=2)
    one, two = after.columns
    columns = (one, msgspec.structs.replace(two, xmin=9))
    return source(msgspec.structs.replace(after, columns=columns), lsn=800)


def then(looks, now):
    type(looks).now = now
    looks.watched.look()
    return [(kind, more.get("fills")) for kind, _, more in looks.records]


def test_older_rows_get_the_value_that_the_catalog_has(whole):
    ((kind, (given,)),) = then(whole, wide())
    assert kind == "table-fill"
    assert whole.records[0][2]["reason"] == "column w was added to public.a, and older rows have its default"  # fmt: skip
    one = msgspec.convert(given, Fill)
    assert (one.column, one.source, one.cell()[0].as_py()) == ("w", "", "11")
    assert one.upto == lsns.pack(0, 800, 0).hex()
    assert told(whole)[0] == (T, "column-added", "fill")


def test_a_renamed_column_takes_its_values_along(whole):
    ((kind, (given,)),) = then(whole, called_otherwise())
    assert (kind, given["column"], given["source"]) == ("table-fill", "w", "v")
    assert "value" not in given


def test_positions_are_of_the_epoch_of_now(whole):
    whole.state.epochs = [{}, {}]
    ((_, (given,)),) = then(whole, wide())
    assert given["upto"] == lsns.pack(2, 800, 0).hex()


@pytest.mark.parametrize(
    ("entry", "now"),
    [
        (WHOLE, wide("odd")),  # no event could bring that value
        (WHOLE, wide("long" * 20_000)),
        (WHOLE, wide(filenode=11)),
        (WHOLE, wide(column_list=("id", "v", "w"))),
        (altered(WHOLE, complete=""), wide()),
        (altered(WHOLE, engine="spark-merge"), wide()),
        (altered(WHOLE, state=PAUSED), wide()),
    ],
)
def test_where_that_is_not_all_the_table_is_read_again(whole, entry, now):
    whole.state = state(a=entry)
    if now.tables[T].filenode == 11:
        now.tables[T] = msgspec.structs.replace(now.tables[T], columns=(
            *(msgspec.structs.replace(c, xmin=8) for c in now.tables[T].columns[:2]),
            now.tables[T].columns[2],
        ))  # fmt: skip
    kinds = [kind for kind, _ in then(whole, now)]
    assert kinds == ["table-resnapshot"]
    assert told(whole)[0][2] == "read-again"


def test_where_rows_go_to_an_output_topic_too_the_table_is_read_again(whole, monkeypatch):
    output = Config.model_validate({**CONFIG.model_dump(), "output": {"topic_prefix": "clean"}})
    monkeypatch.setattr(whole.watched, "_config", output)
    assert [kind for kind, _ in then(whole, wide())] == ["table-resnapshot"]


def test_a_table_whose_policy_leaves_columns_out_gets_no_value(whole, monkeypatch):
    lake = {"path": "/nowhere/lake", "schema_changes": {"behavior": "ignore"}}
    config = Config.model_validate({**CONFIG.model_dump(), "lake": lake})
    whole.watched = CatalogWatch(config, CONNECTOR, whole.store, lambda: whole.state, lambda _: 0)
    monkeypatch.setattr(whole.watched._policies, "_has_column", lambda *_: False)
    assert then(whole, wide()) == []


def test_a_table_that_waits_for_a_look_goes_on_with_the_one_that_began_afterwards(whole):
    waits = altered(WHOLE, state=ERRORED, code=UNSEEN, retried=True)
    whole.state = state(a=waits)
    assert [kind for kind, _ in then(whole, wide())] == ["table-fill", "table-resume"]


def test_a_look_that_had_begun_before_lets_nobody_go_on(whole, monkeypatch):
    waits = altered(WHOLE, state=ERRORED, code=UNSEEN, retried=True)
    look = AskedDatabase.look

    def look_meanwhile(*asked, **more):
        whole.state = state(a=waits)
        return look(*asked, **more)

    monkeypatch.setattr(AskedDatabase, "look", look_meanwhile)
    assert then(whole, source(facts(width=2))) == []


def test_nobody_waits_for_a_database_that_does_not_answer(whole, monkeypatch):
    assert whole.watched.columns(whole.state) == {T: frozenset({"id", "v"})}

    def away(*_, **__):
        raise DependencyError("away", code="database-unavailable")

    monkeypatch.setattr(AskedDatabase, "look", away)
    whole.watched.try_to_look()
    assert whole.watched.columns(whole.state) == {}


def test_a_column_is_seen_when_a_batch_has_its_value_for_older_rows(whole):
    ((_, (given,)),) = then(whole, wide())
    assert whole.watched.columns(whole.state) == {T: frozenset({"id", "v"})}
    then(whole, wide())  # no batch meanwhile
    assert whole.watched.columns(whole.state) == {T: frozenset({"id", "v"})}
    taken = state(a=altered(WHOLE, fills=[msgspec.convert(given, Fill)]))
    assert whole.watched.columns(taken) == {T: frozenset({"id", "v", "w"})}


def test_only_tables_with_rows_and_columns_of_their_own_wait(whole):
    then(whole, source(facts(kind="p"), facts(U, oid=2, column_list=("id", "v"))))
    assert whole.watched.columns(whole.state) == {}


def test_values_that_the_connector_writes_in_its_own_way_are_read_by_nobody(whole):
    settings = {**SETTINGS, "column.mask.with.5.chars": "public.a.w"}
    connector = parse(settings, config=CONFIG)
    whole.watched = CatalogWatch(CONFIG, connector, whole.store, lambda: whole.state)
    assert [kind for kind, _ in then(whole, wide())] == ["table-resnapshot"]


def test_a_column_that_the_connector_leaves_out_takes_no_values_along(whole, monkeypatch):
    monkeypatch.setattr(AskedDatabase, "missing_values", lambda *_, **__: {"id": None})
    assert [kind for kind, _ in then(whole, called_otherwise())] == ["table-resnapshot"]


def test_a_renamed_column_is_a_new_one_for_the_policy(whole, monkeypatch):
    lake = {"path": "/nowhere/lake", "schema_changes": {"exclude": ["add-column"]}}
    config = Config.model_validate({**CONFIG.model_dump(), "lake": lake})
    whole.watched = CatalogWatch(config, CONNECTOR, whole.store, lambda: whole.state)
    assert [kind for kind, _ in then(whole, called_otherwise())] == ["table-resnapshot"]


def test_a_log_that_goes_on_is_no_reason_to_keep_a_look(whole):
    kept = whole.store.kept
    then(whole, source(facts(width=2), lsn=900))
    assert whole.store.kept is kept
