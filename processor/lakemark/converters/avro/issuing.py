"""Records as Avro for an output topic: those of the connector's own Avro, and those of other forms.

| a key or a value | goes out |
|---|---|
| in Avro, its schema in the registry that is written to | byte for byte |
| in Avro of another registry | the same datum, under the number that its schema gets here |
| in another form | its datum by the schema that Connect's converters would register |

Each schema is registered under the topic's subject before the first record by it goes out, so a
registry that does not take it stops the table, and a consumer never meets a number that it cannot
look up. Equal schemas have one number, so a record that is written again is the same.
"""

import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec

from lakemark.converters.avro.avro_schema import avro_schema
from lakemark.converters.avro.datum_writer import datum_of
from lakemark.converters.avro.framing import Framing
from lakemark.converters.avro.known_schemas import KnownSchemas
from lakemark.converters.avro.plain_datums import DatumError
from lakemark.converters.avro.program import Program, SchemaError, program_of
from lakemark.converters.avro.schema_source import (
    RECHECK_S,
    SchemaReference,
    SchemaRefusedError,
    SchemaRegistry,
)
from lakemark.converters.avro.subjects import subject_of
from lakemark.converters.converter import ConnectData, Departing
from lakemark.model.decoding import ConverterOptions, Side

_Schema: Final = msgspec.json.Decoder(float_hook=Decimal)
"""Reads a decimal's default digit by digit, see `datum_writer`."""
_MOST: Final = 10_000  # Connect schemas that a process keeps the Avro of


class WrittenBy(NamedTuple):
    """A schema to write by: the bytes before its datums, and what writes these."""

    prefix: bytes
    program: Program


class Origin(NamedTuple):
    """The Avro that keys or values have already.

    Attributes:
        framing: finds their schemas.
        schemas: has them.
        same: whether they are in the registry that is written to.
    """

    framing: Framing
    schemas: KnownSchemas
    same: bool


class Issuing:
    """Writes keys and values in Avro, for any topic."""

    def __init__(self, registry: Callable[[], SchemaRegistry], options: ConverterOptions) -> None:
        """Takes what makes the registry, which is not made before it is needed."""
        self._registry, self._options = registry, options
        self._framings = {side: Framing(side, options) for side in ("key", "value")}
        self._numbers: dict[tuple[str, Side, SchemaReference], int] = {}
        self._written: dict[tuple[str, Side, bytes], WrittenBy] = {}
        self._until = float("-inf")  # so long the numbers count

    def issued(self, departing: Departing, origin: Origin | None) -> list[bytes | None]:
        """Return keys or values in Avro, see `Converter.issued`.

        Args:
            departing: with them.
            origin: of those that are in Avro already; None where none can be.
        """
        self._forget_old()
        out: list[bytes | None] = [*departing.raws]
        others: list[int] = []
        for index, raw in enumerate(departing.raws):
            if raw is not None:
                out[index] = origin and self._kept(departing, index, raw, origin)
                if out[index] is None:
                    others.append(index)
        if not departing.converts:
            for index in others:
                out[index] = departing.raws[index]
            return out
        for index, data in zip(others, departing.opened(others) if others else (), strict=True):
            if data is not None:
                out[index] = self._made(departing, data)
        return out

    def _forget_old(self) -> None:
        """Ask for the numbers again from time to time: a registry may have been set up anew."""
        now = time.monotonic()
        if now >= self._until:
            self._numbers.clear()
            self._written.clear()
            self._until = now + RECHECK_S

    def _kept(self, departing: Departing, index: int, raw: bytes, origin: Origin) -> bytes | None:
        """Return a key or a value that is Avro already, as it goes out; None for any other."""
        told = [{"key": name, "value": value} for name, value in departing.headers[index]]
        framed = origin.framing.of(raw, told)
        if framed is None:
            return None
        side, topic = departing.side, departing.topic
        place = topic, side, framed.reference
        if place not in self._numbers:
            text = origin.schemas.of(framed.reference).text
            self._numbers[place] = self._registered(side, topic, text, msgspec.json.decode(text))
        if origin.same:
            return raw
        return self._framings[side].prefix(self._numbers[place]) + raw[framed.begin :]

    def _made(self, departing: Departing, data: ConnectData) -> bytes:
        """Return the Avro of a key or a value.

        Raises:
            SchemaRefusedError: it has no Avro, or the registry does not take its schema.
            DependencyError: the registry is away.
        """
        side, topic, schema = departing.side, departing.topic, data.schema
        if schema is None:
            raise _without(topic, "nobody knows its schema")
        written = self._written.get((topic, side, schema))
        if written is None:
            if len(self._written) >= _MOST:
                self._written.clear()
            written = self._written[topic, side, schema] = self._new(side, topic, schema)
        try:
            return written.prefix + datum_of(written.program, data.payload)
        except DatumError as error:
            raise _without(topic, f"a {side} does not fit its schema: {error}") from None

    def _new(self, side: Side, topic: str, schema: bytes) -> WrittenBy:
        try:
            made = avro_schema(_Schema.decode(schema))
            program = program_of(made)
        except (SchemaError, msgspec.MsgspecError) as error:
            raise _without(topic, str(error)) from None
        number = self._registered(side, topic, msgspec.json.encode(made).decode(), made)
        return WrittenBy(self._framings[side].prefix(number), program)

    def _registered(self, side: Side, topic: str, text: str, schema: Any) -> int:
        subject = subject_of(topic, side, schema, self._options)
        return self._registry().register(subject, text)


def _without(topic: str, reason: str) -> SchemaRefusedError:
    return SchemaRefusedError(
        f"a record for {topic} has no Avro: {reason}",
        hint="set output.format: json, or have the connector write Avro or JSON with schemas; then:"
        " lakemark table resume TABLE",
    )
