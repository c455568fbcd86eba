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

MOVED, AWAITED and DISPLACED are what `sink.resolve` leaves for later batches, FILL comes from
snapshots. Rows of chunks: `chunk_batch`.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model import net_change
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


def decode(blob: bytes) -> pa.Table:
    """Inverse of `encode`."""
    return pa.ipc.open_stream(blob).read_all()


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
