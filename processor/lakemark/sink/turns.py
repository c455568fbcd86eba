"""What needs much memory is done by one thread of a process at a time.

Several tables of an object store are merged at once (`tasks.merge`), because most of that is
waiting for answers. Whoever reads and rewrites whole files of a table takes `ALONE` for as long.
"""

from threading import Lock
from typing import Final

ALONE: Final = Lock()
