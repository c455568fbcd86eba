"""The engine with deletion vectors keeps the contract of the write engines, and its table's files
are what other writers and readers of Delta expect."""

import json
import os
import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark.errors import LakemarkError, TableError
from lakemark.sink.apply import apply
from lakemark.sink.delta import (
    deletion_vectors,
    deletion_vectors_rows,
    delta_rs,
    index_cache,
    maintenance,
    object_client,
    table_log,
)
from lakemark.sink.delta.delta_format import DeltaFormat
from lakemark.sink.delta.engines import DELETION_VECTORS, SPARK_MERGE
from lakemark.sink.delta.table_store import TableStore
from lakemark.sink.lake_plan import LakePlan, TablePlan
from tests.kit.delta_table import actions, content, merged, numbered, refusals, values, vector_files
from tests.kit.delta_table import merge_vectors as merge
from tests.kit.log_model import TABLE, Entry
from tests.kit.sink_contract import COLUMNS, KEY_TYPES, KEY_VALUES, FormatContract
from tests.kit.sink_contract import row as of
from tests.kit.write_sets import at, delete, table_schema, upsert, write_set
from tests.unit.sink.test_resolve import parts, row

pytestmark = pytest.mark.usefixtures("cache")


class TestVectors(FormatContract):
    made_by, name = DeltaFormat(), DELETION_VECTORS

    def read(self, path):
        return content(path)


# -- what is written -----------------------------------------------------------------------------


def test_an_update_rewrites_no_file(path):
    merge(path, 1, *numbered(range(1000), 1))
    (first,) = DeltaTable(path).file_uris()
    done = merge(path, 2, *numbered(range(10), 2, -1), delete(of("10"), at(2)))
    assert (done.updated, done.deleted, done.rows, done.files) == (10, 1, 999, 2)
    found = actions(path, DeltaTable(path).version())
    old, new = sorted(found["add"], key=lambda add: "deletionVector" not in add)
    assert first.endswith(old["path"])
    assert old["deletionVector"]["cardinality"] == 11
    assert json.loads(old["stats"]) == {**json.loads(old["stats"]), "numRecords": 1000, "tightBounds": False}  # fmt: skip
    assert json.loads(new["stats"])["numRecords"] == 10
    assert [remove["path"] for remove in found["remove"]] == [old["path"]]
    assert found["txn"][0]["appId"] == "q/t/s"
    assert values(path) == {str(n): -1 if n < 10 else n for n in range(1000) if n != 10}


def test_a_file_without_live_rows_leaves_the_table(path):
    merge(path, 1, *numbered(range(10), 1))
    merge(path, 2, *numbered(range(10), 2, 0))
    assert len(DeltaTable(path).file_uris()) == 1
    assert vector_files(path) == set()


def test_statistics_still_skip_only_files_without_the_key(path):
    for version, start in enumerate((0, 100, 200), 1):
        merge(path, version, *numbered(range(start, start + 100), version))
    merge(path, 4, *numbered((5, 105, 205), 4, -1))
    table = DeltaTable(path)
    for key, value in (("5", -1), ("105", -1), ("6", 6), ("299", 299)):
        found = pa.table(table.scan(columns=["b"], predicate=f"id = '{key}'"))
        assert found.column("b").to_pylist() == [value]


def test_statistics_keep_every_digit_that_another_writer_wrote(path):
    merge(path, 1, *numbered(range(3), 1))
    files = table_log.load(TableStore(path), DeltaTable(path).version(), table_id="")
    (file,) = files.files.values()
    text = '{"numRecords":3,"minValues":{"d":1.00000000000000000001}}'
    from lakemark.sink.delta import table_actions

    other = table_log.data_file({**file.add, "stats": text})
    wide = table_actions.with_vector(other, {"x": 1}, 3)["add"]["stats"]
    assert wide == text[:-1] + ',"tightBounds":false}'
    again = table_actions.with_vector(table_log.data_file({**file.add, "stats": wide}), {}, 3)
    assert again["add"]["stats"] == wide
    bare = table_actions.with_vector(table_log.data_file({**file.add, "stats": None}), {}, 3)
    assert json.loads(bare["add"]["stats"]) == {"numRecords": 3, "tightBounds": False}


