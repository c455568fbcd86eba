"""A table's definitions by their place in the log, for records that bring no schema; pure.

A statement that changes a table stands in the log between the rows that were written before it and
those written after it, and each of these has to be read by the columns that the table had then. So
a table may have several definitions, each from a place on. The first one holds before all others.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

from lakemark.model import positions
from lakemark.model.columns import Column
from lakemark.model.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Definition:
    """The columns of a table from a place in the log on.

    Attributes:
        position: of the stream; `positions.LOWEST` for the first one.
        schema: of the table.
        told: whether a record of the schema topic names the place. Else a look at the catalog has
            found the columns there, and they may hold from an earlier place on.
    """

    position: bytes
    schema: TableSchema
    told: bool = False


Definitions = tuple[Definition, ...]
"""Of one table, at least one, in the log's order."""


def in_force(definitions: Definitions, position: bytes) -> int:
    """Return the number of the definition by which a record at a position was written.

    Args:
        definitions: of its table.
        position: of the record: of an event, or of a row that the connector has read.
    """
    place = positions.in_stream(position)
    return max(0, bisect_right(definitions, place, key=lambda one: one.position) - 1)


def inserted(definitions: Definitions, new: Definition) -> Definitions:
    """Return definitions with one that a record of the schema topic tells.

    It takes the place of one that was told at the same place. What a look has found above it goes:
    nobody knows on which side of the statement the look was, and records come in the log's order.
    """
    kept = [
        one
        for one in definitions
        if one.position < new.position or (one.told and one.position > new.position)
    ]
    return tuple(sorted([*kept, new], key=lambda one: one.position))


def without_repeats(definitions: Definitions) -> Definitions:
    """Return definitions without those that read records as the ones before them do."""
    later = (b for a, b in pairwise(definitions) if not alike(a.schema, b.schema))
    return (definitions[0], *later)


def above(definitions: Definitions, position: bytes) -> Definitions:
    """Return those of the definitions that records above a position need."""
    return definitions[in_force(definitions, position) :]


def alike(one: TableSchema, other: TableSchema) -> bool:
    """Return whether two schemas of a table have the same columns, read in the same way."""
    return one is other or _ways(one) == _ways(other)


def _ways(schema: TableSchema) -> Mapping[str, tuple[object, ...]]:
    return {column.name: _way(column) for column in schema.columns}


def _way(column: Column) -> tuple[object, ...]:
    return (*column.form, column.type, column.mend, column.padded, column.modifier)


# -- what a connector says in its schema topic -----------------------------------------------------


class ChangedColumn(msgspec.Struct, frozen=True, rename="camel"):
    """A column, in the words of the connector's parser of statements.

    Attributes:
        name: of it.
        type_name: as the statement has it, such as ``INT UNSIGNED``.
        length: of a text, digits of a number or of a second's fraction; None where it has none.
        scale: digits behind the point; None where it has none.
        optional: whether it may be NULL.
        charset_name: of a text.
        enum_values: labels of an enum or a set, as literals of SQL.
        default_value_expression: the text of the column's default; None without one.
    """

    name: str
    type_name: str
    length: int | None = None
    scale: int | None = None
    optional: bool = True
    charset_name: str | None = None
    enum_values: tuple[str, ...] | None = None
    default_value_expression: str | None = None


class ChangedDefinition(msgspec.Struct, frozen=True, rename="camel"):
    """A table after a statement."""

    columns: tuple[ChangedColumn, ...] = ()
    primary_key_column_names: tuple[str, ...] | None = None


class TableChange(msgspec.Struct, frozen=True):
    """The change of one table by a statement.

    Attributes:
        type: ``CREATE``, ``ALTER`` or ``DROP``.
        id: the table's name after it, its parts in double quotes.
        table: None where it was dropped.
    """

    type: str
    id: str
    table: ChangedDefinition | None = None


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A record of a schema topic.

    Attributes:
        partition: of the topic.
        offset: of the record in it.
        position: from which on it holds, of the stream.
        tables: those that the statement has changed.
    """

    partition: int
    offset: int
    position: bytes
    tables: tuple[TableChange, ...]


# -- as they are stored ----------------------------------------------------------------------------


class StoredDefinition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `Definition` as JSON."""

    schema: dict[str, Any]
    position: str = ""
    told: bool = False

    @classmethod
    def of(cls, one: Definition) -> "StoredDefinition":
        """Return how a definition is stored."""
        at = "" if one.position == positions.LOWEST else one.position.hex()
        return cls(msgspec.json.decode(one.schema.to_json()), at, one.told)

    def definition(self) -> Definition:
        """Return it."""
        at = bytes.fromhex(self.position) or positions.LOWEST
        schema = TableSchema.from_json(msgspec.json.encode(self.schema))
        return Definition(at, schema, self.told)


def stored(tables: Mapping[str, Sequence[Definition]]) -> dict[str, list[StoredDefinition]]:
    """Return how the definitions of tables are stored."""
    return {table: [*map(StoredDefinition.of, found)] for table, found in tables.items()}
