"""A source table by the parts of its name, and the one text that stands for it.

Everywhere in lakemark - states, groups, records, commands, the page - a table is named by its text.
That of most tables is what everybody writes, ``schema.table``. A part that has a dot in it, begins
with a double quote or is empty stands in double quotes, a quote in it twice, as in SQL:
``"a.b".c`` and ``a."b.c"`` are two tables. No two tables have one text.

A *qualifier* before a table's own name tells the tables of several connectors apart, as in
``shop.public.orders``. A database knows nothing of it, see `qualified_database`.

The *plain* name joins the parts with dots whatever is in them, as Debezium does where it matches
its lists and names its topics: there two tables may have one name.
"""

import re
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple, Self

_PART: Final = re.compile(r'"(?:[^"]|"")*"|[^".][^.]*')
_WRITTEN: Final = re.compile(r'\s*"((?:[^"]|"")*)"\s*|([^."]+)')


class TableId(NamedTuple):
    """The parts of a table's name, the outermost first: schema and table, database and table …"""

    parts: tuple[str, ...]

    @classmethod
    def of(cls, *parts: str) -> Self:
        """Return the table whose name has these parts."""
        return cls(parts)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the table that a text stands for.

        Raises:
            ValueError: no table has this text: a part is empty, or a quote is not closed.
        """
        return cls(_parsed(text))

    @property
    def text(self) -> str:
        """The table's text: `parse` of it is this table, and of no other text."""
        return ".".join(map(_written, self.parts))

    @property
    def plain(self) -> str:
        """The parts joined with dots, as Debezium's lists and topics have them."""
        return ".".join(self.parts)

    @property
    def table(self) -> str:
        """The last part."""
        return self.parts[-1]

    @property
    def namespace(self) -> str:
        """The part before the last one: the schema, or the database where there are no schemas."""
        return self.parts[-2] if len(self.parts) > 1 else ""


def text_of(*parts: str) -> str:
    """Return the text of the table whose name has these parts."""
    return TableId(parts).text


def qualified(qualifier: str, table: str) -> str:
    """Return the text of a connector's table; the table's own where there is no qualifier."""
    return f"{_written(qualifier)}.{table}" if qualifier else table


def unqualified(qualifier: str, table: str) -> str | None:
    """Return a table's name in its database; None if it is the table of another connector."""
    if not qualifier:
        return table
    start = f"{_written(qualifier)}."
    return table.removeprefix(start) if table.startswith(start) else None


def _written(part: str) -> str:
    if part and "." not in part and not part.startswith('"'):
        return part
    return '"' + part.replace('"', '""') + '"'


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[str, ...]:
    parts, at = [], 0
    while True:
        found = _PART.match(text, at)
        if found is None:
            raise ValueError(f"{text!r} is no table's name")
        part, at = found[0], found.end()
        parts.append(part[1:-1].replace('""', '"') if part.startswith('"') else part)
        if at == len(text):
            break
        if text[at] != ".":
            raise ValueError(f"{text!r} is no table's name")
        at += 1
    if ".".join(map(_written, parts)) != text:
        raise ValueError(f"{text!r} is no table's name")
    return tuple(parts)


def pair_of(text: str) -> tuple[str, str]:
    """Return the namespace and the last part of a table's name, see `TableId`.

    Raises:
        ValueError: no table has this text.
    """
    found = TableId.parse(text)
    return found.namespace, found.table


def plain_of(text: str) -> str:
    """Return the plain name of a table's text, see `TableId`; it mostly is the text itself."""
    return TableId.parse(text).plain if '"' in text else text


def is_table(text: str) -> bool:
    """Return whether this is the text of a table within a schema or a database."""
    with suppress(ValueError):
        return len(TableId.parse(text).parts) > 1
    return False


def text_written(name: str) -> str:
    """Return the text of a name as Debezium reads it: each part may stand in double quotes."""
    parts = _WRITTEN.findall(name.strip())
    return text_of(*(quoted.replace('""', '"') or plain.strip() for quoted, plain in parts))
