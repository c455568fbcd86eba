"""The tables of Debezium's cases and of the attacks name tests, wrong rules and scenarios."""

import ast
import re
from pathlib import Path

import pytest

from tests.kit.documents import ROOT
from tests.kit.scenarios import scenarios
from tests.kit.simulation.binlog_variants import BINLOG_VARIANTS
from tests.kit.simulation.variants import VARIANTS
from tests.kit.simulation.verify_variants import VERIFY_VARIANTS

CASES = ROOT / "tests" / "integration" / "debezium_cases.md"
ATTACKS = ROOT / "tests" / "model" / "attacks.md"
SIMPLE = {"S01", "S02", "S03", "S05", "S06", "S07"}
"""Scenarios that attack nothing but the absence of a rule."""
NAMED = re.compile(r"(tests/[\w/]+\.py)|\b(test_\w+)\b(?!\.py)")


def rows(page: Path) -> list[list[str]]:
    """Cells of all tables' rows, without heads."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.slow
@pytest.mark.parametrize("page", [CASES, ATTACKS], ids=["cases", "attacks"])
def test_every_test_that_is_named_is_there(page):
    found, path = 0, ""
    for file, name in NAMED.findall(page.read_text()):
        if file:
            path = file
            assert (ROOT / path).is_file(), path
        else:
            assert name in names_in(path), (path, name)
            found += 1
    assert found > 50


def test_every_attack_has_its_row_with_rules_and_scenarios_that_exist():
    found = [row for row in rows(ATTACKS) if re.fullmatch(r"A\d+", row[0])]
    assert [row[0] for row in found] == [f"A{number}" for number in range(1, 41)]
    for name, attack, tests, wrong, played in found:
        assert attack, name
        assert NAMED.search(tests), name
        assert {rule for rule in wrong.split("; ") if rule} <= VARIANTS.keys(), name
        assert {one for one in played.split(", ") if one} <= scenarios().keys(), name


def test_attacks_on_mysql_have_the_wrong_rules_that_there_are():
    found = [row for row in rows(ATTACKS) if re.fullmatch(r"B\d+", row[0])]
    assert all(NAMED.search(tests) for _, _, tests, _ in found)
    assert {rule for *_, wrong in found for rule in wrong.split("; ")} == BINLOG_VARIANTS.keys()


def test_attacks_on_verify_runs_have_the_wrong_rules_that_there_are():
    found = [row for row in rows(ATTACKS) if re.fullmatch(r"C\d+", row[0])]
    assert {rule for *_, wrong in found for rule in wrong.split("; ")} == VERIFY_VARIANTS.keys()


def test_every_wrong_rule_and_every_scenario_belongs_to_an_attack():
    found = [row for row in rows(ATTACKS) if len(row) == 5 and row[0] != "#"]
    assert {rule for row in found for rule in row[3].split("; ") if rule} == VARIANTS.keys()
    played = {one for row in found for one in row[4].split(", ") if one}
    assert scenarios().keys() - played == SIMPLE
