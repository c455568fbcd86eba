"""Snapshot rows, and rows that are gone, as records of an output topic.

Pure. What a shard lets pass is written as the connector's incremental snapshot writes it, at the
position of the open row that the rows are sure to show. A row that lost against an event, and gives
it a column, is written as the whole row at the event's position. Keys that the database does not
have, and rows that a truncate or a sweep removes, are deletes, each with its tombstone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemark.converters.converter import Converter, Moment, RecordWriter
from lakemark.kafka.output_names import ID
from lakemark.model import change_batch, net_change, positions
from lakemark.model.events import NOTHING_LEARNT, Learnt
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.sink.names import CDC
from lakemark.sink.output.output_records import (
    POSITION,
    TOMBSTONE,
    Message,
    identity,
    is_text,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BORN: Final = frozenset({change_batch.NET, change_batch.ARRIVE})


@dataclass(frozen=True, slots=True)
class Style:
    """The style in which one table's rows are written.

    Attributes:
        pipeline: its name, part of the ids.
        table: ``schema.table``.
        converter: writes the records.
        modes: the connector's settings.
        learnt: what the connector's events have shown of how it writes.
        wrapped: whether keys or values are known to carry their schemas.
        written_ns: when the records are written.
        describes: whether the records need schemas, also where the connector's bring none.
        schema: of the table, from catalog or file; None where nobody knows it.
    """

    pipeline: str
    table: str
    converter: Converter
    modes: HandlingModes
    learnt: Learnt = NOTHING_LEARNT
    wrapped: bool = False
    written_ns: int = 0
    describes: bool = False
    schema: TableSchema | None = None


def of_chunk(packet: pa.Table, schema: TableSchema, style: Style) -> Iterator[Message]:
    """The records of survivors: rows that are there, and keys of a list that are not.

    Args:
        packet: what a shard lets pass of a chunk; fills are left alone.
        schema: of the rows when they were read.
        style: how they are written.

    Raises:
        TableError: see `_writer`.
    """
    net = packet.filter(pc.equal(packet.column("record"), change_batch.NET))
    for action in (net_change.UPSERT, net_change.DELETE):
        rows = net.filter(pc.equal(net.column("action"), action))
        if rows.num_rows:
            position, read = rows.column("position")[0].as_py(), rows.column("source_ts")[0]
            images = pa.concat_arrays(rows.column("row").chunks)
            gone = action == net_change.DELETE
            writer = _writer(schema, style)
            yield from _messages(writer, style, images, position, read_us=read.as_py(), gone=gone)


def of_completed(rows: pa.Table, schema: TableSchema, style: Style) -> Iterator[Message]:
    """The records of rows that a chunk has completed, each at the position of its newest event.

    Args:
        rows: whole rows with `_cdc`, by the source's names.
        schema: of the chunk. Where a column has become wider than it says, none is written.
        style: how they are written.

    Raises:
        TableError: see `_writer`.
    """
    writer, cdc = _writer(schema, style), rows.column(CDC).to_pylist()
    try:
        columns = rows.select(list(schema.by_name)).cast(schema.arrow())
    except pa.ArrowInvalid:
        return
    images = columns.to_struct_array()
    at = sorted(range(rows.num_rows), key=lambda number: cdc[number]["position"])
    for number in at:
        image = pa.concat_arrays(images.slice(number, 1).chunks)
        read = cdc[number]["source_ts"]
        read_us = (read - _EPOCH) // timedelta(microseconds=1) if read is not None else 0
        position = cdc[number]["position"]
        yield from _messages(writer, style, image, position, read_us=read_us, gone=False)


def of_removed(
    keys: pa.StructArray, schema: TableSchema, style: Style, position: bytes
) -> Iterator[Message]:
    """The records of rows that a truncate or a sweep removes.

    Args:
        keys: the key's columns, typed, by the source's names.
        schema: of the table.
        style: how they are written.
        position: of the truncate.

    Raises:
        TableError: see `_writer`.
    """
    if len(keys):
        read = style.written_ns // 1000
        writer = _writer(schema, style, whole=style.schema)
        yield from _messages(writer, style, keys, position, read_us=read, gone=True)


def born_below(packets_of: Sequence[pa.Table], truncate: bytes) -> tuple[set[bytes], set[bytes]]:
    """Keys of a batch's packets by whether the truncate removes what the packets say of them.

    Returns:
        keys with a row only below the truncate; keys of which there is anything above it, which
        stay as they are.
    """
    below: set[bytes] = set()
    above: set[bytes] = set()
    for packet in packets_of:
        names = ("record", "key", "position", "action")
        for kind, key, position, action in zip(
            *(packet.column(name).to_pylist() for name in names), strict=True
        ):
            if kind == change_batch.TRUNCATE or not key:
                continue
            if not positions.below_truncate(position, truncate):
                above.add(key)
            elif kind in _BORN and action == net_change.UPSERT:
                below.add(key)
    return below - above, above


def _messages(
    writer: RecordWriter,
    style: Style,
    rows: pa.StructArray,
    position: bytes,
    *,
    read_us: int,
    gone: bool,
) -> Iterator[Message]:
    moment = Moment(position, read_us * 1000, style.written_ns)
    keys, values = writer.removals(rows, moment) if gone else writer.reads(rows, moment)
    shown = position.hex().encode()
    for key, value in zip(keys, values, strict=True):
        # The connector's keys may have no schema, and are named without one.
        bare = style.describes and is_text(key)
        told = style.converter.key_image(key) if bare else key
        named = identity(style.pipeline, position, told)
        yield Message(0, key, value, [(ID, f"{named}/r".encode()), (POSITION, shown)])
        if gone:
            tombstone = f"{named}/r{TOMBSTONE}".encode()
            yield Message(0, key, None, [(ID, tombstone), (POSITION, shown)])


def _writer(schema: TableSchema, style: Style, whole: TableSchema | None = None) -> RecordWriter:
    """Return the writer of rows.

    Args:
        schema: of the rows.
        style: how they are written.
        whole: of the table, where the rows have not all columns.

    Raises:
        TableError: `output-not-ready`: see `Converter.writer`.
    """
    learnt = style.learnt
    if style.describes:
        learnt = style.converter.described(whole or schema, learnt)
    return style.converter.writer(
        style.table, schema, style.modes, learnt=learnt, wrapped=style.wrapped
    )
