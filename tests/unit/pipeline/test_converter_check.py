"""Records of another form than the connector's converter wrote when it was asked: it is asked again."""

import pytest

from lakemark.converters import registry
from lakemark.converters.transcribed import TranscribedConverter
from lakemark.errors import DependencyError
from lakemark.model.decoding import ANOTHER_FORM, CONVERTER_CHECK, ConverterChoice
from lakemark.state.tables import ERRORED, PAUSED, STREAMING
from tests.kit.memory_pipeline import Broker
from tests.kit.shop import ORDERS, SIGNALS, Shop, compact, event, schema_of

TOPIC = f"shop.{ORDERS}"
ZEROED = "zeroed"


class Zeroed:
    """JSON behind a zero byte; without one it is JSON as any."""

    java_classes = frozenset({"Zeroed"})
    carries_schemas = False

    def problems(self):
        return iter(())

    def read(self, side, raw, headers):
        return raw[1:] if raw[:1] == b"\0" else None

    def write(self, side, text):
        return b"\0" + text


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A shop with one row, whose pipeline asks for its connector; `asked` counts it."""

    def make(beside):
        return TranscribedConverter(beside, lambda _: Zeroed())

    monkeypatch.setitem(registry.MAKERS, ZEROED, make)
    monkeypatch.setitem(registry.CONVERTERS, ZEROED, make(registry.CONVERTERS[registry.JSON]))
    shop = Shop(tmp_path, Broker(), {ORDERS: schema_of(ORDERS, id="int8", v="text")})
    shop.put("c", 10, 1, v="a")
    shop.run()
    return shop


def put_zeroed(shop, at, key, topic=TOPIC, table=ORDERS, **row):
    value = event("u", at, {"id": key, **row}, table=table)
    shop.broker.put(topic, 0, b"\0" + compact({"id": key}), b"\0" + value)


def answering(shop, *, same: bool) -> list[str]:
    asked: list[str] = []
    shop.pipeline.same_connector = lambda table: asked.append(table) or same
    return asked


def test_where_the_connector_is_as_it_was_it_is_a_dead_letter(shop, letters):
    asked = answering(shop, same=True)
    put_zeroed(shop, 11, 1, v="b")
    shop.put("c", 12, 2, v="c")
    shop.run()
    assert asked == [ORDERS]
    assert {one.reason for one in letters} == {ANOTHER_FORM}
    assert shop.state.tables[ORDERS].state == STREAMING
    assert shop.values() == {1: "a", 2: "c"}


def test_where_it_is_another_one_the_records_wait_for_its_converter(shop, letters):
    asked = answering(shop, same=False)
    put_zeroed(shop, 11, 1, v="b")
    shop.put("c", 12, 2, v="c")
    shop.run()
    entry = shop.state.tables[ORDERS]
    assert (entry.state, entry.code, entry.retried) == (ERRORED, CONVERTER_CHECK, True)
    shop.run()  # it is away still
    assert set(asked) == {ORDERS}
    assert letters == []
    assert shop.values() == {1: "a"}
    shop.converter = ConverterChoice(ZEROED)
    shop.restart()
    put_zeroed(shop, 13, 3, v="d")
    shop.run()
    assert letters == []
    assert shop.values() == {1: "b", 2: "c", 3: "d"}
    assert shop.state.tables[ORDERS].state == STREAMING


def test_records_of_no_table_have_the_whole_batch_repeated(shop, letters):
    """Rows of the table of signals are nobody's to wait: their windows would be lost."""
    put_zeroed(shop, 11, 9, topic=f"shop.{SIGNALS}", table=SIGNALS)
    shop.put("c", 12, 2, v="c")
    with pytest.raises(DependencyError) as raised:
        shop.run()
    assert raised.value.code == CONVERTER_CHECK
    assert letters == []
    shop.converter = ConverterChoice(ZEROED)
    shop.restart()
    shop.again()
    assert letters == []
    assert shop.values() == {1: "a", 2: "c"}


def test_what_has_stopped_a_table_stays(shop, letters):
    asked = answering(shop, same=True)
    shop.records.append({"type": "table-pause", "table": ORDERS})
    shop.run()
    put_zeroed(shop, 11, 1, v="b")
    shop.run()
    assert (asked, letters) == ([], []), "it is read when the table goes on"
    assert shop.state.tables[ORDERS].state == PAUSED


def test_one_that_was_just_asked_is_not_asked_again(shop, letters):
    """The first batch of a query: its connectors were read for it."""
    shop.restart()
    asked = answering(shop, same=True)
    put_zeroed(shop, 11, 9, topic=f"shop.{SIGNALS}", table=SIGNALS)
    put_zeroed(shop, 11, 1, v="b")
    shop.run()
    assert asked == []
    assert {one.reason for one in letters} == {ANOTHER_FORM}
