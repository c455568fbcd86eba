"""The world as a coordinator sees it: what it asks by itself, and what it says when it is closed."""

import json
from types import SimpleNamespace

import pytest

from lakemark.connector import read
from lakemark.errors import DependencyError
from lakemark.snapshot import world
from lakemark.snapshot.world import World
from tests.kit.connector_settings import POSTGRES
from tests.kit.shop import ORDERS, schema_of


def test_it_asks_the_database_what_the_key_is(shop, monkeypatch):
    shop.config.source.connector_file.write_text(json.dumps(POSTGRES))
    known, asked = {ORDERS: schema_of(ORDERS, id="int8", v="text")}, []

    def read_schemas(_database, tables, _modes, *, settings):
        asked.append((tables, settings))
        return {t: known[t] for t in tables if t in known}

    def partial(table, key):
        return [f"[{len(key)}]".encode(), table.encode()]

    monkeypatch.setattr(world, "read_schemas", read_schemas)
    settings = SimpleNamespace(database="db", modes=None, connector={"a": "b"})
    ours = World(None, shop.config, read(shop.config), settings, partial, lambda: None, lambda _: False)  # fmt: skip
    assert ours.partial_keys(ORDERS) == ("[1]", ORDERS)
    assert ours.texts(ORDERS, ["[7]", "[null]", "[8]"]) == {"[7]": ["7"], "[8]": ["8"]}
    assert asked == [([ORDERS], {"a": "b"})] * 2
    assert ours.partial_keys("public.gone") == ()
    assert ours.texts("public.gone", ["[7]"]) == {}
    assert ours.texts(ORDERS, []) == {}
    assert len(asked) == 4
    ours.close()


def test_a_step_that_outlives_its_query_says_nothing_beside_the_next(shop, monkeypatch):
    shop.config.source.connector_file.write_text(json.dumps(POSTGRES))
    written = []
    monkeypatch.setattr(world.records, "publish", lambda *args, **named: written.append(args))
    monkeypatch.setattr(world.records, "producer", lambda _: None)
    settings = SimpleNamespace(database="db", modes=None, connector={})
    ours = World(None, shop.config, read(shop.config), settings, lambda *_: [], lambda: None, lambda _: False)  # fmt: skip
    ours.save({b"_a": b"1"})
    ours.close()
    for say in (lambda: ours.save({b"_a": b"2"}), lambda: ours.control([{"type": "run-start"}])):
        with pytest.raises(DependencyError):
            say()
    assert len(written) == 1
