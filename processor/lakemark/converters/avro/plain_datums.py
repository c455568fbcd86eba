"""Datums as JSON without compiled code, one at a time: for a process that cannot compile.

It gives what `transcript` does.
"""

import base64
import re
import struct
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Final, TypeVar

import msgspec
import numpy as np

from lakemark.converters.avro.program import (
    ARRAY,
    BOOLEAN,
    BYTES,
    DOUBLE,
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

DEEPEST: Final = 64
ITEMS: Final = 1 << 16
_INT: Final = 1 << 31
_LONG: Final = 1 << 63
_BITS: Final = 64
_encode: Final = msgspec.json.encode
_ESCAPED: Final = re.compile(rb'[\x00-\x1f"\\]')
_ESCAPES: Final = {
    **{bytes([byte]): b"\\u%04x" % byte for byte in range(ord(" "))},
    b"\b": b"\\b",
    b"\t": b"\\t",
    b"\n": b"\\n",
    b"\f": b"\\f",
    b"\r": b"\\r",
    b'"': b'\\"',
    b"\\": b"\\\\",
}


_T = TypeVar("_T")


class DatumError(ValueError):
    """Bytes are no datum of a schema, or a value has no datum by it. It has no value in it."""


def json_of(program: Program, data: bytes, begin: int = 0) -> bytes:
    """Return the JSON of a datum, as Connect's converter writes it.

    Args:
        program: of its schema.
        data: bytes that end with the datum.
        begin: where it begins.

    Raises:
        DatumError: it is none of this schema, or has more behind it.
    """
    reader = _Reader(program.nodes, data, begin)
    text = b"".join(reader.value(0, 0))
    if reader.at != len(data):
        raise DatumError("bytes are left behind the datum")
    return text


class _Reader:
    def __init__(self, nodes: list[Node], data: bytes, begin: int) -> None:
        self.nodes, self.data, self.at = nodes, data, begin
        self._items = len(data) - begin + ITEMS

    def value(self, number: int, depth: int) -> Iterator[bytes]:
        """Yield the pieces of a value's JSON."""
        node = self.nodes[number]
        if node.kind == UNION:
            yield from self.value(_one_of(node.parts, self._number()), depth)
        elif node.kind < RECORD:
            yield self._scalar(node)
        elif node.kind == RECORD and not node.parts:
            yield b"{}"
        elif depth == DEEPEST:
            raise DatumError("values stand too deep in each other")
        elif node.kind == RECORD:
            yield b"{"
            for place, (name, part) in enumerate(zip(node.names, node.parts, strict=True)):
                yield (b"," if place else b"") + _encode(name) + b":"
                yield from self.value(part, depth + 1)
            yield b"}"
        else:
            yield b"[" if node.kind == ARRAY else b"{"
            for place in self._places():
                yield b"," if place else b""
                if node.kind == MAP:
                    yield self._text() + b":"
                yield from self.value(node.parts[0], depth + 1)
            yield b"]" if node.kind == ARRAY else b"}"

    def _places(self) -> Iterator[int]:
        place = 0
        while count := self._number():
            if count < 0:
                count = -count
                size = self._number()
                if not 0 <= size <= len(self.data) - self.at:
                    raise DatumError("a block is longer than the datum")
            self._items -= count
            if self._items < 0:
                raise DatumError("a block has more items than the datum has bytes")
            for _ in range(count):
                yield place
                place += 1

    def _scalar(self, node: Node) -> bytes:
        kind = node.kind
        if kind in {INT, LONG}:
            value = self._number()
            if kind == INT and not -_INT <= value < _INT:
                raise DatumError("a number is out of range")
            return b"%d" % value
        if kind == STRING:
            return self._text()
        if kind in {BYTES, FIXED}:
            size = node.size if kind == FIXED else self._number()
            return b'"' + base64.b64encode(self._take(size)) + b'"'
        if kind in {FLOAT, DOUBLE}:
            return _fraction(self._take(4 if kind == FLOAT else 8))
        if kind == BOOLEAN:
            return _one_of([b"false", b"true"], self._take(1)[0])
        return b"null" if kind == NULL else _encode(_one_of(node.names, self._number()))

    def _text(self) -> bytes:
        return _quoted(self._take(self._number()))

    def _number(self) -> int:
        found = shift = 0
        while True:
            byte = self._take(1)[0]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004
                break
            shift += 7
            if shift >= _BITS:
                raise DatumError("a number has too many bytes")
        if found >= 2 * _LONG:
            raise DatumError("a number is out of range")
        return (found >> 1) ^ -(found & 1)

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            raise DatumError("the datum ends too early")
        self.at += size
        return self.data[self.at - size : self.at]


def _one_of(some: Sequence[_T], number: int) -> _T:
    if not 0 <= number < len(some):
        raise DatumError("there is no branch or symbol of this number")
    return some[number]


def _quoted(raw: bytes) -> bytes:
    """Return a text as JSON, also one that is no UTF-8: whoever reads the JSON says so."""
    return b'"' + _ESCAPED.sub(lambda found: _ESCAPES[found[0]], raw) + b'"'


def _fraction(raw: bytes) -> bytes:
    (value,) = struct.unpack("<f" if len(raw) == struct.calcsize("f") else "<d", raw)
    if not isfinite(value):
        word = "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124
        return b'"%s"' % word.encode()
    return (str(np.float32(value)) if len(raw) == struct.calcsize("f") else repr(value)).encode()
