"""States of tables by the names of the flat record, and states as older versions stored them."""

import json
from typing import Any

import msgspec

from lakemark.state.stored_form import PARTS
from lakemark.state.tables import TableState


def table_state(*head: str, **fields: Any) -> TableState:
    """Return a table's state; each field goes to the part that has it; `head` is state and code."""
    parts = {}
    for part, kind in PARTS.items():
        names = {field.encode_name: field.name for field in msgspec.structs.fields(kind)}
        own = {names[name]: fields.pop(name) for name in names.keys() & fields.keys()}
        parts[part] = kind(**own)
    return TableState(*head, **fields, **parts)


def altered(entry: TableState, **fields: Any) -> TableState:
    """Return a table's state with other values in some fields."""
    return table_state(**{**_fields(entry), **fields})


def _fields(entry: TableState) -> dict[str, Any]:
    fields = {field.name: getattr(entry, field.name) for field in msgspec.structs.fields(entry)}
    for part, kind in PARTS.items():
        own = fields.pop(part)
        fields |= {f.encode_name: getattr(own, f.name) for f in msgspec.structs.fields(kind)}
    return fields


def flat_form(stored: bytes, version: int) -> dict[str, Any]:
    """Return a stored state as format 4 or an older one had it, where tables were flat."""
    state: dict[str, Any] = json.loads(stored) | {"format": version}
    entries = [*state["tables"].values(), *(left["entry"] for left in state["left"].values())]
    for entry in entries:
        for part in PARTS:
            entry.update(entry.pop(part, {}))
    return state
