"""Rows of a snapshot as whole Debezium records, as its incremental snapshot writes them.

A row that a snapshot or a truncate found gone is a delete with the same source block: op ``d``,
its key's columns in ``before`` (with a schema a whole row, see `key_rows`) and null in ``after``.

What the connector says about itself (version, name, database, which members there are and in which
order) is taken from a real event of the same connector; what belongs to the row is put in:

| member | of a snapshot row |
|---|---|
| before, transaction | null |
| after | the image |
| op | ``r`` |
| source.snapshot | ``incremental`` |
| source.schema (source.db where there is none), source.table | the table's |
| `PositionRules.fields` of source | the stream's position while the row was read |
| `PositionRules.of_entries` of source | null: the row is no entry of the log |
| source.ts_ms, ts_us, ts_ns | when the row was read |
| ts_ms, ts_us, ts_ns | when the record was written |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.converters.json import json_texts as j
from lakemark.converters.json import key_rows
from lakemark.converters.json.envelope import unwrapped
from lakemark.model import positions

_NULL: Final = b"null"
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Reading:
    """The time and the place in the stream at which rows were read.

    Attributes:
        schema: of the table; where there are no schemas, its database.
        table: its name without that.
        read_ns: nanoseconds since the epoch at which the rows were read.
        written_ns: at which their records are written.
        place: fields of the source block that say where the stream was, see `PositionRules`.
    """

    schema: str
    table: str
    read_ns: int
    written_ns: int
    place: Mapping[str, Any]


class EnvelopeTemplate:
    """The common parts of all records of one connector. Immutable.

    Attributes:
        members: of the envelope, as JSON texts, in their order.
        source: of its source block, decoded.
    """

    def __init__(self, value: bytes) -> None:
        """Takes a real event as the model.

        Args:
            value: the value of any change event of any table of the connector, plain or wrapped.

        Raises:
            ValueError: this is no change event of a connector whose positions are known.
        """
        try:
            envelope = _objects(unwrapped(value)[1])
            source = _objects(envelope["source"])
            connector = msgspec.json.decode(source["connector"], type=str)
        except (msgspec.DecodeError, KeyError) as error:
            raise ValueError("a template must be the value of a change event") from error
        if not connector or connector not in positions.KINDS or "after" not in envelope:
            raise ValueError("a template must be a change event of a connector that is supported")
        self._of_entries = positions.rules_of(connector).of_entries
        self.members = {name: bytes(raw) for name, raw in envelope.items()}
        self._source = {name: bytes(raw) for name, raw in source.items()}
        self.source = {name: msgspec.json.decode(raw) for name, raw in source.items()}

    def values(
        self, images: pa.Array, reading: Reading, *, wrapper_schema: bytes | None = None
    ) -> pa.Array:
        """The values of snapshot rows' records, a binary array.

        Args:
            images: the rows' images, see `Rendering.images`; none null.
            reading: what the rows have in common.
            wrapper_schema: for records with the schema wrapper the raw ``schema`` member of a
                value of the same table, see `wrapper_schema`.
        """
        head, tail = self._around(reading)
        if wrapper_schema is not None:
            head, tail = _wrapping(wrapper_schema) + head, tail + b"}"
        return _between(head, images, tail)

    def removals(
        self, keys: pa.Array, reading: Reading, *, wrapper_schema: bytes | None = None
    ) -> pa.Array:
        """The values of deletes of rows that are known to be gone, a binary array.

        Args:
            keys: JSON objects of the key's columns, see `Rendering.keys`. With a wrapper schema
                ``before`` has the other columns, too, or it would not fit it.
            reading: as `values`.
            wrapper_schema: as `values`.
        """
        head, tail = self._around(reading, op=b'"d"', image="before")
        if wrapper_schema is None or not keys:
            return _between(head, keys, tail)
        others = key_rows.other_cells(wrapper_schema, keys[0].as_py())
        open_ended = pc.binary_slice(keys, 0, -1)
        return _between(_wrapping(wrapper_schema) + head, open_ended, others + b"}" + tail + b"}")

    def _around(
        self, reading: Reading, *, op: bytes = b'"r"', image: str = "after"
    ) -> tuple[bytes, bytes]:
        """Return the bytes before and after the image."""
        fixed = {
            "before": _NULL,
            "after": _NULL,
            "source": self._source_of(reading),
            "transaction": _NULL,
            "op": op,
            **_times(reading.written_ns),
        }
        names = list(self.members)
        texts = [_member(name, fixed.get(name, self.members[name])) for name in names]
        at = names.index(image)
        head = b"".join(text + b"," for text in texts[:at])
        tail = b"".join(b"," + text for text in texts[at + 1 :])
        return b"{" + head + _member(image, b""), tail + b"}"

    def _source_of(self, reading: Reading) -> bytes:
        fixed = {
            "snapshot": b'"incremental"',
            "schema" if "schema" in self._source else "db": j.quoted(reading.schema).encode(),
            "table": j.quoted(reading.table).encode(),
            **{name: msgspec.json.encode(value) for name, value in reading.place.items()},
            **dict.fromkeys(self._of_entries, _NULL),
            **_times(reading.read_ns),
        }
        members = (_member(name, fixed.get(name, raw)) for name, raw in self._source.items())
        return b"{" + b",".join(members) + b"}"


def sample(value: bytes) -> bytes:
    """An event as a template is kept: plain, and without its images.

    Raises:
        ValueError: as `EnvelopeTemplate`.
    """
    template = EnvelopeTemplate(value)
    members = {**template.members, "before": _NULL, "after": _NULL}
    return b"{" + b",".join(_member(name, text) for name, text in members.items()) + b"}"


def wrapped_keys(keys: pa.Array, wrapper_schema: bytes) -> pa.Array:
    """Keys with the schema wrapper.

    Args:
        keys: see `Rendering.keys`.
        wrapper_schema: the raw ``schema`` member of a key of the same table.
    """
    return _between(_wrapping(wrapper_schema), keys, b"}")


def wrapper_schema(record: bytes) -> bytes | None:
    """The raw ``schema`` member of a wrapped key or value; None for a plain one.

    Raises:
        ValueError: this is no JSON object.
    """
    try:
        _objects(record)
    except msgspec.DecodeError as error:
        raise ValueError("a key or a value must be a JSON object") from error
    return unwrapped(record)[0]


def _wrapping(schema: bytes) -> bytes:
    return b'{"schema":' + schema + b',"payload":'


def _objects(raw: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    return _MEMBERS.decode(raw)


def _member(name: str, text: bytes) -> bytes:
    return j.quoted(name).encode() + b":" + text


def _times(nanos: int) -> dict[str, bytes]:
    units = {"ts_ms": 1_000_000, "ts_us": 1000, "ts_ns": 1}
    return {name: str(nanos // unit).encode() for name, unit in units.items()}


def _between(head: bytes, middle: pa.Array, tail: bytes) -> pa.Array:
    return j.joined(head.decode(), middle.cast(pa.string()), tail.decode()).cast(pa.binary())
