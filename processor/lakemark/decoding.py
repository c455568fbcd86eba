"""What of the connector's configuration the meaning of its events depends on; pure.

No event says by which of these settings it was written. Around a change of them some are read in
the wrong way, whatever is done: those written before it and read after it, or those written after
it and before it was known. So a change stops nothing: the tables whose rows may be wrong for it are
snapshotted again.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from lakemark.source.modes import SETTINGS
from lakemark.source.schema import TableSchema

# Another one of these is another source: no position and no offset means anything there.
SOURCE: Final = ("connector.class", "topic.prefix")
# What a table's schema does not show: texts of binary columns and numbers are of the same type in
# all of their forms, and the placeholder stands in the values.
UNSEEN: Final = (
    "binary.handling.mode",
    "value.converter.decimal.format",
    "unavailable.value.placeholder",
)


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
    settings: Iterable[str],
    before: Mapping[str, TableSchema],
    now: Mapping[str, TableSchema],
) -> list[str]:
    """The tables that may hold rows which were read in the wrong way.

    Args:
        tables: all that there are.
        settings: those that differ.
        before: the catalog's schemas under the settings as they were.
        now: as they are. Of a table that it does not know nothing can be said for certain.
    """
    if not set(settings).isdisjoint(UNSEEN):
        return sorted(tables)
    same = {table for table in now if before.get(table) == now[table]}
    return sorted(set(tables) - same)
