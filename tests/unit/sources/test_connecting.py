"""Who can be used at a start, and who is asked for again."""

import json
import threading
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
        self.folder, self.away, self.meets = folder, {}, {}
        monkeypatch.setattr(connecting, "catalog_of", lambda config, modes, c: self.catalog(c))
        monkeypatch.setattr(connector_drift, "catalog_of", lambda *_: MemoryCatalog({}))
        self.checkpoint = KeptOfEach()

    def catalog(self, connector):
        name = f"{connector.qualifier}.{ORDERS}" if connector.qualifier else ORDERS
        found = MemoryCatalog({name: schema_of(name, id="int8")})
        found.away, found.tables = self.away.get(connector.topic_prefix), lambda: [name]
        self.meets.get(connector.topic_prefix, lambda: None)()
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
    (ask,) = made.absent(site.checkpoint, [], [])._questions.values()
    with pytest.raises(PipelineError):
        ask()


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
    assert absent.back.keys() == {"crm.json"}
    with pytest.raises(ChangedError):
        absent.require_absent()


def test_one_that_the_checkpoint_has_never_read_begins_as_the_settings_say(site):
    """Whoever was away at the first start, or is added: once, and never one that is alone."""
    made = Connecting(site.config(shop="shop", crm="crm"))
    site.away["crm"] = AWAY
    assert [one.begins for one in made.connect(site.checkpoint, [])] == [True]
    site.away.clear()
    assert [one.begins for one in made.connect(site.checkpoint, [])] == [False, True]
    assert [one.begins for one in made.connect(site.checkpoint, [])] == [False, False]
    (alone,) = Connecting(site.config(shop="shop")).connect(KeptOfEach(), [])
    assert not alone.begins


def test_all_are_asked_at_once(site):
    """Each is answered only when the other has been asked, too."""
    both = threading.Barrier(2)
    site.meets = dict.fromkeys(("shop", "crm"), lambda: both.wait(20))
    assert site.connect(Connecting(site.config(shop="shop", crm="crm"))) == ["shop", "crm"]


def test_one_that_does_not_answer_is_not_waited_for_and_comes_back_with_its_answer(
    site, monkeypatch
):
    """Also where it takes longer than a start waits for it: else it would never be there."""
    monkeypatch.setattr(connecting, "ANSWER_S", 0.05)
    monkeypatch.setattr(connecting, "EVERY_S", 0.01)
    answers = threading.Semaphore(0)
    site.meets["crm"] = lambda: answers.acquire(timeout=20)
    made = Connecting(site.config(shop="shop", crm="crm"))
    here = made.connect(site.checkpoint, [])
    assert [one.source.qualifier for one in here] == ["shop"]
    assert made.away["crm.json"].code == "no-answer"
    absent = made.absent(site.checkpoint, [], here)
    monkeypatch.setattr(connecting, "ANSWER_S", 1000)
    assert site.connect(made) == ["shop"], "it has let a start wait for it already"
    assert made.away["crm.json"].code == "no-answer"
    absent = made.absent(site.checkpoint, [], here)
    with absent.running():
        answers.release(2)  # to the start's question, which is over, and to the one since
        wait_for(lambda: absent.back, 20, "it to be back")
    assert site.connect(made) == ["shop", "crm"], "without another question"


def test_the_first_answer_is_waited_for_however_long_it_takes(site, monkeypatch):
    monkeypatch.setattr(connecting, "ANSWER_S", 0.0)
    asked = threading.Semaphore(0)
    site.meets["shop"] = site.meets["crm"] = asked.acquire
    site.away["crm"] = AWAY
    found = []
    starting = threading.Thread(
        target=lambda: found.extend(site.connect(Connecting(site.config(shop="shop", crm="crm"))))
    )
    starting.start()
    starting.join(0.1)
    assert starting.is_alive()
    asked.release(2)
    starting.join(20)
    assert found == ["shop"]


def test_a_defect_that_one_meets_is_its_own_matter(site):
    def defect():
        raise ZeroDivisionError

    site.meets["crm"] = defect
    made = Connecting(site.config(shop="shop", crm="crm"))
    assert site.connect(made) == ["shop"]
    assert "ZeroDivisionError" in made.away["crm.json"].message
