"""One record value at a time: what it is, before anybody asks what it means.

Pure. Takes the schema wrapper off, tells change events from the other records a connector writes
(by the fields they have: topics can be renamed), and never raises: an unreadable value is BAD.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from lakemark.model.events import Kind


class Source(msgspec.Struct, gc=False):
    """Fields in Debezium's own order: msgspec finds the next field at once then."""

    connector: str | None = None
    name: str | None = None
    ts_ms: int | None = None
    snapshot: str | bool | None = None
    db: str | None = None
    sequence: str | None = None
    ts_us: int | None = None
    schema: str | None = None
    table: str | None = None
    lsn: int | None = None


class Envelope(msgspec.Struct, gc=False):
    """The fields of a change event, in Debezium's own order."""

    before: msgspec.Raw = msgspec.Raw(b"null")
    after: msgspec.Raw = msgspec.Raw(b"null")
    source: Source | None = None
    op: str | None = None


class _Other(Envelope, gc=False):
    """Every top-level field that tells the other records apart."""

    ts_ms: int | None = None
    status: str | None = None
    id: str | None = None
    type: str | None = None
    aggregate_type: str | None = None
    timestamp: int | None = None
    ddl: str | None = None
    databaseName: str | None = None  # noqa: N815 - Debezium's name
    tableChanges: msgspec.Raw = msgspec.Raw(b"")  # noqa: N815 - Debezium's name


class _Wrapper(msgspec.Struct, gc=False):
    """The converter's schema wrapper."""

    schema: msgspec.Raw = msgspec.Raw(b"")
    payload: msgspec.Raw = msgspec.Raw(b"")


class _Whole(_Wrapper, forbid_unknown_fields=True, gc=False):
    """The wrapper and nothing else: a row may have columns of these names among others."""


class _Schema(msgspec.Struct, gc=False):
    """What tells a struct's schema from a column's value."""

    type: str = ""


_parse: Final = msgspec.json.Decoder(Envelope).decode
_parse_other: Final = msgspec.json.Decoder(_Other).decode
_parse_wrapper: Final = msgspec.json.Decoder(_Wrapper).decode
_parse_whole: Final = msgspec.json.Decoder(_Whole).decode
_parse_schema: Final = msgspec.json.Decoder(_Schema).decode
_INT64: Final = 1 << 63
OPS: Final = frozenset("curdtm")
NULL: Final = b"null"
_WRAPPED: Final = b'{"schema":'
_NO_WRAPPER: Final = b"\0"  # no JSON begins so
# Stands in for records of no table, so that all columns stay in step with the records.
NO_SOURCE: Final = Source(sequence='["0","0"]')
NOTHING: Final = Envelope(source=NO_SOURCE)


class Odd(NamedTuple):
    """A record that is no change of a table."""

    kind: Kind
    source_ts: int = 0
    reason: str | None = None
    detail: str | None = None


class _Wrappers:
    """Recent ``{"schema":…,"payload":`` prefixes, so that a schema is read once, not per record.

    A value that begins with the bytes of a prefix has that very schema, and if the rest without
    the closing brace is one JSON value, that is the payload: the short cut cannot misread.
    """

    # A worker sees few tables at a time; a prefix is some kB, so the bound is about a megabyte.
    LIMIT: Final = 128

    def __init__(self) -> None:
        self._known: list[tuple[bytes, bytes]] = []

    def find(self, value: bytes) -> tuple[bytes, bytes] | None:
        """The (prefix, schema) that `value` begins with."""
        for at, known in enumerate(self._known):
            if value.startswith(known[0]):
                if at:
                    self._known.insert(0, self._known.pop(at))
                return known
        return None

    def learn(self, value: bytes) -> tuple[bytes, bytes] | None:
        """Remembers the prefix of a wrapped `value`, if it is of the plain form."""
        try:
            wrapper = _parse_wrapper(value)
        except (ValueError, RecursionError):
            return None
        schema, payload = bytes(wrapper.schema), bytes(wrapper.payload)
        prefix = _WRAPPED + schema + b',"payload":'
        if schema == NULL or not _is_utf8(prefix) or value != prefix + payload + b"}":
            return None
        known = (prefix, schema)
        self._known.insert(0, known)
        del self._known[self.LIMIT :]
        return known


_wrappers: Final = _Wrappers()


def read(
    values: Sequence[bytes | None], max_bytes: int, *, utf8: bool = False
) -> tuple[list[Envelope], list[bytes | None], dict[int, Odd]]:
    """Envelopes (with `NOTHING` where a record is odd), wrapper schemas, and the odd ones.

    Change events go through in C, one call for all; whatever is not surely a change event takes
    the long way, one by one. Both ways give the same for the same bytes. With `utf8` the values are
    known to be UTF-8.
    """
    raws = [value or b"" for value in values]
    texts, schemas = _without_wrapper(raws)
    envelopes, slow = _parse_all(texts)
    slow.update([at for at, e in enumerate(envelopes) if e.op is None or e.source is None])
    if not utf8 and not _all_utf8(texts):
        slow.update([at for at, text in enumerate(texts) if not _is_utf8(text)])
    if max(map(len, raws), default=0) > max_bytes:
        slow.update([at for at, raw in enumerate(raws) if len(raw) > max_bytes])
    odd: dict[int, Odd] = {}
    for at in slow:
        found = _read_slowly(values[at], max_bytes)
        if isinstance(found, Odd):
            odd[at] = found
            envelopes[at], schemas[at] = NOTHING, None
        else:
            envelopes[at], schemas[at] = found
    return envelopes, schemas, odd


