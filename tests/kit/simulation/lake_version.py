"""A version of a simulated lake, as a comparison asks it (`table_sink.TableVersion`)."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakemark.sink.names import CDC
from lakemark.sink.table_sink import TableSize
from tests.kit.table_model import DictLake, lake_schema

LakeRow = dict[str, Any]


@dataclass(frozen=True)
class LakeVersion:
    """Rows of a lake at some time, those marked deleted included."""

    rows: dict[int, LakeRow]
    deletes: str

    @classmethod
    def of(cls, lake: DictLake) -> "LakeVersion":
        """The lake as it is now; what is done to it later is not seen."""
        return cls({key: dict(row) for key, row in lake.table.items()}, lake.deletes)

    def columns_of(self) -> pa.Schema:
        schema = lake_schema(self.deletes)
        return schema.remove(schema.get_field_index(CDC))

    def rows_of(self, keys: pa.Table) -> pa.Table:
        wanted = keys.column("id").to_pylist()
        found = [self.rows[key] for key in wanted if key in self.rows]
        return pa.Table.from_pylist(found, schema=lake_schema(self.deletes))

    def version(self) -> int:
        return 0

    def size(self) -> TableSize:
        return TableSize(len(self.rows), 0, 0)
