"""Schemas of Avro that are made of Connect's: those of a real converter, and any."""

import base64
import io
import json
import struct
from decimal import Context, Decimal

import fastavro
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakemark.converters.avro.avro_schema import avro_schema
from lakemark.converters.avro.connect_schema import connect_schema
from lakemark.converters.avro.datum_writer import datum_of
from lakemark.converters.avro.plain_datums import DatumError, json_of
from lakemark.converters.avro.program import SchemaError, program_of
from tests.kit.golden import GOLDEN

AVRO = GOLDEN / "avro"
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES = {
    "int8": st.integers(-128, 127),
    "int16": st.integers(-(1 << 15), (1 << 15) - 1),
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "int64": LONG,
    "boolean": st.booleans(),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "string": TEXT,
    "bytes": st.binary(max_size=6).map(lambda raw: base64.b64encode(raw).decode()),
}


def test_a_schema_is_the_one_that_a_real_converter_registered():
    """The same tables on two servers, one with JSON that carries schemas, one with Avro."""
    wrapped = json.loads((AVRO / "wrapped_mariadb.json").read_text())
    known = json.loads((AVRO / "avro_mariadb_schemas.json").read_text())
    compared = 0
    for line in (AVRO / "avro_mariadb.jsonl").read_text().splitlines():
        sample = json.loads(line)
        for side in ("key", "value"):
            told, number = wrapped.get(sample["label"], {}).get(side), sample[f"{side}_schema"]
            if told and number is not None:
                text = json.dumps(told["schema"]).replace("mariadbs.", "mariaa.")
                assert avro_schema(json.loads(text)) == known[str(number)]["schema"]
                compared += 1
    assert compared > 60


@st.composite
def structs(draw, name="t.Value", depth=2):
    """A struct of Connect, and a value of it."""
    fields, row = [], {}
    for column in draw(st.lists(st.text(min_size=1, max_size=5), max_size=5, unique=True)):
        schema, value = draw(columns(f"{name}{len(fields)}", depth))
        fields.append({**schema, "field": column})
        row[column] = value
    return {"type": "struct", "fields": fields, "optional": False, "name": name}, row


@st.composite
def columns(draw, name, depth):
    kinds = [*VALUES, *(["array", "map", "struct"] if depth else [])]
    kind, optional = draw(st.sampled_from(kinds)), draw(st.booleans())
    if kind == "struct":
        schema, value = draw(structs(name, depth - 1))
    elif kind in {"array", "map"}:
        inner, one = draw(columns(name, depth - 1))
        of = {"array": "items", "map": "values"}[kind]
        schema = {"type": kind, of: inner}
        if kind == "map":
            schema["keys"] = {"type": "string", "optional": False}
        value = [one] if kind == "array" else {draw(TEXT): one}
    else:
        schema, value = {"type": kind}, draw(VALUES[kind])
        if draw(st.booleans()):
            schema |= {"name": "a.b", "version": 1, "parameters": {"p": draw(TEXT)}}
    if optional and draw(st.booleans()):
        value = None
    return {**schema, "optional": optional}, value


@given(structs())
def test_what_is_written_by_it_is_read_back_by_fastavro_and_by_us(told):
    schema, row = told
    made = avro_schema(schema)
    program = program_of(made)
    raw = datum_of(program, json.dumps(row).encode())
    assert json.loads(json_of(program, raw)) == row
    read = fastavro.schemaless_reader(io.BytesIO(raw), fastavro.parse_schema(made), None)
    assert [*map(str, read)] == [field["name"] for field in made["fields"]]
    for field, value in zip(schema["fields"], read.values(), strict=True):
        if field["type"] in {"int64", "int32", "string", "boolean", "double"}:
            assert value == row[field["field"]]
    assert _bare(connect_schema(made)) == _bare(schema)


def _bare(schema):
    """A schema without the names that Avro had to change, which are kept beside."""
    if isinstance(schema, dict):
        told = {k: _bare(v) for k, v in schema.items()}
        told["parameters"] = {
            k: v
            for k, v in (schema.get("parameters") or {}).items()
            if k != "__debezium.source.column.name"
        }
        return told
    return [*map(_bare, schema)] if isinstance(schema, list) else schema


def test_a_default_stands_where_connect_s_converters_put_it():
    schema = {
        "type": "struct",
        "fields": [
            {"type": "int32", "optional": True, "default": 7, "field": "n"},
            {"type": "bytes", "optional": False, "default": "/w==", "field": "b"},
        ],
    }
    assert avro_schema(schema)["fields"] == [
        {"name": "n", "type": [{"type": "int", "connect.default": 7}, "null"], "default": 7},
        {"name": "b", "type": {"type": "bytes", "connect.default": "ÿ"}, "default": "ÿ"},
    ]
    read = connect_schema({**avro_schema(schema), "name": "R"})["fields"]
    assert [field.get("default") for field in read] == [7, "/w=="]


@pytest.mark.parametrize(("scale", "logical"), [(2, "decimal"), (5, None), (-2, None)])
def test_a_decimal_that_avro_has_not_is_read_as_bytes(scale, logical):
    """numeric(3, 5) and numeric(3, -2): a logical type of these is none that parsers take."""
    told = {"scale": str(scale), "connect.decimal.precision": "3"}
    name = "org.apache.kafka.connect.data.Decimal"
    field = {"type": "bytes", "name": name, "parameters": told, "field": "n"}
    schema = {"type": "struct", "name": "t.Value", "fields": [field]}
    made = avro_schema(schema)
    assert made["fields"][0]["type"].get("logicalType") == logical
    fastavro.parse_schema(made)
    assert connect_schema(made)["fields"][0]["parameters"] == told


