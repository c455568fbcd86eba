"""Packets: net changes of one table from one stretch of a Kafka partition, as Arrow IPC.

What travels through the shuffle. One record per key (`NET`), and one per key change (`MOVE`, its
image; `TAKEN`, the create that used it; `TRUNCATE`). The row images are a struct column in the
source's own types, so that packets of different schema versions can be put side by side.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from lakemark.changes import Move, Net, Taken

NET: Final = 0
MOVE: Final = 1
MOVE_OTHERWISE: Final = 2
TAKEN: Final = 3
TRUNCATE: Final = 4

_FIELDS: Final = [
    pa.field("record", pa.int8()),
    pa.field("key", pa.binary()),
    pa.field("new_key", pa.binary()),
    pa.field("has_image", pa.bool_()),
    pa.field("action", pa.string()),
    pa.field("op", pa.string()),
    pa.field("position", pa.binary()),
    pa.field("source_ts", pa.int64()),
    pa.field("unavailable", pa.list_(pa.string())),
    pa.field("missing", pa.list_(pa.string())),
    pa.field("base", pa.bool_()),
    pa.field("force", pa.bool_()),
    pa.field("barrier", pa.binary()),
    pa.field("moved_in", pa.bool_()),
    pa.field("existed", pa.bool_()),
    pa.field("conditional", pa.bool_()),
]
CONTROL: Final = pa.schema(_FIELDS)


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a packet before it is laid out in columns."""

    record: int
    key: bytes
    net: Net | None
    new_key: bytes | None = None
    position: bytes = b""
    conditional: bool = False


def records(
    nets: Iterable[tuple[bytes, Net]], moves: Iterable[Move], taken: Iterable[Taken]
) -> list[Record]:
    """Net changes, moves and taken moves as packet records."""
    out = [Record(NET, key, net) for key, net in nets]
    for move in moves:
        common = (move.old_key, move.new_key, move.position, move.conditional)
        out.append(Record(MOVE, common[0], move.image, *common[1:]))
        if move.conditional:
            out.append(Record(MOVE_OTHERWISE, common[0], move.otherwise, *common[1:]))
    for t in taken:
        create = Net("upsert", "c", t.position, row=t.row)
        out.append(Record(TAKEN, t.old_key, create, t.new_key, t.position))
    return out


def build(
    items: Sequence[Record], pool: pa.StructArray, *, table: str, key_columns: Sequence[str]
) -> pa.Table:
    """The packet of `items`, whose nets point at rows of `pool`.

    Args:
        items: what to pack, in any order.
        pool: decoded row images; a struct with one child per source column.
        table: id of the table, `schema.table`.
        key_columns: names of its key columns, in key order.
    """
    nets = [item.net for item in items]
    control = {
        "record": [item.record for item in items],
        "key": [item.key for item in items],
        "new_key": [item.new_key for item in items],
        "has_image": [net is not None for net in nets],
        "action": [net.action if net else None for net in nets],
        "op": [net.op if net else None for net in nets],
        "position": [
            item.position or (item.net.position if item.net else b"") for item in items
        ],
        "source_ts": [net.source_ts if net else None for net in nets],
        "unavailable": [sorted(n.unavailable) if n and n.unavailable else None for n in nets],
        "missing": [sorted(n.missing) if n and n.missing else None for n in nets],
        "base": [bool(net and net.base) for net in nets],
        "force": [bool(net and net.force) for net in nets],
        "barrier": [net.barrier if net else None for net in nets],
        "moved_in": [bool(net and net.moved_in) for net in nets],
        "existed": [net.existed if net else None for net in nets],
        "conditional": [
            item.conditional or bool(item.net and item.net.conditional) for item in items
        ],
    }
    arrays = [pa.array(control[f.name], f.type) for f in _FIELDS]
    # the position of a move's image is not the move's own: keep it beside
    image_position = pa.array([net.position if net else None for net in nets], pa.binary())
    rows = take(pool, nets)
    schema = pa.schema(
        [*_FIELDS, pa.field("image_position", pa.binary()), pa.field("row", rows.type)],
        metadata={"lakemark.table": table, "lakemark.key": json.dumps(list(key_columns))},
    )
    return pa.Table.from_arrays([*arrays, image_position, rows], schema=schema)


