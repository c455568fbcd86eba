"""PostgreSQL's catalog in Debezium's words: the Connect schema that a column is sent with.

`POSTGRES_CATALOG_SQL` reads the facts, `connect_field` makes the field as Debezium's
PostgresValueConverter and the JSON converter would, or tells that Debezium leaves the column out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from lakemark.connectors.postgres.column_defaults import default_of
from lakemark.model.columns import USUAL_DIGITS
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema, from_connect, readable

_WITH_FRACTION: Final = ("time", "timetz", "timestamp", "timestamptz")
_INTERVAL_DIGITS: Final = 0xFFFF  # bits of an interval's typmod; all of them for none given
_UNLIMITED: Final = 2147483647  # length that Debezium gives a varbit without one

# Parameters: %(schemas)s and %(tables)s, two text[] of equal length that pair up.
# One row a column, by table and attnum, members as in `CatalogColumn` after (schema, table).
# The key is the primary key, else (as Debezium chooses) the first unique index without expressions.
# With its table's oid `pg_get_expr` would wait for whoever has locked the table: a default, which
# names no column, does not need it.
POSTGRES_CATALOG_SQL: Final = """
WITH RECURSIVE wanted AS (
    SELECT c.oid, n.nspname, c.relname
    FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS w(nspname, relname)
    JOIN pg_catalog.pg_namespace n ON n.nspname = w.nspname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname
    WHERE c.relkind IN ('r', 'p')
), base AS (
    SELECT a.attrelid, a.attnum, t.oid AS typid, t.typtype, t.typbasetype,
           CASE WHEN a.atttypmod >= 0 THEN a.atttypmod ELSE t.typtypmod END AS typmod
    FROM pg_catalog.pg_attribute a
    JOIN wanted w ON w.oid = a.attrelid
    JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attrelid, b.attnum, t.oid, t.typtype, t.typbasetype,
           CASE WHEN b.typmod >= 0 THEN b.typmod ELSE t.typtypmod END
    FROM base b
    JOIN pg_catalog.pg_type t ON t.oid = b.typbasetype
    WHERE b.typtype = 'd'
), keys AS (
    SELECT DISTINCT ON (i.indrelid) i.indrelid, i.indkey::int2[] AS columns, i.indnkeyatts
    FROM pg_catalog.pg_index i
    JOIN wanted w ON w.oid = i.indrelid
    JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
    WHERE i.indisunique AND i.indisvalid AND NOT 0 = ANY (i.indkey::int2[])
    ORDER BY i.indrelid, i.indisprimary DESC, i.indisclustered DESC, ic.relname
)
SELECT w.nspname::text, w.relname::text,
       a.attname::text AS name,
       CASE WHEN t.typtype IN ('b', 'e') OR t.typnamespace = 'pg_catalog'::regnamespace
            THEN t.typname::text
            ELSE t.typnamespace::regnamespace::text || '.' || t.typname END AS type_name,
       b.typmod AS typmod,
       a.attnotnull AS not_null,
       t.typtype = 'e' AS is_enum,
       CASE WHEN e.typtype IN ('b', 'e', 'd') OR e.typnamespace = 'pg_catalog'::regnamespace
            THEN e.typname::text
            ELSE e.typnamespace::regnamespace::text || '.' || e.typname END AS element_type_name,
       COALESCE(e.typtype = 'e', false) AS element_is_enum,
       COALESCE(e.typtype = 'd', false) AS element_is_domain,
       a.attgenerated <> '' AS generated,
       (SELECT p.place FROM unnest(k.columns) WITH ORDINALITY AS p(attnum, place)
         WHERE p.attnum = a.attnum AND p.place <= k.indnkeyatts)::int AS key_position,
       a.attndims::int AS dimensions,
       CASE WHEN a.atttypid = t.oid AND a.attgenerated = ''
            THEN pg_catalog.pg_get_expr(d.adbin, 0) END AS default_expression,
       (SELECT string_agg(l.enumlabel, ',' ORDER BY l.enumsortorder) FROM pg_catalog.pg_enum l
         WHERE l.enumtypid IN (t.oid, e.oid)) AS labels
