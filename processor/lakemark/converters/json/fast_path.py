"""A stretch of plain change events, without a Python object for an event.

The usual stretch is nothing but inserts, updates and deletes of one table, all of one form.
`scan_events` finds their parts in Arrow's own buffers and each key's newest event; only the images
of these are read on, column by column (`typed`). Where a stretch has anything else in it, or an
image that says more than its values, `decode_range` says so and changes nothing.

What it returns is what `decoder.decode_range` would, with two exceptions. It has no `applied`: who
needs that goes the general way. And it never reads an older event of a key; the general way does
where the newest one has a text that might be a placeholder and is none, and may find fault with it.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple, get_origin

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemark.converters import compiler
from lakemark.converters.compiler import Bytes, Offsets, Whole
from lakemark.converters.converter import Converter
from lakemark.converters.hidden_nulls import note_defaults
from lakemark.converters.json import envelope, keys
from lakemark.converters.json.compiled import scan_cells, scan_events
from lakemark.converters.json.compiled.scan_json import DIGITS
from lakemark.converters.json.rows import Layout, layout
from lakemark.converters.json.values import Codec, nullable
from lakemark.converters.record_schema import compare, schema_for
from lakemark.model import change_batch, decoding, positions
from lakemark.model import columns as columns_of
from lakemark.model.civil import Tally
from lakemark.model.decoding import AppliedPosition, DecodedRange, StretchPlan, TableReport
from lakemark.model.definitions import in_force
from lakemark.model.events import Kind, SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.positions import LoggedEvent, PositionRules
from lakemark.model.schema import TableSchema

_MOST: Final = 2**31 - 1  # bytes of an Arrow array with 32 bit offsets
_CREATE, _UPDATE, _DELETE = ord("c"), ord("u"), ord("d")
_OPS: Final = np.zeros(256, np.int8)
_OPS[[_UPDATE, _CREATE, _DELETE]] = [0, 1, 2]
_OP_NAMES: Final = pa.array(["u", "c", "d"])


class _NotPlainError(Exception):
    """The stretch goes the general way."""


class BinaryColumn(NamedTuple):
    """One Arrow array of bytes: the array, its bytes, and where each value begins and ends."""

    array: pa.Array
    data: Bytes
    offsets: Offsets

    def at(self, index: int) -> bytes:
        """One value."""
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()


class Events(NamedTuple):
    """The parts of a stretch's events, and the first one's source block: see `scan_events`.

    `rules` are those of their positions.
    """

    rows: Whole
    op: Bytes
    before: Whole
    after: Whole
    stamp: Whole
    who: Whole
    rules: PositionRules

    def upto(self, count: int) -> "Events":
        """The first events."""
        return Events(
            self.rows[:count],
            self.op[:count],
            self.before[:count],
            self.after[:count],
            self.stamp[:count],
            self.who,
            self.rules,
        )

    def position(self, epoch: int, at: Sequence[int] | Whole) -> npt.NDArray[np.uint8]:
        """The positions of some events, a row of bytes each: see `positions`."""
        return self.rules.of_numbers(self.numbers[at], epoch)

    @property
    def numbers(self) -> Whole:
        """The numbers of their positions."""
        return self.stamp[:, : len(self.rules.most)]

    @property
    def times(self) -> Whole:
        """Their times in the source, in microseconds."""
        return self.stamp[:, scan_events.NUMBERS]


def decode_range(
    converter: Converter,
    topic: str,
    partition: int,
    parts: Sequence[pa.RecordBatch],
    plan: StretchPlan,
) -> DecodedRange | None:
    """Return the result of `decoder.decode_range`; None where the records are not all plain.

    Args:
        converter: that of JSON.
        topic: theirs.
        partition: theirs.
        parts: the records of one stretch, as `fetch.SCHEMA` has them; without headers.
        plan: how to decode.
    """
    if not compiler.usable() or {*plan.partial, *plan.fills}.intersection(
        plan.carried.get(topic, ())
    ):
        return None
    records = pa.Table.from_batches(parts)
    offsets = records.column("offset").to_numpy()
    try:
        _require((np.diff(offsets) > 0).all())
        values, names = column(records.column("value")), column(records.column("key"))
        _require(np.diff(values.offsets).max(initial=0) <= plan.max_event_bytes)
        events, raw_schema = scanned(values)
        table = _table(values, events, plan)
        start = plan.applied.get((topic, partition), AppliedPosition())
        reached = _reached(values, events, start, plan.epoch)
        # Each has a key.
        _require((names.offsets[events.rows] < names.offsets[events.rows + 1]).all())
        raw_key = names.at(int(events.rows[0]))
        schema = schema_for(
            converter,
            table,
            raw_schema=raw_schema,
            raw_key=raw_key,
            schemas=plan.schemas if raw_schema else _defined(table, events, plan),
            keyed=bool(plan.known_keys.get(table)),
            modes=plan.modes,
            numerics=plan.numerics,
        )
        if not isinstance(schema, TableSchema):
            return None
        report = TableReport(
            events=len(events.rows),
            twice=_twice(events, start, plan.epoch),
            newest_ts=int(events.times.max()),
            deletes=int((events.op == _DELETE).sum()),
            updates=int((events.op == _UPDATE).sum()),
        )
        if raw_schema:
            compare(report, converter, raw_schema, schema, plan.schemas.get(table))
        packet, report.clamped = _packet(values, names, events, schema, plan)
        if raw_schema:
            note_defaults(
                report,
                packet,
                converter=converter,
                raw_schema=raw_schema,
                schema=schema,
                modes=plan.modes,
            )
    except _NotPlainError:
        return None
    kinds = {int(Kind.CHANGE): len(events.rows)}
    if len(events.rows) < len(offsets):
        kinds[int(Kind.TOMBSTONE)] = len(offsets) - len(events.rows)
    ends = int(offsets[0]), int(offsets[-1])
    return DecodedRange(
        topic, partition, *ends, [(table, packet)], [], {table: report}, reached, kinds
    )


def _defined(table: str, events: Events, plan: StretchPlan) -> Mapping[str, TableSchema]:
    """Return the schemas by which all events were written; they are in the log's order.

    Raises:
        _NotPlainError: not all by one.
    """
    known = plan.definitions.get(table)
    if known is None:
        return plan.schemas
    ends = (in_force(known, one.tobytes()) for one in events.position(plan.epoch, [0, -1]))
    first, last = ends
    _require(first == last)
    return {table: known[first].schema}


def example(converter: Converter) -> None:
    """A plain event with columns of every kind.

    Raises:
        RuntimeError: it is not taken for one.
    """
    value = (
        b'{"after":{"id":1,"text":"","raw":"","flag":true,"amount":1.5,"ratio":0.5},"source":'
        b'{"connector":"postgresql","name":"","snapshot":"false","db":"","schema":"s","table":"t",'
        b'"sequence":"[\\"8\\",\\"16\\"]","ts_us":1},"op":"c"}'
    )
    columns = (
        columns_of.Column("id", pa.int64(), wire="int64"),
        columns_of.Column("text", pa.string()),
        columns_of.Column("raw", pa.binary(), wire="bytes"),
        columns_of.Column("flag", pa.bool_(), wire="boolean"),
        columns_of.Column("amount", pa.decimal128(5, 1), columns_of.DECIMAL, wire="bytes"),
        columns_of.Column("ratio", pa.float64(), wire="double"),
    )
    batch = pa.RecordBatch.from_pydict({
        "offset": pa.array([0]),
        "key": pa.array([b'{"id":1}']),
        "value": pa.array([value]),
    })  # fmt: skip
    modes = HandlingModes(decimal_format="NUMERIC")
    schemas = {"s.t": TableSchema("s.t", columns, ("id",))}
    if (
        decode_range(converter, "", 0, [batch], StretchPlan(SourceIdentity("", ""), modes, schemas))
        is None
    ):
        raise RuntimeError("a plain event is not taken for one")


def _require(plain: bool | np.bool_) -> None:  # noqa: FBT001 - what was found
    if not plain:
        raise _NotPlainError


def column(values: pa.ChunkedArray) -> BinaryColumn:
    """One array of all values, with nulls as values of no bytes.

    Raises:
        _NotPlainError: there are no values, or of another type; it would be too large; nulls have
            bytes.
    """
    _require(values.type == pa.binary() and len(values) > 0 and values.nbytes <= _MOST)
    array = values.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        (array,) = array.chunks
    _, offsets, data = array.buffers()
    found = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    if array.null_count:
        _require(not np.diff(found)[array.is_null().to_numpy(zero_copy_only=False)].any())
    text = np.frombuffer(data or b"", np.uint8)
    found.flags.writeable = text.flags.writeable = False  # of one type, whoever made the buffers
    return BinaryColumn(array, text, found)


def scanned(values: BinaryColumn) -> tuple[Events, bytes | None]:
    """The parts of all events, and the schema of their wrapper.

    Raises:
        _NotPlainError: there are none, or other records as well.
    """
    _require(envelope.are_texts(values.array))
    (some,) = np.nonzero(np.diff(values.offsets))
    _require(len(some) > 0)
    wrapper = envelope.wrapper_of(values.at(int(some[0])))
    if wrapper is None:
        raise _NotPlainError
    size = len(values.array)
    found = (
        np.empty(size, np.int64),
        np.empty(size, np.uint8),
        np.empty((size, 2), np.int64),
        np.empty((size, 2), np.int64),
        np.empty((size, scan_events.STAMP), np.int64),
        np.zeros((scan_events.ORIGIN + 1, 2), np.int64),
    )
    head = np.frombuffer(wrapper[0], np.uint8)
    count = scan_events.events(values.data, values.offsets, head, *found)
    _require(count > 0)
    connector, *_ = _who(values, found[-1])
    _require(connector in positions.KINDS)
    events = Events(*found, positions.rules_of(str(connector))).upto(count)
    _require(events.rules.compiled == scan_events.FORMS[found[-1][scan_events.FIELDS, 0]])
    _require((events.numbers <= np.array(events.rules.most)).all())
    return events, wrapper[1]


def _who(values: BinaryColumn, who: Whole) -> list[str | None]:
    """Return connector, name, snapshot, db, schema and table of the first event."""
    return [
        values.data[begin : begin + size].tobytes().decode() if begin else None
        for begin, size in who[: scan_events.FIELDS].tolist()
    ]


def _table(values: BinaryColumn, events: Events, plan: StretchPlan) -> str:
    """The table of all events.

    Raises:
        _NotPlainError: they are not its connector's, or it does not stream.
    """
    connector, name, snapshot, db, schema, table = _who(values, events.who)
    source = envelope.Source(
        connector=connector, name=name, snapshot=snapshot, db=db, schema=schema, table=table
    )
    kind, found = envelope.kind_of("u", source, plan.identity)
    _require(kind == Kind.CHANGE and found not in plan.stopped)
    _require(plan.selected is None or found in plan.selected)
    return found


def _reached(
    values: BinaryColumn, events: Events, start: AppliedPosition, epoch: int
) -> AppliedPosition:
    """Return where the events come to: see `replay_filter`, `decoder._creates`, `fold._going_on`.

    Raises:
        _NotPlainError: one is below the former, or may have come before, or of which row it is,
            only the table knows.
    """
    rules = events.rules
    first, last = (one.tobytes() for one in events.position(epoch, [0, -1]))
    _require(first >= start.position)
    if start.creates:
        _require(not positions.which_first([start.position]))
        ours = positions.epoch_of(start.position) == positions.epoch_of(first)
        begun = np.array([rules.numbers_of(start.position)], np.int64)
        both = rules.transactions(np.concatenate([begun, events.numbers]))
        within = (both[1:] == both[0]) & ours
        _require(not (within & (events.op == _DELETE) & (events.before[:, 0] >= 0)).any())
    seen = dict(start.seen)
    earliest = _named(values, events, 0, first)
    _require(not decoding.came(earliest, seen, at=first, high=start.position))
    decoding.note_event(seen, _named(values, events, -1, last))
    newest = max(start.source_ts, int(events.times.max()))
    transactions = rules.transactions(events.numbers)
    ending = transactions == transactions[-1]
    creates = bool((events.op[ending] == _CREATE).any())
    creates |= start.creates and positions.one_transaction(start.position, last)
    return AppliedPosition(last, newest, creates, seen)


def _twice(events: Events, start: AppliedPosition, epoch: int) -> bool:
    """Say whether an event has the position of the one before it, see `TableReport`."""
    (first,) = events.position(epoch, [0])
    alike = (events.numbers[1:] == events.numbers[:-1]).all(axis=1)
    alike &= (events.op[:-1] != _DELETE) | (events.op[1:] != _CREATE)  # halves of a key change
    return first.tobytes() == start.position or bool(alike.any())


def _named(values: BinaryColumn, events: Events, at: int, position: bytes) -> LoggedEvent | None:
    """Return an event at a position by its transaction's name; None where it has none."""
    begin, size = events.who[scan_events.ORIGIN].tolist()
    if not size or not events.rules.identity:
        return None
    origin = values.data[begin : begin + size].tobytes().decode()
    number = int(events.stamp[at, scan_events.STAMP - 1])
    return events.rules.event_of(f"{origin}{number}", position)


