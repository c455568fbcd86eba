"""Every kind of position keeps the contract, and nobody else need know which kinds there are."""

import json

import pytest

from lakemark.model import positions
from tests.kit import toy_positions
from tests.kit.memory_pipeline import Broker, reconnected
from tests.kit.position_contract import PositionContract
from tests.kit.shop import ORDERS, SIGNALS, Shop, compact, event, schema_of


class TestPostgres(PositionContract):
    connector = "postgresql"
    blocks = [
        (1, {"sequence": '["800","808"]', "lsn": 808}),
        (1, {"sequence": '["800","840"]', "lsn": 840}),
        (2, {"sequence": '["880","816"]', "lsn": 816}),  # written while the first one was open
        (2, {"sequence": '["880","888"]', "lsn": 888}),
        (3, {"sequence": '["960","968"]', "lsn": 968}),
    ]


class TestMariaDb(PositionContract):
    """Events of one place are told apart by their order in the transaction alone."""

    connector = "mariadb"
    blocks = [
        (1, {"file": "binlog.000009", "pos": 4, "total_order": 1}),
        (2, {"file": "binlog.000009", "pos": 4, "total_order": 2}),
        (3, {"file": "binlog.000009", "pos": 5_000_000_000, "total_order": 1}),
        (4, {"file": "binlog.000010", "pos": 4, "total_order": 1}),
        (5, {"file": "binlog.999999", "pos": 700, "total_order": 10}),
        (6, {"file": "binlog.1000000", "pos": 4, "total_order": 1}),
    ]


class TestMySql(PositionContract):
    """Without metadata of transactions places are all there is."""

    connector = "mysql"
    blocks = [
        (1, {"file": "mysql-bin.000001", "pos": 157}),
        (2, {"file": "mysql-bin.000001", "pos": 430}),
        (3, {"file": "mysql-bin.000002", "pos": 157}),
    ]


class TestArrival(PositionContract):
    """Each record is for itself."""

    connector = positions.ARRIVAL
    blocks = [(at, {"offset": offset}) for at, offset in enumerate((0, 1, 7, 1 << 40))]

    def test_nothing_is_known_of_two_partitions(self):
        assert not any(map(positions.across_partitions, self.rows()))


class TestToy(PositionContract):
    connector = toy_positions.CONNECTOR
    blocks = [
        (1, {"block": 7, "row": 0}),
        (1, {"block": 7, "row": 1}),
        (2, {"block": 9, "row": 0}),
        (3, {"block": 1 << 40, "row": 300}),
    ]

    @pytest.fixture(autouse=True)
    def _known(self, monkeypatch):
        toy_positions.use(monkeypatch)


def test_positions_of_two_kinds_say_nothing_of_each_other(monkeypatch):
    toy_positions.use(monkeypatch)
    ours = positions.rules_of("postgresql").from_source(
        {"sequence": ['["8","8"]'], "lsn": [8]}, None, 0
    )[0]
    toys = toy_positions.pack(toy_positions.EPOCH, 1 << 81, 0)
    assert not positions.one_transaction(ours, toys)
    assert not positions.taken_before(toys, ours)
    assert positions.below_truncate(ours, toys) == (ours < toys)


def test_an_unknown_kind_is_no_position():
    assert not positions.is_one(bytes([99]) + bytes(19))
    assert not positions.is_one(b"")
    with pytest.raises(KeyError):
        positions.rules_of("db3000")


# -- the main way, of a database that nobody outside of its folder knows ---------------------------


class ToyShop(Shop):
    """A shop whose connector writes the toy's positions."""

    def _start(self):
        pipeline = super()._start()
        pipeline.sources = reconnected(pipeline.sources, kind=toy_positions.CONNECTOR)
        return pipeline

    def tell(self, op, block, row, key, *, partition=0, **values):
        value = json.loads(event(op, block, {"id": key, **values}))
        source = value["source"]
        del source["sequence"], source["lsn"]
        source |= {"connector": toy_positions.CONNECTOR, "block": block, "row": row}
        raw = None if op == "t" else compact({"id": key})
        self.broker.put(f"shop.{ORDERS}", partition, raw, compact(value))


@pytest.fixture
def toys(tmp_path, monkeypatch):
    toy_positions.use(monkeypatch)
    schemas = {ORDERS: schema_of(ORDERS, id="int8", v="text")}
    return ToyShop(tmp_path, Broker(), schemas, signal_table=SIGNALS)


@pytest.mark.usefixtures("letters")
def test_a_table_is_written_by_the_order_of_its_own_positions(toys):
    toys.tell("c", 5, 0, 1, v="a")
    toys.tell("c", 5, 1, 2, v="a")
    toys.run()
    toys.tell("u", 1 << 40, 0, 1, v="b")
    toys.tell("d", 1 << 40, 1, 2)
    toys.tell("c", 1 << 40, 2, 3, v="c")
    toys.run()
    assert toys.values() == {1: "b", 3: "c"}
    position = toys.rows()[1]["_cdc"]["position"]
    blocks = {"block": [1 << 40], "row": [0]}
    assert [position] == toy_positions.POSITIONS.from_source(blocks, None, toy_positions.EPOCH)
    toys.tell("c", 5, 0, 1, v="a")  # the connector begins again where it was before
    toys.tell("u", 1 << 40, 0, 1, v="b")
    toys.tell("u", (1 << 40) + 1, 0, 1, v="d")
    toys.run()
    assert toys.values() == {1: "d", 3: "c"}
    assert toys.state.tables[ORDERS].size.replays == 2
    toys.tell("t", (1 << 40) + 2, 0, 0)
    toys.tell("c", (1 << 40) + 3, 0, 4, v="e")
    toys.run()
    assert toys.values() == {4: "e"}


@pytest.mark.usefixtures("letters")
def test_shards_remember_its_positions_while_a_run_is_armed(toys):
    toys.records.append({"type": "run-start", "run": "r", "tables": [ORDERS], "windows": "w"})
    for block in range(5, 9):
        toys.tell("u", block, 0, block % 2, v=str(block))
        toys.run()
    assert toys.shards.touches() == 2
    assert toys.values() == {0: "8", 1: "7"}
