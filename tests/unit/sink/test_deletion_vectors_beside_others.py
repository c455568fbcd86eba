"""Tables with deletion vectors beside stores that lose answers, and beside other writers."""

import json
import os
import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet as pq

from lakemark.errors import TableError
from lakemark.sink.delta import (
    deletion_vectors,
    delta_rs,
    key_index,
    maintenance,
    table_actions,
    table_log,
)
from lakemark.sink.delta.engines import DELETION_VECTORS
from lakemark.sink.delta.maintenance import Policy
from lakemark.sink.delta.table_store import TableStore
from stack.object_store import serving
from tests.kit.delta_table import merge_vectors as merge
from tests.kit.delta_table import merged, numbered
from tests.kit.delta_table import values as rows
from tests.kit.sink_contract import COLUMNS
from tests.kit.sink_contract import row as of
from tests.kit.write_sets import at, delete, table_schema, upsert

pytestmark = pytest.mark.usefixtures("cache")

EAGER = Policy(spare_files=3, dirty_bytes=0, checkpoint_every=4)

# -- answers that get lost -------------------------------------------------------------------------


def test_a_commit_whose_answer_is_lost_is_ours_in_an_object_store():
    """The store tells of an error, the client asks again, and finds its own commit there."""
    with serving() as store:
        address, more = "s3://lake/public/t", {"storage_options": store.options}
        delta_rs.ensure(address, table_schema(COLUMNS), key=["id"], **more)

        merged(deletion_vectors, address, numbered(range(10), 1), 1, **more)
        store.lose(r"/_delta_log/\d+\.json$")
        changes = [*numbered(range(3), 2, -1), delete(of("3"), at(2))]
        done = merged(deletion_vectors, address, changes, 2, **more)
        assert store.lost()
        assert (done.skipped, done.updated, done.deleted, done.rows) == (False, 3, 1, 9)
        found = pa.table(DeltaTable(address, **more).scan(columns=["id", "b"])).to_pylist()
        expected = {**{str(n): n for n in range(4, 10)}, **{str(n): -1 for n in range(3)}}
        assert {row["id"]: row["b"] for row in found} == expected
        assert len(found) == len(expected)


@pytest.mark.parametrize("what", ["merge", "upkeep"])
def test_a_commit_whose_answer_is_lost_is_ours_on_a_disk(path, monkeypatch, what):
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
        assert maintenance.maintain(
            path, key=["id"], engine=DELETION_VECTORS, policy=EAGER
        ).compacted
    assert rows(path) == expected


def test_a_file_that_somebody_else_wrote_is_not_ours(path):
    merge(path, 1, *numbered(range(3), 1))
    store = TableStore(path)
    before = table_log.load(store, DeltaTable(path).version())
    same = [table_actions.info("MERGE", 1, before.version) for _ in range(2)]
    assert table_log.commit(store, before, same[:1]) is not None
    assert table_log.commit(store, before, same[1:]) is None


# -- upkeep beside others --------------------------------------------------------------------------


def log_file(path: str) -> Path:
    return Path(path, table_log.commit_name(DeltaTable(path).version()))


def set_property(path: str, name: str, value: str) -> None:
    DeltaTable(path).alter.set_table_properties({name: value}, raise_if_not_exists=False)


def test_vacuum_leaves_vectors_that_spark_wrote(path):
    """Spark's DELETE writes them beside the data files, where delta-rs takes them for orphans."""
    merge(path, 1, *numbered(range(10), 1))
    merge(path, 2, delete(of("1"), at(2)))
    (vector,) = Path(path, deletion_vectors.VECTORS_FOLDER).glob("*.bin")
    vector.rename(Path(path, vector.name))
    text = log_file(path).read_text()
    log_file(path).write_text(text.replace(f'"{deletion_vectors.VECTORS_FOLDER}', '"'))
    long_ago = time.time() - timedelta(days=30).total_seconds()
    for file in Path(path).iterdir():
        os.utime(file, (long_ago, long_ago))
    maintenance.forget()
    maintenance.vacuum(path, engine=DELETION_VECTORS)
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
def test_files_are_kept_as_long_as_the_table_says(path, value, days):
    found = {"configuration": {"delta.deletedFileRetentionDuration": value}}
    assert table_actions.retention(found) == timedelta(days=days)
    assert table_actions.retention({}) == timedelta(days=7)


