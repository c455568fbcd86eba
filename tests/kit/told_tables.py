"""A table of MySQL whose columns change: its events in plain JSON, and what the schema topic tells.

Each kind of column is written in a way that another kind is written in, too, with another meaning:
an event that is read by the columns of another time is no error, but a wrong value.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from lakemark.connectors.mysql.catalog import CatalogColumn, from_catalog
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema

TABLE = "shop.orders"
TOPIC = "shop.shop.orders"
SCHEMA_TOPIC = "shop"
MODES = HandlingModes.from_connector(
    {"connector.class": "io.debezium.connector.mysql.MySqlConnector"}
)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock


@dataclass(frozen=True)
class Kind:
    """A type: as the catalog writes it, and as the connector tells it."""

    column_type: str
    type_name: str
    length: int | None = None
    scale: int | None = None


KINDS = {
    "whole": Kind("int(11)", "INTEGER"),
    "days": Kind("date", "DATE"),
    "millis": Kind("datetime(3)", "DATETIME", 3),
    "micros": Kind("datetime(6)", "DATETIME", 6),
    "cents": Kind("decimal(12,2)", "DECIMAL", 12, 2),
    "exact": Kind("decimal(12,4)", "NUMERIC", 12, 4),
    "signed": Kind("bigint(20)", "BIGINT"),
    "unsigned": Kind("bigint(20) unsigned", "BIGINT UNSIGNED"),
    "text": Kind("varchar(50)", "VARCHAR", 50),
}

Columns = Mapping[str, str]
"""The columns beside the key, and the kind of each."""


def value_of(kind: str, number: int) -> Any:
    """A value of a kind, another one for each number from 0 to 9999."""
    return {
        "whole": lambda: number - 5000,
        "days": lambda: date.fromordinal(719_163 + number),
        "millis": lambda: _at(number * 1_001_000),
        "micros": lambda: _at(number * 1_001_001),
        "cents": lambda: Decimal(number).scaleb(-2),
        "exact": lambda: Decimal(number).scaleb(-4),
        "signed": lambda: number - 5000,
        "unsigned": lambda: Decimal((1 << 64) - 1 - number),
        "text": lambda: f"v{number}",
    }[kind]()


def _at(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def written(kind: str, value: Any) -> Any:
    """How the connector writes a value."""
    if kind == "days":
        return value.toordinal() - 719_163
    if kind in ("millis", "micros"):
        micros = (value - _EPOCH) // timedelta(microseconds=1)
        return micros // 1000 if kind == "millis" else micros
    if kind in ("cents", "exact"):
        unscaled = int(value.scaleb(2 if kind == "cents" else 4))
        return base64.b64encode(unscaled.to_bytes(8, "big", signed=True)).decode()
    if kind == "unsigned":
        return int(value) - (1 << 64)  # the default mode: a signed word
    return value


def catalog_of(columns: Columns) -> TableSchema:
    """The table as the catalog has it."""
    found = [CatalogColumn("id", "int(11)", not_null=True, key_position=1)]
    found += [CatalogColumn(name, KINDS[kind].column_type) for name, kind in columns.items()]
    return from_catalog(TABLE, found, ["id"], MODES, connector="mysql")


def _source(pos: int, **more: Any) -> dict[str, Any]:
    return {
        "connector": "mysql", "name": "shop", "ts_ms": pos, "ts_us": pos * 1000, "snapshot": "false",
        "db": "shop", "table": "orders", "server_id": 1, "gtid": None, "file": "binlog.000001",
        "pos": pos, "row": 0, **more,
    }  # fmt: skip


def event(pos: int, key: int, columns: Columns, values: Mapping[str, Any], op: str = "c") -> bytes:
    """The record of a row at a place in the log."""
    row = {"id": key, **{name: written(kind, values[name]) for name, kind in columns.items()}}
    image = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    return _compact({**image, "source": _source(pos), "op": op, "ts_ms": pos})


def key_of(key: int) -> bytes:
    """The record key of a row."""
    return _compact({"id": key})


def _compact(value: Any) -> bytes:
    """JSON as the converter writes it."""
    return json.dumps(value, separators=(",", ":")).encode()


def statement(
    pos: int, columns: Columns, *, table: str = "orders", ddl: str = "ALTER TABLE", **source: Any
) -> bytes:
    """The record of the schema topic by which a table has these columns from a place on."""
    told = [_told("id", Kind("int", "INT", 11), optional=False)]
    told += [_told(name, KINDS[kind]) for name, kind in columns.items()]
    changed = {"primaryKeyColumnNames": ["id"], "columns": told, "defaultCharsetName": "utf8mb4"}
    change = {"type": "ALTER", "id": f'"shop"."{table}"', "table": changed}
    return json.dumps(
        {
            "source": _source(pos, **source), "ts_ms": pos, "databaseName": "shop",
            "schemaName": None, "ddl": ddl, "tableChanges": [change],
        }
    ).encode()  # fmt: skip


def _told(name: str, kind: Kind, *, optional: bool = True) -> dict[str, Any]:
    return {
        "name": name, "typeName": kind.type_name, "length": kind.length, "scale": kind.scale,
        "optional": optional, "charsetName": "utf8mb4" if kind.type_name == "VARCHAR" else None,
        "enumValues": None,
    }  # fmt: skip
