"""A writer's schema as the Connect schema that it was made from, in the form of its JSON converter.

`model.schema` makes a table's columns of it, so that a column is the same whichever converter wrote
it. Where the schema has Connect's own properties (`connect.name`, `connect.parameters`,
`connect.type`) they count; a schema that no connector has made, or one without them
(`connect.meta.data=false`), is read by the logical types of Avro.

A recursive type, and a union of several types, have no Connect schema: such a value is kept as its
JSON text.
"""

import base64
from collections.abc import Mapping
from typing import Any, Final

from lakemark.converters.avro.program import (
    NAMED,
    OF_ITEMS,
    PRIMITIVES,
    SchemaError,
    full_name,
    source_name,
)
from lakemark.model.columns import DECIMAL, ENUM, MAX_PRECISION, UUID

_TYPES: Final[Mapping[str, str]] = {
    "int": "int32",
    "long": "int64",
    "fixed": "bytes",
    "enum": "string",
}
_LOGICAL: Final[Mapping[str, str]] = {
    "date": "org.apache.kafka.connect.data.Date",
    "time-millis": "org.apache.kafka.connect.data.Time",
    "time-micros": "io.debezium.time.MicroTime",
    "timestamp-millis": "org.apache.kafka.connect.data.Timestamp",
    "timestamp-micros": "io.debezium.time.MicroTimestamp",
    "timestamp-nanos": "io.debezium.time.NanoTimestamp",
    "local-timestamp-millis": "io.debezium.time.Timestamp",
    "local-timestamp-micros": "io.debezium.time.MicroTimestamp",
    "local-timestamp-nanos": "io.debezium.time.NanoTimestamp",
    "uuid": UUID,
}
_OF_COLUMN: Final = "__debezium.source.column."
"""How parameters begin that the connector has of a column, see `column.propagate.source.type`."""
_NESTED: Final = frozenset({"struct", "array", "map", "union"})
_OTHER: Final = "union"
"""A type that Connect does not have."""


def connect_schema(schema: Any) -> dict[str, Any]:
    """Return the Connect schema of a record.

    Args:
        schema: of Avro, the data of its JSON.

    Raises:
        SchemaError: it is none.
    """
    try:
        return _Types().type(schema, "", ())
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise SchemaError(f"this is no schema of Avro: {error!r}") from None


class _Types:
    """The types of one schema that have names."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[Mapping[str, Any], str]] = {}

    def type(self, schema: Any, space: str, within: tuple[str, ...]) -> dict[str, Any]:
        """Return a type's Connect schema.

        Args:
            schema: the type.
            space: the namespace that it stands in.
            within: full names of the types that it stands in.
        """
        if isinstance(schema, list):
            return self._union(schema, space, within)
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(kind, list | dict):
            return self.type(kind, space, within)
        if isinstance(schema, dict) and kind in NAMED:
            return self._with_name(kind, schema, space, within)
        if kind not in PRIMITIVES and kind not in OF_ITEMS:
            return self._known(full_name(kind, space), within)
        out = _described(kind, {} if isinstance(schema, str) else schema)
        if kind in OF_ITEMS:
            out[OF_ITEMS[kind]] = self.type(schema[OF_ITEMS[kind]], space, within)
        if kind == "map":
            out["keys"] = {"type": "string", "optional": False}
        return out

    def _known(self, name: str, within: tuple[str, ...]) -> dict[str, Any]:
        schema, space = self._named[name]
        if name in within:
            return {"type": _OTHER, "optional": False}
        return _without_column(self.type(schema, space, within))

    def _union(self, branches: list[Any], space: str, within: tuple[str, ...]) -> dict[str, Any]:
        some = [branch for branch in branches if branch != "null"]
        types = [self.type(branch, space, within) for branch in some]
        out = types[0] if len(types) == 1 else {"type": _OTHER}
        return {**out, "optional": len(some) < len(branches)}

    def _with_name(
        self, kind: str, schema: Mapping[str, Any], space: str, within: tuple[str, ...]
    ) -> dict[str, Any]:
        name = full_name(schema["name"], schema.get("namespace", space) or "")
        if name in within:
            return {"type": _OTHER, "optional": False}
        self._named[name] = (schema, space)
        if kind not in {"record", "error"}:
            return _described(kind, schema)
        out = {**_described("struct", schema), "fields": []}
        out.setdefault("name", name)
        for field in schema["fields"]:
            told = self.type(field["type"], name.rpartition(".")[0], (*within, name))
            default = _default(field.get("default"), told["type"])
            told = told if default is None else {**told, "default": default}
            out["fields"].append({**told, "field": source_name(field)})
        return out


def _described(kind: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return type, name and parameters of a Connect schema."""
    out: dict[str, Any] = {"type": schema.get("connect.type", _TYPES.get(kind, kind))}
    out["optional"] = False
    name, parameters = schema.get("connect.name"), schema.get("connect.parameters")
    logical = schema.get("logicalType")
    if name is None and logical == "decimal":
        name = DECIMAL
        parameters = {**_digits(schema), **(parameters or {})}
    elif name is None:
        name = ENUM if kind == "enum" else _LOGICAL.get(logical or "")
    if name is not None:
        out["name"] = name
    if schema.get("connect.version") is not None:
        out["version"] = schema["connect.version"]
    if parameters:
        out["parameters"] = {str(key): str(value) for key, value in parameters.items()}
    return out


def _default(default: Any, kind: str) -> Any:
    """Return a field's default as Connect's JSON has it; None for none, and for nested types."""
    if default is None or kind in _NESTED:
        return None
    return base64.b64encode(default.encode("latin-1")).decode() if kind == "bytes" else default


def _without_column(connect: dict[str, Any]) -> dict[str, Any]:
    """Return a type that is used again without what it tells of the column that it came with."""
    told = connect.get("parameters", {})
    kept = {name: text for name, text in told.items() if not name.startswith(_OF_COLUMN)}
    rest = {name: value for name, value in connect.items() if name != "parameters"}
    return {**rest, "parameters": kept} if kept else rest


def _digits(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return scale and precision of a decimal; the latter where it says anything."""
    precision = int(schema["precision"])
    told = {"connect.decimal.precision": str(precision)} if precision <= MAX_PRECISION else {}
    return {"scale": str(schema.get("scale", 0)), **told}
