"""Who runs first in `./dev test`: what takes longest, and what shares servers stays together."""

import json
import random
from xml.etree.ElementTree import Element

from tests.kit.durations import UNKNOWN_S, group_of, measured, ranked

SPARK, FAULTS = "tests/spark/test_a.py::test_b", "tests/faults/test_long.py::test_{}[x/y.py]"
UNIT, MODEL = "tests/unit/a/test_u.py::TestU::test_{}", "tests/model/test_m.py::TestM::test_{}"


def case(classname: str, name: str, seconds: float) -> Element:
    return Element("testcase", classname=classname, name=name, time=str(seconds))


def test_groups_are_files_folders_with_a_jvm_and_single_tests_of_the_model():
    assert group_of(SPARK) == "spark"
    assert group_of(FAULTS.format(1)) == "faults/test_long.py"
    assert group_of(UNIT.format(1)) == "unit/a/test_u.py"
    assert group_of(MODEL.format(1)) == MODEL.format(1)


def test_the_longest_group_is_first_and_stays_in_its_order(tmp_path):
    file = tmp_path / "durations.json"
    cases = [
        case("tests.faults.test_long", "test_1[x/y.py]", 50),
        case("tests.faults.test_long", "test_2[x/y.py]", 40.4),
        case("tests.spark.test_a", "test_b", 80),
        case("tests.model.test_m.TestM", "test_2", 27),
        case("tests.model.test_m.TestM", "test_1", 1),
        case("tests.unit.a.test_u.TestU", "test_1", 12),
        case("tests.unit.a.test_u.TestU", "test_2", 13),
    ]
    found = measured(cases)
    assert list(found.items()) == [
        *(("faults/test_long.py", 90), ("spark", 80)),
        *((MODEL.format(2), 27), ("unit/a/test_u.py", 25)),
    ]
    file.write_text(json.dumps(found))
    new = "tests/integration/test_new.py::test_n"
    ordered = [FAULTS.format(1), FAULTS.format(2), SPARK, new]
    ordered += [MODEL.format(2), UNIT.format(1), MODEL.format(1)]
    shuffled = [*ordered[1:]]
    random.Random(1).shuffle(shuffled)
    by_rank = sorted([ordered[0], *shuffled], key=ranked(file))
    assert by_rank[2:] == ordered[2:]
    assert {*by_rank[:2]} == {*ordered[:2]}
    assert 27 < UNKNOWN_S < 80
