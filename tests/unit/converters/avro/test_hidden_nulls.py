"""NULL that arrives as a column's default: of which rows it may be, found by both ways of reading."""

from dataclasses import replace

import pyarrow as pa
import pytest

from lakemark.converters.avro.converter import AvroConverter
from lakemark.converters.json.converter import JsonConverter
from lakemark.converters.registry import CONVERTERS
from lakemark.model.decoding import (
    FEW_ROWS,
    ConverterChoice,
    ConverterOptions,
    Records,
    StretchPlan,
)
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.source import decoder
from tests.kit.avro_records import DictSource, confluent, datum, record
from tests.kit.converter_contract import TABLE, TOPIC, source

NAME = "avro-with-defaults"
SOURCE = DictSource()
CONFLUENT = "io.confluent.connect.avro.AvroConverter"
DECIMAL = {
    "type": "bytes", "scale": 2, "precision": 5, "connect.version": 1,
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "5"},
    "connect.name": "org.apache.kafka.connect.data.Decimal", "logicalType": "decimal",
    "connect.default": "\x00ÿ",
}  # fmt: skip
IMAGE = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "score", "type": [{"type": "int", "connect.default": 5}, "null"], "default": 5},
        {"name": "word", "type": [{"type": "string", "connect.default": "x"}, "null"], "default": "x"},
        {"name": "price", "type": [DECIMAL, "null"], "default": "\x00ÿ"},
        {"name": "must", "type": {"type": "int", "connect.default": 5}, "default": 5},
        {"name": "free", "type": ["null", "int"], "default": None},
    ],
}  # fmt: skip
BLOCK = {"sequence": ["null", "string"], "lsn": ["null", "long"], "xmin": ["null", "long"],
         "txId": ["null", "long"]}  # fmt: skip
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", IMAGE]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": record("Source", source(), BLOCK)},
        {"name": "op", "type": "string"},
    ],
}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "int"}]}
ROW = {"score": 1, "word": "w", "price": b"\x01", "must": 5, "free": None}
PLAN = StretchPlan(
    SourceIdentity("postgresql", "shop"), HandlingModes(), converter=ConverterChoice(NAME)
)


@pytest.fixture(autouse=True, scope="module")
def registered():
    CONVERTERS[NAME] = AvroConverter(JsonConverter(), lambda _: SOURCE)
    yield
    del CONVERTERS[NAME]


def reports(rows, plan=PLAN, op="c"):
    """What both ways say of rows."""
    keys, values = [], []
    for at, row in enumerate(rows, 1):
        whole = {"id": at, **ROW, **row}
        images = {"before": whole, "after": None} if op == "d" else {"before": None, "after": whole}
        event = {**images, "source": source(at), "op": op}
        keys.append(confluent(SOURCE.put(KEY), datum(KEY, {"id": at})))
        values.append(confluent(SOURCE.put(ENVELOPE), datum(ENVELOPE, event)))
    count = len(rows)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(range(count)), pa.array(keys), pa.array(values)], ["offset", "key", "value"]
    )
    quick = CONVERTERS[NAME].of(plan.converter.options).plain_range(TOPIC, 0, [batch], plan)
    general = decoder.decode_range(
        Records(TOPIC, 0, [*range(count)], keys, values, [None] * count), plan
    )
    assert quick is not None
    assert quick.tables == general.tables
    return general.tables[TABLE]


@pytest.mark.parametrize(
    ("row", "may"),
    [
        ({}, False),
        ({"score": 5}, True),
        ({"word": "x"}, True),
        ({"price": b"\x00\xff"}, True),
        ({"price": b"\x00\xfe"}, False),
        ({"score": None, "word": None, "price": None}, False),
    ],
)
def test_a_row_with_a_default_may_have_had_null(row, may):
    report = reports([{}, row])
    assert report.hidden_nulls == ("score", "word", "price")
    assert (report.maybe_null, report.maybe_null_keys) == ((1, ["[2]"]) if may else (0, []))


def test_of_a_deleted_row_it_does_not_matter():
    assert reports([{"score": 5}], op="d").maybe_null == 0


def test_of_many_rows_some_are_named_and_all_counted():
    report = reports([{"score": 5}] * (FEW_ROWS + 20))
    assert (report.maybe_null, len(report.maybe_null_keys)) == (FEW_ROWS + 20, FEW_ROWS + 1)


def test_a_converter_that_writes_null_for_null_leaves_no_doubt():
    told = ConverterOptions(
        value=(("ignore.default.for.nullables", "true"),),
        own=(("schema.registry.url", "http://nowhere"),),
        key_class=CONFLUENT,
        value_class=CONFLUENT,
    )
    plan = replace(PLAN, converter=ConverterChoice(NAME, told))
    report = reports([{"score": 5}], plan)
    assert (report.hidden_nulls, report.maybe_null) == ((), 0)