def test_vacuum_keeps_what_the_table_says(path):
    set_property(path, "delta.deletedFileRetentionDuration", "interval 30 days")
    for version in (1, 2, 3):
        merge(path, 2 * version, *numbered(range(10), version, version))
        merge(path, 2 * version + 1, delete(of("1"), at(version)))
    log = Path(path, "_delta_log")
    long_ago = time.time() - timedelta(days=5).total_seconds()
    stamp = re.compile(r'("deletionTimestamp"|"timestamp"):\d+')
    for file in log.glob("*.json"):
        file.write_text(stamp.sub(rf"\1:{int(long_ago * 1000)}", file.read_text()))
    files = [*Path(path).glob("*.parquet"), *Path(path, deletion_vectors.VECTORS_FOLDER).iterdir()]
    for file in files:
        os.utime(file, (long_ago, long_ago))
    maintenance.forget()
    assert maintenance.vacuum(path, engine=DELETION_VECTORS) == 0
    set_property(path, "delta.deletedFileRetentionDuration", "interval 2 days")
    assert maintenance.vacuum(path, engine=DELETION_VECTORS) > 0
    assert set(rows(path)) == {str(n) for n in range(10)} - {"1"}


def test_checkpoints_come_whoever_commits_in_between(path):
    """Every second commit is another writer's, so ours never have a round number."""
    policy = Policy(checkpoint_every=4)
    for version in range(1, 12):
        merge(path, version, *numbered((version,), version))
        assert DeltaTable(path).version() % 2
        maintenance.maintain(path, key=["id"], engine=DELETION_VECTORS, policy=policy)
        set_property(path, "x", str(version))
    assert len(list(Path(path, "_delta_log").glob("*.checkpoint.parquet"))) == 5


def test_workers_that_take_turns_make_one_checkpoint(path, monkeypatch):
    """Each has its own memory of when it looked last."""
    policy, workers = Policy(checkpoint_every=4), [dict[str, int]() for _ in range(4)]
    for version in range(1, 24):
        monkeypatch.setattr(maintenance, "_looked", workers[version * 7 % 4 if version > 8 else 0])
        merge(path, version, *numbered((version,), version))
        maintenance.maintain(path, key=["id"], engine=DELETION_VECTORS, policy=policy)
    assert all(workers)
    found = [int(p.name[:20]) for p in Path(path, "_delta_log").glob("*.checkpoint.parquet")]
    assert sorted(at // 4 for at in found) == list(range(1, DeltaTable(path).version() // 4 + 1))


# -- files that others wrote -----------------------------------------------------------------------


def test_times_that_spark_wrote_are_read_to_the_end_of_time(tmp_path):
    """Spark writes timestamps as INT96, which reach further than nanoseconds do."""
    path = str(tmp_path / "t")
    columns = {"id": pa.string(), "a": pa.int64(), "t": pa.timestamp("us", "UTC")}
    last, first = datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), datetime(1, 1, 1, tzinfo=UTC)
    delta_rs.ensure(path, table_schema(columns), key=["id"])
    changes = [upsert({"id": "a", "t": last}, at(1)), upsert({"id": "b", "t": first}, at(1))]
    merged(deletion_vectors, path, changes, 1, columns=columns)
    (file,) = Path(path).glob("*.parquet")
    size = file.stat().st_size
    pq.write_table(
        pq.read_table(file), file, use_deprecated_int96_timestamps=True, store_schema=False
    )
    text = log_file(path).read_text()
    log_file(path).write_text(text.replace(f'"size":{size}', f'"size":{file.stat().st_size}'))
    maintenance.forget()
    changes = [upsert({"id": "a", "a": 2}, at(2), patch=("t",))]
    merged(deletion_vectors, path, changes, 2, columns=columns)
    merged(deletion_vectors, path, [upsert({"id": "c", "t": last}, at(3))], 3, columns=columns)
    # delta-rs itself reads such files wrong; it reads what upkeep made of them.
    eager = Policy(spare_files=0, dirty_bytes=0)
    maintenance.maintain(path, key=["id"], engine=DELETION_VECTORS, policy=eager)
    assert len(DeltaTable(path).file_uris()) == 1
    found = pa.table(DeltaTable(path).scan(columns=["id", "a", "t"])).to_pylist()
    expected = {"a": (2, last), "b": (None, first), "c": (None, last)}
    assert {row["id"]: (row["a"], row["t"]) for row in found} == expected


