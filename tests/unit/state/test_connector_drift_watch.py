"""The watch over the connector: what does not end it, and what it leaves alone."""

import json

import pytest

from lakemark.connectors.connector import read
from lakemark.errors import DependencyError
from lakemark.settings.config import DatabaseConfig
from lakemark.state import connector_drift, control, encoding
from lakemark.state.connector_drift import Watch
from lakemark.state.encoding import Forms
from tests.kit.connector_settings import POSTGRES
from tests.kit.shop import ITEMS, ORDERS, schema_of
from tests.unit.state.test_connector_drift import Kept, agreed, connector

TYPES = {"v": "text"}


@pytest.fixture
def config(shop, monkeypatch):
    shop.config.source.connector_file.write_text(json.dumps(POSTGRES))

    class Catalog:
        def read(self, names):
            return {name: schema_of(name, id="int8", **TYPES) for name in names}

    monkeypatch.setattr(control, "resnapshot", lambda *_: None)
    monkeypatch.setattr(connector_drift, "catalog_of", lambda *_: Catalog())
    database = DatabaseConfig(url="postgresql://u@h/d")
    return shop.config.model_copy(update={"database": database})


def test_it_goes_on_and_what_was_not_kept_is_kept_the_next_time(config):
    kept = []

    def note(columns):
        kept.append(set(columns[ITEMS]))
        if len(kept) == 1:
            raise DependencyError("it cannot be used", code="checkpoint-unavailable")

    watch = Watch(config, read(config), Forms(encoding.written({ITEMS: schema_of(ITEMS, id="int8")}), note))  # fmt: skip
    watch.look()
    watch.look()
    watch.look()
    assert kept == [{"id", "v"}, {"id", "v"}]
    changed = {**POSTGRES, "time.precision.mode": "connect"}
    config.source.connector_file.write_text(json.dumps(changed))
    watch.look()
    assert watch.changed == ("time.precision.mode",)


def test_a_table_that_is_not_captured_any_more_may_be_altered(config, monkeypatch):
    kept = Kept()

    def started():
        """As the pipeline starts it: with the tables that are captured."""
        ours = read(config)
        found = connector_drift.catalog_of().read(t for t in (ORDERS, ITEMS) if t in ours.tables)
        watch = Watch(config, ours, agreed(config, kept, ours, found))
        watch.look()
        return watch

    assert started().changed == ()
    config.source.tables.append(ORDERS)
    assert started().changed == ()
    monkeypatch.setitem(TYPES, "v", "bytea")
    assert started().changed == (), "only the start says so of what is captured"
    assert started().changed == ()
    config.source.tables.clear()
    assert started().changed == ()


def test_a_process_that_was_superseded_notes_nothing(shop):
    kept, ours = Kept(), connector(shop)
    slept = agreed(shop.config, kept, ours, {ITEMS: schema_of(ITEMS, id="int8")})
    noted = dict(kept.columns)
    kept.superseded = True
    with pytest.raises(DependencyError):
        slept.seen({ITEMS: schema_of(ITEMS, id="int8", v="text")})
    assert kept.columns == noted
