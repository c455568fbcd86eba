"""The functions of Spark's Python workers: decode one Kafka partition, merge one table.

Plain functions over Arrow batches, without Spark: `decode` is the first stage of a batch, `merge`
the last; between them stands the operator (`reconcile.operator`). Everything they need travels in
the `BatchPlan`; their results for the driver come back as small reports.
"""

import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final
from zlib import crc32

import msgspec
import pyarrow as pa

from lakemark import failpoints
from lakemark.converters import record_schema
from lakemark.converters.registry import converter_of
from lakemark.errors import DependencyError, LakemarkError
from lakemark.model import change_batch
from lakemark.model.comparisons import Comparison
from lakemark.model.decoding import (
    ANOTHER_FORM,
    CONVERTER_CHECK,
    REPORT,
    ConverterChoice,
    DecodedRange,
    Records,
    Report,
    StretchPlan,
)
from lakemark.model.events import NOTHING_LEARNT, Headers, Kind, Learnt, SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.offsets import Offsets
from lakemark.model.schema import TableSchema
from lakemark.model.topic_owners import TopicOwners
from lakemark.reconcile import window
from lakemark.reconcile.outputs import COMPARED, COMPARISON, SURVIVORS
from lakemark.settings.masking import foreign
from lakemark.settings.table_id import unqualified
from lakemark.sink import apply, formats, verification
from lakemark.sink.lake_plan import OUTCOME, LakePlan, TableOutcome
from lakemark.sink.output import dead_letter, publisher
from lakemark.sink.output.publisher import OutputPlan, RowPublisher
from lakemark.sink.resolve import Part
from lakemark.source import changed_keys, decoder, fetch, raw_records
from lakemark.source.offset_ranges import OffsetRange

PACKET: Final = "packet"
STOP: Final = "stop"  # a stretch stops the table: nothing of the batch is applied to it

# What leaves the first stage: packets and reports for the tables, touches and marks for the
# shards of the operator, which lets the former pass. `source` and `first` give rows an order.
DECODED: Final = pa.schema(
    [
        ("shard", pa.int32()),
        ("kind", pa.string()),
        ("table", pa.string()),
        ("source", pa.string()),
        ("first", pa.int64()),
        ("slot", pa.int32()),
        ("blob", pa.binary()),
    ]
)
RESULT: Final = pa.schema([("kind", pa.string()), ("blob", pa.binary())])
DECODED_TYPES: Final = (
    ("shard", "int"),
    ("kind", "string"),
    ("table", "string"),
    ("source", "string"),
    ("first", "long"),
    ("slot", "int"),
    ("blob", "binary"),
)
"""`DECODED` in Spark's words."""
DECODED_DDL: Final = ", ".join(f"{name} {kind}" for name, kind in DECODED_TYPES)
RESULT_DDL: Final = "kind string, blob binary"


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The plan for the first stage of a batch.

    Attributes:
        stretch: how to decode.
        parts: what is each connector's own, by its qualifier: it comes in the place of what
            `stretch`, `epochs` and `output` have of the kind, see `of_topic`.
        owners: the connectors of topics.
        shards: number of shards of the operator.
        slots: number of merge tasks.
        slot_of: slots of tables whose load is known; others by hash.
        dead_letter_topic, kafka: where dead letters go, and librdkafka settings.
        epochs: first offsets of epochs 1, 2, …: a record's epoch is where it stands in Kafka.
        armed: whether a snapshot run is active: only then does the operator need touches.
        output: of the output topics; None without them.
    """

    stretch: StretchPlan
    shards: int = 1
    slots: int = 1
    slot_of: dict[str, int] = field(default_factory=dict)
    dead_letter_topic: str = ""
    kafka: Mapping[str, Any] = field(default_factory=dict)
    epochs: tuple[Offsets, ...] = ()
    armed: bool = False
    output: OutputPlan | None = None
    parts: Mapping[str, "PlanPart"] = field(default_factory=dict)
    owners: TopicOwners = field(default_factory=TopicOwners)

    def of_topic(self, topic: str) -> "DecodePlan":
        """Return the plan for the records of a topic, with what is its connector's own."""
        part = self.parts.get(self.owners(topic))
        if part is None:
            return self
        output = self.output and part.output(self.output)
        stretch = replace(
            self.stretch, identity=part.identity, modes=part.modes, outputs=part.outputs,
            converter=part.converter,
        )  # fmt: skip
        return replace(self, stretch=stretch, epochs=part.epochs, output=output)

    def slot(self, table: str) -> int:
        """Return the merge task of a table."""
        return self.slot_of.get(table, crc32(table.encode()) % self.slots)


