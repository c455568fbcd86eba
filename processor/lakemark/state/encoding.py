"""The encoding of events that their text does not show: settings, and types of columns; pure.

No event says by which of these settings it was written. Around a change of them some are read in
the wrong way, whatever is done: those written before it and read after it, or those written after
it and before it was known. So a change stops nothing: the tables whose rows may be wrong for it are
snapshotted again.

The same is true of a column's type where values come without their schema: a decimal does not say
its scale, a number not whether it counts days or microseconds.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from lakemark.model.columns import Column
from lakemark.model.handling_modes import HandlingModes, settings_of
from lakemark.model.schema import TableSchema

# Another one of these is another source: no position and no offset means anything there.
ORDER: Final = "source.order"
SOURCE: Final = ("connector.class", "topic.prefix", ORDER)

Written = Mapping[str, Mapping[str, str]]
"""By table and column: how values are written."""
GONE: Final = "gone"
"""Instead of how: events carried the column when the catalog no longer had it, see `Forms`."""

_WHOLE: Final = dict.fromkeys(("int8", "int16", "int32", "int64"), "integer")


def of(settings: Mapping[str, str], *, order: str | None = None) -> dict[str, str]:
    """Return the settings that encode values, as far as they are set.

    Args:
        settings: of the connector.
        order: lakemark's `source.order`.
    """
    source = {name: settings[name] for name in SOURCE if name in settings}
    ordered = {} if order is None else {ORDER: order}
    return source | settings_of(settings) | ordered


def changed(
    before: Mapping[str, str], now: Mapping[str, str], names: Iterable[str] | None = None
) -> list[str]:
    """Return the names of settings that differ: of these names, or of all."""
    wanted = {*before, *now} if names is None else names
    return sorted(name for name in wanted if before.get(name) != now.get(name))


def concerned(
    tables: Iterable[str],
    modes: tuple[HandlingModes, HandlingModes],
    before: Mapping[str, TableSchema],
    now: Mapping[str, TableSchema],
) -> list[str]:
    """Return the tables that may hold rows which were read in the wrong way.

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
    """Return modes that no schema shows: all texts of bytes and forms of decimals are alike.

    Of those that only one kind of connector has nobody here knows it, so they count.
    """
    return modes.binary, modes.decimal_format, modes.placeholder, modes.own


def written(schemas: Mapping[str, TableSchema]) -> Written:
    """Return how the values of each column are written, as a text that differs where it matters."""
    return {
        table: {column.name: _form(column) for column in schema.columns}
        for table, schema in schemas.items()
    }


def rewritten(before: Written, now: Written) -> list[str]:
    """Return the tables with a column that is still there but written in another way."""
    return sorted(
        table
        for table, columns in now.items()
        if any(columns.get(name, form) != form for name, form in before.get(table, {}).items())
    )


class Forms:
    """The forms of columns' values as the catalog first had them; any thread may ask.

    A schema of the catalog is shown here before events are decoded by it. So a difference from the
    form that earlier events were decoded by is not missed, even where the catalog is asked for
    another column's sake.
    """

    def __init__(
        self, before: Written | None = None, note: Callable[[Written], None] = lambda _: None
    ) -> None:
        """Begin with the forms of an earlier run.

        Args:
            before: how columns are known to be written.
            note: stores more of them, for the next run.
        """
        self._before = {table: dict(columns) for table, columns in (before or {}).items()}
        self._note, self._lock = note, threading.Lock()
        self._differ: set[str] = set()

    @property
    def tables(self) -> list[str]:
        """Return all tables that are known."""
        with self._lock:
            return sorted(self._before)

    @property
    def differ(self) -> tuple[str, ...]:
        """Return the tables of which a column is written in another way, or is there again."""
        with self._lock:
            return tuple(sorted(self._differ))

    def seen(
        self,
        schemas: Mapping[str, TableSchema],
        wanted: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        """Take in the catalog's schemas.

        Args:
            schemas: by table.
            wanted: columns per table that events have. Where the catalog does not have one it is
                left out of all events from then on, until it is there again.
        """
        now = written(schemas)
        with self._lock:
            self._differ.update(rewritten(self._before, now))
            more = {table: {**now[table], **self._before.get(table, {})} for table in now}
            for table, names in (wanted or {}).items():
                if table in more:
                    more[table] |= dict.fromkeys(set(names) - set(now[table]), GONE)
            if any(self._before.get(table) != columns for table, columns in more.items()):
                self._note(self._before | more)
                self._before |= more


def _form(column: Column) -> str:
    """Return the form of a column's values: one for integers of all widths, one for all texts.

    A type's modifier changes rows without an event: a char(n) is padded, a time is rounded.
    """
    parts = [_WHOLE.get(column.wire, column.wire), column.encoding]
    parts += [column.parameter("scale") or "", "padded" if column.padded else ""]
    parts += [] if column.modifier is None else [str(column.modifier)]
    inner = [*([column.element] if column.element else []), *column.members]
    return "/".join(parts) + "".join(f"<{one.name}:{_form(one)}>" for one in inner)