FROM wanted w
JOIN pg_catalog.pg_attribute a ON a.attrelid = w.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN base b ON b.attrelid = a.attrelid AND b.attnum = a.attnum AND b.typtype <> 'd'
JOIN pg_catalog.pg_type t ON t.oid = b.typid
LEFT JOIN pg_catalog.pg_type e
       ON e.oid = t.typelem AND t.typcategory = 'A' AND t.typelem <> 0
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN keys k ON k.indrelid = w.oid
ORDER BY w.nspname, w.relname, a.attnum
"""


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """One column as PostgreSQL's catalog describes it; domains are resolved through all levels.

    Attributes:
        name: attname.
        type_name: typname of the base type, such as ``int4``, ``numeric``, ``_text``; of a user's
            structure or range, which may be called like another type, its full name.
        typmod: atttypmod, or the domain's; -1 for none.
        not_null: attnotnull.
        is_enum: the base type is an enum.
        element_type_name: typname of an array's element, else None.
        element_is_enum: the array's element is an enum.
        element_is_domain: the array's element is a domain (Debezium leaves such columns out).
        generated: computed by the database; the log does not carry it before PostgreSQL 18.
        key_position: place in the key, counted from 1, else None.
        dimensions: with which an array was declared, 0 of others. The database holds nobody to it.
        default: the expression of its default; None without one, of a domain and where generated.
        labels: of its enum, or of its elements' one, joined by commas; None of other types.
    """

    name: str
    type_name: str
    typmod: int = -1
    not_null: bool = False
    is_enum: bool = False
    element_type_name: str | None = None
    element_is_enum: bool = False
    element_is_domain: bool = False
    generated: bool = False
    key_position: int | None = None
    dimensions: int = 0
    default: str | None = None
    labels: str | None = None


Field = dict[str, Any]

_TEXT: Final = (
    *("bpchar", "varchar", "text", "citext", "name", "char", "isbn"),
    *("inet", "cidr", "macaddr", "macaddr8"),
    *("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"),
)
_PLAIN: Final[Mapping[str, str]] = {
    "bool": "boolean",
    "int2": "int16",
    "int4": "int32",
    "int8": "int64",
    "oid": "int64",
    "float4": "float",
    "float8": "double",
} | dict.fromkeys(_TEXT, "string")
_DATA: Final[Mapping[str, str]] = {
    "json": "Json",
    "jsonb": "Json",
    "xml": "Xml",
    "uuid": "Uuid",
    "ltree": "Ltree",
    "tsvector": "Tsvector",
}
_SRID: Final[Field] = {"type": "int32", "optional": True, "field": "srid"}
_WKB: Final[Field] = {"type": "bytes", "optional": False, "field": "wkb"}
_POINT: Final[list[Field]] = [
    {"type": "double", "optional": False, "field": "x"},
    {"type": "double", "optional": False, "field": "y"},
    {"type": "bytes", "optional": True, "field": "wkb"},
    _SRID,
]
_EXTENSIONS: Final[Field] = {
    "type": "map",
    "keys": {"type": "string", "optional": False},
    "values": {"type": "string", "optional": False},
    "optional": True,
    "field": "extensions",
}
_GEOMETRY: Final[list[Field]] = [_WKB, _SRID, _EXTENSIONS]
_GEO: Final = "io.debezium.data.geometry."
_SHAPES: Final[Mapping[str, tuple[str, list[Field]]]] = {
    "point": ("Point", _POINT),
    **dict.fromkeys(("box", "lseg", "path", "polygon", "geometry"), ("Geometry", _GEOMETRY)),
    "geography": ("Geography", _GEOMETRY),
    "circle": (
        "Circle",
        [
            {"type": "struct", "fields": _POINT, "name": _GEO + "Point", "field": "center"},
            {"type": "double", "optional": False, "field": "radius"},
        ],
    ),
    "line": ("Line", [{"type": "double", "optional": False, "field": f} for f in "abc"]),
}
_VECTORS: Final[Mapping[str, Field]] = {
    "vector": {
        "type": "array",
        "items": {"type": "double", "optional": False},
        "name": "io.debezium.data.DoubleVector",
    },
    "halfvec": {
        "type": "array",
        "items": {"type": "float", "optional": False},
        "name": "io.debezium.data.FloatVector",
    },
    "sparsevec": {
        "type": "struct",
        "name": "io.debezium.data.SparseDoubleVector",
        "fields": [
            {"type": "int16", "optional": False, "field": "dimensions"},
            {
                "type": "map",
                "keys": {"type": "int16", "optional": False},
                "values": {"type": "double", "optional": False},
                "optional": False,
                "field": "vector",
            },
        ],
    },
}
# Elements whose array Debezium cannot write; their columns are left out of events.
_NO_ARRAY: Final = frozenset({"money", "name", "interval", "varbit", "xml", "point", "refcursor"})
# Elements whose schema Debezium leaves required.
_REQUIRED_ELEMENTS: Final = frozenset({"tsvector", "isbn", "vector", "halfvec", "sparsevec"})


def connect_field(column: CatalogColumn, modes: HandlingModes) -> Field | None:
    """The field of the row's Connect schema, or None if Debezium leaves the column out."""
    if column.element_type_name is not None:
        schema = _array(column, modes)
    else:
        schema = _scalar(column.type_name, column.typmod, modes, labels=_labels(column))
        if schema is None and modes.include_unknown:
            schema = _binary(modes)
    if schema is None:
        return None
    field = {**schema, "optional": not column.not_null, "field": column.name}
    default = _default(column, field)
    return field if default is None else {**field, "default": default}


