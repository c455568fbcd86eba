"""Debezium's transform that takes the envelope away: its settings, and what in them cannot work."""

import pytest

from lakemark.converters.arrival_order import UNPROMISED
from lakemark.converters.flattening import flattening_of
from lakemark.model import positions
from lakemark.model.decoding import AddedField, Flattening
from tests.kit.connector_settings import POSTGRES, config, parse

CLASS = "io.debezium.transforms.ExtractNewRecordState"
WHOLE = "op,source.schema,source.table,source.snapshot,source.sequence,source.lsn"


def transform(**told: str) -> dict[str, str]:
    """Settings of a connector with the transform; in names `_` stands for a dot."""
    named = {f"transforms.flat.{name.replace('_', '.')}": text for name, text in told.items()}
    return {"transforms": "flat", "transforms.flat.type": CLASS, **named}


GOOD = transform(
    add_fields=WHOLE, delete_tombstone_handling_mode="rewrite", replace_null_with_default="false"
)


def wrong(settings, *, warnings: bool = False, **ours) -> dict[str, str]:
    found = parse(settings, **ours).problems
    return {p.path.removeprefix("connector: "): p.hint for p in found if p.warning == warnings}


@pytest.mark.parametrize(
    ("told", "added"),
    [
        ("op", AddedField("__op", "", "op")),
        (" ts_ms ", AddedField("__ts_ms", "", "ts_ms")),
        ("lsn", AddedField("__lsn", "source", "lsn")),
        ("source.lsn", AddedField("__source_lsn", "source", "lsn")),
        ("source.lsn:LSN", AddedField("__LSN", "source", "lsn")),
        ("lsn:LSN", AddedField("__LSN", "source", "lsn")),
        ("total_order", AddedField("__total_order", "transaction", "total_order")),
        (
            "transaction.total_order",
            AddedField("__transaction_total_order", "transaction", "total_order"),
        ),
    ],
)
def test_fields_have_the_names_that_the_transform_gives_them(told, added):
    assert flattening_of(transform(add_fields=told)).fields == (added,)
    moved = added._replace(name="cdc." + added.name.removeprefix("__"))
    told_twice = transform(add_headers=told, add_headers_prefix="cdc.")
    assert flattening_of(told_twice) == Flattening(headers=(moved,))


def test_who_has_no_such_transform_has_the_envelope():
    assert flattening_of({}) is None
    assert flattening_of({**GOOD, "transforms": "other"}) is None
    assert flattening_of({**GOOD, "transforms.flat.predicate": "outbox"}) is None
    connector = {"connector.class": "io.debezium.connector.mysql.MySqlConnector"}
    assert flattening_of({**GOOD, **connector}).connector == "mysql"


def test_with_all_that_the_envelope_said_there_is_nothing_wrong():
    found = parse(GOOD)
    assert found.problems == ()
    assert found.converter.flattening == flattening_of({**POSTGRES, **GOOD})
    by_headers = transform(
        add_headers=WHOLE,
        delete_tombstone_handling_mode="delete-to-tombstone",
        replace_null_with_default="false",
    )
    assert parse(by_headers).problems == ()


@pytest.mark.parametrize("lacks", WHOLE.split(","))
def test_without_one_of_them_nobody_knows_the_order(lacks):
    some = [name for name in WHOLE.split(",") if name != lacks]
    found = wrong({**GOOD, "transforms.flat.add.fields": ",".join(some)})
    assert list(found) == ["transforms.flat.add.fields"]
    hint = found["transforms.flat.add.fields"]
    mended = hint.removeprefix("set transforms.flat.add.fields to ").partition(", or remove")[0]
    assert wrong({**GOOD, "transforms.flat.add.fields": mended}) == {}


@pytest.mark.parametrize("mode", ["", "drop", "tombstone", "delete-to-tombstone"])
def test_deletes_must_say_when(mode):
    """A tombstone alone has no place in the log, unless its headers have one."""
    setting = "transforms.flat.delete.tombstone.handling.mode"
    found = wrong({**GOOD, setting: mode})
    assert found == {setting: f"set {setting} to rewrite"}


def test_defaults_instead_of_nulls_are_warned_of():
    setting = "transforms.flat.replace.null.with.default"
    told = {name: text for name, text in GOOD.items() if name != setting}
    assert wrong(told) == {}
    assert wrong(told, warnings=True) == {setting: f"set {setting} to false"}


