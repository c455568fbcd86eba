"""Statements that move rows of tables without an event or a trace in the catalog; pure.

A partition that is truncated, or changes places with a table, keeps its name, and its table the
time at which it was made; so does a tablespace that is imported. Their text, in the schema topic,
is all that tells. Whether a name in it is that of a table cannot be known without the grammar: each
table whose name is a word of it counts.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from lakemark.settings.table_id import pair_of

_MOVES: Final = re.compile(
    r"\b(?:TRUNCATE|EXCHANGE|CONVERT|IMPORT|DISCARD)\b.*\b(?:PARTITION|TABLESPACE)\b",
    re.IGNORECASE | re.DOTALL,
)


def moved_by(statement: str, tables: Iterable[str]) -> Iterator[str]:
    """Yield the tables whose rows a statement may have moved.

    Args:
        statement: as the schema topic has it.
        tables: those that there are, as ``database.table``.
    """
    if not _MOVES.search(statement):
        return
    text = statement.replace("``", "`").casefold()
    for table in tables:
        _, name = pair_of(table)
        if re.search(rf"(?<![\w$]){re.escape(name.casefold())}(?![\w$])", text):
            yield table
