"""Another table format behind the seam: nothing but `sink/delta` knows that tables are Delta's."""

import pyarrow as pa
import pytest

from lakemark.model.fills import packed
from lakemark.settings.config import LakeConfig
from lakemark.sink import formats
from lakemark.sink.names import table_path
from lakemark.sink.output import transaction
from lakemark.state.table_parts import BY_SNAPSHOT
from tests.kit.memory_pipeline import Broker, DiedError
from tests.kit.memory_topics import MemoryTopics
from tests.kit.parquet_sink import PARQUET, ParquetFormat, _by_source, newest
from tests.kit.shop import ORDERS, Shop, schema_of
from tests.kit.sink_contract import FormatContract
from tests.kit.whole_pipeline import Change, World
from tests.kit.write_sets import at
from tests.unit.pipeline.test_outputs import CLEAN, PLACEHOLDER, consume


class TestParquet(FormatContract):
    made_by, name = ParquetFormat(), PARQUET

    def read(self, path):
        return newest(path).rows()


class Parquet:
    """A shop whose tables are Parquet."""

    def rows(self, table=ORDERS):
        found = newest(table_path(self.config.lake.path, table))
        return {row.pop("id"): row for row in _by_source(found.rows()).to_pylist()}


class ParquetShop(Parquet, Shop): ...


class ParquetWorld(World):
    """Stream and snapshots, over tables that are Parquet."""

    shop = ParquetShop


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    """The format is there by its name, and the lake is said to have it."""
    monkeypatch.setitem(formats.FORMATS, PARQUET, ParquetFormat)
    monkeypatch.setattr(LakeConfig, "format", PARQUET)


@pytest.fixture(autouse=True)
def _without_delta(monkeypatch):
    """Whoever asks for Delta by its name fails."""
    monkeypatch.delitem(formats.FORMATS, "delta")


@pytest.fixture
def shop(tmp_path):
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
    assert shop.state.tables[ORDERS].size.rows == 1


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


def test_a_snapshot_brings_rows_without_files(tmp_path):
    """Rows that nobody told of, and one whose column no event has."""
    world = ParquetWorld(tmp_path, {ORDERS: {key: f"o{key}" for key in range(4)}})
    world.commit(Change("u", ORDERS, 2, "long", told={"v": PLACEHOLDER}))
    world.execute("r1", ORDERS)
    world.go(until=lambda: len(world.reads) >= 2)
    world.commit(Change("u", ORDERS, 3, "later"), Change("d", ORDERS, 0))
    world.go(until=lambda: world.ended("r1"))
    world.go(2.0)
    assert not world.wrong
    assert world.run_state("r1") == "completed"
    assert world.lake.values() == {1: "o1", 2: "long", 3: "later"}
    assert not world.lacking(ORDERS)
    assert world.table(ORDERS).files.engine == PARQUET


def test_output_topics_hear_of_values_and_of_rows_that_only_the_table_knows(tmp_path, monkeypatch):
    out = MemoryTopics()
    monkeypatch.setattr(transaction, "write", out.write)
    schemas = {ORDERS: schema_of(ORDERS, id="int4", v="int4", big="text")}
    sections = {"output": {"topic_prefix": "clean"}}
    shop = ParquetShop(tmp_path, Broker(), schemas, sections=sections)
    for key in range(3):
        shop.put("c", 10 + key, key, v=1, big=f"text {key}")
    shop.run()
    shop.put("u", 20, 1, v=2, big=PLACEHOLDER)
    shop.run()
    assert consume(out) == {0: (1, "text 0"), 1: (2, "text 1"), 2: (1, "text 2")}
    shop.put("t", 30, 0)
    shop.put("c", 31, 9, v=9, big="new")
    shop.run()
    assert consume(out) == {9: (9, "new")}
    assert {key for key, _, value in out.events(CLEAN) if value and value["op"] == "d"} == {0, 1, 2}
    assert shop.values(column="big") == {9: "new"}


def test_older_rows_are_read_again_where_the_format_gives_them_nothing(shop):
    shop.put("c", 10, 1, v="a")
    shop.run()
    state = shop.state
    state.tables[ORDERS].repair.complete = BY_SNAPSHOT
    shop.checkpoint.save(state)
    fill = {
        "column": "w",
        "upto": at(9).hex(),
        "known": ["id", "v"],
        "value": packed(pa.array([11], pa.int64())),
    }
    shop.records.append({"type": "table-fill", "table": ORDERS, "fills": [fill]})
    shop.run()
    entry = shop.state.tables[ORDERS]
    assert (entry.files.engine, entry.repair.fills) == (PARQUET, [])
    assert entry.repair.resnapshot == "older rows lack columns: w"
