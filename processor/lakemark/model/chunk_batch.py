"""Rows of chunks as packets: as they were read, and as a shard has decided them.

The rows may be in a data file instead, written beside the table by the task that read them: the
packet then has their keys and says in `at` which row of the file each is.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model import change_batch, net_change, positions
from lakemark.model.change_batch import KeyColumns

Mask = npt.NDArray[np.bool_]

AT: Final = "at"
FILE_MISSING: Final = "chunk-file-missing"
"""Code of the error where a chunk's file is gone before its table had it."""
_OF_FILES: Final = frozenset({b"lakemark.file", b"lakemark.columns"})
_SETTLED: Final = b"chunk\0"  # an Arrow stream begins with 0xffffffff


@dataclass(frozen=True, slots=True)
class ChunkFile:
    """A data file with a chunk's rows that no table has yet.

    Attributes:
        path: relative to the table's folder.
        size: bytes.
        records: rows in it, each with a key of its own.
        position: that its rows have (hex).
        stats: what a table's log says of its rows, JSON.
        run: that read the chunk: no other chunk of that run has one of its keys; empty if one may.
        columns: of the rows, under the source's names, in the file's order.
    """

    path: str
    size: int
    records: int
    position: str
    columns: pa.Schema
    stats: str = "{}"
    run: str = ""


class WriteFile(Protocol):
    """Writes rows of chunks to data files that their tables may have as they are; picklable."""

    def wanted(self, table: str) -> bool:
        """Say whether rows of a table go to files."""

    def __call__(
        self,
        table: str,
        rows: pa.Table,
        *,
        key: Sequence[str],
        position: bytes,
        source_ts: int,
        run: str,
        rebuild: str,
    ) -> ChunkFile | None:
        """Writes them; None if a key is there twice. Raises DependencyError, TableError."""


def reads(
    keys: pa.Array, rows: pa.StructArray, *, source_ts: int, table: str, key_columns: KeyColumns
) -> pa.Table:
    """The packet of a chunk's rows: upserts with op r, made column by column.

    Their positions are zeros until the shard knows the chunk's.

    Args:
        keys: canonical keys (binary), one a row.
        rows: the rows, one child per source column.
        source_ts: when they were read, microseconds since the epoch by the database's clock.
        table: id of the table, `schema.table`.
        key_columns: of its key.
    """
    control = _control(keys, source_ts, action="upsert", op="r")
    return change_batch.packet(control, rows, table=table, key_columns=key_columns)


def absences(
    keys: pa.Array, rows: pa.StructArray, *, source_ts: int, table: str, key_columns: KeyColumns
) -> pa.Table:
    """As `reads`, of keys that the database has no row of: deletes with op d.

    `rows` has the key's columns only.
    """
    control = _control(keys, source_ts, action="delete", op="d")
    return change_batch.packet(control, rows, table=table, key_columns=key_columns)


def filed(
    keys: pa.Array,
    at: pa.Array,
    file: ChunkFile,
    *,
    source_ts: int,
    table: str,
    key_columns: KeyColumns,
) -> pa.Table:
    """As `reads`, of rows that are in a data file: their keys, and where in it they are (int32).

    `decode` makes a packet without images of it, with a column `at` more.
    """
    where = {
        "path": file.path, "size": file.size, "records": file.records, "at": file.position,
        "source_ts": source_ts, "stats": file.stats, "run": file.run,
    }  # fmt: skip
    none = change_batch.packet(
        [pa.array([], f.type) for f in change_batch.CONTROL], pa.array([], pa.struct([])),
        table=table, key_columns=key_columns,
    )  # fmt: skip
    more = {
        b"lakemark.file": json.dumps(where).encode(),
        b"lakemark.columns": file.columns.serialize().to_pybytes(),
    }
    metadata = {**(none.schema.metadata or {}), **more}
    schema = pa.schema([pa.field("key", pa.binary()), pa.field(AT, pa.int32())], metadata=metadata)
    return pa.table([keys, at], schema=schema)


