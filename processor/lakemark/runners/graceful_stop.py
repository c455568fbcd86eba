"""A stop between two batches: the one under way ends first, if it does so in time.

A batch that is given up is repeated by the next start with the same result. So a stop in good order
only saves time, and readers of a lake do not see half of a batch for long.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Any, Final, NoReturn, Protocol

_POLL_S: Final = 0.05
_HOLD_MS: Final = 600_000  # longer than anybody drains; the query's end interrupts it
_INTERRUPTED: Final = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling: java.lang.InterruptedException"
)


class QueryStoppedError(Exception):
    """A batch is cut short because its query is stopped.

    Spark looks for this in the text, and ends the query as one that was stopped, not as failed.
    """

    def __init__(self) -> None:
        super().__init__(_INTERRUPTED)


class Drainable(Protocol):
    """The part of Spark's `StreamingQuery` that `drain` needs."""

    @property
    def status(self) -> dict[str, Any]:
        """The query's status: `isTriggerActive` is false between two batches."""


class GracefulStop:
    """The agreement between the thread that stops the query and the one that runs its batches."""

    def __init__(self) -> None:
        self._asked = Event()
        self._between = Event()

    def hold(self, sleep: Callable[[int], object]) -> None:
        """Let a batch begin, called in its own thread: the one before has been committed.

        Once a stop was asked for it waits for the query's end.

        Args:
            sleep: for so many milliseconds; the query's end interrupts it.

        Raises:
            QueryStoppedError: a stop was asked for.
        """
        if self._asked.is_set():
            self._between.set()
            with suppress(Exception):  # that it was interrupted
                sleep(_HOLD_MS)
            raise QueryStoppedError

    def end(self, spark: Any) -> NoReturn:
        """End the query from within a batch, in the batch's own thread; the batch will be repeated.

        Raises:
            QueryStoppedError: always.
        """
        run = spark.sparkContext.getLocalProperty("spark.jobGroup.id")  # of this very query

        def stop() -> None:
            for query in spark.streams.active:
                if str(query.runId) == run:
                    query.stop()

        Thread(target=stop, daemon=True).start()
        with suppress(Exception):  # that it was interrupted
            spark._jvm.java.lang.Thread.sleep(_HOLD_MS)  # noqa: SLF001 - no other way
        raise QueryStoppedError

    @property
    def asked(self) -> bool:
        """Say whether the query is to end."""
        return self._asked.is_set()

    def drain(self, query: Drainable, *, grace_s: float, hurry: Event) -> bool:
        """Wait for the end of the batch under way; the query may be stopped then.

        Args:
            query: the query.
            grace_s: how long to wait at most, in seconds.
            hurry: ends the waiting.

        Returns:
            whether no batch is given up.
        """
        self._asked.set()
        end = time.monotonic() + grace_s
        while not self._between.wait(_POLL_S):
            if not query.status["isTriggerActive"]:
                return True
            if hurry.is_set() or time.monotonic() > end:
                return False
        return True