def unwrapped(raw: bytes) -> tuple[bytes | None, bytes]:
    """Return the schema of a wrapped key or value, None without one, and what is wrapped.

    A key's columns may be called schema and payload. It is a wrapper where ``schema`` is a Connect
    struct, which no column's value looks like, or null beside an object. Never raises: whatever is
    no wrapper comes back as it is.
    """
    if b'"payload"' not in raw:
        return None, raw
    try:
        wrapper = _parse_whole(raw)
    except (ValueError, RecursionError):
        return None, raw
    schema, payload = bytes(wrapper.schema), bytes(wrapper.payload)
    if schema[:1] == b"{" and (payload[:1] == b"{" or payload == NULL) and _is_struct(schema):
        return schema, payload
    return None, payload if schema == NULL and payload[:1] == b"{" else raw


@lru_cache(maxsize=1024)
def _is_struct(schema: bytes) -> bool:
    try:
        return _parse_schema(schema).type == "struct"
    except (ValueError, RecursionError):
        return False


def are_texts(values: pa.Array | pa.ChunkedArray) -> bool:
    """Whether all values are UTF-8: far cheaper to know of a column than of its values."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def wrapper_of(value: bytes) -> tuple[bytes, bytes | None] | None:
    """What the wrapper puts before the payload, and the schema; None if it has no plain form.

    Records without a wrapper have neither. All records with the same beginning have this schema.
    """
    if not value.startswith(_WRAPPED):
        return b"", None
    return _wrappers.find(value) or _wrappers.learn(value)


def _without_wrapper(raws: list[bytes]) -> tuple[list[bytes], list[bytes | None]]:
    """Payloads of records whose schema is known, with the schemas; other records as they are."""
    schemas: list[bytes | None] = [None] * len(raws)
    # A converter wraps all records of a topic or none; one of another kind takes the long way.
    if not next((raw for raw in raws if raw), b"").startswith(_WRAPPED):
        return raws, schemas
    texts = list(raws)
    prefix, schema = _NO_WRAPPER, b""
    for at, raw in enumerate(raws):
        if not raw.startswith(prefix):
            known = _wrappers.find(raw) or _wrappers.learn(raw)
            if known is None:
                continue
            prefix, schema = known
        if raw.endswith(b"}"):
            texts[at] = raw[len(prefix) : -1]
            schemas[at] = schema
    return texts, schemas


def _parse_all(texts: list[bytes]) -> tuple[list[Envelope], set[int]]:
    """Envelopes of all texts, and the indices that are none."""
    envelopes: list[Envelope] = []
    failed: set[int] = set()
    parsing = map(_parse, texts)
    while True:
        try:
            envelopes.extend(parsing)
        except (ValueError, RecursionError):
            failed.add(len(envelopes))
            envelopes.append(NOTHING)
        else:
            return envelopes, failed


def _all_utf8(texts: Sequence[bytes]) -> bool:
    """All at once: a line feed between them ends every sequence, so that none spans two texts."""
    try:
        pa.array([b"\n".join(texts)], pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read_slowly(  # noqa: PLR0911 - one return per reason
    value: bytes | None, max_bytes: int
) -> tuple[Envelope, bytes | None] | Odd:
    """The envelope of any record, or why it has none. Never depends on earlier records."""
    if not value:
        return Odd(Kind.TOMBSTONE)
    if len(value) > max_bytes:
        return _bad("record-too-large", f"{len(value)} bytes, at most {max_bytes} are read")
    text = value
    try:
        value.decode()
        text, schema = _unwrap(value)
        envelope = _parse(text)
        if envelope.op is not None and envelope.source is not None:
            return envelope, schema
        return _odd(_parse_other(text))
    except UnicodeDecodeError as error:
        return _bad("invalid-utf8", f"at byte {error.start}")
    except msgspec.ValidationError as error:
        if value.strip(b" \t\r\n") == NULL or text == NULL:
            return Odd(Kind.TOMBSTONE)
        return _bad("not-debezium", str(error))
    except ValueError as error:
        return _bad("invalid-json", str(error))
    except RecursionError:
        return _bad("invalid-json", "nested too deeply")


def _unwrap(value: bytes) -> tuple[bytes, bytes | None]:
    """Takes off the schema wrapper, if there is one."""
    wrapper = _parse_wrapper(value)
    payload = bytes(wrapper.payload)
    if not payload:
        return value, None
    schema = bytes(wrapper.schema)
    return payload, None if not schema or schema == NULL else schema


def _odd(record: _Other) -> Odd:  # noqa: PLR0911 - one return per kind of record
    """What a record without op or source block is, by the fields it has."""
    ts = _micros(record.ts_ms)
    if record.op is not None:
        if record.op not in OPS:
            return _bad("unknown-op", "op is none of c u d r t m")
        return _bad("not-debezium", "no source block")
    if record.status in {"BEGIN", "END"} and record.id is not None:
        return Odd(Kind.TRANSACTION, ts)
    if record.aggregate_type is not None and record.type is not None:
        return Odd(Kind.NOTIFICATION, _micros(record.timestamp))
    if record.ddl is not None or record.databaseName is not None or bytes(record.tableChanges):
        return Odd(Kind.SCHEMA_CHANGE, ts)
    if record.ts_ms is not None and record.source is None:
        return Odd(Kind.HEARTBEAT, ts)
    return _bad("not-debezium", "neither op nor any field of another Debezium record")


def _micros(milliseconds: int | None) -> int:
    micros = (milliseconds or 0) * 1000
    return micros if -_INT64 <= micros < _INT64 else 0


def _bad(reason: str, detail: str) -> Odd:
    return Odd(Kind.BAD, 0, reason, detail)
