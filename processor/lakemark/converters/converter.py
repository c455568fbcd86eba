"""The reader of a connector's records, and the writer of others like them, in any form.

A `Converter` is one form. What stands behind it knows keys in their canonical form (`model.key`),
typed rows in Arrow, and images, schemas and keys as bytes that only the converter reads. Its tests
inherit `ConverterContract` of `tests/kit/converter_contract.py`; `registry` has all converters.

Nothing here ever raises because of what a record is: who wrote it may have written any bytes. A
converter has no state that matters but its options and what it has read by them; one object serves
all tables and partitions of a process.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from lakemark.errors import TableError
from lakemark.model.columns import Column
from lakemark.model.decoding import (
    ConverterOptions,
    DecodedRange,
    Records,
    Side,
    StretchPlan,
)
from lakemark.model.definitions import SchemaChange
from lakemark.model.events import Headers, Learnt
from lakemark.model.findings import Finding
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.model.transactions import TransactionEnd
from lakemark.settings.layers import Mistake

OWN: Final = "source.converter"
"""The setting with what a converter is told here, before what the connector says."""
OUT: Final = "output.converter"
"""The setting with what a converter of output topics is told."""
WRONG_TYPE: Final = "wrong-type"
OUT_OF_RANGE: Final = "number-out-of-range"


Came = Sequence[Mapping[str, Any]]
"""Headers of a record as they came."""
Sent = Sequence[tuple[str, str | bytes | None]]
"""Headers of a record that is sent."""


@dataclass(slots=True)
class Rows:
    """Decoded row images, in the order given.

    Attributes:
        columns: one child per schema column, canonical types; null where an image lacks the
            column, has null or has an unavailable value; bad rows are null as a whole.
        unavailable: per row the columns whose value is Debezium's placeholder, in the order of
            the schema, or None.
        bad: (row, reason code, message) of rows that cannot be read, in order. The code is
            `WRONG_TYPE` or `OUT_OF_RANGE`; the message has no cell's value.
        unknown: names in images that the schema lacks: a column has appeared.
        clamped: values clamped to what Delta can hold: infinities, years before 1 or after 9999.
    """

    columns: pa.StructArray
    unavailable: list[tuple[str, ...] | None]
    bad: list[tuple[int, str, str]] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    clamped: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """The time and the place in the stream at which rows were read.

    Attributes:
        position: see `positions`.
        read_ns: nanoseconds since the epoch at which the rows were read.
        written_ns: at which their records are written.
    """

    position: bytes
    read_ns: int
    written_ns: int


class ConnectData(NamedTuple):
    """A key or a value as Kafka Connect has it, in the words of its JSON converter.

    Attributes:
        payload: raw JSON.
        schema: raw JSON of a Connect schema; None for a record that brings none.
        form: the name in `converters.registry` of the form in which it was written.
    """

    payload: bytes
    schema: bytes | None
    form: str


class SchemaSubject(NamedTuple):
    """A name under which a registry of schemas gets those of a topic that is written.

    Attributes:
        topic: that is written.
        side: its keys, or its values.
        name: empty where it is that of each record, which only records tell.
        strategy: that makes the name, in the words of the converter's settings.
        exists: whether the registry has schemas of that name.
    """

    topic: str
    side: Side
    name: str
    strategy: str
    exists: bool


class Converter(Protocol):
    """One form of records: how they are read, and how others like them are written."""

    java_classes: frozenset[str]
    """What a connector calls it: classes of Kafka Connect's `value.converter`."""

    without_schemas: str
    """What keeps schemas out of records: an imperative; empty where they never bring one."""

    read_headers: frozenset[str]
    """The headers that say how a record is to be read, beside those of key changes."""

    checks: tuple[str, ...]
    """The names of what `examine` looks at, the first one that of who is asked; none if nobody."""

    def of(self, options: ConverterOptions) -> "Converter":
        """Return this converter for the connector that has these options.

        It is made once for each of them and process, see `registry.converter_of`.
        """

    def problems(self, *, described: bool) -> Iterator[Mistake]:
        """Yield why its options do not suit.

        Paths are `OWN` and a name for lakemark's own settings, else names of the connector's.

        Args:
            described: whether tables are known without their records' schemas, by a database or a
                file.
        """

    def carries_schemas(self, side: Side) -> bool | None:
        """Say whether keys, or values, bring their schema; None where nobody here knows."""

    def keeps_nulls(self) -> bool:
        """Say whether NULL is NULL in columns that have a default; False if nobody here knows."""

    def restores_names(self) -> bool:
        """Say whether columns that the connector renames come with the names that it propagates.

        It does so with `column.propagate.source.type`.
        """

    def examine(self, topics: Sequence[str]) -> list[Finding]:
        """Return what the doctor should say of what it needs beside the records; it asks for it.

        Args:
            topics: of the captured tables, as far as they are known.

        Raises:
            ConfigError: it cannot be asked, by its options.
            DependencyError: it does not answer.
        """

    def registry(self) -> str:
        """Return the address of the registry that has its schemas; empty where it needs none."""

    def subjects(self, topics: Sequence[str]) -> list[SchemaSubject]:
        """Return the subjects of topics that it writes, of keys and of values; it asks for them.

        Args:
            topics: that are written.

        Raises:
            ConfigError, DependencyError: as `examine`.
        """

    def examine_output(self, topics: Mapping[str, str], reader: "Converter") -> list[Finding]:
        """Return what the doctor should say of topics that it writes; it asks for it.

        Args:
            topics: that are written, each by the topic that its records come from.
            reader: the converter of what they come from.

        Raises:
            ConfigError, DependencyError: as `examine`.
        """

    def headers(self, records: Records, plan: StretchPlan) -> Headers:
        """Return what each record is, one entry a record, in their order.

        The images that come out can be given to `rows`, whatever they hold; a record that is none
        of this connector's, or has no position, is BAD and says why.

        Args:
            records: of one partition.
            plan: `identity`, `epoch` and `max_event_bytes` of it count.
        """

    def schema_of(self, table: str, schema: bytes, key: bytes | None) -> TableSchema | None:
        """Return the schema that records bring with them; None if it cannot be read.

        Args:
            table: id of the table.
            schema: what `Headers.schema` has of them.
            key: the raw key of one of them, which says which columns the table's key has.

        Raises:
            TableError: the schema can be read, and no table can have it.
        """

    def key_names(self, key: bytes) -> tuple[str, ...]:
        """Return the columns that a raw key has, in its order; none if it cannot be read."""

    def canonical_keys(
        self, keys: Sequence[bytes | None], schema: TableSchema | None
    ) -> list[bytes | None]:
        """Return the canonical keys (`model.key`) of raw keys, or of values of key-change headers.

        Args:
            keys: as they came. One that brings its schema is read by it.
            schema: gives order and types of the others. Without it such a key must consist of
                whole numbers, texts, booleans and nulls, taken in the order they have.

        Returns:
            One a key; None for no key, and for one that cannot be read or lacks a column.
        """

    def out_of_range(self, key: bytes | None, schema: TableSchema) -> Column | None:
        """Return the column of a raw key whose date or timestamp the lake cannot hold.

        Args:
            key: one that `canonical_keys` gives nothing for.
            schema: as there.
        """

    def key_image(self, key: bytes | None) -> bytes:
        """Return a raw key as an image: a row that has only the key's columns."""

    def columns_of(self, image: bytes | None) -> frozenset[str]:
        """Return the names of the columns that an image has; none if it cannot be read."""

    def first_cells(self, image: bytes, count: int) -> list[Any]:
        """Return the values of an image's first columns; none if it cannot be read.

        Tables of signals are read so: their columns may have any names.
        """

    def rows(
        self,
        images: Sequence[bytes],
        schema: TableSchema,
        modes: HandlingModes,
        *,
        partial: Collection[int] = (),
    ) -> Rows:
        """Return typed columns of images.

        Args:
            images: together below 2 GiB (Arrow's limit for one string column).
            schema: the table's schema; its columns are the result's children.
            modes: the connector's settings.
            partial: numbers of the images that may have unavailable values: see
                `events.may_lack`. In others a placeholder is a value as any.
        """

    def suspects(
        self, images: Sequence[bytes], schema: TableSchema, modes: HandlingModes
    ) -> set[int]:
        """Return the numbers of the images that may have an unavailable value, by a cheap look.

        There may be too many of them, but never too few.
        """

    def plain_range(
        self, topic: str, partition: int, parts: Sequence[pa.RecordBatch], plan: StretchPlan
    ) -> DecodedRange | None:
        """Return what `decoder.decode_range` says of records, found faster; None if it cannot.

        Two things may differ: `applied` may be missing, and faults of events of which a newer one
        of the same key follows.

        Args:
            topic: theirs.
            partition: theirs.
            parts: the records of one stretch, as `fetch.SCHEMA` has them; without headers.
            plan: how to decode.
        """

    def prepare(self) -> None:
        """Call once what takes long the first time, see `compiler`; raise if it does not work."""

    def schema_changes(self, records: Records, plan: StretchPlan) -> Iterator[SchemaChange]:
        """Yield what records of a schema topic say of tables, in their order. Never raises.

        Records that say nothing of a table, or are of another connector, are passed over.

        Args:
            records: of one partition of the topic.
            plan: `identity` and `epoch` of it count.
        """

    def transaction_ends(self, records: Records) -> Iterator[TransactionEnd]:
        """Yield the ends that records of a transaction topic tell, in their order. Never raises.

        Args:
            records: of one partition of the topic.
        """

    def learn(self, records: Records, heads: Headers) -> Learnt:
        """Return what events show of how their connector writes, for `writer`.

        Args:
            records: of one partition.
            heads: what `headers` says of them.
        """

    def learnt_key(self, table: str, learnt: Learnt) -> TableSchema | None:
        """Return the columns of a table's key, where what has been learnt tells them."""

    def writer(
        self,
        table: str,
        schema: TableSchema,
        modes: HandlingModes,
        *,
        learnt: Learnt,
        wrapped: bool,
    ) -> "RecordWriter":
        """Return what writes rows of a table as its connector would have.

        Args:
            table: id of the table.
            schema: of the rows.
            modes: the connector's settings.
            learnt: what its events have shown.
            wrapped: whether keys or values of the connector carry their schemas.

        Raises:
            TableError: `output-not-ready`: they have not shown enough yet, see `not_ready`.
        """

    # -- another form on the way out than on the way in -------------------------------------------

    def described(self, schema: TableSchema, learnt: Learnt) -> Learnt:
        """Return what has been learnt, with the schemas that a table's records do not bring.

        Args:
            schema: of the table.
            learnt: what events have shown; of none nothing can be said.
        """

    def opened(self, departing: "Departing", at: Sequence[int]) -> list[ConnectData | None]:
        """Return what keys or values that this converter can read say; None for what is null.

        Args:
            departing: with them.
            at: which of them.

        Raises:
            TableError: one cannot be read.
            DependencyError: whoever must be asked is away.
        """

    def issued(self, departing: "Departing") -> list[bytes | None]:
        """Return keys or values as this form has them, for a topic that is written.

        What has this form already stays as it is, byte for byte.

        Args:
            departing: with them.

        Raises:
            TableError: one has no such form, or its schema is refused.
            DependencyError: whoever must be asked is away.
        """

    def schema_id(self, value: bytes, headers: Sent) -> int | None:
        """Return the number of the schema in a registry that a value names; None for none.

        Args:
            value: of a record.
            headers: of the record.
        """

    def cells(self, image: bytes) -> Mapping[str, bytes]:
        """Return the values of an image as they are written, by column.

        Raises:
            ValueError: it cannot be read.
        """

    def cells_of(
        self, columns: Mapping[str, pa.Array], schema: TableSchema, modes: HandlingModes
    ) -> Mapping[str, list[bytes]]:
        """Return how typed values are written, by column.

        Args:
            columns: some of the schema's columns.
            schema: of the table.
            modes: the connector's settings.
        """

    def with_cells(
        self, value: bytes, cells: Mapping[str, bytes], headers: Came | None = None
    ) -> bytes:
        """Return a change event with other values in its after image, all else as it was.

        Args:
            value: of the record.
            cells: by column, as `cells` or `cells_of` have them.
            headers: of the record.

        Raises:
            ValueError: this is no change event, or the image is null or lacks one of the columns.
        """


