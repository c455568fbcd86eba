"""Packets: what a stretch of a Kafka partition does to one table, as Arrow IPC.

What travels through the shuffle, and what waits beside a table for later batches. The row images
are a struct column in the source's own types, so that packets of different schema versions can be
put side by side.

| record | key | other_key | position | row |
| --- | --- | --- | --- | --- |
| NET | its key | | the net's | its image |
| LEAVE | the deleted key | new key, null if the row is gone | the event's | before image |
| ARRIVE | the created key | old key | the event's | its image |
| TRUNCATE | | | the event's | |
| MOVED | new key | old key | the key change's | the old key's row just below it |
| AWAITED | new key | old key | the key change's | the new key's columns |
| DISPLACED | its key | | its newest step's | the row that a create displaced, if it may be back |
| FILL | its key | | the chunk's `lo` | a chunk's row that lost to an event of its key |
| MISSED | its key | | the event's | (of an event that cannot be decoded) |

Where tables name the schemas of their rows' records, a packet has the column `SCHEMA_ID` more: by
which schema the record of the image was written. A packet without it has no such records.

MOVED, AWAITED and DISPLACED are what `sink.resolve` leaves for later batches, FILL comes from
snapshots.

Rows of chunks are packets as they were read (`reads`), and as a shard has decided them (`settled`).
They may be in a data file instead, written beside the table by the task that read them: the packet
then has their keys (`filed`) and says in `at` which row of the file each is.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model import net_change, positions
from lakemark.model.events import NOTHING_LEARNT, Learnt
from lakemark.model.net_change import NetChange
from lakemark.model.schema import TableSchema

NET: Final = 0
LEAVE: Final = 1
ARRIVE: Final = 2
TRUNCATE: Final = 3
MOVED: Final = 4
AWAITED: Final = 5
DISPLACED: Final = 6
FILL: Final = 7
MISSED: Final = 8

SCHEMA_ID: Final = "schema_id"
"""The column with the number of a record's schema in its registry, int64; null for none."""
SWEEPS: Final = "sweep/"  # where packets come from that a snapshot's end has made

