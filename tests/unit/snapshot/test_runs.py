"""What is kept of runs, as other versions of lakemark wrote it."""

import json

import pytest

from lakemark.errors import StateVersionError
from lakemark.snapshot import runs
from tests.kit.fake_world import ORDERS, FakeWorld

PAGE = runs.page_key("r1", runs.TableRun(ORDERS, cuts=1), 0)
FEW = {"table": ORDERS, "state": "reading", "cuts": 1, "chunks": 2}


def kept(run, page):
    return {runs.run_key("r1"): json.dumps(run).encode(), PAGE: json.dumps(page).encode()}


@pytest.mark.parametrize(
    ("run", "page"),
    [
        ({"id": "r1", "tables": [FEW]}, [[None, ["5"]], [["5"]]]),
        (
            {"id": "r1", "tables": [FEW | {"colour": "red"}], "tags": ["x"]},
            [[None, ["5"], None, False, 0, "", -1, "red"], [["5"], None, None, False, 0, "", -1]],
        ),
    ],
    ids=["older", "newer"],
)
def test_what_was_not_written_has_its_default_and_what_is_not_known_is_left_out(run, page):
    ((found, chunks),) = runs.loaded(kept(run, page))
    assert found == runs.Run("r1", [runs.TableRun(ORDERS, state=runs.READING, cuts=1, chunks=2)])
    assert chunks == {ORDERS: [runs.Chunk(None, ["5"]), runs.Chunk(["5"], None)]}


@pytest.mark.parametrize(
    ("run", "page"),
    [({"id": "r1", "tables": {}}, []), ({"id": "r1", "tables": []}, {"chunks": []})],
    ids=["run", "page"],
)
def test_what_cannot_be_read_is_said_to_be_of_another_version(run, page):
    world = FakeWorld()
    world.progress.update(kept(run, page))
    with pytest.raises(StateVersionError) as caught:
        world.start()
    assert (caught.value.code, caught.value.retried) == ("state-version", False)
    assert "newer" in caught.value.hint
