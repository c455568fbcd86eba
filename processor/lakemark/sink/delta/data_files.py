"""Reads rows of a table's data files, and writes new ones, with what the log says of them."""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, Final
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemark.model.arrays import one_array
from lakemark.sink.delta import index_cache, key_index
from lakemark.sink.delta.key_index import KeyIndex, KeyWords
from lakemark.sink.delta.table_log import Action, DataFile
from lakemark.sink.delta.table_store import TableStore
from lakemark.sink.names import CDC

# Small groups make it cheap to read few rows; below this their heads begin to count.
_GROUP_ROWS: Final = 65_536
# Rows by which the encoding of a file's columns is chosen.
_SAMPLE: Final = 4096
# Statistics of longer strings would be cut, and a cut maximum is none.
_STATISTICS_CHARACTERS: Final = 32
# Statistics are JSON numbers: exact only up to the digits of a double.
_EXACT_DIGITS: Final = 15
_POSITION: Final = "position"
_CHUNK: Final = "chunk-"  # with a uuid: no two files have the same name

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LakeKey:
    """The key of a table under its own column names, in an order that does not change.

    Attributes:
        fields: sorted by name.
    """

    fields: tuple[pa.Field, ...]

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [f.name for f in self.fields]

    def words(self, rows: pa.Table) -> KeyWords:
        """The keys of rows as numbers."""
        return key_index.words([one_array(rows.column(name)) for name in self.names])

    def __str__(self) -> str:
        return "\n".join(f"{f.name} {f.type}" for f in self.fields)


def read_rows(store: TableStore, file: DataFile, rows: Places, schema: pa.Schema) -> pa.Table:
    """Rows of a file by number.

    Args:
        store: the table's folder.
        file: the data file.
        rows: numbers, sorted.
        schema: of the columns wanted; those that the file lacks are null.

    Raises:
        FileNotFoundError, OSError: the file is gone, or the store does not answer.
    """
    source = store.parquet(file.path, file.size)
    sizes = [source.metadata.row_group(g).num_rows for g in range(source.num_row_groups)]
    starts = np.cumsum([0, *sizes])
    found = []
    for group in np.unique(np.searchsorted(starts, rows, side="right") - 1).tolist():
        begin, end = starts[group], starts[group + 1]
        wanted = rows[(rows >= begin) & (rows < end)] - begin
        table = source.read_row_group(group, columns=_present(source, schema))
        found.append(conformed(table, schema).take(pa.array(wanted)))
    return pa.concat_tables(found) if found else schema.empty_table()


def live_rows(
    store: TableStore, file: DataFile, deleted: Places, schema: pa.Schema
) -> Iterator[pa.Table]:
    """All rows of a file but the deleted ones, in pieces.

    Raises:
        FileNotFoundError, OSError: as `read_rows`.
    """
    source = store.parquet(file.path, file.size)
    begin = 0
    for batch in source.iter_batches(_GROUP_ROWS, columns=_present(source, schema)):
        end = begin + batch.num_rows
        gone = deleted[(deleted >= begin) & (deleted < end)] - begin
        table = conformed(pa.Table.from_batches([batch]), schema)
        if len(gone):
            keep = np.ones(batch.num_rows, bool)
            keep[gone] = False
            table = table.filter(pa.array(keep))
        begin = end
        yield table


