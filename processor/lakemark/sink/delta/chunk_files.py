"""Rows of chunks in data files that no table has yet.

The task that reads a chunk writes its rows beside their table, as a data file that the table could
have; the shards get the keys only. Of the rows that survive, those that no other record of the
batch concerns stay where they are: the table's commit adds the file, and a deletion vector hides
the rest of it. The other rows are read from the file and go the way of every change.

A file whose chunk is void is an orphan, which the table's vacuum removes after a day.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from lakemark.errors import TableError
from lakemark.model import change_batch, positions
from lakemark.model.arrays import one_array
from lakemark.model.change_batch import AT, FILE_MISSING, ChunkFile, Filed
from lakemark.settings.config import Config, LakeConfig
from lakemark.sink.delta import key_index
from lakemark.sink.delta.data_files import (
    LakeKey,
    Places,
    keep_index,
    read_rows,
    statistics,
    write_rows,
)
from lakemark.sink.delta.engines import DELETION_VECTORS
from lakemark.sink.delta.failures import told
from lakemark.sink.delta.table_log import DataFile
from lakemark.sink.delta.table_store import TableStore
from lakemark.sink.names import CDC, column_names, folder_of, sources_of
from lakemark.sink.resolve import Part
from lakemark.sink.row_images import cdc_type
from lakemark.sink.write_set import key_cells

Load = Callable[[ChunkFile, Places], pa.StructArray]
"""Rows of a file by number, sorted, under the source's names."""

_MOST: Final = 0.5  # share of a file's rows that are read from it: above, all are


@dataclass(frozen=True, slots=True)
class ChunkFileWriter:
    """Writes chunks' rows to data files, where their table's engine can take them; picklable."""

    lake: LakeConfig

    @classmethod
    def of(cls, config: Config) -> "ChunkFileWriter | None":
        """None where rows of no table go to files: records of output topics need them elsewhere."""
        engines = {config.lake.engine, *(own.engine for own in config.lake.tables.values())}
        return None if config.output or DELETION_VECTORS not in engines else cls(config.lake)

    def wanted(self, table: str) -> bool:
        """Say whether rows of a table go to files."""
        return self.lake.engine_of(table) == DELETION_VECTORS

    def __call__(
        self,
        table: str,
        rows: pa.Table,
        *,
        key: Sequence[str],
        position: bytes,
        source_ts: int,
        run: str = "",
        rebuild: str = "",
    ) -> ChunkFile | None:
        """Writes rows, and keeps the index of their keys; None if a key is there twice.

        Args:
            table: ``schema.table``.
            rows: with canonical types, under the source's names.
            key: source names of the key columns.
            position: of all rows.
            source_ts: of all rows, microseconds since the epoch.
            run: see `ChunkFile`.
            rebuild: name of the rebuild that the table is in; empty = none.

        Raises:
            TableError, DependencyError: the lake refuses, or does not answer.
        """
        kind = cdc_type(deletes=self.lake.deletes_of(table))
        path = folder_of(self.lake, table, rebuild)
        with told(path):
            store = TableStore(path, self.lake.options())
            store.make()
            whole = _laid_out(rows, kind, position, source_ts, key)
            names = column_names(rows.column_names)
            of_key = sorted(names[name] for name in key)
            keys = whole.select(of_key)
            columns = LakeKey(tuple(pa.field(n, keys.schema.field(n).type) for n in of_key))
            index = key_index.build(columns.words(keys), position)
            if len(index.row) < rows.num_rows or not key_index.is_unique(index):
                return None
            name, size = write_rows(store, whole)
            store.keep([name])
            keep_index(name, size, columns, index)
        said = json.dumps(statistics(keys), separators=(",", ":"))
        return ChunkFile(name, size, rows.num_rows, position.hex(), rows.schema, said, run)