@pytest.mark.parametrize("tight", ["true", "false"])
def test_statistics_with_bounds_keep_every_digit(path, tight):
    low, high = "0.9999999999999999999", "9.9999999999999999999"
    text = f'{{"numRecords":3,"minValues":{{"d":{low}}},"maxValues":{{"d":{high}}},"tightBounds":{tight}}}'
    file = table_log.data_file({"path": "x", "size": 1, "stats": text})
    for records in (3, 4):
        wide = table_actions.with_vector(file, {"x": 1}, records)["add"]["stats"]
        assert json.loads(wide)["tightBounds"] is False
        assert json.loads(wide)["numRecords"] == records
        assert low in wide
        assert high in wide


def test_a_vector_that_is_gone_stops_the_table(path):
    """Waiting would not bring it back."""
    merge(path, 1, *numbered(range(10), 1))
    merge(path, 2, delete(of("1"), at(2)))
    (vector,) = Path(path, deletion_vectors.VECTORS_FOLDER).glob("*.bin")
    vector.unlink()
    with pytest.raises(TableError) as caught:
        merge(path, 3, delete(of("2"), at(3)))
    assert caught.value.code == "table-file-missing"


def test_indexes_of_another_way_to_hash_are_not_used(path, monkeypatch):
    """Keys that are not found would be there twice from then on."""
    merge(path, 1, *numbered(range(10), 1))
    maintenance.forget()
    hashed = pd.util.hash_array

    def other(cells, **options):
        return hashed(cells, **options) + 1

    monkeypatch.setattr(pd.util, "hash_array", other)
    key_index.fingerprint.cache_clear()
    assert merge(path, 2, *numbered(range(5), 2, -1)).updated == 5
    key_index.fingerprint.cache_clear()
    assert rows(path) == {str(n): -1 if n < 5 else n for n in range(10)}


# -- tables that ask more of their writers ---------------------------------------------------------


def test_checkpoints_with_sidecars_are_refused_before_the_log_is_read(path):
    """Their files have names of their own; of the commits before them nothing may be left."""
    merge(path, 1, *numbered(range(10), 1))
    version = DeltaTable(path).version()
    found = table_log.load(TableStore(path), version)
    protocol = {
        **found.protocol,
        "readerFeatures": [*found.protocol["readerFeatures"], "v2Checkpoint"],
        "writerFeatures": [*found.protocol["writerFeatures"], "v2Checkpoint"],
    }
    actions = [
        {"checkpointMetadata": {"version": version + 1}},
        {"protocol": protocol},
        {"metaData": found.metadata},
        *({"add": file.add} for file in found.files.values()),
    ]
    log = Path(path, "_delta_log")
    lines = "\n".join(json.dumps(action) for action in actions)
    (log / f"{version + 1:020d}.checkpoint.{uuid4()}.json").write_text(lines)
    for file in log.glob("*[0-9].json"):
        if file.stem.isdigit():
            file.unlink()
    Path(path, table_log.commit_name(version + 1)).write_text(json.dumps({"protocol": protocol}))
    maintenance.forget()
    assert DeltaTable(path).version() == version + 1
    with pytest.raises(TableError) as caught:
        merge(path, 2, *numbered((1,), 2))
    assert caught.value.code == "unsupported-table-feature"
    assert "v2Checkpoint" in caught.value.message


@pytest.mark.parametrize("writer", [5, 6])
def test_tables_whose_version_says_more_than_is_kept_are_refused(path, writer):
    """Column mapping and identity columns came with these, and count as used."""
    merge(path, 1, *numbered(range(3), 1))
    found = table_log.load(TableStore(path), DeltaTable(path).version())
    legacy = {"minReaderVersion": 2, "minWriterVersion": writer}
    with pytest.raises(TableError) as caught:
        table_actions.check_writable(path, replace(found, protocol=legacy))
    assert caught.value.code == "unsupported-table-feature"


def test_generated_columns_are_refused(path):
    merge(path, 1, *numbered(range(3), 1))
    found = table_log.load(TableStore(path), DeltaTable(path).version())
    schema = found.metadata["schemaString"].replace(
        '"metadata":{', '"metadata":{"delta.generationExpression":"1",', 1
    )
    legacy = {"minReaderVersion": 1, "minWriterVersion": 4}
    other = replace(found, protocol=legacy, metadata={**found.metadata, "schemaString": schema})
    with pytest.raises(TableError) as caught:
        table_actions.check_writable(path, other)
    assert "generationExpression" in caught.value.message
