"""How much of what is drawn by dice and of large matrices a run has, by `HYPOTHESIS_PROFILE`.

It is `nightly`, `quick` or, in `./dev test`, none.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Final
from zlib import crc32

import pytest

NIGHTLY: Final = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
QUICK: Final = os.environ.get("HYPOTHESIS_PROFILE") == "quick"
_PART: Final = 8  # of the usual examples the quick suite has one in so many

nightly = pytest.mark.skipif(not NIGHTLY, reason="HYPOTHESIS_PROFILE=nightly has it")
"""On a slow test that a run of every day leaves out until the suite has room for it."""


def examples(usual: int = 100, *, nightly: int | None = None) -> int:
    """Return how many examples a property gets.

    Args:
        usual: in `./dev test`.
        nightly: at night, if more.
    """
    if NIGHTLY:
        return nightly or usual
    return max(3, usual // _PART) if QUICK else usual


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that the quick suite leaves out: all but N cases of one marked `sampled(N)`.

    Which ones stay depends on their names alone: the same in every run, of all rows and columns.
    """
    cases: defaultdict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items if QUICK else ():
        if mark := item.get_closest_marker("sampled"):
            cases[item.nodeid.partition("[")[0], mark.args[0]].append(item)
    return [
        item
        for (_, most), found in cases.items()
        for item in sorted(found, key=lambda item: crc32(item.nodeid.encode()))[most:]
    ]
