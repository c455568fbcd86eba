"""The write set: what one batch does to one table, checked and laid out for an engine.

One row per key. Besides the source's columns and `_cdc` (see docs/tables.md) it has

| column | type | meaning |
|---|---|---|
| `__action` | string | `upsert`, `delete`, `insert` (only where the key has no row), `fill` |
| `__patch` | list<string> or null | upsert: these columns keep the row's value; fill: fill these |
| `__force` | bool | applies whatever the row's position |
| `__barrier` | binary or null | fill only a row whose `_cdc.barrier` is this |

`prepare` gives both engines the same staged table: data columns named ``c0``, ``c1`` … in the
types of the target, so that no name of the source appears in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemark.errors import TableError
from lakemark.sink.names import ACTION, BARRIER, CDC, FORCE, PATCH, sources_of

CONTROL: Final = (ACTION, PATCH, FORCE, BARRIER)
UPSERT: Final = "upsert"
DELETE: Final = "delete"
INSERT: Final = "insert"
FILL: Final = "fill"
ACTIONS: Final = frozenset({UPSERT, DELETE, INSERT, FILL})


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the write set.

    Attributes:
        name: in the target table.
        source: in the source table.
        staged: in the staged table.
        patched: whether the `__patch` of any row names it.
        is_key: part of the primary key.
    """

    name: str
    source: str
    staged: str
    patched: bool = False
    is_key: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """All that the SQL of a merge depends on, without the rows.

    Attributes:
        columns: in the order of the write set.
        cdc_fields: members of the target's `_cdc`.
        actions: the actions that occur.
        forced: whether any row is forced.
        patched: whether any upsert has a patch.
    """

    columns: tuple[TargetColumn, ...]
    cdc_fields: tuple[str, ...]
    actions: frozenset[str]
    forced: bool
    patched: bool

    @property
    def key(self) -> tuple[TargetColumn, ...]:
        """The columns of the primary key."""
        return tuple(c for c in self.columns if c.is_key)

    @property
    def only_adds(self) -> bool:
        """Say whether every row is added as it is when the table has no rows."""
        return self.actions <= {UPSERT, INSERT}

    def joined(self, other: "Shape") -> "Shape":
        """The shape of both write sets together; they are parts of one.

        Raises:
            TableError: `write-set-invalid`: the parts have different columns.
        """
        names = [c.source for c in self.columns]
        if names != [c.source for c in other.columns] or self.cdc_fields != other.cdc_fields:
            raise TableError(
                "parts of one write set have different columns", code="write-set-invalid"
            )
        pairs = zip(self.columns, other.columns, strict=True)
        return Shape(
            tuple(replace(a, patched=a.patched or b.patched) for a, b in pairs),
            self.cdc_fields,
            self.actions | other.actions,
            self.forced or other.forced,
            self.patched or other.patched,
        )


@dataclass(frozen=True, slots=True)
class Staged:
    """A write set ready for an engine: the columns' staged arrays, `_cdc` and control columns."""

    table: pa.Table
    shape: Shape

    def keys(self) -> list[tuple[TargetColumn, pa.ChunkedArray]]:
        """The key columns with their values."""
        return [(c, self.table.column(c.staged)) for c in self.shape.key]


def prepare(write_set: pa.Table, target: pa.Schema, *, key: Sequence[str]) -> Staged:
    """Checks a write set against its table and lays it out for an engine.

    Args:
        write_set: as described above, columns under the source's names.
        target: the table's Arrow schema.
        key: source names of the key columns.

    Raises:
        TableError: `schema-behind` (a column or type that the table lacks: `ensure` it first),
            `null-key`, `duplicate-key`, or `write-set-invalid`.
    """
    columns = _columns(write_set, target, key)
    _check_control(write_set)
    whole = write_set.combine_chunks()
    staged: dict[str, Any] = {}
    for column in columns:
        cells = whole.column(column.source)
        if column.is_key:
            cells = key_cells(cells)
        staged[column.staged] = _cast(cells, target.field(column.name))
    _check_keys({c.staged: staged[c.staged] for c in columns if c.is_key})
    named = set(pc.unique(pc.list_flatten(whole.column(PATCH))).to_pylist())
    columns = [replace(c, patched=c.source in named and not c.is_key) for c in columns]
    action = whole.column(ACTION)
    staged[CDC] = _cdc(whole.column(CDC), target.field(CDC).type, action)
    for name in CONTROL:
        staged[name] = whole.column(name)
    patched = pc.any(pc.and_(pc.equal(action, UPSERT), pc.is_valid(whole.column(PATCH)))).as_py()
    shape = Shape(
        columns=tuple(columns),
        cdc_fields=tuple(f.name for f in target.field(CDC).type),
        actions=frozenset(pc.unique(action).to_pylist()),
        forced=bool(pc.any(whole.column(FORCE)).as_py()),
        patched=bool(patched),
    )
    return Staged(pa.table(staged), shape)


