"""A source column: its canonical Arrow type and how Debezium writes its values as JSON.

`Column` is what the decoder, the key writer, the chunk reader and the sinks agree on. `describe`
is the one place that turns a Connect schema, as the JSON converter writes it, into a `Column`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import pyarrow as pa

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
VARIABLE_DECIMAL: Final = "io.debezium.data.VariableScaleDecimal"
UUID: Final = "io.debezium.data.Uuid"
ENUM: Final = "io.debezium.data.Enum"
BITS: Final = "io.debezium.data.Bits"
JSON: Final = "io.debezium.data.Json"
SPECIAL_NUMBERS: Final[Mapping[str, str]] = {
    "NAN": "NaN",
    "POSITIVE_INFINITY": "Infinity",
    "NEGATIVE_INFINITY": "-Infinity",
}
"""The texts that Debezium writes where numerics are texts, and the database's own."""
USUAL_DIGITS: Final = 6  # of a second's fraction, where a type says nothing else
MAX_PRECISION: Final = 38  # of an Arrow decimal128 and of a Delta decimal
TIMESTAMP: Final = pa.timestamp("us")
TIMESTAMP_UTC: Final = pa.timestamp("us", "UTC")

_PRIMITIVES: Final[Mapping[str, pa.DataType]] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}

# Semantic names whose canonical type is not that of their Connect type. A name that is not here
# is only a note on its Connect type (Json, Uuid, Enum, Xml, MicroDuration, Point ...).
_SEMANTIC: Final[Mapping[tuple[str, str], pa.DataType]] = {
    ("int32", "io.debezium.time.Date"): pa.date32(),
    ("int32", "org.apache.kafka.connect.data.Date"): pa.date32(),
    ("string", "io.debezium.time.IsoDate"): pa.date32(),
    ("struct", "io.debezium.time.StructuredDate"): pa.date32(),
    ("int32", "io.debezium.time.Time"): pa.string(),
    ("int32", "org.apache.kafka.connect.data.Time"): pa.string(),
    ("int64", "io.debezium.time.MicroTime"): pa.string(),
    ("int64", "io.debezium.time.NanoTime"): pa.string(),
    ("struct", "io.debezium.time.StructuredTime"): pa.string(),
    ("struct", "io.debezium.time.StructuredZonedTime"): pa.string(),
    ("struct", "io.debezium.time.StructuredDuration"): pa.string(),
    ("int64", "io.debezium.time.Timestamp"): TIMESTAMP,
    ("int64", "io.debezium.time.MicroTimestamp"): TIMESTAMP,
    ("int64", "io.debezium.time.NanoTimestamp"): TIMESTAMP,
    ("int64", "org.apache.kafka.connect.data.Timestamp"): TIMESTAMP,
    ("string", "io.debezium.time.IsoTimestamp"): TIMESTAMP,
    ("struct", "io.debezium.time.StructuredTimestamp"): TIMESTAMP,
    ("string", "io.debezium.time.ZonedTimestamp"): TIMESTAMP_UTC,
    ("struct", "io.debezium.time.StructuredZonedTimestamp"): TIMESTAMP_UTC,
    ("struct", VARIABLE_DECIMAL): pa.string(),
}
_KEPT_PARAMETERS: Final = ("connect.decimal.precision", "length", "scale")
# Set by the connector's column.propagate.source.type.
_SOURCE_TYPE: Final = "__debezium.source.column.type"
_SOURCE_LENGTH: Final = "__debezium.source.column.length"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a source table, or one element or member of a nested one.

    Attributes:
        name: as the source writes it, any case and any characters.
        type: canonical Arrow type (the type of the Delta column).
        encoding: Connect or Debezium semantic name of the JSON form; "" for a plain one.
        optional: whether null is allowed.
        parameters: schema parameters that decide how values are read (scale, precision, length).
        element: element of a list, value of a map.
        members: members of a struct, in order.
        wire: Connect type of the JSON form (``int64``, ``string``, ``array`` ...); ``json`` for
            what has no Arrow form and is kept as its JSON text.
        padded: char(n): the database compares it without trailing blanks. Known only from the
            catalog or from ``column.propagate.source.type``, so it takes no part in equality.
        modifier: of a time, the digits of a second's fraction that its values have; of a char(n),
            n. Known only from the catalog, so it takes no part in equality either.
        source_type: the database's name of its base type in lower case, such as ``varbit``; of a
            numeric with its digits, ``numeric(10)``. "" where it is not known. As `padded`: from
            the catalog or the propagated type.
        mend: how values are mended, see `value_rules`; "" for not at all. Known from the catalog
            or the record's own schema; it takes no part in equality, but the type that it gives
            does.
        default: the default that its connector gives it, as JSON; "" for none, and where it is not
            known. It takes no part in equality, as no value is read by it.
        allowed: symbols of an enum or a set, as its connector joins them; as `default`.
    """

    name: str
    type: pa.DataType
    encoding: str = ""
    optional: bool = True
    parameters: tuple[tuple[str, str], ...] = ()
    element: "Column | None" = None
    members: tuple["Column", ...] = ()
    wire: str = "string"
    padded: bool = field(default=False, compare=False)
    modifier: int | None = field(default=None, compare=False)
    source_type: str = field(default="", compare=False)
    mend: str = field(default="", compare=False)
    default: str = field(default="", compare=False)
    allowed: str = field(default="", compare=False)

    @property
    def is_numeric_text(self) -> bool:
        """True if values are numbers of the database as text: decimal.handling.mode is string.

        False also where nobody says so: the database's type must be known.
        """
        base = self.source_type.partition("(")[0]
        return base == "numeric" and self.wire == "string" and not self.encoding

    def with_notes_of(self, other: "Column") -> "Column":
        """Return this column with what the catalog's, `other`, knows of it beyond its form.

        The mend, and the type that it gives, are for values of one form: where that of the catalog
        is another one, both stay as they are.
        """
        notes = {name: getattr(other, name) for name in NO_NOTES}
        if self.form == other.form:
            notes["type"] = other.type
        else:
            del notes["mend"]
        if all(getattr(self, name) == value for name, value in notes.items()):
            return self
        return replace(self, **notes)

    @property
    def form(self) -> tuple[object, ...]:
        """The way in which values are written, as far as the Connect schema tells it."""
        return self.wire, self.encoding, self.parameters, self.element, self.members

    def parameter(self, name: str) -> str | None:
        """Value of one schema parameter, or None."""
        return dict(self.parameters).get(name)

    def to_data(self) -> dict[str, Any]:
        """The column as JSON-ready data; `from_data` gives an equal column back."""
        data: dict[str, Any] = {"name": self.name, "type": type_to_data(self.type)}
        data |= {"encoding": self.encoding, "optional": self.optional, "wire": self.wire}
        data |= {"parameters": [list(p) for p in self.parameters], "padded": self.padded}
        data["element"] = self.element.to_data() if self.element else None
        data["members"] = [m.to_data() for m in self.members]
        data |= {"modifier": self.modifier, "source_type": self.source_type, "mend": self.mend}
        data |= {"default": self.default, "allowed": self.allowed}
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Column":
        """The column that `to_data` described."""
        return cls(
            name=data["name"],
            type=type_from_data(data["type"]),
            encoding=data["encoding"],
            optional=data["optional"],
            parameters=tuple((k, v) for k, v in data["parameters"]),
            element=cls.from_data(data["element"]) if data["element"] else None,
            members=tuple(cls.from_data(m) for m in data["members"]),
            wire=data["wire"],
            padded=data["padded"],
            modifier=data.get("modifier"),
            source_type=data.get("source_type", ""),
            mend=data.get("mend", ""),
            default=data.get("default", ""),
            allowed=data.get("allowed", ""),
        )


NO_NOTES: Final[Mapping[str, Any]] = {
    "padded": False,
    "modifier": None,
    "source_type": "",
    "mend": "",
    "default": "",
    "allowed": "",
}
"""The attributes of a column that take no part in its equality, as they are where unknown."""


def describe(name: str, schema: Mapping[str, Any]) -> Column:
    """The column that a Connect schema (JSON converter's form) stands for.

    An unknown semantic name falls back to its Connect type; what Arrow cannot hold becomes a
    string column with the value's JSON text. It fails for no well-formed Connect schema.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: `schema` is no Connect schema.
    """
    wire = str(schema["type"])
    encoding = str(schema.get("name") or "")
    given = {str(k): str(v) for k, v in (schema.get("parameters") or {}).items()}
    source_type = given.get(_SOURCE_TYPE, "").lower()
    shape: dict[str, Any] = {
        "name": name,
        "encoding": encoding,
        "optional": bool(schema.get("optional", False)),
        "parameters": tuple((k, given[k]) for k in _KEPT_PARAMETERS if k in given),
        "wire": wire,
        "padded": source_type in ("bpchar", "char", "character"),
        "source_type": _with_digits(source_type, given.get(_SOURCE_LENGTH, "")),
        "default": _json_of(schema.get("default")),
        "allowed": given.get("allowed", ""),
    }
    semantic = _SEMANTIC.get((wire, encoding))
    if semantic is not None:
        return Column(type=semantic, **shape)
    if wire == "bytes" and encoding == DECIMAL:
        return Column(type=_decimal(given), **shape)
    if wire in _PRIMITIVES:
        return Column(type=_PRIMITIVES[wire], **shape)
    return _nested(schema, shape)


def _json_of(default: Any) -> str:
    return "" if default is None else msgspec.json.encode(default).decode()


def _with_digits(source_type: str, length: str) -> str:
    base = source_type.partition(" ")[0]  # of `decimal unsigned`
    return f"{base}({length})" if base in ("numeric", "decimal") and length else source_type


def _nested(schema: Mapping[str, Any], shape: dict[str, Any]) -> Column:
    wire = shape["wire"]
    if wire == "array":
        element = describe("element", schema["items"])
        return Column(type=pa.list_(element.type), element=element, **shape)
    if wire == "map":
        key, value = describe("key", schema["keys"]), describe("value", schema["values"])
        if key.wire in ("string", "int8", "int16", "int32", "int64") and key.type in _KEY_TYPES:
            return Column(type=pa.map_(key.type, value.type), element=value, **shape)
    if wire == "struct":
        members = tuple(describe(str(f["field"]), f) for f in schema["fields"])
        names = [m.name for m in members]
        if names and all(speakable(n) for n in names) and len(set(names)) == len(names):
            fields = [pa.field(m.name, m.type) for m in members]
            return Column(type=pa.struct(fields), members=members, **shape)
    return Column(type=pa.string(), **{**shape, "wire": "json"})


_KEY_TYPES: Final = (pa.string(), pa.int8(), pa.int16(), pa.int32(), pa.int64())


def speakable(name: str) -> bool:
    """Say whether msgspec takes the name as a renamed member (no quote, backslash, control)."""
    return not any(c in '"\\' or c < " " for c in name)


def _decimal(parameters: Mapping[str, str]) -> pa.DataType:
    scale = int(parameters.get("scale", "0"))
    precision = int(parameters.get("connect.decimal.precision", MAX_PRECISION))
    precision = max(precision, scale)  # numeric(3,5) is legal in PostgreSQL 15
    if scale >= 0 and 1 <= precision <= MAX_PRECISION:
        return pa.decimal128(precision, scale)
    return pa.string()


def type_to_data(kind: pa.DataType) -> Any:
    """An Arrow type as JSON-ready data, the same in every version of Arrow."""
    if pa.types.is_decimal128(kind):
        return ["decimal", kind.precision, kind.scale]
    if pa.types.is_timestamp(kind):
        return ["timestamp", kind.unit, kind.tz]
    if pa.types.is_map(kind):
        return ["map", type_to_data(kind.key_type), type_to_data(kind.item_type)]
    if pa.types.is_list(kind):
        return ["list", type_to_data(kind.value_type)]
    if pa.types.is_struct(kind):
        return ["struct", [[f.name, type_to_data(f.type)] for f in kind]]
    return str(kind)


_SIMPLE: Final = {str(t): t for t in (*_PRIMITIVES.values(), pa.date32(), pa.null())}


def type_from_data(data: Any) -> pa.DataType:
    """The Arrow type that `type_to_data` described."""
    if isinstance(data, str):
        return _SIMPLE[data]
    kind, *rest = data
    if kind == "decimal":
        return pa.decimal128(*rest)
    if kind == "timestamp":
        return pa.timestamp(*rest)
    if kind == "map":
        return pa.map_(type_from_data(rest[0]), type_from_data(rest[1]))
    if kind == "list":
        return pa.list_(type_from_data(rest[0]))
    return pa.struct([pa.field(n, type_from_data(t)) for n, t in rest[0]])
