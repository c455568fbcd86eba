"""The place that schemas of Avro records come from: what a record names, and who has it.

A record has no schema, but the number of one. What the number counts depends on who wrote it.
"""

from typing import Final, NamedTuple, Protocol

from lakemark.errors import TableError

NOT_FOUND: Final = "schema-not-found"
REFUSED_SCHEMA: Final = "output-schema-refused"
RECHECK_S: Final = 300.0
"""For so long a schema that was registered counts as registered: a registry may come back empty."""


class SchemaReference(NamedTuple):
    """The schema that a record was written by, as the record names it.

    Attributes:
        kind: ``id`` for a number whose meaning the converter's settings say, as it stands before
            the record's bytes; ``global`` and ``content`` for Apicurio's ids where the record says
            itself which it is.
        number: of the schema in its registry.
    """

    kind: str
    number: int


class SchemaNotFoundError(TableError):
    """A registry answers, and has no Avro schema of this number: the record cannot be read now."""

    code = NOT_FOUND


class SchemaRefusedError(TableError):
    """A registry does not take a schema, or there is none to write a record by."""

    code = REFUSED_SCHEMA
    retried = True


class SchemaSource(Protocol):
    """Whoever has the schemas that records were written by."""

    def schema(self, reference: SchemaReference) -> str:
        """Return the schema that a record was written by, as JSON that names no other schema.

        Args:
            reference: as the record has it.

        Raises:
            SchemaNotFoundError: there is none.
            DependencyError: nobody could be asked: tried again, never a reason for dead letters.
        """


class SchemaRegistry(Protocol):
    """Whoever takes schemas to write records by."""

    def register(self, subject: str, text: str) -> int:
        """Return the number of a schema under a subject, which it then has.

        Args:
            subject: the name under which its versions stand.
            text: JSON.

        Raises:
            SchemaRefusedError: it is not taken: it is not compatible, or cannot be read.
            DependencyError: nobody could be asked, or we may not.
        """