# -- moving over ---------------------------------------------------------------------------------


def test_a_table_moves_over_and_not_back(path):
    merged(delta_rs, path, numbered(range(10), 1), 1)
    assert merge(path, 1, delete(of("1"), at(2))).skipped, "the old engine's records hold"
    assert DeltaTable(path).protocol().min_reader_version == 1, "nothing was written"
    merge(path, 2, delete(of("1"), at(2)))
    table = DeltaTable(path)
    assert "deletionVectors" in (table.protocol().reader_features or ())
    assert table.metadata().configuration["lakemark.engine"] == DELETION_VECTORS
    assert table.metadata().name == "public.t"
    assert sorted(values(path)) == [n for n in "0123456789" if n != "1"]
    for refused in refusals(path):
        assert refused.code == "engine-mismatch"
        assert DELETION_VECTORS in refused.hint


def test_a_table_of_spark_merge_is_left_alone(path):
    DeltaTable(path).alter.set_table_properties(
        {"lakemark.engine": SPARK_MERGE}, raise_if_not_exists=False
    )
    with pytest.raises(TableError) as caught:
        merge(path, 1, *numbered(range(3), 1))
    assert caught.value.code == "engine-mismatch"


@pytest.mark.parametrize(
    "setting", ["delta.enableChangeDataFeed", "delta.appendOnly", "delta.constraints.positive"]
)
def test_a_table_that_asks_more_of_its_writers_is_refused(path, setting):
    value = "b > 0" if "constraints" in setting else "true"
    DeltaTable(path).alter.set_table_properties({setting: value}, raise_if_not_exists=False)
    with pytest.raises(TableError) as caught:
        merge(path, 1, *numbered(range(3), 1))
    assert caught.value.code == "unsupported-table-feature"
    assert setting in caught.value.message


# -- others at work ------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["optimize", "delete", "same batch", "append"])
def test_another_writer_that_commits_first(path, monkeypatch, what):
    """The batch is made again from the table as the other left it."""
    for version in (1, 2):
        merge(path, version, *numbered(range(version * 10, version * 10 + 10), version))
    real, raced = table_log.commit, []

    def overtaken(*arguments):
        if not raced:
            raced.append(what)
            if what == "optimize":
                DeltaTable(path).optimize.compact()
            elif what == "delete":
                DeltaTable(path).delete("id = '12'")
            elif what == "same batch":
                merge(path, 3, *batch)
            else:
                merge(path, 7, *numbered((40,), 1), app_id="q/t/catchup")
        return real(*arguments)

    batch = [*numbered((11, 21, 40), 3, -1), delete(of("13"), at(3))]
    monkeypatch.setattr(table_log, "commit", overtaken)
    done = merge(path, 3, *batch)
    assert raced
    assert done.skipped == (what == "same batch")
    expected = {str(n): n for n in range(10, 30) if n != 13} | {"11": -1, "21": -1, "40": -1}
    if what == "delete":
        del expected["12"]
    assert values(path) == expected
    named = {action["path"] for action in actions(path, DeltaTable(path).version())["add"]}
    there = {p.name for p in Path(path).glob("*.parquet")}
    assert named <= there


def test_files_of_an_attempt_that_lost_are_deleted(path, monkeypatch):
    merge(path, 1, *numbered(range(10), 1))
    real, count = table_log.commit, []

    def overtaken(*arguments):
        count.append(len(list(Path(path).glob("*.parquet"))))
        if len(count) == 1:
            DeltaTable(path).create_checkpoint()
            table = DeltaTable(path)
            table.alter.set_table_properties({"x": "y"}, raise_if_not_exists=False)
        return real(*arguments)

    monkeypatch.setattr(table_log, "commit", overtaken)
    merge(path, 2, *numbered((1,), 2, -1))
    assert count == [2, 2]
    assert len(vector_files(path)) == 1


