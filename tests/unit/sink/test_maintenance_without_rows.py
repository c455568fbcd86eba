"""Upkeep after a batch that has no rows of the table, so that nothing in it tells the key."""

import os

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemark.sink.delta import maintenance, table_log
from lakemark.sink.delta.table_store import TableStore
from lakemark.sink.names import table_path
from lakemark.sink.table_sink import MergeResult
from tests.kit.memory_pipeline import Broker
from tests.kit.shop import ORDERS, Shop, schema_of

SMALL = maintenance.Policy(spare_files=2, budget=200_000, target=300_000, dirty_bytes=50_000)


def shop_with(tmp_path, engine):
    schemas = {ORDERS: schema_of(ORDERS, id="int8", v="text")}
    return Shop(tmp_path, Broker(), schemas, settings={"engine": engine})


def counted(path):
    """Rows by reading, rows by the log's statistics, and different keys."""
    ids = pa.table(DeltaTable(path).scan(columns=["id"]))["id"].to_pylist()
    known = table_log.load_whole(TableStore(path), DeltaTable(path).version())
    return len(ids), sum(file.records for file in known.files.values()), len(set(ids))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["task-merge", "deletion-vectors"])
def test_a_truncate_alone_makes_compaction_due(tmp_path, monkeypatch, engine):
    monkeypatch.setitem(maintenance.maintain.__kwdefaults__, "policy", SMALL)
    monkeypatch.setitem(maintenance.wants_upkeep.__globals__, "DEFAULT", SMALL)
    monkeypatch.setattr(maintenance.wants_upkeep, "__defaults__", (SMALL,))
    shop = shop_with(tmp_path, engine)
    path = table_path(shop.config.lake.path, ORDERS)
    for key in range(100, 104):
        shop.put("c", key, key, v=os.urandom(60_000).hex())
    shop.run()
    for key in range(12):
        shop.put("c", 10_000 + key, key, partition=1, v="small")
        shop.run()
    shop.put("t", 5_000, 0)
    shop.run()
    assert shop.state.tables[ORDERS].state == "streaming"
    rows, said, keys = counted(path)
    assert rows == keys == 12
    assert said >= 12  # rows that deletion vectors hide are counted too
    for key in (0, 1, 2):
        shop.put("u", 20_000 + key, key, partition=1, v="updated")
    shop.run()
    rows, _, keys = counted(path)
    assert rows == keys == 12
    assert [shop.values()[key] for key in range(4)] == ["updated"] * 3 + ["small"]


def test_what_upkeep_meets_stops_no_table(tmp_path, monkeypatch, logs):
    def maintain(*_, **__):
        raise IndexError("list index out of range")

    monkeypatch.setattr(maintenance, "maintain", maintain)
    shop = shop_with(tmp_path, "deletion-vectors")
    shop.put("c", 10, 1, v="a")
    shop.run()
    assert "table.upkeep_failed" in [entry["event"] for entry in logs]
    assert shop.state.tables[ORDERS].state == "streaming"
    assert shop.values() == {1: "a"}


def test_a_table_whose_folder_was_moved_away_is_looked_after_again():
    def merged(version):
        return MergeResult(rows=version, files=1, bytes=1 << 20, at=version)

    maintenance.wants_upkeep("/lake/t", merged(4999))
    maintenance._looked["/lake/t"] = 5000
    assert maintenance.wants_upkeep("/lake/t", merged(50))
