"""Row images and their columns: as golden records hold them, and made by hand."""

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path

import msgspec

from lakemark.connectors.postgres.catalog import CatalogColumn, from_catalog
from lakemark.converters.json.rows import decode_rows
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import from_connect

GOLDEN = Path(__file__).parents[1] / "golden"
TYPES = json.loads((GOLDEN / "postgres_types.json").read_text(), parse_float=Decimal)
ENCODE = msgspec.json.Encoder(decimal_format="number").encode
MODES = HandlingModes()
DECIMAL = "org.apache.kafka.connect.data.Decimal"
UTC = dt.UTC


def golden(mode, table):
    """Schema from the catalog, modes and raw images; a mode's images hold their differences."""
    case = TYPES["modes"][mode]
    modes = HandlingModes.from_connector(case["settings"])
    columns = [CatalogColumn(**c) for c in TYPES["catalog"][table]]
    schema = from_catalog("public." + table, columns, [], modes)
    default = TYPES["modes"]["default"]["tables"][table]["images"]
    changed = case["tables"][table]["images"]
    images = {k: {**default.get(k, {}), **changed.get(k, {})} for k in {**default, **changed}}
    return schema, modes, {k: ENCODE(v) for k, v in images.items()}


def field(name, wire, semantic="", **parameters):
    made = {"field": name, "type": wire, "optional": True}
    if semantic:
        made["name"] = semantic
    if parameters:
        made["parameters"] = {k.replace("_", "."): str(v) for k, v in parameters.items()}
    return made


def table(*fields):
    return from_connect("s.t", {"type": "struct", "fields": list(fields)}, None)


def decode(fields, *images, modes=MODES):
    """Rows of images that follow updates."""
    raw = [i if isinstance(i, bytes) else ENCODE(i) for i in images]
    return decode_rows(raw, table(*fields), modes, partial=range(len(raw)))


def value_of(made, value, modes=MODES):
    rows = decode([made], {made["field"]: value}, modes=modes)
    assert rows.bad == []
    return rows.columns[0].as_py()[made["field"]]


def ntz(*parts):
    return dt.datetime(*parts, tzinfo=UTC).replace(tzinfo=None)


FIRST, LAST = ntz(1, 1, 1), ntz(9999, 12, 31, 23, 59, 59, 999999)
