"""Names of tables with a qualifier: one connector's tables, told apart from another's."""

from copy import copy
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.connectors.catalog_changes import Action, Difference
from lakemark.connectors.catalogs import catalog_of
from lakemark.connectors.database import Database, DatabaseAccess
from lakemark.connectors.qualified_database import QualifiedDatabase
from lakemark.connectors.registry import database_of
from lakemark.converters.json import envelope
from lakemark.errors import TableError
from lakemark.model.decoding import Records, StretchPlan
from lakemark.model.events import Kind
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.settings.table_id import TableId, qualified, unqualified
from lakemark.source.decoder import decode_range
from tests.kit.connector_settings import config, parse
from tests.kit.toy_database import SETTINGS, ToyServer, registered

parts = st.text(st.sampled_from('ab."'), min_size=0, max_size=3)


@given(parts.filter(bool), st.lists(parts, min_size=1, max_size=3))
def test_a_qualifier_is_put_before_a_name_and_taken_off_again(qualifier, own):
    table = TableId.of(*own).text
    full = qualified(qualifier, table)
    assert TableId.parse(full).parts == (qualifier, *own)
    assert unqualified(qualifier, full) == table


@given(parts.filter(bool), st.lists(parts, min_size=1, max_size=2))
def test_a_name_of_another_connector_is_none_of_its_own(qualifier, own):
    assert unqualified(qualifier, qualified(f"{qualifier}x", TableId.of(*own).text)) is None


SHOP = parse({"table.include.list": "public.orders,public.debezium_signal"})


def test_one_of_several_connectors_has_its_own_tables_and_no_other():
    found = SHOP.among_several()
    assert found.qualifier == "shop"
    for table in ("public.orders", "public.customers"):
        assert (f"shop.{table}" in found.tables) == (table in SHOP.tables)
        assert found.tables.captured(f"shop.{table}") == SHOP.tables.captured(table)
        assert f"shop.{table}" in found.chosen
        for other in (table, f"crm.{table}", f"shops.{table}"):
            assert other not in found.tables
            assert other not in found.chosen
            assert not found.tables.captured(other)
    assert found.signal_table == "shop.public.debezium_signal"
    assert found.captures("shop.public.debezium_signal")
    assert not found.captures("public.debezium_signal")


def test_topics_and_keys_are_those_of_the_table_s_own_name():
    alone = parse({"message.key.columns": "public.orders:region"})
    found = alone.among_several()
    assert found.topic_of("shop.public.orders") == "shop.public.orders"
    assert found.topic_pattern == alone.topic_pattern
    assert found.key_of("shop.public.orders", ["id", "region"]) == ["region"]


def test_it_may_be_one_of_several_already():
    found = SHOP.among_several()
    again = found.among_several()
    assert (again.signal_table, again.identity) == (found.signal_table, found.identity)
    assert "shop.public.orders" in again.tables
    assert "public.orders" not in again.tables
    assert parse({"signal.data.collection": ""}).among_several().signal_table is None


@pytest.mark.parametrize(
    ("table", "kind"), [("orders", Kind.CHANGE), ("debezium_signal", Kind.SIGNAL)]
)
def test_events_of_one_of_several_connectors_are_of_its_tables(table, kind):
    source = (
        f'{{"connector":"postgresql","name":"shop","ts_ms":5,"snapshot":"false","db":"d",'
        f'"sequence":"[null,\\"20\\"]","schema":"public","table":"{table}","txId":1,"lsn":20}}'
    )
    record = f'{{"before":null,"after":{{"id":1}},"source":{source},"op":"c","ts_ms":5}}'
    identity = SHOP.among_several().identity
    found = envelope.decode([record.encode()], [b'{"id":1}'], identity=identity, epoch=1)
    assert (found.reason, found.kind, found.table) == ([None], [kind], [f"shop.public.{table}"])


# --- what a database says ---------------------------------------------------------------------

NAMELESS = {
    *("traits", "checks", "look_form", "table_form", "mended", "check_url", "check_condition"),
    *("check_file", "key_texts", "committed_position", "log_place", "ended_place"),
    *("wanted_settings", "script", "are_fills", "missing_values"),
    "schemas_of_file",  # asked of the kind, see `catalog_of`
}
"""What is asked without the name of a table, or before there is a database."""


