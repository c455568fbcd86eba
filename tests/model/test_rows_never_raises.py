"""decode_rows survives any bytes, and its fast and slow ways agree."""

import base64
import json
from decimal import Decimal

import msgspec
import pyarrow as pa
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.converters.json.rows import decode_rows, may_have_placeholder
from lakemark.converters.json.values import codec
from lakemark.model.civil import Tally
from lakemark.model.handling_modes import HandlingModes
from tests.kit.images import assert_same_or_left
from tests.kit.nightly import examples

TYPES = ["bool", "int2", "int4", "int8", "float4", "float8", "text", "bytea", "numeric", "json", "uuid", "date", "time", "timestamp", "timestamptz", "timetz", "interval", "hstore", "point", "circle", "bit", "money", "sparsevec", "vector"]  # fmt: skip
PRECISIONS = st.sampled_from(
    ["adaptive", "connect", "isostring", "microseconds", "nanoseconds", "structured"]
)


@st.composite
def tables(draw):
    modes = HandlingModes(
        decimal=draw(st.sampled_from(["precise", "double", "string"])),
        time_precision=draw(PRECISIONS),
        binary=draw(st.sampled_from(["bytes", "base64", "hex"])),
        hstore=draw(st.sampled_from(["json", "map"])),
        decimal_format=draw(st.sampled_from(["BASE64", "NUMERIC"])),
    )
    columns = []
    for at, kind in enumerate(draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=6))):
        typmod = ((6 << 16) | 2) + 4 if kind == "numeric" and draw(st.booleans()) else -1
        array = draw(st.booleans()) and kind not in ("money", "interval", "point", "bit")
        name = draw(st.sampled_from([f"c{at}", f'c"{at}', f"ü {at}"]))
        columns.append(
            CatalogColumn(
                name,
                "_" + kind if array else kind,
                typmod,
                element_type_name=kind if array else None,
            )
        )
    return from_catalog("s.t", columns, [], modes), modes


ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**63), 2**63)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=20).map(lambda b: base64.b64encode(b).decode())
    | st.sampled_from(
        [
            "infinity",
            "-infinity",
            "NaN",
            "2020-01-01T00:00:00Z",
            "-0044-03-15T01:02:03.5Z",
            "+20000-01-01Z",
            "24:00:00Z",
            "9999-12-31T23:59:59.999999999Z",
            "__debezium_unavailable_value",
            10**400,
            2**63 - 1,
            -(2**63),
            "A0EE",
            "/0Oesg==",
        ]
    )
)
MEMBERS = st.sampled_from(
    [
        "scale",
        "value",
        "x",
        "y",
        "wkb",
        "year",
        "month",
        "day",
        "hour",
        "nanos",
        "specialValue",
        "offsetSeconds",
        "center",
        "radius",
        "dimensions",
        "vector",
    ]
)
JSONS = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(MEMBERS | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=12,
)


@st.composite
def images(draw, schema):
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=40))
    names = [c.name for c in schema.columns]
    value = draw(
        st.dictionaries(
            st.sampled_from(names) | st.sampled_from(["new", "x"]), JSONS, max_size=len(names) + 1
        )
    )
    raw = json.dumps(value).encode()
    if kind == 1 and raw:
        cut = draw(st.integers(0, len(raw)))
        return raw[:cut] + draw(st.binary(max_size=3)) + raw[cut:]
    return raw


@given(data=st.data(), table=tables())
@settings(max_examples=examples(120, nightly=3000), deadline=None)
def test_any_image_is_a_row_or_a_reason_and_never_an_exception(data, table):
    schema, modes = table
    batch = data.draw(st.lists(images(schema), max_size=6))
    rows = decode_rows(batch, schema, modes, partial=range(len(batch)))
    rows.columns.validate(full=True)
    assert rows.columns.type.names == [c.name for c in schema.columns]
    assert [f.type for f in rows.columns.type] == [c.type for c in schema.columns]
    assert len(rows.columns) == len(rows.unavailable) == len(batch)
    bad = {at for at, reason, _ in rows.bad if reason in ("wrong-type", "number-out-of-range")}
    assert len(bad) == len(rows.bad)
    assert {i for i in range(len(batch)) if not rows.columns[i].is_valid} == bad
    probe = may_have_placeholder(schema, modes)
    for at, image in enumerate(batch):
        assert not rows.unavailable[at] or probe(image)


@given(data=st.data(), table=tables())
@settings(max_examples=examples(60, nightly=1500), deadline=None)
def test_a_row_reads_the_same_alone_and_in_any_company(data, table):
    schema, modes = table
    batch = data.draw(st.lists(images(schema), min_size=2, max_size=5))
    together = decode_rows(batch, schema, modes, partial=range(len(batch)))
    reasons = {at: reason for at, reason, _ in together.bad}
    clamped = 0
    for at, image in enumerate(batch):
        alone = decode_rows([image], schema, modes, partial=[0])
        assert repr(alone.columns[0]) == repr(together.columns[at])
        assert alone.unavailable[0] == together.unavailable[at]
        assert [b[1] for b in alone.bad] == ([reasons[at]] if at in reasons else [])
        clamped += alone.clamped
    assert clamped == together.clamped


@given(data=st.data(), table=tables())
@settings(max_examples=examples(120, nightly=3000), deadline=None)
def test_the_vectors_agree_with_the_scalars(data, table):
    schema, modes = table
    column = schema.columns[0]
    one = codec(column, modes)
    values = []
    for raw in data.draw(st.lists(JSONS, max_size=6)):
        try:
            value = msgspec.json.decode(json.dumps(raw).encode(), type=one.wire)
            value = None if one.raw and bytes(value) == b"null" else value
            if value is not None:
                one.scalar(value, Tally())
            values.append(value)
        except (ValueError, OverflowError, ArithmeticError, TypeError):
            continue
    fast, slow = Tally(), Tally()
    array, bad = one.array(values, fast)
    single = [None if v is None else one.scalar(v, slow) for v in values]
    assert bad == {}
    assert repr(array.to_pylist()) == repr(pa.array(single, one.type).to_pylist())
    assert fast == slow


@given(data=st.data(), table=tables())
@settings(max_examples=examples(120, nightly=3000), deadline=None)
def test_images_in_a_buffer_are_the_same_rows_or_left(data, table):
    schema, modes = table
    names = st.sampled_from([column.name for column in schema.columns])
    rows = data.draw(st.lists(st.dictionaries(names, JSONS, max_size=6), min_size=1, max_size=4))
    ascii_only = data.draw(st.booleans())
    images = [json.dumps(row, separators=(",", ":"), ensure_ascii=ascii_only) for row in rows]
    assume(not any(odd in image for image in images for odd in ("NaN", "Infinity")))
    found = assert_same_or_left([image.encode() for image in images], schema, modes)
    event("left" if found is None else "read")


def test_long_decimals_as_json_numbers_are_exact():
    modes = HandlingModes(decimal_format="NUMERIC")
    schema = from_catalog("s.t", [CatalogColumn("n", "numeric", ((38 << 16) | 10) + 4)], [], modes)
    rows = decode_rows([b'{"n":1234567890123456789012345678.0123456789}'], schema, modes)
    assert rows.columns[0].as_py()["n"] == Decimal("1234567890123456789012345678.0123456789")
