"""The records of a batch for the output topics: events while decoding, rows while merging.

Order of effects, per table: the events of a batch are written by the decoding tasks, all of them
before any merging begins; then, by the table's merging task and before its Delta commit, the rows
of snapshots and the deletes of rows that a truncate or a sweep removes. So a key's records stand in
source order, and what a truncate removes is still in the lake when it is asked for.

Exactly once, see `output.transaction`. A table that does not stream writes nothing; its catch-up
does.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemark.converters import record_schema
from lakemark.converters.converter import Converter, not_ready
from lakemark.converters.registry import converter_of
from lakemark.errors import DependencyError, LakemarkError
from lakemark.kafka.output_names import group_of, topic_of
from lakemark.model import change_batch, positions
from lakemark.model.decoding import ANY_CONVERTER, ConverterChoice, DecodedRange, Records
from lakemark.model.definitions import Definitions, in_force
from lakemark.model.events import NOTHING_LEARNT, Headers, Kind, Learnt
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import canonical_from_columns, stored
from lakemark.model.schema import TableSchema
from lakemark.settings.config import DELTA
from lakemark.settings.masking import foreign
from lakemark.sink import formats
from lakemark.sink.names import CDC
from lakemark.sink.output import output_records, row_events, transaction, writers
from lakemark.sink.output.conversion import Conversion
from lakemark.sink.output.output_records import Cells, Message
from lakemark.sink.output.row_events import Style
from lakemark.sink.output.transaction import MarkSource, OutputTarget
from lakemark.sink.table_format import TableReader

ROWS: Final = "rows"
_OF_TABLE: Final = "lake-"  # codes of what may be away of one table alone
NO_DEFINITIONS: Final[Mapping[str, Definitions]] = MappingProxyType({})
AT_ONCE: Final = 50_000  # records of one transaction of rows


@dataclass(frozen=True, slots=True)
class Row:
    """The path of a table's rows, and its change topic; the others as in `TablePlan`."""

    path: str
    stale: frozenset[str] | None = frozenset()
    truncated_at: bytes | None = None
    topic: str = ""


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """The plan of a batch's tasks for the output topics.

    Attributes:
        pipeline: its name.
        prefix: of the topics.
        control: the control topic, under which the marks of rows are kept.
        query: id of the streaming query.
        batch: batch id; the marks of a batch's rows are above those of the batches before.
        wrapped: whether records carry their schemas.
        resolve: whether TOAST values are put in.
        max_bytes: of a record, where topics are made.
        learnt: what the connector's events have shown of how it writes.
        key_schemas: key columns by table.
        topic_ids: of the change topics.
        rows: by table.
        options: storage options of the lake.
        format: name of its tables' format.
        client: librdkafka settings.
        converter: what reads the records, and writes others like them.
        writer: what writes the topics; None where that is the same.
        converts: whether records of another form than the writer's are changed.
    """

    pipeline: str
    prefix: str
    control: str
    query: str
    batch: int
    wrapped: bool = False
    resolve: bool = True
    max_bytes: int = 5 << 20
    learnt: Learnt = NOTHING_LEARNT
    key_schemas: Mapping[str, TableSchema] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, Row] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    format: str = DELTA
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)
    converter: ConverterChoice = ANY_CONVERTER
    writer: ConverterChoice | None = None
    converts: bool = True

    def conversion(self, table: str, *, converts: bool) -> Conversion:
        """Return the way of a table's records to the form of its topic.

        Args:
            table: id of the table.
            converts: see `Departing`.
        """
        return Conversion(
            table,
            topic_of(self.prefix, table),
            converter_of(self.converter),
            None if self.writer is None else converter_of(self.writer),
            converts,
        )

    def told(self, client: Mapping[str, Any]) -> "OutputPlan":
        """The plan with Kafka's settings, which do not travel with it."""
        return replace(self, client=client)

    def reader_of(self, row: Row) -> TableReader:
        """Return the reader of a table of the lake."""
        return formats.format_named(self.format).reader_of(row.path, self.options)

    def target(self, table: str, like: str = "") -> OutputTarget:
        """The output topic of a table, and its marks' group."""
        return OutputTarget(
            topic_of(self.prefix, table),
            group_of(self.pipeline, table),
            like=like,
            max_bytes=self.max_bytes,
            client=self.client,
        )


