"""A chunk's file that a fenced process has added meanwhile: it is not added a second time."""

from collections import Counter
from dataclasses import replace

import pytest
from deltalake import DeltaTable

from lakemark.errors import DependencyError
from lakemark.sink.apply import apply
from lakemark.sink.delta import deletion_vectors, maintenance
from lakemark.sink.delta.engines import DELETION_VECTORS
from lakemark.sink.lake_plan import LakePlan, TablePlan
from tests.kit.delta_table import actions
from tests.kit.log_model import TABLE
from tests.model.test_chunk_files import Chunk, Lake


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKEMARK_CACHE", str(tmp_path / "cache"))
    maintenance.forget()


@pytest.mark.parametrize("theirs", range(6))
def test_it_is_read_the_next_time(tmp_path, monkeypatch, theirs):
    """Their commit has other parts of the chunk, and is recorded below ours or above."""
    lake = Lake(tmp_path, filed=True)
    lake.run([Chunk(10, {7: "before"})], [])
    whole = lake.part(0, Chunk(100, {1: "a", 2: "b", 3: "c", 4: "d"}, lost={4}, run="r"))
    parts = [(blob, bytes([0b00110000])) for blob, _ in whole.filed.parts]
    some = replace(whole, filed=replace(whole.filed, parts=parts))
    own = TablePlan(lake.path, engine=DELETION_VECTORS)
    plan = LakePlan("q", 2, "stream", lambda _: own)
    real, done = deletion_vectors.merge, []

    def merge(*given, **named):
        if not done:
            done.append(1)
            apply(TABLE, [replace(whole, digest=theirs)], plan)
        return real(*given, **named)

    monkeypatch.setattr(deletion_vectors, "merge", merge)
    try:
        apply(TABLE, [replace(some, digest=1000)], plan)
    except DependencyError:  # it is tried again
        apply(TABLE, [replace(some, digest=1000)], plan)
    for version in range(DeltaTable(lake.path).version() + 1):
        added = Counter(add["path"] for add in actions(lake.path, version).get("add", []))
        assert not [path for path, times in added.items() if times > 1]
    assert {row["id"]: row["b"] for row in lake.rows()} == {1: "a", 2: "b", 3: "c", 7: "before"}
