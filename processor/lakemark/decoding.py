"""What of the connector's configuration the meaning of its events depends on; pure.

No event says by which of these settings it was written. Around a change of them some are read in
the wrong way, whatever is done: those written before it and read after it, or those written after
it and before it was known. So a change stops nothing: the tables whose rows may be wrong for it are
snapshotted again.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from lakemark.source.modes import SETTINGS, HandlingModes
from lakemark.source.schema import TableSchema

# Another one of these is another source: no position and no offset means anything there.
SOURCE: Final = ("connector.class", "topic.prefix")


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
