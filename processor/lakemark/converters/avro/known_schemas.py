"""Schemas by their ids, ready to read and to write by; kept for a process, as they never change."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec

from lakemark.converters.avro.connect_schema import connect_schema
from lakemark.converters.avro.instructions import Instructions, instructions
from lakemark.converters.avro.program import Program, SchemaError, program_of
from lakemark.converters.avro.schema_source import SchemaReference, SchemaSource
from lakemark.errors import TableError

UNREADABLE: Final = "schema-unreadable"


@dataclass(frozen=True, slots=True)
class Form:
    """One schema.

    Attributes:
        program: its types.
        steps: read a datum as a whole.
        connect: its Connect schema as JSON, as the ``schema`` member of a wrapped record has it.
        text: as its registry has it.
        number: of it there, as records name it.
    """

    program: Program
    steps: Instructions
    connect: bytes
    text: str = ""
    number: int = 0

    @property
    def wrapper(self) -> bytes:
        """Return the beginning of a record that is wrapped with its schema."""
        return wrapper_of(self.connect)


def wrapper_of(connect: bytes) -> bytes:
    """Return the beginning of a record that is wrapped with a Connect schema."""
    return b'{"schema":' + connect + b',"payload":'


class KnownSchemas:
    """The schemas that a converter has met."""

    def __init__(self, source: Callable[[], SchemaSource]) -> None:
        """Takes what makes the source, which is not made before it is needed."""
        self._source = cache(source)
        self._known: dict[SchemaReference, Form] = {}

    def of(self, reference: SchemaReference) -> Form:
        """Return the schema of an id.

        Raises:
            SchemaNotFoundError: nobody has it.
            TableError: `schema-unreadable`: it is no schema of Avro.
            DependencyError: the registry is away.
        """
        form = self._known.get(reference)
        if form is None:
            form = self._known[reference] = _form(self._source().schema(reference), reference)
        return form


def _form(text: str, reference: SchemaReference) -> Form:
    try:
        schema: Any = msgspec.json.decode(text)
        program = program_of(schema)
        connect = msgspec.json.encode(connect_schema(schema))
        return Form(program, instructions(program), connect, text, reference.number)
    except (msgspec.MsgspecError, SchemaError, RecursionError) as error:
        raise TableError(
            f"the schema of {reference.kind} {reference.number} cannot be read: {error}",
            code=UNREADABLE,
            hint="it must be one of Avro, as the connector's converter has registered it",
        ) from None