def key_cells(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values of a key column as the table keeps them: databases hold -0.0 equal to 0.0."""
    if not pa.types.is_floating(cells.type):
        return cells
    return pc.add(cells, pa.scalar(0.0, cells.type))


def _columns(write_set: pa.Table, target: pa.Schema, key: Sequence[str]) -> list[TargetColumn]:
    by_source = {source: name for name, source in sources_of(target).items()}
    given = [n for n in write_set.column_names if n != CDC and n not in CONTROL]
    lacking = [n for n in given if n not in by_source]
    if lacking or CDC not in target.names:
        raise TableError(
            f"the table lacks {', '.join(repr(n) for n in lacking) or CDC}",
            code="schema-behind",
            hint="the table was changed by hand; lakemark table resume adds the columns again",
        )
    missing = [n for n in key if n not in given]
    if missing or not key:
        raise TableError(
            f"rows without a primary key cannot be merged (missing: {missing})",
            code="write-set-invalid",
            hint="give the source table a primary key, or message.key.columns in the connector",
        )
    return [TargetColumn(by_source[n], n, f"c{at}", is_key=n in key) for at, n in enumerate(given)]


def _check_control(write_set: pa.Table) -> None:
    absent = [n for n in (*CONTROL, CDC) if n not in write_set.column_names]
    if absent:
        raise TableError(f"the write set has no {absent}", code="write-set-invalid")
    unknown = set(pc.unique(write_set.column(ACTION)).to_pylist()) - ACTIONS
    if unknown:
        raise TableError(
            f"the write set has unknown actions {sorted(map(str, unknown))}",
            code="write-set-invalid",
        )


def _check_keys(keys: dict[str, pa.ChunkedArray]) -> None:
    """Refuse a null or repeated key: it would become a second row without a word."""
    if any(column.null_count for column in keys.values()):
        raise TableError(
            "a row has no value in a key column",
            code="null-key",
            hint="the key must be the primary key, or columns that are never null",
        )
    table = pa.table(keys)
    groups = table.group_by(list(keys), use_threads=False).aggregate([])
    if groups.num_rows != table.num_rows:
        raise TableError(
            f"the write set has {table.num_rows - groups.num_rows} keys more than once",
            code="duplicate-key",
            hint="if the type of a key column was changed: lakemark table skip TABLE, which "
            "snapshots it again; else report this message: one batch must hold one row per key",
        )


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise TableError(
            f"column {field.name!r} is {field.type}, the rows have {column.type}",
            code="schema-behind",
            hint="the table was changed by hand; lakemark table resume widens the column again",
        ) from error


def _cdc(column: pa.ChunkedArray, kind: pa.StructType, action: pa.ChunkedArray) -> pa.Array:
    """`_cdc` in the target's members and types; `deleted` follows the action."""
    given = column.combine_chunks()
    if isinstance(given, pa.ChunkedArray):
        given = pa.concat_arrays(given.chunks) if given.num_chunks else pa.array([], column.type)
    names = {f.name for f in given.type}
    members = []
    for member in kind:
        if member.name == "deleted":
            members.append(pc.equal(action, DELETE).combine_chunks())
        elif member.name in names:
            members.append(given.field(member.name).cast(member.type))
        else:
            members.append(pa.nulls(len(given), member.type))
    return pa.StructArray.from_arrays(members, fields=list(kind))