def _newest(names: BinaryColumn, events: Events) -> Whole:
    """The newest event of each key as it is written, in the order of the keys' first events.

    Raises:
        _NotPlainError: one may have had two rows for a while.
    """
    last = np.empty(len(events.rows), np.int64)
    form = int(events.who[scan_events.FIELDS, 0])
    count = scan_events.newest(
        names.data, names.offsets, events.rows, events.op, events.before, events.stamp, form, last
    )
    _require(count >= 0)
    return last[:count]


def _packet(
    values: BinaryColumn,
    names: BinaryColumn,
    events: Events,
    schema: TableSchema,
    plan: StretchPlan,
) -> tuple[pa.Table, int]:
    """The packet of each key's newest event (see `fold`), and the number of clamped values.

    Raises:
        _NotPlainError: these events do not say everything.
    """
    last = _newest(names, events)
    raw = names.array.take(pa.array(events.rows[last])).to_pylist()
    canonical = keys.canonical_keys(raw, schema)
    _require(None not in canonical and len(set(canonical)) == len(canonical))
    deleted = events.op[last] == _DELETE
    spans = np.where(deleted[:, None], events.before[last], events.after[last])
    rows = typed(values.data, spans, schema, plan.modes)
    if rows is None or any(rows[0].field(name).null_count for name in schema.key):
        raise _NotPlainError
    at = pa.py_buffer(events.position(plan.epoch, last))
    fixed = pa.Array.from_buffers(pa.binary(events.rules.width), len(last), [None, at])
    packet = change_batch.build_simple(
        keys=pa.array(canonical, pa.binary()),
        ops=_OP_NAMES.take(pa.array(_OPS[events.op[last]])),
        position=fixed.cast(pa.binary()),
        source_ts=pa.array(events.times[last]),
        force=pa.array(np.zeros(len(last), dtype=bool)),
        rows=rows[0],
        table=schema.table,
        key_columns=change_batch.key_columns_by(schema),
    )
    return packet, rows[1]


