"""The coordinator's way to the topics: who may say anything, and which tables it knows."""

import json
from types import SimpleNamespace

import pytest

from lakemark.connectors.connector import read
from lakemark.errors import DependencyError
from lakemark.kafka import records
from lakemark.model.control import RunEnd
from lakemark.snapshot import adapters
from lakemark.snapshot.adapters import Adapters
from lakemark.snapshot.notifications import Subject, started
from lakemark.state.ownership import SUPERSEDED, superseded
from tests.kit.connector_settings import POSTGRES, config, parse
from tests.kit.shop import ITEMS, ORDERS, schema_of


class Owner:
    """Who the checkpoint says runs the pipeline; counts how often it was asked."""

    def __init__(self):
        self.lost, self.asked = False, 0

    def check(self):
        self.asked += 1
        if self.lost:
            raise superseded(None)


@pytest.fixture
def owner():
    return Owner()


@pytest.fixture
def clock(monkeypatch):
    moved = SimpleNamespace(now=0.0)
    monkeypatch.setattr(adapters.time, "monotonic", lambda: moved.now)
    return moved


@pytest.fixture
def written(monkeypatch):
    """Records that went out, and their topics."""
    found = []
    monkeypatch.setattr(records, "producer", lambda config: object())
    monkeypatch.setattr(
        records, "publish", lambda config, topic, said, client: found.append((topic, list(said)))
    )
    return found


@pytest.fixture
def ours(shop, owner):
    path = shop.config.source.connector_file
    path.write_text(json.dumps({**POSTGRES, "table.include.list": ORDERS}))
    settings = SimpleNamespace(database=None, modes=None, connector={})
    made = Adapters(
        None,
        shop.config,
        read(shop.config),
        settings,
        lambda _: None,
        owner.check,
        lambda _: False,
    )
    yield made
    made.close()


def everything(ours):
    """All ways to say something."""
    note = started(Subject("r1", "shop", (ORDERS,)), ts_ms=1)
    return [
        lambda: ours.save({b"_run/r1": b"{}"}),
        lambda: ours.control([RunEnd(run="r1")]),
        lambda: ours.notify([note]),
    ]


def test_the_owner_says_what_it_has_to_say_and_is_asked_once_for_a_step(
    ours, owner, clock, written
):
    for say in everything(ours):
        say()
    assert (len(written), owner.asked) == (3, 1)
    clock.now = 0.2
    for say in everything(ours):
        say()
    assert (len(written), owner.asked) == (6, 2)


@pytest.mark.slow
@pytest.mark.parametrize("which", range(3))
def test_a_process_that_slept_says_nothing_once_another_has_taken_over(
    ours, owner, clock, written, which
):
    everything(ours)[0]()
    written.clear()
    clock.now, owner.lost = 6.0, True
    for _ in range(2):
        with pytest.raises(DependencyError) as caught:
            everything(ours)[which]()
        assert caught.value.code == SUPERSEDED
    assert written == []


def test_a_table_is_captured_as_soon_as_the_connector_says_so(ours, shop):
    tables = {name: schema_of(name, id="int8") for name in (ORDERS, ITEMS)}
    asked = SimpleNamespace(forget=lambda: None, drop=lambda: None)
    ours.settings = SimpleNamespace(
        source=SimpleNamespace(schemas=lambda *_, **__: tables, questions=lambda **_: asked)
    )
    assert ours.tables().keys() == {ORDERS}
    path = shop.config.source.connector_file
    path.write_text(json.dumps({**POSTGRES, "table.include.list": f"{ORDERS},{ITEMS}"}))
    assert ours.tables().keys() == {ORDERS, ITEMS}
    path.write_text("{")
    assert ours.tables().keys() == {ORDERS}, "what was known at the start"


@pytest.mark.parametrize(
    ("changes", "settings", "code"),
    [
        ({}, {}, None),
        ({}, {"read.only": "true", "signal.enabled.channels": ""}, None),
        ({}, {"signal.data.collection": ""}, "no-signal-table"),
        ({"database": None}, {}, "no-database"),
        ({"source__topics": r"shop\.public\.orders"}, {}, "signal-topic-not-read"),
        ({"source__topics": r"shop\..*"}, {}, None),
        ({"source__topics": "orders"}, {"transforms": "route"}, None),
    ],
)
def test_without_a_signal_table_nothing_is_read_and_the_hint_makes_one(changes, settings, code):
    """Whether the connector itself writes into it or listens to it does not matter."""
    connector = SimpleNamespace(database=None, modes=None, connector={})
    made = Adapters(
        None, config(**changes), parse(settings, **changes), connector, lambda _: None, lambda: None,
        lambda _: False,
    )  # fmt: skip
    found = made.refusal()
    made.close()
    assert (found and found.code) == code
    if code == "no-signal-table":
        assert found.hint.startswith("CREATE TABLE public.debezium_signal (id varchar(42)")
        assert "set signal.data.collection of the connector to public.debezium_signal" in found.hint
