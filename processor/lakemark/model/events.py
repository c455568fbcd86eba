"""The records of a Debezium connector, whatever form they have on Kafka: what each of them is.

A converter reads the bytes; everything behind it has these words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import msgspec

NEW_KEY_HEADER: Final = "__debezium.newkey"
"""Of the delete that is the first half of a key change: the key that the row has now."""
OLD_KEY_HEADER: Final = "__debezium.oldkey"
"""Of the create that is the second half: the key that the row had."""
CONTEXT_HEADERS: Final = "__debezium.context."
"""How headers begin that say which task wrote a record; every record has them, see
`extended.headers.enabled`."""


class Kind(IntEnum):
    """The kind of a record. Only CHANGE, OWN_SNAPSHOT, INCREMENTAL and TRUNCATE concern tables."""

    CHANGE = 0  # op c, u or d
    OWN_SNAPSHOT = 1  # op r, source.snapshot neither false nor incremental
    INCREMENTAL = 2  # op r otherwise: inserts missing keys, overwrites nothing
    TRUNCATE = 3  # op t
    TOMBSTONE = 4  # no value: null, empty, JSON null
    HEARTBEAT = 5
    TRANSACTION = 6  # BEGIN or END on the transaction topic
    MESSAGE = 7  # op m
    SCHEMA_CHANGE = 8
    SIGNAL = 9  # any op on the connector's signal table
    BAD = 10
    NOTIFICATION = 11
    OUTPUT = 12  # of an output topic: what lakemark itself has told


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The connector that records must come from.

    Attributes:
        connector: `source.connector`, e.g. ``postgresql``; empty accepts any.
        logical_name: `source.name`, the connector's topic.prefix; empty accepts any.
        signal_table: text of signal.data.collection's table, or None.
        qualifier: the part before its tables' names, see `table_id`; empty = none.
    """

    connector: str
    logical_name: str
    signal_table: str | None = None
    qualifier: str = ""


ANY_SOURCE: Final = SourceIdentity("", "")
"""The one that accepts records of any connector."""


@dataclass(slots=True)
class Headers:
    """Parallel lists, one entry per record, in the order of the records.

    Attributes:
        kind: `Kind` as int.
        table: text of the table's name, see `table_id`; empty for records of no table.
        op: Debezium's op; empty for records without.
        position: 20 bytes (see `positions`); `positions.LOWEST` for records without.
        source_ts: database time in microseconds since the epoch, 0 where unknown; for
            heartbeats, transactions and notifications the connector's time.
        snapshot: `source.snapshot`; ``false`` where absent.
        before: the image, in bytes that only the record's converter reads; None where it is null
            or absent.
        after: like `before`.
        schema: the schema that the record brings, in bytes that only its converter reads; None
            for records that bring none. Records with equal schemas mostly share one bytes
            object, so a cache keyed by it is cheap.
        reason: code of a BAD record, else None.
        detail: one sentence on a BAD record without cell values, else None.
        transaction: the text that names each record's transaction in the log of every server; None
            where it has none.
        statements: by index, the statement that the stream's record of a changed schema has.
        keys: by index, in bytes that say all by themselves, keys of which a header says how they
            are read.
        schema_ids: by index, the number of the schema that a record names, where it is asked for.
    """

    kind: list[int]
    table: list[str]
    op: list[str]
    position: list[bytes]
    source_ts: list[int]
    snapshot: list[str]
    before: list[bytes | None]
    after: list[bytes | None]
    schema: list[bytes | None]
    reason: list[str | None]
    detail: list[str | None]
    transaction: list[str | None]
    statements: dict[int, str] = field(default_factory=dict)
    keys: dict[int, bytes] = field(default_factory=dict)
    schema_ids: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kind)

    def readable(self, keys: Sequence[bytes | None]) -> Sequence[bytes | None]:
        """Return the records' keys so that each can be read without its record's headers."""
        if not self.keys:
            return keys
        return [self.keys.get(index, key) for index, key in enumerate(keys)]


def may_lack(op: str, headers: Sequence[Mapping[str, Any]] | None) -> bool:
    """Return whether an event's after image may have unavailable values.

    It may after an update, of which the second half of a key change is a create.
    """
    if op == "u":
        return True
    return op == "c" and any(header["key"] == OLD_KEY_HEADER for header in headers or ())


class Learnt(msgspec.Struct, frozen=True):
    """Knowledge from events of how their connector writes; only their converter reads the bytes.

    For whoever writes records as the connector does. It is kept with the state.

    Attributes:
        event: how events of any table are; empty = none has come.
        tables: how keys and how values of a table are, of tables that have shown anything.
    """

    event: bytes = b""
    tables: dict[str, tuple[bytes, bytes]] = {}

    def of(self, table: str) -> "Learnt":
        """Return what concerns one table."""
        form = self.tables.get(table)
        return Learnt(self.event, {} if form is None else {table: form})

    def beyond(self, known: "Learnt") -> "Learnt":
        """Return what is not known yet."""
        tables = {table: form for table, form in self.tables.items() if table not in known.tables}
        return Learnt(b"" if known.event else self.event, tables)

    def joined(self, newer: "Learnt") -> "Learnt":
        """Both; the newer one where both have something."""
        return Learnt(newer.event or self.event, {**self.tables, **newer.tables})


NOTHING_LEARNT: Final = Learnt()
