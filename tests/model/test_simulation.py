"""Histories by dice, from open transactions to the lake, against the oracle of `kit.simulation`.

A seed is a test case: `failure(seed)` gives what is wrong and the trace of the key concerned;
`binlog_failure(seed)` does of a history with the rules of MySQL and MariaDB, and `verifying_failure`
of one in which the lake is changed by others, and verified.
HYPOTHESIS_PROFILE=nightly runs 200,000 of them.
"""

import pytest

from tests.kit.nightly import NIGHTLY
from tests.kit.simulation.binlog_history import binlog_failure
from tests.kit.simulation.binlog_variants import BINLOG_VARIANTS
from tests.kit.simulation.history import failure
from tests.kit.simulation.variants import VARIANTS
from tests.kit.simulation.verify_variants import VERIFY_VARIANTS
from tests.kit.simulation.verifying import verifying_binlog_failure, verifying_failure

SLICE = 50  # histories, four seconds of one core
QUICK = 1  # slices of the quick suite
SLICES = 4000 if NIGHTLY else 5
VERIFYING = {"postgres": verifying_failure, "mysql": verifying_binlog_failure}
VERIFYING_SLICE = 25  # histories, two seconds of one core
VERIFYING_SLICES = 800 if NIGHTLY else 1

# Counted from any of eight seeds, the slowest to be found takes 68 histories.
LIMIT = 100
STANDS = 2000 if NIGHTLY else 12  # histories of each plot that the right code must stand
WRONG = {**VARIANTS, **BINLOG_VARIANTS, **VERIFY_VARIANTS}
FOCUSED = [name for name, variant in WRONG.items() if variant.world.get("plot")]


def _slices():
    slow = pytest.mark.slow
    return [pytest.param(n, marks=[slow] if n >= QUICK else []) for n in range(SLICES)]


@pytest.mark.parametrize("number", _slices())
def test_the_lake_equals_the_source(number):
    for seed in range(number * SLICE, (number + 1) * SLICE):
        wrong = failure(seed)
        assert wrong is None, wrong


@pytest.mark.parametrize("number", _slices())
def test_the_lake_equals_mysqls_and_mariadbs(number):
    for seed in range(number * SLICE, (number + 1) * SLICE):
        wrong = binlog_failure(seed)
        assert wrong is None, wrong


@pytest.mark.slow
@pytest.mark.parametrize("number", range(VERIFYING_SLICES))
@pytest.mark.parametrize("source", VERIFYING)
def test_verify_runs_find_what_was_planted_and_nothing_else(source, number):
    for seed in range(number * VERIFYING_SLICE, (number + 1) * VERIFYING_SLICE):
        wrong = VERIFYING[source](seed)
        assert wrong is None, wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_reconciler_is_found(name, monkeypatch):
    WRONG[name].apply(monkeypatch)
    assert WRONG[name].find(7, limit=LIMIT)


@pytest.mark.parametrize("name", FOCUSED)
@pytest.mark.slow
def test_the_right_one_stands_what_finds_the_wrong_ones(name):
    for seed in range(STANDS):
        wrong = WRONG[name].history(seed)
        assert wrong is None, wrong
