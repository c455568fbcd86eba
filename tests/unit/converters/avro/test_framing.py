"""Which schema a record names, by its bytes and its headers; which converter a connector has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.converters.avro.framing import Framed, Framing
from lakemark.converters.avro.schema_source import SchemaReference
from lakemark.converters.registry import AVRO, JSON, choice_of
from lakemark.model.decoding import ConverterOptions

AS_JSON = "org.apache.kafka.connect.json.JsonConverter"
AS_AVRO = "io.confluent.connect.avro.AvroConverter"
VALUES = Framing("value", ConverterOptions())


@given(st.integers(1, (1 << 32) - 1), st.binary(max_size=9))
def test_an_id_of_four_bytes(number, datum):
    found = VALUES.of(b"\0" + number.to_bytes(4) + datum)
    assert found == Framed(SchemaReference("id", number), 5)


@given(st.integers(1, (1 << 32) - 1), st.binary(max_size=9))
def test_an_id_of_eight_bytes(number, datum):
    raw = b"\0" + number.to_bytes(8) + datum
    assert VALUES.of(raw) == Framed(SchemaReference("global", number), 9)
    content = ConverterOptions(value=(("apicurio.registry.use-id", "contentId"),))
    assert Framing("value", content).of(raw) == Framed(SchemaReference("content", number), 9)


@pytest.mark.parametrize(("name", "kind"), [("globalId", "global"), ("contentId", "content")])
def test_an_id_in_a_header_is_that_of_its_side(name, kind):
    headers = [
        {"key": f"apicurio.key.{name}", "value": (3).to_bytes(8)},
        {"key": f"apicurio.value.{name}", "value": (4).to_bytes(8)},
    ]
    for side, number in (("key", 3), ("value", 4)):
        framing = Framing(side, ConverterOptions())
        assert framing.of(b"\0\2", headers) == Framed(SchemaReference(kind, number), 0)
        assert framing.of(None, headers) is None, "a tombstone"
    short = [{"key": "apicurio.value.globalId", "value": b"\4"}]
    assert VALUES.of(b"\0\0\0\0\7\2", short) == Framed(SchemaReference("id", 7), 5)


@pytest.mark.parametrize(
    "raw", [None, b"", b"\0", b"\0\0\0\0", b'{"id":1}', bytes(8), b"1", b"x" * 9]
)
def test_what_names_no_schema(raw):
    assert VALUES.of(raw) is None


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        (AS_JSON, AS_JSON, JSON),
        (AS_JSON, AS_AVRO, AVRO),
        (AS_AVRO, AS_JSON, AVRO),
        (AS_AVRO, AS_AVRO, AVRO),
        (None, "io.apicurio.registry.utils.converter.AvroConverter", AVRO),
        (None, None, JSON),
    ],
)
def test_either_side_has_a_form_of_its_own(key, value, name):
    told = {"key.converter": key, "value.converter": value}
    assert choice_of({n: c for n, c in told.items() if c}, {}).name == name
