"""A table that cannot be written holds up no other, in whatever state the others are."""

from time import monotonic

import pytest

from lakemark import tasks
from lakemark.errors import DependencyError
from lakemark.refresh import RETRY_S
from lakemark.sink.failures import classified
from lakemark.source.catalog import CatalogColumn
from lakemark.source.modes import HandlingModes
from lakemark.source.schema import from_catalog
from tests.kit.memory_pipeline import Broker
from tests.kit.shop import ITEMS, ORDERS, Shop, schema_of

OTHER = "public.other"


@pytest.mark.parametrize("others", [[OTHER], []], ids=["a third streams", "nothing else streams"])
def test_a_table_that_catches_up_beside_one_whose_storage_is_away(tmp_path, others, monkeypatch):
    schemas = {table: schema_of(table, id="int8", v="text") for table in (ORDERS, ITEMS, OTHER)}
    shop = Shop(tmp_path, Broker(), schemas)
    for number, table in enumerate([ORDERS, ITEMS, *others]):
        shop.put("c", 10 + number, 1, v="a", table=table)
    shop.run()
    shop.records.append({"type": "table-pause", "table": ORDERS})
    shop.run()
    shop.put("c", 20, 2, v="b")
    shop.run()
    away(monkeypatch, ITEMS)
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.put("c", 21, 2, v="b", table=ITEMS)
    shop.run()
    shop.run()
    assert shop.values() == {1: "a", 2: "b"}
    assert shop.state.tables[ITEMS].code == "lake-unavailable"
    monkeypatch.undo()
    shop.pipeline.refresh.clock = lambda: monotonic() + RETRY_S
    shop.run()
    shop.run()
    assert shop.values(ITEMS) == {1: "a", 2: "b"}


def test_a_table_that_fails_again_is_not_tried_with_every_batch(shop, monkeypatch):
    """Each try reads a slice of its topics again, and the others wait for that."""
    for table in (ORDERS, ITEMS):
        shop.put("c", 10, 1, v="a", table=table)
    shop.run()
    tried = []
    away(monkeypatch, ITEMS, tried=tried)
    shop.put("c", 20, 2, v="b", table=ITEMS)
    shop.run()
    tries = {0.0: True, 1.0: False, RETRY_S / 2: False, RETRY_S + 2: True, RETRY_S + 3: False}
    for later_s, expected in tries.items():
        shop.pipeline.refresh.clock = lambda later_s=later_s: monotonic() + later_s
        tried.clear()
        shop.run()
        assert bool(tried) == expected, later_s
        assert shop.state.tables[ITEMS].code == "lake-unavailable"
    monkeypatch.undo()
    shop.records.append({"type": "table-resume", "table": ITEMS})  # a person's word does not wait
    shop.run()
    assert shop.values(ITEMS) == {1: "a", 2: "b"}


def test_the_whole_lake_is_away_and_every_table_but_one_was_to_catch_up(tmp_path, monkeypatch):
    """That they are about to catch up does not say that they can."""
    schemas = {table: schema_of(table, id="int8", v="text") for table in (ORDERS, ITEMS)}
    shop = Shop(tmp_path, Broker(), schemas)
    shop.put("c", 10, 1, v="a")
    shop.put("c", 11, 1, v="a", table=ITEMS)
    shop.run()
    away(monkeypatch, ORDERS, ITEMS)
    shop.put("c", 20, 2, v="b")
    shop.run()
    assert shop.state.tables[ORDERS].state == "errored", "one table alone: the other streams"
    shop.put("c", 21, 3, v="c", table=ITEMS)
    for again in (shop.run, shop.again):
        with pytest.raises(DependencyError) as caught:
            again()
        assert caught.value.code == "lake-unavailable"
    monkeypatch.undo()
    shop.again()
    assert shop.values() == {1: "a", 2: "b"}
    assert shop.values(ITEMS) == {1: "a", 3: "c"}


def test_a_table_whose_key_is_a_list_stops_alone(shop):
    table = "public.lists"
    columns = [CatalogColumn("id", "_int4", element_type_name="int4", key_position=1)]
    shop.catalog.schemas[table] = from_catalog(table, columns, ["id"], HandlingModes())
    shop.put("c", 10, [1, 2], table=table)
    shop.put("c", 10, 7, v="x", table=ITEMS)
    shop.run()
    stopped = shop.state.tables[table]
    assert (stopped.code, stopped.retried) == ("no-key", False)
    assert "lists" in stopped.reason
    assert "message.key.columns" in stopped.hint
    assert shop.values(ITEMS) == {7: "x"}


def test_a_paused_table_can_be_resumed_though_the_only_other_one_cannot_be_written(
    tmp_path, monkeypatch
):
    schemas = {table: schema_of(table, id="int8", v="text") for table in (ORDERS, ITEMS)}
    shop = Shop(tmp_path, Broker(), schemas)
    shop.put("c", 10, 1, v="a")
    shop.put("c", 11, 1, v="a", table=ITEMS)
    shop.run()
    away(monkeypatch, ITEMS)
    shop.put("c", 20, 2, v="b", table=ITEMS)
    shop.records.append({"type": "table-pause", "table": ORDERS})
    shop.run()
    shop.put("c", 30, 2, v="b")
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.run()
    shop.run()
    assert shop.values() == {1: "a", 2: "b"}
    assert shop.state.tables[ITEMS].code == "lake-unavailable"


def away(monkeypatch: pytest.MonkeyPatch, *names: str, tried: list[str] | None = None) -> None:
    """The storage of some tables cannot be reached any more; `tried` tells who did."""
    real = tasks.apply.apply

    def apply(table, *given, **named):
        if table in names:
            (tried if tried is not None else []).append(table)
            raise classified(OSError("connection refused"), "s3://other/items")
        return real(table, *given, **named)

    monkeypatch.setattr(tasks.apply, "apply", apply)
