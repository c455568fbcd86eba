"""Named points at which the crash tests kill the whole process group.

`LAKEMARK_CRASH_AT=<point>[:<n>]` kills at the n-th time the point is reached (default: the first),
across all processes of the run: the count is kept in the file `LAKEMARK_CRASH_COUNT`. Without the
variable `reach` does nothing.
"""

import os
import signal
from pathlib import Path
from typing import Final

AFTER_DECODE: Final = "after-decode"
BEFORE_PENDING: Final = "before-pending"
BEFORE_COMMIT: Final = "before-commit"
AFTER_COMMIT: Final = "after-commit"
BEFORE_STATE: Final = "before-state"
BEFORE_CHECKPOINT: Final = "before-checkpoint"
POINTS: Final = (
    AFTER_DECODE,
    BEFORE_PENDING,
    BEFORE_COMMIT,
    AFTER_COMMIT,
    BEFORE_STATE,
    BEFORE_CHECKPOINT,
)
BEFORE_REPLACED: Final = "before-replaced"
AFTER_REPLACED: Final = "after-replaced"
OF_REBUILDS: Final = (BEFORE_REPLACED, AFTER_REPLACED)
AT: Final = "LAKEMARK_CRASH_AT"
COUNT: Final = "LAKEMARK_CRASH_COUNT"
GROUP: Final = "LAKEMARK_CRASH_GROUP"


def reach(point: str) -> None:
    """Kill the whole process group here, if this run was told to."""
    wanted = os.environ.get(AT)
    if wanted:
        name, _, number = wanted.partition(":")
        if name == point and _nth(point) >= int(number or 1):
            group = os.environ.get(GROUP)
            if group and int(group) != os.getpgid(0):
                os.killpg(int(group), signal.SIGKILL)
            os.killpg(0, signal.SIGKILL)  # Spark's Python workers have a group of their own


def _nth(point: str) -> int:
    path = os.environ.get(COUNT)
    if not path:
        return 1
    with Path(path).open("a+", encoding="utf-8") as file:
        file.write(point + "\n")
        file.flush()
        file.seek(0)
        return sum(line.strip() == point for line in file)
