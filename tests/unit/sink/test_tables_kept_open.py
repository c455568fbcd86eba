"""A table that stays open between batches is still the one that is in the folder."""

import os
import shutil
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from lakemark.errors import LakemarkError
from lakemark.sink.delta import commits, deletion_vectors, maintenance, table_log
from lakemark.sink.delta.deletion_vectors_rows import files_of
from lakemark.sink.delta.engines import DELETION_VECTORS
from lakemark.sink.delta.table_store import TableStore
from tests.kit import delta_table
from tests.kit.delta_table import merged
from tests.kit.sink_contract import row
from tests.kit.write_sets import at, delete, upsert

pytestmark = pytest.mark.usefixtures("cache")


def opened(place: str):
    return commits.reopened(place, None, engine=DELETION_VECTORS)


@pytest.fixture
def reopened(path):
    """Opens the table as a batch does, which looks at its files, too."""

    def again(place=path):
        table = opened(place)
        if table is not None:
            files_of(table, TableStore(place))
        return table

    return again


@pytest.fixture
def add(path):
    """Adds a row under a batch's number, to the table as it is open."""
    return lambda number: merge(
        path, [upsert(row(str(number)), at(number))], number, opened=opened(path)
    )


merge = partial(merged, deletion_vectors)


@pytest.fixture
def whole(monkeypatch):
    """Tables that were opened by reading their whole log."""
    found = []
    opening = commits.open_table

    def counted(path, storage_options=None):
        found.append(path)
        return opening(path, storage_options)

    monkeypatch.setattr(commits, "open_table", counted)
    return found


def same(table, path: str) -> None:
    """That the table answers as delta-rs does."""
    other = DeltaTable(path)
    assert table.version() == other.version()
    assert pa.schema(table.schema().to_arrow()) == pa.schema(other.schema().to_arrow())
    assert table.metadata().id == other.metadata().id
    assert table.metadata().name == other.metadata().name
    assert table.metadata().configuration == other.metadata().configuration
    for name in ("min_reader_version", "min_writer_version"):
        assert getattr(table.protocol(), name) == getattr(other.protocol(), name)
    for name in ("reader_features", "writer_features"):
        assert set(getattr(table.protocol(), name) or ()) == set(
            getattr(other.protocol(), name) or ()
        )
    for app_id in ("q/t/s", "another", "nobody's"):
        assert table.transaction_version(app_id) == other.transaction_version(app_id)
    files = {f.path for f in files_of(table, TableStore(path)).files.values()}
    assert files == set(pa.table(other.get_add_actions()).column("path").to_pylist())


def test_commits_of_others_are_seen_and_the_log_is_read_once(path, reopened, add, whole):
    reopened()
    for number in range(1, 5):
        add(number)
        whole.clear()
        table = reopened()
        same(table, path)
        assert table.transaction_version("q/t/s") == number
        assert reopened().version() == table.version()  # nothing new is nothing
        assert not whole


def test_whatever_others_do_is_seen(path, reopened, add, whole):
    reopened()

    def steps():
        yield lambda: add(1)
        yield lambda: DeltaTable(path).alter.add_columns(
            [Field("more", PrimitiveType("integer"), nullable=True)]
        )
        yield lambda: merge(path, [upsert(row("9"), at(3))], 7, "another")
        yield lambda: DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "false"})
        yield lambda: DeltaTable(path).alter.set_table_name("renamed")
        yield lambda: merge(path, [delete({"id": "1"}, at(4))], 2)
        yield lambda: DeltaTable(path).create_checkpoint()
        yield lambda: add(3)

    for step in steps():
        step()
        whole.clear()
        same(reopened(), path)
        assert not whole


def test_what_a_checkpoint_holds_is_known_of_a_table_that_is_new_here(path, reopened, add):
    merge(path, [upsert(row("0"), at(1))], 5, "another")
    for number in range(1, 4):
        add(number)
    DeltaTable(path).create_checkpoint()
    add(4)
    maintenance.forget()
    for _ in range(2):
        same(reopened(), path)