def _laid_out(
    rows: pa.Table, kind: pa.StructType, position: bytes, source_ts: int, key: Sequence[str]
) -> pa.Table:
    """Rows as the table would have them: the columns under its names, and `_cdc`."""
    count = rows.num_rows
    given = {
        "position": pa.repeat(pa.scalar(position, pa.binary()), count),
        "op": pa.repeat("r", count),
        "source_ts": pa.array(np.full(count, source_ts)).cast(pa.timestamp("us", "UTC")),
        "deleted": pa.array(np.zeros(count, bool)),
    }
    members = [given.get(f.name, pa.nulls(count, f.type)) for f in kind]
    cdc = pa.StructArray.from_arrays(members, fields=list(kind))
    names = [*column_names(rows.column_names).values(), CDC]
    cells = [
        key_cells(column) if name in key else column
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    ]
    return pa.table([*cells, cdc], names=names)


def loader(path: str, options: dict[str, str]) -> Load:
    """Reads rows of the files in a table's folder."""
    store = TableStore(path, options)

    def load(file: ChunkFile, rows: Places) -> pa.StructArray:
        fields = list(file.columns)
        names = column_names(file.columns.names).values()
        schema = pa.schema([f.with_name(n) for f, n in zip(fields, names, strict=True)])
        with told(path), present(file):
            found = read_rows(store, data_file(file), rows, schema)
        arrays = [one_array(column) for column in found.columns]
        return pa.StructArray.from_arrays(arrays, fields=fields)

    return load


@contextmanager
def present(file: ChunkFile) -> Iterator[None]:
    """A file that turns out to be missing is an error of its own.

    Raises:
        TableError: `chunk-file-missing`.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise TableError(
            f"the file {file.path} with rows of a chunk is gone",
            code=FILE_MISSING,
            hint="the chunk is read again; let nothing but lakemark delete files of the table",
            retried=True,
        ) from error


def data_file(file: ChunkFile) -> DataFile:
    """Return the file as a table's log would have it."""
    add = {
        "path": file.path, "size": file.size, "partitionValues": {}, "stats": file.stats,
    }  # fmt: skip
    return DataFile(add, json.loads(file.stats))


def fits(file: ChunkFile, table: pa.Schema, *, deletes: str) -> bool:
    """Say whether a table can have the file as it is: the same columns, of the same types.

    But for `schema_id`, which readers find to be null: no record has brought its rows.
    """
    columns = pa.schema([*file.columns, pa.field(CDC, cdc_type(deletes=deletes))])
    names = [*column_names(file.columns.names).values(), CDC]
    written = pa.schema(Schema.from_arrow(columns).to_arrow())
    sources = sources_of(table)
    if not all(field.nullable for field in table):  # nobody would look whether its rows meet that
        return False
    return {name: (field.name, field.type) for name, field in zip(names, written, strict=True)} == {
        f.name: (sources.get(f.name, CDC), _of_rows(f)) for f in table
    }


def _of_rows(field: pa.Field) -> pa.DataType:
    """Return a column's type, as it is in a chunk's file."""
    if field.name != CDC:
        return field.type
    return pa.struct([member for member in field.type if member.name != change_batch.SCHEMA_ID])


@dataclass(frozen=True, slots=True)
class InFile:
    """Rows of a chunk's file that go into the table as they are.

    Attributes:
        file: which.
        rows: numbers, sorted.
    """

    file: ChunkFile
    rows: Places

    @property
    def position(self) -> bytes:
        """The position of all rows."""
        return bytes.fromhex(self.file.position)


