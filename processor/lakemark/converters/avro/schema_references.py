"""Schemas that name others, made whole: what they name is put where it is named first. Pure.

A registry may keep a schema in parts: a named type (record, enum, fixed) that stands in a schema of
its own is told by its full name alone, and the registry says which schemas belong together.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

_PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_INNER: Final = ("items", "values")


def parsed(text: str) -> Any:
    """Return a schema decoded from JSON.

    Raises:
        ValueError: it is no JSON, or too deep.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def undefined(schema: Any) -> frozenset[str]:
    """Return the full names of the types that a schema uses and does not define.

    Args:
        schema: as `parsed` has it.

    Raises:
        ValueError: it is no Avro schema.
    """
    whole = _Whole(())
    whole.of(schema)
    return frozenset(whole.missing)


def inlined(schema: Any, others: Iterable[Any]) -> Any:
    """Return a schema with the types in it that others define.

    Args:
        schema: as `parsed` has it.
        others: schemas that define them, and what they need in turn, in any order.

    Raises:
        ValueError: one is no Avro schema, or a type is nowhere defined.
    """
    whole = _Whole(others)
    made = whole.of(schema)
    if whole.missing:
        raise ValueError(f"nobody defines {', '.join(sorted(whole.missing))}")
    return made


class _Whole:
    """One schema on its way.

    Attributes:
        missing: types that were used and are nowhere defined.
    """

    def __init__(self, others: Iterable[Any]) -> None:
        self.missing: set[str] = set()
        self._defined: set[str] = set()
        self._others: dict[str, Any] = {}
        for other in others:
            _checked(self._collect, other)

    def of(self, schema: Any) -> Any:
        return _checked(self._walk, schema)

    def _collect(self, schema: Any, space: str = "") -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch, space)
        if not isinstance(schema, dict):
            return
        kind = schema["type"]
        if not isinstance(kind, str) or kind not in _NAMED:
            for inner in (kind, *(schema[name] for name in _INNER if name in schema)):
                self._collect(inner, space)
            return
        space, name = _parts(schema, space)
        self._others.setdefault(_full(space, name), {**schema, "namespace": space, "name": name})
        for field in schema.get("fields", ()):
            self._collect(field["type"], space)

    def _walk(self, schema: Any, space: str = "") -> Any:
        if isinstance(schema, str):
            return self._named(schema, space)
        if isinstance(schema, list):
            return [self._walk(branch, space) for branch in schema]
        kind = schema["type"]
        if isinstance(kind, str) and kind in _NAMED:
            return self._definition(schema, space)
        inner = {name: self._walk(schema[name], space) for name in _INNER if name in schema}
        if not inner and not (isinstance(kind, str) and kind in _PRIMITIVES):
            inner["type"] = self._walk(kind, space)
        return {**schema, **inner}

    def _named(self, name: str, space: str) -> Any:
        if name in _PRIMITIVES:
            return name
        full = name if "." in name else _full(space, name)
        if full in self._defined:
            return name
        if full not in self._others:
            self.missing.add(full)
            return name
        return self._definition(self._others[full], "")

    def _definition(self, schema: dict[str, Any], space: str) -> Any:
        space, name = _parts(schema, space)
        full = _full(space, name)
        if full in self._defined:
            return full  # it came in before, as a part of another
        self._defined.add(full)
        if "fields" not in schema:
            return schema
        fields = [{**field, "type": self._walk(field["type"], space)} for field in schema["fields"]]
        return {**schema, "fields": fields}


def _checked(walk: Any, schema: Any) -> Any:
    try:
        return walk(schema)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"this is no Avro schema ({type(error).__name__})") from error


def _parts(schema: dict[str, Any], space: str) -> tuple[str, str]:
    """Return namespace and name of a named type: a name with dots has its namespace in it."""
    before, _, name = str(schema["name"]).rpartition(".")
    return before or str(schema.get("namespace", space)), name


def _full(space: str, name: str) -> str:
    return f"{space}.{name}" if space else name
