"""A Connect schema as the schema that Connect's converters of Avro register for it.

The way back from `connect_schema`. Names that Avro does not have are changed as Debezium's
`field.name.adjustment.mode=avro` changes them; the name of a field is then kept in the schema,
under `SOURCE_NAME`, where whoever reads the table finds it again: among the parameters of its type,
or beside the type where that is defined elsewhere.
"""

import base64
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from lakemark.converters.avro.datum_writer import decimal_bytes
from lakemark.converters.avro.plain_datums import DatumError
from lakemark.converters.avro.program import SOURCE_NAME, SchemaError, source_name
from lakemark.model.columns import DECIMAL

_NO_PRECISION: Final = 64
"""Of a decimal of which only the scale is known, as these converters write it."""
_TYPES: Final[Mapping[str, str]] = {
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float32": "float",
    "float64": "double",
    "boolean": "boolean",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
}
_NARROW: Final = frozenset({"int8", "int16"})
_LOGICAL: Final[Mapping[str, str]] = {
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}
_NAMELESS: Final = "ConnectDefault"
_SPACE: Final = "io.confluent.connect.avro"
_OTHER: Final = re.compile(r"[^A-Za-z0-9_]")


def avro_schema(schema: Mapping[str, Any]) -> Any:
    """Return the Avro schema of a Connect schema.

    Args:
        schema: the data of its JSON, as a wrapped record has it.

    Raises:
        SchemaError: it is none, or has a type that Avro has not.
    """
    try:
        return _Types().bare(schema, "")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, DatumError) as error:
        raise SchemaError(f"this Connect schema has none of Avro: {error!r}") from None


def legal(name: str) -> str:
    """Return a name, or a part of one, as Avro takes it."""
    changed = _OTHER.sub("_", name)
    return f"_{changed}" if changed[:1].isdigit() or not changed else changed


class _Types:
    """The types of one schema; those with names are defined where they come first."""

    def __init__(self) -> None:
        self._defined: dict[str, list[Any]] = {}

    def of(self, schema: Mapping[str, Any], space: str) -> Any:
        """Return a type, with null if it may be null: behind it where there is a default."""
        kind = self.bare(schema, space)
        if not schema.get("optional"):
            return kind
        return ["null", kind] if _default(schema) is None else [kind, "null"]

    def bare(self, schema: Mapping[str, Any], space: str) -> Any:
        """Return a type, as if it could not be null."""
        kind = schema["type"]
        if kind == "struct":
            return self._record(schema, space)
        if kind == "array":
            return _noted({"type": "array", "items": self.of(schema["items"], space)}, schema)
        if kind == "map":
            if schema["keys"]["type"] != "string":
                raise ValueError("a map whose keys are no texts")
            return _noted({"type": "map", "values": self.of(schema["values"], space)}, schema)
        out = _noted(_sized({"type": _TYPES[kind]}, schema), schema)
        return out["type"] if out.keys() == {"type"} else out

    def _record(self, schema: Mapping[str, Any], space: str) -> Any:
        named = schema.get("name") or f"{_SPACE}.{_NAMELESS}{len(self._defined) or ''}"
        name = ".".join(map(legal, named.split(".")))
        own, _, last = name.rpartition(".")
        fields = schema.get("fields") or []
        if name in self._defined:
            if self._defined[name] != fields:
                raise ValueError(f"{name} is two different types")
            return last if own == space else name
        self._defined[name] = fields
        taken = {field["field"] for field in fields if legal(field["field"]) == field["field"]}
        out: dict[str, Any] = {"type": "record", "name": last, "namespace": own, "fields": []}
        if own == space:
            del out["namespace"]
        out["fields"] = [self._field(field, own, taken) for field in fields]
        return _noted(out, {**schema, "name": name if schema.get("name") else None})

    def _field(self, schema: Mapping[str, Any], space: str, taken: set[str]) -> dict[str, Any]:
        name = str(schema["field"])
        changed = legal(name)
        if changed != name:
            while changed in taken:
                changed += "_"
            taken.add(changed)
            told = {SOURCE_NAME: name, **(schema.get("parameters") or {})}
            schema = {**schema, "parameters": told}
        out: dict[str, Any] = {"name": changed, "type": self.of(schema, space)}
        if source_name(out) != name:  # another field has defined its type, which tells of that one
            out[SOURCE_NAME] = name
        default = _default(schema)
        if default is not None or schema.get("optional"):
            out["default"] = default
        return out


def _sized(out: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Add what only numbers have: the width of small ones, the digits of decimals."""
    if schema["type"] in _NARROW:
        out["connect.type"] = schema["type"]
    if schema.get("name") == DECIMAL:
        told = schema.get("parameters") or {}
        out["scale"] = int(told.get("scale", 0))
        out["precision"] = int(told.get("connect.decimal.precision", _NO_PRECISION))
    return out


def _noted(out: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Add what Connect's own properties say of a type."""
    name, default = schema.get("name"), _default(schema)
    notes = {
        "connect.doc": schema.get("doc"),
        "connect.version": schema.get("version"),
        "connect.parameters": schema.get("parameters") or None,
        "connect.default": default,
        "connect.name": name,
        "logicalType": "decimal" if _is_decimal(out) else _LOGICAL.get(name or ""),
    }
    return {**out, **{note: value for note, value in notes.items() if value is not None}}


def _is_decimal(out: Mapping[str, Any]) -> bool:
    """Say whether a type is a decimal to Avro, which has none of more digits than all (0.00012)."""
    return "scale" in out and 0 <= out["scale"] <= out["precision"]


def _default(schema: Mapping[str, Any]) -> Any:
    """Return the default as Avro writes it; None for none, and for that of a nested type."""
    default = schema.get("default")
    if default is None or schema["type"] not in _TYPES:
        return None
    if schema["type"] == "bytes":
        return _raw(default, schema).decode("latin-1")
    return float(default) if isinstance(default, Decimal) else default


def _raw(default: Any, schema: Mapping[str, Any]) -> bytes:
    """Return the bytes of a default; a decimal's is a number with ``decimal.format=NUMERIC``."""
    if isinstance(default, str):
        return base64.b64decode(default)
    if schema.get("name") != DECIMAL:
        raise TypeError("bytes that are no text")
    return decimal_bytes(default, int((schema.get("parameters") or {}).get("scale", 0)))
