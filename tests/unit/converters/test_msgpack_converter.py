"""A second converter keeps the contract, and the pipeline runs on it without knowing."""

import json
import pickle
import random

import pytest

from lakemark.cli.check import check
from lakemark.converters.registry import CONVERTERS, JSON, converter_of
from lakemark.model.decoding import ConverterChoice, ConverterOptions
from lakemark.settings.config import load_with_origins
from tests.kit.connector_settings import POSTGRES, parse
from tests.kit.converter_contract import ConverterContract
from tests.kit.memory_pipeline import Broker
from tests.kit.msgpack_converter import NAME, MsgpackConverter, PackedBroker, pack
from tests.kit.shop import ORDERS, Shop, schema_of
from tests.kit.whole_pipeline import ITEMS, Change, World

PACKED = ConverterChoice(NAME)
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
    assert found.converter.name == NAME
    assert not found.wraps
    assert parse({}).converter.name == JSON
    assert [p for p in parse({"value.converter": "x.Unknown"}).problems if not p.warning]


def ciphered(**told: str):
    """A connector whose records are MessagePack, with these options of its converter of values."""
    (java_class,) = MsgpackConverter.java_classes
    options = {f"value.converter.{name}": value for name, value in told.items()}
    return {"key.converter": java_class, "value.converter": java_class, **options}


def test_options_come_from_the_connector_and_before_it_from_the_pipeline_s_settings():
    own = {"connect": {"url": "http://c:1", "connector": "shop"}, "converter": {"cipher": 7}}
    for found, cipher in (
        (parse(ciphered(cipher="3")), "3"),
        (parse(ciphered(cipher="3"), source=own), "7"),
        (parse(ciphered(cipher="${file:x:y}")), None),
        (parse(ciphered(cipher="${file:x:y}"), source=own), "7"),
        (parse(ciphered()), None),
    ):
        assert found.converter.options.get("value", "cipher") == cipher
        assert "cipher" not in repr(found.converter), "it may be a secret"
        assert pickle.loads(pickle.dumps(found.converter)) == found.converter
    (problem,) = [p for p in parse(ciphered(cipher="odd")).problems if not p.warning]
    assert problem.path == "connector: value.converter.cipher"


@pytest.mark.parametrize("several", [False, True])
def test_a_mistake_in_the_pipeline_s_settings_of_it_has_its_line(tmp_path, several):
    (java_class,) = MsgpackConverter.java_classes
    told = {**POSTGRES, "key.converter": java_class, "value.converter": java_class}
    (tmp_path / "shop.json").write_text(json.dumps({"name": "shop", "config": told}))
    one = "connector_file: shop.json, converter:\n    {cipher: odd}"
    source = f"{{connectors: [{{{one}}}]}}" if several else f"{{{one}}}"
    (tmp_path / "lakemark.yaml").write_text(
        f"name: shop\nkafka: {{bootstrap_servers: b:1}}\nsource: {source}\n"
        "database: {url: 'postgresql://u@h/d'}\nlake: {path: ./lake}\ncheckpoint: ./checkpoint\n"
        if not several
        else f"name: shop\nkafka: {{bootstrap_servers: b:1}}\nsource: {source}\n"
        "lake: {path: ./lake}\ncheckpoint: ./checkpoint\n"
    )
    loaded = load_with_origins(tmp_path / "lakemark.yaml", {})
    found = [loaded.placed(problem) for problem in check(loaded.config)]
    (problem,) = [p for p in found if p.path.endswith("converter.cipher")]
    assert (problem.line, problem.message) == (4, "is no number")
    assert all(p.line is None for p in found if p is not problem)
    assert problem.path == (
        "connector shop.json: source.connectors[0].converter.cipher"
        if several
        else "source.converter.cipher"
    )


def test_one_converter_serves_a_connector_and_another_one_another():
    one, other = (
        ConverterChoice(NAME, ConverterOptions(value=(("cipher", cipher),))) for cipher in "12"
    )
    assert converter_of(one) is converter_of(ConverterChoice(NAME, one.options))
    assert converter_of(one) is not converter_of(other)


def test_an_option_arrives_where_records_are_read(tmp_path, monkeypatch):
    letters = []
    monkeypatch.setattr("lakemark.tasks.dead_letter.write", lambda dead, **_: letters.extend(dead))
    schema = schema_of(ORDERS, id="int8", v="text")
    for name, cipher, values in (("a", "5", {1: "b"}), ("b", "0", {})):
        choice = ConverterChoice(NAME, ConverterOptions(value=(("cipher", cipher),)))
        (root := tmp_path / name).mkdir()
        shop = Shop(root, PackedBroker(5), {ORDERS: schema}, converter=choice, attempts=1)
        shop.put("c", 10, 1, v="a")
        shop.put("u", 11, 1, v="b")
        shop.run()
        if values:
            assert (shop.values(), letters) == (values, [])
        else:
            assert [letter.reason for letter in letters] == ["invalid-msgpack"] * 2


@pytest.mark.parametrize("seed", range(3))
def test_the_tables_are_equal_to_the_database(tmp_path, seed):
    dice, rows = random.Random(seed), {}
    schema = schema_of(ORDERS, id="int8", v="text", big="text")
    shop = Shop(tmp_path, PackedBroker(), {ORDERS: schema}, converter=PACKED)
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
    shop = Shop(tmp_path, PackedBroker(), {ORDERS: schema}, converter=PACKED, attempts=1)
    shop.put("c", 10, 1, v="a")
    Broker.put(shop.broker, f"shop.{ORDERS}", 0, b'{"id":2}', b'{"op":"c"}')
    shop.run()
    assert [letter.reason for letter in letters] == ["invalid-msgpack"]
    assert shop.values() == {1: "a"}


def test_a_run_of_snapshots_meets_the_changes(tmp_path):
    """Changed keys of events meet those of chunks' rows, and window rows are seen."""
    rows = {ORDERS: {key: f"o{key}" for key in range(4)}, ITEMS: {1: "one", 7: "seven"}}
    world = World(tmp_path, rows, broker=PackedBroker(), converter=PACKED)
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
