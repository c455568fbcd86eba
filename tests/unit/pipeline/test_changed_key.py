"""A source table that gets another key: its rows were told apart by the old one."""

import shutil

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.model.handling_modes import HandlingModes
from lakemark.sink import names
from lakemark.state import tables
from tests.kit.shop import ITEMS, ORDERS, event


def test_a_table_that_gets_another_key_stops_until_its_folder_is_moved_away(shop):
    """PostgreSQL sends nothing of it; by the new key the rows that are there are not found."""
    shop.put("c", 10, 1, v="a")
    shop.run()
    columns = [
        CatalogColumn("id", "int8"),
        CatalogColumn("v", "text"),
        CatalogColumn("uid", "text", key_position=1),
    ]
    schema = from_catalog(ORDERS, columns, ["uid"], HandlingModes())
    shop.catalog.schemas[ORDERS] = shop.pipeline.schemas[ORDERS] = schema
    row = {"id": 1, "v": "b", "uid": "u1"}
    shop.broker.put(f"shop.{ORDERS}", 0, b'{"uid":"u1"}', event("u", 20, row))
    shop.put("c", 21, 7, v="x", table=ITEMS)
    shop.run()
    entry = shop.state.tables[ORDERS]
    assert (entry.state, entry.code) == (tables.ERRORED, "key-changed")
    assert "uid instead of id" in entry.reason
    assert shop.values() == {1: "a"}
    assert shop.values(ITEMS) == {7: "x"}

    shutil.rmtree(names.folder_of(shop.config.lake, ORDERS))
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.run()
    shop.run()
    assert shop.state.tables[ORDERS].state == tables.STREAMING
    assert {key: (row["uid"], row["v"]) for key, row in shop.rows().items()} == {1: ("u1", "b")}
