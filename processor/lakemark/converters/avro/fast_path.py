"""A stretch of plain change events of one schema, without a Python object for an event.

What the fast way of JSON reads is written for it, and no more: see `_of_events`. Whatever else is
in a stretch, it goes the general way: a record of another schema or form, a schema that nobody has.
Of what is not written the form is checked alone: that a text in it is no UTF-8, only the general
way finds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemark.converters import compiler
from lakemark.converters.avro.compiled import scan_changes
from lakemark.converters.avro.framing import CONFLUENT, MAGIC, Framing
from lakemark.converters.avro.instructions import Instructions, Unless, Wish, instructions
from lakemark.converters.avro.known_schemas import KnownSchemas
from lakemark.converters.avro.program import Program
from lakemark.converters.avro.schema_source import SchemaReference
from lakemark.converters.avro.transcript import transcript
from lakemark.converters.compiler import Bytes, Offsets, Whole
from lakemark.converters.converter import Converter
from lakemark.converters.hidden_nulls import note_defaults
from lakemark.converters.record_schema import compare, schema_of
from lakemark.errors import TableError
from lakemark.model import change_batch, positions
from lakemark.model.change_batch import SCHEMA_ID
from lakemark.model.decoding import DecodedRange, StretchPlan
from lakemark.model.events import SourceIdentity
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema

_MOST: Final = (1 << 31) - 1  # bytes of an Arrow array with 32 bit offsets
_ENVELOPE_HAS: Final = frozenset({"before", "after", "source", "op"})
_OF_SOURCE: Final = frozenset({"connector", "name", "snapshot", "db", "schema", "table", "ts_us"})
_ANY_SIZE: Final = 1 << 62


class _Column(NamedTuple):
    """One Arrow array of bytes; nulls have none."""

    data: Bytes
    offsets: Offsets

    def at(self, index: int) -> bytes:
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    @property
    def some(self) -> npt.NDArray[np.bool_]:
        """True for values that have bytes."""
        return np.diff(self.offsets) > 0

    @property
    def first(self) -> int:
        """The first value that has bytes."""
        return int(np.flatnonzero(self.some)[0])

    def datums(self, head: bytes) -> tuple[Whole, Whole]:
        """Return where the datums of all that have bytes begin and end.

        Raises:
            _SeveralFormsError: some do not begin like the first.
        """
        begins = self.offsets[:-1][self.some].astype(np.int64)
        ends = self.offsets[1:][self.some].astype(np.int64)
        _require((ends - begins >= len(head)).all())
        for at, byte in enumerate(head):
            _require((self.data[begins + at] == byte).all())
        return begins + len(head), ends


class Reading(NamedTuple):
    """The readers of a connector's records.

    Attributes:
        converter: that of Avro.
        beside: that of JSON.
        keys, values: where they name their schemas.
        schemas: these.
    """

    converter: Converter
    beside: Converter
    keys: Framing
    values: Framing
    schemas: KnownSchemas


class _SeveralFormsError(Exception):
    """The stretch goes the general way."""


def decode_range(
    reading: Reading,
    topic: str,
    partition: int,
    parts: Sequence[pa.RecordBatch],
    plan: StretchPlan,
) -> DecodedRange | None:
    """Return the result of `Converter.plain_range`.

    Args:
        reading: what reads the connector's records.
        topic: theirs.
        partition: theirs.
        parts: the records of one stretch, as `fetch.SCHEMA` has them; without headers.
        plan: how to decode.
    """
    if not compiler.usable():
        return None
    records = pa.Table.from_batches(parts)
    try:
        values, names = _column(records.column("value")), _column(records.column("key"))
        _require(np.diff(values.offsets).max() <= plan.max_event_bytes and values.some.any())
        first = values.first
        framed = reading.values.of(values.at(first))
        if framed is None:
            return reading.beside.plain_range(topic, partition, parts, plan)
        form = reading.schemas.of(framed.reference)
        schemas = _Brought(reading.converter, form.connect, names.at(first), plan)
        steps = _of_events(form.program, plan.identity.connector)
        keys, texts = _keys(reading, names), _events(steps, values, names, framed.begin)
    except (_SeveralFormsError, TableError):
        return None  # the general way says what there is
    columns = [records.column("offset").combine_chunks(), keys, texts]
    batch = pa.RecordBatch.from_arrays(columns, ["offset", "key", "value"])
    narrow = replace(plan, schemas=schemas, definitions={}, max_event_bytes=_ANY_SIZE)
    found = reading.beside.plain_range(topic, partition, [batch], narrow)
    if found is None:
        return None
    for table, report in found.tables.items():
        known = plan.schemas.get(table)
        own = schemas[table]
        compare(report, reading.converter, form.connect, own, known)
        for packet in (one for of, one in found.packets if of == table):
            note_defaults(
                report,
                packet,
                converter=reading.beside,
                raw_schema=form.connect,
                schema=own,
                modes=plan.modes,
            )
    if SCHEMA_ID in plan.metadata:
        found.packets = [(table, _named(one, form.number)) for table, one in found.packets]
    return found


def _named(packet: pa.Table, number: int) -> pa.Table:
    """Return a packet whose images were all written by one schema."""
    numbers = pa.repeat(pa.scalar(number, pa.int64()), packet.num_rows)
    return change_batch.with_schema_ids(packet, numbers)


def _require(plain: bool | np.bool_) -> None:  # noqa: FBT001 - what was found
    if not plain:
        raise _SeveralFormsError


class _Brought(Mapping[str, TableSchema]):
    """The schema that an event brings, as if it were known of the table, whichever that is.

    Args:
        converter: reads the event.
        raw_schema: its Connect schema.
        raw_key: its key.
        plan: how to decode.
    """

    def __init__(
        self, converter: Converter, raw_schema: bytes, raw_key: bytes, plan: StretchPlan
    ) -> None:
        self._converter, self._plan = converter, plan
        self._raw_schema, self._raw_key = raw_schema, raw_key
        self._made: dict[str, TableSchema] = {}

    def __getitem__(self, table: str) -> TableSchema:
        if table in self._made:
            return self._made[table]
        schema = schema_of(
            self._converter,
            table,
            raw_schema=self._raw_schema,
            raw_key=self._raw_key,
            schemas=self._plan.schemas,
            numerics=self._plan.numerics,
        )
        if schema is None:
            raise KeyError(table)
        self._made[table] = schema
        return schema

    def __iter__(self) -> Iterator[str]:
        return iter(self._plan.schemas)

    def __len__(self) -> int:
        return len(self._plan.schemas)


def _column(values: pa.ChunkedArray) -> _Column:
    """Return one array of all values.

    Raises:
        _SeveralFormsError: there are none, it would be too large, or nulls have bytes.
    """
    _require(values.type == pa.binary() and len(values) > 0 and values.nbytes <= _MOST)
    array = values.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        (array,) = array.chunks
    _, offsets, data = array.buffers()
    found = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    text = np.frombuffer(data or b"", np.uint8)
    found.flags.writeable = text.flags.writeable = False  # of one type, whoever made the buffers
    _require(not np.diff(found)[array.is_null().to_numpy(zero_copy_only=False)].any())
    return _Column(text, found)


def _keys(reading: Reading, names: _Column) -> pa.Array:
    """Return the keys as JSON.

    Raises:
        _SeveralFormsError: there are none, or of several forms, or one cannot be read.
        TableError: nobody has their schema.
    """
    _require(names.some.any())
    first = names.at(names.first)
    framed = reading.keys.of(first)
    if framed is None:
        return _binary(names.data, names.offsets)
    begins, ends = names.datums(first[: framed.begin])
    steps = reading.schemas.of(framed.reference).steps
    found = transcript(steps, names.data, begins, ends)
    _require(not found.bad.any())
    return _spread(found.text, found.offsets, names.some)


def _events(steps: Instructions | None, values: _Column, names: _Column, begin: int) -> pa.Array:
    """Return the events as JSON.

    Args:
        steps: see `_of_events`.
        values: the events.
        names: their keys.
        begin: the bytes of a value before its datum.

    Raises:
        _SeveralFormsError: they are of several schemas, or one is no event.
    """
    if steps is None:
        raise _SeveralFormsError
    begins, ends = values.datums(values.at(values.first)[:begin])
    some = values.some
    last = np.empty(len(some), np.bool_)
    scan_changes.newest(names.data, names.offsets, some, last)
    older, _, newest = steps.entries
    entries = np.where(last[some], newest, older)
    found = transcript(steps, values.data, begins, ends, entries)
    _require(not found.bad.any())
    return _spread(found.text, found.offsets, some)


@lru_cache(maxsize=512)
def _of_events(program: Program, connector: str) -> Instructions | None:
    """Return what reads older events, deletes and other newest events; None for no envelope.

    Of a source block and a transaction the fields are written that a position has, and of the
    images those of each key's newest event. An older event of the same key only says which
    operation it is, where it stands and which images it has: they have no members. That an event
    is a delete, whose image is the one before, is known when its operation is read.
    """
    fields = program.fields()
    if not fields.keys() >= _ENVELOPE_HAS or len(fields) < len(program.nodes[0].names):
        return None
    of_source, of_transaction = positions.fields_of(connector)
    brief, whole = Wish.BRIEF, Wish.WHOLE
    older: dict[str, Any] = {
        "before": brief,
        "after": brief,
        "source": dict.fromkeys(_OF_SOURCE | of_source.keys(), whole),
        "op": whole,
    }
    if of_transaction:
        older["transaction"] = dict.fromkeys(of_transaction, whole)
    deleted = {**older, "before": whole}
    newest = {**older, "after": whole, "op": Unless("d", 1)}
    return instructions(program, older, deleted, newest)


def _spread(text: Bytes, offsets: npt.NDArray[Any], some: npt.NDArray[np.bool_]) -> pa.Array:
    """Return an array in which only some values have bytes, one behind the other.

    Raises:
        _SeveralFormsError: it would be too large.
    """
    _require(offsets[-1] <= _MOST)
    sizes = np.zeros(len(some) + 1, np.int64)
    sizes[1:][some] = np.diff(offsets)
    return _binary(text, np.cumsum(sizes).astype(np.int32))


def _binary(data: Bytes, offsets: Offsets) -> pa.Array:
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


_IMAGE: Final = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "texts", "type": {"type": "array", "items": "string"}},
        {"name": "ratio", "type": ["null", "double"]},
    ],
}
_BLOCK: Final = ("connector", "name", "snapshot", "db", "schema", "table", "sequence")
_ENVELOPE: Final[Mapping[str, Any]] = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", _IMAGE]},
        {"name": "after", "type": ["null", "Value"]},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [
                    *({"name": name, "type": "string"} for name in _BLOCK),
                    {"name": "ts_us", "type": "long"},
                ],
            },
        },
        {"name": "op", "type": "string"},
    ],
}


class ExampleSource:
    """A `SchemaSource` that has the schema of the example."""

    def schema(self, reference: SchemaReference) -> str:  # noqa: ARG002 - there is one
        """See `SchemaSource`."""
        return msgspec.json.encode(_ENVELOPE).decode()


def example(converter: Converter) -> None:
    """Have a plain event read.

    Args:
        converter: of Avro, with an `ExampleSource`.

    Raises:
        RuntimeError: it is not taken for one.
    """
    texts = ("postgresql", "", "false", "", "s", "t", '["8","16"]')
    block = b"".join(bytes([2 * len(text)]) + text.encode() for text in texts)
    datum = b"\0\2" + b"\2\2\2x\0\2" + np.array(0.5).tobytes() + block + b"\2" + b"\2c"
    head = MAGIC + (1).to_bytes(CONFLUENT - 1)
    batch = pa.RecordBatch.from_pydict({
        "offset": pa.array([0]),
        "key": pa.array([b'{"id":1}']),
        "value": pa.array([head + datum]),
    })  # fmt: skip
    plan = StretchPlan(SourceIdentity("postgresql", ""), HandlingModes())
    if converter.plain_range("", 0, [batch], plan) is None:
        raise RuntimeError("a plain event is not taken for one")
