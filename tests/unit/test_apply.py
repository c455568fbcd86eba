"""One table, one batch: the order of effects, with the real engine."""

import pyarrow as pa

from lakemark.sink import delta, maintain, pending
from lakemark.sink.names import table_path
from tests.kit.shop import ORDERS


def test_upkeep_joins_small_files_and_leaves_what_waits_beside_the_table(shop, monkeypatch):
    monkeypatch.setattr(maintain, "_SPARE_FILES", 3)
    path = table_path(shop.config.lake.path, ORDERS)
    shop.put("c", 1, 1, v="a")
    shop.run()
    pending.save(pa.table({"x": [1]}), path, query="query-0000", batch=99, options={})
    for lsn in range(2, 12):
        shop.put("c", lsn, lsn, v="a")
        shop.run()
    table = delta.open_table(path)
    assert table is not None
    assert len(table.file_uris()) <= 5
    assert len(shop.values()) == 11
    assert pending.load(path, query="query-0000", batch=99, options={}) is not None
