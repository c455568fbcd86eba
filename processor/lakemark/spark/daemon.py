"""Forks Spark's Python workers, with everything they need imported once.

`spark.python.daemon.module` names it. A worker forked from here starts without imports (0.4 s each
otherwise), shares their memory, and the garbage collection that PySpark runs after every task
finds nothing of ours to look at (40 ms a task otherwise; what a task imports is set aside after it,
which would be 8 ms of each one after that).

Arrow's memory comes from the C library, not from its own pool, which gives it back to the system
after every task and gets it anew, page by page, in the next: 400,000 rows into a table took 0.45 s
instead of 0.3. The C library is told to keep memory too, up to `KEPT` a worker and in one arena:
half the page faults (0.33 an event instead of 0.68); what that saves of the clock is some percent.
"""

import ctypes
import gc
import itertools
import os
import socket
from typing import Final

import pandas as pd
import pyarrow as pa
from pyspark import daemon

import lakemark.plans
import lakemark.reconcile.operator
import lakemark.spark.jobs
import lakemark.spark.plan_broadcast
import lakemark.tasks
from lakemark.settings.config import DELTA
from lakemark.sink import formats
from lakemark.sink.output import writers
from lakemark.source import fetch

MODULES = (
    lakemark.spark.plan_broadcast,
    lakemark.plans,
    lakemark.reconcile.operator,
    lakemark.spark.jobs,
    lakemark.tasks,
    pd,
)

KEPT: Final = 256 << 20
"""Bytes of free memory that a worker does not give back."""
# Of glibc's malloc.h. Larger thresholds than the last one's are refused.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MOST_MMAP: Final = 32 << 20


def main() -> None:
    """Serve Spark's requests for workers until Spark closes their input."""
    _keep_memory()
    pa.set_memory_pool(pa.system_memory_pool())
    fetch.ready()
    formats.format_named(DELTA)
    gc.collect()
    gc.freeze()
    writers.start(int(os.environ.get(writers.COUNT, "0")))
    daemon.worker = serve
    daemon.manager()


_serve_task: Final = daemon.worker
_tasks: Final = itertools.count(1)


def serve(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001 - PySpark's signature
    """Serve one task; nothing once Spark has hung up.

    Spark hangs up on workers that had nothing to do for a minute. PySpark's own code would take
    that for a task which begins badly, try to say so, and print a trace of what that led to.

    Returns:
        0 to be called again; else the process ends.
    """
    try:
        more = sock.recv(1, socket.MSG_PEEK)
    except OSError:
        more = b""
    if not more:
        return 1
    code = _serve_task(sock, authenticated)
    set_aside(next(_tasks))
    return code


def set_aside(task: int) -> None:
    """Have the collector of garbage pass over the objects that are there now.

    It will not find that they are garbage later, so this is done ever more seldom.

    Args:
        task: its number in this process, from 1: done after 1, 2, 4, 8 …
    """
    if task.bit_count() == 1:
        gc.collect()
        gc.freeze()


def _keep_memory() -> None:
    """Tell glibc to keep memory; another C library has its own ways."""
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is not None:
        tell(_TRIM_THRESHOLD, KEPT)
        tell(_MMAP_THRESHOLD, _MOST_MMAP)
        tell(_ARENA_MAX, 1)


if __name__ == "__main__":
    main()