def test_a_log_that_was_put_back_is_read_again(path, tmp_path):
    """What this process knows of a version counts only for the very same commit."""
    merge(path, 1, *numbered(range(5), 1))
    shutil.copytree(path, tmp_path / "kept")
    merge(path, 2, delete(of("1"), at(2)))
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "kept", path)
    DeltaTable(path).delete("id = '2'")  # the version that is known, and another one
    merge(path, 3, *numbered((1, 2), 3, -1))
    assert values(path) == {"0": 0, "1": -1, "2": -1, "3": 3, "4": 4}


@pytest.mark.parametrize("address", ["s3://bucket/t", "s3a://bucket/t"])
def test_storage_options_of_delta_rs_are_those_of_commits(address):
    options = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "region": "eu-central-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ALLOW_HTTP": "true",
        "timeout": "5s",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
        "max_retries": "3",
        "retry_timeout": "2m",
    }
    store = object_client.client(address, options).store
    assert store.config["endpoint"] == "http://127.0.0.1:1"
    assert store.config["access_key_id"] == "a"
    assert store.client_options["allow_http"]
    assert store.retry_config["max_retries"] == 3
    assert store.retry_config["retry_timeout"] == timedelta(minutes=2)
    with pytest.raises(TableError) as caught:
        TableStore(address, {**options, "AWS_S3_LOCKING_PROVIDER": "dynamodb"}).put_absent("a", b"")
    assert caught.value.code == "lake-refused"


# -- indexes -------------------------------------------------------------------------------------


def test_indexes_are_only_a_help(path, cache):
    merge(path, 1, *numbered(range(100), 1))
    maintenance.forget()
    for kept in cache.iterdir():
        kept.write_bytes(kept.read_bytes()[:-1] + b"\xff")
    merge(path, 2, *numbered((1,), 2, -1))
    maintenance.forget()
    shutil.rmtree(cache)
    cache.write_text("not a folder")
    merge(path, 3, *numbered((2,), 3, -2))
    merge(path, 4, *numbered((1,), 4, -3))
    assert values(path) == {**{str(n): n for n in range(100)}, "1": -3, "2": -2}


@pytest.mark.parametrize(
    ("most", "most_files", "left"),
    [(100, 10, "0123456789"), (99, 10, "3456789"), (100, 9, "456789"), (39, 9, "89"), (0, 9, "")],
)
def test_the_oldest_indexes_make_room(cache, most, most_files, left):
    """With some room to spare, so that the next ones need not look for it again."""
    cache.mkdir()
    for number in range(10):
        (cache / str(number)).write_bytes(b"x" * 10)
        os.utime(cache / str(number), (number, number))
    index_cache.prune(cache, most, most_files)
    assert "".join(sorted(p.name for p in cache.iterdir())) == left


@pytest.mark.slow
def test_rows_of_a_file_beyond_its_first_group(path):
    count = 70_000
    merge(path, 1, *numbered(range(count), 1))
    soft = upsert(of("69999", "x"), at(2), patch=("b",))
    merge(path, 2, soft, *numbered((3, 66_000), 2, -1))
    found = values(path)
    assert (found["69999"], found["3"], found["66000"], len(found)) == (69_999, -1, -1, count)


# -- rows by key ---------------------------------------------------------------------------------


def test_rows_are_read_by_key_and_the_rest_is_not(path):
    merge(path, 1, *numbered(range(1000), 1))
    merge(path, 2, *numbered({*range(500, 1500)} - {700}, 2, -1), delete(of("700"), at(2)))
    first, second = sorted(Path(path).glob("*.parquet"), key=lambda p: p.stat().st_mtime_ns)
    assert first != second
    wanted = ["7", "7", "499", "501", "700", "1499", "1500", "quote'"]
    keys = pa.table({"id": wanted})
    found = deletion_vectors_rows.read_rows(path, keys, ["b", "_cdc", "id"])
    assert found.schema.names == ["b", "_cdc", "id"]
    rows = {row["id"]: (row["b"], row["_cdc"]["position"]) for row in found.to_pylist()}
    assert found.num_rows == len(rows)
    assert rows == {"7": (7, at(1)), "499": (499, at(1)), "501": (-1, at(2)), "1499": (-1, at(2))}
    first.unlink()
    assert deletion_vectors_rows.read_rows(path, pa.table({"id": ["501"]})).num_rows == 1
    with pytest.raises(LakemarkError):
        deletion_vectors_rows.read_rows(path, keys)


