"""Fixtures of the unit tests."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from lakemark.connectors import connect_rest
from lakemark.kafka import client_errors
from lakemark.sink.delta import index_cache, maintenance
from lakemark.sink.output import dead_letter
from tests.kit import delta_table
from tests.kit.catalog_looks import looks
from tests.kit.command_line import folder, kafka
from tests.kit.memory_pipeline import Broker
from tests.kit.shop import ITEMS, ORDERS, Shop, schema_of

__all__ = ["folder", "kafka", "looks"]


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


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A Delta table without rows, see `delta_table`."""
    return delta_table.made(tmp_path)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The indexes of tables with deletion vectors: a folder of each test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(index_cache, "_folder", lambda: folder)
    maintenance.forget()
    yield folder
    maintenance.forget()


class Ours:
    """A module's log that says nothing for threads of earlier tests."""

    def __init__(self, log, earlier):
        self._log, self._earlier = log, earlier

    def __getattr__(self, name):
        return getattr(self._log, name)

    def warning(self, event, **fields):
        if threading.get_ident() not in self._earlier:
            self._log.warning(event, **fields)


@pytest.fixture(autouse=True)
def no_word_of_earlier_tests(monkeypatch):
    """A command gives up a question at its deadline and ends; in a test the asking thread lives on."""
    earlier = {t.ident for t in threading.enumerate()} - {threading.get_ident()}
    for module in (client_errors, connect_rest):
        monkeypatch.setattr(module, "log", Ours(module.log, earlier))
