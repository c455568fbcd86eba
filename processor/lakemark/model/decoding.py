"""One stretch of one Kafka partition: its records, how they are decoded, and what comes of them.

What tells a converter and the decoder what to do travels with a batch; what they say goes to the
driver.
"""

from collections.abc import Container, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

import msgspec
import pyarrow as pa

from lakemark.model import positions
from lakemark.model.definitions import Definitions
from lakemark.model.events import NOTHING_LEARNT, Learnt, SourceIdentity
from lakemark.model.fills import Fill
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.positions import LoggedEvent
from lakemark.model.schema import TableSchema

LOG_CHANGED: Final = "log-changed"
"""Code of a table with events of another server's log, whose epoch has not begun."""
ANOTHER_FORM: Final = "another-form"
"""Code of a record that has not the form of its connector's converter, as far as that is known."""
CONVERTER_CHECK: Final = "converter-check"
"""Code of a table with such records, whose connector is to be asked for its converter."""
FEW_ROWS: Final = 100
"""Rows of a table and batch that are read again though nothing is known to be wrong with them."""
REPORT: Final = "report"  # kind of a row of a batch's results

Side = Literal["key", "value"]
Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ConverterOptions:
    """All that is known of how a connector's records are written. It may hold secrets.

    Attributes:
        key: the connector's settings behind ``key.converter.``; None where the connector names no
            converter of keys, so that the worker's default counts, which nobody here knows.
        value: likewise of values.
        own: lakemark's, of ``source.converter``: they count before the connector's.
        key_class: the Java class of ``key.converter``; empty where the connector names none.
        value_class: likewise of values.
    """

    key: Options | None = field(default=None, repr=False)
    value: Options | None = field(default=None, repr=False)
    own: Options = field(default=(), repr=False)
    key_class: str = ""
    value_class: str = ""

    def java_class(self, side: Side) -> str:
        """Return the Java class that writes keys, or values; empty where nobody here knows."""
        return self.key_class if side == "key" else self.value_class

    def get(self, side: Side, name: str) -> str | None:
        """Return an option, without spaces around it; None where nobody here knows it.

        Args:
            side: of keys, or of values.
            name: as Connect's converter calls it.
        """
        told = {**dict((self.key if side == "key" else self.value) or ()), **dict(self.own)}
        value = told.get(name)
        return None if value is None or "${" in value else value.strip()


class AddedField(NamedTuple):
    """A field of the envelope that a transform added to a record from which it took that.

    Attributes:
        name: of the value's member, or of the record's header.
        block: where it stood in the envelope: ``source``, ``transaction``, or nothing for itself.
        field: its name there.
    """

    name: str
    block: str
    field: str


@dataclass(frozen=True, slots=True)
class Flattening:
    """The form of rows that come without an envelope.

    Attributes:
        fields: members of a value that are no columns.
        headers: headers of a record that tell the same.
        connector: `source.connector` of the rows.
        arrival: whether they say no place in the log, so that it is the one in their partition.
    """

    fields: tuple[AddedField, ...] = ()
    headers: tuple[AddedField, ...] = ()
    connector: str = ""
    arrival: bool = False


@dataclass(frozen=True, slots=True)
class ConverterChoice:
    """The converter of a connector's records.

    Attributes:
        name: of it in `converters.registry`.
        options: what it is told.
        flattening: how rows come without an envelope; None where they have one.
    """

    name: str = "json"
    options: ConverterOptions = ConverterOptions()
    flattening: Flattening | None = None


Seen = Mapping[str, tuple[int, int]]
"""By origin, the newest transaction of which an event was applied, and the event's order in it."""

ANY_CONVERTER: Final = ConverterChoice()
"""The one of a connector of which nothing is known."""


@dataclass(frozen=True, slots=True)
class AppliedPosition:
    """The progress of a Kafka partition.

    Attributes:
        position: highest position applied (20 bytes); LOWEST before the first event.
        source_ts: newest source time seen, microseconds. A true replay was seen before, so its
            source time is never newer than this one.
        creates: whether the transaction at `position`, which may go on, has created rows.
        seen: of events whose transactions have names, see `LoggedEvent`.
    """

    position: bytes = positions.LOWEST
    source_ts: int = 0
    creates: bool = False
    seen: Seen = field(default_factory=dict)


