"""The rules of the merge (`merge_sql`) on Arrow columns: pairs of a new row and the table's row.

A pair needs the table's row only where something of it counts. Where a row of the write set is
sure to be newer than every row of a file, and replaces all columns or none, nothing is read: see
`decided`. All other pairs are read, and `decide` says what becomes of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model.arrays import one_array
from lakemark.sink.names import ACTION, BARRIER, CDC, FORCE, PATCH
from lakemark.sink.write_set import DELETE, FILL, INSERT, UPSERT, Staged, TargetColumn

Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]

_NAMES: Final = pa.list_(pa.string())


@dataclass(frozen=True, slots=True)
class PairDecision:
    """The decision about pairs.

    Attributes:
        gone: which of the table's rows leave their files.
        rows: new versions of some of them, in the table's schema.
        updated, deleted: pairs, as `table_sink.MergeResult` counts them.
    """

    gone: Flags
    rows: pa.Table
    updated: int
    deleted: int


def needed(staged: Staged, schema: pa.Schema, deletes: str) -> list[str]:
    """The table's columns, besides `_cdc`, that may count for a pair."""
    shape = staged.shape
    written = {c.name for c in shape.columns}
    if shape.actions & {FILL} or (deletes == "soft" and DELETE in shape.actions):
        return [name for name in schema.names if name != CDC]
    patched = {c.name for c in shape.columns if c.patched}
    wanted = patched | (schema_names(schema) - written)
    return [name for name in schema.names if name in wanted]


def schema_names(schema: pa.Schema) -> set[str]:
    """Names of the columns besides `_cdc`."""
    return set(schema.names) - {CDC}


def decided(staged: Staged, schema: pa.Schema, *, deletes: str) -> Flags:
    """Mark rows of the write set that need nothing of the table's row if they are newer than it."""
    action = staged.table.column(ACTION)
    whole = schema_names(schema) <= {c.name for c in staged.shape.columns}
    plain = _flags(pc.and_(pc.equal(action, UPSERT), pc.is_null(staged.table.column(PATCH))))
    found = plain & whole
    if deletes == "hard":
        found |= is_action(staged, DELETE)
    return found


def is_action(staged: Staged, *actions: str) -> Flags:
    """Mark the rows of the write set that have one of these actions."""
    return _flags(pc.is_in(staged.table.column(ACTION), value_set=pa.array(actions)))


def forced(staged: Staged) -> Flags:
    """Mark the rows that apply whatever the table's row is."""
    return _flags(staged.table.column(FORCE))


def as_given(staged: Staged, which: Places, schema: pa.Schema) -> pa.Table:
    """Rows of the write set as rows of the table; columns that it lacks are null."""
    given = {c.name: staged.table.column(c.staged) for c in staged.shape.columns}
    given[CDC] = staged.table.column(CDC)
    rows = pa.table({f.name: given[f.name] for f in schema if f.name in given})
    if not np.array_equal(which, np.arange(rows.num_rows)):
        rows = rows.take(pa.array(which))
    columns = [
        rows.column(f.name) if f.name in given else pa.nulls(len(which), f.type) for f in schema
    ]
    return pa.table(columns, schema=schema)


def decide(
    staged: Staged, source: Places, old: pa.Table, schema: pa.Schema, *, deletes: str
) -> PairDecision:
    """Decide about the pairs.

    Args:
        staged: the write set.
        source: its row of each pair.
        old: the table's row of each pair: `_cdc` and the columns that are `needed`.
        schema: of the table.
        deletes: `hard` or `soft`.
    """
    pairs = _Pairs(staged, source, old, soft=deletes == "soft")
    changed = pairs.upsert | pairs.over | pairs.fill
    if pairs.soft:
        changed |= pairs.delete
    gone = changed | pairs.delete
    some = bool(changed.any())
    rows = pairs.rows(np.flatnonzero(changed), schema) if some else schema.empty_table()
    removed = int((pairs.delete & ~changed).sum())
    return PairDecision(gone, rows, int(changed.sum()), removed)


