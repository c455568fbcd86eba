"""MySQL's and MariaDB's catalog in Debezium's words: the Connect schema that a column is sent with.

`CATALOG_SQL` reads the facts, `connect_field` makes the field as Debezium's value converters of
both databases and the JSON converter would, or tells that the connector cannot read the type.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import msgspec

from lakemark.connectors.mysql.column_defaults import default_of, literal_of
from lakemark.connectors.mysql.mended_values import YEAR, ZONED
from lakemark.model.columns import BITS, DECIMAL, ENUM, JSON, UUID
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema, from_connect, readable
from lakemark.settings.names import split_list
from lakemark.settings.patterns import JavaPattern, compile_java
from lakemark.settings.table_id import text_of

# Parameter: %(tables)s, pairs of database and table, at least one, which the driver writes out.
# One row a column, by table and place; `tables_of` reads them. The derived tables are grouped: the
# server makes each of them once, and joins it by a key, which the information schema has not. With
# a subquery for each table instead, MariaDB 11.4.5 crashed at 300 tables.
CATALOG_SQL: Final = """
SELECT c.TABLE_SCHEMA, c.TABLE_NAME,
       c.COLUMN_NAME, c.COLUMN_TYPE, c.IS_NULLABLE = 'NO' AS not_null,
       c.CHARACTER_SET_NAME, c.COLLATION_NAME,
       COALESCE(c.GENERATION_EXPRESSION, '') <> '' AS is_generated,
       UPPER(c.EXTRA) LIKE '%%INVISIBLE%%' AS is_invisible,
       c.COLUMN_DEFAULT, UPPER(c.EXTRA) LIKE '%%DEFAULT_GENERATED%%' AS is_computed,
       c.COLUMN_KEY = 'PRI' AS is_of_key, u.places
FROM information_schema.COLUMNS c
JOIN (
    SELECT TABLE_SCHEMA, TABLE_NAME
    FROM information_schema.TABLES
    WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')
      AND (TABLE_SCHEMA, TABLE_NAME) IN %(tables)s
    GROUP BY TABLE_SCHEMA, TABLE_NAME
) t ON t.TABLE_SCHEMA = c.TABLE_SCHEMA AND t.TABLE_NAME = c.TABLE_NAME
LEFT JOIN (
    SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, JSON_OBJECTAGG(INDEX_NAME, SEQ_IN_INDEX) AS places
    FROM information_schema.STATISTICS
    WHERE NON_UNIQUE = 0 AND (TABLE_SCHEMA, TABLE_NAME) IN %(tables)s
    GROUP BY TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME
) u ON u.TABLE_SCHEMA = c.TABLE_SCHEMA AND u.TABLE_NAME = c.TABLE_NAME
       AND u.COLUMN_NAME = c.COLUMN_NAME
WHERE (c.TABLE_SCHEMA, c.TABLE_NAME) IN %(tables)s
ORDER BY c.TABLE_SCHEMA, c.TABLE_NAME, c.ORDINAL_POSITION
"""


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """One column as the information schema of MySQL or MariaDB describes it.

    Attributes:
        name: COLUMN_NAME.
        column_type: COLUMN_TYPE, such as ``int(10) unsigned`` or ``enum('a','b')``.
        not_null: it cannot be NULL.
        charset: CHARACTER_SET_NAME; None of what is no text.
        collation: COLLATION_NAME; None of what is no text.
        generated: computed by the server, stored or virtual.
        invisible: left out of ``SELECT *``; events have it.
        key_position: place in the key, counted from 1, else None.
        default: the default as the connector has it, see `column_defaults`; None without one.
    """

    name: str
    column_type: str
    not_null: bool = False
    charset: str | None = None
    collation: str | None = None
    generated: bool = False
    invisible: bool = False
    key_position: int | None = None
    default: str | None = None

    @property
    def kind(self) -> "ColumnType":
        """The parts of its type."""
        return parsed(self.column_type)


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The parts of a type as the server writes it.

    Attributes:
        base: its name, such as ``int`` or ``varchar``.
        numbers: in brackets: width, length, digits, or precision and scale.
        labels: of an enum or a set, in their order.
        unsigned: whether it has no sign.
        zerofill: whether it is filled up with zeros where it is shown.
    """

    base: str
    numbers: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    unsigned: bool = False
    zerofill: bool = False

    @property
    def source_type(self) -> str:
        """The type as Debezium names it, in lower case; see `Column.source_type`."""
        if self.base == "decimal":
            return f"decimal({self.numbers[0]})"
        return self.base + " unsigned" * self.unsigned + " zerofill" * self.zerofill

    @property
    def digits(self) -> int:
        """Digits of a second's fraction."""
        return self.numbers[0] if self.numbers else 0


