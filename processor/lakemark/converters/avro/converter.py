"""Avro with a registry of schemas, as a `Converter`.

A datum is turned into the JSON that Connect's converter writes of the same record, and read on by
the converter of JSON, which is given: one place knows what a value, a key or a position is, and a
record is the same whichever form it has. A schema becomes the Connect schema that it was made from.
Images are those of the other converter, so is everything that needs no record.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lakemark.converters.avro import lost_values, registry_settings
from lakemark.converters.avro.check_names import CHECKS
from lakemark.converters.avro.framing import HEADERS, Framing
from lakemark.converters.avro.issuing import Issuing, Origin
from lakemark.converters.avro.known_schemas import KnownSchemas
from lakemark.converters.avro.payloads import payloads
from lakemark.converters.avro.record_writer import (
    AvroRecordWriter,
    learn,
    packed,
    spliced,
    unpacked,
)
from lakemark.converters.avro.schema_source import SchemaRegistry, SchemaSource
from lakemark.converters.beside import ANY_SIZE, BadRecord, BesideConverter, refuse, refused_sizes
from lakemark.converters.converter import (
    Came,
    ConnectData,
    Converter,
    Departing,
    RecordWriter,
    SchemaSubject,
    Sent,
)
from lakemark.errors import TableError
from lakemark.model.change_batch import SCHEMA_ID
from lakemark.model.columns import Column
from lakemark.model.decoding import (
    ConverterOptions,
    DecodedRange,
    Records,
    Side,
    StretchPlan,
)
from lakemark.model.definitions import SchemaChange
from lakemark.model.events import Headers, Kind, Learnt
from lakemark.model.findings import Finding
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.model.transactions import TransactionEnd
from lakemark.settings.layers import Mistake

if TYPE_CHECKING:
    from lakemark.converters.avro.registry import RegistrySource

NO_OPTIONS: Final = ConverterOptions()
_FORM: Final = "avro"
_NO_TABLE: Final = frozenset({int(Kind.TOMBSTONE), int(Kind.BAD)})

Sources = Callable[[ConverterOptions], SchemaSource]
"""Makes what has the schemas of a connector's records."""
Registries = Callable[[ConverterOptions], SchemaRegistry]
"""Makes what takes the schemas of records that are written."""


JAVA_CLASSES: Final = frozenset({
    "io.confluent.connect.avro.AvroConverter",
    "io.apicurio.registry.utils.converter.AvroConverter",
})  # fmt: skip
_INSTEAD: Final = "use org.apache.kafka.connect.json.JsonConverter with schemas.enable=false"


