"""Rows as the JSON records that their connector would have written: see `RecordWriter`.

What has been learnt of a connector is an event of its without images (`envelopes.sample`), and of a
table the ``schema`` members of its wrapped keys and values, each empty where these are plain.
"""

from contextlib import suppress
from functools import lru_cache

import msgspec
import pyarrow as pa

from lakemark.converters.converter import Moment, not_ready
from lakemark.converters.json import envelopes
from lakemark.converters.json.envelopes import EnvelopeTemplate, Reading
from lakemark.converters.json.rendering import Rendering, default_texts
from lakemark.model import positions
from lakemark.model.decoding import Records
from lakemark.model.events import Headers, Kind, Learnt
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema, from_envelope
from lakemark.settings.table_id import pair_of

_SHOWN = (Kind.CHANGE, Kind.SIGNAL)


class JsonRecordWriter:
    """See `RecordWriter`."""

    def __init__(
        self,
        table: str,
        schema: TableSchema,
        modes: HandlingModes,
        *,
        learnt: Learnt,
        wrapped: bool,
        replaces_nulls: bool,
    ) -> None:
        """See `Converter.writer`.

        Args:
            table: as there.
            schema: as there.
            modes: as there.
            learnt: as there.
            wrapped: as there.
            replaces_nulls: whether the connector's converter writes a column's default for NULL.
        """
        form = learnt.tables.get(table)
        if not learnt.event:
            raise not_ready(f"no event of the connector has come yet that {table}'s rows follow")
        if wrapped and form is None:
            raise not_ready(f"the schemas that records of {table} carry are not known yet")
        key_schema, value_schema = form or (b"", b"")
        self._table = table
        self._template = _template(learnt.event)
        self._key_schema, self._value_schema = key_schema or None, value_schema or None
        defaults = default_texts(value_schema) if value_schema and replaces_nulls else {}
        self._rendering = Rendering(schema, modes, defaults=defaults)

    def reads(self, rows: pa.StructArray, moment: Moment) -> tuple[list[bytes], list[bytes]]:
        """See `RecordWriter`."""
        images = self._rendering.images(rows).objects
        values = self._template.values(
            images, self._reading(moment), wrapper_schema=self._value_schema
        )
        return self._keys(rows)[1], values.to_pylist()

    def removals(self, keys: pa.StructArray, moment: Moment) -> tuple[list[bytes], list[bytes]]:
        """See `RecordWriter`."""
        objects, written = self._keys(keys)
        values = self._template.removals(
            objects, self._reading(moment), wrapper_schema=self._value_schema
        )
        return written, values.to_pylist()

    def _keys(self, rows: pa.StructArray) -> tuple[pa.Array, list[bytes]]:
        """The keys as JSON objects, and as they are written."""
        rendered = self._rendering.keys(rows)
        objects = pa.array([], pa.binary()) if rendered is None else rendered.objects
        schema = self._key_schema
        written = objects if schema is None else envelopes.wrapped_keys(objects, schema)
        return objects, written.to_pylist()

    def _reading(self, moment: Moment) -> Reading:
        schema, name = pair_of(self._table)
        place = positions.to_source(moment.position, self._template.source)
        return Reading(schema, name, moment.read_ns, moment.written_ns, place)


@lru_cache(maxsize=8)
def _template(event: bytes) -> EnvelopeTemplate:
    return EnvelopeTemplate(event)


def learn(records: Records, heads: Headers) -> Learnt:
    """See `Converter.learn`."""
    tables: dict[str, tuple[bytes, bytes]] = {}
    # Also of tables that do not stream: it may be what they wait for.
    newest_of = {table: at for at, table in enumerate(heads.table) if table and records.keys[at]}
    for table, at in newest_of.items():
        with suppress(ValueError):  # its key cannot be read: another one will do
            key = envelopes.wrapper_schema(records.keys[at] or b"{}")
            if key or heads.schema[at]:
                tables[table] = key or b"", heads.schema[at] or b""
    newest = next((at for at in reversed(range(len(heads))) if heads.kind[at] in _SHOWN), None)
    value = records.values[newest] if newest is not None else None
    event = b""
    if value is not None:
        with suppress(ValueError):  # of another connector: its rows cannot be read either
            event = envelopes.sample(value)
    return Learnt(event, tables)


def learnt_key(table: str, learnt: Learnt) -> TableSchema | None:
    """See `Converter.learnt_key`."""
    form = learnt.tables.get(table)
    if form is None or not all(form):
        return None
    key, value = map(msgspec.json.decode, form)
    whole = from_envelope(table, value, key)
    return TableSchema(table, tuple(map(whole.column, whole.key)), whole.key)