def test_every_question_about_tables_goes_through_the_names():
    asked = {name for name in {**vars(Database), **Database.__annotations__} if name[0] != "_"}
    assert asked - NAMELESS == {name for name in vars(QualifiedDatabase) if name[0] != "_"}


@pytest.fixture
def toy():
    with registered(ToyServer({"s.a": {1: "v"}, "s.b": {}})) as config:
        settings = {**SETTINGS, "topic.prefix": "toys", "table.include.list": "s.a"}
        connector = parse(settings).among_several()
        access = DatabaseAccess(config, HandlingModes(), settings, qualifier="toys")
        yield database_of(access), connector, config


def test_the_doctor_and_a_plan_are_told_of_its_tables(toy):
    database, connector, _ = toy
    assert database.examine(connector, streams=True, chosen=True).tables == ["toys.s.a"]
    planned = database.planned_tables(connector)
    assert [name for name, *_ in planned.sizes] == [*planned.schemas] == ["toys.s.a"]


def test_tables_of_another_connector_are_none_of_its_own(toy):
    database, _, _ = toy
    assert [*database.schemas(["toys.s.a", "crm.s.a", "s.a"])] == ["toys.s.a"]
    watch = database.log_watch(name="names", within=timedelta(seconds=1))
    assert watch.there(frozenset({"toys.s.a", "crm.s.a", "s.a"})) == {"toys.s.a"}
    for ask in (database.reasons_against, database.reader().read):
        with pytest.raises(TableError, match="no table of the connector") as caught:
            ask("crm.s.a")
        assert caught.value.code == "table-gone"


def test_its_catalog_has_the_tables_under_their_names_in_the_pipeline(toy):
    _, connector, database = toy
    configured = config().model_copy(update={"database": database})
    found = catalog_of(configured, HandlingModes(), connector)
    assert {*found.tables()} == {"toys.s.a", "toys.s.b"}
    assert {name: schema.table for name, schema in found.read(None).items()} == {
        "toys.s.a": "toys.s.a"
    }


def test_so_has_a_file_that_describes_them(tmp_path):
    file = tmp_path / "schemas.yaml"
    file.write_text("public.orders:\n  key: [id]\n  columns:\n    id: bigint\n")
    own = config()
    source = own.source.model_copy(update={"schema_file": file})
    configured = own.model_copy(update={"database": None, "source": source})
    found = catalog_of(configured, HandlingModes(), SHOP.among_several()).read(None)
    assert {name: schema.table for name, schema in found.items()} == {
        "shop.public.orders": "shop.public.orders"
    }


def test_it_can_be_copied(toy):
    database, _, _ = toy
    assert copy(database).table_names() == database.table_names()


# --- a record of which nothing can be read ----------------------------------------------------


def test_a_topic_names_its_table_where_nothing_else_does():
    schema = TableSchema("shop.public.orders", (), ("id",))
    names = [schema.table, "crm.public.orders", "public.orders"]
    identity = SHOP.among_several().identity
    plan = StretchPlan(identity, HandlingModes(), dict.fromkeys(names, schema))
    records = Records("shop.public.orders", 0, [7], [None], [b"no json"], [None])
    heads = envelope.decode(records.values, records.keys, identity=identity, epoch=1)
    found = decode_range(records, plan, heads)
    assert [letter.table for letter in found.dead] == ["shop.public.orders"]


@pytest.mark.parametrize(
    ("hint", "told"),
    [
        ("lakemark snapshot start public.a", "lakemark snapshot start shop.public.a"),
        (
            "x, then `lakemark table rebuild public.a`",
            "x, then `lakemark table rebuild shop.public.a`",
        ),
        ("ALTER TABLE public.a ADD PRIMARY KEY (id)", "ALTER TABLE public.a ADD PRIMARY KEY (id)"),
    ],
)
def test_commands_of_ours_have_our_names_and_statements_those_of_the_database(hint, told):
    one = Difference("public.a", "key-changed", Action.STOP, "its key is another", hint)
    found = QualifiedDatabase(database_of(_access()), "shop")._difference(one)
    assert (found.table, found.hint) == ("shop.public.a", told)


def _access():
    return DatabaseAccess(config().database, HandlingModes(), SHOP.settings)