class _Pairs:
    """Pairs of new and old rows, and which rule each meets."""

    def __init__(self, staged: Staged, source: Places, old: pa.Table, *, soft: bool) -> None:
        self.shape, self.soft, self.old = staged.shape, soft, old
        self.new = staged.table.take(pa.array(source))
        cdc, own = _members(old.column(CDC)), _members(self.new.column(CDC))
        self.old_cdc, self.new_cdc = cdc, own
        self.dead = _flags(cdc["deleted"]) if "deleted" in cdc else np.zeros(len(source), bool)
        self.patch = one_array(self.new.column(PATCH))
        has_patch = _flags(pc.is_valid(self.patch))
        self.unknown = cdc["unavailable"]
        position, other = cdc["position"], own["position"]
        applies = _flags(pc.is_null(position)) | _flags(pc.less_equal(position, other))
        applies |= _flags(self.new.column(FORCE))
        self.upsert = self._acts(UPSERT) & applies
        self.delete = self._acts(DELETE) & applies
        self.over = self._acts(INSERT) & self.dead & soft & _flags(pc.less(position, other))
        same = _flags(pc.equal(cdc["barrier"], one_array(self.new.column(BARRIER))))
        known = same & _flags(pc.is_valid(self.unknown))
        fills = any(c.patched for c in self.shape.columns)
        self.fill = self._acts(FILL) & known & fills
        # Columns of a patch keep their values, unless the row is marked deleted.
        self.keeps = self.upsert & has_patch & ~(self.dead & soft)

    def _acts(self, action: str) -> Flags:
        return _flags(pc.equal(self.new.column(ACTION), action))

    def rows(self, which: Places, schema: pa.Schema) -> pa.Table:
        """The new versions of the rows of these pairs."""
        written = {c.name: c for c in self.shape.columns}
        columns = []
        for f in schema:
            if f.name == CDC:
                columns.append(self._cdc(which, f.type))
            elif f.name not in written:
                columns.append(one_array(self.old.column(f.name)).take(pa.array(which)))
            else:
                column = written[f.name]
                old = self.old.column(f.name) if f.name in self.old.column_names else None
                columns.append(
                    _chosen(self.new.column(column.staged), old, self._from_old(column), which)
                )
        return pa.table(columns, schema=schema)

    def _from_old(self, column: TargetColumn) -> Flags:
        """Mark the rows in which the column's value is that of the table's row."""
        kept = self.delete & self.soft
        if not column.patched:
            return kept | self.fill
        named = contains(self.patch, column.source)
        filled = self.fill & named & contains(self.unknown, column.source)
        found: Flags = kept | (self.keeps & named) | (self.fill & ~filled)
        return found

    def _cdc(self, which: Places, kind: pa.StructType) -> pa.Array:
        soft_delete = self.delete & self.soft
        members = []
        for f in kind:
            keep = self.fill
            if f.name in {"unavailable", "barrier"}:
                keep = keep | soft_delete | (self.keeps if f.name == "barrier" else False)
            if f.name == "unavailable":
                members.append(self._unavailable(which, keep & ~self.fill))
            else:
                new, old = self.new_cdc[f.name], self.old_cdc[f.name]
                members.append(_chosen(new, old, keep, which))
        return pa.StructArray.from_arrays(members, fields=list(kind))

    def _unavailable(self, which: Places, kept: Flags) -> pa.Array:
        """Columns still unavailable: of both where a patch keeps, without those of a fill."""
        new, old = self.new_cdc["unavailable"], self.old_cdc["unavailable"]
        special = self.keeps | self.fill
        plain = _chosen(new, old, kept | special, which)
        if not special[which].any():
            return plain
        kinds = self.fill[which]
        names, patches = plain.to_pylist(), self.patch.take(pa.array(which)).to_pylist()
        for at in np.flatnonzero(special[which]):
            of_patch = set(patches[at] or ())
            left = [n for n in names[at] or () if (n in of_patch) != kinds[at]]
            names[at] = left or None
        return pa.array(names, _NAMES).cast(plain.type)


def contains(lists: pa.Array, value: str) -> Flags:
    """Mark the lists that have the value; no for null."""
    found = np.zeros(len(lists), bool)
    parents = pc.list_parent_indices(lists).to_numpy()
    found[parents[_flags(pc.equal(pc.list_flatten(lists), value))]] = True
    return found


def _chosen(new: Any, old: Any, from_old: Flags, which: Places) -> pa.Array:
    """The cells of these pairs, from the one row or the other."""
    picked = from_old[which]
    if not picked.any():
        return one_array(new).take(pa.array(which))
    if picked.all():
        return one_array(old).take(pa.array(which))
    both = pa.concat_arrays([one_array(new), one_array(old)])
    return both.take(pa.array(np.where(picked, which + len(new), which)))


def _members(column: pa.ChunkedArray) -> dict[str, pa.Array]:
    """The members of a struct column, null where the struct is."""
    whole = one_array(column)
    return {f.name: array for f, array in zip(whole.type, whole.flatten(), strict=True)}


def _flags(column: Any) -> Flags:
    """Booleans; null counts as no."""
    found: Flags = pc.fill_null(one_array(column), False).to_numpy(zero_copy_only=False)  # noqa: FBT003
    return found


def together(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """Tables of one schema as one."""
    filled = [table for table in tables if table.num_rows]
    return pa.concat_tables(filled) if filled else schema.empty_table()
