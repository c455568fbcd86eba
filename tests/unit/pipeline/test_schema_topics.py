"""Whole batches around statements that change a table: rows before by the old columns, after by the new."""

import json
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from lakemark.connectors.connector import parse
from lakemark.connectors.mysql import positions as binlog
from lakemark.errors import DependencyError
from lakemark.model import positions
from lakemark.model.definitions import TableChange, alike
from lakemark.model.offsets import EARLIEST
from lakemark.sources.schema_topics import EXPIRED, LATE, SchemaTopics
from lakemark.sources.source_set import PipelineSource, Sources
from tests.kit import told_tables
from tests.kit.memory_pipeline import Broker, DiedError
from tests.kit.shop import Shop
from tests.kit.told_tables import MODES, SCHEMA_TOPIC, TABLE, TOPIC, catalog_of, value_of

MILLIS, MICROS = {"v": "millis"}, {"v": "micros"}
EPOCH = positions.epoch_number("mysql", 0)


@dataclass
class Definitions:
    """What the checkpoint keeps of definitions."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    writes: int = 0

    def definitions(self, connector=""):
        return self.blobs.get(connector)

    def note_definitions(self, found, connector=""):
        self.blobs[connector] = found
        self.writes += 1


class MySqlShop(Shop):
    """Orders of a MySQL server, in plain JSON."""

    def __init__(self, *args, **more):
        self.kept, self.looks = Definitions(), {}
        self.reads = []
        super().__init__(*args, **more)

    def _start(self):
        pipeline = super()._start()
        connector = parse(
            {
                "connector.class": "io.debezium.connector.mysql.MySqlConnector",
                "topic.prefix": "shop",
                "skipped.operations": "none",
                "key.converter": "org.apache.kafka.connect.json.JsonConverter",
                "value.converter": "org.apache.kafka.connect.json.JsonConverter",
                "key.converter.schemas.enable": "false",
                "value.converter.schemas.enable": "false",
            },
            config=self.config,
        )
        source = PipelineSource(self.config, connector, self.catalog, MODES)
        pipeline.sources = Sources((source,))
        pipeline.schemas = pipeline.refresh.schemas = dict(self.catalog.schemas)
        pipeline.definitions = SchemaTopics(
            pipeline.sources.schema_topics(),
            self.kept,
            self._ranges,
            pipeline.end_offsets,
            lambda: self.looks,
        )
        return pipeline

    def _ranges(self, ranges):
        self.reads += ranges
        return [batch for one in ranges for batch in self._range(one)]

    def row(self, pos, key, columns, number, *, partition=0, op="c"):
        values = {name: value_of(kind, number) for name, kind in columns.items()}
        value = told_tables.event(pos, key, columns, values, op)
        self.broker.put(TOPIC, partition, told_tables.key_of(key), value)

    def alter(self, pos, columns, **more):
        self.broker.put(SCHEMA_TOPIC, 0, b"{}", told_tables.statement(pos, columns, **more))

    def catalog_has(self, columns):
        self.catalog.schemas = {TABLE: catalog_of(columns)}

    @property
    def doubt(self):
        return self.state.tables[TABLE].repair.resnapshot


@pytest.fixture
def shop(tmp_path):
    shop = MySqlShop(tmp_path, Broker(), {TABLE: catalog_of(MILLIS)})
    shop.broker.topics[SCHEMA_TOPIC] = [[]]
    return shop


def rows(**numbers):
    """Values by key: one in milliseconds, or one in microseconds."""
    return {
        int(key[1:]): value_of("millis" if key[0] == "m" else "micros", number)
        for key, number in numbers.items()
    }


def test_a_batch_that_holds_both_sides_of_a_statement_reads_each_by_its_own_columns(shop):
    shop.row(100, 1, MILLIS, 11)
    shop.run()
    shop.row(200, 2, MILLIS, 12)
    shop.alter(300, MICROS)
    shop.row(400, 3, MICROS, 13)
    shop.run()
    assert shop.values(TABLE) == rows(m1=11, m2=12, u3=13)
    assert shop.doubt == ""
    assert shop.state.tables[TABLE].state == "streaming"


def test_rows_that_come_after_the_catalog_has_changed_are_read_by_the_columns_of_before(shop):
    shop.row(100, 1, MILLIS, 11)
    shop.run()
    shop.catalog_has(MICROS)
    shop.restart()  # as the catalog's watch has it, while the connector lags
    shop.row(200, 2, MILLIS, 12)
    shop.run()
    assert shop.values(TABLE) == rows(m1=11, m2=12)
    shop.row(300, 3, MILLIS, 13)
    shop.alter(400, MICROS)
    shop.row(500, 4, MICROS, 14)
    shop.run()
    assert shop.values(TABLE) == rows(m1=11, m2=12, m3=13, u4=14)
    assert shop.doubt == ""
    assert shop.pipeline.definitions.of_batch(shop.pipeline.schemas) == {}, "nothing is left of it"


def test_statements_are_known_though_their_records_are_of_a_later_batch(shop):
    shop.row(100, 1, MILLIS, 11)
    shop.alter(200, MICROS)
    shop.row(300, 2, MICROS, 12)
    shop.alter(400, MILLIS)
    shop.row(500, 3, MILLIS, 13)
    shop.run({TOPIC: {0: 3}, SCHEMA_TOPIC: {0: 1}})
    assert shop.values(TABLE) == rows(m1=11, u2=12, m3=13)
    shop.run()
    assert shop.doubt == ""
    assert [(one.start, one.end) for one in shop.reads] == [(-2, 2)], "the topic was read once"


def test_a_record_that_comes_late_has_the_table_read_again(shop):
    shop.row(100, 1, MILLIS, 11)
    shop.row(300, 2, MICROS, 12)
    shop.run()
    assert shop.values(TABLE)[2] != value_of("micros", 12), "nobody could know"
    shop.alter(200, MICROS)
    shop.row(400, 3, MICROS, 13)
    shop.run()
    assert shop.doubt == LATE
    assert shop.values(TABLE)[3] == value_of("micros", 13)


def test_a_repeated_batch_comes_to_the_same(shop):
    shop.row(100, 1, MILLIS, 11)
    shop.row(300, 2, MICROS, 12)
    shop.run()
    shop.alter(200, MICROS)
    shop.row(400, 3, MICROS, 13)
    shop.checkpoint.dies_before_saving = True
    with pytest.raises(DiedError):
        shop.run()
    shop.again()
    assert shop.doubt == LATE
    assert shop.values(TABLE)[3] == value_of("micros", 13)


def test_a_crash_between_state_and_definitions_has_nothing_read_again(shop):
    shop.row(100, 1, MILLIS, 11)
    shop.run()
    before = dict(shop.kept.blobs)
    shop.alter(200, MICROS)
    shop.row(300, 2, MICROS, 12)
    shop.run()
    shop.kept.blobs = before
    shop.restart()
    shop.row(400, 3, MICROS, 13)
    shop.run()
    assert shop.values(TABLE) == rows(m1=11, u2=12, u3=13)
    assert shop.doubt == ""


def test_where_no_record_comes_a_look_at_the_catalog_says_from_where_on_it_counts(shop):
    shop.row(100, 1, MILLIS, 11)
    shop.run()
    shop.catalog_has(MICROS)
    shop.restart()
    shop.run()
    shop.looks[""] = (float("inf"), binlog.pack(EPOCH, 1, 300))
    shop.row(200, 2, MILLIS, 12)
    shop.row(300, 3, MICROS, 13)
    shop.run()
    assert shop.values(TABLE) == rows(m1=11, m2=12, u3=13)


def test_a_column_that_is_dropped_and_one_of_its_name_are_two(shop):
    shop.row(100, 1, {"v": "millis", "w": "text"}, 11)
    shop.alter(150, {"v": "millis"})
    shop.row(200, 2, {"v": "millis"}, 12)
    shop.alter(250, {"v": "micros", "x": "days"})
    shop.row(300, 3, {"v": "micros", "x": "days"}, 13)
    shop.catalog_has({"v": "micros", "x": "days"})
    shop.pipeline.schemas.update({TABLE: catalog_of({"v": "millis", "w": "text"})})
    shop.run()
    assert shop.values(TABLE) == rows(m1=11, m2=12, u3=13)
    assert shop.values(TABLE, "w") == {1: "v11", 2: None, 3: None}
    assert shop.values(TABLE, "x")[3] == value_of("days", 13)


def test_deletes_and_updates_have_the_columns_of_their_time_as_well(shop):
    shop.row(100, 1, MILLIS, 11)
    shop.row(110, 2, MILLIS, 12)
    shop.alter(200, MICROS)
    shop.row(300, 1, MICROS, 21, op="u")
    shop.row(310, 2, MICROS, 12, op="d")
    shop.run()
    assert shop.values(TABLE) == rows(u1=21)


def test_a_table_that_another_is_renamed_to_has_that_ones_columns_and_nobody_elses(shop):
    shop.alter(100, MILLIS, ddl="CREATE TABLE orders", snapshot="true")
    shop.row(200, 1, MILLIS, 11)
    shop.alter(250, MICROS, table="_orders_gho", ddl="CREATE TABLE `_orders_gho`")
    shop.row(260, 2, MILLIS, 12)
    ddl = "RENAME TABLE orders TO _orders_del, _orders_gho TO orders"
    shop.alter(300, MILLIS, table="_orders_del", ddl=ddl)
    shop.alter(300, MICROS, ddl=ddl)
    shop.row(400, 3, MICROS, 13)
    shop.run()
    assert shop.values(TABLE) == rows(m1=11, m2=12, u3=13)


def test_the_topic_is_not_read_where_it_has_nothing_new(shop):
    shop.alter(50, MILLIS, snapshot="true")
    for batch in range(3):
        shop.row(100 + batch, batch, MILLIS, 11)
        shop.run()
    assert len(shop.reads) == 1
    assert shop.kept.writes == 1
    assert shop.state.schema_changes == {SCHEMA_TOPIC: {0: 1}}


def test_a_pipeline_of_an_older_version_begins_with_what_it_has_not_read(shop):
    shop.alter(50, MICROS)
    shop.row(100, 1, MILLIS, 11)
    shop.run()
    state = shop.state
    state.schema_changes, shop.kept.blobs = {}, {}
    shop.checkpoint.save(state)
    shop.restart()
    shop.row(200, 2, MILLIS, 12)
    shop.run()
    assert shop.values(TABLE)[2] == value_of("millis", 12)
    assert shop.state.schema_changes == {SCHEMA_TOPIC: {0: 1}}
    assert shop.doubt == ""


def source_of(shop, *, qualifier="", live=True, **settings):
    """The connector with other settings."""
    (source,) = shop.pipeline.sources.of
    connector = parse({**source.connector.settings, **settings}, config=shop.config)
    connector = replace(connector, qualifier=qualifier)
    return replace(source, connector=connector, catalog=replace(shop.catalog, live=live))


def test_the_topic_is_followed_where_it_is_needed_and_the_catalog_can_be_asked(shop):
    assert source_of(shop).schema_topic().name == SCHEMA_TOPIC
    assert source_of(shop, **{"value.converter.schemas.enable": "true"}).schema_topic() is None
    assert source_of(shop, live=False).schema_topic() is None
    assert source_of(shop, **{"include.schema.changes": "false"}).schema_topic() is None
    postgres = "io.debezium.connector.postgresql.PostgresConnector"
    assert source_of(shop, **{"connector.class": postgres}).schema_topic() is None


def test_among_several_connectors_tables_have_their_full_names(shop):
    topic = source_of(shop, qualifier="shop").schema_topic()
    record = json.loads(told_tables.statement(400, MICROS))
    changes = msgspec.convert(record["tableChanges"], tuple[TableChange, ...])
    ((name, schema),) = topic.definitions(changes)
    assert name == schema.table == f"shop.{TABLE}"
    assert alike(schema, replace(catalog_of(MICROS), table=name))


def test_a_topic_that_has_lost_records_is_read_from_what_is_left(shop):
    shop.row(100, 1, MILLIS, 11)
    shop.run()
    shop.alter(200, MICROS)
    shop.row(300, 2, MICROS, 12)
    lost = DependencyError("gone", code=EXPIRED)
    read, asked = shop.pipeline.definitions.read, []

    def expired(ranges):
        asked.append(ranges[0].start)
        if ranges[0].start >= 0:
            raise lost
        return read(ranges)

    shop.pipeline.definitions.read = expired
    shop.run()
    assert asked == [0, EARLIEST]
    assert shop.values(TABLE) == rows(m1=11, u2=12)


def test_brokers_that_are_away_hold_the_batch_up(shop):
    def away(_):
        raise DependencyError("away", code="kafka-unavailable")

    shop.alter(50, MILLIS)
    shop.row(100, 1, MILLIS, 11)
    read, shop.pipeline.definitions.read = shop.pipeline.definitions.read, away
    with pytest.raises(DependencyError):
        shop.run()
    shop.pipeline.definitions.read = read
    shop.again()
    assert shop.values(TABLE) == rows(m1=11)


def test_a_new_epoch_forgets_the_places_of_the_old_one(shop):
    shop.alter(50, MILLIS, snapshot="true")
    shop.row(100, 1, MILLIS, 11)
    shop.alter(200, MICROS)
    shop.run()
    assert len(shop.pipeline.definitions.of_batch(shop.pipeline.schemas)[TABLE]) == 2
    shop.catalog_has(MICROS)
    shop.restart()
    shop.records.append({"type": "new-epoch", "id": "e", "offsets": shop.broker.ends()})
    shop.row(60, 2, MICROS, 12)
    shop.run()
    assert shop.values(TABLE) == rows(m1=11, u2=12)


def test_where_there_is_no_topic_the_catalog_counts_as_it_is(shop):
    del shop.broker.topics[SCHEMA_TOPIC]
    shop.row(100, 1, MILLIS, 11)
    shop.run()
    shop.catalog_has(MICROS)
    shop.restart()
    shop.row(200, 2, MICROS, 12)
    shop.run()
    assert shop.values(TABLE) == rows(m1=11, u2=12)
    assert not shop.kept.blobs
