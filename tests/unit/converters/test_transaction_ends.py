"""The transaction topic in each form: the ends of transactions, and nothing else."""

import json

import pytest

from lakemark.converters.avro.converter import AvroConverter
from lakemark.converters.json.converter import JsonConverter
from lakemark.model.decoding import Records
from lakemark.model.transactions import TransactionEnd
from tests.kit.avro_records import DictSource, confluent, datum

COUNTS = [
    {"data_collection": "public.orders", "event_count": 3},
    {"data_collection": "public.items", "event_count": 1},
]
BEGIN = {
    "status": "BEGIN", "id": "571:780", "event_count": None, "data_collections": None, "ts_ms": 5,
}  # fmt: skip
END = {
    "status": "END", "id": "571:800", "event_count": 4, "data_collections": COUNTS, "ts_ms": 7,
}  # fmt: skip
FOUND = TransactionEnd(11, "571:800", {"public.orders": 3, "public.items": 1}, 7)
SCHEMA = {
    "type": "record", "name": "TransactionMetadataValue", "fields": [
        {"name": "status", "type": "string"},
        {"name": "id", "type": "string"},
        {"name": "event_count", "type": ["null", "long"], "default": None},
        {"name": "data_collections", "type": ["null", {"type": "array", "items": {
            "type": "record", "name": "Count", "fields": [
                {"name": "data_collection", "type": "string"},
                {"name": "event_count", "type": "long"},
            ]}}], "default": None},
        {"name": "ts_ms", "type": "long"},
    ],
}  # fmt: skip


def records(*values):
    count = len(values)
    return Records("t", 0, list(range(10, 10 + count)), [b"{}"] * count, [*values], [None] * count)


def plain(value):
    return json.dumps(value).encode()


def wrapped(value):
    return json.dumps({"schema": {"type": "struct", "name": "END"}, "payload": value}).encode()


@pytest.mark.parametrize("form", [plain, wrapped])
def test_ends_in_json(form):
    converter = JsonConverter()
    assert [*converter.transaction_ends(records(form(BEGIN), form(END)))] == [FOUND]


def test_ends_in_avro():
    schemas = DictSource()
    number = schemas.put(SCHEMA)
    converter = AvroConverter(JsonConverter(), lambda _: schemas)
    values = [confluent(number, datum(SCHEMA, one)) for one in (BEGIN, END)]
    assert [*converter.transaction_ends(records(*values))] == [FOUND]


@pytest.mark.parametrize(
    "value",
    [None, b"", b"END", b'{"status":"END"}', b'{"status":"END","id":7}', b"[" * 5000 + b"END",
     b'{"status":"END","id":"x","data_collections":[{"data_collection":"END"}]}', b"\xff\xfeEND"],
)  # fmt: skip
def test_what_is_no_end_is_passed_over(value):
    assert [*JsonConverter().transaction_ends(records(value, plain(END)))] == [FOUND]


def test_a_transaction_without_tables_ends_too():
    value = plain({**END, "data_collections": None, "ts_ms": None})
    (found,) = JsonConverter().transaction_ends(records(value))
    assert (found.events, found.ended_ms) == ({}, 0)
