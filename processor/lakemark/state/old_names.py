"""Names of tables in states up to format 3: schema and name with a dot between them; pure.

There two tables could have one name, and of such none was written. Now each has a text of its own,
see `settings.table_id`. A name with the joining dot only is the text that it always was.
"""

import re
from typing import Final

import msgspec

from lakemark.settings.table_id import text_of

AMBIGUOUS: Final = "name-ambiguous"
"""Code of a table that had stopped because another one had its name; `reason` names both."""

_BOTH: Final = re.compile(r'"((?:[^"]|"")*)"\."((?:[^"]|"")*)"')


class OldEntry(msgspec.Struct):
    """An entry's names: `source_name` is the table whose rows it has, where known."""

    source_name: tuple[str, str] | None = None
    code: str = ""
    reason: str = ""

    def texts(self, name: str) -> list[str]:
        """Return the texts of the tables that an entry of this name was for, first its rows'."""
        own = self.source_name or divided(name)
        both = _BOTH.findall(self.reason) if self.code == AMBIGUOUS else []
        twins = [tuple(part.replace('""', '"') for part in pair) for pair in both]
        return list(dict.fromkeys(text_of(*parts) for parts in (own, *twins)))


class OldLeft(msgspec.Struct):
    """A table that was left out."""

    entry: OldEntry


class OldNames(msgspec.Struct):
    """The names in such a state."""

    tables: dict[str, OldEntry] = msgspec.field(default_factory=dict)
    left: dict[str, OldLeft] = msgspec.field(default_factory=dict)

    def texts(self, name: str) -> list[str]:
        """Return the texts of the tables that this name was for, see `OldEntry.texts`."""
        left = self.left.get(name)
        return (self.tables.get(name) or (left.entry if left else OldEntry())).texts(name)


def divided(name: str) -> tuple[str, ...]:
    """Return the parts of a name as chunks and folders had them: only the first dot divided."""
    return tuple(name.split(".", 1))