def forward(
    records: Records,
    heads: Headers,
    done: DecodedRange,
    plan: OutputPlan,
    *,
    schemas: Mapping[str, TableSchema],
    modes: HandlingModes,
    numerics: record_schema.Numerics = record_schema.NO_NUMERICS,
    definitions: Mapping[str, Definitions] = NO_DEFINITIONS,
) -> None:
    """Writes a stretch's events that count; a table whose topic does not take them stops.

    Args:
        records: the stretch, with all its headers.
        heads: its decoded headers.
        done: what came of it; tables that stop are noted here, and lose their packets.
        plan: of the batch.
        schemas: tables known from catalog or file.
        modes: the connector's settings.
        numerics: as for `record_schema.schema_of`.
        definitions: as in `StretchPlan`.

    Raises:
        DependencyError: the brokers are away, or who has the schemas of the topics.
    """
    source = MarkSource(records.topic, records.partition, plan.topic_ids.get(records.topic, ""))
    for table, indices in done.applied.items():
        known = _Known(table, plan, schemas, modes, records, heads, numerics, definitions)
        try:
            found = _events(known, indices, resolve=plan.resolve and not done.dead)
            conversion = plan.conversion(table, converts=plan.converts)
            found = conversion(found, known.learnt_of)
            writers.write(plan.target(table, records.topic), source, done.last + 1, found)
        except LakemarkError as error:
            if isinstance(error, DependencyError) and not error.code.startswith(_OF_TABLE):
                raise
            _stop(done, table, error.code, error.message)
        except Exception as error:  # noqa: BLE001 - a bug met by one table must not stop the others
            _stop(done, table, "internal-error", f"{type(error).__name__}: {foreign(error)}")


def _events(known: "_Known", indices: Sequence[int], *, resolve: bool) -> list[Message]:
    records, heads, values = known.records, known.heads, {}
    row = known.plan.rows.get(known.table)
    if row is not None and row.truncated_at is not None:  # it came late: its row is deleted already
        truncated_at = row.truncated_at
        indices = [
            i for i in indices if not positions.below_truncate(heads.position[i], truncated_at)
        ]
    if resolve:
        values = output_records.resolved(
            known.converter,
            records,
            heads,
            indices,
            schema_of=known.schema,
            modes=known.modes,
            known=known.rows,
        )
    return output_records.messages(
        records, heads, indices, pipeline=known.plan.pipeline, values=values
    )


def _stop(done: DecodedRange, table: str, code: str, reason: str) -> None:
    done.tables[table].stop = code, reason
    done.packets = [(t, packet) for t, packet in done.packets if t != table]


