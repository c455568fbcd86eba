"""Row images, raw JSON, to typed Arrow columns.

`decode_rows` never raises, whatever the bytes are: a row that cannot be read is null and listed
with a reason code (wrong-type, number-out-of-range) and a message that never has a cell's value.
The usual row is read by one typed msgspec call and built column by column; an unusual one is read
member by member, which costs that row some microseconds and the others nothing.

Debezium's stand-ins for unchanged TOAST values are found in every form that the connector writes.
They stand in after images of updates (`events.may_lack`), never in a key, and only in columns of
types that PostgreSQL may store elsewhere. The same text anywhere else is a value as any. A string
column holds the placeholder's text (in hex, base64 or base64-url-safe mode for bytea perhaps in
that coding), a bytea its bytes, an array one element with the text, the bytes or a name-based UUID,
an integer or date array the placeholder's bytes as numbers, an hstore the pair placeholder =>
placeholder, as a map or as JSON text.
"""

import base64
import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.converters.converter import OUT_OF_RANGE, WRONG_TYPE, Rows
from lakemark.converters.json.values import Codec, codec, nullable
from lakemark.model.civil import Tally
from lakemark.model.columns import BITS, ENUM, JSON, UUID, Column, speakable
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema

_MAX_UNKNOWN: Final = 1000  # names; a hostile topic must not fill the memory with them
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_rows(
    images: Sequence[bytes],
    schema: TableSchema,
    modes: HandlingModes,
    *,
    partial: Collection[int] = (),
    exact: bool = False,
) -> Rows:
    """Typed columns of raw ``before`` or ``after`` objects. Never raises.

    Args:
        images: raw JSON objects, together below 2 GiB (Arrow's limit for one string column).
        schema: the table's schema; its columns are the result's children.
        modes: the connector's settings.
        partial: numbers of the images that may have unavailable values: see
            `events.may_lack`.
        exact: no moment is clamped, as `moments` says: these are keys.
    """
    return _Decoding(layout(schema, modes), Tally(exact=exact), partial).run(images)


class Layout:
    """The parts of decoding that are prepared once per schema and modes.

    Attributes:
        names, codecs, fields: of the columns, in their order.
        placeholders: finds unavailable values.
        plain: whether all names can be members of a msgspec struct.
    """

    def __init__(self, schema: TableSchema, modes: HandlingModes) -> None:
        self.schema = schema
        self.names = [column.name for column in schema.columns]
        self.known = frozenset(self.names)
        self.attributes = [f"c{i}" for i in range(len(self.names))]
        self.codecs = [codec(column, modes) for column in schema.columns]
        self.placeholders = Placeholders(schema, modes)
        self.fields = [pa.field(c.name, c.type) for c in schema.columns]
        # msgspec cannot rename a member to a name with quotes or the like, nor two to one name.
        self.plain = all(map(speakable, self.names)) and len(self.known) == len(self.names)
        self.strict = self._struct(forbid=True)
        self.lenient = self._struct(forbid=False)
        self.empty = self.lenient()
        self.decode_strict = msgspec.json.Decoder(self.strict).decode
        self.decode_lenient = msgspec.json.Decoder(self.lenient).decode
        self.members = [_member_decoders(one) for one in self.codecs]

    def _struct(self, *, forbid: bool) -> Any:
        rename = dict(zip(self.attributes, self.names, strict=True)) if self.plain else None
        typed = [
            (attribute, nullable(one), None)
            for attribute, one in zip(self.attributes, self.codecs, strict=True)
        ]
        return msgspec.defstruct(
            "Image", typed, rename=rename, forbid_unknown_fields=forbid, gc=False
        )


def _member_decoders(one: Codec) -> list[Callable[[msgspec.Raw], Any]]:
    wires = [one.wire] if one.other is None else [one.wire, one.other]
    return [msgspec.json.Decoder(wire).decode for wire in wires]


def layout(schema: TableSchema, modes: HandlingModes) -> Layout:
    """Return the layout for images of this schema."""
    return _layout(schema, schema.ways_to_read, modes)


@lru_cache(maxsize=512)
def _layout(schema: TableSchema, _: frozenset[tuple[str, str]], modes: HandlingModes) -> Layout:
    return Layout(schema, modes)