# -- events by names that all servers know: those of an origin rise in each log -------------------


def note_event(seen: MutableMapping[str, tuple[int, int]], event: LoggedEvent | None) -> None:
    """Note an event that is applied in what its partition has seen."""
    if event is not None and is_new(event, seen):
        seen[event.origin] = (event.number, event.order)


def is_new(event: LoggedEvent, seen: Seen) -> bool:
    """Return whether an event certainly did not come before."""
    known = seen.get(event.origin)
    return known is None or (event.number, event.order) > known


def may_be_new(event: LoggedEvent, seen: Seen) -> bool:
    """Return whether an event is of the newest transaction, and nothing tells which one of it."""
    return not event.order and seen.get(event.origin) == (event.number, 0)


def came(event: LoggedEvent | None, seen: Seen, *, at: bytes, high: bytes) -> bool:
    """Return whether an event at or above its partition's applied position came before.

    It came with another position then: in one log, names rise with positions.

    Args:
        event: None where its transaction has no name.
        seen: by the partition.
        at: the event's position.
        high: the applied position. At it may stand the newest event, sent again.
    """
    if event is None or is_new(event, seen) or may_be_new(event, seen):
        return False
    return at > high or (event.number, event.order) < seen[event.origin]


@dataclass(frozen=True, slots=True)
class StretchPlan:
    """The plan that the driver gives every task of a batch; the same for a repeated batch.

    Attributes:
        identity: which connector's records these must be.
        modes: the connector's handling modes.
        schemas: tables known from catalog or file, for records that bring no schema.
        ignorable: columns per table that events may still carry though the catalog, read after
            them, no longer has them: dropped columns.
        applied: per (topic, partition), as of the start of the batch.
        epoch: of the positions, with their kind: see `of_epoch`.
        max_event_bytes: larger values are dead letters.
        max_bad_share: share of bad records in a stretch above which the table stops instead.
        max_bad: number of bad records of one stretch above which the share is looked at.
        selected: the tables wanted; None = every table.
        left: tables left out with the topics they came in: a report says if one comes in another.
        known_keys: key columns of tables that already have rows: there a record without a key is
            a bad record, not a table without a key.
        carried: tables by the topics that they came in so far.
        partial: tables that ever had an unavailable value: it is not tried to read them as plain.
        verified: tables whose entry in `schemas` was read just now: a value of another type is
            bad. Of other tables the catalog is read again first (`schema-check`).
        stopped: tables that do not stream: their events only move the applied positions.
        stopped_topics: topics all of whose tables are stopped.
        outputs: whether records of output topics, of whatever pipeline, are events as any.
        fills: by table, columns that images which are older than they lack, see `fills`.
        numerics: by table, columns of type numeric, which a record's own schema does not tell.
        converter: what reads the records.
        converter_asked: whether the connector has said since they came that it still is this one:
            a record of another form is bad. Else it is asked first (`converter-check`).
        metadata: see `lake.metadata`.
        definitions: by table, of those that records without a schema need more of than the one in
            `schemas`.
    """

    identity: SourceIdentity
    modes: HandlingModes
    schemas: Mapping[str, TableSchema] = field(default_factory=dict)
    ignorable: dict[str, frozenset[str]] = field(default_factory=dict)
    applied: dict[tuple[str, int], AppliedPosition] = field(default_factory=dict)
    epoch: int = 0
    max_event_bytes: int = 4 << 20
    max_bad_share: float = 0.5
    max_bad: int = 100
    selected: Container[str] | None = None
    left: frozenset[str] = frozenset()
    known_keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    carried: dict[str, tuple[str, ...]] = field(default_factory=dict)
    partial: frozenset[str] = frozenset()
    verified: frozenset[str] = frozenset()
    stopped: frozenset[str] = frozenset()
    stopped_topics: frozenset[str] = frozenset()
    outputs: bool = False
    fills: dict[str, tuple[Fill, ...]] = field(default_factory=dict)
    numerics: Mapping[str, frozenset[str]] = field(default_factory=dict)
    converter: ConverterChoice = ANY_CONVERTER
    converter_asked: bool = False
    definitions: Mapping[str, Definitions] = field(default_factory=dict)
    metadata: tuple[str, ...] = ()

    def of_epoch(self, number: int) -> "StretchPlan":
        """Return the plan for records of an epoch.

        Args:
            number: of the epoch, without the kind of its positions.
        """
        return replace(self, epoch=positions.epoch_number(self.identity.connector, number))