def _default(column: CatalogColumn, field: Field) -> Any:
    if column.default is None or column.element_type_name is not None:
        return None
    digits = column.typmod if column.typmod >= 0 else None
    return default_of(
        column.default, column.type_name, field, is_enum=column.is_enum, digits=digits
    )


def _array(column: CatalogColumn, modes: HandlingModes) -> Field | None:
    element = str(column.element_type_name)
    if element in _NO_ARRAY:
        return None
    if element == "bit":  # Debezium gives bit(n)[] the schema of bit(n)
        return _bits(column.typmod)
    items: Field | None = None
    if not column.element_is_domain:
        items = _scalar(element, column.typmod, modes, labels=_labels(column))
    if items is not None:
        required = column.element_is_enum or element in _REQUIRED_ELEMENTS
        return {"type": "array", "items": {**items, "optional": not required}}
    if modes.include_unknown:
        return {"type": "array", "items": _binary(modes)}
    return None


def _labels(column: CatalogColumn) -> str | None:
    """Return the labels of a column's enum; None of another type."""
    return column.labels or "" if column.is_enum or column.element_is_enum else None


def _scalar(name: str, typmod: int, modes: HandlingModes, *, labels: str | None) -> Field | None:
    if labels is not None:
        named = _named("string", "io.debezium.data.Enum")
        return {**named, "parameters": {"allowed": labels}} if labels else named
    fixed = _fixed(name)
    if fixed is not None:
        return fixed
    make = _BY_MODE.get(name)
    return make(typmod, modes) if make else _temporal(name, typmod, modes)


def _fixed(name: str) -> Field | None:
    """Return the field of a type that is sent alike in every mode; None for another type."""
    if name in _PLAIN:
        return {"type": _PLAIN[name]}
    if name in _DATA:
        return _named("string", "io.debezium.data." + _DATA[name])
    if name in _SHAPES:
        shape, members = _SHAPES[name]
        return {**_named("struct", _GEO + shape), "fields": members}
    return dict(_VECTORS[name]) if name in _VECTORS else None


def _named(wire: str, name: str) -> Field:
    return {"type": wire, "name": name, "version": 1}


def _bits(typmod: int) -> Field:
    length = typmod if typmod > 0 else _UNLIMITED
    if length == 1:
        return {"type": "boolean"}
    return {**_named("bytes", "io.debezium.data.Bits"), "parameters": {"length": str(length)}}


def _binary(modes: HandlingModes) -> Field:
    return {"type": "bytes" if modes.binary == "bytes" else "string", "optional": False}


def type_of(column: CatalogColumn) -> str:
    """Return a column's `Column.source_type`."""
    if column.type_name == "numeric" and column.typmod >= 0:
        return f"numeric({_scale_and_precision(column.typmod)[1]})"
    return column.type_name


def _scale_and_precision(typmod: int) -> tuple[int, int]:
    # The scale has 11 bits. The JDBC driver reads them unsigned, so numeric(5,-2) has scale 2046.
    return (typmod - 4) & 0x7FF, ((typmod - 4) >> 16) & 0xFFFF


def _numeric(typmod: int, modes: HandlingModes) -> Field:
    if typmod < 0 and modes.decimal == "precise":
        members: list[Field] = [
            {"type": "int32", "optional": False, "field": "scale"},
            {"type": "bytes", "optional": False, "field": "value"},
        ]
        return {**_named("struct", "io.debezium.data.VariableScaleDecimal"), "fields": members}
    scale, precision = _scale_and_precision(typmod)
    return _decimal(modes, {"scale": str(scale), "connect.decimal.precision": str(precision)})


def _decimal(modes: HandlingModes, parameters: dict[str, str]) -> Field:
    if modes.decimal == "precise":
        named = _named("bytes", "org.apache.kafka.connect.data.Decimal")
        return {**named, "parameters": parameters}
    return {"type": "double" if modes.decimal == "double" else "string"}


def _hstore(modes: HandlingModes) -> Field:
    if modes.hstore == "json":
        return _named("string", "io.debezium.data.Json")
    keys, values = {"type": "string", "optional": False}, {"type": "string", "optional": True}
    return {"type": "map", "keys": keys, "values": values}


