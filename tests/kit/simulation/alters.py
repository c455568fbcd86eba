"""What ALTER TABLE does to the rows of a simulated table, without a word in the log."""

from dataclasses import dataclass, replace
from functools import cache

import pyarrow as pa

from lakemark.model.columns import describe
from lakemark.model.schema import TableSchema
from tests.kit.log_model import Row, table_schema

ADD = "add"
RENAME = "rename"
NEW = "d"
OLD = "b"
DEFAULT = 11


@dataclass(frozen=True)
class Alter:
    """ADD COLUMN d int DEFAULT 11, or RENAME COLUMN b TO d."""

    kind: str

    def row(self, row: Row) -> Row:
        """A row of before as a SELECT shows it afterwards; one of now as it is."""
        if NEW in row:
            return row
        if self.kind == ADD:
            return {**row, NEW: DEFAULT}
        return {NEW if name == OLD else name: value for name, value in row.items()}

    def named_as_before(self, row: Row) -> Row:
        """A row of now under the names of before; a new column stays."""
        if self.kind == ADD:
            return row
        return {OLD if name == NEW else name: value for name, value in row.items()}

    def schema(self) -> TableSchema:
        """The table's afterwards."""
        return altered(self.kind)

    @property
    def type(self) -> pa.DataType:
        """Of the new column."""
        return self.schema().column(NEW).type


@cache
def altered(kind: str) -> TableSchema:
    schema = table_schema()
    if kind == ADD:
        new = describe(NEW, {"type": "int32", "optional": True, "field": NEW})
        return replace(schema, columns=(*schema.columns, new))
    columns = [replace(c, name=NEW) if c.name == OLD else c for c in schema.columns]
    return replace(schema, columns=tuple(columns))
