"""Keys as Connect's StringConverter writes them: texts that the row beside them must bear out."""

from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.converters.json.converter import JsonConverter
from lakemark.converters.json.struct_keys import CLASS, DIFFERS
from lakemark.converters.registry import choice_of, converter_of, problems
from lakemark.errors import TableError
from lakemark.model.columns import Column
from lakemark.model.decoding import Records, StretchPlan
from lakemark.model.events import Kind
from lakemark.model.schema import TableSchema
from lakemark.source import decoder
from tests.kit.converter_contract import (
    IDENTITY,
    MODES,
    ORDERS,
    ROW,
    TABLE,
    TOPIC,
    by_key,
    rows_of_orders,
    source,
)

SETTINGS = {
    "key.converter": CLASS,
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}
PLAN = StretchPlan(IDENTITY, MODES, {TABLE: ORDERS}, epoch=3)
encode = msgspec.json.encode


def struct(row: dict[str, Any]) -> bytes:
    """A key as Java's `Struct.toString` has it."""
    said = {True: "true", False: "false"}
    cells = (
        f"{name}={said.get(cell, cell) if isinstance(cell, bool) else cell}"
        for name, cell in row.items()
        if cell is not None
    )
    return f"Struct{{{','.join(cells)}}}".encode()


def event(op: str, row: dict[str, Any], at: int = 5) -> bytes:
    before, after = (row, None) if op == "d" else (None, row)
    return encode({"before": before, "after": after, "source": source(at), "op": op})


def read(rows, keys, plan: StretchPlan = PLAN):
    values = [event("u", row, at) for at, row in enumerate(rows, 5)]
    given_ = Records(TOPIC, 0, [*range(len(rows))], [*keys], values, [None] * len(rows))
    converter = converter_of(choice_of(SETTINGS, {}))
    return converter, given_, converter.headers(given_, plan)


# Commas, names of columns and signs of equality within texts, as nobody would choose them.
tricky = st.text(st.sampled_from("a,=}id partn7"), max_size=12) | st.sampled_from(
    ["1,part=2", ",id=7", "}", "part=", "Struct{id=7}", ""]
)


@given(st.lists(rows_of_orders.flatmap(lambda r: tricky.map(lambda t: {**r, "part": t}))
                | rows_of_orders, min_size=1, max_size=5), st.booleans(), st.booleans())  # fmt: skip
def test_they_are_the_keys_of_their_rows_whatever_these_hold(rows, known, turned):
    names = tuple(reversed(ORDERS.key)) if turned else ORDERS.key
    keys = [struct({name: row[name] for name in names}) for row in rows]
    plan = PLAN if known else replace(PLAN, schemas={})
    converter, _, heads = read(rows, keys, plan)
    assert heads.reason == [None] * len(rows)
    plain = [encode({name: row[name] for name in ORDERS.key}) for row in rows]
    mine = converter.canonical_keys([heads.keys[at] for at in range(len(rows))], ORDERS)
    assert mine == JsonConverter().canonical_keys(plain, ORDERS)


@given(st.lists(rows_of_orders, min_size=1, max_size=6))
def test_rows_are_those_of_keys_in_json(rows):
    keys = [struct({name: row[name] for name in ORDERS.key}) for row in rows]
    _, given_, _ = read(rows, keys)
    mine = decoder.decode_range(given_, replace(PLAN, converter=choice_of(SETTINGS, {})))
    json_keys = [encode({name: row[name] for name in ORDERS.key}) for row in rows]
    theirs = decoder.decode_range(replace(given_, keys=json_keys), PLAN)
    assert by_key(mine) == by_key(theirs)


@pytest.mark.parametrize(
    "key", [b"Struct{id=8,part=a}", b"Struct{id=7,part=b}", b"Struct{}", b"Struct{id=7", b"Struct{x=1}"]
)  # fmt: skip
def test_a_text_that_says_another_row_is_bad(key):
    _, _, heads = read([{**ROW, "id": 7, "part": "a"}], [key])
    assert (heads.kind, heads.reason) == ([Kind.BAD], [DIFFERS])


