"""Tables as the connector's schema topic tells them after a statement; pure.

The connector has the words of the statement, in capitals, where the catalog has the server's own:
``INTEGER`` is an ``int``, ``BOOL`` a ``tinyint(1)``. What is made of them is what the catalog's
columns give. A table with a type whose word is not known is left out: its place is not told then.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from lakemark.connectors.mysql.catalog import CatalogColumn, connect_field, from_catalog
from lakemark.errors import TableError
from lakemark.model.definitions import ChangedColumn, TableChange
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.settings.table_id import text_of

_PART: Final = re.compile(r'"((?:[^"]|"")*)"')
_SIGNS: Final = ("SIGNED", "UNSIGNED", "ZEROFILL")
_WORDS: Final[Mapping[str, str]] = {
    "bool": "tinyint(1)",
    "boolean": "tinyint(1)",
    "character": "char",
    "character varying": "varchar",
    "char varying": "varchar",
    "dec": "decimal",
    "double precision": "double",
    "fixed": "decimal",
    "float4": "float",
    "float8": "double",
    "int1": "tinyint",
    "int2": "smallint",
    "int3": "mediumint",
    "int4": "int",
    "int8": "bigint",
    "integer": "int",
    "long": "mediumtext",
    "long varbinary": "mediumblob",
    "long varchar": "mediumtext",
    "middleint": "mediumint",
    "national char": "char",
    "national character": "char",
    "national character varying": "varchar",
    "national varchar": "varchar",
    "nchar": "char",
    "nchar varchar": "varchar",
    "numeric": "decimal",
    "nvarchar": "varchar",
    "real": "double",
    "serial": "bigint unsigned",
    "varcharacter": "varchar",
}
_OF_BYTES: Final[Mapping[str, str]] = {
    "char": "binary",
    "varchar": "varbinary",
    "tinytext": "tinyblob",
    "text": "blob",
    "mediumtext": "mediumblob",
    "longtext": "longblob",
}
"""The types of texts in the character set ``binary``."""
_NUMBERED: Final = frozenset(
    {"decimal", "float", "double", "bit", "char", "varchar", "binary", "varbinary", "vector"}
    | {"tinyint", "time", "datetime", "timestamp"}
)
_USUAL: Final[Mapping[str, int]] = {"decimal": 10, "char": 1, "binary": 1, "bit": 1}
"""Their length, where a statement names none."""
_MOST_FLOAT: Final = 24  # bits of a float(p); a longer one is a double


def definitions(
    tables: Iterable[TableChange], modes: HandlingModes, *, connector: str
) -> Iterator[tuple[str, TableSchema]]:
    """Yield tables, as ``database.table``, and their columns and keys after a statement.

    Args:
        tables: of a record of the schema topic; those that were dropped are passed over.
        modes: the connector's settings.
        connector: ``mysql`` or ``mariadb``.
    """
    for change in tables:
        parts = [part.replace('""', '"') for part in _PART.findall(change.id)]
        if change.table is None or len(parts) < 2:  # noqa: PLR2004 - database and table
            continue
        table = text_of(*parts[-2:])
        try:
            columns = [_column(column, connector) for column in change.table.columns]
            if columns and all(connect_field(one, modes, table=table) for one in columns):
                key = change.table.primary_key_column_names or ()
                yield table, from_catalog(table, columns, key, modes, connector=connector)
        except (TableError, ValueError):  # words that no server of ours writes
            continue


def _column(column: ChangedColumn, connector: str) -> CatalogColumn:
    """Return a column as the catalog would have it."""
    return CatalogColumn(
        column.name,
        column_type(column, connector=connector),
        not_null=not column.optional,
        charset=column.charset_name,
        default=column.default_value_expression,
    )


def column_type(column: ChangedColumn, *, connector: str) -> str:
    """Return a column's type as the catalog writes it, as far as values are read by it.

    Args:
        column: as the connector tells it.
        connector: ``mysql`` or ``mariadb``.
    """
    words = column.type_name.split()
    signs = {word.upper() for word in words if word.upper() in _SIGNS}
    named = " ".join(word for word in words if word.upper() not in _SIGNS).lower()
    base = _WORDS.get(named, named)
    if connector == "mariadb" and base == "json":
        base = "longtext"
    if column.charset_name == "binary":
        base = _OF_BYTES.get(base, base)
    if base == "float" and column.scale is None and (column.length or 0) > _MOST_FLOAT:
        base = "double"
    unsigned = " unsigned" if signs & {"UNSIGNED", "ZEROFILL"} else ""
    return base + _brackets(base, column) + unsigned + " zerofill" * ("ZEROFILL" in signs)


def _brackets(base: str, column: ChangedColumn) -> str:
    """Return what stands in brackets behind a type's name."""
    if base in ("enum", "set"):
        return "(" + ",".join(column.enum_values or ()) + ")"
    length = _USUAL.get(base) if column.length is None else column.length
    if base not in _NUMBERED or length is None:
        return ""
    scale = column.scale
    if base == "decimal":
        scale = scale or 0
    if base in ("float", "double") and scale is None:
        return ""
    return f"({length})" if scale is None else f"({length},{scale})"
