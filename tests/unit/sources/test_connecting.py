"""Who can be used at a start, and who is asked for again."""

import json
from pathlib import Path

import pytest

from lakemark.errors import DependencyError, LakemarkError, PipelineError
from lakemark.settings.config import Config
from lakemark.sources import connecting
from lakemark.sources.connecting import Connecting
from lakemark.state import connector_drift
from lakemark.state.connector_drift import ChangedError
from stack.processes import wait_for
from tests.kit.connector_settings import POSTGRES
from tests.kit.memory_pipeline import MemoryCatalog
from tests.kit.shop import ORDERS, schema_of
from tests.unit.state.test_connector_drift import Kept

AWAY = DependencyError("it does not answer", code="database-unavailable")


class KeptOfEach(Kept):
    """A checkpoint that knows each connector's settings."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def decoding(self, connector=""):
        return self.kept.get(connector)

    def note_decoding(self, settings, connector=""):
        self.kept[connector] = dict(settings)


class Site:
    """Connectors by files, each with a catalog that may be away."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        self.folder, self.away = folder, {}
        monkeypatch.setattr(connecting, "catalog_of", lambda config, modes, c: self.catalog(c))
        monkeypatch.setattr(connector_drift, "catalog_of", lambda *_: MemoryCatalog({}))
        self.checkpoint = KeptOfEach()

    def catalog(self, connector):
        name = f"{connector.qualifier}.{ORDERS}" if connector.qualifier else ORDERS
        found = MemoryCatalog({name: schema_of(name, id="int8")})
        found.away, found.tables = self.away.get(connector.topic_prefix), lambda: [name]
        return found

    def config(self, **prefixes: str) -> Config:
        entries = []
        for name, prefix in prefixes.items():
            file = self.folder / f"{name}.json"
            file.write_text(
                json.dumps({"name": name, "config": {**POSTGRES, "topic.prefix": prefix}})
            )
            entries.append({"connector_file": str(file)})
        settings = {
            "name": "mall",
            "kafka": {"bootstrap_servers": "b:1"},
            "source": {"connectors": entries} if len(entries) > 1 else entries[0],
            "lake": {"path": str(self.folder / "lake")},
            "checkpoint": str(self.folder / "checkpoint"),
        }
        return Config.model_validate(settings, context={"base": self.folder})

    def connect(self, made: Connecting) -> list[str]:
        return [one.source.qualifier for one in made.connect(self.checkpoint, [])]


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def test_one_that_cannot_be_used_is_left_out_and_the_others_are_there(site):
    made = Connecting(site.config(shop="shop", crm="crm"))
    site.away["crm"] = AWAY
    assert site.connect(made) == ["shop"]
    assert made.away == {"crm.json": AWAY}
    site.away.clear()
    assert site.connect(made) == ["shop", "crm"]
    assert not made.away
    assert site.checkpoint.kept.keys() == {"shop", "crm"}


def test_one_that_was_used_before_goes_on_as_it_was(site):
    made = Connecting(site.config(shop="shop", crm="crm"))
    site.connect(made)
    site.away["crm"] = AWAY
    assert site.connect(made) == ["shop", "crm"]
    assert not made.away


def test_if_none_can_be_used_the_first_one_says_why(site):
    made = Connecting(site.config(shop="shop", crm="crm"))
    site.away |= {"shop": AWAY, "crm": DependencyError("no", code="connect-unavailable")}
    with pytest.raises(DependencyError) as raised:
        site.connect(made)
    assert raised.value.code == "database-unavailable"


def test_a_single_one_is_waited_for(site):
    site.away["shop"] = AWAY
    with pytest.raises(DependencyError):
        site.connect(Connecting(site.config(shop="shop")))


def test_two_of_one_prefix_cannot_both_be_used(site):
    made = Connecting(site.config(shop="shop", copy="shop"))
    assert site.connect(made) == ["shop"]
    (why,) = made.away.values()
    assert "topic.prefix" in str(why)


def test_a_connector_of_another_source_than_before_is_its_own_matter(site):
    config = site.config(shop="shop", crm="crm")
    site.connect(Connecting(config))
    site.checkpoint.kept["crm"]["connector.class"] = "another"
    made = Connecting(config)
    assert site.connect(made) == ["shop"]
    (why,) = made.away.values()
    assert isinstance(why, PipelineError)
    assert why.code == "connector-changed"
    absent = made.absent(site.checkpoint, [], [])
    with pytest.raises(PipelineError):
        absent._require(absent._parts[0])


def test_who_is_away_is_asked_for_until_it_can_be_used(site, monkeypatch):
    monkeypatch.setattr(connecting, "EVERY_S", 0.01)
    made = Connecting(site.config(shop="shop", crm="crm"))
    site.away["crm"] = AWAY
    here = made.connect(site.checkpoint, [])
    absent = made.absent(site.checkpoint, [], here)
    asked: list[LakemarkError] = []
    monkeypatch.setattr(connecting.log, "debug", lambda *_, **__: asked.append(AWAY))
    with absent.running():
        wait_for(lambda: len(asked) > 2, 20, "some questions")
        absent.require_absent()
        site.away.clear()
        wait_for(lambda: absent.back, 20, "it to be back")
    assert absent.back == "crm.json"
    with pytest.raises(ChangedError):
        absent.require_absent()
