"""What a process and all that it has started have used of the processor.

`os.times` counts only children that have ended and were waited for: not a server that still runs,
nor a JVM that was killed with its parent. So a thread looks at what runs, again and again.
"""

import threading
from contextlib import suppress
from pathlib import Path

import psutil

LOOK_S = 2.0
"""Between two looks: what ends without a parent loses at most this much."""


class CpuMeter:
    """Seconds of the processor, own and of all descendants, since it was made."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._seen: dict[tuple[int, float], float] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="cpu-meter", daemon=True)
        self._thread.start()

    def used(self) -> float:
        """Return the seconds so far, user's and system's."""
        with self._lock:
            others = self._own.children(recursive=True) if _has_children() else []
            for process in (self._own, *others):
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    self._seen[process.pid, process.create_time()] = times.user + times.system
            return sum(self._seen.values())

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.used()


def _has_children() -> bool:
    """Say whether this process has started any that runs; where Linux does not tell, yes.

    To look through all processes of the machine takes milliseconds, and most tests start none.
    """
    threads = Path("/proc/self/task").glob("*/children")
    found = False
    for children in threads:
        found = True
        with suppress(OSError):
            if children.read_bytes():
                return True
    return not found
