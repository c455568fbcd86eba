"""What goes on beside a query: no database is waited for by the tables of another one."""

import threading
import time
from types import SimpleNamespace

import pytest

from lakemark.ops.board import Board
from lakemark.ops.catalog_watch import CatalogWatch
from lakemark.sources import beside
from lakemark.sources.beside import Beside
from lakemark.sources.source_set import Sources
from lakemark.state.tables import PipelineState
from tests.kit.connector_settings import config


@pytest.fixture
def made():
    """All that is beside a query of several connectors, of which each test makes its own."""
    return Beside(config(), Sources(()), None, None, None, Board("mall"), PipelineState)


def test_catalogs_are_looked_at_at_once_before_a_run_that_ends_by_itself(made, monkeypatch):
    both = threading.Barrier(2)
    monkeypatch.setattr(CatalogWatch, "try_to_look", lambda _: both.wait(20))
    made._catalogs = [object(), object()]
    made.look_once()
    assert not both.broken


def test_a_catalog_that_does_not_answer_holds_up_no_query_for_long(made, monkeypatch):
    monkeypatch.setattr(beside, "ANSWER_S", 0.1)
    here, hangs = threading.Event(), threading.Event()
    here.set()
    made._catalogs = [SimpleNamespace(looked=one) for one in (hangs, here, hangs)]
    begun = time.monotonic()
    made._wait_for_looks(threading.Event())
    assert time.monotonic() - begun < 5


def test_a_first_look_is_waited_for(made):
    looked = threading.Event()
    made._catalogs = [SimpleNamespace(looked=looked)]
    waiting = threading.Thread(target=made._wait_for_looks, args=(threading.Event(),))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    looked.set()
    waiting.join(20)
    assert not waiting.is_alive()
