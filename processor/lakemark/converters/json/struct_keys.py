"""Keys as Connect's StringConverter writes them, ``Struct{id=7,part=a}``, beside any values.

Such a text is meant for people: it has no types, and a comma in a value looks as one between two.
So an event's key is taken from its row, and the text must say the same; only a key that comes
without its row is read from the text, by the types of its table's columns.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import pyarrow as pa

from lakemark.converters.beside import BadRecord, BesideConverter, refuse
from lakemark.converters.converter import Moment, RecordWriter
from lakemark.errors import TableError
from lakemark.model.columns import Column
from lakemark.model.decoding import ConverterOptions, DecodedRange, Records, Side, StretchPlan
from lakemark.model.events import Headers, Kind, Learnt
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema

CLASS: Final = "org.apache.kafka.connect.storage.StringConverter"
DIFFERS: Final = "key-differs"
"""Code of a record whose key, a text, is not that of its row."""
_BEGIN: Final = b"Struct{"
_END: Final = b"}"
_NAME: Final = re.compile(rb"(?:^|,)([^,={}]+)=")
_WHOLE: Final = re.compile(rb"-?[0-9]+")
_OF_BYTES: Final = (b"java.nio.HeapByteBuffer[", b"[B@")
_LONGEST: Final = 256  # bytes of a value that is not compared
_WITH_KEYS: Final = frozenset({int(Kind.CHANGE), int(Kind.INCREMENTAL), int(Kind.OWN_SNAPSHOT)})
_row: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.encode


class StructKeysConverter(BesideConverter):
    """See `Converter`; `beside` is that of JSON."""

    def of(self, options: ConverterOptions) -> "StructKeysConverter":
        """See `Converter`."""
        return StructKeysConverter(self._beside.of(options))

    def carries_schemas(self, side: Side) -> bool | None:
        """See `Converter`."""
        return False if side == "key" else self._beside.carries_schemas(side)

    def headers(self, records: Records, plan: StretchPlan) -> Headers:
        """See `Converter`: a code of its own is `DIFFERS`."""
        heads = self._beside.headers(records, plan)
        bad: dict[int, BadRecord] = {}
        for index, raw in enumerate(records.keys):
            if raw is None or not raw.startswith(_BEGIN) or heads.kind[index] not in _WITH_KEYS:
                continue
            schema = plan.schemas.get(heads.table[index])
            image = heads.after[index] if heads.op[index] != "d" else heads.before[index]
            key = _key_in(image, raw, schema) if image else _typed(raw, schema)
            if key is None:
                bad[index] = BadRecord(DIFFERS, "its key, a text, says another row than it has")
            else:
                heads.keys[index] = key
        refuse(heads, bad)
        return heads

    def plain_range(
        self, topic: str, partition: int, parts: Sequence[pa.RecordBatch], plan: StretchPlan
    ) -> DecodedRange | None:
        """See `Converter`: keys that are texts need their rows."""
        keys = (key for part in parts for key in part.column("key").to_pylist() if key)
        if any(key.startswith(_BEGIN) for key in keys):
            return None
        return self._beside.plain_range(topic, partition, parts, plan)

    # -- keys without their rows ----------------------------------------------------------------

    def schema_of(self, table: str, schema: bytes, key: bytes | None) -> TableSchema | None:
        """See `Converter`."""
        return self._beside.schema_of(table, schema, _plain(key))

    def key_names(self, key: bytes) -> tuple[str, ...]:
        """See `Converter`."""
        return self._beside.key_names(_plain(key) or b"")

    def canonical_keys(
        self, keys: Sequence[bytes | None], schema: TableSchema | None
    ) -> list[bytes | None]:
        """See `Converter`: without a schema nobody knows the types of such a key."""
        texts = [_typed(key, schema) if key and key.startswith(_BEGIN) else key for key in keys]
        return self._beside.canonical_keys(texts, schema)

    def out_of_range(self, key: bytes | None, schema: TableSchema) -> Column | None:
        """See `Converter`."""
        text = _typed(key, schema) if key and key.startswith(_BEGIN) else key
        return self._beside.out_of_range(text, schema)

    def key_image(self, key: bytes | None) -> bytes:
        """See `Converter`."""
        return self._beside.key_image(_plain(key))

    # -- writing --------------------------------------------------------------------------------

    def learn(self, records: Records, heads: Headers) -> Learnt:
        """See `Converter`."""
        keys = [*heads.readable(records.keys)]
        return self._beside.learn(replace(records, keys=keys), heads)

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
        binary = [name for name in schema.key if pa.types.is_binary(schema.column(name).type)]
        if binary:
            raise TableError(
                f"the key of {table} has bytes ({', '.join(binary)}), which a text does not tell",
                code="output-not-ready",
                hint="set key.converter to another one; then: lakemark table resume TABLE",
            )
        written = self._beside.writer(table, schema, modes, learnt=learnt, wrapped=wrapped)
        return _StructKeysWriter(written)


class _StructKeysWriter:
    """See `RecordWriter`."""

    def __init__(self, beside: RecordWriter) -> None:
        self._beside = beside

    def reads(self, rows: pa.StructArray, moment: Moment) -> tuple[list[bytes], list[bytes]]:
        """See `RecordWriter`."""
        keys, values = self._beside.reads(rows, moment)
        return [*map(_text_of, keys)], values

    def removals(self, keys: pa.StructArray, moment: Moment) -> tuple[list[bytes], list[bytes]]:
        """See `RecordWriter`."""
        gone, values = self._beside.removals(keys, moment)
        return [*map(_text_of, gone)], values


def _text_of(key: bytes) -> bytes:
    """Return a key as StringConverter writes it, given as JSON."""
    said = ((name.encode(), _said(cell)) for name, cell in _row(key).items())
    return _BEGIN + b",".join(name + b"=" + text for name, text in said if text is not None) + _END


def _said(cell: msgspec.Raw) -> bytes | None:
    """Return what the text says of a value; None for null."""
    raw = bytes(cell)
    return None if raw == b"null" else _decoded(raw) if raw[:1] == b'"' else raw


def _decoded(raw: bytes) -> bytes:
    text: str = msgspec.json.decode(raw, type=str)
    return text.encode()


def _key_in(image: bytes, raw: bytes, schema: TableSchema | None) -> bytes | None:
    """Return the key that a row has, as JSON; None where the text says another one."""
    try:
        row = _row(image)
    except (ValueError, RecursionError):
        return None
    body = raw[len(_BEGIN) : -len(_END)]
    names = next(_orders(row, body, ()), None)
    if names is None:
        return None
    key = {name: row[name] for name in names}
    if schema is not None:  # what is null is not in the text
        key |= {name: row[name] for name in schema.key if name not in key and name in row}
    return _encode(key)


def _orders(
    row: Mapping[str, msgspec.Raw], body: bytes, found: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Yield the columns that a text names, in their order: all of it must say what the row does."""
    for name, cell in row.items():
        start = name.encode() + b"="
        if name in found or not body.startswith(start):
            continue
        rest = body[len(start) :]
        for size in _sizes(rest, cell):
            if size == len(rest):
                yield (*found, name)
            elif rest[size : size + 1] == b",":
                yield from _orders(row, rest[size + 1 :], (*found, name))


