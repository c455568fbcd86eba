"""The connectors of a pipeline as its query starts: who is away is missed by nobody else."""

import json
from types import SimpleNamespace

import pytest

from lakemark.errors import DependencyError, PipelineError
from lakemark.settings.layers import InvalidConfig, LoginRefused, Mistake
from lakemark.settings.patterns import compile_java
from lakemark.sources import connecting
from lakemark.sources.connecting import Connecting
from lakemark.sources.source_set import Sources
from lakemark.state.tables import LogState, PipelineState
from tests.kit.connector_settings import POSTGRES, config

AWAY = DependencyError("no", code="database-unavailable")
WRONG = InvalidConfig([Mistake("connector", "it is wrong", "mend it")])
REFUSED = LoginRefused(Mistake("database", "no", "mend it"), code="database-refused")


class Folder:
    """A checkpoint's memory of its connectors."""

    def __init__(self, *logs: str, alone: bool = False) -> None:
        self.state = PipelineState(logs={name: LogState() for name in logs})
        self.settings = {"": {}} if alone else {}

    def newest(self) -> PipelineState:
        return self.state

    def decoding(self, connector: str = "") -> dict[str, str] | None:
        return self.settings.get(connector)

    def note_decoding(self, settings: dict[str, str], connector: str = "") -> None:
        self.settings[connector] = settings


@pytest.fixture
def connect(tmp_path, monkeypatch):
    """Connect connectors of these topic prefixes; their databases raise what is said of them."""

    def _connect(checkpoint, **databases):
        away = {}
        for name, error in databases.items():
            prefix = name.replace("_", ".")
            settings = {**POSTGRES, "topic.prefix": prefix}
            (tmp_path / f"{name}.json").write_text(json.dumps(settings))
            away[prefix] = error

        def catalog_of(_, __, connector):
            if error := away[connector.topic_prefix]:
                raise error
            return SimpleNamespace(read=lambda _: {}, tables=list)

        monkeypatch.setattr(connecting, "catalog_of", catalog_of)
        entries = [{"connector_file": str(tmp_path / f"{name}.json")} for name in databases]
        several = Connecting(config(source={"connectors": entries}, database=None))
        several.databases = away
        found = several.connect(checkpoint, [])
        return several, Sources(tuple(one.source for one in found))

    return _connect


def reads(sources, topic):
    return sources.wanted.topic(topic)


def test_topics_of_one_that_is_away_are_read_for_nobody_else(connect):
    several, sources = connect(Folder(), shop=None, shop_eu=AWAY)
    assert several.away.keys() == {"shop_eu.json"}
    assert reads(sources, "shop.public.orders")
    assert not reads(sources, "shop.eu.public.orders"), "they would be dead letters, and lost"
    assert reads(sources, "shop.eu.orders"), "a table of a schema that is called so"
    _, both = connect(Folder(), shop=None, shop_eu=None)
    assert reads(both, "shop.eu.public.orders")


def test_one_whose_prefix_is_longer_keeps_its_topics_where_the_other_is_away(connect):
    _, sources = connect(Folder(), shop=AWAY, shop_eu=None)
    assert reads(sources, "shop.eu.public.orders")
    assert not reads(sources, "shop.public.orders")


def test_the_checkpoint_knows_the_prefix_of_one_that_connect_does_not_tell_of(connect, tmp_path):
    connect(Folder(), shop=None)
    _, sources = connect(Folder("shop", "shop.eu"), shop=None)
    assert not reads(sources, "shop.eu.public.orders")
    assert reads(sources, "shop.public.orders")


def test_what_another_writes_that_is_no_row_is_read_by_nobody(connect):
    _, sources = connect(Folder(), shop=None, shop_eu=None)
    assert not reads(sources, "shop.eu.transaction")
    assert not reads(sources, "shop.eu.message")
    assert reads(sources, "shop.eu.public.transaction")


@pytest.mark.parametrize("waits", [AWAY, REFUSED])
def test_where_none_can_be_used_the_one_is_waited_for_that_may_come_back(connect, waits):
    with pytest.raises(type(waits)) as caught:
        connect(Folder(), shop=WRONG, crm=waits)
    assert caught.value.code == waits.code


def test_a_checkpoint_of_one_form_is_not_that_of_the_other(connect):
    with pytest.raises(PipelineError, match=r"made with source\.connect, not with") as caught:
        connect(Folder(alone=True), shop=None)
    assert caught.value.code == "connector-changed"
    with pytest.raises(PipelineError, match=r"made with source\.connectors, not with"):
        Connecting(config()).connect(Folder("shop"), [])


def test_one_that_was_used_goes_on_as_it_was_known_unless_it_is_another_now(connect, tmp_path):
    folder = Folder()
    several, _ = connect(folder, shop=None, crm=None)
    several.databases["crm"] = AWAY
    assert [one.source.qualifier for one in several.connect(folder, [])] == ["shop", "crm"]
    assert several.away == {}
    changed = {**POSTGRES, "topic.prefix": "crm", "table.include.list": "public.a"}
    (tmp_path / "crm.json").write_text(json.dumps(changed))
    assert [one.source.qualifier for one in several.connect(folder, [])] == ["shop"]
    assert several.away == {"crm.json": AWAY}, "its watch would see it, and again after each start"


def test_the_topics_of_many_connectors_can_be_asked_for(connect):
    """What is left out of each connector's topics is an expression that only Java takes whole."""
    names = {f"shop{number}": None for number in range(22)}
    _, sources = connect(Folder(), **names, crm=AWAY)
    assert all(compile_java(one) for one in sources.topic_patterns)
    assert reads(sources, "shop21.public.orders")
