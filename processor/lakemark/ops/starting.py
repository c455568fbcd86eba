"""The steps of a start: a line in the log at each, and another one while a step takes long."""

import threading
import time
from typing import Final, Self

import structlog

log = structlog.get_logger("lakemark.supervisor")

SAY_S: Final = 5.0
"""Whoever watches a start never sees ten seconds of silence."""

STEPS: Final = {
    "spark": "starts Java and Spark",
    "kafka": "asks the brokers for lakemark's topics",
    "checkpoint": "reads the checkpoint, and waits for its turn",
    "connector": "asks for the connector and the database's catalog",
    "offsets": "compares the topics with what was read",
    "query": "Spark plans the first batch",
    "batch": "the first batch is decoded and merged; what it needs of Java is compiled meanwhile",
}


class Starting:
    """The start that is under way, if any; it is watched within its `with` block.

    Args:
        say_s: seconds after which a step that lasts is named again, and again.
    """

    def __init__(self, say_s: float = SAY_S) -> None:
        self._say_s = say_s
        self._step, self._since = "", 0.0
        self._over = threading.Event()

    def __enter__(self) -> Self:
        """Begin to watch, in a thread of its own."""
        threading.Thread(target=self._watch, name="starting", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._over.set()

    def step(self, name: str) -> None:
        """Begin one of the `STEPS`."""
        self._step, self._since = name, time.monotonic()
        log.info("pipeline.starting", step=name, does=STEPS[name])

    def next(self, name: str) -> None:
        """Go on to a step of the start that is under way; do nothing where there is none."""
        if self._step and self._step != name:
            self.step(name)

    def end(self) -> None:
        """End the start, whatever came of it."""
        self._step = ""

    def _watch(self) -> None:
        while not self._over.wait(self._say_s):
            name, seconds = self._step, time.monotonic() - self._since
            if name and seconds > self._say_s / 2:
                log.info("pipeline.starting", step=name, does=STEPS[name], for_s=round(seconds))
