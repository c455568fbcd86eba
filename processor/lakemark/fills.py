"""Columns whose older rows have a value that no event tells: what such rows get; pure.

`ADD COLUMN … DEFAULT` gives every row that is there a value, and RENAME COLUMN gives all values
another name; neither writes a row, so neither is in the log. Older rows of the table's copy get the
value in one commit (`sink.evolve.fill`), before the first row that brings the column itself. From
then on an image says by its columns from which side of the change it is, whatever order partitions
and batches come in: one without the column gets the value, one that has it, null included, keeps
what it has. A column that is dropped is not in images either: so only those older than the look at
the catalog that found the column get something.

Where that cannot be proved the table is read again, see `catalog_policies.can_fill`.
"""

import base64
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakemark import changes, packets
from lakemark.source.schema import TableSchema

UNSEEN: Final = "columns-unseen"
"""The code of a table that waits until the catalog has been asked about a new column."""

_NAME: Final = "value"


class Fill(msgspec.Struct, frozen=True, omit_defaults=True):
    """What rows have in a column that are older than it.

    Attributes:
        column: the source's name of it.
        upto: hex position: images at or above it are newer than the column.
        value: what they have, see `packed`; empty if it is what they have in `source`.
        source: what the column was called before; empty for a new one.
        batch: whose beginning the table's rows get it at.
    """

    column: str
    upto: str
    value: str = ""
    source: str = ""
    batch: int = -1

    def cell(self) -> pa.Array:
        """The value, as an array of one row; only where there is one.

        Raises:
            pa.ArrowInvalid, ValueError: `value` is none that `packed` has made.
        """
        with pa.ipc.open_stream(base64.b64decode(self.value, validate=True)) as stream:
            column = stream.read_all().column(_NAME)
        if len(column) != 1:
            raise ValueError("a fill has one value")
        return column.combine_chunks()

    def is_sound(self) -> bool:
        """Whether it says what it must; control records may hold anything."""
        if not self.column or bool(self.value) == bool(self.source):
            return False
        try:
            bytes.fromhex(self.upto)
            return not self.value or len(self.cell()) == 1
        except (pa.ArrowException, ValueError, KeyError):
            return False


def packed(cell: pa.Array) -> str:
    """An array of one row as text, with its type."""
    sink = pa.BufferOutputStream()
    table = pa.table({_NAME: cell})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()


def shapes(
    images: Mapping[int, bytes | None], schema: TableSchema, fills: Sequence[Fill]
) -> Iterator[tuple[list[int], TableSchema]]:
    """Neighbouring records whose images have the same of the columns, each group with its schema.

    For records that carry no schema of their own: what an image lacks says which one it had.

    Args:
        images: raw JSON by the records' indices, in their order.
        schema: of the newest records.
        fills: the columns that older images lack.
    """
    known = [one for one in fills if one.column in schema.by_name]
    before: list[int] = []
    shape: frozenset[str] | None = None
    for index, image in images.items():
        names = _members(image)
        lacks = frozenset(
            name
            for one in known
            if one.column not in names
            for name in ((one.column, one.source) if one.source in names else (one.column,))
        )
        if before and lacks != shape:
            yield before, _older(schema, known, shape)
            before = []
        before.append(index)
        shape = lacks
    if before:
        yield before, _older(schema, known, shape)


def _members(image: bytes | None) -> Collection[str]:
    try:
        return msgspec.json.decode(image or b"{}", type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()  # whoever reads the image says what is wrong with it


def _older(
    schema: TableSchema, fills: Sequence[Fill], lacks: Collection[str] | None
) -> TableSchema:
    """The schema without columns, or with their former names where images have those."""
    if not lacks:
        return schema
    former = {one.column: one.source for one in fills if one.source in lacks}
    columns = [
        replace(column, name=former.get(column.name, column.name))
        for column in schema.columns
        if column.name not in lacks or column.name in former
    ]
    return replace(schema, columns=tuple(columns))


def filled(packet: pa.Table, fills: Sequence[Fill]) -> tuple[pa.Table, frozenset[bytes]]:
    """A packet whose images have what older rows have in columns that they lack.

    Args:
        packet: see `packets`.
        fills: in the order in which they were found.

    Returns:
        the packet, and the keys of images of which nobody knows the value: these have neither the
        column nor the one that it was.
    """
    doubt: set[bytes] = set()
    for fill in fills:
        image = packet.schema.field("row").type
        if not image.num_fields or image.get_field_index(fill.column) >= 0:
            continue
        older = pc.less(packet.column("position"), pa.scalar(bytes.fromhex(fill.upto)))
        older = pc.fill_null(older, pa.scalar(value=False)).combine_chunks()
        if fill.source and image.get_field_index(fill.source) < 0:
            is_row = pc.is_in(packet.column("action"), pa.array([changes.UPSERT, changes.INSERT]))
            keys = packet.column("key").filter(pc.and_(is_row, older)).to_pylist()
            doubt.update(key for key in keys if key)
            continue
        if pc.any(older).as_py():
            packet = _with(packet, fill, older)
    return packet, frozenset(doubt)


def _with(packet: pa.Table, fill: Fill, older: pa.BooleanArray) -> pa.Table:
    rows = pa.chunked_array(packet.column("row").chunks, packet.schema.field("row").type)
    whole = rows.combine_chunks()
    cells = [pc.struct_field(whole, [at]) for at in range(whole.type.num_fields)]
    if fill.source:
        given = cells[whole.type.get_field_index(fill.source)]
    else:
        given = fill.cell().take(pa.array([0] * len(whole), pa.int32()))
    cells.append(pc.if_else(older, given, pa.scalar(None, given.type)))
    fields = [*whole.type, pa.field(fill.column, given.type)]
    made = pa.StructArray.from_arrays(cells, fields=fields, mask=whole.is_null())
    packet = packets.with_column(packet, "row", made)
    for name in ("unavailable", "missing") if fill.source else ():
        lists = packet.column(name)
        if lists.null_count < len(lists):
            packet = packets.with_column(
                packet, name, pa.array(_renamed(lists.to_pylist(), fill), lists.type)
            )
    return packet


def _renamed(lists: Iterable[list[str] | None], fill: Fill) -> list[list[str] | None]:
    """A value that is not known is known by neither name."""
    return [
        sorted({*names, fill.column}) if names and fill.source in names else names
        for names in lists
    ]
