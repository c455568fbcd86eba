"""Another table format behind the seam: nothing but `sink/delta` knows that tables are Delta's."""

import pytest

from lakemark.sink import apply
from lakemark.sink.names import table_path
from tests.kit.memory_pipeline import Broker, DiedError
from tests.kit.parquet_sink import ParquetSink, _by_source, newest
from tests.kit.shop import ORDERS, Shop, schema_of
from tests.kit.sink_contract import SinkContract, SinkEngine


class TestParquet(SinkContract):
    @pytest.fixture
    def engine(self):
        return SinkEngine(ParquetSink, lambda path: newest(path).rows())


class ParquetShop(Shop):
    """A shop whose tables are Parquet."""

    def rows(self, table=ORDERS):
        found = newest(table_path(self.config.lake.path, table))
        return {row.pop("id"): row for row in _by_source(found.rows()).to_pylist()}


@pytest.fixture
def shop(tmp_path, monkeypatch):
    def sink_of(path, engine, options, *, query):
        return ParquetSink(path, query)

    monkeypatch.setattr(apply, "sink_of", sink_of)
    return ParquetShop(tmp_path, Broker(), {ORDERS: schema_of(ORDERS, id="int8", v="text")})


def test_whole_batches_go_into_another_format(shop):
    for key in range(5):
        shop.put("c", 10 + key, key, v="a")
    shop.run()
    shop.put("u", 20, 1, v="b")
    shop.put("d", 21, 2)
    shop.run()
    assert shop.values() == {0: "a", 1: "b", 3: "a", 4: "a"}
    shop.again()  # the same batch changes nothing
    before = newest(table_path(shop.config.lake.path, ORDERS)).number
    shop.again()
    assert newest(table_path(shop.config.lake.path, ORDERS)).number == before
    shop.put("t", 30, 0)
    shop.put("c", 31, 9, v="z")
    shop.run()
    assert shop.values() == {9: "z"}
    assert shop.state.tables[ORDERS].rows == 1


def test_a_new_column_and_a_key_that_changes(shop):
    shop.put("c", 10, 1, v="a")
    shop.run()
    shop.schemas[ORDERS] = schema_of(ORDERS, id="int8", v="text", w="int4")
    shop.put("u", 20, 1, v="b", w=7)
    shop.run()
    shop.run()
    assert shop.rows()[1]["w"] == 7
    shop.put("d", 30, 1, headers=[("__debezium.newkey", b'{"id":2}')])
    shop.put("c", 30, 2, v="b", w=7, headers=[("__debezium.oldkey", b'{"id":1}')])
    shop.run()
    assert shop.values() == {2: "b"}


def test_a_crash_between_commit_and_state_repeats_nothing(shop):
    shop.put("c", 10, 1, v="a")
    shop.checkpoint.dies_before_saving = True
    with pytest.raises(DiedError):
        shop.run()
    before = newest(table_path(shop.config.lake.path, ORDERS)).number
    shop.restart()
    shop.again()
    assert shop.values() == {1: "a"}
    assert newest(table_path(shop.config.lake.path, ORDERS)).number == before
