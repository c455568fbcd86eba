"""Source tables that have one text for a name; pure.

A table is named by the text ``schema.table``. PostgreSQL's ``"a.b"."c"`` and ``"a"."b.c"`` both are
``a.b.c``: rows of both would be in one Delta table. So neither is written, however it is known that
there are two:

- the catalog has two captured tables of that text: the table is stopped before any of its events;
- events of two tables come: what the text stands for is kept in the table's state with its first
  batch, which is read again then, and an event of another table stops it.

A name whose only dot is the joining one stands for one table: for nearly all names nothing is done.
"""

from collections.abc import Iterable, Mapping
from typing import Final

Name = tuple[str, str]
"""Schema and table as the source block has them."""

Names = Mapping[str, tuple[Name, ...]]
"""The captured tables by text, of those texts that several tables may have."""

CODE: Final = "name-ambiguous"
BEGINS: Final = "table-named"
BEGINS_REASON: Final = "which source table its name stands for is known now: it is read again"
_HINT: Final = (
    "rename one of them, or leave one out by its schema in the connector's schema.exclude.list (an "
    "entry of table.exclude.list matches both); then: lakemark table skip {table}"
)


def may_have(table: str) -> bool:
    """Whether another table can have the same text."""
    return table.count(".") > 1


def text(name: Name) -> str:
    """The text of a table's name."""
    return ".".join(name)


def names_of(table: str) -> list[Name]:
    """Every table that has this text."""
    parts = table.split(".")
    return [(".".join(parts[:n]), ".".join(parts[n:])) for n in range(1, len(parts))]


def reason(names: Iterable[Name]) -> str:
    """Why tables of one text are not written; each is named as in SQL."""
    found = sorted(set(names))
    listed = " and ".join(".".join(map(_quoted, name)) for name in found)
    return f"{listed} are different tables and have one name, {text(found[0])}: none is written"


def hint(table: str) -> str:
    """What to do about it."""
    return _HINT.format(table=table)


def _quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'
