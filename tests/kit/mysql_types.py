"""Tables of MySQL and MariaDB: as the catalog has them, and records that their connectors wrote."""

import json
from decimal import Decimal
from pathlib import Path

import msgspec

from lakemark.connectors.mysql.catalog import CatalogColumn, from_catalog, key_of
from lakemark.converters.json.keys import table_schema
from lakemark.converters.json.rows import decode_rows
from lakemark.model.handling_modes import HandlingModes

GOLDEN = Path(__file__).parents[1] / "golden" / "mysql"
CATALOG = json.loads((GOLDEN / "catalog.json").read_text())
CLASSES = {
    "mysql": "io.debezium.connector.mysql.MySqlConnector",
    "mariadb": "io.debezium.connector.mariadb.MariaDbConnector",
}
TO_BOOLEAN = {
    "converters": "bools",
    "bools.type": "io.debezium.connector.binlog.converters.TinyIntOneToBooleanConverter",
}
MODES = {
    "m1": {
        "decimal.handling.mode": "string",
        "time.precision.mode": "isostring",
        "bigint.unsigned.handling.mode": "precise",
        "binary.handling.mode": "hex",
    },
    "m2": {
        "decimal.handling.mode": "double",
        "time.precision.mode": "connect",
        "binary.handling.mode": "base64",
        **TO_BOOLEAN,
    },
    "m3": {"time.precision.mode": "microseconds", "binary.handling.mode": "base64-url-safe"},
    "m4": {"time.precision.mode": "nanoseconds"},
}
"""The settings behind `types_by_mode.json`."""
ENCODE = msgspec.json.Encoder(decimal_format="number").encode


def records(name):
    """Records of a file, their numbers digit by digit."""
    return json.loads((GOLDEN / name).read_text(), parse_float=Decimal)


WRAPPED = records("wrapped_types.json")
BY_MODE = records("types_by_mode.json")


def modes_of(connector, mode=""):
    return HandlingModes.from_connector(
        {"connector.class": CLASSES[connector], **MODES.get(mode, {})}
    )


def catalog(connector, table="types"):
    return [CatalogColumn(**c) for c in CATALOG[connector][table]]


def described(connector, mode="", table="types"):
    """Schema of a table from the catalog."""
    columns = catalog(connector, table)
    modes = modes_of(connector, mode)
    return from_catalog(f"shop.{table}", columns, key_of(columns), modes, connector=connector)


def carried(record, table="types", connector=""):
    """Schema of a table that a wrapped record carries.

    Records of `types_by_mode.json` lack the schema of their source block: `connector` makes it.
    """
    schema = json.loads(json.dumps(record["value"]["schema"], default=str))
    if connector:
        name = f"io.debezium.connector.{connector}.Source"
        source = {"type": "struct", "fields": [], "field": "source", "name": name}
        schema["fields"].append(source)
    key = record["key"] and ENCODE(record["key"]["schema"])
    return table_schema(f"shop.{table}", ENCODE(schema), key)


def of_mode(connector, mode):
    """Schema that the records of a mode carry, and their rows' images."""
    found = {k: r for k, r in BY_MODE.items() if k.startswith(f"{connector}-{mode}_")}
    schema = carried(found[f"{connector}-{mode}_typical"], connector=connector)
    return schema, {
        k.partition("_")[2]: ENCODE(r["value"]["payload"]["after"]) for k, r in found.items()
    }


def typed(image, schema, modes):
    """One row's values."""
    rows = decode_rows([image], schema, modes)
    assert rows.bad == []
    rows.columns.validate(full=True)
    return rows.columns[0].as_py()
