"""Debezium's stand-ins for unchanged TOAST values, in every form that the connector writes.

They stand in after images of updates (`stands_in`), never in a key, and only in columns of types
that PostgreSQL may store elsewhere. The same text anywhere else is a value as any.

A string column holds the placeholder's text (in hex, base64 or base64-url-safe mode for bytea
perhaps in that coding), a bytea its bytes, an array one element with the text, the bytes or a
name-based UUID, an integer or date array the placeholder's bytes as numbers, an hstore the pair
placeholder => placeholder, as a map or as JSON text.
"""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model.columns import BITS, ENUM, JSON, UUID, Column
from lakemark.model.events import OLD_KEY_HEADER
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema

# What no JSON writer escapes unless it escapes everything.
_PLAIN_RUN: Final = re.compile(rb"[A-Za-z0-9_.:+=-]+")
_DATES: Final = frozenset({"", "io.debezium.time.Date", "org.apache.kafka.connect.data.Date"})


def stands_in(op: str, headers: Sequence[Mapping[str, Any]] | None) -> bool:
    """Return whether an event's after image may have unavailable values.

    It may after an update, of which the second half of a key change is a create.
    """
    if op == "u":
        return True
    return op == "c" and any(header["key"] == OLD_KEY_HEADER for header in headers or ())


def _pair(text: str) -> str:
    return msgspec.json.encode({text: text}).decode()


class Placeholders:
    """Finds the unavailable values of one table's columns, those of the key left out."""

    def __init__(self, schema: TableSchema, modes: HandlingModes) -> None:
        raw, texts = modes.placeholder, modes.placeholder_strings
        # Java's bytes are signed.
        numbers = [b - 256 if b > 127 else b for b in raw]  # noqa: PLR2004
        coded = base64.b64encode(raw).decode()
        self._generic: list[Any] = [*texts, coded, numbers, {texts[0]: texts[0]}]
        self._generic += [[t] for t in (*texts, coded, modes.placeholder_uuid)]
        self._flat: dict[str, pa.Array] = {}
        self._nested: dict[str, list[Any]] = {}
        self._key = frozenset(schema.key)
        for column in schema.columns:
            if column.name in self._key:
                continue  # replica identity has it: the log always does
            if _is_text(column):
                found = [*texts, _pair(texts[0])] if column.encoding == JSON else texts
                self._flat[column.name] = pa.array(found, pa.string())
            elif column.wire == "bytes" and column.type == pa.binary() and column.encoding != BITS:
                self._flat[column.name] = pa.array([raw], pa.binary())
            elif column.wire == "array" and column.element is not None:
                self._nested[column.name] = _lists(column.element, modes, numbers)
            elif column.wire == "map":
                self._nested[column.name] = [{texts[0]: texts[0]}]

    def is_any(self, name: str, value: msgspec.Raw) -> bool:
        """Return whether a column's raw JSON value is a placeholder in any form at all."""
        if name in self._key:
            return False
        try:
            return msgspec.json.decode(value) in self._generic
        except (ValueError, RecursionError):
            return False

    def nested(self, name: str, values: list[Any]) -> list[int]:
        """Return the rows of a list or map column whose values are placeholders."""
        candidates = self._nested.get(name)
        if not candidates:
            return []
        return [row for row, v in enumerate(values) if v and v in candidates]

    def flat(self, name: str, array: pa.Array) -> list[int]:
        """Return the rows of a text or bytes column whose values are placeholders."""
        candidates = self._flat.get(name)
        if candidates is None or not len(array):
            return []
        mask = pc.equal(array, candidates[0])
        for more in candidates[1:]:
            mask = pc.or_(mask, pc.equal(array, more))
        if not pc.any(mask).as_py():
            return []
        return pc.indices_nonzero(pc.fill_null(mask, fill_value=False)).to_pylist()  # type: ignore[no-any-return]


def _is_text(column: Column) -> bool:
    return (
        column.wire == "string"
        and column.type == pa.string()
        and column.encoding not in (UUID, ENUM)  # of a fixed size: never stored elsewhere
        and not column.encoding.startswith("io.debezium.time.")
    )


def _lists(element: Column, modes: HandlingModes, numbers: list[int]) -> list[Any]:
    if element.type == pa.binary():
        return [[modes.placeholder]]
    if element.encoding == UUID:
        return [[modes.placeholder_uuid]]
    if _is_text(element):
        return [[t] for t in modes.placeholder_strings]
    if element.wire in ("int32", "int64") and element.encoding in _DATES:
        return [numbers] if numbers else []
    return []


def may_have_placeholder(schema: TableSchema, modes: HandlingModes) -> Callable[[bytes], bool]:
    """A cheap test of raw images, one a line: False means that no value of theirs is unavailable.

    False alarms are possible (a value that contains the placeholder); misses are not, whatever
    way the JSON is written.
    """
    raw, text = modes.placeholder, modes.placeholder_text
    # The longest stretch that every JSON writer leaves as it is, unless it writes \\u escapes.
    runs = _PLAIN_RUN.findall(text.encode())
    if not runs:
        return lambda _image: True
    needles = {max(runs, key=len), b"\\u"}
    if modes.binary == "hex":
        needles |= {_core(raw.hex().encode())}
    needles |= {_core(base64.b64encode(raw)), _core(base64.urlsafe_b64encode(raw))}
    elements = [c.element for c in schema.columns if c.element is not None]
    if any(e.wire == "string" for e in elements):
        needles.add(modes.placeholder_uuid.encode())
    patterns = []
    if any(e.wire in ("int32", "int64") for e in elements):
        numbers = [b - 256 if b > 127 else b for b in raw]  # noqa: PLR2004
        joined = rb"\s*,\s*".join(str(n).encode() for n in numbers[:6])
        patterns.append(re.compile(rb"\[\s*" + joined))
    first, second, third, *others = (*needles, *needles, *needles)[: max(3, len(needles))]
    if not others and not patterns:  # the usual table; a third of the general way's time

        def probe(image: bytes) -> bool:
            return first in image or second in image or third in image

        return probe

    def search(image: bytes) -> bool:
        return any(needle in image for needle in needles) or any(
            pattern.search(image) for pattern in patterns
        )

    return search


def _core(coded: bytes) -> bytes:
    # The end of base64 hangs on padding, and '/' may be written escaped.
    return max(re.split(rb"[/=]", coded), key=len)