def _sizes(rest: bytes, cell: msgspec.Raw) -> Iterator[int]:
    """Yield how long a value's text may be at the beginning of the rest."""
    said = _said(cell)
    if said is None:
        return
    is_text = bytes(cell)[:1] == b'"'
    if rest.startswith(said):
        yield len(said)
    elif rest.startswith(_OF_BYTES) if is_text else not _WHOLE.fullmatch(said):
        # Java says bytes, fractions and structs otherwise than JSON: they are not compared.
        yield from (at for at in range(min(len(rest), _LONGEST)) if rest[at : at + 1] == b",")
        if len(rest) <= _LONGEST:
            yield len(rest)


def _typed(raw: bytes | None, schema: TableSchema | None) -> bytes | None:
    """Return a key without its row as JSON, by its columns; None where it can mean two."""
    if raw is None or schema is None or not schema.key:
        return None
    body = raw[len(_BEGIN) : -len(_END)]
    starts = [name.encode() + b"=" for name in schema.key]
    if not body.startswith(starts[0]):
        return None
    cells, rest = [], body[len(starts[0]) :]
    for start in starts[1:]:
        if rest.count(b"," + start) != 1:
            return None
        cell, _, rest = rest.partition(b"," + start)
        cells.append(cell)
    cells.append(rest)
    columns = [schema.column(name) for name in schema.key]
    return _encode({c.name: _cell(cell, c.type) for c, cell in zip(columns, cells, strict=True)})


def _cell(text: bytes, kind: pa.DataType) -> msgspec.Raw:
    plain = pa.types.is_boolean(kind) or _WHOLE.fullmatch(text)
    if plain and not pa.types.is_string(kind):
        return msgspec.Raw(text)
    return msgspec.Raw(_encode(text.decode("utf-8", "replace")))


def _plain(key: bytes | None) -> bytes | None:
    """Return a key as JSON of texts and whole numbers; one that is JSON as it is."""
    if key is None or not key.startswith(_BEGIN):
        return key
    body = key[len(_BEGIN) : -len(_END)]
    places = [*_NAME.finditer(body)]
    ends = [*(place.start() for place in places), len(body)]
    cells = {
        place[1].decode("utf-8", "replace"): body[place.end() : end]
        for place, end in zip(places, ends[1:], strict=True)
    }
    return _encode({
        name: msgspec.Raw(cell) if _WHOLE.fullmatch(cell) else cell.decode("utf-8", "replace")
        for name, cell in cells.items()
    })  # fmt: skip