def test_what_depends_on_the_row_is_refused_and_so_are_output_topics():
    setting = "transforms.flat.route.by.field"
    assert list(wrong({**GOOD, setting: "region"})) == [setting]
    ours = config(output={"topic_prefix": "clean"})
    assert list(wrong(GOOD, output={"topic_prefix": "clean"})) == ["transforms.flat"]
    assert ours.output is not None


def test_where_transactions_are_counted_their_order_is_needed():
    mysql = {
        **GOOD,
        "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
        "transforms.flat.add.fields": (
            "op,source.db,source.table,source.snapshot,source.file,source.pos,source.gtid"
        ),
    }
    setting = "transforms.flat.add.fields"
    assert setting not in wrong(mysql)
    counted = {**mysql, "provide.transaction.metadata": "true"}
    assert "transaction.total_order" in wrong(counted)[setting]


# -- source.order: arrival ------------------------------------------------------------------------

PLAIN = transform(replace_null_with_default="false")
ARRIVAL = {"connect": {"url": "http://c:8083", "connector": "shop"}, "order": "arrival"}
NO_DATABASE = {"source": ARRIVAL, "database": None}


def test_rows_without_a_place_are_taken_as_they_arrive_where_that_is_asked_for():
    found = parse(PLAIN, **NO_DATABASE)
    assert wrong(PLAIN, **NO_DATABASE) == {}
    assert [*wrong(PLAIN, warnings=True, **NO_DATABASE)] == ["source.order"]
    (warning,) = [p for p in found.problems if p.path == "source.order"]
    assert UNPROMISED in warning.message
    assert found.identity.connector == positions.ARRIVAL
    assert found.converter.flattening == Flattening(connector="postgresql", arrival=True)
    assert parse(PLAIN).identity.connector != positions.ARRIVAL
    assert wrong(PLAIN), "not by itself"


@pytest.mark.parametrize("told", [{}, {"after.state.only": "false"}])
def test_events_with_envelopes_are_never_taken_as_they_arrive(told):
    assert [*wrong(told, **NO_DATABASE)] == ["source.order"]


def test_who_says_the_place_is_read_by_it():
    assert wrong(GOOD, **NO_DATABASE) == {"source.order": "remove source.order"}


def test_after_state_only_has_no_other_way():
    only = {"after.state.only": "true"}
    assert "source.order to arrival" in wrong(only)["after.state.only"]
    assert wrong(only, **NO_DATABASE) == {}
    assert parse(only, **NO_DATABASE).converter.flattening.arrival


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"transforms.flat.delete.tombstone.handling.mode": "drop"},
         "transforms.flat.delete.tombstone.handling.mode"),
        ({"tombstones.on.delete": "false"}, "tombstones.on.delete"),
        ({"topic.delimiter": "-"}, "topic.delimiter"),
        ({"topic.naming.strategy": "io.debezium.schema.DefaultTopicNamingStrategy"},
         "topic.naming.strategy"),
        ({"transforms": "flat,route", "transforms.route.type": "x.RegexRouter"},
         "transforms.route"),
        ({"transforms": "flat,part", "transforms.part.type": "io.debezium.PartitionRouting"},
         "transforms.part"),
        ({"transforms.flat.route.by.field": "region"}, "transforms.flat.route.by.field"),
        ({"key.converter": "org.apache.kafka.connect.storage.StringConverter"}, "key.converter"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_as_it_arrives_is_refused(settings, setting):
    assert setting in wrong({**PLAIN, **settings}, **NO_DATABASE)


def test_deletes_that_are_rewritten_need_no_tombstones():
    told = {"tombstones.on.delete": "false"}
    rewritten = {"transforms.flat.delete.tombstone.handling.mode": "rewrite"}
    assert wrong({**PLAIN, **told, **rewritten}, **NO_DATABASE) == {}


def test_what_needs_a_place_in_the_log_is_refused_and_so_are_output_topics():
    assert [*wrong(PLAIN, source=ARRIVAL)] == ["database"]
    assert [*wrong(PLAIN, **NO_DATABASE, output={"topic_prefix": "clean"})] == ["transforms.flat"]
