"""Another form of records, told as the JSON that Connect's converter writes of the same record.

This is the short way to a `Converter` of one's own. A `RecordForm` has two functions, one that
reads a key or a value and one that writes it; what values, keys, positions and schemas are stays
with the converter of JSON. A record with schemas is told as ``{"schema": …, "payload": …}``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import pyarrow as pa

from lakemark.converters.beside import ANY_SIZE, BadRecord, BesideConverter, refuse, refused_sizes
from lakemark.converters.converter import (
    Came,
    ConnectData,
    Converter,
    Departing,
    Moment,
    RecordWriter,
)
from lakemark.model.columns import Column
from lakemark.model.decoding import ConverterOptions, DecodedRange, Records, Side, StretchPlan
from lakemark.model.definitions import SchemaChange
from lakemark.model.events import Headers, Learnt
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.model.transactions import TransactionEnd
from lakemark.settings.layers import Mistake

NO_OPTIONS: Final = ConverterOptions()
_FORM: Final = "transcribed"
UNREADABLE: Final = "unreadable-record"
"""Code of a record that its form cannot read."""

RecordHeaders = Sequence[Mapping[str, Any]]
"""Of one record: ``key``, a text, and ``value``, bytes or None, of each."""


class RecordForm(Protocol):
    """A form of records. Threads share it."""

    java_classes: frozenset[str]
    """What a connector calls it: classes of Kafka Connect's `value.converter`."""

    carries_schemas: bool
    """Whether `read` gives the schema with the payload."""

    def problems(self) -> Iterator[Mistake]:
        """Yield why its options do not suit: see `Converter.problems`."""

    def read(self, side: Side, raw: bytes, headers: RecordHeaders) -> bytes | None:
        """Return a key or a value as JSON; None for one that is JSON already.

        Args:
            side: whether it is a key.
            raw: its bytes.
            headers: of its record; none for a key without its record.

        Raises:
            ValueError: it is none of this form. The message is shown, so it has no value in it.
            DependencyError: what it takes to read it is away; tried again.
        """

    def write(self, side: Side, text: bytes) -> bytes:
        """Return a key or a value, given as JSON, in this form.

        Args:
            side: whether it is a key.
            text: what `read` would return of it.

        Raises:
            ValueError: it cannot be written.
        """


