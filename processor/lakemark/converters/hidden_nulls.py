"""Columns whose NULL a converter writes as their default, and the rows that may have one. Pure.

Nothing in a record tells such a NULL from the default itself. What can be said: of which columns
it may be, by the schema that the record brings, and which rows have the default there.
"""

from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.converters.converter import Converter
from lakemark.model import net_change
from lakemark.model.decoding import FEW_ROWS, TableReport
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema

_IMAGES: Final = frozenset({"before", "after"})


@lru_cache(maxsize=512)
def defaults_of(raw_schema: bytes) -> Mapping[str, Any]:
    """Return the nullable columns of an event's Connect schema that have a default, and this.

    Args:
        raw_schema: JSON; of anything else the answer is empty.
    """
    try:
        fields = msgspec.json.decode(raw_schema)["fields"]
        rows = (field["fields"] for field in fields if field.get("field") in _IMAGES)
        columns: list[Any] = next(rows, [])
        nullable = [column for column in columns if column["optional"]]
        return {c["field"]: c["default"] for c in nullable if c.get("default") is not None}
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return {}


def note_defaults(
    report: TableReport,
    packet: pa.Table,
    *,
    converter: Converter,
    raw_schema: bytes,
    schema: TableSchema,
    modes: HandlingModes,
) -> None:
    """Report the keys of rows that have the default in a column whose NULL arrives as that.

    Args:
        report: of the packet's table; `hidden_nulls` of it are those columns.
        packet: rows of events.
        converter: reads the records.
        raw_schema: that they bring.
        schema: the table's columns by it.
        modes: the connector's settings.
    """
    if not report.hidden_nulls or not packet.num_rows:
        return
    told = defaults_of(raw_schema)
    image = msgspec.json.encode({name: told[name] for name in report.hidden_nulls if name in told})
    defaults = converter.rows([image], schema, modes).columns
    rows = packet.column("row")
    there = {field.name for field in rows.type}
    same = [
        pc.equal(pc.struct_field(rows, name), defaults.field(name)[0])
        for name in report.hidden_nulls
        if name in there and defaults.field(name)[0].is_valid
    ]
    if not same:
        return
    found = (pc.fill_null(one, False) for one in same)  # noqa: FBT003
    written = pc.equal(packet.column("action"), net_change.UPSERT)
    which = pc.and_(reduce(pc.or_, found), pc.fill_null(written, False))  # noqa: FBT003
    keys = packet.column("key").filter(which)
    report.maybe_null += len(keys)
    room = max(0, FEW_ROWS + 1 - len(report.maybe_null_keys))
    report.maybe_null_keys += [
        key.decode("utf-8", "replace") for key in keys.slice(0, room).to_pylist()
    ]
