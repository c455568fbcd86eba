"""A few minutes of a soak: faults by dice, then equal tables, true states, and nothing that grows."""

import math
import os

import pytest

import bench.soak as soaking
from bench.soak import say, soak
from lakemark.state.checkpoint import LOCAL
from lakemark.supervisor import RUNNER
from stack.servers import Way
from tests.kit.fork_server import ForkedLakemark
from tests.kit.nightly import NIGHTLY, nightly
from tests.kit.servers import WAY

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow]

MINUTES = float(os.environ.get("LAKEMARK_TEST_SOAK_MINUTES", "5"))
MOST = math.inf if NIGHTLY else 4
"""Faults: without a JVM that starts anew at every other one, a few minutes have room for them."""
SEED = int(os.environ.get("LAKEMARK_TEST_SOAK_SEED", "2"))


@nightly
@pytest.mark.timeout(MINUTES * 60 + 1500)
def test_a_bad_day_leaves_equal_tables_and_says_nothing_untrue(request, monkeypatch):
    if not NIGHTLY:
        monkeypatch.setenv(RUNNER, LOCAL)
        monkeypatch.setattr(soaking, "LakemarkProcess", ForkedLakemark)
    # Servers that it cannot kill are of no use to it.
    servers = request.getfixturevalue("stack") if WAY is Way.PROCESSES else None
    verdict, _ = soak(minutes=MINUTES, seed=SEED, rate=100, say=say, most=MOST, servers=servers)
    assert verdict.is_well, "\n".join(verdict.lines())
    assert sum(verdict.struck.values()) >= 3, "the machine was too slow for a soak"
