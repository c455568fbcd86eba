"""The header of every record that a Debezium connector writes, as parallel lists.

Pure: bytes in, lists out, no Spark. `decode` never raises, whatever the bytes are: what cannot be
a record of this connector comes out as `Kind.BAD` with a reason code. Plain JSON and JSON with
the schema wrapper are told apart record by record; change events and the other records that a
connector writes by the fields they have: topics can be renamed. Row images stay raw JSON;
`json.rows` types those that matter.

Reason codes: invalid-json, another-form, invalid-utf8, not-debezium, unknown-op, missing-image,
missing-position, foreign-connector, record-too-large.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from lakemark.model import positions
from lakemark.model.decoding import ANOTHER_FORM
from lakemark.model.events import Headers, Kind, SourceIdentity
from lakemark.settings.table_id import text_of


class Source(msgspec.Struct, gc=False):
    """The fields of every source block; a connector's has those of its positions, too.

    Fields in Debezium's own order: msgspec finds the next field at once then.
    """

    connector: str | None = None
    name: str | None = None
    ts_ms: int | None = None
    snapshot: str | bool | None = None
    db: str | None = None
    ts_us: int | None = None
    schema: str | None = None
    table: str | None = None


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
    """The fields that tell a struct's schema from a column's value."""

    type: str = ""


class _Forms(NamedTuple):
    """The forms in which the records of one connector are read."""

    event: Callable[[bytes], Envelope]
    other: Callable[[bytes], _Other]


@cache
def _forms(connector: str) -> _Forms:
    """The forms of a connector: its source block has the fields of its positions."""
    of_source, of_transaction = positions.fields_of(connector)
    source = msgspec.defstruct("Source", _optional(of_source), bases=(Source,), gc=False)
    own: list[tuple[str, Any, Any]] = [("source", source | None, None)]
    if of_transaction:
        transaction = msgspec.defstruct("Transaction", _optional(of_transaction), gc=False)
        own.append(("transaction", transaction | None, None))
    kinds: list[Any] = [
        msgspec.defstruct(base.__name__, own, bases=(base,), gc=False)
        for base in (Envelope, _Other)
    ]
    event, other = (msgspec.json.Decoder(kind).decode for kind in kinds)
    return _Forms(event, other)


def _optional(fields: Mapping[str, type]) -> list[tuple[str, Any, None]]:
    return [(name, kind | None, None) for name, kind in fields.items()]


_parse_wrapper: Final = msgspec.json.Decoder(_Wrapper).decode
_parse_whole: Final = msgspec.json.Decoder(_Whole).decode
_parse_schema: Final = msgspec.json.Decoder(_Schema).decode
_INT64: Final = 1 << 63
OPS: Final = frozenset("curdtm")
NULL: Final = b"null"
_WRAPPED: Final = b'{"schema":'
_ZERO: Final = b"\0"
_FRAMED: Final = (
    "it begins with a zero byte, as records do whose schemas are in a registry: if the connector or"
    " its worker has another converter than JSON's, name it in source.converter"
)
_NO_WRAPPER: Final = b"\0"  # no JSON begins so
# Stands in for records of no table, so that all columns stay in step with the records.
NO_SOURCE: Final = Source()
NOTHING: Final = Envelope(source=NO_SOURCE)


class Odd(NamedTuple):
    """A record that is no change of a table."""

    kind: Kind
    source_ts: int = 0
    reason: str | None = None
    detail: str | None = None
    source: Source | None = None
    statement: str | None = None


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
    values: Sequence[bytes | None], max_bytes: int, *, connector: str, utf8: bool = False
) -> tuple[list[Envelope], list[bytes | None], dict[int, Odd]]:
    """Envelopes (with `NOTHING` where a record is odd), wrapper schemas, and the odd ones.

    Change events go through in C, one call for all; whatever is not surely a change event takes
    the long way, one by one. Both ways give the same for the same bytes. With `utf8` the values are
    known to be UTF-8.
    """
    raws = [value or b"" for value in values]
    texts, schemas = _without_wrapper(raws)
    forms = _forms(connector)
    envelopes, slow = _parse_all(texts, forms)
    slow.update([at for at, e in enumerate(envelopes) if e.op is None or e.source is None])
    if not utf8 and not _all_utf8(texts):
        slow.update([at for at, text in enumerate(texts) if not _is_utf8(text)])
    if max(map(len, raws), default=0) > max_bytes:
        slow.update([at for at, raw in enumerate(raws) if len(raw) > max_bytes])
    odd: dict[int, Odd] = {}
    for at in slow:
        found = _read_slowly(values[at], max_bytes, forms)
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
    """Say whether all values are UTF-8: far cheaper to know of a column than of its values."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def wrapper_of(value: bytes) -> tuple[bytes, bytes | None] | None:
    """Return the bytes before a wrapped payload, and the schema; None without a plain form.

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


def _parse_all(texts: list[bytes], forms: _Forms) -> tuple[list[Envelope], set[int]]:
    """Envelopes of all texts, and the indices that are none."""
    envelopes: list[Envelope] = []
    failed: set[int] = set()
    parsing = map(forms.event, texts)
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
    value: bytes | None, max_bytes: int, forms: _Forms
) -> tuple[Envelope, bytes | None] | Odd:
    """The envelope of any record, or why it has none. Never depends on earlier records."""
    if not value:
        return Odd(Kind.TOMBSTONE)
    if len(value) > max_bytes:
        return _bad("record-too-large", f"{len(value)} bytes, at most {max_bytes} are read")
    if value.startswith(_ZERO):
        return _bad(ANOTHER_FORM, _FRAMED)
    text = value
    try:
        value.decode()
        text, schema = _unwrap(value)
        envelope = forms.event(text)
        if envelope.op is not None and envelope.source is not None:
            return envelope, schema
        return _odd(forms.other(text))
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
    """Return the kind of a record without op or source block, by the fields it has."""
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
        return Odd(Kind.SCHEMA_CHANGE, ts, source=record.source, statement=record.ddl)
    if record.ts_ms is not None and record.source is None:
        return Odd(Kind.HEARTBEAT, ts)
    return _bad("not-debezium", "neither op nor any field of another Debezium record")


def _micros(milliseconds: int | None) -> int:
    micros = (milliseconds or 0) * 1000
    return micros if -_INT64 <= micros < _INT64 else 0


def _bad(reason: str, detail: str) -> Odd:
    return Odd(Kind.BAD, 0, reason, detail)


# 64 MiB: Kafka's own default limit is 1 MiB, the largest row image PostgreSQL can send is about
# 1 GiB; one record of this size is what a worker of 1 GB still holds several times over.
MAX_BYTES: Final = 64 << 20


_KINDS: Final = {
    "c": Kind.CHANGE,
    "u": Kind.CHANGE,
    "d": Kind.CHANGE,
    "t": Kind.TRUNCATE,
    "m": Kind.MESSAGE,
    "r": Kind.INCREMENTAL,
}
_OF_TABLES: Final = frozenset({Kind.CHANGE, Kind.OWN_SNAPSHOT, Kind.INCREMENTAL, Kind.TRUNCATE})
_NEEDS_POSITION: Final = _OF_TABLES | {Kind.SIGNAL}


class _Plan(NamedTuple):
    """The meaning of records of one (op, snapshot, table, connector) combination."""

    kind: int
    table: str
    op: str
    snapshot: str
    reason: str | None = None
    detail: str | None = None


def decode(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None],
    *,
    identity: SourceIdentity,
    epoch: int,
    max_bytes: int = MAX_BYTES,
    texts: bool = False,
) -> Headers:
    """Headers of Kafka records, one entry per record, in their order.

    Args:
        values: record values as they came; None is a tombstone.
        keys: record keys; only whether there is one matters here.
        identity: the connector that the records must come from.
        epoch: epoch of the positions.
        max_bytes: longer values are BAD `record-too-large` and not read.
        texts: whether all values are known to be UTF-8.

    Guarantees: never raises on any bytes; every list has the length of `values`; images that come
    out are valid UTF-8 and syntactically valid JSON.
    """
    connector = identity.connector
    envelopes, schemas, odd = read(values, max_bytes, connector=connector, utf8=texts)
    plans = _classify(envelopes, identity)
    sources = [e.source or NO_SOURCE for e in envelopes]
    out = Headers(
        kind=[plan.kind for plan in plans],
        table=[plan.table for plan in plans],
        op=[plan.op for plan in plans],
        position=[],
        source_ts=_source_times(sources),
        snapshot=[plan.snapshot for plan in plans],
        before=_images([e.before for e in envelopes]),
        after=_images([e.after for e in envelopes]),
        schema=schemas,
        reason=[plan.reason for plan in plans],
        detail=[plan.detail for plan in plans],
        transaction=_transactions(sources, connector),
    )
    out.position = _positions(out, envelopes, connector, epoch, odd)
    _check_images(out, keys)
    for at, what in odd.items():
        out.kind[at] = int(what.kind)
        out.source_ts[at] = what.source_ts
        out.snapshot[at] = _snapshot(what.source or NO_SOURCE)
        out.position[at] = _began_at(what, out.snapshot[at], connector, epoch)
        out.reason[at], out.detail[at] = what.reason, what.detail
        if what.statement and out.snapshot[at] == "false":
            out.statements[at] = what.statement
    return out


def _classify(envelopes: list[Envelope], identity: SourceIdentity) -> list[_Plan]:
    """One plan per record.

    Neighbours mostly share all but the op, so each is compared with the last one; what a
    combination means is worked out once.
    """
    known: dict[tuple[object, ...], dict[str | None, _Plan]] = {}
    last = NO_SOURCE
    by_op: dict[str | None, _Plan] = {}
    out = []
    for envelope in envelopes:
        source = envelope.source or NO_SOURCE
        if (
            source.table != last.table
            or source.schema != last.schema
            or source.snapshot != last.snapshot
            or source.name != last.name
            or source.connector != last.connector
            or source.db != last.db
        ):
            last = source
            by_op = known.setdefault(
                (source.table, source.schema, source.snapshot, source.name, source.connector,
                 source.db), {}
            )  # fmt: skip
        plan = by_op.get(envelope.op)
        if plan is None:
            plan = by_op[envelope.op] = _plan(envelope.op, source, identity)
        out.append(plan)
    return out


def kind_of(op: str, source: Source, identity: SourceIdentity) -> tuple[int, str]:
    """Return the kind of records with this op and source block, and their table."""
    plan = _plan(op, source, identity)
    return plan.kind, plan.table


def _plan(op: str | None, source: Source, identity: SourceIdentity) -> _Plan:
    outer = source.schema or source.db
    parts = (identity.qualifier, outer, source.table)
    table = text_of(*filter(None, parts)) if source.table else ""
    snapshot = _snapshot(source)
    if op is None:
        return _Plan(Kind.BAD, "", "", "false")
    kind = _KINDS.get(op)
    if kind is None:
        return _bad_plan(table, op, snapshot, "unknown-op", "op is none of c u d r t m")
    for what, is_, wanted in (
        ("connector", source.connector, identity.connector),
        ("name", source.name, identity.logical_name),
    ):
        if wanted and is_ != wanted:
            detail = f"source.{what} is not {wanted}"
            return _bad_plan(table, op, snapshot, "foreign-connector", detail)
    if kind == Kind.MESSAGE:
        return _Plan(int(kind), "", op, snapshot)
    if not source.table:
        return _bad_plan(table, op, snapshot, "not-debezium", "no source.table")
    if table == identity.signal_table:
        kind = Kind.SIGNAL
    elif op == "r" and snapshot not in {"false", "incremental"}:
        kind = Kind.OWN_SNAPSHOT
    return _Plan(int(kind), table, op, snapshot)


def _snapshot(source: Source) -> str:
    if isinstance(source.snapshot, str):
        return source.snapshot
    return "true" if source.snapshot else "false"


def _began_at(record: Odd, snapshot: str, connector: str, epoch: int) -> bytes:
    """Return the place at which the connector has read its tables' structure, or `LOWEST`."""
    if record.kind != Kind.SCHEMA_CHANGE or snapshot == "false" or connector not in positions.KINDS:
        return positions.LOWEST
    rules = positions.rules_of(connector)
    names = [*rules.fields, *rules.of_transaction]
    fields = {name: [getattr(record.source, name, None)] for name in names}
    return rules.from_source(fields, [True], epoch)[0] or positions.LOWEST


