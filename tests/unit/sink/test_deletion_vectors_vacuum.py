"""What upkeep and commits of tables with deletion vectors may delete, and what they may not."""

import json
import os
import time
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from lakemark.sink.delta import deletion_vectors, key_index, maintenance
from lakemark.sink.delta.data_files import KeyBounds
from lakemark.sink.delta.engines import DELETION_VECTORS
from lakemark.sink.delta.maintenance import Policy
from lakemark.sink.delta.table_log import data_file
from lakemark.sink.delta.table_store import TableStore
from tests.kit.delta_table import merge_vectors, numbered

pytestmark = pytest.mark.usefixtures("cache")

DAY = 24 * 3600


def merge(path: str, version: int, numbers) -> None:
    merge_vectors(path, version, *numbered(numbers, version, version))


def rows(path: str, version: int) -> dict[str, int]:
    found = pa.table(DeltaTable(path, version=version).scan())
    by_id = dict(zip(found["id"].to_pylist(), map(int, found["b"].to_pylist()), strict=True))
    assert len(by_id) == found.num_rows
    return by_id


def files(path: str) -> dict[str, Path]:
    return {p.name: p for p in Path(path, deletion_vectors.VECTORS_FOLDER).glob("*.bin")}


def test_versions_of_the_last_day_keep_their_vectors_however_old_these_are(path):
    """A vector that was written last week and replaced a minute ago is a reader's still."""
    merge(path, 1, range(9))
    for version in range(2, 6):
        merge(path, version, [version])
    newest = DeltaTable(path).version()
    before = {version: rows(path, version) for version in range(2, newest + 1)}
    past = time.time() - 9 * DAY
    for file in files(path).values():
        os.utime(file, (past, past))
    maintenance.vacuum(path, engine=DELETION_VECTORS)
    assert {version: rows(path, version) for version in before} == before


def test_a_vector_that_nobody_names_yet_may_be_a_commit_under_way(path):
    merge(path, 1, range(9))
    merge(path, 2, range(3))
    folder = Path(path, deletion_vectors.VECTORS_FOLDER)
    young, old = (folder / f"deletion_vector_{uuid4()}.bin" for _ in range(2))
    for file in (young, old):
        file.write_bytes(b"\x01")
    past = time.time() - 9 * DAY
    os.utime(old, (past, past))
    maintenance.vacuum(path, engine=DELETION_VECTORS, retention=timedelta(days=8))
    assert young.name in files(path)
    assert old.name not in files(path)


def test_a_commit_whose_answer_was_lost_is_our_own(path, monkeypatch):
    """The store has it, the request is sent again, and the answer is that there is one already."""
    real = TableStore.put_absent

    def twice(store, name, data, **more):
        real(store, name, data, **more)
        return real(store, name, data, **more)

    merge(path, 1, range(9))
    with monkeypatch.context() as patch:
        patch.setattr(TableStore, "put_absent", twice)
        merge(path, 2, range(3))
    maintenance.forget()
    assert rows(path, DeltaTable(path).version()) == {str(n): 2 if n < 3 else 1 for n in range(9)}
    merge(path, 3, [8])
    assert rows(path, DeltaTable(path).version())["8"] == 3


def test_rows_deleted_far_down_a_file_stay_deleted_when_it_is_written_again(path):
    merge(path, 1, range(70_000))
    merge(path, 2, range(0, 70_000, 3))
    table = DeltaTable(path)
    before = rows(path, table.version())
    maintenance.maintain(path, key=["id"], engine=DELETION_VECTORS, policy=Policy(dirty_bytes=0))
    assert DeltaTable(path).version() > table.version(), "it was written again"
    assert rows(path, DeltaTable(path).version()) == before


def test_a_file_whose_highest_text_was_cut_may_have_a_longer_one():
    """Writers keep the first 32 characters: as a highest text that is no bound for a longer one."""
    cut, long = "x" * 32, "x" * 40
    stats = json.dumps({"minValues": {"id": cut}, "maxValues": {"id": cut}})
    file = data_file({"path": "a", "size": 1, "stats": stats})
    assert KeyBounds("id", (long, long)).may_meet(file)
    assert not KeyBounds("id", ("y", "z")).may_meet(file)


# -- keys as numbers -------------------------------------------------------------------------------


def found(rows: pa.Array, wanted: pa.Array) -> list[int]:
    index, asked = key_index.build(key_index.words([rows]), b""), key_index.words([wanted])
    _, places = key_index.lookup(index, asked, np.argsort(asked.first, kind="stable"))
    return sorted(places.tolist())


def test_forms_of_one_number_are_one_key():
    odd = np.array([0x7FF8_0000_0000_0001, 0xFFF8_0000_0000_0000], np.uint64).view(np.float64)
    rows = pa.array([-0.0, odd[0], 1.5], pa.float64())
    assert found(rows, pa.array([0.0])) == [0]
    assert found(rows, pa.array([odd[1]], pa.float64())) == [1]


@given(
    values=st.lists(st.decimals(-99, 99, places=2), min_size=1, max_size=9, unique=True),
    begin=st.integers(0, 8),
)
def test_decimals_are_found_in_a_part_of_an_array(values, begin):
    whole = pa.array(values, pa.decimal128(20, 2))
    part = whole.slice(min(begin, len(values) - 1))
    for place, value in enumerate(part.to_pylist()):
        assert found(part, pa.array([value], whole.type)) == [place]
