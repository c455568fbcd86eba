"""The watch over the connector, when the checkpoint is away just as a column has been added."""

import json

import pytest

from lakemark import connector_changes, decoding
from lakemark.config import DatabaseConfig
from lakemark.connector import read
from lakemark.connector_changes import Watch
from lakemark.decoding import Forms
from lakemark.errors import DependencyError
from tests.kit.connector_settings import POSTGRES
from tests.kit.shop import ITEMS, schema_of


@pytest.fixture
def config(shop, monkeypatch):
    shop.config.source.connector_file.write_text(json.dumps(POSTGRES))

    class Catalog:
        def read(self, names):
            return {name: schema_of(name, id="int8", v="text") for name in names}

    monkeypatch.setattr(connector_changes, "catalog_of", lambda *_: Catalog())
    database = DatabaseConfig(url="postgresql://u@h/d")
    return shop.config.model_copy(update={"database": database})


def test_it_goes_on_and_what_was_not_kept_is_kept_the_next_time(config):
    kept = []

    def note(columns):
        kept.append(set(columns[ITEMS]))
        if len(kept) == 1:
            raise DependencyError("it cannot be used", code="checkpoint-unavailable")

    watch = Watch(config, read(config), Forms(decoding.written({ITEMS: schema_of(ITEMS, id="int8")}), note))  # fmt: skip
    watch.look()
    watch.look()
    watch.look()
    assert kept == [{"id", "v"}, {"id", "v"}]
    changed = {**POSTGRES, "time.precision.mode": "connect"}
    config.source.connector_file.write_text(json.dumps(changed))
    watch.look()
    assert watch.changed == ("time.precision.mode",)
