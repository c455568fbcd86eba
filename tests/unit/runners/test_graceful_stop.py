"""Stopping between two batches."""

import threading

import pytest

from lakemark.runners.graceful_stop import GracefulStop, QueryStoppedError


class Stopped:
    """A sleep that the query's end interrupts."""

    def __init__(self):
        self.ended = threading.Event()

    def sleep(self, _):
        assert self.ended.wait(10)
        raise RuntimeError("InterruptedException, and pages of a trace")


class Query:
    def __init__(self, *active):
        self.left = list(active)

    @property
    def status(self):
        return {"isTriggerActive": self.left.pop(0) if len(self.left) > 1 else self.left[0]}


def test_a_batch_begins_at_once_unless_a_stop_was_asked_for():
    GracefulStop().hold(None)


def test_between_two_batches_there_is_nothing_to_wait_for():
    assert GracefulStop().drain(Query(False), grace_s=10, hurry=threading.Event())


def test_the_end_of_the_batch_under_way_is_waited_for():
    query = Query(True, True, True, False)
    assert GracefulStop().drain(query, grace_s=10, hurry=threading.Event())
    assert query.left == [False]


@pytest.mark.parametrize("hurried", [True, False])
def test_a_batch_that_takes_too_long_is_given_up(hurried):
    hurry = threading.Event()
    if hurried:
        hurry.set()
    grace_s = 600 if hurried else 0.1
    assert not GracefulStop().drain(Query(True), grace_s=grace_s, hurry=hurry)


def test_the_next_batch_does_nothing_but_wait_for_the_end_of_the_query():
    """Back to back there is no moment between two triggers: that it begins is the moment."""
    draining, stopped, raised = GracefulStop(), Stopped(), []
    assert not draining.drain(Query(True), grace_s=0, hurry=threading.Event())

    def begin():
        try:
            draining.hold(stopped.sleep)
        except QueryStoppedError as error:
            raised.append(error)

    batch = threading.Thread(target=begin)
    batch.start()
    assert draining.drain(Query(True), grace_s=10, hurry=threading.Event())
    assert not raised
    stopped.ended.set()
    batch.join(10)
    (error,) = raised
    assert "java.lang.InterruptedException" in str(error)
    assert error.__suppress_context__ or error.__context__ is None