def test_rows_are_read_by_every_type_of_key_as_without_vectors(tmp_path):
    path = str(tmp_path / "t")
    columns = {**KEY_TYPES, "n": pa.int64(), "odd name": pa.list_(pa.int64())}
    delta_rs.ensure(path, table_schema(columns), key=list(KEY_TYPES), engine=DELETION_VECTORS)
    given = [{n: v[i] for n, v in KEY_VALUES.items()} for i in (0, 1)]
    changes = [upsert({**k, "n": i, "odd name": [i]}, at(1)) for i, k in enumerate(given)]
    deletion_vectors.merge(
        path,
        write_set(changes, columns),
        key=list(KEY_TYPES),
        deletes="hard",
        app_id="a",
        version=1,
    )
    for number, one in enumerate(given):
        keys = pa.table({n: pa.array([one[n]], t) for n, t in KEY_TYPES.items()})
        for opened in (None, DeltaTable(path)):
            found = deletion_vectors_rows.read_rows(path, keys, ["n", "odd name"], opened=opened)
            assert found.to_pylist() == [{"n": number, "odd name": [number]}]
        assert deletion_vectors_rows.read_rows(path, keys).equals(delta_rs.read_rows(path, keys))
    assert deletion_vectors_rows.read_rows(path, keys.slice(0, 0)).num_rows == 0


def test_rows_are_read_without_a_table(tmp_path):
    assert (
        deletion_vectors_rows.read_rows(str(tmp_path / "none"), pa.table({"id": ["a"]})).num_rows
        == 0
    )


# -- evolution and truncates over vectors ----------------------------------------------------------


def test_widening_and_truncating_leave_no_deleted_row(path):
    merge(path, 1, *numbered(range(10), 1))
    merge(path, 2, delete(of("3"), at(2)), *numbered((4,), 2, 44))
    wide = {**COLUMNS, "b": pa.decimal128(20, 0), "new": pa.string()}
    delta_rs.ensure(path, table_schema(wide), engine=DELETION_VECTORS)
    assert {k: int(v) for k, v in values(path).items()} == {
        **{str(n): n for n in range(10) if n != 3},
        "4": 44,
    }
    merge(path, 3, delete(of("5"), at(3)))
    delta_rs.truncate(path, at(2), deletes="hard", app_id="c", version=1, engine=DELETION_VECTORS)
    assert {k: int(v) for k, v in values(path).items()} == {"4": 44}
    merge(path, 4, *numbered((3,), 4))
    assert sorted(values(path)) == ["3", "4"]


# -- a batch ---------------------------------------------------------------------------------------


def test_a_batch_of_a_table_of_this_engine(tmp_path):
    path = str(tmp_path / "batches")
    own = TablePlan(path, engine=DELETION_VECTORS)

    def batch(number: int, *found: Entry):
        return apply(TABLE, parts(*found), LakePlan("q", number, "stream", lambda _: own))

    def change(op: str, number: int, key: int, value: str) -> Entry:
        return Entry(op, (100 + number, 1), 1, key=key, after=row(key, number, value))

    done = batch(0, *(change("c", n, n, "a") for n in range(6)))
    assert (done.inserted, done.rows, done.engine) == (6, 6, DELETION_VECTORS)
    done = batch(1, change("u", 10, 1, "b"), change("u", 11, 2, "b"))
    assert (done.updated, done.rows, done.rows_before) == (2, 6, 0)
    again = batch(1, change("u", 10, 1, "b"), change("u", 11, 2, "b"))
    assert (again.skipped, again.rows) == (True, 6)
    assert len(vector_files(path)) == 1
