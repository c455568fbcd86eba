"""The figures of the package's layout do not grow, and would be seen to."""

import subprocess
import sys

import pytest

from stack import structure
from stack.import_rule import PACKAGE
from stack.structure import LIMITS, ROOT, doubled, in_cycles, measured, mutual
from tests.kit.sources import package

WAY = "modules that an update of a row enters"


def test_no_figure_grows_and_what_shrinks_is_written_down():
    now = {name: count for name, count in measured().items() if name in LIMITS}
    assert now == {name: limit for name, limit in LIMITS.items() if name != WAY}, (
        "it grew: put the new in its room; it shrank: lower stack.structure.LIMITS"
    )


@pytest.mark.slow
def test_the_way_of_a_row_does_not_grow(tmp_path):
    way = [sys.executable, "-m", "tests.kit.record_way", str(tmp_path)]
    ended = subprocess.run(way, cwd=ROOT, capture_output=True, text=True, check=True)
    modules = [line for line in ended.stdout.splitlines() if line.startswith("lakemark.")]
    assert "lakemark.sink.apply" in modules
    assert len(modules) == LIMITS[WAY], modules


TYPED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lakemark.{} import X\n"


def test_a_circle_of_types_counts(tmp_path):
    made = package(tmp_path, a="from lakemark.b import X", b=TYPED.format("a"), c="import json")
    ours, _ = structure.imports_of(made, typed=True)
    assert in_cycles(ours) == ["a", "b"]
    assert in_cycles(structure.imports_of(made)[0]) == []


def test_groups_that_import_each_other_count_once(tmp_path):
    made = package(
        tmp_path,
        sink__a="from lakemark.source.b import X",
        source__c="from lakemark.sink.d import X",
        source__b="",
        sink__d="",
        top="from lakemark.sink.a import X",
    )
    figures = measured(made)
    assert figures["pairs of groups that import each other"] == 1
    assert figures["modules in cycles"] == 0
    assert (figures["modules at the top"], figures["groups"]) == (1, 3)
    assert figures["imports between groups"] == 3
    assert mutual({("a", "b"), ("b", "a"), ("a", "c")}) == [("a", "b")]


@pytest.mark.parametrize(
    ("b", "found"),
    [("class X: ...", ["X"]), ("class _X: ...", []), ("class Y:\n    class X: ...", [])],
)
def test_a_name_of_two_classes_is_found(tmp_path, b, found):
    made = package(tmp_path, a="class X: ...\nclass _X: ...", b=b)
    assert doubled(made) == found


@pytest.mark.parametrize(
    ("places", "found"),
    [
        (("connectors__one__a", "connectors__two__b"), []),
        (("connectors__one__a", "connectors__one__b"), ["X"]),
        (("connectors__one__a", "connectors__b"), ["X"]),
        (("connectors__one__a", "converters__two__b"), ["X"]),
        (("connectors__one__a", "connectors__two__b", "model__c"), ["X"]),
    ],
)
def test_what_plays_the_same_part_in_two_folders_of_one_kind_may_have_one_name(
    tmp_path, places, found
):
    assert doubled(package(tmp_path, **dict.fromkeys(places, "class X: ..."))) == found


def test_the_unit_tests_are_sorted_as_the_package_is():
    rooms = {path.stem for path in PACKAGE.iterdir()} | {"bench", "docs", "kit", "stack"}
    unit = [path for path in (ROOT / "tests" / "unit").iterdir() if path.name != "__pycache__"]
    names = {path.stem.removeprefix("test_") for path in unit}
    assert names - rooms - {"conftest"} == set()