def _whole(found: pa.Table) -> pa.Table:
    """The packet of what `filed` made."""
    said = json.loads(change_batch.metadata_of(found, b"lakemark.file"))
    keys = found.column("key").combine_chunks()
    control = _control(keys, said["source_ts"], action=net_change.UPSERT, op="r")
    fields = [*change_batch.CONTROL, pa.field("row", pa.struct([])), pa.field(AT, pa.int32())]
    none = pa.StructArray.from_buffers(pa.struct([]), len(keys), [None])
    schema = pa.schema(fields, metadata=found.schema.metadata)
    return pa.Table.from_arrays([*control, none, found.column(AT)], schema=schema)


def file_of(packet: pa.Table) -> ChunkFile | None:
    """The data file that has the packet's rows; None if the packet has them itself."""
    where = change_batch.metadata_of(packet, b"lakemark.file")
    if not where:
        return None
    said = json.loads(where)
    columns_of = pa.ipc.read_schema(
        pa.py_buffer(change_batch.metadata_of(packet, b"lakemark.columns"))
    )
    return ChunkFile(
        said["path"], said["size"], said["records"], said["at"], columns_of, said["stats"],
        said["run"],
    )  # fmt: skip


def image_type(packet: pa.Table) -> pa.StructType:
    """The type of the rows' images, wherever they are."""
    file = file_of(packet)
    return packet.schema.field("row").type if file is None else pa.struct(list(file.columns))


def with_rows(packet: pa.Table, rows: pa.StructArray) -> pa.Table:
    """A packet whose rows were in a data file, with their images: `rows`, one a record."""
    packet = packet.drop_columns([AT])
    at = packet.schema.get_field_index("row")
    packet = packet.set_column(at, pa.field("row", rows.type), rows)
    kept = {k: v for k, v in (packet.schema.metadata or {}).items() if k not in _OF_FILES}
    return packet.replace_schema_metadata(kept)


def _control(keys: pa.Array, source_ts: int, *, action: str, op: str) -> list[pa.Array]:
    count = len(keys)
    absent, names = pa.nulls(count, pa.binary()), pa.nulls(count, change_batch.NAMES)
    at = pa.repeat(pa.scalar(positions.LOWEST, pa.binary()), count)
    false = pa.array(np.zeros(count, dtype=bool))
    return [
        pa.array(np.full(count, change_batch.NET, dtype=np.int8)),
        keys,
        absent,
        at,
        pa.repeat(action, count),
        pa.repeat(op, count),
        at,
        pa.array(np.full(count, source_ts, dtype=np.int64)),
        names,
        names,
        false,
        false,
        absent,
    ]


def as_of(packet: pa.Table, position: bytes, *, record: int = change_batch.NET) -> pa.Table:
    """A chunk's rows with the position that the chunk got, as records of this kind."""
    count = packet.num_rows
    at = pa.repeat(pa.scalar(position, pa.binary()), count)
    kind = pa.array(np.full(count, record, dtype=np.int8))
    columns = {"record": kind, "position": at, "net_position": at}
    for name, column in columns.items():
        number = packet.schema.get_field_index(name)
        packet = packet.set_column(number, packet.schema.field(number), column)
    return packet


def columns(blob: bytes, *names: str) -> pa.Table:
    """Some control columns of an encoded packet; the others are not decompressed."""
    schema = pa.ipc.open_stream(blob).schema
    there = [schema.get_field_index(name) for name in names if name in schema.names]
    found = pa.ipc.open_stream(
        blob, options=pa.ipc.IpcReadOptions(included_fields=there)
    ).read_all()
    if "action" in names and "action" not in schema.names:
        found = found.append_column("action", pa.repeat(net_change.UPSERT, found.num_rows))
    return found


def decode(blob: bytes) -> pa.Table:
    """The packet of a chunk's rows, decided (`settled`) or not, or any other packet."""
    if blob.startswith(_SETTLED):
        return _unsettled(msgspec.msgpack.decode(blob[len(_SETTLED) :], type=_Settled))
    found = change_batch.decode(blob)
    return found if "record" in found.column_names else _whole(found)


