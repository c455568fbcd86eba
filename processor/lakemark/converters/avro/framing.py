"""The schemas that records name: where they stand in a key, a value or a header.

Found out for each key and each value by itself:

- Confluent's: a zero, an id of four bytes, the datum;
- Apicurio's: a zero, an id of eight bytes, the datum: a global id, unless the converter's
  `apicurio.registry.use-id` says `contentId`. No id is zero, so what begins with four zeros more is
  none of four bytes;
- Apicurio's ids in headers of the record, ``apicurio.value.globalId`` and others: the datum alone.

Whatever begins with another byte, and has no such header, is no Avro: JSON may stand beside it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

from lakemark.converters.avro.registry_settings import names_apicurio
from lakemark.converters.avro.schema_source import SchemaReference
from lakemark.model.decoding import ConverterOptions, Side

MAGIC: Final = b"\0"
CONFLUENT: Final = 5
"""Bytes before a datum: a zero and four of the id."""
APICURIO: Final = 9
"""A zero and eight of the id."""
_NO_ID: Final = b"\0\0\0\0"
_ID_BYTES: Final = 8
_OF_HEADERS: Final = {"globalId": "global", "contentId": "content"}
HEADERS: Final = frozenset(
    f"apicurio.{side}.{name}" for side in get_args(Side) for name in (*_OF_HEADERS, "encoding")
)
"""Those that say of a record's bytes how they are to be read."""


class Framed(NamedTuple):
    """A key or a value: its schema, and where its datum begins."""

    reference: SchemaReference
    begin: int


class Framing:
    """Finds the schemas that one side's records name."""

    def __init__(self, side: Side, options: ConverterOptions) -> None:
        told = (options.get(side, "apicurio.registry.use-id") or "").lower()
        self._long = "content" if told == "contentid" else "global"
        shortens = (options.get(side, "apicurio.registry.as-confluent") or "").lower() == "true"
        self._size = CONFLUENT if shortens or not names_apicurio(options) else APICURIO
        self._headers = {f"apicurio.{side}.{name}": k for name, k in _OF_HEADERS.items()}

    def prefix(self, number: int) -> bytes:
        """Return the bytes before a datum whose schema has this number."""
        return MAGIC + number.to_bytes(self._size - len(MAGIC))

    def of(
        self, raw: bytes | None, headers: Sequence[Mapping[str, Any]] | None = None
    ) -> Framed | None:
        """Return the schema of a key or a value, and where its datum begins; None without one.

        Args:
            raw: its bytes.
            headers: of its record.
        """
        if raw is None:
            return None
        if (named := self.named_by(headers)) is not None:
            return Framed(named, 0)
        if raw[:1] != MAGIC or len(raw) < CONFLUENT:
            return None
        if raw[1:CONFLUENT] != _NO_ID:
            number = int.from_bytes(raw[1:CONFLUENT])
            return Framed(SchemaReference("id", number), CONFLUENT)
        if len(raw) < APICURIO:
            return None
        number = int.from_bytes(raw[1:APICURIO])
        return Framed(SchemaReference(self._long, number), APICURIO)

    def named_by(self, headers: Sequence[Mapping[str, Any]] | None) -> SchemaReference | None:
        """Return the schema that a record's headers name; None if they name none."""
        for header in headers or ():
            kind, id_ = self._headers.get(header["key"]), header["value"]
            if kind and id_ is not None and len(id_) == _ID_BYTES:
                return SchemaReference(kind, int.from_bytes(id_))
        return None
