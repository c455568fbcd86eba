r"""Names of columns and folders that delta-rs, pyarrow readers and Spark all accept.

Delta without column mapping refuses the characters ``" ,;{}()\n\t="`` in column names (Spark
when it creates or alters a table, though it reads and merges such a table; delta-rs never asks),
and its names are case-insensitive. Column mapping would solve both and is a feature that pyarrow
readers refuse. So a name is kept as it is unless it cannot be, and is otherwise escaped:

    column      each byte of a refused character becomes ``%`` and two lower-case hex digits:
                ``unit price`` is ``unit%20price``; the source's name is also kept in the field's
                metadata as ``lakemark.source_name``
    same name   of two names that differ in case only, the later one gets its first letter escaped:
                ``Id`` beside ``id`` is ``%49d``
    folder      the same with ``~`` instead of ``%``, because object-store URLs use ``%``
                themselves (delta-rs reads ``a%20b`` as ``a b``): ``order items`` is
                ``order~20items``; all but letters, digits, ``_``, ``-`` and ``.`` is escaped, and
                the first character of the name of a log: ``_delta_log`` is ``~5fdelta_log``. Other
                names may begin with ``_``: readers hide them in listings, not in a table's path

Both are reversible without looking anything up.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

from lakemark.settings.config import LakeConfig
from lakemark.settings.table_id import TableId

SOURCE_NAME: Final = b"lakemark.source_name"
CDC: Final = "_cdc"
# A source's column of such a name could not be told from what goes with its rows to the table.
ACTION: Final = "__action"
PATCH: Final = "__patch"
FORCE: Final = "__force"
BARRIER: Final = "__barrier"
NO_COLUMN: Final = "__none"
ROW: Final = "__row"
OWN: Final = frozenset({CDC, ACTION, PATCH, FORCE, BARRIER, NO_COLUMN, ROW})
# Taken by the merge, or by Delta's change data feed should a user switch it on.
RESERVED: Final = (CDC, "_change_type", "_commit_version", "_commit_timestamp")
_REFUSED: Final = frozenset(" ,;{}()\n\t=")
_ESCAPED_COLUMN: Final = re.compile(r"(?:%[0-9a-f]{2})+")
OWN_FOLDER: Final = "_lakemark"  # in a table's folder: what no reader of it has to look at
_LOG: Final = "_delta_log"  # what is below it is no table for any reader or writer


def column_name(source: str, *, lead: int = 0) -> str:
    """The column name of a source column.

    Args:
        source: name in the source table.
        lead: number of leading characters to escape whatever they are, to keep names apart.
    """
    return "".join(
        _bytes(c, "%")
        if at < lead or c in _REFUSED or ord(c) < ord(" ") or _ESCAPED_COLUMN.match(source, at)
        else c
        for at, c in enumerate(source)
    )


def source_name(column: str) -> str:
    """The source column of a column name made by `column_name`."""
    return _ESCAPED_COLUMN.sub(lambda m: bytes.fromhex(m[0].replace("%", "")).decode(), column)


def column_names(
    sources: Iterable[str], existing: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Column names by source name, no two equal but for case.

    Args:
        sources: names in the source table, in its order.
        existing: column names by source name of a table that exists: these stay as they are.
    """
    sources = list(sources)
    names = dict(existing or {})
    taken = {name.lower() for name in (*names.values(), *RESERVED)}
    for source in sources:
        if source in names:
            continue
        lead = 0
        while (name := column_name(source, lead=lead)).lower() in taken and lead < len(source):
            lead += 1
        names[source] = name
        taken.add(name.lower())
    return {source: names[source] for source in sources}


def sources_of(table: pa.Schema) -> dict[str, str]:
    """Source names by column name of a table's schema, without the `_cdc` column."""
    return {
        f.name: (f.metadata or {}).get(SOURCE_NAME, b"").decode() or source_name(f.name)
        for f in table
        if f.name != CDC
    }


def source_schema(table: pa.Schema) -> pa.Schema:
    """A table's columns under the source's names, without `_cdc`."""
    names = sources_of(table)
    fields = [field for field in table if field.name in names]
    return pa.schema([pa.field(names[f.name], f.type, f.nullable) for f in fields])


def field_named(field: pa.Field, column: str) -> pa.Field:
    """The source's field under its column name; its metadata keep the source's name."""
    metadata = {SOURCE_NAME: field.name.encode()} if column != field.name else None
    return pa.field(column, field.type, metadata=metadata)


def quoted(column: str) -> str:
    """The column name as an identifier in the SQL of both engines."""
    return "`" + column.replace("`", "``") + "`"


def table_path(lake: str, table: str) -> str:
    """The folder of a table: ``<lake>/<schema>/<table>`` with odd characters escaped.

    Args:
        lake: path or URL of the lake.
        table: its text.
    """
    return "/".join([lake.rstrip("/"), *map(folder_name, TableId.parse(table).parts)])


def folder_of(lake: LakeConfig, table: str, rebuild: str = "") -> str:
    """Return the path of this ``schema.table``'s Delta table: its own if one is set.

    Args:
        lake: the settings.
        table: ``schema.table``.
        rebuild: name of a rebuild: where the table is that it makes. Empty: the table itself.
    """
    own = lake.tables.get(table)
    path = own.path if own and own.path else table_path(lake.path, table)
    return rebuild_path(path, rebuild) if rebuild else path


def rebuild_path(path: str, name: str) -> str:
    """Return the path of a table that will replace the one at a path, see `TableFormat.replace`."""
    return f"{path.rstrip('/')}/{OWN_FOLDER}/{name}"


def folder_name(part: str) -> str:
    """Return a name as part of a path; only letters that have a single spelling stay."""
    return "".join(
        c
        if (c.isalnum() and unicodedata.is_normalized("NFD", c))
        or c == "-"
        or (c == "_" and (at > 0 or part != _LOG))
        or (c == "." and at > 0)
        else _bytes(c, "~")
        for at, c in enumerate(part)
    )


def _bytes(character: str, sign: str) -> str:
    return "".join(f"{sign}{byte:02x}" for byte in character.encode())
