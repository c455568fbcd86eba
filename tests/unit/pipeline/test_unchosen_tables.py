"""Tables that share a topic with chosen ones: nothing comes of them, nor of what is wrong with them."""

import json

from lakemark.connectors.table_choice import TableChoice
from tests.kit.shop import ITEMS, ORDERS, event

ALL = "shop.all"


def test_they_get_no_state(shop):
    chosen = TableChoice({}, [ORDERS])
    shop.reconnect(tables=chosen, chosen=chosen)

    def put(op, at, key, table, ts=None, **row):
        raw = event(op, at, {"id": key, **row}, table=table, ts=ts)
        shop.broker.put(ALL, 0, json.dumps({"id": key}).encode(), raw)

    put("c", 10, 1, ORDERS, v="a")
    put("c", 11, 1, ITEMS, v="a")
    shop.run()
    put("c", 10, 1, ORDERS, v="a")  # the connector sends again
    put("c", 11, 1, ITEMS, v="a")
    put("c", 12, 2, ORDERS, v="b")
    shop.run()
    put("c", 5, 2, ITEMS, v="b", ts=9000)  # the source was restored
    shop.run()
    assert list(shop.state.tables) == [ORDERS]
    assert shop.state.tables[ORDERS].size.replays == 1
    assert shop.state.tables[ORDERS].state == "streaming"
    put("c", 6, 3, ITEMS, v="b", ts=9001)
    put("c", 7, 3, ORDERS, v="c", ts=9002)
    shop.run()
    assert shop.state.tables[ORDERS].code == "position-regressed"
    assert shop.state.regressed == {ALL: {0: 5}}
    shop.records.append({"type": "new-epoch"})
    shop.run()
    shop.run()
    assert shop.values() == {1: "a", 2: "b", 3: "c"}
