"""The Connect schemas of records that bring none, as their connector's would have them.

Of the row they are those of the table's columns. Of the source block and the envelope the connector
always has the same types; which fields there are, and in which order, an event of it shows.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from lakemark.model.columns import VARIABLE_DECIMAL, Column
from lakemark.model.events import Learnt
from lakemark.model.schema import TableSchema
from lakemark.settings.table_id import pair_of

Schema = dict[str, Any]
_Event: Final = msgspec.json.Decoder(dict[str, Any])

_SNAPSHOT: Final = {
    "name": "io.debezium.data.Enum",
    "version": 1,
    "parameters": {
        "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,"
        "incremental"
    },
    "default": "false",
}
_WHOLE: Final = frozenset(
    {"ts_ms", "ts_us", "ts_ns", "txId", "lsn", "xmin", "origin_lsn", "server_id", "pos", "thread"}
)
"""Fields of source blocks that are numbers of 64 bits."""
_NARROW: Final = frozenset({"row"})
_NEEDED: Final = frozenset(
    {"version", "connector", "name", "ts_ms", "db", "schema", "server_id", "file", "pos", "row"}
)
"""Fields of source blocks that are never null; neither is a table that has a schema."""
_TIME: Final = "io.debezium.time.Structured"
_DAY: Final = {"year": "int32", "month": "int8", "day": "int8"}
_CLOCK: Final = {"hour": "int8", "minute": "int8", "second": "int8", "nanos": "int32"}
_SPECIAL: Final = {"specialValue": "string"}
_PRECISION: Final = {"precision": "int32"}
_STRUCTURED: Final[Mapping[str, Mapping[str, str]]] = {
    f"{_TIME}Date": _DAY | _SPECIAL,
    f"{_TIME}Time": _CLOCK | _PRECISION,
    f"{_TIME}ZonedTime": _CLOCK | {"offsetSeconds": "int32"} | _PRECISION,
    f"{_TIME}Timestamp": _DAY | _CLOCK | _SPECIAL | _PRECISION,
    f"{_TIME}ZonedTimestamp": (
        _DAY | _CLOCK | {"offsetSeconds": "int32", "zoneId": "string"} | _SPECIAL | _PRECISION
    ),
    f"{_TIME}Duration": {
        **dict.fromkeys(("years", "months", "days", "hours", "minutes"), "int32"),
        "seconds": "int64",
        "nanos": "int32",
        "precision": "int32",
    },
}
"""Members of Debezium's structured times and their types; all of them may be null."""
_MEMBERS: Final[Mapping[str, list[Schema]]] = {
    VARIABLE_DECIMAL: [
        {"type": "int32", "optional": False, "field": "scale"},
        {"type": "bytes", "optional": False, "field": "value"},
    ],
    **{
        name: [{"type": kind, "optional": True, "field": member} for member, kind in told.items()]
        for name, told in _STRUCTURED.items()
    },
}
"""Members of the structs that are one value of a column, and so are not known to the column."""
_GEO: Final = "io.debezium.data.geometry."
_DOCS: Final[Mapping[str, str]] = {
    VARIABLE_DECIMAL: "Variable scaled decimal",
    f"{_GEO}Geometry": "Geometry",
    f"{_GEO}Geography": "Geography",
    **{f"{_GEO}{shape.title()}": f"Geometry ({shape})" for shape in ("POINT", "CIRCLE", "LINE")},
}
"""The descriptions that Debezium gives structs."""
_BLOCK: Final = {
    "type": "struct",
    "fields": [
        {"type": "string", "optional": False, "field": "id"},
        {"type": "int64", "optional": False, "field": "total_order"},
        {"type": "int64", "optional": False, "field": "data_collection_order"},
    ],
    "optional": True,
    "name": "event.block",
    "version": 1,
}


def described(table: TableSchema, learnt: Learnt) -> Learnt:
    """See `Converter.described`."""
    if not learnt.event:
        return learnt
    of_key, of_value = learnt.tables.get(table.table, (b"", b""))
    of_key = of_key or msgspec.json.encode(key_schema(table, learnt.event))
    of_value = of_value or msgspec.json.encode(value_schema(table, learnt.event))
    return Learnt(learnt.event, {**learnt.tables, table.table: (of_key, of_value)})


def key_schema(table: TableSchema, event: bytes) -> Schema:
    """Return the schema of a table's keys.

    Args:
        table: columns and key.
        event: see `value_schema`.
    """
    topic = _topic(table, _Event.decode(event)["source"])
    fields = [_field(table.column(name)) for name in table.key]
    return {"type": "struct", "fields": fields, "optional": False, "name": f"{topic}.Key"}


def value_schema(table: TableSchema, event: bytes) -> Schema:
    """Return the schema of a table's events.

    Args:
        table: its columns.
        event: any event of the connector, without its images, see `envelopes.sample`.
    """
    envelope = _Event.decode(event)
    topic = _topic(table, envelope["source"])
    row = {"type": "struct", "fields": [*map(_field, table.columns)], "optional": True}
    images = {"before": row, "after": row}
    members: dict[str, Schema] = {
        **{name: {**image, "name": f"{topic}.Value"} for name, image in images.items()},
        "source": _source(envelope["source"]),
        "transaction": _BLOCK,
        "op": {"type": "string", "optional": False},
        **{f"ts_{unit}": {"type": "int64", "optional": True} for unit in ("ms", "us", "ns")},
    }
    fields = [{**members[name], "field": name} for name in envelope if name in members]
    return {
        "type": "struct",
        "fields": fields,
        "optional": False,
        "name": f"{topic}.Envelope",
        "version": 2,
    }


def _topic(table: TableSchema, block: Mapping[str, Any]) -> str:
    """Return the topic of a table as its connector calls it, whatever a router makes of it."""
    return ".".join((block["name"], *pair_of(table.table)))


def _source(block: Mapping[str, Any]) -> Schema:
    return {
        "type": "struct",
        "fields": [*_of_source(block)],
        "optional": False,
        "name": f"io.debezium.connector.{block['connector']}.Source",
        "version": 1,
    }


def _of_source(block: Mapping[str, Any]) -> Iterator[Schema]:
    for name in block:
        kind = "int64" if name in _WHOLE else "int32" if name in _NARROW else "string"
        more = _SNAPSHOT if name == "snapshot" else {}
        table = name == "table" and "schema" in block
        yield {
            "type": kind,
            "optional": not table and name not in _NEEDED,
            **more,
            "field": name,
        }


def _field(column: Column) -> Schema:
    return {**_of(column), "field": column.name}


def _of(column: Column) -> Schema:
    """Return a column's schema."""
    out: Schema = {"type": column.wire, "optional": column.optional}
    if column.wire == "struct":
        out["fields"] = _MEMBERS.get(column.encoding) or [*map(_field, column.members)]
    if column.element is not None and column.wire == "map":
        out |= {"keys": {"type": "string", "optional": False}, "values": _of(column.element)}
    elif column.element is not None:
        out["items"] = _of(column.element)
    if column.encoding:
        out |= {"name": column.encoding, "version": _version(column)}
    if column.encoding in _DOCS:
        out["doc"] = _DOCS[column.encoding]
    parameters = dict(column.parameters) | ({"allowed": column.allowed} if column.allowed else {})
    if parameters:
        out["parameters"] = parameters
    if column.default:
        out["default"] = msgspec.json.decode(column.default)
    return out


def _version(column: Column) -> int:
    """Return the version of a type: a geometry has a second one, with a member more."""
    extended = any(member.name == "extensions" for member in column.members)
    return 2 if extended and column.encoding == f"{_GEO}Geometry" else 1
