"""Something that is done again and again beside a test, such as writes of somebody else."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

ENDS_S = 300


@contextmanager
def going_on(step: Callable[[], object], *, pause_s: float = 0.0) -> Iterator[None]:
    """Have a step done all the time; what it raises fails the test, which would prove less."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(pause_s):
            step()

    with ThreadPoolExecutor(1) as one:
        ended = one.submit(work)
        try:
            yield
        finally:
            over.set()
        ended.result(ENDS_S)