def _present(source: pq.ParquetFile, schema: pa.Schema) -> list[str]:
    there = set(source.schema_arrow.names)
    return [name for name in schema.names if name in there]


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A file's rows in the table's columns and types, as they are since the schema grew."""
    columns = []
    for f in schema:
        if f.name in table.column_names:
            columns.append(_conformed(one_array(table.column(f.name)), f.type))
        else:
            columns.append(pa.nulls(table.num_rows, f.type))
    return pa.table(columns, schema=schema)


def _conformed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if not (pa.types.is_struct(kind) and pa.types.is_struct(column.type)):
        return column.cast(kind)
    there = {f.name: array for f, array in zip(column.type, column.flatten(), strict=True)}
    members = [
        _conformed(there[f.name], f.type) if f.name in there else pa.nulls(len(column), f.type)
        for f in kind
    ]
    return pa.StructArray.from_arrays(members, fields=list(kind), mask=pc.is_null(column))


# -- keys ----------------------------------------------------------------------------------------


def index_of(store: TableStore, file: DataFile, key: LakeKey, table_id: str) -> KeyIndex:
    """Return the file's index by key: as it was kept, or from its key columns.

    Raises:
        FileNotFoundError, OSError: as `read_rows`.
    """
    name = _index_name(file.path, file.size, key, table_id)
    found = index_cache.get(name)
    if found is not None:
        return found
    source = store.parquet(file.path, file.size)
    schema = pa.schema(key.fields)
    columns = [*_present(source, schema), f"{CDC}.{_POSITION}"]
    table = source.read(columns=columns)
    built = key_index.build(key.words(conformed(table, schema)), newest_of([table]))
    index_cache.put(name, built)
    return built


def newest_of(tables: Sequence[pa.Table]) -> bytes:
    """The highest position of rows; empty without any."""
    found = []
    for table in tables:
        if CDC in table.column_names and table.num_rows:
            # delta-rs writes views where it read views.
            positions = pc.struct_field(table.column(CDC), _POSITION).cast(pa.binary())
            found.append(pc.max(positions).as_py() or b"")
    return max(found, default=b"")


# -- writing -------------------------------------------------------------------------------------


@dataclass(slots=True)
class NewFile:
    """A data file in the making: rows are added piece by piece, then it is written.

    Attributes:
        schema: of the table.
        key: its key columns.
        indexed: whether its rows are going to be looked for by key: their index is kept.
    """

    schema: pa.Schema
    key: LakeKey
    indexed: bool = True
    _sink: io.BytesIO = field(default_factory=io.BytesIO)
    _writer: pq.ParquetWriter | None = None
    _keys: list[pa.Table] = field(default_factory=list)
    _newest: bytes = b""

    def __post_init__(self) -> None:
        if not self.key.names:
            raise ValueError("a file without the key's columns tells nobody how many rows it has")

    @property
    def bytes(self) -> int:
        """Bytes so far."""
        return self._sink.tell()

    @property
    def rows(self) -> int:
        """Rows so far."""
        return sum(table.num_rows for table in self._keys)

    def add(self, rows: pa.Table) -> None:
        """Adds rows at its end."""
        if self._writer is None:
            self._writer = _writer(self._sink, rows)
        self._writer.write_table(rows, row_group_size=_GROUP_ROWS)
        self._keys.append(rows.select(self.key.names))
        self._newest = max(self._newest, newest_of([rows]))

    def write(self, store: TableStore, table_id: str, now: int, *, data_change: bool) -> Action:
        """Writes it, keeps its index if it has one, and gives the action that adds it to the table.

        Args:
            store: the table's folder.
            table_id: of the metadata.
            now: milliseconds since the epoch.
            data_change: whether rows change by it.

        Raises:
            OSError: the store does not answer or refuses.
        """
        writer = self._writer or _writer(self._sink, self.schema.empty_table())
        writer.close()
        data = self._sink.getvalue()
        name = _name()
        store.write(name, data)
        keys = pa.concat_tables(self._keys)
        if self.indexed:
            index = key_index.build(self.key.words(keys), self._newest)
            index_cache.put(_index_name(name, len(data), self.key, table_id), index)
        return {
            "add": {
                "path": name,
                "partitionValues": {},
                "size": len(data),
                "modificationTime": now,
                "dataChange": data_change,
                "stats": json.dumps(statistics(keys), separators=(",", ":")),
            }
        }


def write_rows(store: TableStore, rows: pa.Table) -> tuple[str, int]:
    """Writes a data file that no table has yet; its name and bytes.

    Raises:
        OSError: the store does not answer or refuses.
    """
    sink = io.BytesIO()
    writer = _writer(sink, rows)
    writer.write_table(rows, row_group_size=_GROUP_ROWS)
    writer.close()
    name, data = f"{_CHUNK}{uuid4()}.zstd.parquet", sink.getvalue()
    store.write(name, data)
    return name, len(data)


def keep_index(name: str, size: int, key: LakeKey, index: KeyIndex) -> None:
    """Keeps the index of a file that `write_rows` wrote."""
    index_cache.put(_index_name(name, size, key, ""), index)


def drop_index(file: DataFile, key: LakeKey, table_id: str) -> None:
    """Forgets the index of a file that has left the table; who still needs it builds it again."""
    index_cache.drop(_index_name(file.path, file.size, key, table_id))


def _index_name(path: str, size: int, key: LakeKey, table_id: str) -> str:
    """Return the name of a file's index; a chunk's is made before its table may be there."""
    return index_cache.name_of("" if path.startswith(_CHUNK) else table_id, path, size, str(key))


def _name() -> str:
    return f"part-00000-{uuid4()}-c000.zstd.parquet"


def _writer(sink: io.BytesIO, first: pa.Table) -> pq.ParquetWriter:
    """Writes rows like the first ones.

    A dictionary for values that seldom come again would be made and thrown away, or make the file
    larger than without.
    """
    empty = io.BytesIO()
    pq.write_table(first.schema.empty_table(), empty, store_schema=False)
    leaves = pq.ParquetFile(empty).schema
    paths = [leaves.column(at).path for at in range(len(leaves))]
    some = first.slice(0, _SAMPLE)
    unlike = {name for name in first.column_names if _differ(some.column(name))}
    return pq.ParquetWriter(
        sink,
        first.schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[path for path in paths if path not in unlike],
        store_schema=False,
    )


def _differ(cells: pa.ChunkedArray) -> bool:
    """Say whether most values of a plain column are unlike each other."""
    kind = cells.type
    if len(cells) < _SAMPLE or pa.types.is_nested(kind):
        return False
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return False  # Arrow cannot count them
    return bool(pc.count_distinct(cells).as_py() > _SAMPLE // 2)


def statistics(keys: pa.Table) -> dict[str, Any]:
    """Return a file's statistics for the log: the number of rows, each key column's range."""
    low, high, nulls = {}, {}, {}
    for name in keys.column_names:
        column = keys.column(name)
        if not _has_range(column.type):
            continue
        nulls[name] = column.null_count
        bounds = pc.min_max(column).as_py()
        shown = {side: _shown(value) for side, value in bounds.items()}
        if shown["min"] is not None and shown["max"] is not None:
            low[name], high[name] = shown["min"], shown["max"]
    return {
        "numRecords": keys.num_rows,
        "minValues": low,
        "maxValues": high,
        "nullCount": nulls,
    }


def _has_range(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= _EXACT_DIGITS)
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind))


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _STATISTICS_CHARACTERS else None
    if isinstance(value, Decimal):
        return float(value)
    return value.isoformat() if isinstance(value, date) else value


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """The values of one key column, to leave out files by their statistics.

    Attributes:
        name: of the column.
        values: sorted integers, or the lowest and highest text.
    """

    name: str
    values: npt.NDArray[np.int64] | tuple[str, str]

    def may_meet(self, file: DataFile) -> bool:
        """Say whether the file may have rows with one of the values."""
        low = (file.stats.get("minValues") or {}).get(self.name)
        high = (file.stats.get("maxValues") or {}).get(self.name)
        if isinstance(self.values, tuple):
            if not (isinstance(low, str) and isinstance(high, str)):
                return True
            # A high that was cut is no bound for text that is longer.
            return low <= self.values[1] and self.values[0][:_STATISTICS_CHARACTERS] <= high
        if not (isinstance(low, int) and isinstance(high, int)):
            return True
        first = np.searchsorted(self.values, low, side="left")
        return bool(first < np.searchsorted(self.values, high, side="right"))


def may_meet(file: DataFile, other: DataFile, key: LakeKey) -> bool:
    """Say whether two files may have rows of one key, as far as their statistics tell."""
    for name in key.names:
        low, high = _bounds(file, name)
        first, last = _bounds(other, name)
        if all(isinstance(b, int) for b in (low, high, first, last)) and (
            last < low or high < first
        ):
            return False
    return True


def _bounds(file: DataFile, name: str) -> tuple[Any, Any]:
    low, high = (file.stats.get(side) or {} for side in ("minValues", "maxValues"))
    return low.get(name), high.get(name)


def key_ranges(key: LakeKey, rows: pa.Table) -> list[KeyBounds]:
    """The ranges of a write set's keys, of columns whose statistics are exact."""
    found = []
    for name in key.names:
        column = one_array(rows.column(name))
        if pa.types.is_integer(column.type):
            found.append(KeyBounds(name, np.sort(column.to_numpy()).astype(np.int64)))
        elif pa.types.is_string(column.type) and len(column):
            bounds = pc.min_max(column).as_py()
            found.append(KeyBounds(name, (bounds["min"], bounds["max"])))
    return found
