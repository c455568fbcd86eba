"""A batch's rows and the policy of their table: what the table gets of their schema."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemark.errors import TableError
from lakemark.model import change_batch
from lakemark.model.fills import UNSEEN
from lakemark.settings.schema_policy import REFUSED, Kind, Outcome, SchemaPolicy, way_on
from lakemark.sink.names import OWN
from lakemark.sink.resolve import Part
from lakemark.sink.table_sink import SchemaPlan

_CUT: Final[Kind] = "truncate"


def refused(table: str, kind: Kind, what: str) -> TableError:
    """The error of a table that its policy stops."""
    return TableError(
        f"{table}: {what}, and its policy stops it there ({kind})",
        code=REFUSED,
        hint=way_on(table, kind),
    )


def without_truncates(parts: Sequence[Part], policy: SchemaPolicy) -> Sequence[Part]:
    """The parts, without the source's truncates if the table leaves them out.

    A snapshot's sweep removes rows in the same way, and always does: see `Part.is_sweep`.
    """
    if policy.outcome(_CUT) is not Outcome.LEAVE:
        return parts
    return [part if part.is_sweep else _without_truncate(part) for part in parts]


def _without_truncate(part: Part) -> Part:
    """Return a part without them; its digest differs: with another policy it is another batch."""
    kept = part.packet.filter(pc.not_equal(part.packet.column("record"), change_batch.TRUNCATE))
    if kept.num_rows == part.packet.num_rows:
        return part
    return replace(part, packet=kept, digest=part.digest ^ 1)


def require_truncate(table: str, policy: SchemaPolicy) -> None:
    """Refuses a truncate.

    Raises:
        TableError: `schema-change-refused`.
    """
    if policy.outcome(_CUT) is Outcome.STOP:
        raise refused(table, _CUT, "it was truncated")


def followed(schema: pa.Schema, needed: SchemaPlan, policy: SchemaPolicy, table: str) -> pa.Schema:
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


def require_seen(table: str, added: Collection[str], seen: Collection[str] | None) -> None:
    """Columns that come wait for a look at the catalog: it knows what older rows have in them.

    Args:
        table: ``schema.table`` of the source.
        added: columns that the table would get.
        seen: those that the newest look has found; None = nobody has to be asked.

    Raises:
        TableError: `columns-unseen`; it is retried.
    """
    unseen = sorted({*added} - {*seen}) if seen is not None else []
    if unseen:
        raise TableError(
            f"columns of {table} are new: {', '.join(unseen)}; the database is asked what older "
            "rows have in them",
            code=UNSEEN,
            hint="it goes on by itself",
            retried=True,
        )


def narrowed(packet: pa.Table, left: Collection[str], schema: pa.Schema, table: str) -> pa.Table:
    """A packet with rows that have nothing that the table leaves out.

    Args:
        packet: which.
        left: columns that are left out.
        schema: as `followed`: columns that it has come in its types.
        table: ``schema.table`` of the source.

    Raises:
        TableError: `schema-change-refused`: a value is not the same in the type of its column.
    """
    kind = packet.schema.field("row").type
    kept = [(at, column) for at, column in enumerate(kind) if column.name not in left]
    typed = [
        column.with_type(
            schema.field(column.name).type if column.name in schema.names else column.type
        )
        for _, column in kept
    ]
    if pa.struct(typed) == kind:
        return packet
    whole = pa.chunked_array(packet.column("row").chunks, kind).combine_chunks()
    cells = [
        _narrowed(pc.struct_field(whole, [at]), column, table)
        for (at, _), column in zip(kept, typed, strict=True)
    ]
    made = (
        pa.StructArray.from_arrays(cells, fields=typed, mask=whole.is_null())
        if typed
        else pa.StructArray.from_buffers(pa.struct([]), len(whole), [None])
    )
    packet = change_batch.with_column(packet, "row", made)
    for name in ("unavailable", "missing"):
        column = packet.column(name)
        if left and column.null_count < len(column):
            packet = change_batch.with_column(packet, name, _without(column, left))
    return packet


def _without(column: pa.ChunkedArray, left: Collection[str]) -> pa.Array:
    """Lists of names without some; null where nothing is left."""
    lists = [[n for n in names or () if n not in left] or None for names in column.to_pylist()]
    return pa.array(lists, column.type)


def _narrowed(cells: pa.Array, column: pa.Field, table: str) -> pa.Array:
    if cells.type == column.type:
        return cells
    try:
        found = cells.cast(column.type)
        is_same = _is_same(found.cast(cells.type), cells)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        is_same = False
    if is_same:
        return found
    raise TableError(
        f"{table}: column {column.name!r} has values that are not the same as {column.type}, the "
        "type that its policy keeps (widen-type)",
        code=REFUSED,
        hint=f"let its policy follow wider types (lake.tables.{table}.schema_changes: behavior "
        "lenient, widen-type in include if there is one, and not in exclude); start again; then "
        f"`lakemark table resume {table}`",
    )


def _is_same(one: pa.Array, other: pa.Array) -> bool:
    """Say whether all values are equal; a NaN is equal to a NaN."""
    return bool(one.equals(other)) or repr(one.to_pylist()) == repr(other.to_pylist())


def require_free(sources: Sequence[str], table: str) -> None:
    """Refuse columns of the source whose names go beside rows on their way to the table.

    Raises:
        TableError: `column-name-taken` names them.
    """
    own = sorted(OWN.intersection(sources))
    if own:
        raise TableError(
            f"columns {own} have names that lakemark needs itself",
            code="column-name-taken",
            hint="rename the column in the source, or leave it out (column.exclude.list); then "
            f"`lakemark table skip {table or 'TABLE'}`",
        )
