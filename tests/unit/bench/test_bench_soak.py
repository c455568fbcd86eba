"""What a soak takes for growth, and that each of its findings makes it fail."""

import pytest

from bench import soak
from bench.soak import GROWTH, LARGEST, Sample, Verdict, grown, thirds
from bench.soak_faults import FAULTS


def samples(measure: str, values: list[float]) -> list[Sample]:
    return [{"seconds": 5.0 * n, measure: value} for n, value in enumerate(values)]


def test_thirds_are_medians_and_ignore_looks_that_lack_the_measure():
    seen = samples("open_files", [9, 9, 1, 2, 1, 3, 3, 4, 900])
    assert thirds([{"seconds": 0.0}, *seen], "open_files") == (2, 4)
    assert thirds(seen[:5], "open_files") is None


@pytest.mark.parametrize("measure", GROWTH)
def test_what_is_steady_has_not_grown_and_what_doubles_thrice_has(measure):
    level = LARGEST[measure] / 8
    assert grown(samples(measure, [level * 1.05, level, level] * 10)) == []
    (line,) = grown(samples(measure, [level] * 20 + [level * 3] * 10))
    assert line.startswith(f"{measure} has grown")
    assert grown(samples(measure, [level] * 20 + [level * 3] * 10), grows=False) == []


@pytest.mark.parametrize("measure", GROWTH)
def test_what_was_always_too_large_is_found_without_growth(measure):
    (line,) = grown(samples(measure, [LARGEST[measure] * 1.01] * 30))
    assert "more than" in line


@pytest.mark.parametrize(
    "finding",
    [{"untrue": ["x"]}, {"different": ["x"]}, {"grown": ["x"]}, {"letters": 1}],
    ids=lambda finding: next(iter(finding)),
)
def test_each_finding_fails_a_soak_and_is_shown(finding):
    assert Verdict().is_well
    assert not Verdict(**finding).is_well
    assert len(Verdict(**finding).lines()) == 1


def test_what_is_away_is_healed_and_has_to_be_told():
    told = {fault.name for fault in FAULTS if fault.is_told}
    assert told >= {"broker killed", "Connect killed", "connector paused", "database killed"}
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert soak.parse([]).minutes == 60