@dataclass(slots=True)
class _Known:
    """The table's values of the rows of some events."""

    table: str
    plan: OutputPlan
    schemas: Mapping[str, TableSchema]
    modes: HandlingModes
    records: Records
    heads: Headers
    numerics: record_schema.Numerics
    definitions: Mapping[str, Definitions] = field(default_factory=dict)
    _of: dict[bytes | int | None, TableSchema | None] = field(default_factory=dict)
    _learnt: dict[int, Learnt] = field(default_factory=dict)
    _shown: Learnt | None = None
    _places: dict[int, int] = field(default_factory=dict)
    _newest: TableSchema | None = None

    @property
    def converter(self) -> Converter:
        """The converter that reads the events."""
        return converter_of(self.plan.converter)

    def schema(self, at: int) -> TableSchema | None:
        """The schema of an event."""
        raw, schemas = self.heads.schema[at], self.schemas
        defined = self.definitions.get(self.table) if raw is None else None
        written_by: bytes | int | None = raw
        if defined:
            written_by = in_force(defined, self.heads.position[at])
            schemas = {self.table: defined[written_by].schema}
        if written_by not in self._of:
            self._of[written_by] = record_schema.schema_of(
                self.converter,
                self.table,
                raw_schema=raw,
                raw_key=self.heads.keys.get(at, self.records.keys[at]),
                schemas=schemas,
                numerics=self.numerics,
            )
        self._newest = self._of[written_by] or self._newest
        return self._of[written_by]

    def learnt_of(self, message: Message) -> Learnt:
        """Return what is known of how the event was written that a message is of."""
        if self._shown is None:
            self._shown = Learnt(self._event())
            self._places = {offset: at for at, offset in enumerate(self.records.offsets)}
        schema = self.schema(self._places[message.at])
        if schema is None:
            return self._shown
        if id(schema) not in self._learnt:
            self._learnt[id(schema)] = self.converter.described(schema, self._shown)
        return self._learnt[id(schema)]

    def _event(self) -> bytes:
        """Return an event of the connector; before the first one a row that it has read itself.

        Such a row has all fields of an event, but is no model of other rows: `Converter.learn`
        passes over it.
        """
        known = self.plan.learnt.event or self.converter.learn(self.records, self.heads).event
        if known:
            return known
        kinds = [Kind.CHANGE if kind == Kind.OWN_SNAPSHOT else kind for kind in self.heads.kind]
        return self.converter.learn(self.records, replace(self.heads, kind=kinds)).event

    def rows(self, first: Mapping[bytes, bytes]) -> Mapping[bytes, Cells]:
        """Values of the rows as the batch before left them; see `output_records.Known`."""
        row, schema = self.plan.rows.get(self.table), self._newest
        if row is None or schema is None or row.stale is None:
            return {}
        raw = list(first)
        named = self.converter.canonical_keys(raw, schema)
        kinds = [schema.column(name).type for name in schema.key]
        by_name = {
            stored(name, kinds): key
            for name, key in zip(named, raw, strict=True)
            if name is not None and name.decode("utf-8", "replace") not in row.stale
        }
        columns = [schema.column(name) for name in schema.key]
        narrow = TableSchema(self.table, tuple(columns), schema.key)
        images = [self.converter.key_image(key) for key in by_name.values()]
        wanted = self.converter.rows(images, narrow, self.modes).columns
        asked = pa.Table.from_struct_array(wanted)
        found = self.plan.reader_of(row).read_rows(asked)
        if not found.num_rows or CDC not in found.column_names:
            return {}
        names = canonical_from_columns(
            [_whole(found.column(c.name)) for c in columns], columns
        ).to_pylist()
        return self._cells(found, schema, [by_name.get(name) for name in names], first)

    def _cells(
        self,
        found: pa.Table,
        schema: TableSchema,
        raw: Sequence[bytes | None],
        first: Mapping[bytes, bytes],
    ) -> Mapping[bytes, Cells]:
        columns = {
            column.name: _whole(found.column(column.name))
            for column in schema.columns
            if found.schema.get_field_index(column.name) >= 0
            and found.column(column.name).type == column.type
        }
        cdc = found.column(CDC).to_pylist()
        given: dict[bytes, dict[str, bytes]] = {}
        for name, cells in self.converter.cells_of(columns, schema, self.modes).items():
            for key, row, cell in zip(raw, cdc, cells, strict=True):
                if key is None or row.get("deleted") or row["position"] > first[key]:
                    continue
                if name not in (row["unavailable"] or ()):
                    given.setdefault(key, {})[name] = cell
        return given


