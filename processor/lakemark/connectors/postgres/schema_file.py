"""Tables' columns as the user writes them down, for plain JSON without a database.

    public.orders:
      key: [id]
      columns:
        id: bigint not null
        total: numeric(10,2)
        placed: timestamp(3) with time zone
        tags: text[]
        state: enum

The types are PostgreSQL's own words; the connector's handling modes apply as to the catalog.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.settings.layers import InvalidConfig, Mistake
from lakemark.settings.table_id import is_table

_TYPE: Final = re.compile(
    r"(?P<name>[a-z_][a-z0-9_]*(?: precision| varying)?)\s*(?:\((?P<args>[\d\s,-]+)\))?"
    r"(?:\s+(?P<zone>with|without) time zone)?\s*(?P<array>\[\])?(?P<not_null>\s+not null)?"
)
_ALIASES: Final[Mapping[str, str]] = {
    "bigint": "int8",
    "bigserial": "int8",
    "bit varying": "varbit",
    "boolean": "bool",
    "char": "bpchar",
    "character": "bpchar",
    "character varying": "varchar",
    "decimal": "numeric",
    "double precision": "float8",
    "float": "float8",
    "int": "int4",
    "integer": "int4",
    "real": "float4",
    "serial": "int4",
    "smallint": "int2",
}
_KNOWN: Final = frozenset(
    (
        *("bit", "bool", "box", "bpchar", "bytea", "cidr", "circle", "citext", "date", "daterange"),
        *("enum", "float4", "float8", "geography", "geometry", "halfvec", "hstore", "inet", "int2"),
        *("int4", "int4range", "int8", "int8range", "interval", "isbn", "json", "jsonb", "line"),
        *("lseg", "ltree", "macaddr", "macaddr8", "money", "name", "numeric", "numrange", "oid"),
        *("path", "point", "polygon", "sparsevec", "text", "time", "timestamp", "timestamptz"),
        *("timetz", "tsrange", "tstzrange", "tsvector", "uuid", "varbit", "varchar", "vector"),
        "xml",
    )
)
_WITH_HEADER: Final = frozenset({"bpchar", "varchar"})  # typmod = length + 4, as in the catalog


def schemas_from_file(file: Path, modes: HandlingModes) -> dict[str, TableSchema]:
    """The schemas of all tables in the file, by ``schema.table``.

    Raises:
        InvalidConfig: with every mistake in the file.
    """
    return {
        table: from_catalog(table, columns, key_of(columns), modes)
        for table, columns in read_schema_file(file).items()
    }


def key_of(columns: list[CatalogColumn]) -> list[str]:
    """Names of the key columns in key order."""
    placed = [(column.key_position, column.name) for column in columns if column.key_position]
    return [name for _, name in sorted(placed)]


def read_schema_file(file: Path) -> dict[str, list[CatalogColumn]]:
    """The tables of the file, as the catalog would describe them.

    Raises:
        InvalidConfig: with every mistake in the file.
    """
    try:
        # All scalars as texts: columns may be named no, on or 1.
        document = yaml.load(file.read_text(encoding="utf-8"), yaml.BaseLoader)  # noqa: S506
    except OSError as error:
        raise InvalidConfig([Mistake("source.schema_file", str(error))]) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = Mistake("source.schema_file", f"{file.name} is not valid YAML: {error}")
        raise InvalidConfig([problem]) from error
    problems: list[Mistake] = []
    tables: dict[str, list[CatalogColumn]] = {}
    if not isinstance(document, dict):
        problems.append(Mistake("", "expected tables, such as `public.orders:`"))
        document = {}
    for table, entry in document.items():
        tables[str(table)] = list(_columns(str(table), entry, problems))
    if problems:
        raise InvalidConfig(problems, source=file.name)
    return tables


def _columns(table: str, entry: Any, problems: list[Mistake]) -> Iterator[CatalogColumn]:
    columns = entry.get("columns") if isinstance(entry, dict) else None
    key = entry.get("key", []) if isinstance(entry, dict) else []
    if not is_table(table):
        problems.append(Mistake(table, "is not a table: expected schema.table"))
    if not isinstance(columns, dict) or not columns:
        hint = "write `columns:` with `name: type` lines below it"
        problems.append(Mistake(f"{table}.columns", "is missing or empty", hint))
        return
    key = key if isinstance(key, list) else [key]
    problems += [
        Mistake(f"{table}.key", f"{name} is not among the columns")
        for name in key
        if name not in columns
    ]
    unknown = sorted(set(entry) - {"columns", "key"})
    if unknown:
        hint = "known are columns and key"
        problems.append(Mistake(table, f"{', '.join(unknown)}: not known", hint))
    for name, text in columns.items():
        place = key.index(name) + 1 if name in key else None
        found = _column(str(name), str(text), place)
        if isinstance(found, CatalogColumn):
            yield found
        else:
            problems.append(Mistake(f"{table}.columns.{name}", *found))


def _column(name: str, text: str, place: int | None) -> CatalogColumn | tuple[str, str]:
    """Return the column, or what is wrong with its type and a hint."""
    match = _TYPE.fullmatch(" ".join(text.lower().split()))
    if match is None:
        return f"{text!r} is not a type", "write it as in CREATE TABLE, such as numeric(10,2)"
    typname = _ALIASES.get(match["name"], match["name"])
    if match["zone"] == "with" and typname in {"time", "timestamp"}:
        typname += "tz"
    if typname not in _KNOWN:
        near = difflib.get_close_matches(typname, [*_KNOWN, *_ALIASES], n=1)
        hint = f"did you mean {near[0]}?" if near else "write enum for types of your own"
        return f"{match['name']!r} is not a known type", hint
    typmod = _typmod(typname, match["args"])
    not_null = bool(match["not_null"]) or place is not None
    if match["array"]:
        return CatalogColumn(
            name,
            "_" + typname,
            typmod,
            not_null,
            element_type_name="text" if typname == "enum" else typname,
            element_is_enum=typname == "enum",
        )
    is_enum = typname == "enum"
    return CatalogColumn(name, typname, typmod, not_null, is_enum=is_enum, key_position=place)


def _typmod(typname: str, args: str | None) -> int:
    """Return length, precision and scale as PostgreSQL stores them in atttypmod."""
    numbers = [int(part) for part in (args or "").split(",") if part.strip(" -")]
    if not numbers:
        return 5 if typname == "bpchar" else 1 if typname == "bit" else -1
    if typname == "numeric":
        scale = numbers[1] if len(numbers) > 1 else 0
        return ((numbers[0] << 16) | (scale & 0x7FF)) + 4
    return numbers[0] + (4 if typname in _WITH_HEADER else 0)