def placed(
    parts: Sequence[Part],
    load: Load,
    *,
    may_stay: Callable[[ChunkFile], bool],
    pending: pa.Table | None,
    truncated_at: bytes | None,
    fills: bool,
) -> tuple[list[Part], list[InFile]]:
    """Parts with all images that `resolve` needs, and rows that stay in their files.

    Args:
        parts: all packets of a table in a batch.
        load: reads rows of a file.
        may_stay: whether the table can take a file.
        pending: what earlier batches left of key changes.
        truncated_at: position of the newest truncate, this batch's included.
        fills: whether rows that lost can fill anything.

    Raises:
        TableError: `chunk-file-missing`.
        DependencyError: the lake does not answer.
    """
    if not any(part.filed for part in parts):
        return list(parts), []
    found: list[Part] = []
    filed: list[tuple[Part, pa.Table, ChunkFile]] = []
    kept: dict[str, tuple[ChunkFile, list[Places]]] = {}
    others = _concerned(parts, pending)
    may: dict[str, bool] = {}
    for part in parts:
        rows = part.filed
        if rows is None:
            found.append(part)
            continue
        packet, file = part.packet if fills else part.packet.slice(0, 0), rows.file
        if truncated_at is None or not positions.below_truncate(rows.position, truncated_at):
            if file.path not in may:
                may[file.path] = may_stay(file) and _stands_for(file, rows.position)
            met = _met(rows, others, may=may[file.path])
            if met is None or met.any():
                own = rows.packet()
                packet = pa.concat_tables([packet, own if met is None else own.filter(met)])
            if met is not None:
                places = rows.places()
                at = places if not met.any() else places[~met]
                kept.setdefault(file.path, (file, []))[1].append(at)
        filed.append((part, packet, file))
    found += _loaded(filed, load)
    stay = [InFile(file, np.sort(np.concatenate(at))) for file, at in kept.values()]
    return found, [one for one in stay if len(one.rows)]


def _met(filed: Filed, others: pa.Array | None, *, may: bool) -> npt.NDArray[np.bool_] | None:
    """Mark the rows that other records concern, too; None if all go the way of every change."""
    if not may:
        return None
    if others is None:
        return np.zeros(0, bool)
    met: npt.NDArray[np.bool_] = pc.is_in(filed.keys(), value_set=others).to_numpy()
    return None if np.count_nonzero(met) > len(met) * _MOST else met


def _stands_for(file: ChunkFile, lo: bytes) -> bool:
    """Say whether the rows of a file have a position that compares with events as `lo` does.

    See `Watermark.position`: it is `lo`, or above it with no event between.
    """
    given = bytes.fromhex(file.position)
    return given >= lo and positions.epoch_of(given) == positions.epoch_of(lo)


def _concerned(parts: Sequence[Part], pending: pa.Table | None) -> pa.Array | None:
    """Keys that other records than a single row of a chunk speak of; None if there are none."""
    own = [part.packet for part in parts if part.packet.num_rows]
    own += [] if pending is None else [pending]
    filed = [part.filed for part in parts if part.filed is not None]
    runs = {one.file.run for one in filed}
    alone = len(runs) == 1 and "" not in runs
    if not own and alone:
        return None
    columns = [packet.column(name) for packet in own for name in ("key", "other_key")]
    found = [chunk.cast(pa.binary()) for column in columns for chunk in column.chunks]
    if not alone:
        keys = [chunk for one in filed for chunk in one.keys().chunks]
        counted = pc.value_counts(pa.chunked_array(keys, pa.binary()))
        found.append(counted.field("values").filter(pc.greater(counted.field("counts"), 1)))
    return pa.concat_arrays(found).unique().drop_null()


def _loaded(filed: Sequence[tuple[Part, pa.Table, ChunkFile]], load: Load) -> Iterator[Part]:
    """Parts with packets whose records have their images; a file is read once for all its parts."""
    wanted: dict[str, tuple[ChunkFile, list[Places]]] = {}
    for _, packet, file in filed:
        at = packet.column(AT).to_numpy().astype(np.int64)
        wanted.setdefault(file.path, (file, []))[1].append(at)
    read = {}
    for path, (file, places) in wanted.items():
        at = np.unique(np.concatenate(places))
        read[path] = (at, load(file, at) if len(at) else _no_rows(file))
    for part, packet, file in filed:
        at, rows = read[file.path]
        own = np.searchsorted(at, packet.column(AT).to_numpy())
        yield replace(
            part, packet=change_batch.with_rows(packet, rows.take(pa.array(own))), filed=None
        )


def _no_rows(file: ChunkFile) -> pa.StructArray:
    fields = list(file.columns)
    return pa.StructArray.from_arrays([pa.array([], f.type) for f in fields], fields=fields)
