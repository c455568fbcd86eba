"""A batch's rows and the policy of their table: what the table gets of their schema."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemark import packets
from lakemark.errors import TableError
from lakemark.schema_policy import REFUSED, Kind, Outcome, SchemaPolicy, way_on
from lakemark.sink.evolve import Plan
from lakemark.sink.names import OWN
from lakemark.sink.resolve import Part

_CUT: Final[Kind] = "truncate"


def refused(table: str, kind: Kind, what: str) -> TableError:
    """The error of a table that its policy stops."""
    return TableError(
        f"{table}: {what}, and its policy stops it there ({kind})",
        code=REFUSED,
        hint=way_on(table, kind),
    )


def without_truncates(parts: Sequence[Part], policy: SchemaPolicy) -> Sequence[Part]:
    """The parts, without truncates if the table leaves them out."""
    if policy.outcome(_CUT) is not Outcome.LEAVE:
        return parts
    return [replace(part, packet=_kept(part.packet)) for part in parts]


def _kept(packet: pa.Table) -> pa.Table:
    return packet.filter(pc.not_equal(packet.column("record"), packets.TRUNCATE))


def require_truncate(table: str, policy: SchemaPolicy) -> None:
    """Refuses a truncate.

    Raises:
        TableError: `schema-change-refused`.
    """
    if policy.outcome(_CUT) is Outcome.STOP:
        raise refused(table, _CUT, "it was truncated")


def followed(schema: pa.Schema, needed: Plan, policy: SchemaPolicy, table: str) -> pa.Schema:
    """The columns that a table that is there has, or is to get, for rows of `schema`.

    Args:
        schema: source columns under their own names, and `_cdc`.
        needed: what the table needs to hold all of it.
        policy: the table's.
        table: ``schema.table`` of the source.

    Raises:
        TableError: `schema-change-refused` names the columns.
    """
    added = {needed.sources[column.name] for column in needed.added}
    kept = {needed.sources[name]: was for name, was, _ in needed.widened}
    if added:
        what = f"columns came: {', '.join(sorted(added))}"
        added = added if _leaves(table, "add-column", what, policy) else set()
    if kept:
        what = f"columns got wider types: {', '.join(sorted(kept))}"
        kept = kept if _leaves(table, "widen-type", what, policy) else {}
    return pa.schema([
        column.with_type(kept.get(column.name, column.type))
        for column in schema
        if column.name not in added
    ])  # fmt: skip


def _leaves(table: str, kind: Kind, what: str, policy: SchemaPolicy) -> bool:
    outcome = policy.outcome(kind)
    if outcome is Outcome.STOP:
        raise refused(table, kind, what)
    return outcome is Outcome.LEAVE


def fitted(write_set: pa.Table, schema: pa.Schema, table: str) -> pa.Table:
    """A write set with the columns of `followed` alone, in its types.

    Raises:
        TableError: `schema-change-refused`: a value is not the same in the type of its column.
    """
    for name in write_set.column_names:
        if name in OWN:
            continue
        at = write_set.schema.get_field_index(name)
        if name not in schema.names:
            write_set = write_set.remove_column(at)
        elif write_set.schema.field(at).type != schema.field(name).type:
            column = _narrowed(write_set.column(at), schema.field(name), table)
            write_set = write_set.set_column(at, schema.field(name), column)
    return write_set


def _narrowed(cells: pa.ChunkedArray, column: pa.Field, table: str) -> pa.ChunkedArray:
    try:
        found = cells.cast(column.type)
        is_same = _same(found.cast(cells.type), cells)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        is_same = False
    if is_same:
        return found
    what = f"column {column.name!r} has values that are not the same as {column.type}"
    raise refused(table, "widen-type", what)


def _same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Whether all values are equal; a NaN is equal to a NaN."""
    return bool(one.equals(other)) or repr(one.to_pylist()) == repr(other.to_pylist())
