"""Fixtures of the unit tests."""

import pytest
import structlog

from lakemark.sink import dead_letter
from tests.kit.command_line import folder, kafka
from tests.kit.memory_pipeline import Broker
from tests.kit.shop import ITEMS, ORDERS, Shop, schema_of

__all__ = ["folder", "kafka"]


@pytest.fixture
def shop(tmp_path):
    """A pipeline in memory whose dead letters are kept in `letters`."""
    schemas = {t: schema_of(t, id="int8", v="text") for t in (ORDERS, ITEMS)}
    return Shop(tmp_path, Broker(), schemas)


@pytest.fixture
def letters(monkeypatch):
    """Dead letters, instead of a topic."""
    found = []
    monkeypatch.setattr(dead_letter, "write", lambda dead, **_: found.extend(dead))
    return found


@pytest.fixture
def logs():
    """What is logged, as dicts, instead of shown."""
    with structlog.testing.capture_logs() as found:
        yield found
