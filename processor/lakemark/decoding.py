"""What the meaning of events depends on beside their text: settings, and types of columns; pure.

No event says by which of these settings it was written. Around a change of them some are read in
the wrong way, whatever is done: those written before it and read after it, or those written after
it and before it was known. So a change stops nothing: the tables whose rows may be wrong for it are
snapshotted again.

The same is true of a column's type where values come without their schema: a decimal does not say
its scale, a number not whether it counts days or microseconds.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from lakemark.source.columns import Column
from lakemark.source.modes import SETTINGS, HandlingModes
from lakemark.source.schema import TableSchema

# Another one of these is another source: no position and no offset means anything there.
SOURCE: Final = ("connector.class", "topic.prefix")

Written = Mapping[str, Mapping[str, str]]
"""By table and column: how values are written."""

_WHOLE: Final = dict.fromkeys(("int8", "int16", "int32", "int64"), "integer")


def of(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings concerned, as far as they are set."""
    return {name: settings[name] for name in (*SOURCE, *SETTINGS) if name in settings}


def changed(
    before: Mapping[str, str], now: Mapping[str, str], names: Iterable[str] | None = None
) -> list[str]:
    """Settings that differ, by name; of these names, or of all."""
    wanted = {*before, *now} if names is None else names
    return sorted(name for name in wanted if before.get(name) != now.get(name))


def concerned(
    tables: Iterable[str],
    modes: tuple[HandlingModes, HandlingModes],
    before: Mapping[str, TableSchema],
    now: Mapping[str, TableSchema],
) -> list[str]:
    """The tables that may hold rows which were read in the wrong way.

    Args:
        tables: all that there are.
        modes: as they were, and as they are.
        before: the catalog's schemas under the former.
        now: under the latter. Of a table that it does not know nothing can be said for certain.
    """
    old, new = modes
    if old == new:
        return []
    if _unseen(old) != _unseen(new):
        return sorted(tables)
    same = {table for table in now if before.get(table) == now[table]}
    return sorted(set(tables) - same)


def _unseen(modes: HandlingModes) -> tuple[object, ...]:
    """What no schema shows: all texts of bytes and all forms of decimals are of one type each."""
    return modes.binary, modes.decimal_format, modes.placeholder


def written(schemas: Mapping[str, TableSchema]) -> Written:
    """How the values of each column are written, as a text that differs where it matters."""
    return {
        table: {column.name: _form(column) for column in schema.columns}
        for table, schema in schemas.items()
    }


def rewritten(before: Written, now: Written) -> list[str]:
    """The tables of which a column, now as before of this name, is written in another way."""
    return sorted(
        table
        for table, columns in now.items()
        if any(columns.get(name, form) != form for name, form in before.get(table, {}).items())
    )


def _form(column: Column) -> str:
    """Of integers of all widths one form, and of texts of all lengths: a value says it all.

    But a char(n) is padded; where it is a key and becomes a text, its rows change without an event.
    """
    parts = [_WHOLE.get(column.wire, column.wire), column.encoding]
    parts += [column.parameter("scale") or "", "padded" if column.padded else ""]
    inner = [*([column.element] if column.element else []), *column.members]
    return "/".join(parts) + "".join(f"<{one.name}:{_form(one)}>" for one in inner)
