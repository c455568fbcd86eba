"""Rows as the Avro records that their connector would have written: see `RecordWriter`.

They are written as JSON by the converter of JSON, wrapped in the Connect schemas of the connector's
own events, and then by the schemas that these name. Where no event of the table has named any yet,
they stay JSON, by the Connect schemas of its columns (`Converter.described`): whoever writes the
topic registers those of Avro for them.

What has been learnt of a table is, of its keys and of its values, the bytes before a datum, which
name the schema, and the Connect schema.
"""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pyarrow as pa

from lakemark.converters.avro.datum_writer import datum_of
from lakemark.converters.avro.framing import Framing
from lakemark.converters.avro.known_schemas import Form, KnownSchemas, wrapper_of
from lakemark.converters.avro.payloads import Payloads
from lakemark.converters.avro.plain_datums import DatumError
from lakemark.converters.converter import Converter, Moment
from lakemark.errors import TableError
from lakemark.model.decoding import ConverterOptions, Records
from lakemark.model.events import Headers, Learnt
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema

_NO_OPTIONS = ConverterOptions()


class _Written(msgspec.Struct, array_like=True):
    """The form of the keys, or the values, of a table: see above."""

    prefix: bytes = b""
    connect: bytes = b""


def learn(
    beside: Converter, records: Records, heads: Headers, keys: Payloads, values: Payloads
) -> Learnt:
    """See `Converter.learn`.

    Args:
        beside: the converter of JSON.
        records: as they came.
        heads: theirs.
        keys: what their keys say.
        values: what their values say.
    """
    wrapped = [keys.wrapped(index) for index in range(len(records.keys))]
    told = beside.learn(replace(records, keys=wrapped, values=values.texts), heads)
    newest_of = {table: at for at, table in enumerate(heads.table) if table and records.keys[at]}
    prefixes = {}
    for table in told.tables:
        at = newest_of[table]
        key = _prefix(records.keys[at], keys.forms[at], "key")
        prefixes[table] = key, _prefix(records.values[at], values.forms[at], "value")
    return packed(told, prefixes)


def _prefix(raw: bytes | None, form: Form | None, side: str) -> bytes:
    if raw is None or form is None:
        return b""
    framed = Framing("key" if side == "key" else "value", _NO_OPTIONS).of(raw)
    return raw[: framed.begin] if framed else b""


def packed(told: Learnt, prefixes: Mapping[str, tuple[bytes, bytes]]) -> Learnt:
    """Return what is kept of what the converter of JSON has learnt, and the bytes before datums."""
    tables = {}
    for table, connects in told.tables.items():
        sides = zip(prefixes.get(table, (b"", b"")), connects, strict=True)
        key, value = (msgspec.msgpack.encode(_Written(*side)) for side in sides)
        tables[table] = key, value
    return Learnt(told.event, tables)


def unpacked(learnt: Learnt) -> tuple[Learnt, dict[str, tuple[bytes, bytes]]]:
    """Return what has been learnt as the converter of JSON has it, and the bytes before datums."""
    sides = {
        table: [msgspec.msgpack.decode(side, type=_Written) for side in pair]
        for table, pair in learnt.tables.items()
    }
    plain = {table: (key.connect, value.connect) for table, (key, value) in sides.items()}
    prefixes = {table: (key.prefix, value.prefix) for table, (key, value) in sides.items()}
    return Learnt(learnt.event, plain), prefixes


class AvroRecordWriter:
    """See `RecordWriter`."""

    def __init__(
        self,
        beside: Converter,
        forms: KnownSchemas,
        table: str,
        schema: TableSchema,
        modes: HandlingModes,
        *,
        learnt: Learnt,
    ) -> None:
        """See `Converter.writer`; `beside` is the converter of JSON."""
        plain, prefixes = unpacked(learnt)
        self._writer = beside.writer(table, schema, modes, learnt=plain, wrapped=True)
        self._sides: list[tuple[bytes, Form | None, int]] = []
        told = zip(("key", "value"), prefixes[table], plain.tables[table], strict=True)
        for side, prefix, connect in told:
            framed = Framing("key" if side == "key" else "value", _NO_OPTIONS).of(prefix)
            form = forms.of(framed.reference) if framed else None
            self._sides.append((prefix, form, len(wrapper_of(connect))))
        self._table = table

    def reads(self, rows: pa.StructArray, moment: Moment) -> tuple[list[bytes], list[bytes]]:
        """See `RecordWriter`."""
        return self._written(self._writer.reads(rows, moment))

    def removals(self, keys: pa.StructArray, moment: Moment) -> tuple[list[bytes], list[bytes]]:
        """See `RecordWriter`."""
        return self._written(self._writer.removals(keys, moment))

    def _written(self, records: tuple[list[bytes], list[bytes]]) -> tuple[list[bytes], list[bytes]]:
        keys, values = (
            [self._datum(text, *side) for text in texts]
            for texts, side in zip(records, self._sides, strict=True)
        )
        return keys, values

    def _datum(self, text: bytes, prefix: bytes, form: Form | None, begin: int) -> bytes:
        if form is None:
            return text
        payload = text[begin:-1]
        try:
            return prefix + datum_of(form.program, payload)
        except DatumError as error:
            raise TableError(
                f"a row of {self._table} has no datum by the schema of its newest event: {error}",
                code="output-not-ready",
                hint="change a row of the table in the database, then: lakemark table resume TABLE",
            ) from None


def spliced(
    beside: Converter,
    value: bytes,
    found: Payloads,
    cells: Mapping[str, bytes],
    begin: int,
) -> bytes:
    """See `Converter.with_cells`.

    Args:
        beside: the converter of JSON.
        value: the record's.
        found: what it says.
        cells: the new values, as JSON.
        begin: where its datum begins.
    """
    text, form = found.texts[0], found.forms[0]
    if text is None:
        raise ValueError("the value cannot be read")
    changed = beside.with_cells(text, cells)
    if form is None:
        return changed
    return value[:begin] + datum_of(form.program, changed)