def test_a_key_that_is_json_stays_one():
    key = encode({"id": 7, "part": "a"})
    _, _, heads = read([{**ROW, "id": 7, "part": "a"}], [key])
    assert (heads.kind, heads.keys) == ([Kind.CHANGE], {})


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("AQID", "java.nio.HeapByteBuffer[pos=0 lim=3 cap=3]"),
        ("AQID", "[B@1b2c3d"),
        (0.1, "0.1"),
        (1e25, "1.0E25"),
        ({"scale": 1, "value": "AQ=="}, "Struct{scale=1,value=java.nio.HeapByteBuffer[pos=0]}"),
        (True, "true"),
        (-7, "-7"),
    ],
)
def test_what_java_says_otherwise_is_taken_from_the_row(cell, said):
    row = {"n": 5, "k": cell, "id": 7}
    value = encode({"before": None, "after": row, "source": source(), "op": "c"})
    key = f"Struct{{id=7,k={said}}}".encode()
    given_ = Records(TOPIC, 0, [0], [key], [value], [None])
    heads = converter_of(choice_of(SETTINGS, {})).headers(given_, replace(PLAN, schemas={}))
    assert [msgspec.json.decode(heads.keys[0])] == [{"id": 7, "k": cell}]


def test_a_column_of_the_key_that_is_null_is_not_in_the_text():
    keyed = TableSchema(TABLE, ORDERS.columns, ("id", "n"))
    row = {**ROW, "id": 7, "n": None}
    _, _, heads = read([row], [b"Struct{id=7}"], replace(PLAN, schemas={TABLE: keyed}))
    assert msgspec.json.decode(heads.keys[0]) == {"id": 7, "n": None}


def test_a_text_that_can_mean_two_keys_is_none_without_its_row():
    converter = converter_of(choice_of(SETTINGS, {}))
    texts = TableSchema(TABLE, (Column("a", pa.string()), Column("b", pa.string())), ("a", "b"))
    found = converter.canonical_keys([b"Struct{a=1,b=2,b=3}", b"Struct{a=1,b=2}", b"{}"], texts)
    assert found == [None, *JsonConverter().canonical_keys([b'{"a":"1","b":"2"}', b"{}"], texts)]


def test_keys_with_bytes_are_not_written():
    converter = converter_of(choice_of(SETTINGS, {}))
    schema = TableSchema(TABLE, (Column("id", pa.binary()),), ("id",))
    with pytest.raises(TableError, match="bytes") as caught:
        converter.writer(TABLE, schema, MODES, learnt=None, wrapped=False)
    assert caught.value.code == "output-not-ready"


@given(st.binary(max_size=40).map(lambda b: b"Struct{" + b), st.binary(max_size=30))
def test_no_bytes_raise_anything(key, value):
    converter = converter_of(choice_of(SETTINGS, {}))
    for text in (value, event("u", ROW)):
        given_ = Records(TOPIC, 0, [0], [key], [text], [None])
        assert len(converter.headers(given_, PLAN).kind) == 1
    assert len(converter.canonical_keys([key, key], ORDERS)) == 2
    converter.key_image(key)
    converter.key_names(key)


@pytest.mark.timeout(20)
def test_a_long_text_takes_no_long_time():
    row = {"a": 0.5, "b": 0.25, "c": 0.125}
    key = b"Struct{a=" + b"," * 200_000 + b"}"
    value = encode({"before": None, "after": row, "source": source(), "op": "c"})
    given_ = Records(TOPIC, 0, [0], [key], [value], [None])
    heads = converter_of(choice_of(SETTINGS, {})).headers(given_, PLAN)
    assert heads.reason == [DIFFERS]


def test_it_is_a_converter_of_keys_alone():
    assert not [one for one in problems(SETTINGS, {}, described=True) if not one.warning]
    values = {**SETTINGS, "value.converter": CLASS}
    wrong = [one.path for one in problems(values, {}, described=True) if not one.warning]
    assert wrong == ["value.converter"]
    converter = converter_of(choice_of(SETTINGS, {}))
    assert [converter.carries_schemas(side) for side in ("key", "value")] == [False, False]
