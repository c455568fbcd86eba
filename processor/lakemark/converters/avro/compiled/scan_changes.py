"""Change events of one schema: which one of each key is the newest, compiled.

Keys are compared as they are written: those that look different are taken for different ones, which
is slower and right.
"""

from typing import Any

import numpy as np

from lakemark.converters.compiler import Bytes, Offsets, compiled


@compiled
def newest(data: Bytes, offsets: Offsets, events: Any, last: Any) -> None:
    """Find the events of which no newer one has the same key.

    Args:
        data, offsets: of an Arrow array of keys.
        events: True for those records that are events.
        last: gets False for those that have a newer one, as far as it was noticed.
    """
    slots = 16
    while slots < 2 * events.size:
        slots *= 2
    table = np.full(slots, -1, np.int64)
    for event in range(events.size - 1, -1, -1):
        last[event] = True
        if not events[event]:
            continue
        at = offsets[event]
        size = offsets[event + 1] - at
        mixed = np.uint64(14695981039346656037)  # FNV-1a
        for i in range(size):
            mixed = (mixed ^ np.uint64(data[at + i])) * np.uint64(1099511628211)
        slot = np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(slots - 1))
        newer = table[slot]
        table[slot] = event
        if newer >= 0 and offsets[newer + 1] - offsets[newer] == size:
            alike = True
            for i in range(size):
                if data[at + i] != data[offsets[newer] + i]:
                    alike = False
                    break
            last[event] = not alike
