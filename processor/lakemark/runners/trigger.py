"""The trigger of batches: as `stream.trigger` says, and at once while a snapshot makes progress.

Spark looks for records several times in that interval, and a batch that is done rests until the
next one is due. So records that come after a silence do not wait for the interval's end, and the
rest can be cut short: the steps of a snapshot wait for batches, and the time that they take from
the log's rows those get back by waiting less for the next batch.

A batch that rests is done and durable; only Spark has not noted it yet. After a crash it is
repeated, which changes nothing.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import Final

LOOKS: Final = 4  # in an interval
LONGEST_MS: Final = 250  # between looks: one costs some milliseconds of a core, for 50 topics
_POLL_S: Final = 0.02


class Trigger:
    """The rest between two batches of one query.

    Args:
        interval: from the beginning of one batch to that of the next, at least.
        hasty: whether the next is wanted now; asked many times a second, from the batch's thread.
    """

    def __init__(
        self, interval: timedelta = timedelta(), hasty: Callable[[], bool] = lambda: False
    ) -> None:
        self.interval = interval
        self.hasty = hasty
        self._over = Event()

    @property
    def trigger(self) -> str:
        """The interval in which Spark looks for records, in its words; 0 is as often as it can."""
        return f"{self.look_ms} milliseconds"

    @property
    def look_ms(self) -> int:
        """The interval in which to look for records, in milliseconds; 0 is as often as possible."""
        return min(LONGEST_MS, int(self.interval.total_seconds() * 1000) // LOOKS)

    def rest(self, begun: float) -> None:
        """Wait until the next batch is due.

        Args:
            begun: when the one that is done began, by the monotonic clock.
        """
        due = begun + self.interval.total_seconds()
        while not self.hasty():
            left = due - time.monotonic()
            if left <= 0 or self._over.wait(min(left, _POLL_S)):
                return

    def begin(self) -> None:
        """Begin with a new query."""
        self._over.clear()

    def end(self) -> None:
        """End all rests: the query is to end. From any thread."""
        self._over.set()
