"""A log whose events have a file, a place and an order in their transaction: MariaDB's, MySQL's."""

import json

import pytest

from tests.kit.memory_pipeline import Broker, reconnected
from tests.kit.shop import ORDERS, SIGNALS, Shop, compact, event, schema_of

TABLE = ORDERS


class PlaceShop(Shop):
    """A shop whose connector is MariaDB's; every event has whole images."""

    def _start(self):
        pipeline = super()._start()
        pipeline.sources = reconnected(pipeline.sources, kind="mariadb")
        return pipeline

    def tell(self, op, at, order, key, *, was=None, partition=0, headers=(), ts=None, **row):
        value = json.loads(event(op, at, {"id": key, **row}, ts=ts))
        source = value["source"]
        for name in ("sequence", "lsn", "schema", "txId", "xmin"):
            source.pop(name, None)
        source |= {"connector": "mariadb", "db": "public", "file": "binlog.000007", "pos": at}
        value["transaction"] = None if order is None else {"id": f"0-1-{at}", "total_order": order}
        value["before"] = {"id": key, **was} if was else None
        raw = compact({"id": key})
        sent = [(f"__debezium.{name}", compact({"id": other})) for name, other in headers]
        self.broker.put(f"shop.{ORDERS}", partition, raw, compact(value), sent)

    def change_key(self, at, order, old, new, v, *, partitions=(0, 0), halves=(0, 1)):
        """The delete and the create of a key change, or one of them."""
        if 0 in halves:
            self.tell(
                "d", at, order, old, was={"v": v}, partition=partitions[0],
                headers=[("newkey", new)],
            )  # fmt: skip
        if 1 in halves:
            then = None if order is None else order + 1
            self.tell("c", at, then, new, v=v, partition=partitions[1], headers=[("oldkey", old)])


def reread(shop):
    """Keys of rows that are to be read again."""
    return {json.loads(key)[0] for key in shop.state.tables[TABLE].repair.reread_keys}


@pytest.fixture
def shop(tmp_path):
    schemas = {ORDERS: schema_of(ORDERS, id="int8", v="text")}
    return PlaceShop(tmp_path, Broker(), schemas, signal_table=SIGNALS)


@pytest.mark.parametrize("order", [1, None])
@pytest.mark.parametrize("partitions", [(0, 0), (0, 1)])
def test_a_changed_key_is_one_row_and_asks_the_database_nothing(shop, order, partitions):
    shop.tell("c", 4, 1, 1, v="a")
    shop.tell("c", 4, 2, 2, v="b", partition=1)
    shop.run()
    shop.change_key(400, order, 1, 5, "a", partitions=partitions)
    shop.run()
    for at in (900, 950):  # both partitions are past it, and the batch after that knows
        shop.tell("u", at, 1, 5, v="z", was={"v": "a"}, partition=partitions[1])
        shop.tell("u", at, 2, 2, v="y", was={"v": "b"}, partition=1 - partitions[1])
        shop.run()
    assert shop.values() == {2: "y", 5: "z"}
    if order:
        assert not reread(shop), "both halves have come, and each row was whole"
    else:
        assert reread(shop) == {1, 5}


@pytest.mark.parametrize("cut", range(7))
@pytest.mark.parametrize("order", [True, False])
def test_keys_that_go_round_in_one_transaction_of_one_place(shop, cut, order):
    """Six events of one place, in two partitions, in two batches: their order tells, or theirs."""
    for key in (1, 2, 3):
        shop.tell("c", 4, key, key, v=f"v{key}", partition=key % 2)
    shop.run()
    changes = [(1, 9, "v1"), (2, 1, "v2"), (9, 2, "v1")]
    for number in range(6):
        if number == cut:
            shop.run()
        old, new, v = changes[number // 2]
        at = number // 2 * 2 + 1 if order else None
        sides = (old % 2, new % 2)
        shop.change_key(400, at, old, new, v, partitions=sides, halves=(number % 2,))
    shop.run()
    if order:
        assert shop.values() == {1: "v2", 2: "v1", 3: "v3"}
        assert not reread(shop)
    else:
        assert reread(shop) == {1, 2, 9}, "one place tells too little: the database is asked"
        assert shop.values()[3] == "v3"


def test_an_event_that_comes_again_is_told_by_its_order(shop):
    """A connector that restarts sends a transaction of one place from its beginning."""
    shop.tell("c", 400, 1, 1, v="a")
    shop.tell("u", 400, 2, 1, v="b", was={"v": "a"})
    shop.tell("u", 400, 3, 1, v="c", was={"v": "b"})
    shop.run()
    shop.tell("c", 400, 1, 1, v="a")
    shop.tell("u", 400, 2, 1, v="b", was={"v": "a"})
    shop.run()
    assert shop.values() == {1: "c"}
    assert shop.state.tables[TABLE].size.replays == 2


@pytest.mark.parametrize("later_s", [0, 1])
def test_what_a_connector_counts_anew_in_a_transaction_is_neither_lost_nor_another_log(
    shop, later_s
):
    """It was started again in the midst of one, and counts what is left of it from 1."""
    for order, key in enumerate((1, 2, 3), 1):
        shop.tell("c", 400, order, key, v="a")
    shop.run()
    for order, key in enumerate((4, 1, 5, 6), 1):  # the fourth event to the seventh
        op, was = ("u", {"v": "a"}) if key == 1 else ("c", None)
        shop.tell(op, 400, order, key, ts=400 + 1000 * later_s, was=was, v="b")
    shop.run()
    entry = shop.state.tables[TABLE]
    assert (entry.state, entry.code) == ("streaming", "")
    assert reread(shop) == {4, 1}, "the database is asked for what may be older"
    assert shop.values() == {1: "a", 2: "a", 3: "a", 5: "b", 6: "b"}
    shop.tell("u", 900, 1, 6, was={"v": "b"}, v="c")
    shop.run()
    assert shop.values()[6] == "c"


def test_without_an_order_the_partition_s_own_counts(shop):
    shop.tell("c", 400, None, 1, v="a")
    shop.tell("u", 400, None, 1, v="b", was={"v": "a"})
    shop.run()
    shop.tell("d", 400, None, 1, was={"v": "b"})
    shop.tell("c", 400, None, 1, v="c")
    shop.run()
    assert shop.values() == {1: "c"}
