"""Schemas in parts become what they were as one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemark.converters.avro.schema_references import inlined, parsed, undefined

NAMED = {"record", "enum", "fixed"}


def full(schema: Any, space: str = "") -> Any:
    """A schema whose names are all full, and which has no namespaces."""
    if isinstance(schema, str):
        plain = {"null", "long", "string"}
        return schema if schema in plain or "." in schema or not space else f"{space}.{schema}"
    if isinstance(schema, list):
        return [full(branch, space) for branch in schema]
    found = dict(schema)
    if schema["type"] in NAMED:
        before, _, name = schema["name"].rpartition(".")
        space = before or found.pop("namespace", space)
        found.pop("namespace", None)
        found["name"] = f"{space}.{name}" if space else name
        if "fields" in found:
            found["fields"] = [{**f, "type": full(f["type"], space)} for f in schema["fields"]]
        return found
    for inner in ("items", "values"):
        if inner in found:
            found[inner] = full(found[inner], space)
    return found


@st.composite
def in_parts(draw: st.DrawFn) -> tuple[Any, Any, list[Any]]:
    """A schema; the same without some of its types; and these, in any order."""
    parts: list[Any] = []
    names = iter(range(1_000))
    known: list[str] = []

    def schema(depth: int) -> tuple[Any, Any]:
        kinds = ["long", "string", "union", "array", "map", "known", *NAMED]
        kind = draw(st.sampled_from(kinds if depth else kinds[:2]))
        if kind == "known" and known:
            name = draw(st.sampled_from(known))
            return name, name
        if kind in {"long", "string", "known"}:
            return ("long",) * 2 if kind == "known" else (kind,) * 2
        if kind == "union":
            whole, part = schema(0)
            return ["null", whole], ["null", part]
        if kind in {"array", "map"}:
            inner = "items" if kind == "array" else "values"
            whole, part = schema(depth - 1)
            return {"type": kind, inner: whole}, {"type": kind, inner: part}
        name = f"n{draw(st.integers(0, 2))}.T{next(names)}"
        if kind == "enum":
            made = {"type": "enum", "name": name, "symbols": ["A", "B"]}
            whole, part = made, made
        elif kind == "fixed":
            made = {"type": "fixed", "name": name, "size": 3}
            whole, part = made, made
        else:
            fields = [(f"f{at}", *schema(depth - 1)) for at in range(draw(st.integers(0, 3)))]
            head = {"type": "record", "name": name}
            whole = {**head, "fields": [{"name": n, "type": w} for n, w, _ in fields]}
            part = {**head, "fields": [{"name": n, "type": p} for n, _, p in fields]}
        known.append(name)
        if draw(st.booleans()):
            parts.append(part)
            return whole, name
        return whole, part

    whole, part = schema(4)
    return whole, part, draw(st.permutations(parts))


@given(in_parts())
def test_a_schema_in_parts_becomes_what_it_was(drawn):
    whole, part, parts = drawn
    assert full(inlined(part, parts)) == full(whole)
    assert not undefined(whole)
    assert not undefined(inlined(part, parts))
    if part != whole:
        assert undefined(part) or isinstance(part, str)


def test_a_name_without_a_namespace_is_of_the_one_around_it():
    outer = {
        "type": "record", "name": "Outer", "namespace": "a.b",
        "fields": [
            {"name": "x", "type": ["null", "Inner"], "default": None},
            {"name": "y", "type": "Inner"},
            {"name": "z", "type": {"type": "string", "connect.name": "x"}},
        ],
    }  # fmt: skip
    inner = {"type": "enum", "name": "Inner", "namespace": "a.b", "symbols": ["A"]}
    assert undefined(outer) == {"a.b.Inner"}
    found = inlined(outer, [inner])
    assert found["fields"][0]["type"] == ["null", inner]
    assert [field["type"] for field in found["fields"][1:]] == ["Inner", outer["fields"][2]["type"]]


def test_a_type_that_stands_inside_another_can_be_meant_alone():
    holder = {
        "type": "record", "name": "a.Holder",
        "fields": [{"name": "i", "type": {"type": "fixed", "name": "Inner", "size": 2}}],
    }  # fmt: skip
    schema = {
        "type": "record", "name": "b.R",
        "fields": [{"name": "one", "type": "a.Inner"}, {"name": "all", "type": "a.Holder"}],
    }  # fmt: skip
    one, both = (field["type"] for field in inlined(schema, [holder])["fields"])
    assert one == {"type": "fixed", "name": "Inner", "namespace": "a", "size": 2}
    assert both["fields"][0]["type"] == "a.Inner", "it is defined once"


def test_a_schema_that_refers_to_itself_is_whole():
    tree = {
        "type": "record", "name": "Tree",
        "fields": [{"name": "next", "type": ["null", "Tree"], "default": None}],
    }  # fmt: skip
    assert not undefined(tree)
    assert inlined(tree, []) == tree


def test_a_type_that_nobody_has_is_named():
    with pytest.raises(ValueError, match=r"nobody defines x\.Gone"):
        inlined({"type": "array", "items": "x.Gone"}, [{"type": "fixed", "name": "y.Z", "size": 1}])


@pytest.mark.parametrize(
    "schema", [None, 7, {}, {"type": "record"}, {"type": "record", "name": "x", "fields": [{}]}]
)
def test_what_is_no_schema_is_an_error_of_value(schema):
    with pytest.raises(ValueError, match="no Avro schema"):
        undefined(schema)
    with pytest.raises(ValueError, match="no Avro schema"):
        inlined(schema, [])


@pytest.mark.parametrize("text", ["", "[" * 100_000])
def test_text_that_is_no_json_is_an_error_of_value(text):
    with pytest.raises(ValueError):
        parsed(text)