COMPRESSED_BYTES: Final = 32 << 10  # in memory; below it zstd saves less than it costs
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="zstd")
NAMES: Final = pa.list_(pa.string())
CONTROL: Final = pa.schema(
    [
        pa.field("record", pa.int8()),
        pa.field("key", pa.binary()),
        pa.field("other_key", pa.binary()),
        pa.field("position", pa.binary()),
        # of the net; all null in a record without one
        pa.field("action", pa.string()),
        pa.field("op", pa.string()),
        pa.field("net_position", pa.binary()),
        pa.field("source_ts", pa.int64()),
        pa.field("unavailable", NAMES),
        pa.field("missing", NAMES),
        pa.field("base", pa.bool_()),
        pa.field("force", pa.bool_()),
        pa.field("barrier", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class PacketRecord:
    """One record of a packet: see the table above. `net` points at a pool row."""

    record: int
    key: bytes
    position: bytes
    net: NetChange | None = None
    other_key: bytes | None = None


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """The columns of a table's key, in key order; `padded`: those of type char(n)."""

    names: tuple[str, ...] = ()
    padded: frozenset[str] = frozenset()


def build(
    items: Sequence[PacketRecord], pool: pa.StructArray, *, table: str, key_columns: KeyColumns
) -> pa.Table:
    """The packet of `items`, whose nets point at rows of `pool`.

    Args:
        items: what to pack; the records of one key in log order.
        pool: decoded row images; a struct with one child per source column.
        table: id of the table, `schema.table`.
        key_columns: of its key.
    """
    nets = [item.net for item in items]
    control: dict[str, list[Any]] = {
        "record": [item.record for item in items],
        "key": [item.key for item in items],
        "other_key": [item.other_key for item in items],
        "position": [item.position for item in items],
        "action": [n.action if n else None for n in nets],
        "op": [n.op if n else None for n in nets],
        "net_position": [n.position if n else None for n in nets],
        "source_ts": [n.source_ts if n else None for n in nets],
        "unavailable": [sorted(n.unavailable) if n and n.unavailable else None for n in nets],
        "missing": [sorted(n.missing) if n and n.missing else None for n in nets],
        "base": [bool(n and n.base) for n in nets],
        "force": [bool(n and n.force) for n in nets],
        "barrier": [n.barrier if n else None for n in nets],
    }
    arrays = [pa.array(control[f.name], f.type) for f in CONTROL]
    return packet(arrays, take(pool, nets), table=table, key_columns=key_columns)


def with_column(packet: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """The packet with other values, perhaps of another type, in one of its columns."""
    at = packet.schema.get_field_index(name)
    return packet.set_column(at, packet.schema.field(at).with_type(column.type), column)


def with_schema_ids(packet: pa.Table, numbers: pa.Array) -> pa.Table:
    """The packet with the numbers of the schemas by which its images were written: `SCHEMA_ID`."""
    return packet.append_column(pa.field(SCHEMA_ID, pa.int64()), numbers)


def schema_ids_of(packet: pa.Table) -> pa.ChunkedArray:
    """Return the numbers of the schemas by which a packet's images were written."""
    if SCHEMA_ID in packet.column_names:
        return packet.column(SCHEMA_ID)
    return pa.chunked_array([pa.nulls(packet.num_rows, pa.int64())])


def build_simple(
    *,
    keys: pa.Array,
    ops: pa.Array,
    position: pa.Array,
    source_ts: pa.Array,
    force: pa.Array,
    rows: pa.StructArray,
    table: str,
    key_columns: KeyColumns,
) -> pa.Table:
    """The packet of keys whose newest event says everything, column by column.

    `rows` has one row per key (of deletes, the key's columns only); op d is a delete, every other
    op an upsert. Keys and positions are binary, the others as `CONTROL` has them.
    """
    count = len(keys)
    absent = pa.nulls(count, pa.binary())
    names = pa.nulls(count, NAMES)
    arrays = [
        pa.array(np.full(count, NET, dtype=np.int8)),
        keys,
        absent,
        position,
        pc.if_else(pc.equal(ops, "d"), net_change.DELETE, net_change.UPSERT),
        ops,
        position,
        source_ts,
        names,
        names,
        pa.array(np.zeros(count, dtype=bool)),
        force,
        absent,
    ]
    return packet(arrays, rows, table=table, key_columns=key_columns)


def with_metadata(
    packet: pa.Table, *, schema: bytes | None = None, learnt: Learnt = NOTHING_LEARNT
) -> pa.Table:
    """The packet with what its rows' records in an output topic need, where that is not known yet.

    Args:
        packet: which.
        schema: the source's, that a chunk's rows were read with, as JSON.
        learnt: what events have shown of how the packet's table is written.
    """
    more = {b"lakemark.sample": learnt.event, b"lakemark.schema": schema or b""}
    for form in learnt.tables.values():
        more |= dict(zip((b"lakemark.wrapped.key", b"lakemark.wrapped"), form, strict=True))
    given = {name: value for name, value in more.items() if value}
    return packet.replace_schema_metadata({**(packet.schema.metadata or {}), **given})


def schema_of(packet: pa.Table) -> bytes | None:
    """The source's schema that a chunk's rows were read with, None if it was not told."""
    return metadata_of(packet, b"lakemark.schema") or None


def learnt_of(packet: pa.Table, table: str) -> Learnt:
    """Return what the packet was told of how its table's records are written."""
    form = metadata_of(packet, b"lakemark.wrapped.key"), metadata_of(packet, b"lakemark.wrapped")
    return Learnt(metadata_of(packet, b"lakemark.sample"), {table: form} if any(form) else {})


def metadata_of(packet: pa.Table, name: bytes) -> bytes:
    """Return what the packet was told under a name; empty without."""
    return bytes((packet.schema.metadata or {}).get(name, b""))


def truncates(positions_of: Sequence[bytes], *, table: str) -> pa.Table:
    """A packet that says only that the table was truncated at these positions."""
    items = [PacketRecord(TRUNCATE, b"", position) for position in positions_of]
    return build(items, pa.array([], pa.struct([])), table=table, key_columns=KeyColumns())


def missed(keys: Sequence[tuple[bytes, bytes]], *, table: str) -> pa.Table:
    """A packet that says only that events of these (key, position) are missing."""
    items = [PacketRecord(MISSED, key, position) for key, position in keys]
    return build(items, pa.array([], pa.struct([])), table=table, key_columns=KeyColumns())


def packet(
    control: list[pa.Array], rows: pa.StructArray, *, table: str, key_columns: KeyColumns
) -> pa.Table:
    """The packet of control columns, see `CONTROL`, and row images."""
    key = [[name, name in key_columns.padded] for name in key_columns.names]
    schema = pa.schema(
        [*CONTROL, pa.field("row", rows.type)],
        metadata={"lakemark.table": table, "lakemark.key": json.dumps(key)},
    )
    return pa.Table.from_arrays([*control, rows], schema=schema)


def take(pool: pa.StructArray, nets: Sequence[NetChange | None]) -> pa.StructArray:
    """The images of nets: one row each, null where a net has none or a cell is unknown."""
    fields = list(pool.type)
    if not fields:
        return pa.array([None] * len(nets), pa.struct([]))
    rows = np.array([net.row if net else -1 for net in nets], dtype=np.int64)
    other: dict[str, list[tuple[int, int]]] = {}
    for at, net in enumerate(nets):
        if net:
            for column, cell in net.cells.items():
                other.setdefault(column, []).append((at, cell))
    children = []
    for number, field in enumerate(fields):
        index = rows
        if field.name in other:
            index = rows.copy()
            for at, cell in other[field.name]:
                index[at] = cell
        values = pool.field(number)
        children.append(values.take(pa.array(index, pa.int64(), mask=index < 0)))
    return pa.StructArray.from_arrays(children, fields=fields)


def encode(packet: pa.Table) -> bytes:
    """The packet as an Arrow IPC stream; a large one compressed, to a fifth where rows are alike.

    A packet crosses a broker, two shuffles and several processes: that costs more than zstd does.
    """
    options = _COMPRESSED if packet.nbytes >= COMPRESSED_BYTES else None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, packet.schema, options=options) as writer:
        writer.write_table(packet)
    return bytes(sink.getvalue())


def key_columns_of(packet: pa.Table) -> KeyColumns:
    """The columns of the table's key; none in a packet of truncates only."""
    key = json.loads((packet.schema.metadata or {})[b"lakemark.key"])
    return KeyColumns(tuple(n for n, _ in key), frozenset(n for n, padded in key if padded))


def key_columns(packets_of: Iterable[pa.Table]) -> KeyColumns:
    """The columns of the key that the first packet with rows names."""
    found = (key_columns_of(packet) for packet in packets_of)
    return next((key for key in found if key.names), KeyColumns())


def key_columns_by(schema: TableSchema) -> KeyColumns:
    """The columns of the key, as a table's schema has them."""
    padded = frozenset(c.name for c in schema.columns if c.padded)
    return KeyColumns(schema.key, padded.intersection(schema.key))


def records_of(packet: pa.Table, at: np.ndarray, *, offset: int) -> list[PacketRecord]:
    """The packet's records at the given rows, their pool rows counted from `offset`."""
    chosen = packet.select(CONTROL.names).take(pa.array(at, pa.int64()))
    return [
        _record(row, offset + int(number))
        for row, number in zip(chosen.to_pylist(), at, strict=True)
    ]


def _record(row: dict[str, Any], pool_row: int) -> PacketRecord:
    net = None
    if row["action"] is not None:
        net = NetChange(
            action=row["action"],
            op=row["op"],
            position=row["net_position"],
            source_ts=row["source_ts"],
            row=pool_row,
            unavailable=frozenset(row["unavailable"] or ()),
            missing=frozenset(row["missing"] or ()),
            base=row["base"],
            force=row["force"],
            barrier=row["barrier"],
        )
    return PacketRecord(row["record"], row["key"], row["position"], net, row["other_key"])


# -- rows of chunks -------------------------------------------------------------------------------


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
    return packet(control, rows, table=table, key_columns=key_columns)


def absences(
    keys: pa.Array, rows: pa.StructArray, *, source_ts: int, table: str, key_columns: KeyColumns
) -> pa.Table:
    """As `reads`, of keys that the database has no row of: deletes with op d.

    `rows` has the key's columns only.
    """
    control = _control(keys, source_ts, action="delete", op="d")
    return packet(control, rows, table=table, key_columns=key_columns)


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
    none = packet(
        [pa.array([], f.type) for f in CONTROL], pa.array([], pa.struct([])),
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
    said = json.loads(metadata_of(found, b"lakemark.file"))
    keys = found.column("key").combine_chunks()
    control = _control(keys, said["source_ts"], action=net_change.UPSERT, op="r")
    fields = [*CONTROL, pa.field("row", pa.struct([])), pa.field(AT, pa.int32())]
    none = pa.StructArray.from_buffers(pa.struct([]), len(keys), [None])
    schema = pa.schema(fields, metadata=found.schema.metadata)
    return pa.Table.from_arrays([*control, none, found.column(AT)], schema=schema)


def file_of(packet: pa.Table) -> ChunkFile | None:
    """The data file that has the packet's rows; None if the packet has them itself."""
    where = metadata_of(packet, b"lakemark.file")
    if not where:
        return None
    said = json.loads(where)
    columns_of = pa.ipc.read_schema(pa.py_buffer(metadata_of(packet, b"lakemark.columns")))
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
    absent, names = pa.nulls(count, pa.binary()), pa.nulls(count, NAMES)
    at = pa.repeat(pa.scalar(positions.LOWEST, pa.binary()), count)
    false = pa.array(np.zeros(count, dtype=bool))
    return [
        pa.array(np.full(count, NET, dtype=np.int8)),
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


def as_of(packet: pa.Table, position: bytes, *, record: int = NET) -> pa.Table:
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
    """Inverse of `encode`; also the packet of a chunk's rows, decided (`settled`) or not."""
    if blob.startswith(_SETTLED):
        return _unsettled(msgspec.msgpack.decode(blob[len(_SETTLED) :], type=_Settled))
    found = pa.ipc.open_stream(blob).read_all()
    return _whole(found) if found.column_names == ["key", AT] else found  # as `filed` makes it


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
    given = [as_of(packet, chunk.position, record=FILL) for packet in fills]
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
        return decode(blob), None
    chunk = msgspec.msgpack.decode(blob[len(_SETTLED) :], type=_Settled)
    schema = pa.ipc.open_stream(chunk.parts[0][0]).schema
    if "record" in schema.names:
        return _unsettled(chunk), None
    first = _whole(schema.empty_table())
    file = file_of(first)
    fills = [(b, f) for b, _, f in chunk.parts if f]
    given = [(p := decode(b)).filter(_mask(f, p.num_rows)) for b, f in fills]
    packet = as_of(pa.concat_tables([first, *given]), chunk.position, record=FILL)
    if file is None:
        return _unsettled(chunk), None
    return packet, Filed(file, chunk.position, [(b, out) for b, out, _ in chunk.parts])


def _mask(bits: bytes, count: int) -> pa.Array:
    return pa.array(np.unpackbits(np.frombuffer(bits, np.uint8), count=count).view(bool))