class _Settled(msgspec.Struct, array_like=True):
    """A chunk's packets as they came: bits of rows that do not count, and of those that fill."""

    position: bytes
    parts: list[tuple[bytes, bytes, bytes]]


def settled(parts: Iterable[tuple[bytes, Mask | None, Mask | None]], position: bytes) -> bytes:
    """A chunk's packets with the position that the chunk got, without making them anew.

    Args:
        parts: packets as encoded, each with the rows to leave out and those of them that come as
            FILL records instead (both boolean); None for none.
        position: of all rows.
    """
    given = [(blob, _bits(out), _bits(fill)) for blob, out, fill in parts]
    return _SETTLED + msgspec.msgpack.encode(_Settled(position, given))


def _bits(mask: Mask | None) -> bytes:
    return b"" if mask is None or not mask.any() else np.packbits(mask).tobytes()


def _unsettled(chunk: _Settled) -> pa.Table:
    found, fills = [], []
    for blob, out, fill in chunk.parts:
        packet = decode(blob)
        if fill:
            fills.append(packet.filter(_mask(fill, packet.num_rows)))
        found.append(packet.filter(pc.invert(_mask(out, packet.num_rows))) if out else packet)
    # Of keys without a row there are no columns but the key's.
    packet = as_of(pa.concat_tables(found, promote_options="permissive"), chunk.position)
    given = [as_of(packet, chunk.position, record=change_batch.FILL) for packet in fills]
    return pa.concat_tables([packet, *given], promote_options="permissive")


@dataclass(frozen=True, slots=True)
class Filed:
    """Rows of a chunk that survived, in their data file.

    Attributes:
        file: which.
        position: that the shard gave them.
        parts: packets as `filed` made them, each with the bits of rows that do not count.
    """

    file: ChunkFile
    position: bytes
    parts: Sequence[tuple[bytes, bytes]]

    def places(self) -> npt.NDArray[np.int64]:
        """Return the numbers that the rows have in the file."""
        found: npt.NDArray[np.int64] = self._column(AT).to_numpy().astype(np.int64)
        return found

    def keys(self) -> pa.ChunkedArray:
        """Their canonical keys."""
        return self._column("key")

    def packet(self) -> pa.Table:
        """The records, without images."""
        parts = [(blob, out, b"") for blob, out in self.parts]
        return _unsettled(_Settled(self.position, parts))

    def _column(self, name: str) -> pa.ChunkedArray:
        found = []
        for blob, out in self.parts:
            column = columns(blob, name).column(name)
            found.append(column.filter(pc.invert(_mask(out, len(column)))) if out else column)
        chunks = [chunk for column in found for chunk in column.chunks]
        return pa.chunked_array(chunks, found[0].type)


def parted(blob: bytes) -> tuple[pa.Table, Filed | None]:
    """As `decode`; survivors that are in a data file stand apart."""
    if not blob.startswith(_SETTLED):
        return change_batch.decode(blob), None
    chunk = msgspec.msgpack.decode(blob[len(_SETTLED) :], type=_Settled)
    schema = pa.ipc.open_stream(chunk.parts[0][0]).schema
    if "record" in schema.names:
        return _unsettled(chunk), None
    first = _whole(schema.empty_table())
    file = file_of(first)
    fills = [(b, f) for b, _, f in chunk.parts if f]
    given = [(p := decode(b)).filter(_mask(f, p.num_rows)) for b, f in fills]
    packet = as_of(pa.concat_tables([first, *given]), chunk.position, record=change_batch.FILL)
    if file is None:
        return _unsettled(chunk), None
    return packet, Filed(file, chunk.position, [(b, out) for b, out, _ in chunk.parts])


def _mask(bits: bytes, count: int) -> pa.Array:
    return pa.array(np.unpackbits(np.frombuffer(bits, np.uint8), count=count).view(bool))