# A comment behind it is MariaDB's: COMPRESSED, or the old form of times.
_TYPE: Final = re.compile(
    r"(?P<base>[a-z][a-z0-9_ ]*?)\s*(?:\((?P<inside>(?:'(?:[^']|'')*'|[^)'])*)\))?"
    r"(?P<unsigned>\s+unsigned)?(?P<zerofill>\s+zerofill)?\s*(?:/\*.*\*/\s*)?",
    re.IGNORECASE | re.DOTALL,
)
_LABEL: Final = re.compile(r"'((?:[^']|'')*)'")
_ESCAPED: Final = re.compile(r"''|\\(.)", re.DOTALL)
_CONTROLS: Final = {"n": "\n", "r": "\r", "0": "\0"}


@lru_cache(maxsize=4096)
def parsed(column_type: str) -> ColumnType:
    """Return the parts of a type.

    Raises:
        ValueError: no server writes a type so.
    """
    match = _TYPE.fullmatch(column_type)
    if match is None:
        raise ValueError("type")
    base, inside = match["base"].lower(), match["inside"] or ""
    if base in ("enum", "set"):
        labels = (_ESCAPED.sub(_plain, label) for label in _LABEL.findall(inside))
        return ColumnType(base, labels=tuple(labels))
    numbers = tuple(int(number) for number in inside.split(",") if number)
    unsigned, zerofill = bool(match["unsigned"]), bool(match["zerofill"])
    return ColumnType(base, numbers, unsigned=unsigned, zerofill=zerofill)


def _plain(escape: re.Match[str]) -> str:
    return "'" if escape[0] == "''" else _CONTROLS.get(escape[1], escape[1])


Field = dict[str, Any]

