"""Snapshot rows, and rows that are gone, as records of an output topic.

Pure. What a shard lets pass is written as the connector's incremental snapshot writes it, at the
position of the open row that the rows are sure to show. A row that lost against an event, and gives
it a column, is written as the whole row at the event's position. Keys that the database does not
have, and rows that a truncate or a sweep removes, are deletes, each with its tombstone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemark.converters.json.envelopes import EnvelopeTemplate, Reading, wrapped_keys
from lakemark.converters.json.rendering import Rendering, default_texts
from lakemark.errors import TableError
from lakemark.kafka.output_names import ID
from lakemark.model import change_batch, net_change, positions
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.settings.table_id import pair_of
from lakemark.sink.names import CDC
from lakemark.sink.output.output_records import POSITION, TOMBSTONE, Message, identity

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BORN: Final = frozenset({change_batch.NET, change_batch.ARRIVE})


@dataclass(frozen=True, slots=True)
class Style:
    """How one table's rows are written.

    Attributes:
        pipeline: its name, part of the ids.
        table: ``schema.table``.
        template: a real event of the connector, see `envelopes.sample`; empty = none is known.
        modes: the connector's settings.
        wrapper: schemas of the table's wrapped keys and values, empty for the one that is plain;
            None = not known, or both are.
        wrapped: whether keys or values carry their schemas.
        written_ns: when the records are written.
    """

    pipeline: str
    table: str
    template: bytes
    modes: HandlingModes
    wrapper: tuple[bytes, bytes] | None = None
    wrapped: bool = False
    written_ns: int = 0


def of_chunk(packet: pa.Table, schema: TableSchema, style: Style) -> Iterator[Message]:
    """The records of survivors: rows that are there, and keys of a list that are not.

    Args:
        packet: what a shard lets pass of a chunk; fills are left alone.
        schema: of the rows when they were read.
        style: how they are written.

    Raises:
        TableError: see `_writing`.
    """
    net = packet.filter(pc.equal(packet.column("record"), change_batch.NET))
    for action in (net_change.UPSERT, net_change.DELETE):
        rows = net.filter(pc.equal(net.column("action"), action))
        if rows.num_rows:
            position, read = rows.column("position")[0].as_py(), rows.column("source_ts")[0]
            images = pa.concat_arrays(rows.column("row").chunks)
            gone = action == net_change.DELETE
            writing = _writing(schema, style)
            yield from writing.records(images, position, read.as_py(), gone=gone)


def of_completed(rows: pa.Table, schema: TableSchema, style: Style) -> Iterator[Message]:
    """The records of rows that a chunk has completed, each at the position of its newest event.

    Args:
        rows: whole rows with `_cdc`, by the source's names.
        schema: of the chunk. Where a column has become wider than it says, none is written.
        style: how they are written.

    Raises:
        TableError: see `_writing`.
    """
    writing, cdc = _writing(schema, style), rows.column(CDC).to_pylist()
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
        yield from writing.records(image, cdc[number]["position"], read_us, gone=False)


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
        TableError: see `_writing`.
    """
    if len(keys):
        read = style.written_ns // 1000
        yield from _writing(schema, style).records(keys, position, read, gone=True)


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


@dataclass(frozen=True, slots=True)
class _Writing:
    style: Style
    rendering: Rendering
    template: EnvelopeTemplate

    def records(
        self, rows: pa.StructArray, position: bytes, read_us: int, *, gone: bool
    ) -> Iterator[Message]:
        style = self.style
        key_schema, value_schema = (schema or None for schema in style.wrapper or (b"", b""))
        schema, name = pair_of(style.table)
        last_commit, lsn = positions.sequence_of(position)
        reading = Reading(schema, name, read_us * 1000, style.written_ns, last_commit, lsn)
        rendered = self.rendering.keys(rows)
        keys = rendered.objects if rendered is not None else pa.array([], pa.binary())
        if gone:
            values = self.template.removals(keys, reading, wrapper_schema=value_schema)
        else:
            images = self.rendering.images(rows).objects
            values = self.template.values(images, reading, wrapper_schema=value_schema)
        if key_schema is not None:
            keys = wrapped_keys(keys, key_schema)
        shown = position.hex().encode()
        for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
            named = identity(style.pipeline, position, key)
            yield Message(0, key, value, [(ID, f"{named}/r".encode()), (POSITION, shown)])
            if gone:
                tombstone = f"{named}/r{TOMBSTONE}".encode()
                yield Message(0, key, None, [(ID, tombstone), (POSITION, shown)])


def _writing(schema: TableSchema, style: Style) -> _Writing:
    """Raises TableError `output-not-ready`: no event of the connector has said how it writes."""
    if not style.template:
        raise not_ready(f"no event of the connector has come yet that {style.table}'s rows follow")
    if style.wrapped and style.wrapper is None:
        raise not_ready(f"the schemas that records of {style.table} carry are not known yet")
    defaults: dict[str, bytes] = {}
    if style.wrapper is not None and style.wrapper[1]:
        defaults = default_texts(style.wrapper[1])
    return _Writing(
        style, Rendering(schema, style.modes, defaults=defaults), _template(style.template)
    )


def not_ready(message: str) -> TableError:
    """Nothing has shown yet how the connector writes what is to be written."""
    return TableError(
        message,
        code="output-not-ready",
        hint="change a row of the table in the database, then: lakemark table resume TABLE",
    )


@lru_cache(maxsize=8)
def _template(value: bytes) -> EnvelopeTemplate:
    return EnvelopeTemplate(value)
