"""Files of a table's folder on a local disk."""

import os
from pathlib import Path

import pytest

from lakemark.sink.delta.table_store import TableStore


@pytest.fixture(params=["{}", "file://{}"], ids=["path", "url"])
def store(request, tmp_path):
    return TableStore(request.param.format(tmp_path))


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_file_is_written_whole_in_a_folder_that_need_not_be_there(store, tmp_path):
    store.write("a.bin", b"one")
    store.write("deep/er/b.bin", b"two")
    store.write("a.bin", b"another")
    assert files(tmp_path) == ["a.bin", "deep/er/b.bin"]
    assert (store.read("a.bin"), store.read("deep/er/b.bin")) == (b"another", b"two")


def test_nothing_is_left_of_a_file_that_could_not_be_written(store, tmp_path, monkeypatch):
    def full(_path, _data):
        raise OSError(28, "No space left on device")

    store.write("a.bin", b"one")
    with monkeypatch.context() as context:
        context.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left"):
            store.write("a.bin", b"two")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        store.write("folder", b"a file cannot replace a folder")
    assert files(tmp_path) == ["a.bin"]
    assert store.read("a.bin") == b"one"


def test_a_stamp_tells_files_of_one_name_apart(store, tmp_path):
    assert store.stamp("a.bin") == (0, 0)
    store.write("a.bin", b"one")
    first = store.stamp("a.bin")
    assert first == store.stamp("a.bin")
    assert first[0] == 3
    os.utime(tmp_path / "a.bin", ns=(0, first[1] + 1))
    assert store.stamp("a.bin") != first
    store.write("a.bin", b"longer")
    assert store.stamp("a.bin")[0] == 6
    store.delete("a.bin")
    assert store.stamp("a.bin") == (0, 0)
