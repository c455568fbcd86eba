"""Rows that were in a Delta table before lakemark: they have no position, and are below everything."""

import shutil

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakemark.sink.delta import chunk_files
from lakemark.sink.names import table_path
from lakemark.sink.row_images import cdc_type
from lakemark.state import tables
from tests.kit.memory_pipeline import Broker, DiedError
from tests.kit.shop import ORDERS, Shop, schema_of

ENGINES = pytest.mark.parametrize("engine", ["task-merge", "deletion-vectors"])


def shop_over(tmp_path, engine, *, op="u", snapshot="false", **settings):
    schemas = {ORDERS: schema_of(ORDERS, id="int8", v="text")}
    shop = Shop(tmp_path, Broker(), schemas, settings={"engine": engine, **settings})
    path = table_path(shop.config.lake.path, ORDERS)
    write_deltalake(path, pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": ["a", "b", "c"]}))
    shop.put(op, 10, 3, v="c2", snapshot=snapshot)
    shop.run()
    assert shop.values() == {1: "a", 2: "b", 3: "c2"}
    return shop


@ENGINES
def test_their_key_is_changed(tmp_path, engine):
    shop = shop_over(tmp_path, engine)
    shop.records.append(
        {"type": "table-read", "table": ORDERS, "until": 0}
    )  # they are not in doubt
    shop.put("d", 20, 1, headers=[("__debezium.newkey", b'{"id": 10}')])
    old = [("__debezium.oldkey", b'{"id": 1}')]
    shop.put("c", 20, 10, v="__debezium_unavailable_value", headers=old)
    shop.run()
    assert shop.values() == {2: "b", 3: "c2", 10: "a"}


@ENGINES
@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_a_truncate_takes_them_too(tmp_path, engine, deletes):
    shop = shop_over(tmp_path, engine, deletes=deletes)
    shop.put("t", 50, 0)
    shop.run()
    rows = shop.rows().values()
    if deletes == "hard":
        assert not rows
    else:
        assert [row["_cdc"]["deleted"] for row in rows] == [True] * 3


@ENGINES
def test_a_checkpoint_that_is_new_says_so_once_and_any_run_answers_it(tmp_path, engine):
    """An empty folder in the place of the checkpoint, and what Kafka has no more, are no news."""
    shop = shop_over(tmp_path, engine)
    marked = shop.state.tables[ORDERS]
    assert (marked.state, marked.repair.resnapshot_since) == (tables.STREAMING, 0)
    assert "the checkpoint is new" in marked.repair.resnapshot
    shop.put("u", 20, 3, v="c3")
    shop.records.append({"type": "table-read", "table": ORDERS, "until": 0})
    shop.run()
    shop.put("u", 30, 3, v="c4")
    shop.run()
    assert shop.values()[3] == "c4"
    assert shop.state.tables[ORDERS].repair.resnapshot == ""
    assert shop.state.tables[ORDERS].repair.stale() == frozenset()


def test_a_first_batch_that_is_repeated_finds_no_rows_but_its_own(shop):
    shop.put("c", 10, 1, v="a")
    shop.checkpoint.dies_before_saving = True
    with pytest.raises(DiedError):
        shop.run()
    shop.put("c", 11, 2, v="b")
    shop.checkpoint.planned[shop.batch].update(shop.broker.ends())
    shop.restart()
    shop.again()
    assert shop.values() == {1: "a", 2: "b"}
    assert shop.state.tables[ORDERS].repair.resnapshot == ""


def test_a_snapshot_of_the_connectors_own_speaks_for_itself(tmp_path):
    shop = shop_over(tmp_path, "task-merge", op="r", snapshot="true")
    assert shop.state.tables[ORDERS].repair.resnapshot.startswith("the connector took a snapshot")


@ENGINES
def test_a_folder_that_is_gone_is_said_while_the_table_goes_on(tmp_path, engine):
    shop = shop_over(tmp_path, engine)
    shop.records.append({"type": "table-read", "table": ORDERS, "until": 0})
    shop.put("u", 20, 3, v="c3")
    shop.run()
    assert shop.state.tables[ORDERS].repair.resnapshot == ""
    shutil.rmtree(table_path(shop.config.lake.path, ORDERS))
    shop.put("u", 30, 3, v="c4")
    shop.run()
    now = shop.state.tables[ORDERS]
    assert (now.state, now.repair.resnapshot_since) == (tables.STREAMING, shop.batch)
    assert "gone" in now.repair.resnapshot
    shop.put("u", 40, 2, v="b2")
    shop.run()
    assert shop.state.tables[ORDERS].repair.resnapshot_since == shop.batch - 1, "it is said once"
    assert shop.values() == {2: "b2", 3: "c4"}


def test_chunk_files_go_into_no_table_with_a_column_that_must_not_be_null(tmp_path):
    columns = pa.schema([("id", pa.int64()), ("v", pa.string())])
    file = chunk_files.ChunkFile("f", 1, 1, "00", columns, "{}", "r")
    cdc = pa.field("_cdc", cdc_type(deletes="hard"))
    for nullable in (True, False):
        path = str(tmp_path / str(nullable))
        DeltaTable.create(path, pa.schema([columns[0], pa.field("v", pa.string(), nullable), cdc]))
        table = pa.schema(DeltaTable(path).schema().to_arrow())
        assert chunk_files.fits(file, table, deletes="hard") is nullable


def test_a_zero_keeps_its_sign_where_it_is_no_key():
    rows = pa.table({"id": pa.array([-0.0]), "x": pa.array([-0.0])})
    out = chunk_files._laid_out(rows, cdc_type(deletes="hard"), b"\0" * 20, 0, ["id"])
    assert [str(out.column(name)[0].as_py()) for name in ("id", "x")] == ["0.0", "-0.0"]


def test_chunk_files_go_into_a_table_whose_rows_name_their_schemas(tmp_path):
    """No record has brought such rows: the files have no member for it, and readers find null."""
    shop = Shop(tmp_path, Broker(), {ORDERS: schema_of(ORDERS, id="int8")})
    write = chunk_files.ChunkFileWriter(shop.config.lake)
    rows = pa.table({"id": [1, 2]})
    file = write(ORDERS, rows, key=["id"], position=b"\0" * 20, source_ts=0)
    for deletes, other in (("hard", "soft"), ("soft", "hard")):
        cdc = pa.field("_cdc", cdc_type(deletes=deletes, metadata=["schema_id"]))
        table = pa.schema([*rows.schema, cdc])
        assert chunk_files.fits(file, table, deletes=deletes)
        assert not chunk_files.fits(file, table, deletes=other)
