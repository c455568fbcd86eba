"""A table whose own storage is away holds up no other, in whatever state the others are."""

import pytest

from lakemark import tasks
from lakemark.sink.failures import classified
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
    real = tasks.apply.apply

    def apply(table, *given, **named):
        if table == ITEMS:
            raise classified(OSError("connection refused"), "s3://other/items")
        return real(table, *given, **named)

    monkeypatch.setattr(tasks.apply, "apply", apply)
    shop.records.append({"type": "table-resume", "table": ORDERS})
    shop.put("c", 21, 2, v="b", table=ITEMS)
    shop.run()
    shop.run()
    assert shop.values() == {1: "a", 2: "b"}
    assert shop.state.tables[ITEMS].code == "lake-unavailable"
    monkeypatch.undo()
    shop.run()
    shop.run()
    assert shop.values(ITEMS) == {1: "a", 2: "b"}
