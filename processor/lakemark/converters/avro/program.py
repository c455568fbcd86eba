"""A writer's schema as a program: the types of what is read one after the other.

`instructions` are made of it. Names that the converter had to adjust
are those of the source again, where the schema has them (`column.propagate.source.type`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lakemark.model.columns import DECIMAL

NULL, BOOLEAN, INT, LONG, FLOAT, DOUBLE, BYTES, STRING = range(8)
FIXED, ENUM, UNION, RECORD, ARRAY, MAP = range(8, 14)

SOURCE_NAME: Final = "__debezium.source.column.name"
"""Parameter with the name that a column has in the source."""
PRIMITIVES: Final[Mapping[str, int]] = {
    "null": NULL,
    "boolean": BOOLEAN,
    "int": INT,
    "long": LONG,
    "float": FLOAT,
    "double": DOUBLE,
    "bytes": BYTES,
    "string": STRING,
}
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
OF_ITEMS: Final[Mapping[str, str]] = {"array": "items", "map": "values"}


class SchemaError(Exception):
    """A text is no schema of Avro."""


@dataclass(slots=True)
class Node:
    """One type of a schema.

    Attributes:
        kind: `NULL` to `MAP`.
        size: bytes of a fixed.
        scale: digits behind the point of a decimal, which is written as bytes; None of all else.
        names: of a record's fields, as the source has them, or an enum's symbols.
        parts: the numbers of the nodes of fields, branches, or of the items or values.
    """

    kind: int
    size: int = 0
    scale: int | None = None
    names: list[str] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Program:
    """A schema's types; the first one is that of a datum."""

    nodes: list[Node]

    def fields(self, node: int = 0) -> dict[str, int]:
        """Return the nodes of a record's fields, by name; none of anything else."""
        one = self.nodes[node]
        return dict(zip(one.names, one.parts, strict=True)) if one.kind == RECORD else {}

    def branch(self, node: int) -> int:
        """Return the only branch of a union that is not null, else the node itself."""
        one = self.nodes[node]
        some = [part for part in one.parts if self.nodes[part].kind != NULL]
        return some[0] if one.kind == UNION and len(some) == 1 else node


def program_of(schema: Any) -> Program:
    """Return the program of a schema.

    Args:
        schema: the data of its JSON.

    Raises:
        SchemaError: it is none.
    """
    maker = _Maker()
    try:
        maker.node(schema, "")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise SchemaError(f"this is no schema of Avro: {error!r}") from None
    return Program(maker.nodes)


class _Maker:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._named: dict[str, int] = {}

    def node(self, schema: Any, space: str) -> int:
        """Add a type and those in it; return its number."""
        if isinstance(schema, list):
            return self._union(schema, space)
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(kind, list | dict):
            return self.node(kind, space)
        if kind in PRIMITIVES:
            return self._add(Node(PRIMITIVES[kind], scale=_scale(schema)))
        if isinstance(schema, dict) and kind in NAMED:
            return self._with_name(kind, schema, space)
        if isinstance(schema, dict) and kind in OF_ITEMS:
            number = self._add(node := Node(ARRAY if kind == "array" else MAP))
            node.parts.append(self.node(schema[OF_ITEMS[kind]], space))
            return number
        return self._named[full_name(kind, space)]

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _union(self, branches: Sequence[Any], space: str) -> int:
        number = self._add(node := Node(UNION))
        for branch in branches:
            if isinstance(branch, list):
                raise TypeError("a union in a union")
            node.parts.append(self.node(branch, space))
        return number

    def _with_name(self, kind: str, schema: Mapping[str, Any], space: str) -> int:
        name = full_name(schema["name"], schema.get("namespace", space) or "")
        number = self._named[name] = self._add(node := Node(RECORD))
        if kind == "fixed":
            node.kind, node.size = FIXED, int(schema["size"])
            if node.size < 0:
                raise ValueError("a size below zero")
        elif kind == "enum":
            node.kind, node.names = ENUM, [str(symbol) for symbol in schema["symbols"]]
        else:
            for each in schema["fields"]:
                node.names.append(source_name(each))
                node.parts.append(self.node(each["type"], name.rpartition(".")[0]))
        return number


def _scale(schema: Any) -> int | None:
    """Return a decimal's scale; numeric(3, 5) is one by Connect's name, and not to Avro."""
    if not isinstance(schema, dict) or schema.get("type") != "bytes":
        return None
    decimal = schema.get("logicalType") == "decimal" or schema.get("connect.name") == DECIMAL
    return int(schema.get("scale", 0)) if decimal else None


def full_name(name: str, space: str) -> str:
    """Return a name with its namespace; one with a dot has it already."""
    return name if "." in name or not space else f"{space}.{name}"


def source_name(field_: Mapping[str, Any]) -> str:
    """Return the name that a field has in the source, where the schema tells it."""
    if SOURCE_NAME in field_:
        return str(field_[SOURCE_NAME])
    kind = field_["type"]
    for branch in kind if isinstance(kind, list) else [kind]:
        if isinstance(branch, dict):
            name = (branch.get("connect.parameters") or {}).get(SOURCE_NAME)
            if name:
                return str(name)
    return str(field_["name"])
