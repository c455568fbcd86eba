"""Whether the lake's tables equal the source's, row by row and value by value.

The source is read with SELECT, the lake with delta-rs; neither goes through lakemark. Rows are
matched by key. `_cdc` is not compared, but no row may have columns whose value is not known yet.
A difference is reported as names and numbers, never as values.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable

from lakemark.settings.config import Config, load
from lakemark.settings.table_id import qualified
from lakemark.sink import names
from stack.database import Database
from stack.expected import ExpectedTable, Reading, Row, Source
from stack.processes import StackError


@dataclass(frozen=True, slots=True)
class TableComparison:
    """One table: what was found where.

    Attributes:
        table: its identifier.
        source_rows, lake_rows: rows on both sides, those marked as deleted left out.
        missing: rows of the source that the lake lacks.
        extra: rows of the lake that the source lacks.
        different: rows with the same key and other values.
        duplicates: rows of the lake beyond the first with the same key.
        unavailable: rows of the lake that wait for the value of a column.
        columns: number of different rows by column.
        problem: why the table cannot be compared, or which columns the lake lacks.
        version: of the Delta table; -1 if there is none.
    """

    table: str
    source_rows: int = 0
    lake_rows: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    duplicates: int = 0
    unavailable: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    problem: str = ""
    version: int = -1

    @property
    def is_equal(self) -> bool:
        """Whether the lake's table is the source's."""
        wrong = self.missing + self.extra + self.different + self.duplicates + self.unavailable
        return wrong == 0 and not self.problem

    def __str__(self) -> str:
        if self.is_equal:
            return f"{self.table}: equal, {self.source_rows} rows"
        names = ("missing", "extra", "different", "duplicates", "unavailable")
        counts = [f"{n} {name}" for name in names if (n := getattr(self, name))]
        where = [f"{column} ({count})" for column, count in self.columns.items()]
        parts = [f"source {self.source_rows}, lake {self.lake_rows} rows", *counts]
        if where:
            parts.append(f"in {', '.join(where)}")
        if self.problem:
            parts.append(self.problem)
        return f"{self.table}: NOT equal: {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All tables."""

    tables: tuple[TableComparison, ...]

    @property
    def is_equal(self) -> bool:
        """Whether all of them are equal."""
        return all(table.is_equal for table in self.tables)

    def __getitem__(self, table: str) -> TableComparison:
        return next(found for found in self.tables if found.table == table)

    def __str__(self) -> str:
        return "\n".join(map(str, self.tables))


class Batches(Protocol):
    """Who can say that another batch is done: `lakemark_process.LakemarkProcess`."""

    def wait_for_batch(self, deadline_s: float) -> bool:
        """Return at the next finished batch with True, at the deadline with False."""


class Comparer:
    """Compares the tables of one database with those of one lake.

    Args:
        database: the source; its connector's configuration says how values are sent.
        config: lakemark's configuration, or its file.
        tables: their identifiers, any characters.
        qualifier: before their names in the lake, where the pipeline has several connectors.
    """

    def __init__(
        self,
        database: Database,
        *,
        config: Config | Path,
        tables: Sequence[str],
        qualifier: str = "",
    ) -> None:
        self._database = database
        self._config = load(config) if isinstance(config, Path) else config
        self._tables = tuple(tables)
        self._qualifier = qualifier

    def compare(self, known: Comparison | None = None) -> Comparison:
        """Compare all tables.

        Args:
            known: an earlier answer about an unchanged source: tables whose Delta version is still
                the same are not read again.
        """
        earlier = {found.table: found for found in known.tables} if known else {}
        found = []
        with self._database.source() as source:
            for table in self._tables:
                lake = self._open(table)
                last = earlier.get(table)
                if last and lake and last.version == lake.version():
                    found.append(last)
                else:
                    found.append(self._compare(source, table, lake))
        return Comparison(tuple(found))

    def wait_until_equal(self, batches: Batches, *, deadline_s: float) -> Comparison:
        """Compare after each batch until all tables are equal; the source must not change.

        Raises:
            StackError: they were not equal at the deadline; the message says where not.
        """
        end = time.monotonic() + deadline_s
        found = self.compare()
        while not found.is_equal:
            left = end - time.monotonic()
            done = left > 0 and batches.wait_for_batch(left)
            found = self.compare(found)
            if not done and not found.is_equal:
                raise StackError(f"the tables are not equal after {deadline_s:g} s:\n{found}")
        return found

    def _open(self, table: str) -> DeltaTable | None:
        named = qualified(self._qualifier, table)
        path, options = names.folder_of(self._config.lake, named), self._config.lake.options()
        if not DeltaTable.is_deltatable(path, options):
            return None
        return DeltaTable(path, storage_options=options)

    def _compare(self, source: Source, table: str, lake: DeltaTable | None) -> TableComparison:
        expected = source.read(table, self._database.not_captured(table))
        rows = len(expected.rows)
        if not expected.key:
            return TableComparison(table, rows, problem="the table has no primary key")
        if lake is None:
            problem = "" if not rows else "the lake has no such table"
            return TableComparison(table, rows, missing=rows, problem=problem)
        held = whole(lake)
        held_as = {source: column for column, source in names.sources_of(held.schema).items()}
        lacking = [column for column in expected.readings if column not in held_as]
        problem = f"the lake lacks the columns {', '.join(lacking)}" if lacking else ""
        live, unavailable = _live(held)
        values = [
            lake_values(live.column(held_as[column]), how)
            if column in held_as
            else [None] * live.num_rows
            for column, how in expected.readings.items()
        ]
        found = list(zip(*values, strict=True)) if values else []
        sizes = TableComparison(
            table, rows, len(found), unavailable=unavailable,
            problem=problem, version=lake.version(),
        )  # fmt: skip
        return _difference(sizes, expected, found)