class _Decoding:
    """One call of `decode_rows`."""

    def __init__(self, plan: Layout, tally: Tally, partial: Collection[int]) -> None:
        self.plan = plan
        self.partial = partial
        self.bad: dict[int, tuple[str, str]] = {}
        self.unknown: set[str] = set()
        self.unavailable: dict[int, list[str]] = {}
        self.tally = tally

    def run(self, images: Sequence[bytes]) -> Rows:
        rows = self._read(images)
        columns = [self._column(at, rows) for at in range(len(self.plan.names))]
        unavailable: list[tuple[str, ...] | None] = [None] * len(images)
        for row, names in self.unavailable.items():
            if row not in self.bad:
                ordered = dict.fromkeys(n for n in self.plan.names if n in names)
                unavailable[row] = tuple(ordered)
        return Rows(
            columns=self._assemble(columns, len(images)),
            unavailable=unavailable,
            bad=[(row, *self.bad[row]) for row in sorted(self.bad)],
            unknown=self.unknown,
            clamped=self.tally.clamped,
        )

    def _read(self, images: Sequence[bytes]) -> list[Any]:
        if not self.plan.plain:
            return [self._by_member(at, image) for at, image in enumerate(images)]
        decode = self.plan.decode_strict
        rows: list[Any] = []
        append = rows.append
        for image in images:
            try:
                append(decode(image))
            except Exception:  # noqa: BLE001  # whatever it was, the second reading will tell
                append(self._again(len(rows), image))
        return rows

    def _again(self, at: int, image: bytes) -> Any:
        try:
            row = self.plan.decode_lenient(image)
            names = _MEMBERS.decode(image).keys() - self.plan.known
        except Exception:  # noqa: BLE001
            return self._by_member(at, image)
        self._note_unknown(names)
        return row

    def _note_unknown(self, names: Any) -> None:
        for name in names:
            if len(self.unknown) < _MAX_UNKNOWN:
                self.unknown.add(name)

    def _by_member(self, at: int, image: bytes) -> Any:
        """The row read member by member, to know which one is odd and why."""
        plan = self.plan
        try:
            members = _MEMBERS.decode(image)
        except Exception:  # noqa: BLE001
            self.bad[at] = (WRONG_TYPE, "the row image is not a JSON object")
            return plan.empty
        self._note_unknown(members.keys() - plan.known)
        values: list[Any] = []
        for name, decoders in zip(plan.names, plan.members, strict=True):
            raw = members.get(name)
            if raw is None or bytes(raw) == b"null":
                values.append(None)
                continue
            value, reason = _one_value(decoders, raw)
            if reason:
                if at in self.partial and plan.placeholders.is_any(name, raw):
                    self.unavailable.setdefault(at, []).append(name)
                else:
                    self._reject(at, name, reason)
            values.append(value)
        return plan.lenient(*values)

    def _reject(self, at: int, name: str, reason: str) -> None:
        kind = self.plan.schema.column(name).type
        what = "is out of range" if reason == OUT_OF_RANGE else "cannot be read"
        self.bad.setdefault(at, (reason, f"column {name!r} {what} as {kind}"))

    def _column(self, at: int, rows: list[Any]) -> pa.Array:
        plan = self.plan
        name = plan.names[at]
        values: list[Any] = list(map(attrgetter(plan.attributes[at]), rows))
        if self.partial:
            for row in self._unavailable(name, plan.placeholders.nested(name, values)):
                values[row] = None
        array, bad = plan.codecs[at].array(values, self.tally)
        for row, reason in bad.items():
            self._reject(row, name, reason)
        if self.partial and (rows := self._unavailable(name, plan.placeholders.flat(name, array))):
            mask = np.zeros(len(array), dtype=bool)
            mask[rows] = True
            array = pc.if_else(pa.array(mask), pa.scalar(None, array.type), array)
        return array

    def _unavailable(self, name: str, found: Sequence[int]) -> list[int]:
        """The rows of `found` that may have unavailable values; they are noted."""
        rows = [row for row in found if row in self.partial]
        for row in rows:
            self.unavailable.setdefault(row, []).append(name)
        return rows

    def _assemble(self, columns: list[pa.Array], count: int) -> pa.StructArray:
        mask = None
        if self.bad:
            mask = pa.array([row in self.bad for row in range(count)], pa.bool_())
            keep = pa.array([None if row in self.bad else row for row in range(count)], pa.int64())
            columns = [column.take(keep) for column in columns]
        if not columns:
            return pa.array([None if i in self.bad else {} for i in range(count)], pa.struct([]))
        return pa.StructArray.from_arrays(columns, fields=self.plan.fields, mask=mask)


def _one_value(
    decoders: list[Callable[[msgspec.Raw], Any]], raw: msgspec.Raw
) -> tuple[Any, str | None]:
    reason = WRONG_TYPE
    for decode in decoders:
        try:
            return decode(raw), None
        except Exception as error:  # noqa: BLE001
            text = str(error)
            if "out of range" in text or "` <= " in text or "` >= " in text:
                reason = OUT_OF_RANGE
    return None, reason


# What no JSON writer escapes unless it escapes everything.
_PLAIN_RUN: Final = re.compile(rb"[A-Za-z0-9_.:+=-]+")
_DATES: Final = frozenset({"", "io.debezium.time.Date", "org.apache.kafka.connect.data.Date"})


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
        self._whole = frozenset(schema.key if modes.lacks_values else schema.by_name)
        for column in schema.columns:
            if column.name in self._whole:
                continue  # the log always has it: replica identity, or a database without TOAST
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
        if name in self._whole:
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
    if not modes.lacks_values:
        return lambda _image: False
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
