"""Signals to stop: work that they interrupt at once, and work that they let end well."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import structlog

from lakemark.state.takeover import StoppedError

log = structlog.get_logger("lakemark.supervisor")


class Stop:
    """The process's state: told to stop, or not.

    The first signal lets what is under way end well, unless it may be interrupted; the second one
    does not wait.

    Args:
        grace_s: how long a stop may take.

    Attributes:
        asked: set by the first signal.
        hurry: set by the second one.
    """

    def __init__(self, grace_s: float) -> None:
        self.asked, self.hurry = threading.Event(), threading.Event()
        self._grace_s = grace_s
        self._at = 0.0  # when the first signal came, on the monotonic clock
        self._interruptible = False

    def on_signals(self) -> None:
        """Listen to SIGTERM and SIGINT, in the main thread."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._stop)
            signal.signal(signal.SIGINT, self._stop)

    def _stop(self, number: int, _: FrameType | None) -> None:
        log.info("pipeline.stopping", signal=signal.Signals(number).name)
        self._at = self._at or time.monotonic()
        if self.asked.is_set():
            self.hurry.set()
        self.asked.set()
        if self._interruptible:
            self._interruptible = False  # once: what the block leaves open is closed in peace
            raise StoppedError

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal end the block at once: nothing is under way there that has to end well.

        Raises:
            StoppedError: there was one, now or before.
        """
        self._interruptible = True
        try:
            if self.asked.is_set():
                raise StoppedError
            yield
        finally:
            self._interruptible = False

    def is_overdue(self) -> bool:
        """Say whether a stop has taken as long as it may."""
        return self.hurry.is_set() or (self._at > 0 and time.monotonic() > self._at + self._grace_s)
