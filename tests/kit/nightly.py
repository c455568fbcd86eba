"""How much of what is drawn by dice a run has, by `HYPOTHESIS_PROFILE`: nightly, usual or quick."""

import os
from typing import Final

import pytest

NIGHTLY: Final = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
QUICK: Final = os.environ.get("HYPOTHESIS_PROFILE") == "quick"
_PART: Final = 8  # of the usual examples the quick suite has one in so many

nightly = pytest.mark.skipif(not NIGHTLY, reason="HYPOTHESIS_PROFILE=nightly has it")
"""On a slow live test that a run of every day leaves out until the suite has room for it."""


def examples(usual: int = 100, *, nightly: int | None = None) -> int:
    """Return how many examples a property gets.

    Args:
        usual: in `./dev test`.
        nightly: at night, if more.
    """
    if NIGHTLY:
        return nightly or usual
    return max(3, usual // _PART) if QUICK else usual