class AvroConverter(BesideConverter):
    """See `Converter`."""

    def __init__(
        self,
        beside: Converter,
        sources: Sources | None = None,
        options: ConverterOptions = NO_OPTIONS,
        *,
        registries: Registries | None = None,
    ) -> None:
        """Takes the converter of JSON, and what it is told.

        What has the schemas to read by, and what takes those to write by, are both the registry
        unless they are given.
        """
        sources, registries = sources or _registry, registries or _registry
        super().__init__(beside.of(options))
        self.java_classes, self.checks, self.without_schemas = JAVA_CLASSES, CHECKS, _INSTEAD
        self.read_headers = HEADERS | self._beside.read_headers
        self._sources, self._registries, self._options = sources, registries, options
        self._schemas = KnownSchemas(lambda: sources(options))
        self._issuing = Issuing(lambda: registries(options), options)
        self._keys, self._values = Framing("key", options), Framing("value", options)

    def of(self, options: ConverterOptions) -> "AvroConverter":
        """See `Converter`."""
        return AvroConverter(self._beside, self._sources, options, registries=self._registries)

    def problems(self, *, described: bool) -> Iterator[Mistake]:
        """See `Converter`: records bring their types, if there is a registry that has them."""
        yield from registry_settings.problems(self._options)
        if self._is_mine("value"):
            yield from lost_values.losses(self._options)
        else:
            yield from self._beside.problems(described=described)

    def carries_schemas(self, side: Side) -> bool | None:
        """See `Converter`: each record names its own, on the sides that are Avro's."""
        if self._is_mine(side):
            return True
        java_class = self._options.java_class(side)
        if java_class in self._beside.java_classes:
            return self._beside.carries_schemas(side)
        return False if java_class else None

    def _is_mine(self, side: Side) -> bool:
        """Say whether a side's records are Avro's: both, unless the connector says otherwise."""
        named = self._options.key_class or self._options.value_class
        return not named or self._options.java_class(side) in self.java_classes

    def keeps_nulls(self) -> bool:
        """See `Converter`."""
        if not self._is_mine("value"):
            return self._beside.keeps_nulls()
        return lost_values.keeps_nulls(self._options)

    def restores_names(self) -> bool:
        """See `Converter`: where keys and values are Avro's, or they would differ."""
        return self._is_mine("key") and self._is_mine("value")

    def examine(self, topics: Sequence[str]) -> list[Finding]:
        """See `Converter`: the registry is asked."""
        from lakemark.converters.avro import registry_checks  # noqa: PLC0415 - see `_registry`

        return registry_checks.examine(self._options, topics)

    def registry(self) -> str:
        """See `Converter`."""
        return registry_settings.address_of(self._options)

    def subjects(self, topics: Sequence[str]) -> list[SchemaSubject]:
        """See `Converter`: the registry is asked."""
        from lakemark.converters.avro import registry_checks  # noqa: PLC0415 - see `_registry`

        return registry_checks.subjects(self._options, topics)

    def examine_output(self, topics: Mapping[str, str], reader: Converter) -> list[Finding]:
        """See `Converter`: of records that are Avro already, the schemas are known."""
        from lakemark.converters.avro import registry_checks  # noqa: PLC0415 - see `_registry`

        if not isinstance(reader, AvroConverter):
            return []
        return registry_checks.examine_output(self._options, reader.options, topics)

    @property
    def options(self) -> ConverterOptions:
        """The options that it was made with."""
        return self._options

    # -- what a record is -----------------------------------------------------------------------

    def headers(self, records: Records, plan: StretchPlan) -> Headers:
        """See `Converter`: codes of its own are `invalid-avro` and `schema-not-found`."""
        large = refused_sizes(records, plan.max_event_bytes)
        raws = [None if at in large else value for at, value in enumerate(records.values)]
        values = payloads(raws, self._values, self._schemas, records.headers)
        keys = payloads(records.keys, self._keys, self._schemas, records.headers)
        texts = replace(records, keys=keys.texts, values=values.texts, column=None)
        heads = self._beside.headers(texts, replace(plan, max_event_bytes=ANY_SIZE))
        for index, form in enumerate(values.forms):
            if form is not None and heads.op[index]:
                heads.schema[index] = form.connect
                if SCHEMA_ID in plan.metadata:
                    heads.schema_ids[index] = form.number
            elif heads.op[index] == "d" and raws[index] is None and (of_key := keys.forms[index]):
                heads.schema[index] = of_key.connect
        for index, headers in enumerate(records.headers):
            # A key whose schema a header names has to bring it along: its bytes name none.
            if headers and self._keys.named_by(headers) and (key := keys.wrapped(index)):
                heads.keys[index] = key
        for index, (code, detail) in keys.bad.items():
            if heads.kind[index] not in _NO_TABLE:
                refuse(heads, {index: BadRecord(code, f"its key cannot be read: {detail}")})
        refuse(heads, values.bad)
        refuse(heads, large)
        return heads

    def schema_changes(self, records: Records, plan: StretchPlan) -> Iterator[SchemaChange]:
        """See `Converter`."""
        values = payloads(records.values, self._values, self._schemas, records.headers)
        return self._beside.schema_changes(replace(records, values=values.texts), plan)

    def transaction_ends(self, records: Records) -> Iterator[TransactionEnd]:
        """See `Converter`."""
        values = payloads(records.values, self._values, self._schemas, records.headers)
        return self._beside.transaction_ends(replace(records, values=values.texts))

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
        """See `Converter`: by the table's schema, else by the one that a key names."""
        found = payloads(keys, self._keys, self._schemas)
        texts = found.texts if schema else [found.wrapped(at) for at in range(len(keys))]
        return self._beside.canonical_keys(texts, schema)

    def out_of_range(self, key: bytes | None, schema: TableSchema) -> Column | None:
        """See `Converter`."""
        return self._beside.out_of_range(self._key(key), schema)

    def key_image(self, key: bytes | None) -> bytes:
        """See `Converter`."""
        return self._beside.key_image(self._key(key))

    def _key(self, key: bytes | None) -> bytes | None:
        """A key in JSON, with the schema that it names."""
        return payloads([key], self._keys, self._schemas).wrapped(0)

    # -- the faster way -------------------------------------------------------------------------

    def plain_range(
        self, topic: str, partition: int, parts: Sequence[pa.RecordBatch], plan: StretchPlan
    ) -> DecodedRange | None:
        """See `Converter`: `fast_path` has it."""
        from lakemark.converters.avro import fast_path  # noqa: PLC0415 - workers have it already, others need it not

        reading = fast_path.Reading(self, self._beside, self._keys, self._values, self._schemas)
        return fast_path.decode_range(reading, topic, partition, parts, plan)

    def prepare(self) -> None:
        """See `Converter`."""
        from lakemark.converters.avro import fast_path  # noqa: PLC0415 - see above

        fast_path.example(AvroConverter(self._beside, lambda _: fast_path.ExampleSource()))

    # -- writing --------------------------------------------------------------------------------

    def learn(self, records: Records, heads: Headers) -> Learnt:
        """See `Converter`."""
        values = payloads(records.values, self._values, self._schemas, records.headers)
        keys = payloads(records.keys, self._keys, self._schemas, records.headers)
        return learn(self._beside, records, heads, keys, values)

    def learnt_key(self, table: str, learnt: Learnt) -> TableSchema | None:
        """See `Converter`."""
        return self._beside.learnt_key(table, unpacked(learnt)[0])

    def writer(
        self,
        table: str,
        schema: TableSchema,
        modes: HandlingModes,
        *,
        learnt: Learnt,
        wrapped: bool,  # noqa: ARG002 - they always are
    ) -> RecordWriter:
        """See `Converter`."""
        return AvroRecordWriter(self._beside, self._schemas, table, schema, modes, learnt=learnt)

    # -- another form on the way out than on the way in -----------------------------------------

    def described(self, schema: TableSchema, learnt: Learnt) -> Learnt:
        """See `Converter`: for JSON that stands beside Avro, which brings its own."""
        plain, prefixes = unpacked(learnt)
        return packed(self._beside.described(schema, plain), prefixes)

    def opened(self, departing: Departing, at: Sequence[int]) -> list[ConnectData | None]:
        """See `Converter`."""
        told = [[{"key": name, "value": value} for name, value in departing.headers[i]] for i in at]
        framing = self._keys if departing.side == "key" else self._values
        found = payloads([departing.raws[i] for i in at], framing, self._schemas, told)
        if found.bad:
            code, detail = next(iter(found.bad.values()))
            raise TableError(detail, code=code)
        plain = replace(departing, raws=found.texts, learnt=unpacked(departing.learnt)[0])
        out = self._beside.opened(plain, range(len(at)))
        for index, form in enumerate(found.forms):
            if form is not None:
                out[index] = ConnectData(found.texts[index] or b"", form.connect, _FORM)
        return out

    def issued(self, departing: Departing) -> list[bytes | None]:
        """See `Converter`: the schemas are registered, see `issuing`."""
        reader, side = departing.reader, departing.side
        origin = None
        if isinstance(reader, AvroConverter):
            origin = reader.origin(side, self._options)
        return self._issuing.issued(departing, origin)

    def schema_id(self, value: bytes, headers: Sent) -> int | None:
        """See `Converter`."""
        framed = self._values.of(value, [{"key": n, "value": text} for n, text in headers])
        return framed.reference.number if framed else None

    def origin(self, side: Side, options: ConverterOptions) -> Origin:
        """Return what must be known of the Avro that is read here, to write it by these options."""
        framing = self._keys if side == "key" else self._values
        mine, other = map(registry_settings.address_of, (self._options, options))
        return Origin(framing, self._schemas, same=mine == other)

    def with_cells(
        self, value: bytes, cells: Mapping[str, bytes], headers: Came | None = None
    ) -> bytes:
        """See `Converter`."""
        found = payloads([value], self._values, self._schemas, [headers])
        framed = self._values.of(value, headers)
        return spliced(self._beside, value, found, cells, framed.begin if framed else 0)


def _registry(options: ConverterOptions) -> "RegistrySource":
    from lakemark.converters.avro.registry import source_of  # noqa: PLC0415 - slow, and needed with Avro alone

    return source_of(options)
