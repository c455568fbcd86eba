"""Batches follow each other at once while a run gets on, and only then."""

import pytest

from lakemark.snapshot import snapshots
from lakemark.snapshot.flight import Flight, flight
from lakemark.snapshot.snapshots import Snapshots
from tests.kit.fake_world import ORDERS, SETTINGS, FakeWorld


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(snapshots.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def watched(clock):
    return Snapshots(FakeWorld(), SETTINGS, query=lambda: "q")


def test_without_a_run_there_is_no_haste(watched):
    watched.noticed(flight(watched.coordinator))
    assert not watched.hasty


def test_a_run_that_gets_on_is_hasty_and_one_that_waits_is_not(watched, clock):
    stages = {("r", ORDERS): "arming"}
    watched.noticed(Flight(stages))
    assert watched.hasty
    clock[0] += 2
    watched.noticed(Flight({("r", ORDERS): "reading"}, window="w1"))
    clock[0] += 2
    assert watched.hasty
    clock[0] += 2
    watched.noticed(Flight({("r", ORDERS): "reading"}, window="w2"))
    assert not watched.hasty, "windows come for as long as a run waits"


def test_the_end_of_the_last_run_is_the_end_of_haste(watched):
    watched.noticed(Flight({("r", ORDERS): "sweeping"}))
    watched.noticed(Flight())
    assert not watched.hasty
