"""Packing for the operator: changed keys and marks of the log, in few rows.

Pure. The price of the operator is paid per row that crosses into Python, so the touches of one
input batch travel as one Arrow blob per shard, and the rare things that concern every shard as one
blob of marks. A touch takes 40 bytes; lz4 would make 19 of them for another fifth of the packing
time, but Spark compresses its shuffle anyway, so it does not pay.

A touch is a change event of a row: op c, u or d. Op r is never one: Debezium's reads carry
positions that are newer than what they saw.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa

from lakemark.converters.converter import Converter
from lakemark.model import positions
from lakemark.model.events import Headers, Kind


def touches(position: pa.DataType) -> pa.Schema:
    """The columns of touches whose positions are of a type: a width of bytes."""
    return pa.schema(
        [
            pa.field("table", pa.dictionary(pa.int32(), pa.string()), nullable=False),
            pa.field("key", pa.binary(), nullable=False),
            pa.field("position", position, nullable=False),
            # The newest c or d of a key begins an incarnation: nothing older may fill its columns.
            pa.field("is_barrier", pa.bool_(), nullable=False),
        ]
    )


# Kinds of the two sorts of blobs on their way to the operator.
TOUCHES_KIND: Final = "touches"
MARKS_KIND: Final = "marks"

TRUNCATE: Final = "truncate"
WINDOW: Final = "window"
OWN_SNAPSHOT: Final = "own-snapshot"
BLIND: Final = "blind"

WINDOW_COLUMNS: Final = 3  # id, type, data
_WINDOW_TYPES: Final = frozenset({"snapshot-window-open", "snapshot-window-close"})


class ShardMark(msgspec.Struct, frozen=True, array_like=True):
    """Something that concerns every shard.

    Attributes:
        kind: TRUNCATE (rows below the position are gone), WINDOW (an open or close row),
            OWN_SNAPSHOT (the connector reads the table anew) or BLIND (a change whose key cannot
            be read: a chunk with `lo` below it cannot be reconciled).
        table: ``schema.table``; of a WINDOW the signal table.
        position: of a WINDOW its own; otherwise the newest of its kind and table in the batch.
        data: of a WINDOW its `WindowRow` as JSON.
    """

    kind: str
    table: str
    position: bytes
    data: bytes = b""


class WindowRow(msgspec.Struct, frozen=True):
    """An open or close row, as the connector read it from its signal table.

    Attributes:
        id: ``<uuid>-open`` or ``<uuid>-close``.
        type: snapshot-window-open or snapshot-window-close.
        data: JSON text; lakemark's own rows have a `run` in it.
    """

    id: str
    type: str
    data: str = ""


class Packed(msgspec.Struct, frozen=True):
    """One input batch, packed: touches per shard, and marks for every shard (None = none)."""

    touches: dict[int, bytes]
    marks: bytes | None


def shard_of(table: str, key: bytes, shards: int) -> int:
    """The unit of state that a key belongs to: the same for events and for chunk rows."""
    return crc32(key, crc32(table.encode() + b"\0")) % shards


def pack_touches(
    converter: Converter, heads: Headers, keys: Sequence[bytes | None], *, shards: int
) -> Packed:
    """Packs decoded records, in any number of topics and partitions.

    Args:
        converter: reads the records.
        heads: headers of the records.
        keys: their canonical keys; None where there is none or it cannot be read.
        shards: number of shards, fixed when the checkpoint is created.

    Records of one key keep their order.
    """
    change = int(Kind.CHANGE)
    rows = [at for at, kind in enumerate(heads.kind) if kind == change and keys[at] is not None]
    return Packed(
        touches=_touches(heads, keys, rows, shards) if rows else {},
        marks=_marks(converter, heads, keys) if len(rows) < len(heads) else None,
    )


def _touches(
    heads: Headers, keys: Sequence[bytes | None], rows: list[int], shards: int
) -> dict[int, bytes]:
    names: list[bytes] = [keys[at] or b"" for at in rows]
    tables = [heads.table[at] for at in rows]
    number = {table: n for n, table in enumerate(dict.fromkeys(tables))}
    seeds = {table: crc32(table.encode() + b"\0") for table in number}
    hashes = [crc32(key, seeds[table]) for key, table in zip(names, tables, strict=True)]
    shard = np.array(hashes, np.uint32) % np.uint32(shards)
    position = positions.fixed([heads.position[at] for at in rows])
    batch = pa.RecordBatch.from_arrays(
        [
            pa.DictionaryArray.from_arrays(
                pa.array([number[table] for table in tables], pa.int32()), list(number)
            ),
            pa.array(names, pa.binary()),
            position,
            pa.array([heads.op[at] != "u" for at in rows], pa.bool_()),
        ],
        schema=touches(position.type),
    )
    order = np.argsort(shard, kind="stable")
    edges = np.searchsorted(shard[order], np.arange(shards + 1))
    batch = batch.take(pa.array(order))
    return {
        n: encode_touches(batch.slice(begin, end - begin))
        for n, (begin, end) in enumerate(pairwise(edges.tolist()))
        if end > begin
    }


def encode_touches(batch: pa.RecordBatch) -> bytes:
    """A batch of touches as an Arrow IPC stream, without what a slice does not show."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpack_touches(blob: bytes) -> pa.RecordBatch:
    """The touches of one blob, schema `touches`; columns are views into the blob."""
    return pa.ipc.open_stream(blob).read_next_batch()


def _marks(converter: Converter, heads: Headers, keys: Sequence[bytes | None]) -> bytes | None:
    """Marks of the records that are no touches, at most one per kind and table, windows apart."""
    newest: dict[tuple[str, str], ShardMark] = {}
    windows: list[ShardMark] = []
    for at, kind in enumerate(heads.kind):
        if kind == Kind.CHANGE and keys[at] is None:
            name = BLIND
        elif kind == Kind.TRUNCATE:
            name = TRUNCATE
        elif kind == Kind.OWN_SNAPSHOT:
            name = OWN_SNAPSHOT
        else:
            if kind == Kind.SIGNAL and heads.op[at] == "c":
                windows += _window(converter, heads, at)
            continue
        mark = ShardMark(name, heads.table[at], heads.position[at])
        before = newest.get((name, mark.table))
        if before is None or before.position < mark.position:
            newest[name, mark.table] = mark
    marks = [*newest.values(), *windows]
    return msgspec.msgpack.encode(marks) if marks else None


def _window(converter: Converter, heads: Headers, at: int) -> list[ShardMark]:
    """The mark of a signal-table insert if it is an open or close row."""
    row = window_row(converter.first_cells(heads.after[at] or b"", WINDOW_COLUMNS))
    if row is None:
        return []
    return [ShardMark(WINDOW, heads.table[at], heads.position[at], msgspec.json.encode(row))]


def window_row(cells: Sequence[Any]) -> WindowRow | None:
    """An open or close row from a row's first columns; None for any other signal.

    Columns are taken by place, as Debezium does: they may have other names than id, type, data, and
    there may be more of them, of any type.
    """
    texts = [cell for cell in cells[:WINDOW_COLUMNS] if isinstance(cell, str)]
    if len(texts) != WINDOW_COLUMNS or texts[1] not in _WINDOW_TYPES:
        return None
    return WindowRow(*texts)


def unpack_marks(blob: bytes) -> list[ShardMark]:
    """Inverse of what `pack_touches` makes of marks."""
    return msgspec.msgpack.decode(blob, type=list[ShardMark])
