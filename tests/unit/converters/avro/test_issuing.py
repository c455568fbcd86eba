"""What of Avro stays byte for byte on its way out, and what stands before the datum of the rest."""

import json
from types import SimpleNamespace

import pytest

from lakemark.converters.avro import issuing
from lakemark.converters.avro.converter import AvroConverter
from lakemark.converters.avro.framing import Framing
from lakemark.converters.avro.schema_source import (
    RECHECK_S,
    SchemaReference,
    SchemaRefusedError,
)
from lakemark.converters.converter import Departing
from lakemark.converters.json.converter import JsonConverter
from lakemark.model.decoding import ConverterOptions
from lakemark.model.events import Learnt
from tests.kit.avro_records import DictSource, datum

SCHEMA = {"type": "record", "name": "t.Envelope", "fields": [{"name": "after", "type": [
    "null", {"type": "record", "name": "Value", "fields": [{"name": "a", "type": "string"}]},
]}]}  # fmt: skip
VALUE = {"after": {"a": "x"}}
HEADER = "apicurio.value.globalId"


def leaving(reader, raws, headers=None, **more):
    return Departing(
        "value", "out", "s.t", reader, Learnt(), raws, headers or [[]] * len(raws), **more
    )


@pytest.fixture
def source():
    found = DictSource()
    found.put({"type": "long"})
    found.texts[SchemaReference("global", 77)] = json.dumps(SCHEMA)
    return found


@pytest.fixture
def avro(source):
    return AvroConverter(JsonConverter(), lambda _: source, registries=lambda _: source)


def test_whatever_stands_before_a_datum_stays_and_its_schema_is_registered(source, avro):
    """Numbers of eight bytes, and in headers: here the schema has another one by itself."""
    written, number = datum(SCHEMA, VALUE), (77).to_bytes(8)
    raws = [b"\0" + number + written, written]
    headers = [[], [(HEADER, number)]]
    assert avro.issued(leaving(avro, raws, headers)) == raws
    assert source.subjects == {"out-value": [json.dumps(SCHEMA)]}
    assert [data.payload for data in avro.opened(leaving(avro, raws, headers), range(2))] == [
        b'{"after":{"a":"x"}}'
    ] * 2
    assert (
        JsonConverter()
        .issued(leaving(avro, raws[1:], headers[1:]))[0]
        .endswith(b'"payload":{"after":{"a":"x"}}}')
    )


def test_a_value_whose_number_is_in_a_header_gets_what_was_unavailable(avro):
    headers = [{"key": HEADER, "value": (77).to_bytes(8)}]
    changed = avro.with_cells(datum(SCHEMA, VALUE), {"a": b'"y"'}, headers)
    assert changed == datum(SCHEMA, {"after": {"a": "y"}})


def test_what_is_no_avro_stays_where_the_topic_is_as_the_records_are(avro):
    raws = [b'{"id":1}', None, b'{"schema":null,"payload":{"id":1}}']
    assert avro.issued(leaving(JsonConverter(), raws, converts=False)) == raws
    with pytest.raises(SchemaRefusedError, match="nobody knows its schema"):
        avro.issued(leaving(JsonConverter(), raws))


@pytest.mark.parametrize(
    ("told", "prefix"),
    [
        ({"schema.registry.url": "http://a"}, b"\0\0\0\0\7"),
        ({"apicurio.registry.url": "http://a/apis/registry/v2"}, b"\0" + (7).to_bytes(8)),
        (
            {
                "apicurio.registry.url": "http://a/apis/registry/v2",
                "apicurio.registry.as-confluent": "true",
            },
            b"\0\0\0\0\7",
        ),
    ],
)
def test_a_number_stands_before_a_datum_as_the_converter_of_the_registry_writes_it(told, prefix):
    framing = Framing("value", ConverterOptions(own=(*told.items(),)))
    assert framing.prefix(7) == prefix
    found = framing.of(prefix + b"datum")
    assert (found.reference.number, found.begin) == (7, len(prefix))


def test_numbers_are_asked_for_again_from_time_to_time(source, avro, monkeypatch):
    """A registry may have been set up anew: what is written next gets the number that counts now."""
    clock = [0.0]
    monkeypatch.setattr(issuing, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    schema = b'{"type":"struct","name":"Key","fields":[{"type":"int64","field":"id"}]}'
    raws = [b'{"schema":' + schema + b',"payload":{"id":1}}']

    def number():
        return int.from_bytes(avro.issued(leaving(JsonConverter(), raws))[0][1:5])

    before = number()
    source.texts.clear()
    source.put({"type": "long"})
    source.put({"type": "double"})
    source.put({"type": "int"})
    assert number() == before
    clock[0] = RECHECK_S
    assert number() == 4 != before
