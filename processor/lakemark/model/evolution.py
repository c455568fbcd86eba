"""The changes of a target table that a changed source table asks for."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

_WIDTHS = {pa.int8(): 1, pa.int16(): 2, pa.int32(): 4, pa.int64(): 8}
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


@dataclass(slots=True)
class Evolution:
    """Differences that matter, by kind; column by column, in the source's order.

    Attributes:
        added: columns that the target lacks.
        widened: (column, target's type, type it must get).
        incompatible: (column, target's type, source's type, why).
    """

    added: list[pa.Field] = field(default_factory=list)
    widened: list[tuple[str, pa.DataType, pa.DataType]] = field(default_factory=list)
    incompatible: list[tuple[str, pa.DataType, pa.DataType, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.widened or self.incompatible)


def compare(target: pa.Schema, source: pa.Schema) -> Evolution:
    """Return what the target table needs to hold rows of `source`.

    A column that only the target has is fine (it becomes null), and so is one whose target type
    holds every value of the source's. Names are compared exactly, except that two names which
    differ in case only are incompatible: Delta's column names are case-insensitive.
    """
    found = Evolution()
    lower = {name.lower(): name for name in target.names}
    for new in source:
        known = lower.get(new.name.lower())
        if known is None:
            found.added.append(new)
            lower[new.name.lower()] = new.name
        elif known != new.name:
            kind = target.field(known).type if known in target.names else source.field(known).type
            why = f"differs from column {known!r} in case only"
            found.incompatible.append((new.name, kind, new.type, why))
        else:
            _compare_types(found, new.name, target.field(new.name).type, new.type)
    return found


class TypesError(ValueError):
    """No type holds all values of a column."""


def joined(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """All columns of all schemas, each in the narrowest type that holds its values in all of them.

    Arrow's own promotion is no answer: it takes texts for bytes and decimals for floats, and finds
    decimals that are too narrow for an integer.

    Raises:
        TypesError: there is none. It says of which column.
    """
    found: dict[str, pa.Field] = {}
    for schema in schemas:
        for column in schema:
            known = found.setdefault(column.name, column)
            wide = widest(known.type, column.type)
            if wide is None:
                raise TypesError(f"column {column.name!r} is {known.type} and {column.type}")
            found[column.name] = known.with_type(wide)
    return pa.schema(list(found.values()))


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with all columns of a schema that was `joined` of its own and others."""
    if table.schema.equals(schema):
        return table
    rows, names = table.num_rows, set(table.column_names)
    return pa.table(
        [
            table.column(column.name).cast(column.type)
            if column.name in names
            else pa.chunked_array([pa.nulls(rows, column.type)])
            for column in schema
        ],
        schema=schema,
    )


def way_on(table: str, path: str) -> str:
    """Say what a person does about a change of types that no table can follow.

    The events with both types stay in the log, so that going on from where the table stopped would
    meet them again: they are skipped, and a snapshot brings what they held.
    """
    return (
        f"`lakemark table rebuild {table}` makes the table anew, with its columns of now; or "
        "change the column back in the source, or, where no database is configured, move the "
        f"folder {path} away; then `lakemark table skip {table}`: it leaves out the changes that "
        "were not applied, and snapshots the table again"
    )


def _compare_types(found: Evolution, name: str, old: pa.DataType, new: pa.DataType) -> None:
    wide = widest(old, new)
    if wide is None:
        why = f"{old} cannot become {new} without losing values"
        found.incompatible.append((name, old, new, why))
    elif wide != old:
        found.widened.append((name, old, wide))


def widest(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds all values of both, or None if there is none.

    int8 to int64, float to double, decimal growth, and integer to decimal; nothing else.
    """
    if old == new or _strings(old, new) or pa.types.is_null(new):
        return old
    if pa.types.is_null(old):
        return new
    if old in _WIDTHS and new in _WIDTHS:
        return max(old, new, key=_WIDTHS.__getitem__)
    if pa.types.is_floating(old) and pa.types.is_floating(new):
        return max(old, new, key=lambda t: t.bit_width)
    if _exact(old) and _exact(new):
        return _widest_decimal(old, new)
    return _widest_nested(old, new)


def _widest_nested(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    if pa.types.is_list(old) and pa.types.is_list(new):
        element = widest(old.value_type, new.value_type)
        return None if element is None else old if element == old.value_type else pa.list_(element)
    if pa.types.is_map(old) and pa.types.is_map(new) and old.key_type == new.key_type:
        item = widest(old.item_type, new.item_type)
        return None if item is None else pa.map_(old.key_type, item)
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return _widest_struct(old, new)
    return None


def _strings(old: pa.DataType, new: pa.DataType) -> bool:
    text = (pa.string(), pa.large_string(), pa.string_view())
    blob = (pa.binary(), pa.large_binary(), pa.binary_view())
    return (old in text and new in text) or (old in blob and new in blob)


def _exact(kind: pa.DataType) -> bool:
    return kind in _DIGITS or pa.types.is_decimal128(kind)


def _widest_decimal(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    def parts(kind: pa.DataType) -> tuple[int, int]:
        if kind in _DIGITS:
            return _DIGITS[kind], 0
        return kind.precision - kind.scale, kind.scale

    (old_whole, old_scale), (new_whole, new_scale) = parts(old), parts(new)
    whole, scale = max(old_whole, new_whole), max(old_scale, new_scale)
    if whole + scale > 38:  # noqa: PLR2004
        return None
    wide = pa.decimal128(whole + scale, scale)
    # of equal digits the decimal holds more: decimal(19,0) ends above the greatest int64
    return old if old not in _DIGITS and wide == old else wide


def _widest_struct(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    fields = {f.name: f.type for f in old}
    for member in new:
        wide = widest(fields[member.name], member.type) if member.name in fields else member.type
        if wide is None:
            return None
        fields[member.name] = wide
    return pa.struct([pa.field(n, t) for n, t in fields.items()])