def _money(_: int, modes: HandlingModes) -> Field:
    return _decimal(modes, {"scale": str(modes.money_fraction_digits)})


_BY_MODE: Final[Mapping[str, Callable[[int, HandlingModes], Field]]] = {
    "bit": lambda typmod, _: _bits(typmod),
    "varbit": lambda typmod, _: _bits(typmod),
    "numeric": _numeric,
    "money": _money,
    "bytea": lambda _, modes: _binary(modes),
    "hstore": lambda _, modes: _hstore(modes),
}
_TIME: Final = "io.debezium.time."
_CONNECT: Final = "org.apache.kafka.connect.data."
# time.precision.mode -> (date, time, timestamp) where the precision does not matter.
_FIXED: Final[Mapping[str, tuple[Field, Field, Field]]] = {
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
# The structured forms' members are not needed: their canonical type hangs on the name alone.
_STRUCTURED: Final[Mapping[str, str]] = {
    "date": "StructuredDate",
    "time": "StructuredTime",
    "timestamp": "StructuredTimestamp",
    "timetz": "StructuredZonedTime",
    "timestamptz": "StructuredZonedTimestamp",
    "interval": "StructuredDuration",
}
_MILLIS: Final = 3  # digits of a fraction that the millisecond forms hold


def _temporal(name: str, typmod: int, modes: HandlingModes) -> Field | None:
    if name not in _STRUCTURED:
        return None
    if modes.time_precision == "structured":
        return {**_named("struct", _TIME + _STRUCTURED[name]), "fields": []}
    if name in _ZONED:
        return _named("string", _TIME + _ZONED[name])
    if name == "interval":
        text = modes.interval == "string"
        return _named("string", _TIME + "Interval") if text else _MICRO_DURATION
    if modes.time_precision in _FIXED:
        return _FIXED[modes.time_precision][("date", "time", "timestamp").index(name)]
    return _adaptive(name, typmod, modes)


_ZONED: Final = {"timetz": "ZonedTime", "timestamptz": "ZonedTimestamp"}
_MICRO_DURATION: Final = _named("int64", _TIME + "MicroDuration")


def _adaptive(name: str, typmod: int, modes: HandlingModes) -> Field:
    if name == "date":
        return _named("int32", _TIME + "Date")
    short = 0 <= typmod <= _MILLIS
    if name == "timestamp":
        return _named("int64", _TIME + ("Timestamp" if short else "MicroTimestamp"))
    if short and modes.time_precision == "adaptive":
        return _named("int32", _TIME + "Time")
    return _named("int64", _TIME + "MicroTime")


def modifiers(catalog: Iterable[CatalogColumn]) -> dict[str, int]:
    """Return `Column.modifier` of each column with times or char(n), or arrays of these."""
    by_column = {}
    for column in catalog:
        kind, modifier = column.element_type_name or column.type_name, column.typmod
        if kind == "interval":
            modifier = -1 if modifier < 0 else modifier & _INTERVAL_DIGITS
            by_column[column.name] = modifier if 0 <= modifier <= USUAL_DIGITS else USUAL_DIGITS
        elif kind in _WITH_FRACTION:
            by_column[column.name] = modifier if modifier >= 0 else USUAL_DIGITS
        elif kind == "bpchar" and modifier >= 0:
            by_column[column.name] = modifier - 4
    return by_column


def from_catalog(
    table: str, rows: Sequence[CatalogColumn], key: Sequence[str], modes: HandlingModes
) -> TableSchema:
    """The schema that `from_connect` would give for the same table and connector settings.

    Args:
        table: ``schema.table``.
        rows: the table's columns in attnum order, as `POSTGRES_CATALOG_SQL` gives them.
        key: names of the key columns in key order.
        modes: the connector's settings.

    Columns that the connector leaves out of its events (types it cannot write) are left out.

    Raises:
        TableError: ``schema-unreadable``: the rows are none that a catalog has.
    """
    with readable(f"what the catalog says of {table}", "please report it with the table's columns"):
        pairs = [(row, field) for row in rows if (field := connect_field(row, modes)) is not None]
        by_column = modifiers(row for row, _ in pairs)
        schema = from_connect(
            table,
            {"type": "struct", "fields": [field for _, field in pairs]},
            {"type": "struct", "fields": [{"field": name} for name in key]},
        )
    types = {row.name: type_of(row) for row, _ in pairs}
    columns = tuple(
        replace(
            c,
            padded=types[c.name] == "bpchar",
            modifier=by_column.get(c.name),
            source_type=types[c.name],
        )
        for c in schema.columns
    )
    return TableSchema(table, columns, schema.key)
