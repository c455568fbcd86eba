"""Columns that the log leaves out: their placeholders are found in every form."""

import base64
import json

import pytest

from lakemark.converters.json.rows import decode_rows, may_have_placeholder
from lakemark.model.handling_modes import HandlingModes
from tests.kit.row_images import (
    DECIMAL,
    ENCODE,
    MODES,
    decode,
    field,
    golden,
    table,
)

# Which columns carry the placeholder, by mode. In the base64 modes Debezium writes null for an
# unchanged bytea; other types than these are always null there: see golden/postgres_types.md.
TOASTED = [
    "t",
    "b",
    "ta",
    "ba",
    "ia",
    "la",
    "h",
    "ua",
    "j",
    "jb",
    "x",
    "vc",
    "da",
    "bp",
    "ct",
    "ja",
    "jba",
    "vca",
]


@pytest.mark.parametrize(
    ("mode", "missing"),
    [
        ("default", ()),
        ("base64", ("b", "ba")),
        ("urlsafe", ("b", "ba")),
        ("hex", ("ba",)),
        ("hstore_map", ()),
        ("isostring", ("da",)),
        ("structured", ("da",)),
    ],
)
def test_unavailable_values_in_all_forms(mode, missing):
    schema, modes, images = golden(mode, "toast")
    (image,) = images.values()
    rows = decode_rows([image], schema, modes, partial=[0])
    assert rows.unavailable == [tuple(c for c in TOASTED if c not in missing)]
    row = rows.columns[0].as_py()
    assert (row["id"], [row[c] for c in TOASTED]) == (1, [None] * len(TOASTED))
    assert may_have_placeholder(schema, modes)(image)


CUSTOM = [
    HandlingModes.from_connector({"unavailable.value.placeholder": "n/a"}),
    HandlingModes.from_connector({"unavailable.value.placeholder": "hex:00ff22"}),
    HandlingModes.from_connector({"unavailable.value.placeholder": 'späte "Ware"'}),
    HandlingModes.from_connector(
        {"unavailable.value.placeholder": "not there", "binary.handling.mode": "hex"}
    ),
    HandlingModes.from_connector(
        {"unavailable.value.placeholder": "not there", "binary.handling.mode": "base64-url-safe"}
    ),
]


def placeholder_cases(modes):
    raw, text = modes.placeholder, modes.placeholder_text
    signed = [b - 256 if b > 127 else b for b in raw]
    yield field("c", "string"), text
    yield field("c", "string", "io.debezium.data.Json"), text
    yield (
        field("c", "string", "io.debezium.data.Json"),
        json.dumps({text: text}, ensure_ascii=False, separators=(",", ":")),
    )
    yield field("c", "bytes"), base64.b64encode(raw).decode()
    if modes.binary == "hex":
        yield field("c", "string"), raw.hex()
    if modes.binary == "base64-url-safe":
        yield field("c", "string"), base64.urlsafe_b64encode(raw).decode()
    for items, value in [
        (field("e", "string"), [text]),
        (field("e", "string", "io.debezium.data.Uuid"), [modes.placeholder_uuid]),
        (field("e", "bytes"), [base64.b64encode(raw).decode()]),
        (field("e", "int32"), signed),
        (field("e", "int64"), signed),
        (field("e", "int32", "io.debezium.time.Date"), signed),
    ]:
        yield {**field("c", "array"), "items": items}, value
    kinds = {"keys": {"type": "string"}, "values": {"type": "string", "optional": True}}
    yield {**field("c", "map"), **kinds}, {text: text}
    yield field("c", "bytes", DECIMAL, scale=2), text  # not seen in the wild, but unmistakable


@pytest.mark.parametrize("modes", [MODES, *CUSTOM])
def test_custom_placeholders_are_found_and_probed_for(modes):
    for made, value in placeholder_cases(modes):
        fields = [field("id", "int32"), made]
        others = {"id": 1, "c": None}
        image = ENCODE({"id": 2, "c": value})
        rows = decode(fields, others, image, others, modes=modes)
        assert rows.unavailable == [None, ("c",), None], made
        assert rows.columns.to_pylist()[1] == {"id": 2, "c": None}
        assert rows.bad == []
        probe = may_have_placeholder(table(*fields), modes)
        assert probe(image), made
        assert probe(json.dumps({"id": 2, "c": value}, ensure_ascii=True, indent=1).encode()), made


def test_the_probe_is_quiet_on_ordinary_rows():
    schema = table(
        field("id", "int64"),
        field("t", "string"),
        {**field("a", "array"), "items": field("e", "int32")},
    )
    probe = may_have_placeholder(schema, MODES)
    assert not probe(b'{"id":1,"t":"debezium unavailable","a":[95,95,1]}')
    assert may_have_placeholder(schema, HandlingModes(placeholder="→".encode()))(b"{}")
    spelled = MODES.placeholder_text.replace("_", "\\u005f").encode()
    assert probe(b'{"t":"%b"}' % spelled)
    assert decode([field("t", "string")], b'{"t":"%b"}' % spelled).unavailable == [("t",)]