class TranscribedConverter(BesideConverter):
    """See `Converter`: one of a form.

    Args:
        beside: the converter of JSON.
        make: makes the form by what it is told.
        options: what it is told.
    """

    def __init__(
        self,
        beside: Converter,
        make: Callable[[ConverterOptions], RecordForm],
        options: ConverterOptions = NO_OPTIONS,
    ) -> None:
        super().__init__(beside)
        self._make, self._form = make, make(options)
        self.without_schemas = ""
        self.java_classes = self._form.java_classes

    def of(self, options: ConverterOptions) -> "TranscribedConverter":
        """See `Converter`."""
        return TranscribedConverter(self._beside, self._make, options)

    def problems(self, *, described: bool) -> Iterator[Mistake]:
        """See `Converter`."""
        yield from self._form.problems()
        if not self._form.carries_schemas and not described:
            yield Mistake(
                "value.converter",
                "gives no schemas, and without one the types of the columns cannot be known",
                "add the section database, or source.schema_file",
            )

    def carries_schemas(self, side: Side) -> bool | None:  # noqa: ARG002 - one form for both
        """See `Converter`."""
        return self._form.carries_schemas

    # -- what a record is -----------------------------------------------------------------------

    def headers(self, records: Records, plan: StretchPlan) -> Headers:
        """See `Converter`: a code of its own is `UNREADABLE`."""
        bad = refused_sizes(records, plan.max_event_bytes)
        told = self._told(records, bad)
        heads = self._beside.headers(told, replace(plan, max_event_bytes=ANY_SIZE))
        refuse(heads, bad)
        return heads

    def _told(self, records: Records, bad: dict[int, BadRecord]) -> Records:
        """Return records in JSON.

        Args:
            records: as they came.
            bad: those that are not read, by index; gets code and reason of those that cannot be.
        """
        keys, values = [*records.keys], [*records.values]
        for index, given in enumerate(records.headers):
            if index in bad:
                values[index] = None
                continue
            if not values[index]:
                continue  # a tombstone
            try:
                values[index] = self._read("value", values[index], given or ())
                keys[index] = self._read("key", keys[index], given or ())
            except ValueError as error:
                keys[index], bad[index] = None, BadRecord(UNREADABLE, str(error))
        return replace(records, keys=keys, values=values, column=None)

    def _read(self, side: Side, raw: bytes | None, headers: RecordHeaders = ()) -> bytes | None:
        return self._form.read(side, raw, headers) or raw if raw else raw

    def _key(self, raw: bytes | None) -> bytes | None:
        """Return a key in JSON; None for one that cannot be read."""
        try:
            return self._read("key", raw)
        except ValueError:
            return None

    def schema_changes(self, records: Records, plan: StretchPlan) -> Iterator[SchemaChange]:
        """See `Converter`."""
        return self._beside.schema_changes(self._told(records, {}), plan)

    def transaction_ends(self, records: Records) -> Iterator[TransactionEnd]:
        """See `Converter`."""
        return self._beside.transaction_ends(self._told(records, {}))

    # -- keys -----------------------------------------------------------------------------------

    def schema_of(self, table: str, schema: bytes, key: bytes | None) -> TableSchema | None:
        """See `Converter`."""
        return self._beside.schema_of(table, schema, self._key(key))

    def key_names(self, key: bytes) -> tuple[str, ...]:
        """See `Converter`."""
        return self._beside.key_names(self._key(key) or b"")

    def canonical_keys(
        self, keys: Sequence[bytes | None], schema: TableSchema | None
    ) -> list[bytes | None]:
        """See `Converter`."""
        return self._beside.canonical_keys([self._key(key) for key in keys], schema)

    def out_of_range(self, key: bytes | None, schema: TableSchema) -> Column | None:
        """See `Converter`."""
        return self._beside.out_of_range(self._key(key), schema)

    def key_image(self, key: bytes | None) -> bytes:
        """See `Converter`."""
        return self._beside.key_image(self._key(key))

    # -- the faster way -------------------------------------------------------------------------

    def plain_range(
        self, topic: str, partition: int, parts: Sequence[pa.RecordBatch], plan: StretchPlan
    ) -> DecodedRange | None:
        """See `Converter`: once they are read, records are as fast as JSON."""
        batches = []
        try:
            for part in parts:
                values = part.column("value").to_pylist()
                if max(map(len, filter(None, values)), default=0) > plan.max_event_bytes:
                    return None
                texts = {"key": self._texts("key", part.column("key").to_pylist())}
                texts["value"] = self._texts("value", values)
                names = part.schema.names
                columns = [texts[name] if name in texts else part.column(name) for name in names]
                batches.append(pa.RecordBatch.from_arrays(columns, names))
        except ValueError:
            return None  # the general way says which
        wide = replace(plan, max_event_bytes=ANY_SIZE)
        return self._beside.plain_range(topic, partition, batches, wide)

    def _texts(self, side: Side, raws: Sequence[bytes | None]) -> pa.BinaryArray:
        return pa.array([self._read(side, raw) for raw in raws], pa.binary())

    # -- writing --------------------------------------------------------------------------------

    def learn(self, records: Records, heads: Headers) -> Learnt:
        """See `Converter`."""
        return self._beside.learn(self._told(records, {}), heads)

    def writer(
        self,
        table: str,
        schema: TableSchema,
        modes: HandlingModes,
        *,
        learnt: Learnt,
        wrapped: bool,
    ) -> RecordWriter:
        """See `Converter`."""
        written = self._beside.writer(table, schema, modes, learnt=learnt, wrapped=wrapped)
        return _TranscribedWriter(written, self._form)

    def opened(self, departing: Departing, at: Sequence[int]) -> list[ConnectData | None]:
        """See `Converter`."""
        texts: list[bytes | None] = []
        for index in at:
            told = [{"key": name, "value": value} for name, value in departing.headers[index]]
            texts.append(self._read(departing.side, departing.raws[index], told))
        said = self._beside.opened(replace(departing, raws=texts), range(len(at)))
        return [
            data._replace(form=_FORM) if data and text != departing.raws[index] else data
            for index, text, data in zip(at, texts, said, strict=True)
        ]

    def with_cells(
        self, value: bytes, cells: Mapping[str, bytes], headers: Came | None = None
    ) -> bytes:
        """See `Converter`."""
        text = self._form.read("value", value, headers or ())
        changed = self._beside.with_cells(text or value, cells)
        return changed if text is None else self._form.write("value", changed)


class _TranscribedWriter:
    """See `RecordWriter`."""

    def __init__(self, beside: RecordWriter, form: RecordForm) -> None:
        self._beside, self._form = beside, form

    def reads(self, rows: pa.StructArray, moment: Moment) -> tuple[list[bytes], list[bytes]]:
        """See `RecordWriter`."""
        return self._written(*self._beside.reads(rows, moment))

    def removals(self, keys: pa.StructArray, moment: Moment) -> tuple[list[bytes], list[bytes]]:
        """See `RecordWriter`."""
        return self._written(*self._beside.removals(keys, moment))

    def _written(self, keys: list[bytes], values: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        write = self._form.write
        return [write("key", key) for key in keys], [write("value", value) for value in values]
