"""The Spark engine keeps the contract of the write engines, and stays out of others' way."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark.errors import TableError
from lakemark.sink.delta import delta_rs
from tests.kit.nightly import NIGHTLY
from tests.kit.sink_contract import COLUMNS, SinkContract, row
from tests.kit.write_sets import at, delete, table_schema, upsert, write_set

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class SparkEngine:
    def __init__(self, spark):
        from lakemark.sink.delta import spark_merge, staging

        self.spark, self.engine, self.staging = spark, spark_merge, staging

    def ensure(self, path, schema, *, key):
        return self.engine.ensure(self.spark, path, schema, key=key)

    def merge(self, path, rows, *, key, deletes, app_id, version, parts=1):
        cuts = [rows.num_rows * i // parts for i in range(parts + 1)]
        staged = [
            self.staging.stage(
                path, rows.slice(begin, end - begin), key=key, app_id=app_id, version=version,
                part=number,
            )
            for number, (begin, end) in enumerate(pairwise(cuts))
        ]  # fmt: skip
        return self.engine.merge(
            self.spark, path, staged, deletes=deletes, app_id=app_id, version=version
        )

    def truncate(self, path, position, **more):
        return self.engine.truncate(self.spark, path, position, **more)

    committed = staticmethod(delta_rs.committed)

    def read(self, path):
        """By delta-rs, whose scan knows deletion vectors."""
        table = DeltaTable(path)
        schema = pa.schema(table.schema().to_arrow())
        return pa.table(table.scan()).select(schema.names).cast(schema)


# delta-rs merges by the same text (`merge_sql`) and has all of them in every run.
BY_NIGHT = {
    "test_rules[soft]",
    "test_truncate[hard]",
    "test_counts",
    "test_odd_names",
    "test_refused[null-key-changes0]",
    "test_refused[duplicate-key-changes1]",
    "test_refused[write-set-invalid-changes2]",
    "test_soft_deletes_switched_on",
    "test_the_schemas_of_records_switched_on",
}


class TestSpark(SinkContract):
    @pytest.fixture
    def engine(self, spark, request):
        if request.node.name in BY_NIGHT and not NIGHTLY:
            pytest.skip("HYPOTHESIS_PROFILE=nightly has it")
        return SparkEngine(spark)


@pytest.fixture
def engine(spark):
    return SparkEngine(spark)


def put(engine, path, changes, version, app_id="q/t/stream", parts=1):
    return engine.merge(
        path, write_set(changes, COLUMNS), key=("id",), deletes="hard", app_id=app_id,
        version=version, parts=parts,
    )  # fmt: skip


def test_a_table_moves_over_and_not_back(spark, engine, tmp_path):
    from lakemark.sink.delta import spark_merge

    path = str(tmp_path / "t")
    delta_rs.ensure(path, table_schema(COLUMNS), key=["id"])
    changes = [upsert(row(str(i)), at(1)) for i in range(10)]
    rows = write_set(changes, COLUMNS)
    delta_rs.merge(path, rows, key=["id"], deletes="hard", app_id="q/t/stream", version=1)
    with pytest.raises(TableError) as caught:
        put(engine, path, [delete(row("1"), at(2))], 2)
    assert caught.value.code == "engine-mismatch"
    assert spark_merge.adopt(spark, path)
    assert not spark_merge.adopt(spark, path)
    with pytest.raises(TableError) as caught:
        delta_rs.merge(path, rows, key=["id"], deletes="hard", app_id="q/t/stream", version=2)
    assert caught.value.code == "engine-mismatch"
    # The records of the old engine hold for the new one.
    assert put(engine, path, [delete(row("1"), at(2))], 1).skipped
    done = put(engine, path, [delete(row(str(i)), at(2)) for i in range(6)], 2, parts=3)
    assert (done.deleted, done.rows, done.files) == (6, 4, 1)
    assert "deletionVectors" in (DeltaTable(path).protocol().reader_features or ())
    assert sorted(engine.read(path).column("id").to_pylist()) == ["6", "7", "8", "9"]
    by_spark = spark.read.format("delta").load(path).select("id").collect()
    assert sorted(found.id for found in by_spark) == ["6", "7", "8", "9"], (
        "two readers, one content"
    )
    assert not list(Path(path, "_lakemark", "staged").glob("*"))
    assert delta_rs.read_rows(path, pa.table({"id": ["5", "6"]})).num_rows == 1


def test_a_racing_writer_with_the_same_version(spark, engine, tmp_path, monkeypatch):
    """Looked up before the other committed: Delta's own check makes the statement vanish."""
    from lakemark.sink.delta import spark_merge

    path = str(tmp_path / "t")
    engine.ensure(path, table_schema(COLUMNS), key=("id",))
    changes = [upsert(row("1"), at(1))]
    real = spark_merge._statement
    raced = []

    def overtaken(*arguments):
        if not raced:
            raced.append(1)
            put(engine, path, changes, 1)
        return real(*arguments)

    monkeypatch.setattr(spark_merge, "_statement", overtaken)
    rows = write_set(changes, COLUMNS)
    part = engine.staging.stage(path, rows, key=["id"], app_id="q/t/stream", version=1, part=7)
    spark_merge.merge(spark, path, [part], deletes="hard", app_id="q/t/stream", version=1)
    assert engine.read(path).num_rows == 1


