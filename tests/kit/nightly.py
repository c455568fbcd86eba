"""What takes too long for every run: `HYPOTHESIS_PROFILE=nightly` has it."""

import os
from typing import Final

import pytest

NIGHTLY: Final = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"

nightly = pytest.mark.skipif(not NIGHTLY, reason="HYPOTHESIS_PROFILE=nightly has it")
"""On a slow live test that a run of every day leaves out until the suite has room for it."""
