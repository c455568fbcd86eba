"""Datums read by compiled code, by plain code and by fastavro are the same values."""

import base64
import io
import json
import math
import struct

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.converters.avro.datum_writer import datum_of, varint
from lakemark.converters.avro.instructions import Unless, Wish, instructions
from lakemark.converters.avro.plain_datums import DatumError, json_of
from lakemark.converters.avro.program import program_of
from lakemark.converters.avro.transcript import transcript
from tests.kit.avro_records import datum

PRIMITIVES = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.binary(max_size=7),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=7),
}
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,4}", fullmatch=True)


@st.composite
def types(draw, names, depth=3):  # noqa: PLR0911 - one a kind
    """A schema, and what values it has."""
    kinds = ["primitive"] * 3 + ["fixed", "enum", "optional", "union"]
    kind = draw(st.sampled_from(kinds + ["record", "record", "array", "map"] * (depth > 0)))
    if kind == "primitive":
        return draw(st.sampled_from([*PRIMITIVES.items()]))
    if kind == "optional":
        schema, values = draw(types(names, depth))
        if schema == "null" or isinstance(schema, list):
            return schema, values
        branches = ["null", schema] if draw(st.booleans()) else [schema, "null"]
        return branches, st.none() | values
    if kind == "union":
        some = draw(st.permutations(["null", "boolean", "long", "string", "bytes"]))
        some = some[: draw(st.integers(1, 5))]
        return [*some], st.one_of(*(PRIMITIVES[one] for one in some))
    if kind in {"array", "map"}:
        schema, values = draw(types(names, depth - 1))
        some = st.lists(values, max_size=3)
        if kind == "map":
            some = st.dictionaries(PRIMITIVES["string"], values, max_size=3)
        return {"type": kind, "items" if kind == "array" else "values": schema}, some
    names.append(name := f"{draw(st.sampled_from(['', 'a.b.', 'c.']))}N{len(names)}")
    if kind == "fixed":
        size = draw(st.integers(1, 9))
        return {"type": kind, "name": name, "size": size}, st.binary(min_size=size, max_size=size)
    if kind == "enum":
        symbols = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
        return {"type": kind, "name": name, "symbols": symbols}, st.sampled_from(symbols)
    return draw(records(names, name, depth))


@st.composite
def records(draw, names, name, depth):
    """The schema of a record, which may have others of its own kind in it."""
    fields, values = [], {}
    for field in draw(st.lists(NAMES, max_size=4, unique=True)):
        schema, values[field] = draw(types(names, depth - 1))
        fields.append({"name": field, "type": schema})
    if fields and "next" not in values and draw(st.booleans()):
        fields.append({"name": "next", "type": ["null", name]})
        one = st.fixed_dictionaries({**values, "next": st.none()})
        values["next"] = st.none() | one
    return {"type": "record", "name": name, "fields": fields}, st.fixed_dictionaries(values)


@st.composite
def datums(draw):
    """A schema, and some of its datums."""
    schema, values = draw(types([]))
    found = draw(st.lists(values, min_size=1, max_size=4))
    return schema, [datum(schema, value) for value in found]


