"""Connect's JSON converter, as a `Converter`: each of its questions is answered elsewhere."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
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
from lakemark.converters.json import (
    described,
    envelope,
    issuing,
    keys,
    record_writer,
    schema_changes,
    splicing,
    transactions,
)
from lakemark.converters.json.keys import canonical_keys
from lakemark.converters.json.record_writer import JsonRecordWriter
from lakemark.converters.json.rendering import Rendering
from lakemark.converters.json.rows import decode_rows, may_have_placeholder
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
from lakemark.settings.layers import Mistake, SetTo

NO_OPTIONS: Final = ConverterOptions()
_NULLS: Final = "replace.null.with.default"
_SCHEMAS: Final = "schemas.enable"


class JsonConverter:
    """See `Converter`. Images are the raw JSON of rows, schemas that of ``schema``."""

    java_classes = frozenset({"org.apache.kafka.connect.json.JsonConverter"})
    without_schemas = "set schemas.enable=false of both converters"
    read_headers: frozenset[str] = frozenset()
    checks: tuple[str, ...] = ()

    def __init__(self, options: ConverterOptions = NO_OPTIONS) -> None:
        self._options = options

    def of(self, options: ConverterOptions) -> "JsonConverter":
        """See `Converter`."""
        return JsonConverter(options)

    def problems(self, *, described: bool) -> Iterator[Mistake]:
        """See `Converter`."""
        if self._options.value is None:
            return
        if self._is_on("value", _NULLS):
            yield Mistake(
                f"value.converter.{_NULLS}",
                "is not false: NULL in a column that has a default arrives as the default",
                SetTo(f"value.converter.{_NULLS}", "false"),
                warning=True,
            )
        if not self._is_on("value", _SCHEMAS) and not described:
            yield Mistake(
                f"value.converter.{_SCHEMAS}",
                "is false, and without a schema the types of the columns cannot be known",
                "add the section database, or source.schema_file, or set it to true",
            )

    def carries_schemas(self, side: Side) -> bool | None:
        """See `Converter`: unless the connector says otherwise they do."""
        told = self._options.key if side == "key" else self._options.value
        return None if told is None else self._is_on(side, _SCHEMAS)

    def keeps_nulls(self) -> bool:
        """See `Converter`."""
        return not self._is_on("value", _NULLS)

    def restores_names(self) -> bool:
        """See `Converter`."""
        return False

    def examine(self, topics: Sequence[str]) -> list[Finding]:  # noqa: ARG002
        """See `Converter`: it needs nothing."""
        return []

    def registry(self) -> str:
        """See `Converter`: there is none."""
        return ""

    def subjects(self, topics: Sequence[str]) -> list[SchemaSubject]:  # noqa: ARG002
        """See `Converter`: there is no registry."""
        return []

    def examine_output(
        self,
        topics: Mapping[str, str],  # noqa: ARG002
        reader: Converter,  # noqa: ARG002
    ) -> list[Finding]:
        """See `Converter`: it needs nothing."""
        return []

    def _is_on(self, side: Side, name: str) -> bool:
        return (self._options.get(side, name) or "true").lower() == "true"

    def headers(self, records: Records, plan: StretchPlan) -> Headers:
        """See `Converter`; positions are those of `envelope.positions_of`."""
        return envelope.decode(
            records.values,
            records.keys,
            identity=plan.identity,
            epoch=plan.epoch,
            max_bytes=plan.max_event_bytes,
            texts=records.column is not None and envelope.are_texts(records.column),
        )

    def schema_of(self, table: str, schema: bytes, key: bytes | None) -> TableSchema | None:
        """See `Converter`."""
        return keys.table_schema(table, schema, keys.key_schema(key))

    def key_names(self, key: bytes) -> tuple[str, ...]:
        """See `Converter`."""
        return keys.key_names(key)

    def canonical_keys(
        self, keys: Sequence[bytes | None], schema: TableSchema | None
    ) -> list[bytes | None]:
        """See `Converter`."""
        return canonical_keys(keys, schema)

    def out_of_range(self, key: bytes | None, schema: TableSchema) -> Column | None:
        """See `Converter`."""
        return keys.out_of_range(key, schema)

    def key_image(self, key: bytes | None) -> bytes:
        """See `Converter`."""
        return envelope.unwrapped(key or envelope.NULL)[1]

    def columns_of(self, image: bytes | None) -> frozenset[str]:
        """See `Converter`."""
        try:
            return frozenset(msgspec.json.decode(image or b"{}", type=dict[str, msgspec.Raw]))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return frozenset()  # whoever reads the image says what is wrong with it

    def first_cells(self, image: bytes, count: int) -> list[Any]:
        """See `Converter`."""
        try:
            return list(msgspec.json.decode(image, type=dict[str, Any]).values())[:count]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return []

    def rows(
        self,
        images: Sequence[bytes],
        schema: TableSchema,
        modes: HandlingModes,
        *,
        partial: Collection[int] = (),
    ) -> Rows:
        """See `Converter`."""
        return decode_rows(images, schema, modes, partial=partial)

    def suspects(
        self, images: Sequence[bytes], schema: TableSchema, modes: HandlingModes
    ) -> set[int]:
        """See `Converter`."""
        probe = may_have_placeholder(schema, modes)
        if not probe(b"\n".join(images)):
            return set()
        return {number for number, image in enumerate(images) if image and probe(image)}

    def plain_range(
        self, topic: str, partition: int, parts: Sequence[pa.RecordBatch], plan: StretchPlan
    ) -> DecodedRange | None:
        """See `Converter`: `fast_path` has it."""
        from lakemark.converters.json import fast_path  # noqa: PLC0415 - workers have it already, others need it not

        return fast_path.decode_range(self, topic, partition, parts, plan)

    def prepare(self) -> None:
        """See `Converter`."""
        from lakemark.converters.json import fast_path  # noqa: PLC0415 - see above

        fast_path.example(self)

    def schema_changes(self, records: Records, plan: StretchPlan) -> Iterator[SchemaChange]:
        """See `Converter`."""
        return schema_changes.schema_changes(records, plan)

    def transaction_ends(self, records: Records) -> Iterator[TransactionEnd]:
        """See `Converter`."""
        return transactions.transaction_ends(records)

    def learn(self, records: Records, heads: Headers) -> Learnt:
        """See `Converter`."""
        return record_writer.learn(records, heads)

    def learnt_key(self, table: str, learnt: Learnt) -> TableSchema | None:
        """See `Converter`."""
        return record_writer.learnt_key(table, learnt)

    def writer(
        self,
        table: str,
        schema: TableSchema,
        modes: HandlingModes,
        *,
        learnt: Learnt,
        wrapped: bool,
    ) -> RecordWriter:
        """See `Converter`: NULL is the default where the connector's records have it so."""
        carries = wrapped and self.carries_schemas("value") is not False
        replaces = carries and not self.keeps_nulls()
        return JsonRecordWriter(
            table, schema, modes, learnt=learnt, wrapped=wrapped, replaces_nulls=replaces
        )

    def described(self, schema: TableSchema, learnt: Learnt) -> Learnt:
        """See `Converter`."""
        return described.described(schema, learnt)

    def opened(self, departing: Departing, at: Sequence[int]) -> list[ConnectData | None]:
        """See `Converter`."""
        return issuing.opened(departing, at)

    def issued(self, departing: Departing) -> list[bytes | None]:
        """See `Converter`: what was another form carries its schema, unless options say no."""
        if isinstance(departing.reader, JsonConverter):
            return [*departing.raws]
        wraps = self._is_on(departing.side, _SCHEMAS)
        found = zip(departing.raws, departing.opened(), strict=True)
        return [issuing.issued(raw, data, wraps=wraps) for raw, data in found]

    def schema_id(self, value: bytes, headers: Sent) -> int | None:  # noqa: ARG002
        """See `Converter`: it brings its schema, or none."""
        return None

    def cells(self, image: bytes) -> Mapping[str, bytes]:
        """See `Converter`."""
        found = splicing.members(image, 0)
        return {name: image[member.start : member.end] for name, member in found.items()}

    def cells_of(
        self, columns: Mapping[str, pa.Array], schema: TableSchema, modes: HandlingModes
    ) -> Mapping[str, list[bytes]]:
        """See `Converter`."""
        rendering = Rendering(schema, modes)
        return {
            name: rendering.fragments(name, values).to_pylist() for name, values in columns.items()
        }

    def with_cells(
        self,
        value: bytes,
        cells: Mapping[str, bytes],
        headers: Came | None = None,  # noqa: ARG002
    ) -> bytes:
        """See `Converter`."""
        return splicing.spliced(value, after=cells)
