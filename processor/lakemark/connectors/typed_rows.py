"""Rows of a chunk, typed a column at a time from what the database's client gives. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from lakemark.connectors.database import Proof, RowsOfSnapshot
from lakemark.errors import TableError
from lakemark.model.civil import Tally
from lakemark.model.columns import Column
from lakemark.model.key import canonical_from_columns, value_fault
from lakemark.model.schema import TableSchema

Read = Callable[[pa.Array, Tally], pa.Array]

_WRONG_TYPE: Final = "wrong-type"
_ERRORS: Final = (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Cell:
    """A column's way from the database: its SQL, and the reader of what comes.

    Attributes:
        select: SQL around the quoted column name, which stands as ``{}``.
        read: from the client's array (texts or bytes, null for null) to the canonical array of
            equal length; clamped values are counted in the tally. Any of Arrow's exceptions or a
            ValueError mean that a value cannot be read.
        type: the canonical Arrow type.
    """

    select: str
    read: Read
    type: pa.DataType

    def array(self, texts: pa.Array, tally: Tally) -> tuple[pa.Array, dict[int, str]]:
        """Return the canonical array, and the reason code for each value that cannot be read."""
        count = tally.clamped
        try:
            return self.read(texts, tally), {}
        except _ERRORS:
            tally.clamped = count
        bad: dict[int, str] = {}
        parts: list[pa.Array] = []
        for at in range(len(texts)):  # the odd value costs its column a slower pass
            try:
                parts.append(self.read(texts.slice(at, 1), tally))
            except _ERRORS:
                parts.append(pa.nulls(1, self.type))
                bad[at] = _WRONG_TYPE
        return pa.concat_arrays(parts) if parts else pa.nulls(0, self.type), bad


def typed_rows(
    schema: TableSchema,
    cells: Sequence[Cell],
    pieces: Iterable[Sequence[pa.Array]],
    proof: Proof,
) -> RowsOfSnapshot:
    """Return the rows of a chunk with their canonical keys.

    Args:
        schema: of the table.
        cells: of its columns, in the order of the schema.
        pieces: of the chunk, one after the other: an array for each cell, of equal lengths.
        proof: of what the read saw.

    Raises:
        TableError: ``key-out-of-range``: a value of the key is none that the lake's type can hold.
    """
    tally = Tally()
    bad: list[tuple[bytes, str, str]] = []
    rows: list[pa.RecordBatch] = []
    keys: list[pa.Array] = []
    key_columns = [schema.column(name) for name in schema.key]
    for piece in pieces:
        arrays: list[pa.Array] = []
        wrong: dict[int, tuple[str, str]] = {}
        exact_keys: dict[str, pa.Array] = {}
        for column, column_cell, texts in zip(schema.columns, cells, piece, strict=True):
            clamped = tally.clamped
            array, reasons = column_cell.array(texts, tally)
            arrays.append(array)
            if column.name in schema.key:
                exact_keys[column.name] = array
                if tally.clamped > clamped:
                    exact_keys[column.name], more = column_cell.array(texts, Tally(exact=True))
                    reasons |= more
                if reasons:
                    raise _out_of_range(schema.table, column)
            for at, reason in reasons.items():
                wrong.setdefault(at, (reason, f"column {column.name!r} cannot be read"))
        canonical = canonical_from_columns([exact_keys[name] for name in schema.key], key_columns)
        bad.extend((canonical[at].as_py(), *wrong[at]) for at in sorted(wrong))
        rows.append(pa.RecordBatch.from_arrays(arrays, schema=schema.arrow()))
        keys.append(canonical)
    return RowsOfSnapshot(
        rows=pa.Table.from_batches(rows, schema.arrow()),
        keys=pa.chunked_array(keys, pa.binary()),
        schema=schema,
        proof=proof,
        bad=bad,
        clamped=tally.clamped,
    )


def _out_of_range(table: str, column: Column) -> TableError:
    fault = value_fault(column)
    return TableError(f"{table}: {fault.reason}", code=fault.code, hint=fault.hint)
