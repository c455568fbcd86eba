"""Who takes a pipeline over, from whom, and how often."""

import threading

import pytest

from lakemark.backoff import GOOD_S, LONGEST_WAIT_S, Backoff
from lakemark.errors import DependencyError
from lakemark.settings.config import load
from lakemark.state.ownership import Owner, superseded
from lakemark.state.takeover import StoppedError, Takeover
from lakemark.supervisor import Supervisor


class Place:
    """The owner that a checkpoint names."""

    def __init__(self):
        self.named = None

    def owner(self):
        return self.named

    def take(self, owner):
        self.named = owner


class Turn:
    problem = None

    def __init__(self):
        self.held = False


def process(turn=None):
    return Takeover("shop", turn or Turn(), threading.Event())


def looks_dead(owner):
    """As an owner of another container of this machine does: none here has its number."""
    return Owner(owner.token, owner.host, owner.pid, "of another space")


def gives_up(one, place):
    """Waits until it has told that it stands by, and is stopped then."""
    told = []

    def standby(owner):
        told.append(owner)
        one._stopping.set()

    with pytest.raises(StoppedError):
        one.of(place, standby)
    return told


def never(owner):
    raise AssertionError(owner)


def test_what_nobody_runs_is_taken_and_so_is_what_a_dead_one_ran():
    place, one, other = Place(), process(Turn()), process()
    one._turn.held = True
    assert one.of(place, never) is False
    assert place.named == one.owner
    place.named = looks_dead(one.owner)
    assert other.of(place, never) is False
    assert place.named == other.owner


def test_two_that_take_each_other_for_dead_do_so_once(monkeypatch):
    monkeypatch.setattr("lakemark.state.takeover.QUIET_S", 0.0)
    place, one, other = Place(), process(), process()
    place.named = looks_dead(Owner("before", one.owner.host, 1))
    one.of(place, never)
    place.named = looks_dead(one.owner)
    other.of(place, never)
    place.named = looks_dead(other.owner)
    (told,) = gives_up(one, place)
    assert told.token == place.named.token == other.owner.token


def test_one_that_was_superseded_comes_back_with_its_turn_or_after_a_third_one():
    place, one, other = Place(), process(), process()
    one._turn.held = True
    one.of(place, never)
    place.named = looks_dead(other.owner)
    one.of(place, never)
    assert place.named == one.owner
    one._turn.held = False
    place.named = looks_dead(Owner("third", one.owner.host, 1))
    with pytest.raises(StoppedError):  # alive, as far as it knows
        one._stopping.set()
        one.of(place, never)


def test_waits_double_and_begin_again_after_a_good_while():
    backoff = Backoff()
    assert [backoff.failed(after_s=3) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert Backoff(attempts=10**6).failed(after_s=3) == LONGEST_WAIT_S
    assert (backoff.failed(after_s=GOOD_S + 1), backoff.attempts) == (1, 1)


class Waits:
    """Notes how long is waited; told to stop after some of it."""

    def __init__(self, count):
        self.waits, self.count = [], count

    def is_set(self):
        return len(self.waits) >= self.count

    def wait(self, seconds):
        self.waits.append(seconds)


def test_whoever_loses_the_pipeline_again_and_again_stands_back_for_longer(folder, monkeypatch):
    supervisor = Supervisor(load(folder / "lakemark.yaml"), once=False)
    supervisor.stopping = Waits(4)

    def lose(spark):
        raise superseded(None)

    monkeypatch.setattr(supervisor, "_stream", lose)
    assert supervisor._supervise(None) == 0
    assert supervisor.stopping.waits == [1, 2, 4, 8]


def test_one_try_is_given_up_after_some_failures(folder, monkeypatch):
    supervisor = Supervisor(load(folder / "lakemark.yaml"), once=True)
    supervisor.stopping = Waits(99)

    def fail(spark):
        raise DependencyError("away")

    monkeypatch.setattr(supervisor, "_stream", fail)
    monkeypatch.setattr(supervisor, "_publish_pipeline", lambda *_: None)
    with pytest.raises(DependencyError):
        supervisor._supervise(None)
    assert supervisor.stopping.waits == [1, 2, 4, 8]
