"""Source columns whose names lakemark needs itself: their table stops, and loses nothing."""

import pytest

from lakemark.ops.plan import facts_lake
from lakemark.sink import schema_changes
from lakemark.sink.names import CDC, OWN
from lakemark.state.tables import TableState
from tests.kit.memory_pipeline import Broker
from tests.kit.shop import ITEMS, ORDERS, Shop, schema_of
from tests.unit.ops.test_planned import CONNECTOR


@pytest.mark.parametrize("name", sorted(OWN))
@pytest.mark.parametrize("there", [False, True], ids=["new table", "an older lakemark made it"])
@pytest.mark.sampled(4)
def test_the_table_stops_alone(tmp_path, monkeypatch, name, there):
    schemas = {ORDERS: schema_of(ORDERS, id="int8", **{name: "text"}), ITEMS: schema_of(ITEMS, id="int8", v="text")}  # fmt: skip
    shop = Shop(tmp_path, Broker(), schemas)
    if there and name != CDC:
        with monkeypatch.context() as before:
            before.setattr(schema_changes, "OWN", frozenset({CDC}))
            before.setattr("lakemark.sink.apply.OWN", frozenset({CDC}))
            shop.put("c", 10, 1, **{name: "x"})
            shop.run()
        assert shop.state.tables[ORDERS].state == "streaming"
    shop.put("c", 20, 2, **{name: "y"})
    shop.put("c", 21, 1, v="b", table=ITEMS)
    shop.run()
    stopped = shop.state.tables[ORDERS]
    assert (stopped.code, stopped.retried) == ("column-name-taken", False)
    assert name in stopped.reason
    planned = facts_lake.target(shop.config, CONNECTOR, ORDERS, schemas[ORDERS], TableState())
    assert (planned.action, planned.code) == ("stop", stopped.code)
    assert shop.values(ITEMS) == {1: "b"}
