"""Processes of tests that begin with what they need imported.

One process of this context's own imports it, once, and has no threads; each of the others is forked
from it. To import it takes two seconds of the processor, which a process that is spawned takes for
itself.
"""

import multiprocessing
from typing import Any, Final

FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([
    "tests.kit.delta_table",
    "tests.kit.output_topics",
    "lakemark.sink.output.writers",
    "pandas",  # Arrow imports it with the first array
])  # fmt: skip


def in_process(target: Any, *arguments: Any) -> Any:
    """Starts a function of a module in a process of its own."""
    process = FORKS.Process(target=target, args=arguments)
    process.start()
    return process