def test_another_attempt_of_a_task_changes_nothing(spark, engine, tmp_path):
    """A speculated task stages the same part again, while Spark reads it and after the commit."""
    from lakemark.sink.delta import spark_merge

    path = str(tmp_path / "t")
    engine.ensure(path, table_schema(COLUMNS), key=("id",))
    more = {"key": ["id"], "app_id": "q/t/stream"}
    seconds = 0
    for version in (1, 2):
        changes = [upsert(row(str(i), f"v{version}"), at(version)) for i in range(1000)]
        rows = write_set(changes, COLUMNS)
        merged = threading.Event()

        def attempts(rows=rows, version=version, merged=merged):
            count = 0
            while not merged.is_set():
                engine.staging.stage(path, rows, version=version, **more)
                count += 1
            return count

        part = engine.staging.stage(path, rows, version=version, **more)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(attempts)
            spark_merge.merge(
                spark, path, [part], deletes="hard", app_id="q/t/stream", version=version
            )
            merged.set()
            seconds += other.result()
        again = engine.staging.stage(path, rows, version=version, **more)
        repeated = spark_merge.merge(
            spark, path, [again], deletes="hard", app_id="q/t/stream", version=version
        )
        assert repeated.skipped
        found = engine.read(path)
        assert found.num_rows == 1000
        assert set(found.column("a").to_pylist()) == {f"v{version}"}
    assert seconds >= 2


def test_a_commit_says_which_batch_made_it(spark, engine, tmp_path):
    path, note = str(tmp_path / "t"), '{"by":"lakemark","batch":3,"step":"stream"}'
    engine.ensure(path, table_schema(COLUMNS, "hard"), key=("id",))
    rows = write_set([upsert(row("x", "new"), at(1))], COLUMNS, "hard")
    staged = engine.staging.stage(
        path, rows, key=("id",), app_id="q/t/stream", version=1, note=note
    )
    engine.engine.merge(spark, path, [staged], deletes="hard", app_id="q/t/stream", version=1)
    engine.merge(path, rows, key=("id",), deletes="hard", app_id="q/t/stream", version=2)
    said = [commit.get("userMetadata") for commit in DeltaTable(path).history(2)]
    assert said == [None, note]


def test_a_failed_statement_leaves_no_settings_behind(spark, engine, tmp_path, monkeypatch):
    from lakemark.sink.delta import spark_merge

    path = str(tmp_path / "t")
    engine.ensure(path, table_schema(COLUMNS), key=("id",))
    sessions = []
    real = type(spark).newSession

    def remembered(self):
        sessions.append(real(self))
        return sessions[-1]

    monkeypatch.setattr(type(spark), "newSession", remembered)
    monkeypatch.setattr(spark_merge, "_statement", lambda *arguments: "MERGE nonsense")
    with pytest.raises(TableError):
        put(engine, path, [upsert(row("1"), at(1))], 1)
    (used,) = sessions
    for session in (used, spark):
        assert session.conf.get("spark.databricks.delta.write.txnAppId", None) is None
        assert session.conf.get("spark.databricks.delta.write.txnVersion", None) is None
    assert list(Path(path, "_lakemark", "staged").glob("*"))  # kept for the repeat
