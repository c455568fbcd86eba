"""Whether the lake's tables equal the source's, row by row and value by value.

The source is read with SELECT, the lake with delta-rs; neither goes through lakemark. Rows are
matched by key. `_cdc` is not compared, but no row may have columns whose value is not known yet.
A difference is reported as names and numbers, never as values.
"""

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg
import pyarrow as pa
from deltalake import DeltaTable
from psycopg import sql

from lakemark.model.handling_modes import HandlingModes
from lakemark.settings.config import Config, load
from lakemark.sink import names
from stack.expected import Column, Reading, Types, columns_of, key_of, reading, types_of
from stack.processes import StackError

_PINNED: Final = (
    "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=iso_8601"
    " -c bytea_output=hex -c extra_float_digits=1"
)

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class TableComparison:
    """One table: what was found where.

    Attributes:
        table: `schema.table`.
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
        dsn: the source database.
        config: lakemark's configuration, or its file.
        connector: the connector's configuration, for its handling modes.
        tables: `schema.table`, any characters.
        not_captured: columns that the connector cannot carry, by table.
    """

    def __init__(
        self,
        *,
        dsn: str,
        config: Config | Path,
        connector: dict[str, str],
        tables: Sequence[str],
        not_captured: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._dsn = dsn
        self._config = load(config) if isinstance(config, Path) else config
        self._modes = HandlingModes.from_connector(connector)
        self._tables = tuple(tables)
        self._not_captured = dict(not_captured or {})

    def compare(self, known: Comparison | None = None) -> Comparison:
        """Compare all tables.

        Args:
            known: an earlier answer about an unchanged source: tables whose Delta version is still
                the same are not read again.
        """
        earlier = {found.table: found for found in known.tables} if known else {}
        found = []
        with psycopg.connect(self._dsn, options=_PINNED) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            types = types_of(connection)
            for table in self._tables:
                lake = self._open(table)
                last = earlier.get(table)
                if last and lake and last.version == lake.version():
                    found.append(last)
                else:
                    found.append(self._compare(connection, table, lake, types))
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
        path, options = names.folder_of(self._config.lake, table), self._config.lake.options()
        if not DeltaTable.is_deltatable(path, options):
            return None
        return DeltaTable(path, storage_options=options)

    def _compare(
        self,
        connection: psycopg.Connection[Any],
        table: str,
        lake: DeltaTable | None,
        types: Types,
    ) -> TableComparison:
        name = sql.Identifier(*table.split(".", 1)).as_string()
        key = key_of(connection, name)
        left_out = self._not_captured.get(table, ())
        columns = [c for c in columns_of(connection, name, types) if c.name not in left_out]
        readings = [reading(column, self._modes) for column in columns]
        rows = _source_rows(connection, name, columns, readings)
        at = [i for part in key for i, column in enumerate(columns) if column.name == part]
        if not at:
            return TableComparison(table, len(rows), problem="the table has no primary key")
        if lake is None:
            problem = "" if not rows else "the lake has no such table"
            return TableComparison(table, len(rows), missing=len(rows), problem=problem)
        held = whole(lake)
        held_as = {source: column for column, source in names.sources_of(held.schema).items()}
        lacking = [column.name for column in columns if column.name not in held_as]
        problem = f"the lake lacks the columns {', '.join(lacking)}" if lacking else ""
        live, unavailable = _live(held)
        values = [
            _lake_values(live.column(held_as[column.name]), how)
            if column.name in held_as
            else [None] * live.num_rows
            for column, how in zip(columns, readings, strict=True)
        ]
        found = list(zip(*values, strict=True)) if values else []
        return _difference(
            TableComparison(
                table, len(rows), len(found), unavailable=unavailable,
                problem=problem, version=lake.version(),
            ),
            {_key(row, at): row for row in rows},
            [(_key(row, at), row) for row in found],
            [column.name for column in columns],
        )  # fmt: skip


def whole(table: DeltaTable) -> pa.Table:
    """Read a table by delta-rs's own scan: unlike its PyArrow reader it knows deletion vectors."""
    schema = pa.schema(table.schema().to_arrow())
    return pa.table(table.scan()).select(schema.names).cast(schema)


def _key(row: Row, at: Sequence[int]) -> str:
    return repr([row[i] for i in at])


def _source_rows(
    connection: psycopg.Connection[Any],
    name: str,
    columns: Sequence[Column],
    readings: Sequence[Reading],
) -> list[Row]:
    selected = ", ".join(
        how.select.replace("{}", "{0}").replace("{0}", sql.Identifier(column.name).as_string())
        for column, how in zip(columns, readings, strict=True)
    )
    parsers = [how.parse for how in readings]
    rows = []
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY (SELECT {selected} FROM {name}) TO STDOUT".encode()) as copy,
    ):
        for row in copy.rows():
            rows.append(  # noqa: PERF401 (clearer than a comprehension over three lines)
                tuple(
                    None if text is None else parse(text)
                    for text, parse in zip(row, parsers, strict=True)
                )
            )
    return rows


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


def _lake_values(column: pa.ChunkedArray, how: Reading) -> list[Any]:
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
    sizes: TableComparison,
    source: dict[str, Row],
    lake: list[tuple[str, Row]],
    columns_named: Sequence[str],
) -> TableComparison:
    held = dict(lake)
    columns: Counter[str] = Counter()
    different = 0
    for key, row in source.items():
        other = held.get(key)
        if other is not None and other != row:
            different += 1
            pairs = zip(columns_named, row, other, strict=True)
            columns.update(name for name, ours, theirs in pairs if ours != theirs)
    return TableComparison(
        sizes.table,
        sizes.source_rows,
        sizes.lake_rows,
        missing=sum(key not in held for key in source),
        extra=sum(key not in source for key in held),
        different=different,
        duplicates=len(lake) - len(held),
        unavailable=sizes.unavailable,
        columns=dict(columns),
        problem=sizes.problem,
        version=sizes.version,
    )