@dataclass(frozen=True, slots=True)
class PlanPart:
    """The part of a `DecodePlan` that is one connector's.

    Attributes:
        identity, modes, converter, outputs: as in `StretchPlan`.
        epochs: as in `DecodePlan`.
        wrapped, learnt, writer: as in `OutputPlan`.
    """

    identity: SourceIdentity
    modes: HandlingModes
    converter: ConverterChoice
    outputs: bool = False
    epochs: tuple[Offsets, ...] = ()
    wrapped: bool = False
    learnt: Learnt = NOTHING_LEARNT
    writer: ConverterChoice | None = None

    def output(self, plan: OutputPlan) -> OutputPlan:
        """Return the plan of the output topics for this connector."""
        return replace(
            plan,
            wrapped=self.wrapped,
            learnt=self.learnt,
            converter=self.converter,
            writer=self.writer,
        )


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Everything the tasks of one batch need: how to decode, where and how to write."""

    decode: DecodePlan
    lake: LakePlan

    @property
    def publishing(self) -> "Publishing | None":
        """The plan for the output topics, for the merging tasks; None without them."""
        plan, output = self.decode, self.decode.output
        stretch = plan.stretch
        if output is None:
            return None
        converts = output.writer or any(part.writer for part in plan.parts.values())
        schemas = stretch.schemas if converts else {}
        return Publishing(output, stretch.modes, plan.kafka, plan.parts, schemas)


@dataclass(frozen=True, slots=True)
class Publishing:
    """The way of rows from merging tasks to the output topics.

    Attributes:
        plan, modes: what `parts` have for a table's connector comes in the place of theirs.
        kafka: librdkafka settings.
        parts: see `DecodePlan`.
        schemas: see `StretchPlan`.
    """

    plan: OutputPlan
    modes: HandlingModes
    kafka: Mapping[str, Any] = field(repr=False)
    parts: Mapping[str, PlanPart] = field(default_factory=dict)
    schemas: Mapping[str, TableSchema] = field(default_factory=dict)

    def of(self, table: str, survivors: Sequence[pa.Table], parts: Sequence[Part]) -> RowPublisher:
        """Return the publisher of one table's rows."""
        packets_of = [part.packet for part in parts]
        found = (part for name, part in self.parts.items() if unqualified(name, table) is not None)
        own = next(found, None)
        modes, plan = (self.modes, self.plan) if own is None else (own.modes, own.output(self.plan))
        return RowPublisher(
            table, plan.told(self.kafka), modes, survivors, packets_of, self.schemas.get(table)
        )


def decode_ranges(
    ranges: Sequence[OffsetRange], client: Mapping[str, Any], plan: DecodePlan
) -> Iterator[pa.RecordBatch]:
    """Read ranges of Kafka partitions and decode them: see `fetch.records` and `decode`.

    Raises:
        DependencyError, InvalidConfig, LoginRefused: as these say.
    """
    # What is written to the output topics has the headers that it came with.
    found = fetch.records(ranges, client, context=plan.output is not None)
    # Whatever decoding ends by, the reader that the process keeps is not left with these ranges.
    with closing(found):
        yield from decode(found, plan)


def decode(batches: Iterable[pa.RecordBatch], plan: DecodePlan) -> Iterator[pa.RecordBatch]:
    """Decode records of Kafka partitions to packets, reports and touches: the first stage.

    Dead letters and what goes to the output topics are written before anything is handed on.

    Raises:
        DependencyError: they could not be written.
    """
    reached: dict[tuple[str, int], DecodedRange] = {}
    for topic, partition, parts in raw_records.by_partition(batches):
        own, before = plan.of_topic(topic), reached.get((topic, partition))
        for done, rows in _decoded(topic, partition, parts, _after(own, before)):
            reached[topic, partition] = done
            yield from rows


def _decoded(
    topic: str, partition: int, parts: list[pa.RecordBatch], plan: DecodePlan
) -> Iterator[tuple[DecodedRange, Iterator[pa.RecordBatch]]]:
    """Decode records of one partition: yield its stretches, each with the rows that come of it."""
    output = plan.output and plan.output.told(plan.kafka)
    converter = converter_of(plan.stretch.converter)
    quick = None if output or plan.armed else _plain(topic, partition, parts, plan)
    if quick is not None:
        failpoints.reach(failpoints.AFTER_DECODE)
        yield quick, iter([_rows(_packets(quick, plan, NOTHING_LEARNT))])
        return
    whole, done = (
        raw_records.of(
            topic,
            partition,
            parts,
            every_header=output is not None,
            read_headers=converter.read_headers,
        ),
        None,
    )
    for epoch, records in raw_records.by_epoch(whole, plan.epochs):
        plan = _after(plan, done)
        now = plan.stretch.of_epoch(epoch)
        heads = converter.headers(records, now)
        if not now.outputs and raw_records.told_by_lakemark(parts):
            heads.kind[:] = [int(Kind.OUTPUT)] * len(heads)
        done = decoder.decode_range(records, now, heads)
        _require_asked(done, now)
        dead_letter.write(done.dead, topic=plan.dead_letter_topic, client=plan.kafka)
        if output is not None:
            publisher.forward(
                records,
                heads,
                done,
                output,
                schemas=now.schemas,
                modes=now.modes,
                numerics=now.numerics,
                definitions=now.definitions,
            )
        failpoints.reach(failpoints.AFTER_DECODE)
        yield done, _told(records, heads, done, plan)


