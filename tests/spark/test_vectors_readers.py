"""Tables with our deletion vectors as Spark reads and writes them."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark.errors import TableError
from lakemark.sink.delta import deletion_vectors, delta_rs, maintenance
from lakemark.sink.delta.engines import DELETION_VECTORS
from lakemark.sink.delta.maintenance import Policy
from tests.kit.nightly import nightly
from tests.kit.sink_contract import COLUMNS, KEY_TYPES, TYPES, VALUES, row
from tests.kit.write_sets import at, delete, table_schema, upsert, write_set

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def put(path, version, *changes, columns=COLUMNS, key=("id",)):
    return deletion_vectors.merge(
        path, write_set(changes, columns), key=key, deletes="hard", app_id="q/t/s", version=version
    )


def by_rust(path):
    table = DeltaTable(path)
    schema = pa.schema(table.schema().to_arrow())
    return pa.table(table.scan()).select(schema.names).cast(schema)


def same(spark, path):
    """The rows, which both readers must agree on: number of rows from the log, and every cell."""
    rust = by_rust(path)
    frame = spark.read.format("delta").load(path)
    assert frame.count() == rust.num_rows
    by_spark = frame.toArrow().select(rust.schema.names)
    by_spark = pa.table(
        [
            column if column.type == f.type else column.cast(f.type)
            for column, f in zip(by_spark.columns, rust.schema, strict=True)
        ],
        schema=rust.schema,
    )
    one, other = (sorted(map(repr, t.to_pylist())) for t in (rust, by_spark))
    assert one == other
    return {each["id"]: each for each in rust.to_pylist()}


def test_spark_reads_writes_and_compacts_what_we_wrote(spark, tmp_path):
    path = str(tmp_path / "t")
    delta_rs.ensure(path, table_schema(COLUMNS), key=["id"])
    sql = f"delta.`{path}`"
    expected = {}
    for version in range(1, 7):
        numbers = range(version * 100, version * 100 + 500)
        put(path, version, *(upsert(row(str(n), b=version), at(version)) for n in numbers))
        expected.update({str(n): version for n in numbers})
    assert {k: r["b"] for k, r in same(spark, path).items()} == expected
    # Spark adds to our vectors, and we to Spark's.
    spark.sql(f"DELETE FROM {sql} WHERE id IN ('600', '601')")
    put(path, 7, delete(row("602"), at(7)), upsert(row("603", b=7), at(7)))
    for gone in ("600", "601", "602"):
        del expected[gone]
    expected["603"] = 7
    assert {k: r["b"] for k, r in same(spark, path).items()} == expected
    # From a checkpoint of Spark's, after its compaction and VACUUM.
    DeltaTable(path).create_checkpoint()
    spark.sql(f"OPTIMIZE {sql}")
    put(path, 8, upsert(row("604", b=8), at(8)))
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    spark.sql(f"VACUUM {sql} RETAIN 0 HOURS")
    expected["604"] = 8
    maintenance.forget()
    put(path, 9, delete(row("605"), at(9)))
    del expected["605"]
    assert {k: r["b"] for k, r in same(spark, path).items()} == expected
    maintenance.maintain(
        path,
        key=["id"],
        engine=DELETION_VECTORS,
        policy=Policy(spare_files=0, dirty_bytes=0, checkpoint_every=1),
    )
    put(path, 10, delete(row("606"), at(10)))
    del expected["606"]
    assert {k: r["b"] for k, r in same(spark, path).items()} == expected
    assert spark.sql(f"DESCRIBE HISTORY {sql}").count() == DeltaTable(path).version() + 1


@nightly
def test_our_upkeep_leaves_what_spark_wrote(spark, tmp_path):
    """Vectors of Spark's DELETE, and the end of time as its OPTIMIZE writes it."""
    path = str(tmp_path / "t")
    columns = {**COLUMNS, "t": pa.timestamp("us", "UTC")}
    last = datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)
    delta_rs.ensure(path, table_schema(columns), key=["id"])
    sql = f"delta.`{path}`"
    for version in (1, 2):
        rows = ({**row(f"{version}{n}", b=n), "t": last} for n in range(100))
        put(path, 2 * version, *(upsert(each, at(version)) for each in rows), columns=columns)
        put(path, 2 * version + 1, delete(row(f"{version}5"), at(version)), columns=columns)
    spark.sql(f"OPTIMIZE {sql}")
    spark.sql(f"DELETE FROM {sql} WHERE id = '17'")
    assert list(Path(path).glob("*.bin")), "Spark keeps its vectors elsewhere now"
    for file in Path(path).iterdir():
        os.utime(file, (0, 0))
    maintenance.forget()
    assert maintenance.vacuum(path, engine=DELETION_VECTORS) == 0
    put(path, 20, upsert(row("18", b=-8), at(20), patch=("t",)), columns=columns)
    # delta-rs itself reads Spark's files wrong after the year 2262; it reads what upkeep made of them.
    maintenance.maintain(
        path, key=["id"], engine=DELETION_VECTORS, policy=Policy(spare_files=0, dirty_bytes=0)
    )
    found = same(spark, path)
    assert (len(found), found["18"]["b"]) == (197, -8)
    assert {each["t"] for each in found.values()} == {last}


@nightly
def test_every_type_and_an_evolved_table(spark, tmp_path):
    path = str(tmp_path / "t")
    delta_rs.ensure(path, table_schema(TYPES), key=["id"])
    first = {name: values[0] for name, values in VALUES.items()}
    last = {name: values[-1] for name, values in VALUES.items()}
    few = {"columns": TYPES}
    put(path, 1, upsert({"id": 1, **first}, at(1)), upsert({"id": 2, **last}, at(1)), **few)
    put(path, 2, upsert({"id": 2}, at(2), patch=tuple(VALUES)), upsert({"id": 3}, at(2)), **few)
    same(spark, path)
    wide = {**TYPES, "i8": pa.int64(), "added": pa.decimal128(12, 2)}
    delta_rs.ensure(path, table_schema(wide), engine=DELETION_VECTORS)
    put(path, 3, upsert({"id": 1, "added": None}, at(3), patch=tuple(VALUES)), columns=wide)
    found = same(spark, path)
    assert found[1]["text"] == first["text"]
    assert sorted(found) == [1, 2, 3]
    assert KEY_TYPES


@nightly
def test_spark_merge_takes_a_table_over(spark, tmp_path):
    from lakemark.sink.delta import spark_merge, staging

    path = str(tmp_path / "t")
    delta_rs.ensure(path, table_schema(COLUMNS), key=["id"])
    put(path, 1, *(upsert(row(str(n), b=n), at(1)) for n in range(50)))
    put(path, 2, *(upsert(row(str(n), b=0), at(2)) for n in range(5)))
    wide = {**COLUMNS, "d": pa.string()}
    spark_merge.ensure(spark, path, table_schema(wide), key=["id"])
    with pytest.raises(TableError) as caught:
        put(path, 3, upsert(row("1"), at(3)))
    assert caught.value.code == "engine-mismatch"
    more = {"app_id": "q/t/s", "version": 3}
    rows = write_set([delete(row("1"), at(3)), upsert(row("7", b=-7), at(3))], COLUMNS)
    part = staging.stage(path, rows, key=["id"], **more)
    done = spark_merge.merge(spark, path, [part], deletes="hard", **more)
    assert (done.deleted, done.updated, done.rows) == (1, 1, 49)
    found = same(spark, path)
    assert (found["0"]["b"], found["7"]["b"], "1" in found) == (0, -7, False)