# -- images, to typed columns ---------------------------------------------------------------------
#
# The cells of the images are found first (`scan_cells`). A column of whole numbers, texts, bytes,
# truth values or decimals is read where it stands; any other one becomes a JSON list, read by one
# typed msgspec call. Either way the column's own codec has the last word, so that both ways give
# the same. Images with anything to tell about (a value that cannot be read or is unavailable, a
# member that is no column) are left to `rows.decode_rows`.


_Read = Callable[[Bytes, Whole, Codec], "pa.Array | list[Any]"]
_WORDS: Final = 2  # of 64 bits, of a decimal


class _OddError(Exception):
    """A cell has another form than its column's usual one."""


def typed(
    data: Bytes, spans: Whole, schema: TableSchema, modes: HandlingModes
) -> tuple[pa.StructArray, int] | None:
    """Typed columns of images, and how many values were clamped.

    Args:
        data: bytes that hold the images.
        spans: begin and end of each; JSON objects in UTF-8 without white space, for certain.
        schema: the table's schema; its columns are the result's children.
        modes: the connector's settings.

    Returns:
        What `rows.decode_rows` says of them; None where it would say more than that.
    """
    plan = layout(schema, modes)
    if not plan.plain or not len(spans):
        return None
    found = np.empty((len(plan.names), len(spans), 2), np.int64)
    if not scan_cells.cells(data, spans, *_joined(tuple(plan.names)), found):
        return None
    tally = Tally()
    try:
        columns = [_column(plan, number, data, cells, tally) for number, cells in enumerate(found)]
    except (_OddError, msgspec.MsgspecError, pa.ArrowInvalid):
        return None
    return pa.StructArray.from_arrays(columns, fields=plan.fields), tally.clamped


