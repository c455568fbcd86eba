"""Signals of one poll, and a crash between their effects and where they stand."""

import pytest

from lakemark.snapshot import runs
from tests.kit.fake_world import ITEMS, CrashError, FakeWorld, Fault
from tests.kit.nightly import QUICK

pytestmark = pytest.mark.usefixtures("logs")


@pytest.mark.parametrize("kind", ["stop", "pause"])
def test_a_signal_hits_no_run_of_a_later_one_whatever_ends_at_any_point(kind):
    """Both come in one poll; what was kept of the later one may outlive where the signals stand."""

    def told(fault):
        world = FakeWorld()
        world.execute("r1")
        world.go(20, until=lambda: bool(world.records("chunk")))
        world.fault = fault and Fault(world.passed + fault, CrashError())
        world.send(kind, "s")
        world.execute("r2", ITEMS)
        begun = world.passed
        for _ in range(200):
            try:
                world.step()
            except CrashError:
                world.coordinator = None
            if world.coordinator is not None and world.ended("r2"):
                break
        return world, world.passed - begun

    for at in range(1, told(None)[1] + 1, 4 if QUICK else 1):
        world, _ = told(at)
        assert not world.wrong, (at, world.wrong)
        assert world.run_state("r2") == runs.COMPLETED, at
        if kind == "stop":
            assert world.run_state("r1") == runs.STOPPED, at
        else:
            assert world.run("r1").paused, at