@dataclass(frozen=True, slots=True)
class Departing:
    """Keys, or values, of one table on their way to a topic.

    Attributes:
        side: of keys, or of values.
        topic: that they are written to.
        table: id of the table.
        reader: the converter of the form that they have.
        learnt: what their connector's events have shown, see `Converter.described`.
        raws: as their reader has them.
        headers: of their records.
        converts: whether those of another form than the topic's are changed.
    """

    side: Side
    topic: str
    table: str
    reader: Converter
    learnt: Learnt
    raws: Sequence[bytes | None]
    headers: Sequence[Sent]
    converts: bool = True

    def opened(self, at: Sequence[int] | None = None) -> list[ConnectData | None]:
        """Return what they say, or some of them, see `Converter.opened`."""
        return self.reader.opened(self, range(len(self.raws)) if at is None else at)


class RecordWriter(Protocol):
    """Writes rows of one table as records of its connector: Debezium's reads, and deletes."""

    def reads(self, rows: pa.StructArray, moment: Moment) -> tuple[list[bytes], list[bytes]]:
        """Return keys and values of rows that are there, as an incremental snapshot writes them.

        Args:
            rows: a child for every column, of its canonical type.
            moment: where and when they were read.
        """

    def removals(self, keys: pa.StructArray, moment: Moment) -> tuple[list[bytes], list[bytes]]:
        """Return keys and values of deletes of rows that are known to be gone.

        Args:
            keys: a child for each column of the key; others do not matter.
            moment: as `reads`.
        """


def not_ready(message: str) -> TableError:
    """Return the error for records to write in a form that no event has shown yet."""
    return TableError(
        message,
        code="output-not-ready",
        hint="change a row of the table in the database, then: lakemark table resume TABLE",
    )


def whole(
    converter: Converter,
    afters: Sequence[bytes],
    befores: Sequence[bytes],
    schema: TableSchema,
    modes: HandlingModes,
) -> set[int]:
    """Return the updates whose after images have every value, by number.

    Where the before image shows the old value (REPLICA IDENTITY FULL), the connector takes it for
    an unchanged one: what looks like a placeholder is the new value then. Never raises.

    Args:
        converter: reads the images.
        afters: after images of updates.
        befores: their before images.
        schema: as `Converter.rows`.
        modes: as `Converter.rows`.
    """
    lacking = converter.rows(afters, schema, modes, partial=range(len(afters))).unavailable
    old = converter.rows(befores, schema, modes).columns
    return {
        at
        for at, names in enumerate(lacking)
        if all(old.field(name)[at].is_valid for name in names or ())
    }