@lru_cache(maxsize=512)
def _joined(names: tuple[str, ...]) -> tuple[Bytes, Whole]:
    """Names one behind the other, and where they begin."""
    texts = [name.encode() for name in names]
    return np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)])


def _column(plan: Layout, number: int, data: Bytes, cells: Whole, tally: Tally) -> pa.Array:
    """One column.

    Raises:
        _OddError: a value cannot be read, or is unavailable.
        msgspec.MsgspecError: likewise.
        pyarrow.ArrowInvalid: a whole number is out of its column's range.
    """
    codec, name = plan.codecs[number], plan.names[number]
    values = _reader(codec)(data, cells, codec)
    if isinstance(values, list) and plan.placeholders.nested(name, values):
        raise _OddError
    array = None if isinstance(values, list) else codec.whole(values, tally)
    if array is None:  # some codecs take no arrays, and some values one by one only
        array, bad = codec.array(values if isinstance(values, list) else values.to_pylist(), tally)
        _sure(not bad)
    _sure(not plan.placeholders.flat(name, array))
    return array


def _reader(codec: Codec) -> _Read:
    if codec.wire is str:
        return _texts
    if codec.wire is bytes:
        return _bytes
    if codec.wire is bool:
        return _booleans
    if codec.wire is Decimal and pa.types.is_decimal128(codec.type):
        return _decimals if 0 <= codec.type.scale <= DIGITS else _listed
    return _integers if get_origin(codec.wire) is Annotated else _listed


