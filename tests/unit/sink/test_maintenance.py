"""Compaction, checkpoints and vacuum change no row."""

from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakemark.sink.delta import delta_rs, maintenance, table_log
from lakemark.sink.delta.engines import DELETION_VECTORS, TASK_MERGE
from lakemark.sink.delta.maintenance import Policy
from lakemark.sink.delta.schema_evolution import TARGET_FILE_BYTES
from lakemark.sink.delta.table_store import TableStore
from tests.kit.delta_table import merge_vectors as merge
from tests.kit.delta_table import merged, numbered, values, vector_files
from tests.kit.sink_contract import row
from tests.kit.write_sets import at, delete, upsert

pytestmark = pytest.mark.usefixtures("cache")

EAGER = Policy(spare_files=3, dirty_bytes=0, checkpoint_every=4)


@pytest.mark.slow
def test_files_and_deleted_rows_stay_few(path):
    expected = {}
    for version in range(1, 30):
        numbers = range(version * 7 % 40, version * 7 % 40 + 20)
        merge(path, version, *numbered(numbers, version, version))
        expected.update({str(n): version for n in numbers})
        maintenance.maintain(path, key=["id"], engine=DELETION_VECTORS, policy=EAGER)
        assert values(path) == expected
        files = table_log.load(TableStore(path), DeltaTable(path).version(), table_id="").files
        assert len(files) <= 4
        for file in files.values():
            assert file.deleted <= 0.5 * file.records
    assert delta_rs.committed(path, "q/t/s") == 29
    names = {p.name for p in Path(path, "_delta_log").glob("*.checkpoint.parquet")}
    assert len(names) >= 5


@pytest.mark.slow
def test_indexes_of_files_that_are_joined_go(path, cache):
    for version in range(1, 30):
        merge(path, version, *numbered(range(version, version + 9), version, version))
        maintenance.maintain(path, key=["id"], engine=DELETION_VECTORS, policy=EAGER)
        assert len(list(cache.iterdir())) == len(DeltaTable(path).file_uris())


def test_upkeep_that_comes_second_gives_up(path, monkeypatch):
    for version in range(1, 6):
        merge(path, version, *numbered(range(version, version + 9), version, version))
    before, real, files = values(path), table_log.commit, set(Path(path).glob("*.parquet"))

    def overtaken(*arguments):
        DeltaTable(path).alter.set_table_properties({"x": "y"}, raise_if_not_exists=False)
        return real(*arguments)

    monkeypatch.setattr(table_log, "commit", overtaken)
    done = maintenance.maintain(path, key=["id"], engine=DELETION_VECTORS, policy=EAGER)
    assert (done.compacted, values(path)) == (0, before)
    assert set(Path(path).glob("*.parquet")) == files
    monkeypatch.undo()
    assert maintenance.maintain(path, key=["id"], engine=DELETION_VECTORS, policy=EAGER).compacted
    assert values(path) == before


def test_the_state_from_a_checkpoint_is_that_from_the_commits(path):
    for version in range(1, 6):
        merge(path, version, *numbered(range(version, version + 9), version, version))
    store, version = TableStore(path), DeltaTable(path).version()
    by_commits = table_log.load_whole(store, version)
    DeltaTable(path).create_checkpoint()
    for number in range(version):
        Path(path, table_log.commit_name(number)).unlink()
    by_checkpoint = table_log.load_whole(store, version)
    assert by_checkpoint.files == by_commits.files
    assert by_checkpoint.metadata["configuration"] == by_commits.metadata["configuration"]
    assert by_checkpoint.metadata["format"] == by_commits.metadata["format"]
    assert set(by_checkpoint.protocol["writerFeatures"]) == set(
        by_commits.protocol["writerFeatures"]
    )
    maintenance.forget()
    merge(path, 6, delete(row("1"), at(6)))
    assert "1" not in values(path)


def test_what_compaction_reads_is_bounded_and_the_dirtiest_comes_first():
    def file(name: str, size: int, deleted: int) -> table_log.DataFile:
        add = {"path": name, "size": size, "stats": '{"numRecords":100}'}
        return table_log.data_file({**add, "deletionVector": {"cardinality": deleted}})

    large = 32 << 20
    files = [file(str(n), large, n) for n in range(0, 100, 10)]
    assert [f.path for f in maintenance.due(files)] == ["90", "80"]
    assert maintenance.due([file("a", large, 24), file("b", 1000, 90)]) == []
    small = [file(str(n), 1000, 0) for n in range(33)]
    assert len(maintenance.due(small)) == 33
    assert maintenance.due(small[:32]) == []


def test_vacuum_keeps_what_is_needed_and_nothing_else(path):
    for version in range(1, 6):
        merge(path, version, *numbered(range(version, version + 9), version, version))
    before = values(path)
    assert len(vector_files(path)) == 4
    assert maintenance.vacuum(path, engine=DELETION_VECTORS) == 0, (
        "older versions can still be read"
    )
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert values(path) == before, "delta-rs takes no vector for an orphan"
    maintenance.vacuum(path, engine=DELETION_VECTORS, retention=timedelta())
    assert values(path) == before
    files = table_log.load_whole(TableStore(path), DeltaTable(path).version()).files
    named = {file.vector["pathOrInlineDv"] for file in files.values() if file.vector}
    assert len(vector_files(path)) == len(named)


def test_compaction_of_task_merge_forgets_nothing_and_leaves_what_is_not_its_own(path, cache):
    for version in range(1, 9):
        merged(delta_rs, path, [upsert(row(str(version)), at(1))], version)
    waiting = Path(path) / "_lakemark" / "pending" / "x.arrow"
    unfinished = Path(path) / "part-of-a-merge-that-runs.parquet"
    for file in (waiting, unfinished):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    ours = {"key": ["id"], "engine": TASK_MERGE}
    done = maintenance.maintain(path, policy=Policy(spare_files=3), **ours)
    assert (done.compacted, done.added, done.removed) == (8, 1, 0)
    assert maintenance.vacuum(path, engine=TASK_MERGE, retention=timedelta()) == 8
    assert unfinished.exists()
    assert waiting.exists()
    unfinished.unlink()
    assert delta_rs.size_of(DeltaTable(path)).rows == 8
    assert len(list(Path(path).glob("*.parquet"))) == 1
    assert not cache.exists(), "its rows are not looked for by key"
    assert delta_rs.committed(path, "q/t/s") == 8
    again = [delete(row("1"), at(5))]
    assert merged(delta_rs, path, again, 8).skipped
    # Records survive checkpoints, too.
    DeltaTable(path).create_checkpoint()
    assert merged(delta_rs, path, again, 8).skipped


def test_a_task_merge_table_is_due_when_its_bytes_need_fewer_files_or_at_a_period(path):
    result = partial(delta_rs.MergeResult, at=7)
    assert maintenance.wants_upkeep(path, result(files=100, bytes=1000))
    assert not maintenance.wants_upkeep(path, result(files=100, bytes=100 * TARGET_FILE_BYTES))
    assert not maintenance.wants_upkeep(path, delta_rs.MergeResult(at=49))
    assert maintenance.wants_upkeep(path, delta_rs.MergeResult(at=51))
