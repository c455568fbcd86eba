"""A connector's own settings and mended values, of one that nobody else knows."""

import json

import pyarrow as pa
import pytest

from lakemark.converters.json.keys import canonical_keys
from lakemark.converters.json.rendering import Rendering
from lakemark.converters.json.rows import decode_rows, may_have_placeholder
from lakemark.errors import ConfigError
from lakemark.model import value_rules
from lakemark.model.handling_modes import HandlingModes, settings_of, usual_choice
from lakemark.model.schema import TableSchema, from_connect, from_envelope
from lakemark.state import encoding
from tests.kit import toy_values

MODES = HandlingModes()


@pytest.fixture(autouse=True)
def _known(monkeypatch):
    toy_values.use(monkeypatch)
    yield
    value_rules.rules_of.cache_clear()


def half(source_type="HALF"):
    return {
        "field": "n",
        "type": "int64",
        "optional": True,
        "parameters": {"__debezium.source.column.type": source_type},
    }


def envelope(*fields, connector=toy_values.CONNECTOR):
    source = f"io.debezium.connector.{connector}.Source"
    return {
        "type": "struct",
        "fields": [
            {"type": "struct", "field": "after", "fields": list(fields)},
            {"type": "struct", "field": "source", "fields": [], "name": source},
        ],
    }


def schema(connector=toy_values.CONNECTOR):
    return from_envelope("s.t", envelope(half(), connector=connector), None)


def test_a_record_says_whose_it_is():
    assert schema().column("n").type == pa.int32()
    assert schema("postgresql").column("n").type == pa.int64()
    assert from_envelope("s.t", envelope(half("whole")), None).column("n").mend == ""


def test_values_are_mended_and_written_back():
    images = [b'{"n":8}', b'{"n":null}', b'{"n":-2}']
    rows = decode_rows(images, schema(), MODES)
    assert rows.columns.field("n").to_pylist() == [4, None, -1]
    written = Rendering(schema(), MODES).images(rows.columns)
    assert written.objects.to_pylist() == images
    assert written.inexact["n"].tolist() == [0, 2]
    assert [loss.reason for loss in Rendering(schema(), MODES).losses] == ["toys lie"]


def test_one_value_that_cannot_be_mended_costs_its_row_alone():
    rows = decode_rows([b'{"n":8}', b'{"n":3}'], schema(), MODES)
    assert [(at, code) for at, code, _ in rows.bad] == [(1, "wrong-type")]
    assert rows.columns.to_pylist() == [{"n": 4}, None]


def test_keys_are_mended_too():
    keyed = TableSchema("s.t", schema().columns, ("n",))
    own = {"type": "struct", "fields": [{"field": "n", "type": "int64"}]}
    wrapped = json.dumps({"schema": own, "payload": {"n": 8}}).encode()
    assert canonical_keys([b'{"n":8}', wrapped, b'{"n":3}'], keyed) == [b"[4]", b"[4]", None]


def test_a_schema_travels_with_its_mends():
    again = TableSchema.from_json(schema().to_json())
    assert again == schema()
    assert again.ways_to_read == {("n", "toy/half")}


def test_equal_schemas_of_other_mends_are_read_each_in_its_way():
    """The layout of a table's columns is kept, and equality leaves mends out."""
    plain = from_connect("s.t", {"fields": [{**half("whole"), "type": "int32"}]}, None)
    other = TableSchema("s.t", (plain.columns[0].with_notes_of(schema().columns[0]),))
    assert plain == other
    ours = schema()
    for each, expected in ((plain, 8), (ours, 4), (other, 8)):
        assert decode_rows([b'{"n":8}'], each, MODES).columns[0].as_py() == {"n": expected}


def test_settings_of_ones_own():
    settings = {"connector.class": toy_values.CLASS, "toy.mode": "Fancy", "toys.a": "1", "x": "y"}
    modes = HandlingModes.from_connector(settings)
    assert modes.own == (("toy.mode", "fancy"), ("toys.a", "1"))
    assert modes.setting("toy.mode") == "fancy"
    assert modes.time_precision == "microseconds"
    assert usual_choice(settings, "time.precision.mode") == "microseconds"
    assert usual_choice({}, "time.precision.mode") == "adaptive"
    assert settings_of(settings) == {k: v for k, v in settings.items() if k != "x"}
    assert HandlingModes.from_connector(encoding.of(settings)) == modes
    with pytest.raises(ConfigError, match=r"toy\.mode is 'odd', expected one of plain, fancy"):
        HandlingModes.from_connector({**settings, "toy.mode": "odd"})


def test_a_connector_that_lacks_no_values_writes_no_placeholder():
    """What looks like one is a value as any."""
    text = {"field": "t", "type": "string", "optional": True}
    table = from_envelope("s.t", envelope(text), None)
    image = b'{"t":"__debezium_unavailable_value"}'
    for name, lacks in ((toy_values.CLASS, False), ("", True)):
        modes = HandlingModes.from_connector({"connector.class": name})
        rows = decode_rows([image], table, modes, partial=[0])
        assert rows.unavailable == [("t",) if lacks else None]
        assert (rows.columns[0].as_py()["t"] is None) == lacks
        assert may_have_placeholder(table, modes)(image) == lacks
