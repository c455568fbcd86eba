"""Records in Avro for tests: written by fastavro, with schemas that a dict has."""

import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro

from lakemark.converters.avro.schema_source import SchemaNotFoundError, SchemaReference

NULLABLE = {"long": ["null", "long"], "string": ["null", "string"]}


class DictSource:
    """A `SchemaSource` that has what it was given; ids count from 1."""

    def __init__(self) -> None:
        self.texts: dict[SchemaReference, str] = {}
        self.asked: list[SchemaReference] = []
        self.subjects: dict[str, list[str]] = {}

    def schema(self, reference: SchemaReference) -> str:
        self.asked.append(reference)
        if reference not in self.texts:
            raise SchemaNotFoundError(f"nobody has the schema of {reference}")
        return self.texts[reference]

    def register(self, subject: str, text: str) -> int:
        self.subjects.setdefault(subject, []).append(text)
        return self.put(json.loads(text))

    def put(self, schema: Any, kind: str = "id") -> int:
        """Keep a schema; the same one has the same id."""
        text = json.dumps(schema)
        for reference, known in self.texts.items():
            if known == text and reference.kind == kind:
                return reference.number
        number = len(self.texts) + 1
        self.texts[SchemaReference(kind, number)] = text
        return number


def datum(schema: Any, value: Any) -> bytes:
    """A value as fastavro writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def confluent(number: int, written: bytes) -> bytes:
    """A datum with an id of four bytes before it."""
    return b"\0" + number.to_bytes(4) + written


def type_of(value: Any, usual: Any = None) -> Any:
    """The type of a value: the usual one, if that has it."""
    kinds = {bool: "boolean", int: "long", float: "double", str: "string"}
    own = "null" if value is None else kinds[type(value)]
    fits = {own, "int"} if own == "long" and abs(value) < 1 << 31 else {own}
    if fits.intersection(usual if isinstance(usual, list) else [usual]):
        return usual
    return ["null", "string"] if value is None else own


def record(name: str, row: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a record."""
    fields = [{"name": n, "type": type_of(v, usual.get(n))} for n, v in row.items()]
    return {"type": "record", "name": name, "fields": fields}