_FIXED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), "string"),
    "tinyint": "int16",
    "double": "double",
}
_SIGNED: Final = {"smallint": "int16", "mediumint": "int32", "int": "int32", "bigint": "int64"}
_UNSIGNED: Final = {"smallint": "int32", "mediumint": "int32", "int": "int64"}
_BINARY: Final = frozenset(
    {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"},
)
_SRID: Final[Field] = {"type": "int32", "optional": True, "field": "srid"}
_POINT: Final[list[Field]] = [
    {"type": "double", "optional": False, "field": "x"},
    {"type": "double", "optional": False, "field": "y"},
    {"type": "bytes", "optional": True, "field": "wkb"},
    _SRID,
]
_GEOMETRY: Final[list[Field]] = [{"type": "bytes", "optional": False, "field": "wkb"}, _SRID]
_GEOMETRIES: Final = frozenset(
    {
        *("geometry", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
        *("geometrycollection", "geomcollection"),
    }
)
_VECTOR: Final[Field] = {
    "type": "array",
    "items": {"type": "float", "optional": False},
    "name": "io.debezium.data.FloatVector",
    "version": 1,
}


def connect_field(column: CatalogColumn, modes: HandlingModes, *, table: str = "") -> Field | None:
    """The field of the row's Connect schema, or None if the connector cannot read the type.

    Args:
        column: as the catalog has it.
        modes: the connector's settings.
        table: ``database.table``, for settings that choose columns.
    """
    kind = column.kind
    if _becomes_boolean(column, modes, table):
        schema: Field | None = {"type": "boolean"}
    else:
        schema = _field(kind, modes)
    if schema is None:
        return None
    field = {**schema, "optional": not column.not_null, "field": column.name}
    default = None if column.default is None else default_of(column.default, kind.base, field)
    return field if default is None else {**field, "default": default}


def _field(kind: ColumnType, modes: HandlingModes) -> Field | None:
    base = kind.base
    if base in _FIXED:
        return {"type": _FIXED[base]}
    if base in _BINARY:
        return {"type": "bytes" if modes.binary == "bytes" else "string"}
    if base in _GEOMETRIES:
        return {**_named("struct", _GEO + "Geometry"), "fields": _GEOMETRY}
    if base in _TEMPORAL:
        return _temporal(kind, modes)
    make = _BY_TYPE.get(base)
    return make(kind, modes) if make else None


def _named(wire: str, name: str) -> Field:
    return {"type": wire, "name": name, "version": 1}


def _whole(kind: ColumnType, modes: HandlingModes) -> Field:
    if not kind.unsigned:
        return {"type": _SIGNED[kind.base]}
    if kind.base != "bigint":
        return {"type": _UNSIGNED[kind.base]}
    if modes.setting("bigint.unsigned.handling.mode") == "precise":
        return _decimal(20, 0)
    return {"type": "int64"}


def _decimal(precision: int, scale: int) -> Field:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return {**_named("bytes", DECIMAL), "parameters": parameters}


def _by_decimal_mode(kind: ColumnType, modes: HandlingModes) -> Field:
    if modes.decimal == "precise":
        precision, *scale = kind.numbers
        return _decimal(precision, *(scale or [0]))
    return {"type": "double" if modes.decimal == "double" else "string"}


def _float(kind: ColumnType, _: HandlingModes) -> Field:
    return {"type": "double" if len(kind.numbers) > 1 else "float"}  # float(7,2)


def _bits(kind: ColumnType, _: HandlingModes) -> Field:
    length = kind.numbers[0] if kind.numbers else 1
    if length == 1:
        return {"type": "boolean"}
    return {**_named("bytes", BITS), "parameters": {"length": str(length)}}


def _labelled(name: str) -> Callable[[ColumnType, HandlingModes], Field]:
    return lambda kind, _: {
        **_named("string", name),
        "parameters": {"allowed": ",".join(kind.labels)},
    }


_GEO: Final = "io.debezium.data.geometry."
_BY_TYPE: Final[Mapping[str, Callable[[ColumnType, HandlingModes], Field]]] = {
    **dict.fromkeys(_SIGNED, _whole),
    "decimal": _by_decimal_mode,
    "float": _float,
    "bit": _bits,
    "enum": _labelled(ENUM),
    "set": _labelled("io.debezium.data.EnumSet"),
    "json": lambda *_: _named("string", JSON),
    "uuid": lambda *_: _named("string", UUID),
    "point": lambda *_: {**_named("struct", _GEO + "Point"), "fields": _POINT},
    "vector": lambda *_: dict(_VECTOR),
}
_TIME: Final = "io.debezium.time."
_CONNECT: Final = "org.apache.kafka.connect.data."
# time.precision.mode -> (date, time, datetime) where the digits do not matter.
_BY_PRECISION: Final[Mapping[str, tuple[Field, Field, Field]]] = {
    "connect": (
        _named("int32", _CONNECT + "Date"),
        _named("int32", _CONNECT + "Time"),
        _named("int64", _CONNECT + "Timestamp"),
    ),
    "isostring": (
        _named("string", _TIME + "IsoDate"),
        _named("string", _TIME + "IsoTime"),
        _named("string", _TIME + "IsoTimestamp"),
    ),
    "microseconds": (
        _named("int32", _TIME + "Date"),
        _named("int64", _TIME + "MicroTime"),
        _named("int64", _TIME + "MicroTimestamp"),
    ),
    "nanoseconds": (
        _named("int32", _TIME + "Date"),
        _named("int64", _TIME + "NanoTime"),
        _named("int64", _TIME + "NanoTimestamp"),
    ),
}
_TEMPORAL: Final = ("date", "time", "datetime", "timestamp", "year")
_WITH_DIGITS: Final = ("time", "datetime", "timestamp")
_MILLIS: Final = 3  # digits of a fraction that the millisecond forms hold


def _temporal(kind: ColumnType, modes: HandlingModes) -> Field:
    if kind.base == "year":
        return _named("int32", YEAR)
    if kind.base == "timestamp":
        return _named("string", ZONED)
    if modes.time_precision in _BY_PRECISION:
        return _BY_PRECISION[modes.time_precision][_TEMPORAL.index(kind.base)]
    usual = _BY_PRECISION["microseconds"][_TEMPORAL.index(kind.base)]
    short = kind.base == "datetime" and kind.digits <= _MILLIS
    return _named("int64", _TIME + "Timestamp") if short else usual


# -- columns that a converter of the connector makes true or false --------------------------------

_TO_BOOLEAN: Final = frozenset(
    f"io.debezium.connector.{package}.converters.TinyIntOneToBooleanConverter"
    for package in ("binlog", "mysql")
)


@dataclass(frozen=True, slots=True)
class _BooleanColumns:
    """The choice of one TinyIntOneToBooleanConverter.

    Attributes:
        of_length_one: only ``tinyint(1)``.
        selector: expressions, of which one must match ``database.table.column``; none for all.
    """

    of_length_one: bool
    selector: tuple[JavaPattern, ...]


def _becomes_boolean(column: CatalogColumn, modes: HandlingModes, table: str) -> bool:
    kind = column.kind
    if kind.base != "tinyint" or kind.zerofill:
        return False
    name = f"{table}.{column.name}"
    return any(
        (kind.numbers == (1,) or not choice.of_length_one)
        and (not choice.selector or any(regex.matches(name) for regex in choice.selector))
        for choice in _boolean_columns(modes)
    )


@lru_cache(maxsize=16)
def _boolean_columns(modes: HandlingModes) -> tuple[_BooleanColumns, ...]:
    own = dict(modes.own)
    return tuple(
        _BooleanColumns(
            own.get(f"{name}.length.checker", "true").strip().lower() == "true",
            tuple(
                compile_java(regex, ignore_case=True)
                for regex in split_list(own.get(f"{name}.selector", ""))
            ),
        )
        for name in split_list(own.get("converters", ""))
        if own.get(f"{name}.type", "").strip() in _TO_BOOLEAN
    )


# -- tables ---------------------------------------------------------------------------------------


def tables_of(rows: Iterable[Sequence[Any]], *, mariadb: bool) -> dict[str, list[CatalogColumn]]:
    """Return the columns of tables, in their order, by the tables' texts.

    The key is the primary key, else the unique index that the server takes for it, as the connector
    does: the first one of all its columns NOT NULL. It is the one whose columns the server says to
    be those of a primary key.

    Args:
        rows: of `CATALOG_SQL`.
        mariadb: whether they are MariaDB's; else they are MySQL's.
    """
    columns: dict[str, list[CatalogColumn]] = {}
    places: dict[str, dict[str, dict[str, int]]] = {}
    for database, table, *about, is_of_key, indexes in rows:
        name, column_type, not_null, charset, collation, *more = about
        generated, invisible, default, computed = more
        text = text_of(database, table)
        columns.setdefault(text, []).append(
            CatalogColumn(
                name,
                column_type,
                bool(not_null),
                charset,
                collation,
                generated=bool(generated),
                invisible=bool(invisible),
                default=None
                if generated
                else literal_of(default, computed=bool(computed), mariadb=mariadb),
            )
        )
        if is_of_key:
            found = msgspec.json.decode(indexes or b"{}", type=dict[str, int])
            places.setdefault(text, {})[name] = found
    return {
        text: _keyed(found, _chosen(places[text])) if text in places else found
        for text, found in columns.items()
    }


def _chosen(places: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the places of the key's columns in it.

    Args:
        places: by column of the key its place in each unique index, by the index's name.
    """
    inner = set.intersection(*(set(indexes) for indexes in places.values()))
    whole = [name for name in inner if {p[name] for p in places.values()} == _first(len(places))]
    name = min(whole, key=lambda name: (name != "PRIMARY", name), default="")
    return {column: indexes[name] for column, indexes in places.items()} if name else {}


def _first(count: int) -> set[int]:
    return set(range(1, count + 1))


def _keyed(columns: list[CatalogColumn], places: Mapping[str, int]) -> list[CatalogColumn]:
    return [replace(c, key_position=places.get(c.name)) for c in columns]


def key_of(columns: Iterable[CatalogColumn]) -> list[str]:
    """Return the names of the key's columns, in key order; none without a key."""
    keyed = [(c.key_position, c.name) for c in columns if c.key_position is not None]
    return [name for _, name in sorted(keyed)]


def from_catalog(
    table: str,
    columns: Sequence[CatalogColumn],
    key: Sequence[str],
    modes: HandlingModes,
    *,
    connector: str,
) -> TableSchema:
    """The schema that `from_envelope` gives for the same table and connector settings.

    It has more where records do not name the columns' types: a ``bigint unsigned`` is one.

    Args:
        table: ``database.table``.
        columns: the table's columns in their order, as `CATALOG_SQL` gives them.
        key: names of the key columns in key order, see `key_of`.
        modes: the connector's settings.
        connector: ``mysql`` or ``mariadb``.

    Columns of types that the connector cannot read are left out; it stops at such a table.

    Raises:
        TableError: ``schema-unreadable``: the columns are none that a catalog has.
    """
    with readable(f"what the catalog says of {table}", "please report it with the table's columns"):
        described = [(c, field) for c in columns if (field := _described(c, modes, table))]
        schema = from_connect(
            table,
            {"type": "struct", "fields": [field for _, field in described]},
            {"type": "struct", "fields": [{"field": name} for name in key]},
            connector=connector,
        )
        catalog = {c.name: c for c, _ in described}
        noted = tuple(replace(c, modifier=_digits(catalog[c.name])) for c in schema.columns)
    return TableSchema(table, noted, schema.key)


def _described(column: CatalogColumn, modes: HandlingModes, table: str) -> Field | None:
    """The field of a column, with its type as ``column.propagate.source.type`` would name it."""
    field = connect_field(column, modes, table=table)
    if field is None:
        return None
    named = {"__debezium.source.column.type": column.kind.source_type}
    return {**field, "parameters": {**field.get("parameters", {}), **named}}


def _digits(column: CatalogColumn) -> int | None:
    kind = column.kind
    return kind.digits if kind.base in _WITH_DIGITS else None
