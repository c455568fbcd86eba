"""Records that are what Connect's JSON converter writes, without schemas, in MessagePack."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from lakemark.converters.converter import Converter
from lakemark.converters.transcribed import RecordHeaders, TranscribedConverter
from lakemark.settings.layers import Mistake


class MessagePack:
    """See `lakemark.converters.transcribed.RecordForm`."""

    java_classes = frozenset({"com.example.MessagePackConverter"})
    carries_schemas = False

    def problems(self) -> Iterator[Mistake]:
        """Yield nothing: there is nothing to set."""
        return iter(())

    def read(self, side: Literal["key", "value"], raw: bytes, headers: RecordHeaders) -> bytes:  # noqa: ARG002
        """Return the JSON of a key or a value."""
        try:
            return msgspec.json.encode(msgspec.msgpack.decode(raw))
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
            raise ValueError(f"the {side} is no MessagePack") from None

    def write(self, side: Literal["key", "value"], text: bytes) -> bytes:  # noqa: ARG002
        """Return a key or a value, given as JSON."""
        return msgspec.msgpack.encode(msgspec.json.decode(text))


def converter(beside: Converter) -> Converter:
    """Return the converter of MessagePack; lakemark calls it with that of JSON."""
    return TranscribedConverter(beside, lambda _: MessagePack())
