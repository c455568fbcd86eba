"""Tables with deletion vectors beside stores that lose answers, and beside other writers."""

import os
import re
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark.sink import delta, table_actions, table_log, vectors, vectors_upkeep
from lakemark.sink.table_store import TableStore
from tests.kit.object_store import serving
from tests.kit.sink_contract import COLUMNS
from tests.kit.sink_contract import row as of
from tests.kit.write_sets import at, delete, table_schema, write_set
from tests.unit.test_vectors import EAGER, cache, merge, numbered, path, rows  # noqa: F401

# -- answers that get lost -------------------------------------------------------------------------


def test_a_commit_whose_answer_is_lost_is_ours_in_an_object_store():
    """The store tells of an error, the client asks again, and finds its own commit there."""
    with serving() as store:
        address, more = "s3://lake/public/t", {"storage_options": store.options}
        delta.ensure(address, table_schema(COLUMNS), key=["id"], **more)

        def put(version: int, *changes):
            return vectors.merge(
                address,
                write_set(changes, COLUMNS),
                key=["id"],
                deletes="hard",
                app_id="q/t/s",
                version=version,
                **more,
            )

        put(1, *numbered(range(10), 1))
        store.lose(r"/_delta_log/\d+\.json$")
        done = put(2, *numbered(range(3), 2, -1), delete(of("3"), at(2)))
        assert store.lost()
        assert (done.skipped, done.updated, done.deleted, done.rows) == (False, 3, 1, 9)
        found = pa.table(DeltaTable(address, **more).scan(columns=["id", "b"])).to_pylist()
        expected = {**{str(n): n for n in range(4, 10)}, **{str(n): -1 for n in range(3)}}
        assert {row["id"]: row["b"] for row in found} == expected
        assert len(found) == len(expected)


@pytest.mark.parametrize("what", ["merge", "upkeep"])
def test_a_commit_whose_answer_is_lost_is_ours_on_a_disk(path, monkeypatch, what):  # noqa: F811
    """A network file system makes the link, loses the answer, and refuses the repetition."""
    for version in range(1, 6):
        merge(path, version, *numbered(range(version, version + 9), version, version))
    expected, real = rows(path), os.link

    def link(source, target):
        real(source, target)
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    if what == "merge":
        done = merge(path, 9, *numbered((1,), 9, -1))
        assert (done.skipped, done.updated) == (False, 1)
        expected["1"] = -1
    else:
        assert vectors_upkeep.maintain(path, key=["id"], policy=EAGER).compacted
    assert rows(path) == expected


def test_a_file_that_somebody_else_wrote_is_not_ours(path):  # noqa: F811
    merge(path, 1, *numbered(range(3), 1))
    store = TableStore(path)
    before = table_log.load(store, DeltaTable(path).version())
    same = [table_actions.info("MERGE", 1, before.version) for _ in range(2)]
    assert table_log.commit(store, before, same[:1]) is not None
    assert table_log.commit(store, before, same[1:]) is None


# -- upkeep beside others --------------------------------------------------------------------------


def log_file(path: str) -> Path:  # noqa: F811
    return Path(path, table_log.commit_name(DeltaTable(path).version()))


def set_property(path: str, name: str, value: str) -> None:  # noqa: F811
    DeltaTable(path).alter.set_table_properties({name: value}, raise_if_not_exists=False)


def test_vacuum_leaves_vectors_that_spark_wrote(path):  # noqa: F811
    """Spark's DELETE writes them beside the data files, where delta-rs takes them for orphans."""
    merge(path, 1, *numbered(range(10), 1))
    merge(path, 2, delete(of("1"), at(2)))
    (vector,) = Path(path, vectors.VECTORS_FOLDER).glob("*.bin")
    vector.rename(Path(path, vector.name))
    text = log_file(path).read_text()
    log_file(path).write_text(text.replace(f'"{vectors.VECTORS_FOLDER}', '"'))
    long_ago = time.time() - timedelta(days=30).total_seconds()
    for file in Path(path).iterdir():
        os.utime(file, (long_ago, long_ago))
    vectors_upkeep.forget()
    vectors_upkeep.vacuum(path)
    assert rows(path) == {str(n): n for n in range(10) if n != 1}


@pytest.mark.parametrize(
    ("value", "days"),
    [
        ("interval 1 days", 1),
        ("interval 30 days", 30),
        ("interval 2 weeks", 14),
        ("interval 36 hours", 1.5),
        ("INTERVAL '2' DAY", 2),
        ("interval 1 day 12 hours", 1.5),
        ("interval 60 seconds", 1),
        ("for ever", 7),
    ],
)
def test_files_are_kept_as_long_as_the_table_says(path, value, days):  # noqa: F811
    found = {"configuration": {"delta.deletedFileRetentionDuration": value}}
    assert table_actions.retention(found) == timedelta(days=days)
    assert table_actions.retention({}) == timedelta(days=7)


def test_vacuum_keeps_what_the_table_says(path):  # noqa: F811
    set_property(path, "delta.deletedFileRetentionDuration", "interval 30 days")
    for version in (1, 2, 3):
        merge(path, 2 * version, *numbered(range(10), version, version))
        merge(path, 2 * version + 1, delete(of("1"), at(version)))
    log = Path(path, "_delta_log")
    long_ago = time.time() - timedelta(days=5).total_seconds()
    stamp = re.compile(r'("deletionTimestamp"|"timestamp"):\d+')
    for file in log.glob("*.json"):
        file.write_text(stamp.sub(rf"\1:{int(long_ago * 1000)}", file.read_text()))
    files = [*Path(path).glob("*.parquet"), *Path(path, vectors.VECTORS_FOLDER).iterdir()]
    for file in files:
        os.utime(file, (long_ago, long_ago))
    vectors_upkeep.forget()
    assert vectors_upkeep.vacuum(path) == 0
    set_property(path, "delta.deletedFileRetentionDuration", "interval 2 days")
    assert vectors_upkeep.vacuum(path) > 0
    assert set(rows(path)) == {str(n) for n in range(10)} - {"1"}