def told(value):
    """A value that fastavro has read, as its JSON says it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        words = {math.inf: "Infinity", -math.inf: "-Infinity"}
        return "NaN" if math.isnan(value) else words.get(value, value)
    if isinstance(value, list):
        return [*map(told, value)]
    if isinstance(value, dict):
        return {name: told(member) for name, member in value.items()}
    return value


def alike(ours, theirs) -> bool:
    """Whether two values are the same; 0.0 is not -0.0."""
    if isinstance(theirs, float):
        number = isinstance(ours, int | float) and not isinstance(ours, bool)
        return number and struct.pack("<d", ours) == struct.pack("<d", theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(alike, ours, theirs))
    if isinstance(theirs, dict):
        return [*ours] == [*theirs] and all(alike(ours[name], theirs[name]) for name in theirs)
    return type(ours) is type(theirs) and ours == theirs


def by_fastavro(schema, raw):
    """The value, as JSON would have it, and how many bytes it took."""
    data = io.BytesIO(raw)
    return told(fastavro.schemaless_reader(data, fastavro.parse_schema(schema))), data.tell()


def compiled(program, raws, around=b"", wanted=Wish.WHOLE, entries=None):
    """The JSON of datums that stand one behind the other, with something between them."""
    steps = instructions(program, *(wanted if isinstance(wanted, list) else [wanted]))
    data = np.frombuffer(around + b"".join(raw + around for raw in raws), np.uint8)
    sizes = np.array([len(raw) for raw in raws])
    begins = len(around) + np.cumsum(sizes + len(around)) - sizes - len(around)
    if entries:
        entries = np.array([steps.entries[entry] for entry in entries])
    found = transcript(steps, data, begins, begins + sizes, entries)
    return [found.at(index) for index in range(len(raws))]


def by_plain(program, raw):
    try:
        return json_of(program, raw)
    except DatumError:
        return None


@given(datums())
def test_all_three_say_the_same(drawn):
    schema, raws = drawn
    program = program_of(schema)
    found = compiled(program, raws)
    for raw, text in zip(raws, found, strict=True):
        expected, size = by_fastavro(schema, raw)
        assert size == len(raw)
        assert alike(_floats(program, json.loads(text)), expected), text
        assert alike(json.loads(by_plain(program, raw)), json.loads(text))


def _floats(program, value, node=0):
    """A value whose numbers of four bytes are those; JSON has the fewest digits that give them."""
    one = program.nodes[node]
    if one.kind == 4 and not isinstance(value, str):  # float
        return float(np.float32(value))
    if one.kind == 10:  # union
        rest = [part for part in one.parts if program.nodes[part].kind]
        return _floats(program, value, rest[0]) if value is not None and len(rest) == 1 else value
    if one.kind == 11:
        return {
            name: _floats(program, value[name], part)
            for name, part in zip(one.names, one.parts, strict=True)
        }
    if one.kind == 12:
        return [_floats(program, item, one.parts[0]) for item in value]
    if one.kind == 13:
        return {name: _floats(program, item, one.parts[0]) for name, item in value.items()}
    return float(value) if one.kind == 5 and not isinstance(value, str) else value


@given(datums())
def test_what_is_read_is_written_as_it_was(drawn):
    schema, raws = drawn
    program = program_of(schema)
    for raw, text in zip(raws, compiled(program, raws), strict=True):
        written = datum_of(program, text)
        again = by_fastavro(schema, written)[0]
        assert alike(again, by_fastavro(schema, raw)[0]) or _is_ambiguous(schema)


def _is_ambiguous(schema) -> bool:
    """Bytes and text look alike in JSON: the first branch gets them."""
    return "bytes" in json.dumps(schema) or "fixed" in json.dumps(schema)


@given(datums(), st.data())
def test_damaged_bytes_raise_nothing_and_nothing_behind_them_is_read(drawn, data):
    schema, raws = drawn
    program = program_of(schema)
    damaged = [_damaged(data, raw) for raw in raws]
    found = compiled(program, damaged)
    for around in (bytes(70), b"\xff" * 70, b"\x02" * 70):
        assert compiled(program, damaged, around) == found
    for raw, text in zip(damaged, found, strict=True):
        plain = by_plain(program, raw)
        assert (plain is None) == (text is None)
        if text is not None and _is_text(text):
            assert alike(json.loads(plain), json.loads(text))
            expected, size = by_fastavro(schema, raw)
            assert size == len(raw)
            assert alike(_floats(program, json.loads(text)), expected)


@given(datums(), st.data())
def test_no_more_is_written_than_is_wanted(drawn, data):
    """Of whatever is no record, and of those in arrays and maps, all or nothing is wanted."""
    schema, raws = drawn
    program = program_of(schema)
    wanted = [data.draw(_wishes(program, 0)) for _ in range(2)]
    which = data.draw(st.lists(st.integers(0, 1), min_size=len(raws), max_size=len(raws)))
    whole = compiled(program, raws)
    some = compiled(program, raws, wanted=wanted, entries=which)
    for text, part, entry in zip(whole, some, which, strict=True):
        kept = _kept(program, json.loads(text), wanted[entry])
        assert json.loads(part) == kept
    damaged = [_damaged(data, raw) for raw in raws]
    some = compiled(program, damaged, wanted=wanted, entries=which)
    for raw, part in zip(damaged, some, strict=True):
        assert (by_plain(program, raw) is None) == (part is None)


def _wishes(program, number, *, nothing=False):
    """What may be wanted of a value."""
    node, some = program.nodes[number], [st.sampled_from(list(Wish)[not nothing :])]
    fields = program.fields(program.branch(number))
    if fields and node.kind != 12:
        one = {
            name: st.deferred(lambda p=part: _wishes(program, p, nothing=True))
            for name, part in fields.items()
        }
        some.append(st.fixed_dictionaries({}, optional=one))
    return st.one_of(some)


def _kept(program, value, wanted, number=0):
    """The part of a value that is wanted."""
    if wanted is Wish.WHOLE or value is None:
        return value
    if wanted is Wish.BRIEF:
        return {}
    fields = program.fields(program.branch(number))
    return {
        name: _kept(program, value[name], wish, fields[name])
        for name, wish in wanted.items()
        if wish is not Wish.NOTHING
    }


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from("cud"), st.floats()), min_size=1))
def test_a_datum_that_says_so_later_is_read_anew_in_another_way(rows):
    fields = [("a", "long"), ("b", "double"), ("op", "string"), ("c", ["null", "double"])]
    schema = {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields]}
    program = program_of(schema)
    values = [{"a": a, "b": b, "op": op, "c": b} for a, op, b in rows]
    wanted = [{"a": Wish.WHOLE}, {"b": Wish.WHOLE, "op": Unless("d", 0), "c": Wish.WHOLE}]
    found = compiled(
        program, [datum(schema, one) for one in values], wanted=wanted, entries=[1] * len(rows)
    )
    for one, text in zip(values, found, strict=True):
        expected = (
            {n: told(one[n]) for n in ("b", "op", "c")} if one["op"] != "d" else {"a": one["a"]}
        )
        assert alike(json.loads(text), expected)


def _is_text(text) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _damaged(data, raw) -> bytes:
    found = bytearray(raw)
    for _ in range(data.draw(st.integers(0, 3))):
        if found:
            found[data.draw(st.integers(0, len(found) - 1))] = data.draw(st.integers(0, 255))
    found += data.draw(st.binary(max_size=2))
    return bytes(found[: data.draw(st.none() | st.integers(0, len(found)))])


DEEP = {
    "type": "record",
    "name": "Deep",
    "fields": [{"name": "more", "type": {"type": "array", "items": "Deep"}}],
}


def test_what_is_made_to_take_long_is_no_datum():
    """Blocks of items without bytes, and values in values without an end."""
    nulls = program_of({"type": "array", "items": "null"})
    raws = [varint(1 << 40) + b"\0", varint(60_000) + b"\0", varint(-(1 << 63)) + b"\0"]
    found = compiled(nulls, raws)
    assert found[0] is None
    assert json.loads(found[1]) == [None] * 60_000
    assert found[2] is None
    assert [by_plain(nulls, raw) is None for raw in raws] == [True, False, True]
    deep = program_of(DEEP)
    for depth, good in ((32, True), (33, False)):
        raw = b"\2" * (depth - 1) + b"\0" * depth
        assert (compiled(deep, [raw])[0] is not None) == good
        assert (by_plain(deep, raw) is not None) == good


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("int", varint(1 << 31)),
        ("int", varint(-(1 << 31) - 1)),
        ("boolean", b"\2"),
        ("string", varint((1 << 63) - 1)),
        ("string", varint(-1)),
        ("bytes", varint((1 << 63) - 1)),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, varint(2)),
        ({"type": "fixed", "name": "F", "size": 9}, bytes(8)),
        ({"type": "map", "values": "null"}, varint(1) + varint((1 << 63) - 1)),
        ({"type": "array", "items": "null"}, varint(-1) + varint((1 << 63) - 1)),
        ({"type": "array", "items": "null"}, varint(1 << 40)),
        ("long", b"\xff" * 9 + b"\2"),
        ("long", b"\xff" * 10 + b"\1"),
    ],
)
@pytest.mark.parametrize("wish", [Wish.NOTHING, Wish.BRIEF, Wish.WHOLE])
def test_what_is_only_gone_past_is_checked_too(kind, raw, wish):
    fields = [{"name": "a", "type": kind}, {"name": "b", "type": "boolean"}]
    program = program_of({"type": "record", "name": "R", "fields": fields})
    wanted = {"a": wish, "b": Wish.WHOLE}
    assert compiled(program, [raw + b"\1"], b"\1" * 20, wanted) == [None]
    assert by_plain(program, raw + b"\1") is None


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_room_is_made_for_what_is_larger_in_json(size):
    text = "\x01" * size
    program = program_of({"type": "array", "items": ["string", "double"]})
    raw = datum({"type": "array", "items": ["string", "double"]}, [text, *[0.1] * 9, text])
    (found,) = compiled(program, [raw])
    assert json.loads(found) == [text, *[0.1] * 9, text]
