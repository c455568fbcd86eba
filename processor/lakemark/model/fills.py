"""Columns whose older rows have a value that no event tells: what such rows get; pure.

`ADD COLUMN … DEFAULT` gives every row that is there a value, and RENAME COLUMN gives all values
another name; neither writes a row, so neither is in the log. Older rows of the table's copy get the
value in one commit (`TableFormat.fill`), before the first row that brings the column
itself. From then on an image says by its columns from which side of the change it is, whatever
order partitions
and batches come in: one without the column gets the value, one that has it, null included, keeps
what it has. A column that is dropped is not in images either: so only those older than the look at
the catalog that found the column get something.

Where that cannot be proved the table is read again, see `catalog_policies.are_fills`.
"""

import base64
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model import change_batch, net_change
from lakemark.model.schema import TableSchema

UNSEEN: Final = "columns-unseen"
"""The code of a table that waits until the catalog has been asked about a new column."""

_NAME: Final = "value"


class Fill(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value that rows have in a column that is younger than they are.

    Attributes:
        column: the source's name of it.
        upto: hex position: images at or above it are newer than the column.
        known: the columns that the table had before. An image with any other one has a column by a
            name that it had in between: nobody knows what the image lacks.
        value: what they have, see `packed`; empty if it is what they have in `source`.
        source: what the column was called before; empty for a new one.
        batch: whose beginning the table's rows get it at.
    """

    column: str
    upto: str
    known: tuple[str, ...] = ()
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

    def lacks(self, names: Collection[str]) -> bool:
        """Say whether images with these columns are older than it, and it is known by which."""
        is_told = not self.source or self.source in names
        return self.column not in names and is_told and {*names} <= {*self.known}

    def doubts(self, names: Collection[str]) -> bool:
        """Say whether nobody knows what older images with these columns have in it."""
        return self.column not in names and not self.lacks(names)

    def is_sound(self) -> bool:
        """Say whether it has all that it must; control records may hold anything."""
        if not self.column or not self.known or bool(self.value) == bool(self.source):
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
    columns: Mapping[int, frozenset[str]], schema: TableSchema, fills: Sequence[Fill]
) -> Iterator[tuple[list[int], TableSchema, list[Fill]]]:
    """Neighbouring records whose images have the same columns, each group with its schema.

    For records that carry no schema of their own: what an image lacks says which one it had.

    Args:
        columns: those that the images have, by the records' indices, in their order.
        schema: of the newest records.
        fills: the columns that older images lack.

    Returns:
        and those of the fills of which nobody knows what older images of the group have.
    """
    known = [one for one in fills if one.column in schema.by_name]
    group: list[int] = []
    shape: Collection[str] = ()
    for index, names in columns.items():
        if group and names != shape:
            yield group, *_older(schema, known, shape)
            group = []
        group.append(index)
        shape = names
    if group:
        yield group, *_older(schema, known, shape)


def _older(
    schema: TableSchema, fills: Sequence[Fill], names: Collection[str]
) -> tuple[TableSchema, list[Fill]]:
    """The schema of images with these columns; and what of them nobody knows."""
    lacking = {one.column: one.source for one in fills if one.column not in names}
    if not lacking:
        return schema, []
    former = {column: source for column, source in lacking.items() if source in names}
    columns = [
        replace(column, name=former.get(column.name, column.name))
        for column in schema.columns
        if column.name in former or column.name not in {*lacking, *former.values()}
    ]
    return replace(schema, columns=tuple(columns)), [one for one in fills if one.doubts(names)]


def filled(packet: pa.Table, fills: Sequence[Fill]) -> pa.Table:
    """A packet whose images have what older rows have in columns that they lack.

    Args:
        packet: see `change_batch`.
        fills: in the order in which they were found.
    """
    for fill in fills:
        image = packet.schema.field("row").type
        if image.num_fields and fill.lacks([field.name for field in image]):
            older = _older_rows(packet, fill)
            packet = _with(packet, fill, older) if pc.any(older).as_py() else packet
    return packet


def doubted(packet: pa.Table, names: Collection[str], fills: Sequence[Fill]) -> set[bytes]:
    """Keys of the rows of which nobody knows what they have in a column.

    Args:
        packet: see `change_batch`.
        names: columns of its images, wherever these are.
        fills: the columns.
    """
    found: set[bytes] = set()
    for fill in fills:
        if names and fill.doubts(names):
            is_row = pc.is_in(
                packet.column("action"), pa.array([net_change.UPSERT, net_change.INSERT])
            )
            which = pc.and_(is_row, _older_rows(packet, fill))
            found.update(key for key in packet.column("key").filter(which).to_pylist() if key)
    return found


def _older_rows(packet: pa.Table, fill: Fill) -> pa.ChunkedArray:
    """Records below the look; not deletes that have only a key: those say nothing of a column."""
    older = pc.less(packet.column("position"), pa.scalar(bytes.fromhex(fill.upto)))
    older = pc.fill_null(older, pa.scalar(value=False))
    is_delete = pc.fill_null(
        pc.equal(packet.column("action"), net_change.DELETE), pa.scalar(value=False)
    )
    if not pc.any(is_delete).as_py():
        return older
    key = {*change_batch.key_columns_of(packet).names}
    rows = packet.column("row").combine_chunks()
    has_more = np.zeros(len(rows), bool)
    for at, field in enumerate(rows.type):
        if field.name not in key:
            has_more |= pc.is_valid(pc.struct_field(rows, [at])).to_numpy(zero_copy_only=False)
    return pc.and_(older, pc.or_(pc.invert(is_delete), pa.array(has_more)))


def _with(packet: pa.Table, fill: Fill, older: pa.ChunkedArray) -> pa.Table:
    rows = pa.chunked_array(packet.column("row").chunks, packet.schema.field("row").type)
    whole = rows.combine_chunks()
    cells = [pc.struct_field(whole, [at]) for at in range(whole.type.num_fields)]
    if fill.source:
        given = cells[whole.type.get_field_index(fill.source)]
    else:
        given = fill.cell().take(pa.array([0] * len(whole), pa.int32()))
    cells.append(pc.if_else(older.combine_chunks(), given, pa.scalar(None, given.type)))
    fields = [*whole.type, pa.field(fill.column, given.type)]
    made = pa.StructArray.from_arrays(cells, fields=fields, mask=whole.is_null())
    packet = change_batch.with_column(packet, "row", made)
    for name in ("unavailable", "missing") if fill.source else ():
        lists = packet.column(name)
        if lists.null_count < len(lists):
            both = by_both_names(lists.to_pylist(), {fill.source: fill.column})
            packet = change_batch.with_column(packet, name, pa.array(both, lists.type))
    return packet


def by_both_names(
    lists: Iterable[Sequence[str] | None], former: Mapping[str, str]
) -> list[list[str] | None]:
    """Lists of unavailable columns: what is not known is known by neither of a column's names.

    Args:
        lists: each of a row; None where the row has all.
        former: the new names by the former ones.
    """
    return [
        None if names is None else sorted({*names, *(former[n] for n in names if n in former)})
        for names in lists
    ]
