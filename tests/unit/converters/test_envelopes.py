"""Snapshot rows as whole records: the bytes of the connector's own incremental snapshot."""

import json

import pyarrow as pa
import pytest

from lakemark.converters.json.envelopes import (
    EnvelopeTemplate,
    Reading,
    wrapped_keys,
    wrapper_schema,
)
from lakemark.converters.json.rendering import Rendering
from lakemark.converters.json.rows import decode_rows
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import from_envelope
from tests.kit import toy_positions
from tests.kit.golden import samples
from tests.kit.rendered_rows import with_modifiers

# The connector's own read of a table, and another event of the same table.
PAIRS = [
    ("r_incremental_snapshot_orders", "u_orders_default_identity"),
    ("r_incremental_snapshot_orders", "r_initial_snapshot_first_in_data_collection"),
    ("r_incremental_snapshot_customers", "c_customers_default_identity"),
    ("r_incremental_snapshot_customers", "d_customers_default_identity"),
    ("r_incremental_snapshot_composite", "u_composite_default_identity"),
]


def payload(record):
    read = json.loads(record)
    return read.get("payload", read)


def reading_of(record):
    event = payload(record)
    source = event["source"]
    times = (source["ts_ns"], event["ts_ns"])
    place = {"sequence": source["sequence"], "lsn": 1}
    return Reading(source["schema"], source["table"], *times, place)


def rows_of(name, image):
    wrapped = samples(wrapped=True)[name]
    schema = from_envelope("t", json.loads(wrapped.value)["schema"], json.loads(wrapped.key)["schema"])  # fmt: skip
    rows = decode_rows([json.dumps(image).encode()], schema, HandlingModes())
    return Rendering(with_modifiers(schema, {"created_at": 6}), HandlingModes()), rows.columns


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(("name", "model"), PAIRS)
def test_a_row_is_the_record_that_the_connector_wrote(name, model, wrapped):
    wanted, other = samples(wrapped=wrapped)[name], samples(wrapped=wrapped)[model]
    rendering, rows = rows_of(name, payload(wanted.value)["after"])
    template = EnvelopeTemplate(other.value)
    schema = wrapper_schema(wanted.value)
    assert (schema is not None) == wrapped
    images = rendering.images(rows).objects
    values = template.values(images, reading_of(wanted.value), wrapper_schema=schema)
    assert values.to_pylist() == [wanted.value]
    keys = rendering.keys(rows).objects
    if wrapped:
        keys = wrapped_keys(keys, wrapper_schema(wanted.key))
    assert keys.to_pylist() == [wanted.key]


def test_before_the_first_commit_and_names_to_escape():
    template = EnvelopeTemplate(samples(wrapped=False)["u_orders_default_identity"].value)
    reading = Reading('od"d', "é", 1_999_999, 2_000_000, {"sequence": '[null,"17"]'})
    (value,) = template.values(pa.array([b'{"a":1}']), reading).to_pylist()
    read = json.loads(value)
    assert read["source"]["sequence"] == '[null,"17"]'
    assert (read["source"]["schema"], read["source"]["table"]) == ('od"d', "é")
    assert [read["source"][unit] for unit in ("ts_ms", "ts_us", "ts_ns")] == [1, 1999, 1999999]
    assert [read[unit] for unit in ("ts_ms", "ts_us", "ts_ns")] == [2, 2000, 2000000]
    assert (read["op"], read["before"], read["after"]) == ("r", None, {"a": 1})


def test_members_of_other_versions_stay_where_they_are():
    old = b'{"op":"u","before":{"a":0},"after":{"a":1},"source":{"connector":"postgresql","extra":[1],"snapshot":"false","lsn":5},"ts_ms":9,"more":{"x":1}}'
    values = EnvelopeTemplate(old).values(pa.array([b"{}", b"[]"]), Reading("s", "t", 1, 3_000_000, {"lsn": 1}))  # fmt: skip
    wanted = b'{"op":"r","before":null,"after":%s,"source":{"connector":"postgresql","extra":[1],"snapshot":"incremental","lsn":null},"ts_ms":3,"more":{"x":1}}'
    assert values.to_pylist() == [wanted % b"{}", wanted % b"[]"]


@pytest.mark.parametrize(
    "value",
    [
        samples(wrapped=False)["heartbeat"].value,
        samples(wrapped=False)["transaction_BEGIN"].value,
        samples(wrapped=False)["m_logical_message_transactional"].value,
        b'{"after":{},"source":{"connector":"oracle"}}',
        b'{"after":{},"source":{"connector":""}}',
        b'{"after":{},"source":{"connector":["postgresql"]}}',
        b'{"after":{},"source":{}}',
        b'{"after":{},"source":null}',
        b"[]",
        b"",
    ],
)
def test_what_is_no_event_of_a_known_connector_is_no_template(value):
    with pytest.raises(ValueError, match="a template must be"):
        EnvelopeTemplate(value)


def test_what_only_an_entry_of_the_log_has_is_for_its_database_to_say(monkeypatch):
    toy_positions.use(monkeypatch)
    source = {"connector": "toy", "block": 7, "row": 3, "lsn": 9}
    template = EnvelopeTemplate(json.dumps({"after": {}, "source": source, "op": "c"}).encode())
    at = toy_positions.pack(toy_positions.EPOCH, (1 << 80) + 8, 5)
    place = toy_positions.POSITIONS.to_source(at, {})
    reading = Reading("public", "t", read_ns=1, written_ns=2, place=place)
    (value,) = template.values(pa.array([b"{}"], pa.binary()), reading).to_pylist()
    found = json.loads(value)["source"]
    assert found == {"connector": "toy", "block": 8, "row": None, "lsn": 9}


def test_the_schema_of_a_plain_record():
    assert wrapper_schema(b'{"id":1}') is None
    assert wrapper_schema(b'{"schema":null,"payload":{}}') is None
    assert wrapper_schema(b'{"schema":{"type":"struct"},"payload":{}}') == b'{"type":"struct"}'
    with pytest.raises(ValueError, match="JSON object"):
        wrapper_schema(b"shop")
