"""What the report of the tests says about the processor: all that a test has started counts."""

import os
import signal
import subprocess
import sys

from stack.processes import wait_for
from stack.watchdog import signal_tree
from tests.kit.cpu_meter import CpuMeter

BUSY = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
ENOUGH_S = 0.3


def test_a_process_of_a_process_counts_while_it_runs_and_when_it_was_killed():
    meter = CpuMeter()

    def others() -> float:
        return meter.used() - sum(os.times()[:2])

    try:
        before = others()
        child = subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True)
        try:
            wait_for(lambda: others() - before > ENOUGH_S, 60, "the grandchild to be busy")
        finally:
            signal_tree(child.pid, signal.SIGKILL)
            child.wait()
        assert others() - before > ENOUGH_S
    finally:
        meter.close()