def test_the_log_is_read_up_to_a_whole_commit_of_many(path, reopened, add):
    reopened()
    for number in range(1, 30):
        add(number)
    same(reopened(), path)


@pytest.mark.parametrize("commits_after", [0, 1, 4])
def test_a_table_that_was_made_anew_is_another_one(path, reopened, add, commits_after):
    add(1)
    add(2)
    reopened()
    shutil.rmtree(path)
    assert reopened() is None
    delta_table.made(Path(path).parent)
    for number in range(commits_after):
        add(number + 10)
    same(reopened(), path)


def test_a_table_replaced_between_two_looks_is_another_one(path, reopened, add):
    """Not even missed in between: its log has a commit of that number, too."""
    add(1)
    reopened()
    name = table_log.commit_name(DeltaTable(path).version())
    shutil.rmtree(path)
    delta_table.made(Path(path).parent)
    known = table_log._states.copy()
    merge(path, [upsert(row("7"), at(7))], 7)
    merge(path, [upsert(row("8"), at(8))], 8)
    table_log._states.clear()  # another process did that
    table_log._states.update(known)
    there = Path(path) / name
    os.utime(there, ns=(there.stat().st_atime_ns, there.stat().st_mtime_ns + 1))
    same(reopened(), path)


def test_a_restored_copy_of_the_folder_is_another_table(path, reopened, add, tmp_path):
    add(1)
    shutil.copytree(path, tmp_path / "copy")
    add(2)
    reopened()
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    same(reopened(), path)


@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_copy_with_its_times_restored_under_a_later_state_is_another_table(
    path, reopened, add, tmp_path, more
):
    """Whoever wrote on after it: no commit goes on from what is gone."""
    add(1)
    shutil.copytree(path, tmp_path / "copy")
    add(2)
    reopened()
    known = table_log._states.copy()
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    for number in range(more):
        table_log.forget()
        add(number + 20)
    table_log._states.update(known)
    same(reopened(), path)
    merge(path, [upsert(row("77"), at(77))], 77, opened=reopened())
    found = sorted(pa.table(DeltaTable(path).scan(columns=["id"])).column("id").to_pylist())
    assert found == sorted(["1", "77", *(str(n + 20) for n in range(more))])


def test_a_look_at_an_older_version_does_not_make_it_the_newest(path, reopened, add, whole):
    """A batch that is repeated looks at the table as it was before it."""
    reopened()
    for number in range(1, 5):
        add(number)
    newest = reopened().version()
    older = files_of(DeltaTable(path, newest - 2), TableStore(path))
    assert older.version == newest - 2
    whole.clear()
    assert table_log.last_known(path).version == newest
    same(reopened(), path)
    assert not whole


def test_what_was_known_an_hour_ago_does_not_count(path, reopened, whole, monkeypatch):
    reopened()
    whole.clear()
    reopened()
    assert not whole
    now = table_log.monotonic()
    monkeypatch.setattr(table_log, "monotonic", lambda: now + 3601)
    reopened()
    assert len(whole) == 1


def test_only_so_many_stay_open(path, reopened, monkeypatch, whole):
    monkeypatch.setattr(table_log, "_KEPT", 1)
    reopened()
    other = delta_table.made(Path(path) / "beside")
    reopened(other)
    whole.clear()
    reopened(other)
    assert not whole
    reopened()
    assert whole == [path]


def test_without_a_table_there_is_none_until_there_is_one(tmp_path):
    place = tmp_path / "later"
    place.mkdir()
    assert opened(str(place / "t")) is None
    made = delta_table.made(place)
    same(opened(made), made)


def test_a_table_that_cannot_be_read_any_more_is_told(path, reopened, add):
    add(1)
    reopened()
    version = DeltaTable(path).version()
    (Path(path) / table_log.commit_name(version + 1)).write_text("no commit")
    with pytest.raises(LakemarkError):
        reopened()
