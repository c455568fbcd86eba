"""Names of tables with a qualifier: one connector's tables, told apart from another's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.converters.json import envelope
from lakemark.model.events import Kind, SourceIdentity
from lakemark.settings.table_id import TableId, qualified, unqualified
from tests.kit.connector_settings import parse

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


def test_the_connector_alone_is_as_it_was():
    for connector in (SHOP, parse({"signal.data.collection": ""})):
        again = connector.among_several().alone
        assert again.signal_table == connector.signal_table
        assert again.identity == connector.identity
        assert ("public.orders" in again.tables, again.qualifier) == (True, "")


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
    assert isinstance(identity, SourceIdentity)
    found = envelope.decode([record.encode()], [b'{"id":1}'], identity=identity, epoch=1)
    assert (found.reason, found.kind, found.table) == ([None], [kind], [f"shop.public.{table}"])
