"""Rows of the source against the rows that a table has for the same keys. Pure.

    missing     the source has the row, the table has not, or has marked it deleted
    extra       the table has the row, the source has not
    differing   both have it, and some column is not the same
    duplicate   the table has several rows of the key

What a newer event decides is none of these: a row that the table has from behind the position that
the source was read at.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.errors import TableError
from lakemark.model import net_change, positions
from lakemark.model.arrays import one_array
from lakemark.model.change_batch import KeyColumns
from lakemark.model.columns import Column
from lakemark.model.key import canonical_from_columns, stored
from lakemark.sink.names import CDC
from lakemark.sink.write_set import key_cells

MISSING: Final = "missing"
EXTRA: Final = "extra"
DIFFERING: Final = "differing"
DUPLICATE: Final = "duplicate"

Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowDifference:
    """One row that is not alike.

    Attributes:
        key: canonical.
        kind: MISSING, EXTRA, DIFFERING or DUPLICATE.
        row: number of the row that was compared.
        kept: number of the table's row; -1 = it has none.
        columns: those that differ, in the table's order; none where there is no other row.
    """

    key: bytes
    kind: str
    row: int
    kept: int = -1
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ComparedRows:
    """The result for some keys.

    Attributes:
        differences: in the order of the rows.
        newer: keys whose rows the table has from behind the position.
    """

    differences: list[RowDifference]
    newer: int = 0


def as_kept(rows: pa.Table, kept: pa.Schema, *, key: Sequence[str]) -> pa.Table:
    """Return rows of the source as a table would keep them: its columns, in its types.

    Args:
        rows: under the source's names.
        kept: the table's columns, under the source's names; `_cdc` is left out.
        key: names of the key's columns.

    Returns:
        the columns that both have, in the table's order. What the table has besides was dropped in
        the source, and what it lacks the policies leave out.

    Raises:
        TableError: `not-comparable`: values of a column are none of the table's type.
    """
    there = {*rows.column_names}
    fields = [field for field in kept if field.name in there and field.name != CDC]
    columns = {field.name: _cast(rows.column(field.name), field) for field in fields}
    for name in key:
        columns[name] = key_cells(columns[name])
    return pa.table(columns)


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise TableError(
            f"column {field.name!r} is {field.type} in the table, and {column.type} in the source",
            code="not-comparable",
            hint="`lakemark status` says whether the table waits for another type",
        ) from error


def compare(
    rows: pa.Table,
    actions: pa.ChunkedArray,
    keys: Sequence[bytes],
    kept: pa.Table,
    *,
    key: KeyColumns,
    position: bytes,
) -> ComparedRows:
    """Compare rows of the source with a table's.

    Args:
        rows: of the source, see `as_kept`; of keys that it does not have, the key's columns only.
        actions: of each row: an upsert, or a delete where the source does not have it.
        keys: canonical, one a row, none twice.
        kept: the table's rows that have any of these keys, with `_cdc`.
        key: the key's columns.
        position: that the source was read at.
    """
    names = _keys_of(kept, key)
    kinds = [kept.schema.field(name).type for name in key.names]
    wanted = pa.array([stored(one, kinds) for one in keys], pa.binary())
    at = pc.index_in(wanted, value_set=pa.array(names, pa.binary()))
    found: Places = at.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    alive, newer = _states(kept.column(CDC), position)
    living = Counter(name for name, lives in zip(names, alive.tolist(), strict=True) if lives)
    twice = np.array([living[one] > 1 for one in wanted.to_pylist()], bool)
    has = found >= 0
    late = has & newer[found] if len(newer) else has & False
    there = has & alive[found] if len(alive) else has & False
    upserts: Flags = np.asarray(pc.equal(actions, net_change.UPSERT).to_numpy())
    both = np.flatnonzero(upserts & there & ~late & ~twice)
    columns = _differing(rows, kept, both, found[both])
    differences = [
        RowDifference(keys[place], DUPLICATE, place, int(found[place]))
        for place in np.flatnonzero(twice & ~late).tolist()
    ]
    for place in np.flatnonzero(~late & ~twice & (upserts != there)).tolist():
        kind = MISSING if upserts[place] else EXTRA
        kept_at = int(found[place]) if there[place] else -1
        differences.append(RowDifference(keys[place], kind, place, kept_at))
    for pair, differ in columns.items():
        row = int(both[pair])
        differences.append(RowDifference(keys[row], DIFFERING, row, int(found[row]), tuple(differ)))
    return ComparedRows(sorted(differences, key=lambda one: one.row), int(np.count_nonzero(late)))


def _keys_of(kept: pa.Table, key: KeyColumns) -> list[bytes]:
    columns = [kept.column(name) for name in key.names]
    kinds = [
        Column(name, column.type, padded=name in key.padded)
        for name, column in zip(key.names, columns, strict=True)
    ]
    found: list[bytes] = canonical_from_columns(columns, kinds).to_pylist()
    return found


def _states(cdc: pa.ChunkedArray, position: bytes) -> tuple[Flags, Flags]:
    """Return which rows are alive, and which are from behind a position."""
    told = cdc.to_pylist()
    alive = np.array([not (one or {}).get("deleted") for one in told], bool)
    places = [((one or {}).get("position") or positions.LOWEST) for one in told]
    return alive, np.array([place > position for place in places], bool)


def _differing(rows: pa.Table, kept: pa.Table, at: Places, kept_at: Places) -> dict[int, list[str]]:
    """Return the columns that differ, by number of the pair; alike ones are left out."""
    found: dict[int, list[str]] = {}
    if not len(at):
        return found
    for name in rows.column_names:
        one = rows.column(name).take(pa.array(at))
        other = kept.column(name).take(pa.array(kept_at))
        for place in np.flatnonzero(_unequal(one_array(one), one_array(other))):
            found.setdefault(int(place), []).append(name)
    return found


def _unequal(one: pa.Array, other: pa.Array) -> Flags:
    kind = one.type
    if pa.types.is_nested(kind):
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.array([repr(a) != repr(b) for a, b in pairs], bool)
    if pa.types.is_floating(kind):
        one, other = _bits(one), _bits(other)
    nulls = np.asarray(pc.is_null(one)), np.asarray(pc.is_null(other))
    same: Any = pc.fill_null(pc.equal(one, other), False)  # noqa: FBT003 - a value to fill in
    unequal: Flags = ~(np.asarray(same) | (nulls[0] & nulls[1]))
    return unequal


def _bits(column: pa.Array) -> pa.Array:
    """Numbers by their bits: 0.0 is not -0.0; NaN has one form."""
    valid = np.asarray(pc.is_valid(column))
    cells = pc.fill_null(column, 0.0).cast(pa.float64()).to_numpy(zero_copy_only=False).copy()
    cells[np.isnan(cells)] = np.nan
    return pa.array(cells.view(np.int64), mask=~valid)
