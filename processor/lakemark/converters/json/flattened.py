"""Rows without an envelope, read as the events that they were made of; see `flattening`.

It stands before the converter of JSON and gives it the envelope back: operation, source block and
transaction from what was added to the record, the row as its image. So whatever reads events reads
these. Only what the transform has thrown away is not there: an update's old row, truncates.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from lakemark.converters.beside import ANY_SIZE, BesideConverter, refuse, refused_sizes
from lakemark.converters.converter import Converter
from lakemark.converters.flattening import DELETED
from lakemark.converters.json.envelope import NULL, unwrapped
from lakemark.model import positions
from lakemark.model.decoding import (
    AddedField,
    ConverterOptions,
    DecodedRange,
    Flattening,
    Records,
    StretchPlan,
)
from lakemark.model.events import NOTHING_LEARNT, Headers, Learnt, SourceIdentity
from lakemark.model.schema import TableSchema

Told = Mapping[tuple[str, str], bytes]
"""JSON of what the envelope said, by block and field."""
OP: Final = ("", "op")
_NAMED: Final = ".Envelope"
_ENVELOPE: Final = frozenset({"before", "after", "source", "op"})
_NUMBERS: Final = frozenset({"ts_ms", "ts_us", "ts_ns"})
_WHOLE: Final = re.compile(rb"-?[0-9]+")
_row: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.encode


class TableInTopic(NamedTuple):
    """The table whose rows a topic has: what it stands in, and its name there."""

    outer: str
    name: str


class FlatRecord(NamedTuple):
    """A record with a row.

    Attributes:
        value, headers, offset: the record's.
        table: see `FlattenedConverter`.
    """

    value: bytes | None
    headers: Sequence[Mapping[str, Any]] | None = None
    offset: int = -1
    table: TableInTopic | None = None


class FlattenedConverter(BesideConverter):
    """See `Converter`.

    Args:
        beside: the converter of JSON.
        flattening: where that stands which was in the envelope.
    """

    def __init__(self, beside: Converter, flattening: Flattening) -> None:
        super().__init__(beside)
        self._flattening = flattening
        self.read_headers = beside.read_headers | {one.name for one in flattening.headers}

    def of(self, options: ConverterOptions) -> "FlattenedConverter":
        """See `Converter`."""
        return FlattenedConverter(self._beside.of(options), self._flattening)

    def headers(self, records: Records, plan: StretchPlan) -> Headers:
        """See `Converter`: what has nothing of an envelope is read as it is.

        A delete without a value has the schema of its key, which is its row's as far as it shows.
        """
        bad = refused_sizes(records, plan.max_event_bytes)
        table = self._table_in(records.topic, plan)
        values: list[bytes | None] = []
        for index, (value, given) in enumerate(zip(records.values, records.headers, strict=True)):
            record = FlatRecord(value, given, records.offsets[index], table)
            known = None if index in bad else self._event(record, plan.identity)
            values.append(known or (None if index in bad else value))
        events = replace(records, values=values, column=None)
        heads = self._beside.headers(events, replace(plan, max_event_bytes=ANY_SIZE))
        for index, value in enumerate(records.values):
            if heads.op[index] == "d" and not value:
                heads.schema[index] = unwrapped(records.keys[index] or NULL)[0]
        refuse(heads, bad)
        return heads

    def schema_of(self, table: str, schema: bytes, key: bytes | None) -> TableSchema | None:
        """See `Converter`: of a row's schema, too, where a record was told as JSON."""
        return self._beside.schema_of(table, self._enveloped(schema), key)

    def plain_range(
        self, topic: str, partition: int, parts: Sequence[pa.RecordBatch], plan: StretchPlan
    ) -> DecodedRange | None:
        """See `Converter`: with their envelopes, events are as fast as any."""
        batches = []
        for part in parts:
            values = part.column("value").to_pylist()
            if max(map(len, filter(None, values)), default=0) > plan.max_event_bytes:
                return None
            rows = [FlatRecord(value) for value in values]
            events = [self._event(row, plan.identity) or row.value for row in rows]
            columns = [
                pa.array(events, pa.binary()) if name == "value" else part.column(name)
                for name in part.schema.names
            ]
            batches.append(pa.RecordBatch.from_arrays(columns, part.schema.names))
        wide = replace(plan, max_event_bytes=ANY_SIZE)
        return self._beside.plain_range(topic, partition, batches, wide)

    def learn(self, records: Records, heads: Headers) -> Learnt:  # noqa: ARG002
        """See `Converter`: such records are never written."""
        return NOTHING_LEARNT

    # -- the envelope ---------------------------------------------------------------------------

    def _table_in(self, topic: str, plan: StretchPlan) -> TableInTopic | None:  # noqa: ARG002
        """Return the table whose rows a topic has, where records do not say it themselves."""
        return None

    def _told(self, told: Told, record: FlatRecord, *, gone: bool) -> Told:  # noqa: ARG002
        """Return what is known of a record beside its row, given what it says.

        Args:
            told: by it.
            record: it.
            gone: whether it says so of its row, or has none.
        """
        return told

    def _image(self, row: bytes, op: bytes) -> bytes:  # noqa: ARG002
        """Return the row image of an event, given the row that its record has."""
        return row

    def _event(self, record: FlatRecord, identity: SourceIdentity) -> bytes | None:
        """Return the event that a row was made of; None for what was none, or says too little."""
        value, headers = record.value, record.headers
        told = dict(self._of_headers(headers, identity)) if headers else {}
        schema, payload = unwrapped(value) if value else (None, NULL)
        try:
            row = _row(payload) if payload != NULL else {}
        except (ValueError, RecursionError):
            return None
        if row.keys() >= _ENVELOPE:  # it has it still
            return None
        for one in self._flattening.fields:
            cell = row.pop(one.name, None)
            if cell is not None:
                told.setdefault(one[1:], bytes(cell))
        gone = bytes(row.pop(DELETED, NULL)).strip(b'"') == b"true" or payload == NULL
        known = {**self._told(told, record, gone=gone)}
        op = known.pop(OP, NULL)
        if op == NULL:
            return None
        image = self._image(_encode(row), op) if payload != NULL else NULL
        event = _envelope(op, image, known, identity)
        if schema is None:
            return event
        whole = self._enveloped(schema)
        return b'{"schema":' + whole + b',"payload":' + event + b"}"

    def _of_headers(
        self, headers: Sequence[Mapping[str, Any]], identity: SourceIdentity
    ) -> Iterator[tuple[tuple[str, str], bytes]]:
        """Yield block and field of what headers tell, and its JSON."""
        given = {header["key"]: header["value"] for header in headers}
        for one in self._flattening.headers:
            if given.get(one.name) is not None:
                yield one[1:], _cell(given[one.name], one, identity.connector)

    def _enveloped(self, schema: bytes) -> bytes:
        """Return the Connect schema of the envelope around a row, given that of the value."""
        return _schema_around(schema, self._flattening.fields, self._flattening.connector)


