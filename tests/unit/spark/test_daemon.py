"""A worker's collector of garbage looks at few objects after each of its tasks."""

import subprocess
import sys

LOOKED_AT = """
import gc
from lakemark.spark import daemon

imported = [[] for _ in range(10_000)]
daemon.set_aside(1)
found = [len(gc.get_objects())]
for task in range(2, 17):
    own = [[] for _ in range(1_000)]
    daemon.set_aside(task)
    found.append(len(gc.get_objects()))
print(*found)
"""


def test_what_tasks_have_imported_is_set_aside_ever_more_seldom():
    ended = subprocess.run(
        [sys.executable, "-c", LOOKED_AT], capture_output=True, text=True, check=True
    )
    found = [int(number) for number in ended.stdout.split()]
    few = {number for number, objects in enumerate(found, 1) if objects < 100}
    assert few == {1, 2, 4, 8, 16}
    assert max(found) < 3_000