def build_simple(  # noqa: PLR0913
    *,
    keys: list[bytes],
    ops: list[str],
    position: list[bytes],
    source_ts: list[int],
    force: list[bool],
    rows: pa.StructArray,
    table: str,
    key_columns: Sequence[str],
) -> pa.Table:
    """The packet of keys whose newest event says everything: no `Net` objects, column by column.

    `rows` has one row per key (of deletes, the key's columns only); op d is a delete, every other op an upsert.
    """
    count = len(keys)
    action = ["delete" if op == "d" else "upsert" for op in ops]
    no = pa.array(np.zeros(count, dtype=bool))
    absent = pa.nulls(count, pa.binary())
    names = pa.nulls(count, pa.list_(pa.string()))
    at = pa.array(position, pa.binary())
    arrays = [
        pa.array(np.zeros(count, dtype=np.int8)),
        pa.array(keys, pa.binary()),
        absent,
        pa.array(np.ones(count, dtype=bool)),
        pa.array(action, pa.string()),
        pa.array(ops, pa.string()),
        at,
        pa.array(source_ts, pa.int64()),
        names,
        names,
        no,
        pa.array(force, pa.bool_()),
        absent,
        no,
        pa.nulls(count, pa.bool_()),
        no,
        at,
        rows,
    ]
    schema = pa.schema(
        [*_FIELDS, pa.field("image_position", pa.binary()), pa.field("row", rows.type)],
        metadata={"lakemark.table": table, "lakemark.key": json.dumps(list(key_columns))},
    )
    return pa.Table.from_arrays(arrays, schema=schema)


def truncates(positions_of: Sequence[bytes], *, table: str) -> pa.Table:
    """A packet that says only that the table was truncated at these positions."""
    items = [Record(TRUNCATE, b"", None, None, position) for position in positions_of]
    return build(items, pa.array([], pa.struct([])), table=table, key_columns=())


def take(pool: pa.StructArray, nets: Sequence[Net | None]) -> pa.StructArray:
    """The images of nets: one row each, null where a net has none or a cell is unknown."""
    row_index = np.array([net.row if net else -1 for net in nets], dtype=np.int64)
    overridden: dict[str, list[tuple[int, int]]] = {}
    for at, net in enumerate(nets):
        if net:
            for column, cell in net.cells.items():
                overridden.setdefault(column, []).append((at, cell))
    children, fields = [], list(pool.type)
    for number, field in enumerate(fields):
        index = row_index
        if field.name in overridden:
            index = row_index.copy()
            for at, cell in overridden[field.name]:
                index[at] = cell
        children.append(take_or_null(pool.field(number), index))
    if not fields:
        return pa.array([None] * len(nets), pa.struct([]))
    return pa.StructArray.from_arrays(children, fields=fields)


def take_or_null(values: pa.Array, index: np.ndarray) -> pa.Array:  # type: ignore[type-arg]
    """`values` at `index`, null where the index is -1."""
    return values.take(pa.array(index, pa.int64(), mask=index < 0))


def encode(packet: pa.Table) -> bytes:
    """The packet as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, packet.schema) as writer:
        writer.write_table(packet)
    return bytes(sink.getvalue())


def decode(blob: bytes) -> pa.Table:
    """Inverse of `encode`."""
    return pa.ipc.open_stream(blob).read_all()


def table_of(packet: pa.Table) -> str:
    """Id of the packet's table."""
    return str((packet.schema.metadata or {})[b"lakemark.table"], "utf-8")


def key_columns_of(packet: pa.Table) -> tuple[str, ...]:
    """Names of the table's key columns, in key order."""
    return tuple(json.loads((packet.schema.metadata or {})[b"lakemark.key"]))


def nets_of(packet: pa.Table, *, offset: int) -> list[Record]:
    """The packet's records as objects, their pool rows counted from `offset`."""
    columns = {f.name: packet.column(f.name).to_pylist() for f in _FIELDS}
    image_position = packet.column("image_position").to_pylist()
    out = []
    for at in range(packet.num_rows):
        net = None
        if columns["has_image"][at]:
            record = columns["record"][at]
            net = Net(
                action=columns["action"][at],
                op=columns["op"][at],
                position=image_position[at],
                source_ts=columns["source_ts"][at],
                row=offset + at,
                unavailable=frozenset(columns["unavailable"][at] or ()),
                missing=frozenset(columns["missing"][at] or ()),
                base=columns["base"][at],
                force=columns["force"][at],
                barrier=columns["barrier"][at],
                moved_in=columns["moved_in"][at],
                existed=columns["existed"][at],
                conditional=columns["conditional"][at] and record == NET,
            )
        out.append(
            Record(
                columns["record"][at],
                columns["key"][at],
                net,
                columns["new_key"][at],
                columns["position"][at],
                columns["conditional"][at],
            )
        )
    return out
