"""One database of several: its tables have a qualifier before their names, which it never sees.

What is asked and answered here has the names that the pipeline uses (`table_id.qualified`); the
database itself is asked by its own. What it says in words has its own names.
"""

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Self, TypeVar

import pyarrow as pa

from lakemark.connectors.catalog_changes import (
    NO_KEYS,
    CatalogLook,
    Difference,
    SourceKeys,
)
from lakemark.connectors.database import (
    CapturedTables,
    ChunkReader,
    ChunkRows,
    Database,
    Examination,
    PlannedTables,
    Proof,
    RowsOfSnapshot,
    SummedRows,
    TableCut,
    TableQuestions,
    WindowWriter,
)
from lakemark.connectors.log_place import LogEnd
from lakemark.connectors.log_watch import LogReader, LogWatch
from lakemark.connectors.refusals import Refusal
from lakemark.connectors.table_choice import Choice
from lakemark.errors import TableError
from lakemark.model.checksums import ChecksumPlan, NumberRanges, RefusedSums
from lakemark.model.columns import Column
from lakemark.model.key_ranges import Boundary, Condition, KeyRange
from lakemark.model.schema import TableSchema
from lakemark.settings.table_id import qualified, unqualified

T = TypeVar("T")
_COMMAND: Final = "(lakemark (?:snapshot start|table [a-z]+) )"
"""Before a table's name in a hint."""


def under(qualifier: str, schemas: Mapping[str, TableSchema]) -> dict[str, TableSchema]:
    """Return schemas of a connector's tables by their names in the pipeline."""
    named = map(_Names(qualifier).schema, schemas.values())
    return {schema.table: schema for schema in named}


class _Names:
    """The names of one connector's tables."""

    def __init__(self, qualifier: str) -> None:
        self.qualifier = qualifier

    def bare(self, table: str) -> str:
        """Return a table's name in its database.

        Raises:
            TableError: it is the table of another connector.
        """
        found = unqualified(self.qualifier, table)
        if found is None:
            raise TableError(
                f"{table} is no table of the connector with the topic prefix {self.qualifier}",
                code="table-gone",
                hint=f"names of its tables begin with {qualified(self.qualifier, '')}",
            )
        return found

    def own(self, named: Mapping[str, T]) -> dict[str, T]:
        """Return what is said of tables, by their own names; what is of others is left out."""
        found = {unqualified(self.qualifier, table): one for table, one in named.items()}
        return {table: one for table, one in found.items() if table is not None}

    def full(self, table: str) -> str:
        """Return a table's name in the pipeline."""
        return qualified(self.qualifier, table)

    def schema(self, schema: TableSchema) -> TableSchema:
        """Return a schema of the table under its name in the pipeline."""
        return replace(schema, table=self.full(schema.table))


class _Reader(ChunkReader):
    def __init__(self, inner: ChunkReader, names: _Names) -> None:
        self._inner, self._names = inner, names

    def read(self, table: str, **how: Any) -> ChunkRows:
        rows = self._inner.read(self._names.bare(table), **how)
        absent = rows.absent and self._of(rows.absent)
        return replace(rows, found=self._of(rows.found), absent=absent)

    def _of(self, rows: RowsOfSnapshot) -> RowsOfSnapshot:
        return replace(rows, schema=self._names.schema(rows.schema))

    def middle(self, table: str, span: KeyRange, **how: Any) -> Boundary | None:
        return self._inner.middle(self._names.bare(table), span, **how)

    def sums(self, table: str, kept: pa.Schema, ranges: NumberRanges) -> SummedRows:
        found = self._inner.sums(self._names.bare(table), kept, ranges)
        return replace(found, schema=self._names.schema(found.schema))

    def close(self) -> None:
        self._inner.close()


class _Questions(TableQuestions):
    def __init__(self, inner: TableQuestions, names: _Names) -> None:
        self._inner, self._names = inner, names

    def condition(self, table: str, text: str) -> Condition:
        return self._inner.condition(self._names.bare(table), text)

    def forget(self) -> None:
        self._inner.forget()

    def key_columns(self, table: str) -> list[Column]:
        return self._inner.key_columns(self._names.bare(table))

    def blocker(self, proof: Proof) -> str:
        return self._inner.blocker(proof)

    def drop(self) -> None:
        self._inner.drop()


class _Watch(LogWatch):
    def __init__(self, inner: LogWatch, names: _Names) -> None:
        self._inner, self._names = inner, names

    def reader(self) -> LogReader | None:
        return self._inner.reader()

    def there(self, tables: frozenset[str]) -> frozenset[str]:
        full = self._names.own({table: table for table in tables})
        return frozenset(map(full.__getitem__, self._inner.there(frozenset(full))))

    def close(self) -> None:
        self._inner.close()


