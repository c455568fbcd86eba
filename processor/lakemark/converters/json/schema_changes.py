"""Records of a connector's schema topic, from JSON; pure."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from lakemark.converters.json.envelope import unwrapped
from lakemark.model import positions
from lakemark.model.decoding import Records, StretchPlan
from lakemark.model.definitions import SchemaChange, TableChange

_STREAMED: Final = frozenset({None, False, "false"})  # `source.snapshot`


class _Record(msgspec.Struct, rename="camel"):
    source: dict[str, Any]
    table_changes: tuple[TableChange, ...] = ()


_read: Final = msgspec.json.Decoder(_Record).decode


def schema_changes(records: Records, plan: StretchPlan) -> Iterator[SchemaChange]:
    """Yield what records of a schema topic say of tables; those that say nothing are left out.

    Args:
        records: of one partition.
        plan: `identity` and `epoch` of it count.
    """
    identity = plan.identity
    if identity.connector not in positions.KINDS:
        return
    rules = positions.rules_of(identity.connector)
    for offset, value in zip(records.offsets, records.values, strict=True):
        try:
            record = _read(unwrapped(value or b"")[1])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        source, tables = record.source, record.table_changes
        if not tables or source.get("name") != identity.logical_name:
            continue
        read = source.get("snapshot") not in _STREAMED
        if not all(isinstance(source.get(name), kind) for name, kind in rules.fields.items()):
            continue
        fields = {name: [source.get(name)] for name in (*rules.fields, *rules.of_transaction)}
        at = rules.from_source(fields, [read], plan.epoch)[0]
        if at is not None:
            yield SchemaChange(records.partition, offset, rules.in_stream(at), tables)
