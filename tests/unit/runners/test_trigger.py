"""When the next batch begins."""

import threading
import time
from datetime import timedelta

import pytest

from lakemark.runners.trigger import Trigger

LONG = timedelta(hours=1)


def test_a_batch_that_was_done_sooner_rests_until_the_next_is_due():
    begun = time.monotonic()
    Trigger(timedelta(milliseconds=300)).rest(begun)
    assert time.monotonic() - begun >= 0.3


def test_a_batch_that_took_longer_does_not_rest():
    asked = []
    Trigger(LONG, lambda: asked.append(1) is not None).rest(time.monotonic() - 3600)
    assert len(asked) == 1


def test_without_an_interval_nobody_rests():
    Trigger().rest(time.monotonic())


def test_haste_ends_a_rest():
    wanted = threading.Event()
    pace = Trigger(LONG, wanted.is_set)
    resting = threading.Thread(target=pace.rest, args=[time.monotonic()], daemon=True)
    resting.start()
    assert resting.is_alive()
    wanted.set()
    resting.join(10)
    assert not resting.is_alive()


def test_the_end_of_the_query_ends_a_rest():
    pace = Trigger(LONG)
    resting = threading.Thread(target=pace.rest, args=[time.monotonic()], daemon=True)
    resting.start()
    pace.end()
    resting.join(10)
    assert not resting.is_alive()


def test_the_next_query_rests_again():
    pace = Trigger(timedelta(seconds=0.1))
    pace.end()
    pace.begin()
    begun = time.monotonic()
    pace.rest(begun)
    assert time.monotonic() >= begun + 0.1


@pytest.mark.parametrize(("seconds", "trigger"), [(0, "0"), (0.5, "125"), (1, "250"), (60, "250")])
def test_spark_looks_several_times_in_an_interval(seconds, trigger):
    assert Trigger(timedelta(seconds=seconds)).trigger == f"{trigger} milliseconds"