class QualifiedDatabase:
    """See `Database`, whose questions about a connector's tables these are.

    What has no names of tables in it is asked of the database itself, by its kind.
    """

    def __init__(self, inner: Database, qualifier: str) -> None:
        self._inner, self._names = inner, _Names(qualifier)

    def __getattr__(self, name: str) -> Any:
        """Return what has no names of tables, as the database has it."""
        if name.startswith("_"):  # of an object that is being copied, before it has a database
            raise AttributeError(name)
        return getattr(self._inner, name)

    def schemas(
        self, tables: Sequence[str] | None, *, captured: Container[str] | None = None
    ) -> dict[str, TableSchema]:
        """See `Database`; tables of others are left out."""
        own = None if tables is None else [*self._names.own(dict.fromkeys(tables))]
        wanted = None if captured is None else _Bare(captured, self._names)
        return under(self._names.qualifier, self._inner.schemas(own, captured=wanted))

    def table_names(self) -> list[str]:
        """See `Database`."""
        return [*map(self._names.full, self._inner.table_names())]

    def reasons_against(self, table: str) -> list[Refusal]:
        """See `Database`."""
        return self._inner.reasons_against(self._names.bare(table))

    def cut(self, table: str, chunk_rows: int, **how: Any) -> TableCut:
        """See `Database`."""
        found = self._inner.cut(self._names.bare(table), chunk_rows, **how)
        return replace(found, schema=self._names.schema(found.schema))

    def checksums(self, table: str, kept: pa.Schema) -> ChecksumPlan | RefusedSums:
        """See `Database`."""
        return self._inner.checksums(self._names.bare(table), kept)

    def reader(self) -> ChunkReader:
        """See `Database`."""
        return _Reader(self._inner.reader(), self._names)

    def window_writer(self, table: str, *, name: str) -> WindowWriter:
        """See `Database`."""
        return self._inner.window_writer(self._names.bare(table) if table else "", name=name)

    def log_end(self, table: str, *, name: str) -> LogEnd:
        """See `Database`."""
        return self._inner.log_end(self._names.bare(table) if table else "", name=name)

    def questions(self, *, name: str) -> TableQuestions:
        """See `Database`."""
        return _Questions(self._inner.questions(name=name), self._names)

    def examine(self, connector: CapturedTables | None, **how: Any) -> Examination:
        """See `Database`."""
        own = connector and _Captured.of(connector, self._names)
        found = self._inner.examine(own, **how)
        tables = found.tables and [*map(self._names.full, found.tables)]
        return replace(found, tables=tables)

    def planned_tables(self, connector: CapturedTables) -> PlannedTables:
        """See `Database`."""
        own, full = _Captured.of(connector, self._names), self._names.full
        found = self._inner.planned_tables(own)
        return replace(
            found,
            schemas=under(self._names.qualifier, found.schemas),
            sizes=[(full(table), rows, size) for table, rows, size in found.sizes],
            refused={full(table): why for table, why in found.refused.items()},
        )

    def log_watch(self, *, name: str, within: timedelta) -> LogWatch:
        """See `Database`."""
        return _Watch(self._inner.log_watch(name=name, within=within), self._names)

    def look(
        self, wanted: Callable[[str], bool], *, before: CatalogLook | None = None
    ) -> CatalogLook:
        """See `Database`; what a look says of a table has the table's own name in it."""
        found = self._inner.look(
            lambda table: wanted(self._names.full(table)), before=before and self._own(before)
        )
        return found.having({self._names.full(n): table for n, table in found.tables.items()})

    def differences(
        self, before: CatalogLook | None, now: CatalogLook, *, source_key: SourceKeys = NO_KEYS
    ) -> list[Difference]:
        """See `Database`."""
        keys = self._names.own(source_key)
        found = self._inner.differences(
            before and self._own(before), self._own(now), source_key=keys
        )
        return [self._difference(one) if one.table else one for one in found]

    def _own(self, look: CatalogLook) -> CatalogLook:
        return look.having(self._names.own(look.tables))

    def _difference(self, one: Difference) -> Difference:
        full, own = self._names.full(one.table), re.escape(one.table)
        hint = re.sub(rf"{_COMMAND}{own}", lambda command: f"{command[1]}{full}", one.hint)
        return replace(one, table=full, hint=hint)


@dataclass(frozen=True, slots=True)
class _Captured:
    """A connector's tables by their own names, see `CapturedTables`."""

    settings: Mapping[str, str]
    tables: Choice
    signal_table: str | None

    @classmethod
    def of(cls, connector: CapturedTables, names: _Names) -> Self:
        signal = connector.signal_table
        own = None if signal is None else names.bare(signal)
        return cls(connector.settings, connector.tables.own, own)


class _Bare(Container[str]):
    """Tables by their own names, of which others hold the names in the pipeline."""

    def __init__(self, tables: Container[str], names: _Names) -> None:
        self._tables, self._names = tables, names

    def __contains__(self, table: object) -> bool:
        return isinstance(table, str) and self._names.full(table) in self._tables