@dataclass(slots=True)
class Records:
    """Raw Kafka records of one topic partition in offset order, column by column.

    `column`, where it is there, has the values as they came, perhaps with others: for whoever finds
    out something of all of them at once.
    """

    topic: str
    partition: int
    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[list[dict[str, Any]] | None]
    column: pa.ChunkedArray | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that can never be decoded: where it stands, why, and its original bytes.

    `headers` are those of the record that say how it is read.
    """

    topic: str
    partition: int
    offset: int
    reason: str
    detail: str
    key: bytes | None
    value: bytes | None
    table: str = ""
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(slots=True)
class TableReport:
    """The contents of a stretch for one table.

    Attributes:
        reads: of the events those that are rows of the connector's snapshots.
        twice: whether some event may be there twice: it has the position of the one before it.
        deletes, updates: of the events those that delete a row or its old key, or update a row.
        bad: records that cannot be decoded.
        unread: those of them of which not even the key can be read: any row may miss them.
        reread: canonical keys whose rows miss an event.
        stop: code and reason.
        doubt: why any row may be wrong; empty if none is.
        brought: whether its records have brought a schema.
        other_schema: that of its newest records (`TableSchema.to_json`), where it does not agree
            with the one that is known of the table; else empty.
        hidden_nulls: columns whose NULL these records have as the column's default.
        maybe_null: rows that have the default in one of these columns.
        maybe_null_keys: canonical keys of the first of them.
    """

    events: int = 0
    replays: int = 0
    incremental_reads: int = 0
    bad: int = 0
    unread: int = 0
    clamped: int = 0
    newest_ts: int = 0
    own_snapshots: set[int] = field(default_factory=set)
    own_ends: bool = False
    reads: int = 0
    twice: bool = False
    deletes: int = 0
    updates: int = 0
    unknown_columns: set[str] = field(default_factory=set)
    reread: list[str] = field(default_factory=list)
    stop: tuple[str, str] | None = None
    doubt: str = ""
    brought: bool = False
    other_schema: bytes = b""
    hidden_nulls: tuple[str, ...] = ()
    maybe_null: int = 0
    maybe_null_keys: list[str] = field(default_factory=list)


@dataclass(slots=True)
class DecodedRange:
    """The outcome of one stretch.

    Attributes:
        first, last: Kafka offsets of its first and last record.
        packets: (table, packet); none for tables with `stop` or `unknown_columns` in the report.
        dead: dead letters to be written before the tables.
        tables: reports by table id.
        applied_position: the partition's applied position after the stretch.
        kinds: records by kind, for metrics.
        regressed: offset of the first regressed event, -1 = none.
        beginnings: when the connector began without offsets, see `replay_filter.beginnings`.
        statements: those by which schemas were changed, in their order.
        applied: indices of the events that count, in log order, by table.
        keys: canonical keys that were made, by index; None where the record's cannot be read.
    """

    topic: str
    partition: int
    first: int
    last: int
    packets: list[tuple[str, pa.Table]]
    dead: list[DeadLetter]
    tables: dict[str, TableReport]
    applied_position: AppliedPosition
    kinds: dict[int, int]
    regressed: int = -1
    beginnings: dict[int, int] = field(default_factory=dict)
    statements: tuple[str, ...] = ()
    applied: dict[str, list[int]] = field(default_factory=dict)
    keys: dict[int, bytes | None] = field(default_factory=dict)

    def stopped(self) -> set[str]:
        """Tables that cannot go on at something in this stretch."""
        return {t for t, report in self.tables.items() if report.stop or report.unknown_columns}


class Report(msgspec.Struct):
    """A stretch for the driver: `DecodedRange` without its packets.

    For the output topics also what its events have shown. `connector` is the topic's, where there
    are several.
    """

    topic: str
    partition: int
    first: int
    last: int
    position: bytes
    source_ts: int
    tables: dict[str, TableReport]
    kinds: dict[int, int]
    dead: int
    regressed: int = -1
    creates: bool = False
    learnt: Learnt = NOTHING_LEARNT
    beginnings: dict[int, int] = {}
    seen: dict[str, tuple[int, int]] = {}
    connector: str = ""
    statements: tuple[str, ...] = ()
