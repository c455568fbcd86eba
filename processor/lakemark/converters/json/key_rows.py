"""Rows of which only the key is known, as a connector writes them where it knows no more.

It does so for deletes of tables with REPLICA IDENTITY DEFAULT. Sinks take the columns of a table
from such an image, too: where records carry schemas it is never null.

| column beside the key | value |
|---|---|
| that may be null | null |
| that has a default | the default |
| any other | what is empty: 0, false, no text, the first moment |
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from lakemark.model.columns import VARIABLE_DECIMAL

_ZERO: Final = "AA=="  # as the bytes of a decimal
_NAMED: Final[Mapping[str, Any]] = {
    "org.apache.kafka.connect.data.Decimal": _ZERO,
    VARIABLE_DECIMAL: {"scale": 0, "value": _ZERO},
    "io.debezium.time.ZonedTimestamp": "1970-01-01T00:00:00Z",
    "io.debezium.time.ZonedTime": "00:00:00Z",
    "io.debezium.data.Json": "{}",
    "io.debezium.data.Uuid": "00000000-0000-0000-0000-000000000000",
}
_TYPED: Final[Mapping[str, Any]] = {
    "boolean": False,
    "float": 0.0,
    "double": 0.0,
    "string": "",
    "bytes": "",
    "array": [],
    "map": {},
}


def other_cells(value_schema: bytes, key: bytes) -> bytes:
    """Return the members that a key lacks to be a row: JSON, a comma before each.

    Args:
        value_schema: the Connect schema of a change event of the table.
        key: a JSON object of the key's columns.
    """
    images = msgspec.json.decode(value_schema)["fields"]
    row = next(image for image in images if image["field"] == "after")
    known = msgspec.json.decode(key, type=dict[str, msgspec.Raw])
    cells = (_cell(field) for field in row["fields"] if field["field"] not in known)
    return b"".join(b"," + cell for cell in cells)


def _cell(field: Mapping[str, Any]) -> bytes:
    name = msgspec.json.encode(field["field"])
    return name + b":" + msgspec.json.encode(_value(field))


def _value(field: Mapping[str, Any]) -> Any:
    if field.get("optional"):
        return None
    if (default := field.get("default")) is not None:
        return default
    named = _NAMED.get(field.get("name", ""))
    if named is not None:
        return named
    if field["type"] == "struct":
        return dict(_members(field))
    return _TYPED.get(field["type"], 0)


def _members(field: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((member["field"], _value(member)) for member in field["fields"])
