"""A table that stays open between batches is still the one that is in the folder."""

import os
import shutil
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakemark.errors import LakemarkError
from lakemark.sink import commits, delta
from tests.kit import delta_table
from tests.kit.delta_table import merged
from tests.kit.sink_contract import row
from tests.kit.write_sets import at, upsert

merge = partial(merged, delta)


@pytest.fixture(autouse=True)
def nothing_known():
    commits.forget()
    yield
    commits.forget()


@pytest.fixture
def opened_whole(monkeypatch):
    """How often a table was opened by reading its whole log."""
    count = []
    whole = commits.open_table

    def counted(path, storage_options=None):
        count.append(path)
        return whole(path, storage_options)

    monkeypatch.setattr(commits, "open_table", counted)
    return count


def add(path: str, number: int) -> None:
    merge(path, [upsert(row(str(number)), at(number))], number)


def ids(table: DeltaTable) -> list[str]:
    return sorted(table.to_pyarrow_table().column("id").to_pylist())


def test_commits_of_others_are_seen_and_the_log_is_read_once(path, opened_whole):
    commits.reopened(path)
    for number in range(1, 5):
        add(path, number)
        opened_whole.clear()
        table = commits.reopened(path)
        assert table.version() == DeltaTable(path).version()
        assert ids(table) == [str(n) for n in range(1, number + 1)]
        assert table.transaction_version("q/t/s") == number
        assert commits.reopened(path).version() == table.version()  # and nothing new is nothing
        assert not opened_whole


def test_whoever_has_the_table_may_bring_it_further(path, opened_whole):
    table = commits.reopened(path)
    merged(delta, path, [upsert(row("1"), at(1))], 1, opened=table)
    again = commits.reopened(path)
    assert ids(again) == ["1"]
    assert len(opened_whole) == 1


@pytest.mark.parametrize("commits_after", [0, 1, 4])
def test_a_table_that_was_made_anew_is_another_one(path, commits_after):
    add(path, 1)
    add(path, 2)
    old = commits.reopened(path)
    assert ids(old) == ["1", "2"]
    shutil.rmtree(path)
    assert commits.reopened(path) is None
    old = None
    delta_table.made(Path(path).parent)
    for number in range(commits_after):
        add(path, number + 10)
    table = commits.reopened(path)
    assert ids(table) == [str(n + 10) for n in range(commits_after)]
    assert table.metadata().id == DeltaTable(path).metadata().id


def test_a_table_replaced_between_two_looks_is_another_one(path):
    """Not even missed in between: its log has a commit of that number, too."""
    add(path, 1)
    commits.reopened(path)
    name = commits.commit_name(DeltaTable(path).version())
    shutil.rmtree(path)
    delta_table.made(Path(path).parent)
    add(path, 7)
    add(path, 8)
    there = Path(path) / name
    assert there.exists()
    os.utime(there, ns=(there.stat().st_atime_ns, there.stat().st_mtime_ns + 1))
    assert ids(commits.reopened(path)) == ["7", "8"]


def test_a_restored_copy_of_the_folder_is_another_table(path, tmp_path):
    add(path, 1)
    shutil.copytree(path, tmp_path / "copy")
    add(path, 2)
    commits.reopened(path)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    assert ids(commits.reopened(path)) == ["1"]


def test_what_was_known_an_hour_ago_does_not_count(path, opened_whole, monkeypatch):
    commits.reopened(path)
    now = commits.monotonic()
    monkeypatch.setattr(commits, "monotonic", lambda: now + commits._KEPT_S + 1)
    commits.reopened(path)
    assert len(opened_whole) == 2


def test_only_so_many_stay_open(path, monkeypatch):
    monkeypatch.setattr(commits, "_KEPT", 1)
    commits.reopened(path)
    other = delta_table.made(Path(path) / "beside")
    commits.reopened(other)
    assert [name for name, _ in commits._opened] == [other]


def test_without_a_table_there_is_none_until_there_is_one(tmp_path):
    place = tmp_path / "later"
    place.mkdir()
    assert commits.reopened(str(place / "t")) is None
    made = delta_table.made(place)
    assert commits.reopened(made).version() == DeltaTable(made).version()


def test_a_table_that_cannot_be_read_any_more_is_told(path):
    add(path, 1)
    commits.reopened(path)
    (Path(path) / "_delta_log" / f"{9:020d}.json").write_text("no commit")
    with pytest.raises(LakemarkError):
        commits.reopened(path)
