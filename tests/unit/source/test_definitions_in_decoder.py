"""Records of one stretch that were written by several definitions of their table."""

import json

import pyarrow as pa
import pytest

from lakemark.connectors.mysql import positions as binlog
from lakemark.converters.registry import CONVERTERS, converter_of
from lakemark.model import positions
from lakemark.model.decoding import ANY_CONVERTER, Records, StretchPlan
from lakemark.model.definitions import Definition
from lakemark.model.events import SourceIdentity
from lakemark.source import fetch, raw_records
from lakemark.source.decoder import decode_range
from tests.kit import told_tables
from tests.kit.told_tables import MODES, SCHEMA_TOPIC, TABLE, TOPIC, catalog_of, value_of

EPOCH = positions.epoch_number("mysql", 0)
OLD, NEW = {"v": "millis"}, {"v": "micros"}
IDENTITY = SourceIdentity("mysql", "shop")


def place(pos):
    return binlog.pack(EPOCH, 1, pos)


def plan(at=None, **more):
    """A plan by which rows from a place on are the new ones; `at` None for the catalog alone."""
    known = (Definition(positions.LOWEST, catalog_of(OLD)),)
    known += () if at is None else (Definition(place(at), catalog_of(NEW)),)
    return StretchPlan(
        IDENTITY,
        MODES,
        {TABLE: catalog_of(NEW)},
        definitions={} if at is None else {TABLE: known},
        **more,
    ).of_epoch(0)


def batch(*rows):
    """Records (position, key, columns, number) as a task gets them."""
    values = [
        told_tables.event(pos, key, columns, {"v": value_of(columns["v"], number)})
        for pos, key, columns, number in rows
    ]
    keys = [told_tables.key_of(key) for _, key, _, _ in rows]
    count = len(rows)
    columns = [
        pa.array([TOPIC] * count),
        pa.array([0] * count, pa.int32()),
        pa.array(range(count), pa.int64()),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([[]] * count, fetch.HEADERS),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=fetch.SCHEMA)


def rows_of(done):
    return {
        row["id"]: row["v"]
        for _, packet in done.packets
        for row in packet.column("row").to_pylist()
    }


def test_each_side_of_a_statement_is_read_by_its_own_columns_whatever_its_offset():
    part = batch((100, 1, OLD, 11), (200, 2, NEW, 12), (300, 3, NEW, 13))
    done = decode_range(raw_records.of(TOPIC, 0, [part]), plan(200))
    assert rows_of(done) == {
        1: value_of("millis", 11),
        2: value_of("micros", 12),
        3: value_of("micros", 13),
    }
    assert not done.dead
    assert not done.stopped()


@pytest.mark.parametrize(
    ("rows", "at", "kind"),
    [
        ([(100, 1, OLD, 11), (150, 2, OLD, 12)], 200, "millis"),
        ([(200, 1, NEW, 11), (300, 2, NEW, 12)], 200, "micros"),
        ([(100, 1, OLD, 11), (200, 2, NEW, 12)], 200, None),
    ],
)
def test_the_compiled_way_takes_stretches_of_one_definition(rows, at, kind):
    assert fetch.ready()
    made = plan(at)
    done = CONVERTERS["json"].plain_range(TOPIC, 0, [batch(*rows)], made)
    if kind is None:
        assert done is None
    else:
        assert done is not None
        assert rows_of(done) == {1: value_of(kind, 11), 2: value_of(kind, 12)}


# -- records of the schema topic -------------------------------------------------------------------


def changes(*values, identity=IDENTITY):
    offsets = [7 + at for at in range(len(values))]
    nothing = [None] * len(values)
    records = Records(SCHEMA_TOPIC, 2, offsets, nothing, [*values], nothing)
    made = StretchPlan(identity, MODES).of_epoch(3)
    return [*converter_of(ANY_CONVERTER).schema_changes(records, made)]


def test_a_statement_has_a_place_and_its_record_an_offset():
    (found,) = changes(None, b"", b"{", b"[]", told_tables.statement(400, NEW))
    assert (found.partition, found.offset) == (2, 11)
    assert found.position == binlog.pack(positions.epoch_number("mysql", 3), 1, 400, 1)
    assert found.tables[0].id == '"shop"."orders"'
    assert [column.name for column in found.tables[0].table.columns] == ["id", "v"]


def test_a_structure_that_was_read_stands_before_a_statement_at_the_same_place():
    read, stated = changes(
        told_tables.statement(400, OLD, snapshot="true"), told_tables.statement(400, NEW)
    )
    assert read.position < stated.position
    assert positions.is_of_stream(read.position)


def test_wrapped_records_say_the_same():
    payload = json.loads(told_tables.statement(400, NEW))
    schema = {"type": "struct", "fields": [], "optional": False}
    wrapped = json.dumps({"schema": schema, "payload": payload}).encode()
    assert changes(wrapped)[0].tables == changes(told_tables.statement(400, NEW))[0].tables


@pytest.mark.parametrize(
    "source",
    [{"name": "other"}, {"file": None}, {"pos": "400"}, {"file": "no-number"}, {"pos": -1}],
)
def test_records_of_others_and_those_without_a_place_are_passed_over(source):
    assert changes(told_tables.statement(source.pop("pos", 400), NEW, **source)) == []


def test_a_connector_of_which_no_position_is_known_has_none():
    assert changes(told_tables.statement(400, NEW), identity=SourceIdentity("db2", "shop")) == []
