"""A stretch of events in Avro, read without an object for each, is what the general way makes."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.avro_events import AvroOrders, schemas
from bench.events import AVRO, Orders
from lakemark.converters.avro.converter import AvroConverter
from lakemark.converters.json.converter import JsonConverter
from lakemark.converters.registry import CONVERTERS
from lakemark.model.decoding import ConverterChoice, Records, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.source import decoder
from tests.kit.avro_records import DictSource
from tests.kit.converter_contract import by_key

NAME = "avro-of-orders"
TOPIC = AVRO.topic_of("orders")
SOURCE = DictSource()
IDS = {side: SOURCE.put(json.loads(text)) for side, text in schemas("orders").items()}
PLAN = StretchPlan(
    SourceIdentity(AVRO.connector, AVRO.name),
    HandlingModes(),
    converter=ConverterChoice(NAME),
    metadata=("schema_id",),
)
SEEDS = st.integers(0, 1 << 30)


@pytest.fixture(autouse=True, scope="module")
def registered():
    CONVERTERS[NAME] = AvroConverter(JsonConverter(), lambda _: SOURCE)
    yield
    del CONVERTERS[NAME]


def written(seed, events, keys, *, before):
    orders = Orders("orders", events=events, keys=keys, before=before, seed=seed)
    found, values = zip(*AvroOrders(orders, IDS).records(), strict=True)
    return [*found], [*values]


def both(keys, values):
    """What the two ways make of a stretch; None for what is not read the faster way."""
    columns = [pa.array(range(len(keys))), pa.array(keys), pa.array(values)]
    batch = pa.RecordBatch.from_arrays(columns, ["offset", "key", "value"])
    records = Records(TOPIC, 0, [*range(len(keys))], keys, values, [None] * len(keys))
    quick = CONVERTERS[NAME].plain_range(TOPIC, 0, [batch], PLAN)
    return quick, decoder.decode_range(records, PLAN)


def assert_alike(quick, general):
    assert by_key(quick) == by_key(general)
    assert quick.applied_position == general.applied_position
    assert quick.kinds == general.kinds
    assert general.dead == []
    assert quick.tables == general.tables


@given(SEEDS, st.integers(1, 60), st.integers(1, 12), st.booleans())
def test_both_ways_make_the_same_of_plain_events(seed, events, keys, before):
    quick, general = both(*written(seed, events, keys, before=before))
    assert quick is not None
    assert_alike(quick, general)
    assert {row["schema_id"] for _, row in by_key(quick)} == {IDS["value"]}


@given(SEEDS, st.data())
def test_damaged_events_are_left_to_the_general_way_or_read_alike(seed, data):
    """But for texts that nobody wants, which only the general way finds to be no UTF-8."""
    keys, values = written(seed, 5, 2, before=True)
    for side in (keys, values):
        place = data.draw(st.integers(0, len(side) - 1))
        raw = bytearray(side[place])
        for _ in range(data.draw(st.integers(0, 2))):
            at = data.draw(st.integers(5, len(raw) - 1))
            raw[at] = data.draw(st.integers(0, 255))
        side[place] = bytes(raw)
    quick, general = both(keys, values)
    if quick is not None and {letter.reason for letter in general.dead} != {"invalid-utf8"}:
        assert_alike(quick, general)
