"""What counts on a file comes after it is on the disk: a machine may lose its power at any moment."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from lakemark.connectors.postgres import positions as lsns
from lakemark.settings.config import LakeConfig
from lakemark.sink import names
from lakemark.sink.delta import chunk_files, roaring, table_store
from lakemark.sink.delta.chunk_files import ChunkFileWriter
from tests.kit.memory_pipeline import Broker
from tests.kit.shop import ORDERS, Shop, schema_of

pytestmark = pytest.mark.usefixtures("letters", "cache")


class Disk:
    """What a power failure leaves: bytes of files, by inode, and names in folders."""

    def __init__(self) -> None:
        self.files: dict[int, bytes] = {}
        self.folders: dict[Path, set[str]] = {}

    def sync(self, path: Path) -> None:
        if path.is_dir():
            self.folders[path] = {entry.name for entry in path.iterdir()}
        else:
            self.files[path.stat().st_ino] = path.read_bytes()

    def whole(self, path: Path) -> bool:
        return self.files.get(path.stat().st_ino) == path.read_bytes()

    def has(self, path: Path, *, root: Path) -> bool:
        """Whether a file is there after a failure, and every folder on the way to it."""
        way = [path, *(p for p in path.parents if p != root and p.is_relative_to(root))]
        return self.whole(path) and all(p.name in self.folders.get(p.parent, ()) for p in way)


@pytest.fixture
def disk(monkeypatch):
    found = Disk()
    monkeypatch.setattr(table_store, "_fsync", found.sync)
    return found


def named(commit: Path) -> list[Path]:
    """The files that a commit names."""
    root, found = commit.parent.parent, []
    for line in commit.read_text().splitlines():
        add = json.loads(line).get("add")
        if add:
            vector = add.get("deletionVector")
            found += [root / add["path"]]
            found += [root / roaring.file_of(vector["pathOrInlineDv"])] if vector else []
    return [path for path in found if path.exists()]


@pytest.mark.parametrize("engine", ["deletion-vectors", "task-merge"])
def test_files_come_before_the_commit_and_the_commit_before_the_state(
    tmp_path, disk, engine, monkeypatch
):
    shop = Shop(
        tmp_path, Broker(), {ORDERS: schema_of(ORDERS, id="int8", v="text")},
        settings={"engine": engine}, attempts=1,
    )  # fmt: skip
    lake = Path(names.table_path(shop.config.lake.path, ORDERS))
    real, links = os.link, []

    def link(part, place):
        links.append(place)
        assert disk.whole(Path(part))
        assert [p for p in named(Path(part)) if not disk.has(p, root=lake)] == []
        real(part, place)

    monkeypatch.setattr(os, "link", link)
    save, seen = shop.checkpoint.save, []

    def saved(state):
        files = list(lake.glob("_delta_log/*.json"))
        files += [path for commit in files for path in named(commit)]
        files += lake.glob("_lakemark/pending/*")
        assert [p for p in files if not disk.has(p, root=lake.parent.parent)] == []
        seen.append(len(files))
        save(state)

    monkeypatch.setattr(shop.checkpoint, "save", saved)
    steps = [
        lambda: [shop.put("c", 10, key, v="a") for key in range(4)],
        lambda: shop.put("u", 20, 1, v="b"),
        lambda: shop.put("d", 30, 2),
        lambda: shop.put("d", 40, 1, headers=[("__debezium.newkey", b'{"id":9}')]),
        lambda: shop.put("t", 50, 0),
        lambda: shop.put("c", 60, 3, v="c"),
    ]
    for step in steps:
        step()
        shop.run()
    assert shop.values() == {3: "c"}
    assert len(seen) == len(steps)
    assert len(links) >= 4 * (engine == "deletion-vectors")


def test_what_a_process_committed_that_died_is_on_the_disk_before_its_batch_counts(tmp_path, disk):
    """The commit was in place, and nobody had waited for it."""
    shop = Shop(
        tmp_path, Broker(), {ORDERS: schema_of(ORDERS, id="int8", v="text")},
        settings={"engine": "deletion-vectors"}, attempts=1,
    )  # fmt: skip
    lake = Path(names.table_path(shop.config.lake.path, ORDERS))
    shop.put("c", 10, 1, v="a")
    before = dict(shop.read)
    shop.run()
    disk.folders.clear()
    shop.read = before
    shop.again()
    assert disk.has(max(lake.glob("_delta_log/*.json")), root=lake)


def test_a_chunks_file_is_on_the_disk_before_anybody_is_told_of_it(tmp_path, disk):
    lake = LakeConfig(path=str(tmp_path), engine="deletion-vectors")
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "v": ["a", "b"]})
    made = ChunkFileWriter(lake)(ORDERS, rows, key=["id"], position=lsns.pack(0, 5, 5), source_ts=0)
    assert made is not None
    folder = Path(names.folder_of(lake, ORDERS))
    assert disk.has(folder / made.path, root=tmp_path / "public")
    assert chunk_files.data_file(made).records == 2
