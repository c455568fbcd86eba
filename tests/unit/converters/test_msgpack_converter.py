"""A second converter keeps the contract, and the pipeline runs on it without knowing."""

import random

import pytest

from lakemark.converters.registry import CONVERTERS, JSON, converter_named
from tests.kit.connector_settings import parse
from tests.kit.converter_contract import ConverterContract
from tests.kit.memory_pipeline import Broker
from tests.kit.msgpack_converter import NAME, MsgpackConverter, PackedBroker, pack
from tests.kit.shop import ORDERS, Shop, schema_of
from tests.kit.whole_pipeline import ITEMS, Change, World

UNAVAILABLE = "__debezium_unavailable_value"


@pytest.fixture(autouse=True, scope="module")
def registered():
    """It is a line of the registry."""
    CONVERTERS[NAME] = MsgpackConverter()
    yield
    del CONVERTERS[NAME]


class TestMsgpack(ConverterContract):
    name = NAME

    def value(self, event):
        return pack(event)

    def key(self, row):
        return pack(row)


def test_a_connector_that_writes_so_is_read_so():
    (java_class,) = MsgpackConverter.java_classes
    settings = {"key.converter": java_class, "value.converter": java_class}
    found = parse(settings)
    assert [p.path for p in found.problems if not p.warning] == []
    assert converter_named(found.settings) == NAME
    assert converter_named(parse({}).settings) == JSON
    assert [p for p in parse({"value.converter": "x.Unknown"}).problems if not p.warning]


@pytest.mark.parametrize("seed", range(3))
def test_the_tables_are_equal_to_the_database(tmp_path, seed):
    dice, rows = random.Random(seed), {}
    schema = schema_of(ORDERS, id="int8", v="text", big="text")
    shop = Shop(tmp_path, PackedBroker(), {ORDERS: schema}, converter=NAME)
    for at in range(10, 70):
        key = dice.randrange(8)
        if key not in rows:
            rows[key] = {"v": f"v{at}", "big": f"big{at}"}
            shop.put("c", at, key, **rows[key])
        elif dice.random() < 0.3:
            del rows[key]
            shop.put("d", at, key)
        else:
            rows[key]["v"] = f"v{at}"
            shop.put("u", at, key, v=f"v{at}", big=UNAVAILABLE)
        if dice.random() < 0.1:
            shop.run()
    shop.run()
    found = {key: {n: row[n] for n in ("v", "big")} for key, row in shop.rows().items()}
    assert found == rows


def test_a_record_of_another_form_is_a_dead_letter(tmp_path, monkeypatch):
    letters = []
    monkeypatch.setattr("lakemark.tasks.dead_letter.write", lambda dead, **_: letters.extend(dead))
    schema = schema_of(ORDERS, id="int8", v="text")
    shop = Shop(tmp_path, PackedBroker(), {ORDERS: schema}, converter=NAME, attempts=1)
    shop.put("c", 10, 1, v="a")
    Broker.put(shop.broker, f"shop.{ORDERS}", 0, b'{"id":2}', b'{"op":"c"}')
    shop.run()
    assert [letter.reason for letter in letters] == ["invalid-msgpack"]
    assert shop.values() == {1: "a"}


def test_a_run_of_snapshots_meets_the_changes(tmp_path):
    """Changed keys of events meet those of chunks' rows, and window rows are seen."""
    rows = {ORDERS: {key: f"o{key}" for key in range(4)}, ITEMS: {1: "one", 7: "seven"}}
    world = World(tmp_path, rows, broker=PackedBroker(), converter=NAME)
    world.execute("r1", ORDERS, ITEMS)
    world.go(until=lambda: len(world.reads) >= 2)
    world.commit(Change("u", ORDERS, 0, "changed"), Change("d", ORDERS, 3))
    world.commit(Change("c", ITEMS, 8, "eight"))
    world.go(300.0, until=lambda: world.ended("r1"))
    world.go(2.0)
    assert not world.wrong
    assert world.run_state("r1") == "completed"
    for table in (ORDERS, ITEMS):
        assert world.lake.values(table) == world.rows[table]
