"""Values as datums, from the JSON that Connect's converter writes of them: the way back.

A decimal is base64 of its digits or, with the converter's ``decimal.format=NUMERIC``, a number.
"""

import base64
import binascii
import struct
from decimal import Decimal
from math import isinf
from typing import Any, Final

import msgspec

from lakemark.converters.avro.plain_datums import DatumError
from lakemark.converters.avro.program import (
    ARRAY,
    BOOLEAN,
    BYTES,
    DOUBLE,
    ENUM,
    FIXED,
    FLOAT,
    INT,
    LONG,
    MAP,
    NULL,
    RECORD,
    STRING,
    UNION,
    Node,
    Program,
)
from lakemark.model.key import MAX_DIGITS

_INT: Final = 1 << 31
_LONG: Final = 1 << 63
_Json: Final = msgspec.json.Decoder(float_hook=Decimal)
"""Reads numbers digit by digit: a decimal may have more of them than a double."""
_WORDS: Final = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}


def datum_of(program: Program, text: bytes) -> bytes:
    """Return the datum of a value.

    Args:
        program: of the schema to write by.
        text: the value's JSON.

    Raises:
        DatumError: the value has no datum by this schema.
    """
    try:
        return _Writer(program.nodes).value(0, _Json.decode(text))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise DatumError("the value is no JSON, or too deep") from None


def varint(value: int) -> bytes:
    """Return a whole number of 64 bits as Avro writes it."""
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left >= 0x80:  # noqa: PLR2004 - seven bits a byte, and one that says that more come
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


class _Writer:
    """Writes values by the types of one schema."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes
        self._ways = {
            NULL: lambda _, value: _typed(value, type(None)) or b"",
            BOOLEAN: lambda _, value: bytes([_typed(value, bool)]),
            INT: lambda _, value: varint(_whole(value, _INT)),
            LONG: lambda _, value: varint(_whole(value, _LONG)),
            FLOAT: lambda _, value: _fraction("<f", value),
            DOUBLE: lambda _, value: _fraction("<d", value),
            BYTES: lambda node, value: _sized(_raw_or_decimal(node, value)),
            STRING: lambda _, value: _sized(_typed(value, str).encode()),
            FIXED: _fixed,
            ENUM: _symbol,
            UNION: self._union,
            RECORD: self._record,
            ARRAY: self._array,
            MAP: self._map,
        }

    def value(self, number: int, value: Any) -> bytes:
        """Return a value's datum, by the type of this number."""
        node = self._nodes[number]
        return bytes(self._ways[node.kind](node, value))

    def _union(self, node: Node, value: Any) -> bytes:
        """Return it by the first branch that has it."""
        for place, part in enumerate(node.parts):
            if (self._nodes[part].kind == NULL) == (value is None):
                try:
                    return varint(place) + self.value(part, value)
                except DatumError:
                    if place == len(node.parts) - 1:
                        raise
        raise DatumError("a value is of no branch of its union")

    def _record(self, node: Node, value: Any) -> bytes:
        members = _typed(value, dict)
        if any(members[name] is not None for name in members.keys() - set(node.names)):
            raise DatumError("a value has a field that its schema lacks")
        parts = zip(node.names, node.parts, strict=True)
        return b"".join(self.value(part, members.get(name)) for name, part in parts)

    def _array(self, node: Node, value: Any) -> bytes:
        return _block([self.value(node.parts[0], item) for item in _typed(value, list)])

    def _map(self, node: Node, value: Any) -> bytes:
        items = _typed(value, dict).items()
        return _block([_sized(n.encode()) + self.value(node.parts[0], item) for n, item in items])


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise DatumError(f"a value is not of its type: no {kind.__name__}")
    return value


def _whole(value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -most <= value < most:
        raise DatumError("a value is no whole number of its size")
    return value


def _fraction(form: str, value: Any) -> bytes:
    try:
        number = float(_WORDS[value] if isinstance(value, str) else value)
        packed = struct.pack(form, number)
    except (KeyError, TypeError, OverflowError):
        raise DatumError("a value is no number of its size") from None
    if isinf(number) and not isinstance(value, str):
        raise DatumError("a value is no number of its size")
    return packed


def _raw(value: Any) -> bytes:
    try:
        return base64.b64decode(_typed(value, str), validate=True)
    except (binascii.Error, ValueError):
        raise DatumError("a value is no base64") from None


def _raw_or_decimal(node: Node, value: Any) -> bytes:
    if node.scale is None or isinstance(value, str | bool):
        return _raw(value)
    return decimal_bytes(value, node.scale)


def decimal_bytes(value: Any, scale: int) -> bytes:
    """Return a decimal's digits, without their point, as Connect writes them: big-endian.

    Args:
        value: a number as it was read, digit by digit.
        scale: digits behind the point.

    Raises:
        DatumError: it is no number, or has digits behind the last one.
    """
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise DatumError("a value is no decimal")
    sign, digits, exponent = Decimal(value).as_tuple()
    power = int(exponent) + scale
    if abs(power) >= MAX_DIGITS:
        raise DatumError("a decimal has too many digits")
    shifted = Decimal((sign, digits, power))
    whole = int(shifted)
    if whole != shifted:
        raise DatumError("a decimal has more digits behind the point than its scale")
    magnitude = ~whole if whole < 0 else whole
    return whole.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def _sized(raw: bytes) -> bytes:
    return varint(len(raw)) + raw


def _fixed(node: Node, value: Any) -> bytes:
    raw = _raw(value)
    if len(raw) != node.size:
        raise DatumError("bytes of a fixed size have another one")
    return raw


def _symbol(node: Node, value: Any) -> bytes:
    if value not in node.names:
        raise DatumError("a value is none of its symbols")
    return varint(node.names.index(value))


def _block(items: list[bytes]) -> bytes:
    return (varint(len(items)) if items else b"") + b"".join(items) + varint(0)