def _bad_plan(table: str, op: str, snapshot: str, reason: str, detail: str) -> _Plan:
    return _Plan(int(Kind.BAD), table, op, snapshot, reason, detail)


def _images(raws: list[msgspec.Raw]) -> list[bytes | None]:
    """Images as bytes, None for null. Joined and split: half the price of one copy per object."""
    texts = b"\0".join(raws).split(b"\0")  # NUL is in no valid JSON
    if len(texts) != len(raws):
        texts = [bytes(raw) for raw in raws]
    return [None if text == NULL else text for text in texts]


def _source_times(sources: list[Source]) -> list[int]:
    """Database time in microseconds: ts_us, else ts_ms, else 0; what exceeds 64 bits is 0."""
    times = [source.ts_us for source in sources]
    if None in times:
        times = [
            (source.ts_ms or 0) * 1000 if source.ts_us is None else source.ts_us
            for source in sources
        ]
    out = [time or 0 for time in times]
    if out and not (min(out) >= -_INT64 and max(out) < _INT64):
        return [time if -_INT64 <= time < _INT64 else 0 for time in out]
    return out


def _positions(
    out: Headers, envelopes: list[Any], connector: str, epoch: int, odd: Collection[int]
) -> list[bytes]:
    """Positions by the source block; marks records that need one and have none as BAD."""
    count = len(envelopes)
    result = [positions.LOWEST] * count
    events = [at for at in range(count) if at not in odd] if odd else range(count)
    own = int(Kind.OWN_SNAPSHOT)
    is_own = [out.kind[at] == own for at in events] if own in out.kind else None
    found: Sequence[bytes | None] = [None] * len(events)
    if connector in positions.KINDS and events:
        rules, blocks = positions.rules_of(connector), [envelopes[at].source for at in events]
        fields = {name: [*map(attrgetter(name), blocks)] for name in rules.fields}
        if rules.of_transaction:
            within = [envelopes[at].transaction for at in events]
            fields |= {n: [getattr(one, n, None) for one in within] for n in rules.of_transaction}
        found = rules.from_source(fields, is_own, epoch)
    if not odd and None not in found:
        return [position for position in found if position is not None]
    for at, position in zip(events, found, strict=True):
        if position is not None:
            result[at] = position
        elif out.kind[at] in _NEEDS_POSITION:
            out.kind[at] = int(Kind.BAD)
            out.reason[at] = "missing-position"
            out.detail[at] = positions.missing_of(connector)
    return result


def _transactions(sources: list[Any], connector: str) -> list[str | None]:
    """The names of the records' transactions, see `Headers`."""
    name = positions.identity_of(connector)
    return [getattr(source, name, None) for source in sources] if name else [None] * len(sources)


def _check_images(out: Headers, keys: Sequence[bytes | None]) -> None:
    """Marks rows without the image that their op needs as BAD `missing-image`."""
    wanting = [at for at, image in enumerate(out.after) if image is None]
    for at in wanting:
        op = out.op[at]
        if out.kind[at] == Kind.BAD or op in {"", "m", "t"}:
            continue
        if op != "d":
            detail = f"op {op} without an after image"
        elif out.before[at] is None and _is_null_key(keys[at]):
            detail = "op d with neither a key nor a before image: nothing names the row"
        else:
            continue
        out.kind[at] = int(Kind.BAD)
        out.reason[at], out.detail[at] = "missing-image", detail


def _is_null_key(key: bytes | None) -> bool:
    """Say whether a record key is null, also in JSON and inside the wrapper."""
    return not key or unwrapped(key)[1].strip() == NULL
