"""The schema topics of a pipeline's connectors, read ahead of the batches that need them.

A batch is decoded by tasks, a partition each, so what a statement has changed must be known before
they begin. When a batch brings records of a schema topic, the driver reads that topic, up to its
end: in a backlog the records of statements are few, and come in any batch.

Order of effects: what has been read is kept in the checkpoint when the state after the batch is. A
crash between the two has some records read once more; `PipelineState.schema_changes` tells that
they were judged.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Protocol

import pyarrow as pa
import structlog

from lakemark.converters.registry import converter_of
from lakemark.errors import DependencyError
from lakemark.model import positions
from lakemark.model.decoding import ConverterChoice, Records, StretchPlan
from lakemark.model.definitions import Definition, Definitions, SchemaChange, TableChange
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.offsets import EARLIEST, Offsets
from lakemark.model.schema import TableSchema
from lakemark.settings.table_id import unqualified
from lakemark.source import fetch, raw_records
from lakemark.source.offset_ranges import OffsetRange
from lakemark.state import tables
from lakemark.state.table_history import TableHistory
from lakemark.state.tables import STREAMING, PipelineState, TableState

log = structlog.get_logger(__name__)

LATE: Final = (
    "the schema topic told of a statement when events behind it had been read already: they may "
    "have been read by the columns of before"
)
EXPIRED: Final = "source-data-expired"

Read = Callable[[Sequence[OffsetRange]], Iterable[pa.RecordBatch]]
Look = tuple[float, bytes]
"""When a look at the catalog began, by a monotonic clock, and where the log ended after it."""


class DefinitionStore(Protocol):
    """The part of `Checkpoint` that stores definitions."""

    def definitions(self, connector: str = "", /) -> bytes | None:
        """Return the bytes stored for a connector, by its qualifier; None if nothing was."""

    def note_definitions(self, found: bytes, connector: str = "", /) -> None:
        """Store these bytes instead."""


def reader(client: Callable[[], Mapping[str, Any]]) -> Read:
    """Return what reads ranges of Kafka's topics, see `fetch.records`.

    Args:
        client: its settings as they are now: a password may be another.
    """
    return lambda ranges: fetch.records(ranges, client())


@dataclass(frozen=True, slots=True)
class SchemaTopic:
    """The schema topic of one connector.

    Attributes:
        name: of it.
        identity: the connector's.
        converter: what reads its records.
        modes: the connector's settings.
        captured: its tables.
        definitions: see `ConnectorTraits.definitions`; tables have their names in the pipeline.
    """

    name: str
    identity: SourceIdentity
    converter: ConverterChoice
    modes: HandlingModes
    captured: Container[str]
    definitions: Callable[[Sequence[TableChange]], Iterable[tuple[str, TableSchema]]]


@dataclass(slots=True)
class SchemaTopics:
    """The definitions of all tables, by what the schema topics and the catalogs tell.

    Attributes:
        topics: the schema topics that are read.
        store: keeps the definitions between two processes.
        read: reads ranges of topics.
        ends: where topics end now.
        looks: by qualifier, the newest look at each catalog.
    """

    topics: Sequence[SchemaTopic] = ()
    store: DefinitionStore | None = None
    read: Read = lambda _: ()
    ends: Callable[[Sequence[str]], Offsets] = lambda _: {}
    looks: Callable[[], Mapping[str, Look]] = dict
    _kept: dict[str, TableHistory] = field(default_factory=dict)
    _now: dict[str, TableHistory] = field(default_factory=dict)
    _begun: bool = False

    def begin(
        self, state: PipelineState, before: PipelineState, schemas: Mapping[str, TableSchema]
    ) -> None:
        """Take in what is known when a batch begins, perhaps again.

        Args:
            state: the state being made: tables of which a record comes late are read again.
            before: the state before the batch.
            schemas: of tables, as the catalogs were last read.

        Raises:
            DependencyError: the brokers are away.
        """
        self._now = {}
        for topic in self.topics:
            if topic.name not in state.offsets:  # nobody tells: the catalog counts
                continue
            history = self._history(topic).copied()
            self._now[topic.identity.qualifier] = history
            history.is_in_epoch(len(state.log_of(topic.identity.qualifier).epochs))
            self._follow(topic, history, schemas)
            self._take(topic, history, state, before, ahead=False)
        self._begun = True

    def again(
        self, state: PipelineState, before: PipelineState, schemas: Mapping[str, TableSchema]
    ) -> None:
        """Take in what is known now, as catalogs were asked since; arguments as for `begin`."""
        for topic in self.topics:
            history = self._now.get(topic.identity.qualifier)
            if history is not None:
                self._follow(topic, history, schemas)
                self._take(topic, history, state, before, ahead=True)

    def of_batch(
        self, schemas: Mapping[str, TableSchema], again: Collection[str] = ()
    ) -> dict[str, Definitions]:
        """Return the definitions of tables; see `TableHistory.of_batch`."""
        found: dict[str, Definitions] = {}
        for history in self._now.values():
            found |= history.of_batch(schemas, again)
        return found

    def end(
        self, state: PipelineState, passed: Callable[[PipelineState, TableState], bytes | None]
    ) -> None:
        """Keep what the batches after this one need; its state is durable.

        Args:
            state: the state after it.
            passed: the position that all partitions of a table have passed.
        """
        streaming = [(n, e) for n, e in state.tables.items() if e.state == STREAMING]
        for qualifier, history in self._now.items():
            history.passed(
                (name, passed(state, entry))
                for name, entry in streaming
                if len(history.tables.get(name, ())) > 1
            )
            if self.store is not None and history.differs_from(self._kept[qualifier]):
                self.store.note_definitions(history.to_json(), qualifier)
            self._kept[qualifier] = history

    def _history(self, topic: SchemaTopic) -> TableHistory:
        qualifier = topic.identity.qualifier
        if qualifier not in self._kept:
            blob = None if self.store is None else self.store.definitions(qualifier)
            self._kept[qualifier] = TableHistory.of(blob, repr(topic.modes))
        return self._kept[qualifier]

    def _follow(
        self, topic: SchemaTopic, history: TableHistory, schemas: Mapping[str, TableSchema]
    ) -> None:
        qualifier, now = topic.identity.qualifier, monotonic()
        for table, schema in schemas.items():
            if unqualified(qualifier, table) is not None:
                history.has(table, schema, now=now)
        if qualifier in (looks := self.looks()):
            history.looked(*looks[qualifier])

    def _take(
        self,
        topic: SchemaTopic,
        history: TableHistory,
        state: PipelineState,
        before: PipelineState,
        *,
        ahead: bool,
    ) -> None:
        """Read a topic's new records, if there may be any, and take them in."""
        planned = state.offsets.get(topic.name, {})
        judged = before.schema_changes.get(topic.name, {})
        goes_on = history.read or judged or before.offsets.get(topic.name, {})
        grown = any(end > goes_on.get(partition, 0) for partition, end in planned.items())
        if not planned or (self._begun and not grown and not ahead):
            return
        ends = self.ends([topic.name]).get(topic.name, {})
        ends = {p: max(end, ends.get(p, 0)) for p, end in planned.items()}
        late: set[str] = set()
        for change in self._changes(topic, state, goes_on, ends):
            is_new = change.offset >= judged.get(change.partition, 0)
            late |= {table for table in self._said(topic, history, before, change) if is_new}
        for table in sorted(late):
            log.warning("table.definition_late", table=table)
            tables.doubt_all(state, table, LATE)
        history.read, state.schema_changes[topic.name] = ends, ends

    def _said(
        self,
        topic: SchemaTopic,
        history: TableHistory,
        before: PipelineState,
        change: SchemaChange,
    ) -> Iterator[str]:
        """Take in a record; yield the tables of which it comes late."""
        for table, schema in topic.definitions(change.tables):
            if table in topic.captured:
                told = Definition(change.position, schema, told=True)
                known = history.tables.get(table)
                late = history.says(table, told, reached=lambda name: _reached(before, name))
                if known is not history.tables[table]:
                    log.info(
                        "table.definition", table=table, position=change.position.hex(), late=late
                    )
                if late:
                    yield table

    def _changes(
        self,
        topic: SchemaTopic,
        state: PipelineState,
        start: Mapping[int, int],
        ends: Mapping[int, int],
    ) -> Iterator[SchemaChange]:
        ranges = [
            OffsetRange(topic.name, partition, start.get(partition, EARLIEST), end)
            for partition, end in sorted(ends.items())
            if start.get(partition, 0) < end
        ]
        plan = StretchPlan(topic.identity, topic.modes)
        converter = converter_of(topic.converter)
        epochs = state.log_of(topic.identity.qualifier).epochs
        for records in self._records(ranges, converter.read_headers):
            for epoch, piece in raw_records.by_epoch(records, epochs):
                yield from converter.schema_changes(piece, plan.of_epoch(epoch))

    def _records(self, ranges: Sequence[OffsetRange], wanted: frozenset[str]) -> Iterator[Records]:
        """Yield the records of ranges; of a topic that has lost some of them what is left.

        Args:
            ranges: of one topic.
            wanted: see `Converter.read_headers`.
        """
        try:
            batches = [*self.read(ranges)] if ranges else []
        except DependencyError as error:
            if error.code != EXPIRED:
                raise
            batches = [*self.read([one._replace(start=EARLIEST) for one in ranges])]
        for name, partition, parts in raw_records.by_partition(batches):
            yield raw_records.of(name, partition, parts, read_headers=wanted)


def _reached(before: PipelineState, table: str) -> bytes:
    """Return the newest position of events of a table that were read; `LOWEST` for none."""
    entry = before.tables.get(table)
    found = (
        bytes.fromhex(reached.position)
        for topic in (() if entry is None else entry.topics)
        for reached in before.applied.get(topic, {}).values()
    )
    return max(found, default=positions.LOWEST)
