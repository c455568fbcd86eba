"""Stopping between two batches: the one under way ends first, if it does so in time.

A batch that is given up is repeated by the next start with the same result, so nothing hangs on
this but the time it takes, and half of a batch that readers of a lake would otherwise see for long.
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
    """What a batch raises that is cut short because its query is stopped.

    Spark looks for this in the text, and ends the query as one that was stopped, not as failed.
    """

    def __init__(self) -> None:
        super().__init__(_INTERRUPTED)


class Drainable(Protocol):
    """What is needed of Spark's `StreamingQuery`."""

    @property
    def status(self) -> dict[str, Any]:
        """Its `isTriggerActive` is false between two batches."""


class GracefulStop:
    """Between the thread that stops the query and the one that runs its batches."""

    def __init__(self) -> None:
        self._asked = Event()
        self._between = Event()

    def hold(self, sleep: Callable[[int], object]) -> None:
        """Called as a batch begins, by its own thread: the one before has been committed.

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
        """Ends the query from within a batch, by the batch's own thread; it will be repeated.

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
        """Whether the query is to end."""
        return self._asked.is_set()

    def drain(self, query: Drainable, *, grace_s: float, hurry: Event) -> bool:
        """Waits for the end of the batch under way; the query may be stopped then.

        Args:
            query: the query.
            grace_s: how long to wait at most, in seconds.
            hurry: somebody does not want to wait any more.

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