@dataclass(frozen=True, slots=True)
class RowPublisher:
    """Writes one table's snapshot rows and deletes, before its Delta commit.

    Attributes:
        table: which.
        plan: of the batch.
        modes: the connector's settings.
        survivors: what the shards let pass.
        parts: all packets of the batch.
        schema: of the table, from catalog or file; None where nobody knows it.
    """

    table: str
    plan: OutputPlan
    modes: HandlingModes
    survivors: Sequence[pa.Table]
    parts: Sequence[pa.Table]
    schema: TableSchema | None = None

    def __call__(self, truncate: bytes, content: int) -> None:
        """Does it, once for each batch and content: a repeated batch may do in its catch-up what it
        did in the stream before, and the other way round.

        Args:
            truncate: position of the newest truncate or sweep; empty = none.
            content: a digest of what is to be applied.

        Raises:
            TableError, DependencyError: see `transaction.write`, `row_events`.
        """
        self._write(self._messages(truncate), content, place=0)

    def completed(self, rows: pa.Table, content: int) -> None:
        """Writes rows whose newest events went out with placeholders, now that they are whole.

        Of rows that a chunk has completed only: what a key change brings with it is not told apart.

        Args:
            rows: see `Resolution.completed`.
            content: as above.

        Raises:
            TableError, DependencyError: see `transaction.write`, `row_events`.
        """
        told = [given for packet in self.survivors if (given := change_batch.schema_of(packet))]
        if self.plan.resolve and told:
            schema = TableSchema.from_json(told[-1])
            found = row_events.of_completed(rows, schema, self._style())
            self._write(found, content, place=transaction.BATCH >> 1)

    def _write(self, found: Iterator[Message], content: int, *, place: int) -> None:
        """Writes records that are counted from a place among those of the batch."""
        plan, first = self.plan, self.plan.batch * transaction.BATCH
        source = MarkSource(plan.control, 0, plan.query, ROWS, str(content), first)
        target = plan.target(self.table, row.topic if (row := plan.rows.get(self.table)) else "")
        at, learnt = first + place, self._style().learnt
        described = self.table not in learnt.tables  # the rows are as its columns say
        conversion = plan.conversion(self.table, converts=plan.converts or described)
        while some := conversion([*islice(found, AT_ONCE)], lambda _: learnt):
            piece = [message._replace(at=at + n) for n, message in enumerate(some)]
            at += len(piece)
            writers.write(target, source, at, piece)

    def _messages(self, truncate: bytes) -> Iterator[Message]:
        """All of them, in the same order whenever it is asked."""
        style = self._style()
        if truncate:
            yield from self._removed(truncate, style)
        for packet in self.survivors:
            given = change_batch.schema_of(packet)
            if given is not None:
                schema = TableSchema.from_json(given)
                yield from row_events.of_chunk(packet, schema, style)

    def _style(self) -> Style:
        """Return the style of the rows, by the state, else by what the packets bring."""
        plan, learnt = self.plan, NOTHING_LEARNT
        for packet in reversed(self.parts):
            learnt = learnt.joined(change_batch.learnt_of(packet, self.table))
        return Style(
            plan.pipeline,
            self.table,
            converter_of(plan.converter),
            self.modes,
            learnt.joined(plan.learnt.of(self.table)),
            plan.wrapped,
            time.time_ns(),
            plan.writer is not None,
            self.schema,
        )

    def _removed(self, truncate: bytes, style: Style) -> Iterator[Message]:
        """The deletes of what a truncate or a sweep removes: rows of the lake and of the batch."""
        narrow = self._key_schema(style)
        if narrow is None:
            return
        row = self.plan.rows.get(self.table)
        below, above = row_events.born_below(self.parts, truncate)
        kinds = [column.type for column in narrow.columns]
        above = {stored(name, kinds) for name in above}
        born = [part for packet in self.parts if (part := _born(packet, below, narrow))]
        found = [_keyed(part, narrow) for part in born]
        if row is not None:
            lake = self.plan.reader_of(row).keys_below(truncate, key=narrow.key)
            found.append(_keyed(lake.cast(narrow.arrow()), narrow, without=found))
        every = pa.concat_tables(found) if found else None
        if every is None or not every.num_rows:
            return
        every = every.filter(
            pc.invert(
                pc.is_in(every.column("name"), value_set=pa.array(sorted(above), pa.binary()))
            )
        ).sort_by("name")
        for begin in range(0, every.num_rows, AT_ONCE):
            gone = _whole(every.column("row").slice(begin, AT_ONCE))
            yield from row_events.of_removed(gone, narrow, style, truncate)

    def _key_schema(self, style: Style) -> TableSchema | None:
        """The table's key; None if nobody knows it, and there is no row either.

        Raises:
            TableError: `output-not-ready`: nobody knows how its keys are written.
        """
        known = self.plan.key_schemas.get(self.table)
        if known is None:
            known = style.converter.learnt_key(self.table, style.learnt)
        if known is None and self.table in self.plan.rows:
            raise not_ready(f"how keys of {self.table} are written is not known")
        return known


def _keyed(rows: pa.Table, key: TableSchema, *, without: Sequence[pa.Table] = ()) -> pa.Table:
    """Rows (`row`) with their canonical keys (`name`), those of other rows left out."""
    columns = [_whole(column) for column in rows.columns]
    row = pa.StructArray.from_arrays(columns, fields=list(rows.schema))
    named = pa.table({"name": canonical_from_columns(columns, list(key.columns)), "row": row})
    for other in without:
        known = pc.is_in(named.column("name"), value_set=other.column("name"))
        named = named.filter(pc.invert(known))
    return named


def _born(packet: pa.Table, keys_of: set[bytes], narrow: TableSchema) -> pa.Table | None:
    """The key columns of the rows with these keys."""
    if not keys_of:
        return None
    wanted = pc.is_in(packet.column("key"), value_set=pa.array(sorted(keys_of), pa.binary()))
    images = packet.filter(pc.and_(wanted, pc.is_valid(packet.column("row")))).column("row")
    if not len(images) or any(images.type.get_field_index(n) < 0 for n in narrow.key):
        return None
    columns = [_whole(images).field(name) for name in narrow.key]
    return pa.table(columns, names=list(narrow.key)).cast(narrow.arrow())


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)