def _envelope(op: bytes, image: bytes, told: Told, identity: SourceIdentity) -> bytes:
    """Return an event as Connect's converter writes it, without a schema."""
    named = {"connector": identity.connector, "name": identity.logical_name}
    source: dict[str, Any] = {**named, "db": ""}
    blocks: dict[str, dict[str, Any]] = {"source": source, "transaction": {}}
    for (block, field), cell in told.items():
        if block in blocks and (block == "source" or cell != NULL):
            blocks[block][field] = msgspec.Raw(cell)
    gone = op == b'"d"'
    before, after = (image, NULL) if gone else (NULL, image)
    pieces = [b'{"before":', before, b',"after":', after, b',"source":', _encode(source)]
    if blocks["transaction"]:
        pieces += [b',"transaction":', _encode(blocks["transaction"])]
    return b"".join([*pieces, b',"op":', op, b"}"])


def _cell(value: bytes, one: AddedField, connector: str) -> bytes:
    """Return a header's value as JSON: it is written as a text, or by a converter of JSON."""
    try:
        if value[:1] == b"{":
            value = bytes(_row(value)["payload"])
        if value[:1] == b'"':
            return _encode(_text(value))
    except (KeyError, ValueError, RecursionError):
        pass  # a text that looks like JSON
    if value == NULL or (_is_number(one, connector) and _WHOLE.fullmatch(value)):
        return value
    return _encode(value.decode("utf-8", "replace"))


@lru_cache(maxsize=256)
def _is_number(one: AddedField, connector: str) -> bool:
    of_source, of_transaction = positions.fields_of(connector)
    types = {"source": of_source, "transaction": of_transaction}.get(one.block, {})
    return one.field in _NUMBERS or types.get(one.field) is int


@lru_cache(maxsize=1024)
def _schema_around(schema: bytes, fields: Sequence[AddedField], connector: str) -> bytes:
    try:
        whole = msgspec.json.decode(schema)
        name = str(whole.get("name") or "")
        if name.endswith(_NAMED) or whole.get("type") != "struct":
            return schema
        added = {DELETED, *(one.name for one in fields)}
        columns = [field for field in whole["fields"] if field["field"] not in added]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return schema
    row = {"type": "struct", "fields": columns, "optional": True, "name": name}
    source = {"type": "struct", "fields": [], "field": "source"}
    if connector:
        source["name"] = f"io.debezium.connector.{connector}.Source"
    images = [{**row, "field": "before"}, {**row, "field": "after"}]
    return _encode({"type": "struct", "fields": [*images, source], "name": name + _NAMED})