def _require_asked(done: DecodedRange, plan: StretchPlan) -> None:
    """Raise DependencyError at a record of another form that is of no table, as a signal's row is.

    A table with such records waits until its connector is asked; for these the whole batch does: it
    is repeated with the converters that the connectors have then.
    """
    odd = next((one for one in done.dead if one.reason == ANOTHER_FORM), None)
    if odd is not None and not plan.converter_asked:
        raise DependencyError(
            f"{odd.topic}-{odd.partition} offset {odd.offset} has not the form of the converter"
            " that the connector had when it was asked",
            code=CONVERTER_CHECK,
            hint="nothing: the connector is asked again, and the batch repeated",
        )


def _told(
    records: Records, heads: Headers, done: DecodedRange, plan: DecodePlan
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a stretch: packets and its report, then what the shards have to know."""
    converter = converter_of(plan.stretch.converter)
    learnt = converter.learn(records, heads) if plan.output is not None else NOTHING_LEARNT
    yield _rows(_packets(done, plan, learnt))
    if plan.armed:
        yield _rows(_touches(records, heads, plan, done.keys))


def _plain(
    topic: str, partition: int, parts: list[pa.RecordBatch], plan: DecodePlan
) -> DecodedRange | None:
    """Return the stretch, if its converter has a faster way for it: see `Converter.plain_range`."""
    ends = [int(part.column("offset")[at].as_py()) for part, at in ((parts[0], 0), (parts[-1], -1))]
    epoch = raw_records.epoch_of(topic, partition, (ends[0], ends[1]), plan.epochs)
    if epoch is None or not raw_records.without_headers(parts):
        return None
    converter = converter_of(plan.stretch.converter)
    return converter.plain_range(topic, partition, parts, plan.stretch.of_epoch(epoch))


def _after(plan: DecodePlan, done: DecodedRange | None) -> DecodePlan:
    """Return the plan for records behind a stretch in its partition; mostly there is none before.

    It copies the applied positions of all partitions.
    """
    if done is None:
        return plan
    applied = {**plan.stretch.applied, (done.topic, done.partition): done.applied_position}
    return replace(plan, stretch=replace(plan.stretch, applied=applied))


_Row = tuple[int, str, str, str, int, int, bytes]


def _packets(done: DecodedRange, plan: DecodePlan, learnt: Learnt) -> list[_Row]:
    source = f"{done.topic}/{done.partition}"
    shard = crc32(source.encode()) % plan.shards  # any: the operator lets them pass
    if plan.output is not None:  # the state does not know it before the batch is applied
        news = learnt.beyond(plan.output.learnt)
        done.packets = [
            (table, change_batch.with_metadata(packet, learnt=news.of(table)))
            for table, packet in done.packets
        ]
    order = done.first << 20  # packets of one stretch keep their order: at most one per record
    rows: list[_Row] = [
        (shard, PACKET, table, source, order + at, plan.slot(table), change_batch.encode(packet))
        for at, (table, packet) in enumerate(done.packets)
    ]
    rows += [
        (shard, STOP, table, source, order, plan.slot(table), b"")
        for table in sorted(done.stopped())
    ]
    report = Report(
        done.topic,
        done.partition,
        done.first,
        done.last,
        done.applied_position.position,
        done.applied_position.source_ts,
        done.tables,
        done.kinds,
        len(done.dead),
        done.regressed,
        done.applied_position.creates,
        learnt,
        done.beginnings,
        dict(done.applied_position.seen),
        plan.stretch.identity.qualifier,
        done.statements,
    )
    return [*rows, (shard, REPORT, "", source, order, 0, msgspec.msgpack.encode(report))]


def _touches(
    records: Records, heads: Headers, plan: DecodePlan, made: Mapping[int, bytes | None]
) -> list[_Row]:
    """Return a stretch's rows for the shards; never raises: a bad record is a dead letter.

    Args:
        records: the stretch.
        heads: its headers.
        plan: of the batch.
        made: the canonical keys that its tables have, see `DecodedRange.keys`.
    """
    converter = converter_of(plan.stretch.converter)
    canonical = record_schema.canonical(
        converter,
        heads,
        heads.readable(records.keys),
        schemas=plan.stretch.schemas,
        numerics=plan.stretch.numerics,
        made=made,
    )
    packed = changed_keys.pack_touches(converter, heads, canonical, shards=plan.shards)
    place, first = f"{records.topic}/{records.partition}", records.offsets[0]
    source = window.source_of(plan.stretch.identity.qualifier, place)
    rows: list[_Row] = [
        (shard, changed_keys.TOUCHES_KIND, "", source, first, 0, blob)
        for shard, blob in packed.touches.items()
    ]
    if packed.marks is not None:
        rows += [
            (shard, changed_keys.MARKS_KIND, "", source, first, 0, packed.marks)
            for shard in range(plan.shards)
        ]
    return rows


def _rows(rows: Sequence[_Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(DECODED)
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, DECODED, strict=True)], schema=DECODED
    )


def merge(
    batches: Iterable[pa.RecordBatch], plan: LakePlan, publish: Publishing | None = None
) -> Iterator[pa.RecordBatch]:
    """Write the packets of some tables to the lake: the last stage; the driver's rows pass.

    Nothing is applied to a table that a stretch of the batch stops: it is read again whole. Rows of
    snapshots are left alone where the table does not stream: their chunks are read again.

    One table's error is its own: it comes back as an outcome, the other tables go on. Tables with
    little to apply come first: they do not wait for a chunk of another. Tables that begin are put
    off where the others would wait for too many of them.

    Rows are taken in an order of their own, not in that of the shuffle, in which they come again
    otherwise: output topics count records by their place.
    """
    parts: dict[str, list[Part]] = {}
    sizes: Counter[str] = Counter()
    survivors: dict[str, list[pa.Table]] = {}
    comparisons: dict[str, list[Comparison]] = {}
    stopped: set[str] = set()
    said: list[tuple[str, bytes]] = []
    columns = ("table", "source", "first", "kind", "blob")
    came = (row for batch in batches for row in batch.select(columns).to_pylist())
    for table, source, first, kind, blob in sorted(tuple(row.values()) for row in came):
        if kind == STOP:
            stopped.add(table)
        elif kind == COMPARISON:
            if table not in plan.stopped:
                compared = msgspec.msgpack.decode(blob, type=Comparison)
                comparisons.setdefault(table, []).append(compared)
        elif kind not in {PACKET, SURVIVORS}:
            said.append((kind, blob))
        elif kind == PACKET or table not in plan.stopped:
            packet, filed = change_batch.parted(blob)
            part = Part(source, first, packet, crc32(blob), filed)
            parts.setdefault(table, []).append(part)
            sizes[table] += len(blob)
            if kind == SURVIVORS:
                survivors.setdefault(table, []).append(part.packet)
    for table in sorted(comparisons.keys() - stopped):
        results, mended = verification.compared(table, comparisons[table], plan)
        said += [(COMPARED, msgspec.msgpack.encode(one)) for one in results]
        if mended:
            parts.setdefault(table, []).extend(mended)
            survivors.setdefault(table, []).extend(part.packet for part in mended)
    ordered = sorted(parts.keys() - stopped, key=lambda name: (sizes[name], name))
    put_off = (
        [table for table in ordered if plan.is_new(table)][plan.begins :] if plan.begins else []
    )
    said += [(OUTCOME, msgspec.msgpack.encode(TableOutcome(t, put_off=True))) for t in put_off]
    for table in ordered:
        if table in put_off:
            continue
        found = parts[table]
        rows = publish.of(table, survivors.get(table, []), found) if publish else None
        said.append((OUTCOME, msgspec.msgpack.encode(_apply(table, found, plan, rows))))
    formats.format_named(plan.format).settle()
    kinds, blobs = [kind for kind, _ in said], [blob for _, blob in said]
    yield pa.RecordBatch.from_arrays(
        [pa.array(kinds, pa.string()), pa.array(blobs, pa.binary())], schema=RESULT
    )


def _apply(
    table: str, parts: list[Part], plan: LakePlan, publish: RowPublisher | None
) -> TableOutcome:
    try:
        return apply.apply(table, parts, plan, publish=publish)
    except LakemarkError as error:
        return TableOutcome(
            table,
            code=error.code,
            reason=error.message,
            hint=error.hint,
            retried=error.retried,
        )
    except Exception as error:  # noqa: BLE001 - a bug met by one table must not stop the others
        return TableOutcome(
            table,
            code="internal-error",
            reason=f"{type(error).__name__}: {foreign(error)}",
            hint="this is a defect of lakemark: please report it with the log of the worker",
            trace=foreign(traceback.format_exc(limit=20)),
        )