def whole(table: DeltaTable) -> pa.Table:
    """Read a table by delta-rs's own scan: unlike its PyArrow reader it knows deletion vectors."""
    schema = pa.schema(table.schema().to_arrow())
    return pa.table(table.scan()).select(schema.names).cast(schema)


def _key(row: Row, at: Sequence[int]) -> str:
    return repr([row[i] for i in at])


def _live(held: pa.Table) -> tuple[pa.Table, int]:
    """Return the rows not marked as deleted, and how many of them wait for a column's value."""
    cdc = held.column(names.CDC).combine_chunks()
    if isinstance(cdc, pa.ChunkedArray):
        cdc = pa.concat_arrays(cdc.chunks) if cdc.num_chunks else pa.array([], cdc.type)
    deleted = [False] * len(cdc)
    if cdc.type.get_field_index("deleted") >= 0:
        deleted = [bool(value) for value in cdc.field("deleted").to_pylist()]
    live = held.filter(pa.array([not value for value in deleted], pa.bool_()))
    waiting = cdc.field("unavailable").to_pylist()
    return live, sum(
        columns is not None and not gone for columns, gone in zip(waiting, deleted, strict=True)
    )


def lake_values(column: pa.ChunkedArray, how: Reading) -> list[Any]:
    """Return the values of a column of the lake in canonical form."""
    values: list[Any] = column.cast(_without_times(column.type)).to_pylist()
    if _has_floats(column.type):
        values = [_without_nan(value) for value in values]
    if how.lake is not None:
        lake = how.lake
        values = [None if value is None else lake(value) for value in values]
    return values


def _without_times(kind: pa.DataType) -> pa.DataType:
    """Return the type with integers for dates and timestamps, which Python's cannot all hold."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_without_times(kind.value_type))
    return kind


def _has_floats(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_list(kind) else kind
    return bool(pa.types.is_floating(inner))


def _without_nan(value: Any) -> Any:
    """Return the value with a text for NaN, which equals not even itself."""
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return "NaN" if isinstance(value, float) and value != value else value  # noqa: PLR0124


def _difference(
    sizes: TableComparison, expected: ExpectedTable, found: Sequence[Row]
) -> TableComparison:
    """Return the sizes with what differs.

    Args:
        sizes: of both sides.
        expected: the source's table.
        found: the lake's rows, their columns in the same order.
    """
    columns_named = list(expected.readings)
    at = [columns_named.index(part) for part in expected.key]
    source = {_key(row, at): row for row in expected.rows}
    held = {_key(row, at): row for row in found}
    columns: Counter[str] = Counter()
    different = 0
    for key, row in source.items():
        other = held.get(key)
        if other is not None and other != row:
            different += 1
            pairs = zip(columns_named, row, other, strict=True)
            columns.update(name for name, ours, theirs in pairs if ours != theirs)
    return replace(
        sizes,
        missing=sum(key not in held for key in source),
        extra=sum(key not in source for key in held),
        different=different,
        duplicates=len(found) - len(held),
        columns=dict(columns),
    )
