"""A source table's schema, from the message's own schema or from the database's catalog.

Both give the same `TableSchema` for the same table and connector settings: `catalog.from_catalog`
first writes down the Connect schema that Debezium would send for the row, and then reads it with
`from_connect`, as `from_envelope` does with the row's schema in a record.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final

import msgspec
import pyarrow as pa

from lakemark.errors import TableError
from lakemark.model.columns import NO_NOTES, Column, describe
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import KEY_NEEDED, KeyFault, type_fault
from lakemark.model.value_rules import connector_of, mended

_CONVERTER: Final = "the topic must hold what Debezium's JSON converter writes"
_DEFAULTS: Final = HandlingModes()


@dataclass(frozen=True)
class TableSchema:
    """Columns and key of one source table.

    Attributes:
        table: ``schema.table``, as in the source block.
        columns: in the order of the source.
        key: names of the key columns, in key order; empty when records have no key.
    """

    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()

    def __hash__(self) -> int:
        """Cheap and kept: schemas are keys of caches."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.table, self.key, tuple(c.name for c in self.columns)))

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        """Columns by their exact names."""
        return {c.name: c for c in self.columns}

    def column(self, name: str) -> Column:
        """The column with this exact name.

        Raises:
            KeyError: there is none.
        """
        return self.by_name[name]

    def with_numerics(self, names: Collection[str]) -> "TableSchema":
        """This schema with `numeric` as the type of its texts of these names."""
        new = {c.name for c in self.columns if c.name in names and _is_other_text(c)}
        if not new:  # as nearly always: a schema is the key of caches, and has its hash
            return self
        columns = (replace(c, source_type="numeric") if c.name in new else c for c in self.columns)
        return TableSchema(self.table, tuple(columns), self.key)

    @cached_property
    def ways_to_read(self) -> frozenset[tuple[str, str]]:
        """Notes by which values are read, by column: schemas that are equal may differ in them."""
        numeric = {(c.name, "numeric") for c in self.columns if c.is_numeric_text}
        return frozenset(numeric | {(c.name, c.mend) for c in self.columns if c.mend})

    def key_fault(self, modes: HandlingModes = _DEFAULTS) -> KeyFault | None:
        """Return why rows cannot be told apart by the key, where there is one; None if they can.

        Args:
            modes: the connector's settings; for a schema of the catalog they do not matter.
        """
        absent = [name for name in self.key if name not in self.by_name]
        if absent:
            reason = (
                f"its rows do not have the key's columns {absent}: a transformation took them out, "
                "or the connector does not know their types"
            )
            return KeyFault("no-key", reason, KEY_NEEDED)
        faults = (type_fault(self.column(name), modes) for name in self.key)
        return next((fault for fault in faults if fault), None)

    def arrow(self) -> pa.Schema:
        """The canonical Arrow schema; every column is nullable (an image may lack any)."""
        return pa.schema([pa.field(c.name, c.type) for c in self.columns])

    def with_notes_of(self, other: "TableSchema") -> "TableSchema":
        """This schema with what the catalog's, `other`, knows of its columns: char(n), types."""
        known = other.by_name
        columns = tuple(
            c.with_notes_of(known[c.name]) if c.name in known else c for c in self.columns
        )
        if all(new is old for new, old in zip(columns, self.columns, strict=True)):
            return self
        return TableSchema(self.table, columns, self.key)

    def fingerprint(self) -> str:
        """32 hex digits: equal for equal schemas, in every process and version."""
        data = {**self._data(), "columns": [_plain(c.to_data()) for c in self.columns]}
        return blake2b(msgspec.json.encode(data, order="sorted"), digest_size=16).hexdigest()

    def to_json(self) -> bytes:
        """The schema as JSON bytes, for other processes; `from_json` gives an equal one back."""
        return msgspec.json.encode(self._data())

    @classmethod
    def from_json(cls, raw: bytes | str) -> "TableSchema":
        """The schema that `to_json` wrote."""
        data = msgspec.json.decode(raw)
        columns = tuple(Column.from_data(c) for c in data["columns"])
        return cls(data["table"], columns, tuple(data["key"]))

    def _data(self) -> dict[str, Any]:
        columns = [c.to_data() for c in self.columns]
        return {"table": self.table, "columns": columns, "key": list(self.key)}


def _is_other_text(column: Column) -> bool:
    return column.wire == "string" and not column.encoding and not column.is_numeric_text


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in data.items() if k not in NO_NOTES}


def from_envelope(
    table: str, value_schema: Mapping[str, Any], key_schema: Mapping[str, Any] | None
) -> TableSchema:
    """Return the schema of a table from the schemas of a wrapped record.

    Args:
        table: ``schema.table``.
        value_schema: the value's ``schema`` member: that of an envelope, whose row is in ``after``.
        key_schema: the key's ``schema`` member; None for a record without key.

    Raises:
        TableError: ``schema-unreadable``: this is no Connect schema of a change event.
    """
    with readable(f"the schema inside a record of {table}"):
        images = {f["field"]: f for f in value_schema["fields"] if f["type"] == "struct"}
        row = images.get("after") or images["before"]
        connector = connector_of(str(images.get("source", {}).get("name")))
        return from_connect(table, row, key_schema, connector=connector)


def from_connect(
    table: str,
    row_schema: Mapping[str, Any],
    key_schema: Mapping[str, Any] | None,
    *,
    connector: str = "",
) -> TableSchema:
    """Return the schema of a table from the Connect schemas of its row and its key.

    Each field of the row is a column, whatever it is called: a table may look like an envelope.

    Args:
        table: ``schema.table``.
        row_schema: a struct.
        key_schema: another one; None for no key.
        connector: whose records they are of, as `source.connector` has it; empty where that is not
            known: then no value is mended.

    Raises:
        TableError: ``schema-unreadable``: these are no Connect schemas.
    """
    with readable(f"the schema inside a record of {table}"):
        fields = row_schema["fields"]
        columns = tuple(mended(describe(str(f["field"]), f), connector) for f in fields)
        key = tuple(str(f["field"]) for f in (key_schema or {}).get("fields") or ())
    return TableSchema(table, columns, key)


@contextmanager
def readable(what: str, hint: str = _CONVERTER) -> Iterator[None]:
    """Raise `schema-unreadable` instead of what reading something else raises."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise TableError(
            f"{what} is no Connect schema with a row in it", code="schema-unreadable", hint=hint
        ) from None
