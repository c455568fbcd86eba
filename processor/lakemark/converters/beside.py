"""A converter that leaves all questions to another one: the base of those that stand before it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from lakemark.converters.converter import (
    Came,
    ConnectData,
    Converter,
    Departing,
    RecordWriter,
    Rows,
    SchemaSubject,
    Sent,
)
from lakemark.model.columns import Column
from lakemark.model.decoding import DecodedRange, Records, Side, StretchPlan
from lakemark.model.definitions import SchemaChange
from lakemark.model.events import Headers, Kind, Learnt
from lakemark.model.findings import Finding
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.model.transactions import TransactionEnd
from lakemark.settings.layers import Mistake

ANY_SIZE: Final = 1 << 62
"""For the other, which reads what was made of a record: its own size was looked at before."""


class BadRecord(NamedTuple):
    """A record that cannot be read: the code of why, and the reason in words."""

    code: str
    reason: str


def refused_sizes(records: Records, most: int) -> dict[int, BadRecord]:
    """Return the records whose values are too large, by index: see `refuse`.

    Args:
        records: as they came.
        most: bytes that a value may have.
    """
    sizes = {at: len(value) for at, value in enumerate(records.values) if value}
    return {
        at: BadRecord("record-too-large", f"{size} bytes, at most {most} are read")
        for at, size in sizes.items()
        if size > most
    }


def refuse(heads: Headers, bad: Mapping[int, BadRecord]) -> None:
    """Make records bad that the other has not seen as they came.

    Args:
        heads: what the other says.
        bad: by index.
    """
    for index, (code, detail) in bad.items():
        heads.kind[index] = int(Kind.BAD)
        heads.reason[index], heads.detail[index] = code, detail
        heads.before[index] = heads.after[index] = heads.schema[index] = None


class BesideConverter:
    """See `Converter`; all but `of`, which only who stands before the other can answer.

    Args:
        beside: the other.
    """

    def __init__(self, beside: Converter) -> None:
        self._beside = beside
        self.java_classes = beside.java_classes
        self.without_schemas = beside.without_schemas
        self.read_headers = beside.read_headers
        self.checks = beside.checks

    def problems(self, *, described: bool) -> Iterator[Mistake]:
        """See `Converter`."""
        return self._beside.problems(described=described)

    def carries_schemas(self, side: Side) -> bool | None:
        """See `Converter`."""
        return self._beside.carries_schemas(side)

    def keeps_nulls(self) -> bool:
        """See `Converter`."""
        return self._beside.keeps_nulls()

    def restores_names(self) -> bool:
        """See `Converter`."""
        return self._beside.restores_names()

    def examine(self, topics: Sequence[str]) -> list[Finding]:
        """See `Converter`."""
        return self._beside.examine(topics)

    def registry(self) -> str:
        """See `Converter`."""
        return self._beside.registry()

    def subjects(self, topics: Sequence[str]) -> list[SchemaSubject]:
        """See `Converter`."""
        return self._beside.subjects(topics)

    def examine_output(self, topics: Mapping[str, str], reader: Converter) -> list[Finding]:
        """See `Converter`."""
        return self._beside.examine_output(topics, reader)

    def headers(self, records: Records, plan: StretchPlan) -> Headers:
        """See `Converter`."""
        return self._beside.headers(records, plan)

    def schema_of(self, table: str, schema: bytes, key: bytes | None) -> TableSchema | None:
        """See `Converter`."""
        return self._beside.schema_of(table, schema, key)

    def key_names(self, key: bytes) -> tuple[str, ...]:
        """See `Converter`."""
        return self._beside.key_names(key)

    def canonical_keys(
        self, keys: Sequence[bytes | None], schema: TableSchema | None
    ) -> list[bytes | None]:
        """See `Converter`."""
        return self._beside.canonical_keys(keys, schema)

    def out_of_range(self, key: bytes | None, schema: TableSchema) -> Column | None:
        """See `Converter`."""
        return self._beside.out_of_range(key, schema)

    def key_image(self, key: bytes | None) -> bytes:
        """See `Converter`."""
        return self._beside.key_image(key)

    def columns_of(self, image: bytes | None) -> frozenset[str]:
        """See `Converter`."""
        return self._beside.columns_of(image)

    def first_cells(self, image: bytes, count: int) -> list[Any]:
        """See `Converter`."""
        return self._beside.first_cells(image, count)

    def rows(
        self,
        images: Sequence[bytes],
        schema: TableSchema,
        modes: HandlingModes,
        *,
        partial: Collection[int] = (),
    ) -> Rows:
        """See `Converter`."""
        return self._beside.rows(images, schema, modes, partial=partial)

    def suspects(
        self, images: Sequence[bytes], schema: TableSchema, modes: HandlingModes
    ) -> set[int]:
        """See `Converter`."""
        return self._beside.suspects(images, schema, modes)

    def plain_range(
        self, topic: str, partition: int, parts: Sequence[pa.RecordBatch], plan: StretchPlan
    ) -> DecodedRange | None:
        """See `Converter`."""
        return self._beside.plain_range(topic, partition, parts, plan)

    def prepare(self) -> None:
        """See `Converter`: nothing of its own is compiled."""

    def schema_changes(self, records: Records, plan: StretchPlan) -> Iterator[SchemaChange]:
        """See `Converter`."""
        return self._beside.schema_changes(records, plan)

    def transaction_ends(self, records: Records) -> Iterator[TransactionEnd]:
        """See `Converter`."""
        return self._beside.transaction_ends(records)

    def learn(self, records: Records, heads: Headers) -> Learnt:
        """See `Converter`."""
        return self._beside.learn(records, heads)

    def learnt_key(self, table: str, learnt: Learnt) -> TableSchema | None:
        """See `Converter`."""
        return self._beside.learnt_key(table, learnt)

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
        return self._beside.writer(table, schema, modes, learnt=learnt, wrapped=wrapped)

    def described(self, schema: TableSchema, learnt: Learnt) -> Learnt:
        """See `Converter`."""
        return self._beside.described(schema, learnt)

    def opened(self, departing: Departing, at: Sequence[int]) -> list[ConnectData | None]:
        """See `Converter`."""
        return self._beside.opened(departing, at)

    def issued(self, departing: Departing) -> list[bytes | None]:
        """See `Converter`: of its own records alone, which stay as they are."""
        return [*departing.raws]

    def schema_id(self, value: bytes, headers: Sent) -> int | None:
        """See `Converter`."""
        return self._beside.schema_id(value, headers)

    def cells(self, image: bytes) -> Mapping[str, bytes]:
        """See `Converter`."""
        return self._beside.cells(image)

    def cells_of(
        self, columns: Mapping[str, pa.Array], schema: TableSchema, modes: HandlingModes
    ) -> Mapping[str, list[bytes]]:
        """See `Converter`."""
        return self._beside.cells_of(columns, schema, modes)

    def with_cells(
        self, value: bytes, cells: Mapping[str, bytes], headers: Came | None = None
    ) -> bytes:
        """See `Converter`."""
        return self._beside.with_cells(value, cells, headers)
