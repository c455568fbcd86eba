"""Types that keep keys apart: what a record's own schema tells of them, and what it leaves open."""

import pytest

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema, from_connect

DATA, TIME, CONNECT = (
    "io.debezium.data.", "io.debezium.time.", "org.apache.kafka.connect.data.",
)  # fmt: skip
BITS = {"type": "bytes", "name": DATA + "Bits", "parameters": {"length": "12"}}
PRECISE, DOUBLE = HandlingModes(), HandlingModes(decimal="double")
CUT = HandlingModes(time_precision="connect")


def sent(field, propagated="", length=""):
    """The schema of a record whose key is this field, perhaps with the database's type."""
    more = {"__debezium.source.column.type": propagated} if propagated else {}
    more |= {"__debezium.source.column.length": length} if length else {}
    parameters = {**field.get("parameters", {}), **more}
    fields = [{**field, "field": "k", "optional": False, "parameters": parameters}]
    return from_connect("s.t", {"type": "struct", "fields": fields}, {"fields": fields})


@pytest.mark.parametrize(
    ("field", "propagated", "length", "modes", "refused"),
    [
        (BITS, "", "", PRECISE, True),
        (BITS, "BIT", "12", PRECISE, False),
        (BITS, "VARBIT", "12", PRECISE, True),
        ({"type": "boolean"}, "", "", PRECISE, False),
        ({"type": "boolean"}, "VARBIT", "1", PRECISE, True),
        ({"type": "double"}, "", "", PRECISE, False),
        ({"type": "double"}, "", "", DOUBLE, True),
        ({"type": "double"}, "FLOAT8", "17", DOUBLE, False),
        ({"type": "double"}, "NUMERIC", "", DOUBLE, True),
        ({"type": "double"}, "NUMERIC", "16", DOUBLE, True),
        ({"type": "double"}, "NUMERIC", "15", DOUBLE, False),
        ({"type": "string"}, "NAME", "", PRECISE, True),
        ({"type": "string", "name": TIME + "ZonedTime"}, "", "", PRECISE, True),
        ({"type": "string", "name": TIME + "IsoTime"}, "", "", PRECISE, True),
        ({"type": "int64", "name": TIME + "MicroTime"}, "", "", PRECISE, False),
        ({"type": "int64", "name": TIME + "MicroDuration"}, "", "", PRECISE, True),
        ({"type": "string", "name": TIME + "Interval"}, "", "", PRECISE, False),
        ({"type": "int32", "name": CONNECT + "Time"}, "", "", CUT, True),
        ({"type": "int64", "name": CONNECT + "Timestamp"}, "", "", CUT, True),
        ({"type": "int32", "name": CONNECT + "Date"}, "", "", CUT, False),
        ({"type": "array", "items": {"type": "int32"}}, "", "", PRECISE, True),
    ],
)
def test_what_leaves_open_which_keys_differ_is_refused(field, propagated, length, modes, refused):
    schema = sent(field, propagated, length)
    fault = schema.key_fault(modes)
    assert (fault is not None) == refused
    if fault:
        assert fault.code == "key-type"
        assert "'k'" in fault.reason
        assert fault.hint


@pytest.mark.parametrize(("digits", "refused"), [(0, False), (3, False), (4, True), (-1, True)])
@pytest.mark.parametrize("kind", ["time", "timestamp"])
def test_the_catalog_says_whether_milliseconds_are_all(kind, digits, refused):
    columns = [CatalogColumn("k", kind, digits, key_position=1)]
    known = from_catalog("s.t", columns, ["k"], CUT)
    name = CONNECT + ("Time" if kind == "time" else "Timestamp")
    plain = sent({"type": "int32" if kind == "time" else "int64", "name": name})
    for schema in (known, plain.with_notes_of(known)):
        assert (schema.key_fault(CUT) is not None) == refused
    assert TableSchema.from_json(known.to_json()).key_fault(CUT) == known.key_fault(CUT)


def test_the_first_column_in_the_way_is_named():
    columns = [
        CatalogColumn("id", "int8", key_position=1),
        CatalogColumn("bits", "varbit", key_position=2),
    ]
    fault = from_catalog("s.t", columns, ["id", "bits"], PRECISE).key_fault()
    assert fault is not None
    assert "'bits'" in fault.reason


def test_a_schema_of_before_is_read():
    """Kept where an earlier version wrote it, without the database's type."""
    schema = from_catalog("s.t", [CatalogColumn("k", "bit", 12)], ["k"], PRECISE)
    older = schema.to_json().replace(b',"source_type":"bit"', b"")
    assert older != schema.to_json()
    assert TableSchema.from_json(older) == schema