def _integers(data: Bytes, cells: Whole, _: Codec) -> pa.Array:
    out, valid = np.empty(len(cells), np.int64), np.empty(len(cells), np.bool_)
    _sure(scan_cells.integers(data, cells, out, valid))
    return _array(pa.int64(), valid, [out])


def _booleans(data: Bytes, cells: Whole, _: Codec) -> pa.Array:
    out, valid = np.empty(len(cells), np.bool_), np.empty(len(cells), np.bool_)
    _sure(scan_cells.booleans(data, cells, out, valid))
    return pa.array(out, mask=~valid)


def _decimals(data: Bytes, cells: Whole, codec: Codec) -> "pa.Array | list[Any]":
    out, valid = np.empty(len(cells) * _WORDS, np.int64), np.empty(len(cells), np.bool_)
    kind = codec.type
    if not scan_cells.decimals(data, cells, kind.scale, kind.precision, out, valid):
        return _listed(data, cells, codec)  # long ones
    return _array(kind, valid, [out])


def _texts(data: Bytes, cells: Whole, _: Codec) -> pa.Array:
    return _various(pa.string(), scan_cells.strings, data, cells)


def _bytes(data: Bytes, cells: Whole, _: Codec) -> pa.Array:
    return _various(pa.binary(), scan_cells.binaries, data, cells)


def _various(kind: pa.DataType, read: Any, data: Bytes, cells: Whole) -> pa.Array:
    """A column whose values have various sizes."""
    out = np.empty(_size(cells), np.uint8)
    offsets, valid = np.empty(len(cells) + 1, np.int32), np.empty(len(cells), np.bool_)
    _sure(read(data, cells, out, offsets, valid))
    return _array(kind, valid, [offsets, out])


def _listed(data: Bytes, cells: Whole, codec: Codec) -> list[Any]:
    out = np.empty(_size(cells) + 5 * len(cells) + 2, np.uint8)
    size = scan_cells.listed(data, cells, out)
    values: list[Any] = msgspec.json.decode(out[:size].data, type=_lists(nullable(codec)))
    return values


def _lists(kind: Any) -> Any:
    return list.__class_getitem__(kind)  # made at run time, hence by call and not by annotation


def _size(cells: Whole) -> int:
    """Bytes of all cells."""
    return int(np.where(cells[:, 0] >= 0, cells[:, 1] - cells[:, 0], 0).sum())


def _sure(read: bool) -> None:  # noqa: FBT001 - what a function has said
    if not read:
        raise _OddError


def _array(
    kind: pa.DataType, valid: npt.NDArray[np.bool_], buffers: Sequence[npt.NDArray[Any]]
) -> pa.Array:
    bitmap = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(kind, len(valid), [bitmap, *map(pa.py_buffer, buffers)])