def decimal(scale, **more):
    told = {"scale": str(scale), "connect.decimal.precision": "400"}
    name = "org.apache.kafka.connect.data.Decimal"
    return {"type": "bytes", "name": name, "version": 1, "parameters": told, "field": "n", **more}


def in_base64(unscaled):
    size = (unscaled + (unscaled < 0)).bit_length() // 8 + 1  # as BigInteger.toByteArray has it
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


@given(st.integers(-(10**60), 10**60), st.integers(-5, 30), st.booleans(), st.integers(0, 3))
@example(0, 0, False, 0)
@example(-128, 0, False, 0)
@example(128, 2, True, 0)
def test_a_decimal_that_is_a_number_is_the_same_datum_as_in_base64(unscaled, scale, power, zeros):
    """What the JSON converter writes with decimal.format=NUMERIC, `BigDecimal.toString` and all."""
    program = program_of(avro_schema({"type": "struct", "name": "t.V", "fields": [decimal(scale)]}))
    value = Decimal(unscaled).scaleb(-scale, Context(prec=200))
    text = f"{unscaled}E{-scale}" if power else str(value)
    if "." in text and "E" not in text:
        text += "0" * zeros
    assert datum_of(program, f'{{"n":{text}}}'.encode()) == datum_of(
        program, json.dumps({"n": in_base64(unscaled)}).encode()
    )


@pytest.mark.parametrize("text", ["1.234", "1e-3", "1e999999999", "-1e-999999999", "true", "[1]"])
def test_a_number_that_is_no_decimal_of_its_scale_is_refused(text):
    program = program_of(avro_schema({"type": "struct", "name": "t.V", "fields": [decimal(2)]}))
    with pytest.raises(DatumError):
        datum_of(program, f'{{"n":{text}}}'.encode())
    plain = {"type": "struct", "name": "t.V", "fields": [{"type": "bytes", "field": "n"}]}
    with pytest.raises(DatumError):
        datum_of(program_of(avro_schema(plain)), b'{"n":1}')


def test_a_double_has_its_nearest_value_and_none_beyond_its_size():
    schema = {"type": "struct", "name": "t.V", "fields": [{"type": "double", "field": "n"}]}
    program = program_of(avro_schema(schema))
    for text in ("0.1", "-0.0", "1.7976931348623157e308", "5e-324", "3", '"NaN"', '"-Infinity"'):
        (number,) = struct.unpack("<d", datum_of(program, f'{{"n":{text}}}'.encode()))
        assert repr(number) == repr(float(json.loads(text)))
    with pytest.raises(DatumError):
        datum_of(program, b'{"n":1e309}')


@pytest.mark.parametrize(("number", "text"), [("12.50", "BOI="), ("-7", "/UQ="), ("7E+2", "ARFw")])
def test_a_default_that_is_a_number_is_that_in_base64(number, text):
    schema = msgspec.json.Decoder(float_hook=Decimal).decode(
        json.dumps({"type": "struct", "name": "t.V", "fields": [decimal(2, default="?")]})
        .replace('"?"', number)
        .encode()
    )
    fields = [decimal(2, default=text)]
    assert avro_schema(schema) == avro_schema({"type": "struct", "name": "t.V", "fields": fields})


def test_columns_that_share_a_type_keep_their_own_names():
    """Of a type with a name Avro defines one, and the other columns only name it."""
    point = {"type": "struct", "name": "a.Point", "fields": [{"type": "double", "field": "x"}]}
    names = ["first point", "p", "2nd", "second-point"]
    fields = [{**point, "field": name, "optional": True} for name in names]
    made = avro_schema({"type": "struct", "name": "t.V", "fields": fields})
    fastavro.parse_schema(made)
    assert program_of(made).nodes[0].names == names
    row = {name: {"x": float(at)} for at, name in enumerate(names)}
    program = program_of(made)
    assert json.loads(json_of(program, datum_of(program, json.dumps(row).encode()))) == row


def test_names_that_become_one_stay_two():
    fields = [{"type": "int32", "field": name} for name in ("a b", "a_b", "a-b")]
    made = avro_schema({"type": "struct", "name": "Odd-Name.2nd.Value", "fields": fields})
    assert (made["namespace"], made["connect.name"]) == ("Odd_Name._2nd", "Odd_Name._2nd.Value")
    assert len({field["name"] for field in made["fields"]}) == 3
    assert program_of(made).nodes[0].names == ["a b", "a_b", "a-b"]


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "odd"},
        {"type": "map", "keys": {"type": "int32"}, "values": {"type": "int32"}},
        {"type": "struct", "name": "a", "fields": [
            {"type": "struct", "name": "a", "fields": [], "field": "x"},
        ]},
    ],
)  # fmt: skip
def test_what_avro_has_not_is_refused(schema):
    with pytest.raises(SchemaError):
        avro_schema(schema)


def test_a_value_that_the_schema_has_no_place_for_is_refused_and_never_left_out():
    made = avro_schema(
        {"type": "struct", "name": "t.V", "fields": [{"type": "int32", "field": "a"}]}
    )
    assert datum_of(program_of(made), b'{"a":1,"b":null}') == b"\x02"
    with pytest.raises(DatumError):
        datum_of(program_of(made), b'{"a":1,"b":2}')
