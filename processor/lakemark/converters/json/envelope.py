"""The header of every record that a Debezium connector writes, as parallel lists.

Pure: bytes in, lists out, no Spark. `decode` never raises, whatever the bytes are: what cannot be
a record of this connector comes out as `Kind.BAD` with a reason code. Plain JSON and JSON with
the schema wrapper are told apart record by record. Row images stay raw JSON; `json.rows` types
those that matter.

Reason codes: invalid-json, invalid-utf8, not-debezium, unknown-op, missing-image,
missing-position, foreign-connector, record-too-large.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from lakemark.converters.json.record import (
    NO_SOURCE,
    NULL,
    Envelope,
    Source,
    read,
    unwrapped,
)
from lakemark.model import positions
from lakemark.model.events import Headers, Kind, SourceIdentity
from lakemark.settings.table_id import text_of

# 64 MiB: Kafka's own default limit is 1 MiB, the largest row image PostgreSQL can send is about
# 1 GiB; one record of this size is what a worker of 1 GB still holds several times over.
MAX_BYTES: Final = 64 << 20


_INT64: Final = 1 << 63
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

_Sequenced = Callable[[str | None, int | None], tuple[int, int] | None]
# One pair per connector: position of a record of the stream, of a row of the own snapshot.
_POSITIONS: Final[dict[str, tuple[_Sequenced, _Sequenced]]] = {
    "postgresql": (positions.postgres, positions.postgres_own_snapshot),
}
_NO_POSITION: Final[tuple[_Sequenced, _Sequenced]] = (
    lambda _sequence, _lsn: None,
    lambda _sequence, _lsn: None,
)


class _Plan(NamedTuple):
    """What records of one (op, snapshot, table, connector) combination are."""

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
    envelopes, schemas, odd = read(values, max_bytes, utf8=texts)
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
    )
    out.position = _sequence_positions(out, sources, identity.connector, epoch)
    _check_images(out, keys)
    for at, what in odd.items():
        out.kind[at] = int(what.kind)
        out.source_ts[at] = what.source_ts
        out.position[at] = positions.LOWEST
        out.reason[at], out.detail[at] = what.reason, what.detail
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
    """What records with this op and source block are, and the table they are of."""
    plan = _plan(op, source, identity)
    return plan.kind, plan.table


def _plan(op: str | None, source: Source, identity: SourceIdentity) -> _Plan:
    outer = source.schema or source.db
    table = text_of(*filter(None, (outer, source.table))) if source.table else ""
    snapshot = source.snapshot
    if not isinstance(snapshot, str):
        snapshot = "true" if snapshot else "false"
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


def _sequence_positions(
    out: Headers, sources: list[Source], connector: str, epoch: int
) -> list[bytes]:
    """Positions by the source block; marks records that need one and have none as BAD."""
    own = int(Kind.OWN_SNAPSHOT)
    if connector == "postgresql" and own not in out.kind:
        packed = positions.postgres_packed([source.sequence for source in sources], epoch)
        if packed is not None:
            return packed
    result: list[bytes] = []
    last: tuple[object, ...] = ()
    at_last = positions.LOWEST
    for at, (kind, source) in enumerate(zip(out.kind, sources, strict=True)):
        this = (kind == own, source.sequence, source.lsn, source.connector)
        if this != last:
            stream, snapshot = _POSITIONS.get(source.connector or connector, _NO_POSITION)
            parts = (snapshot if kind == own else stream)(source.sequence, source.lsn)
            at_last = positions.pack(epoch, *parts) if parts else b""
            last = this
        if not at_last and kind in _NEEDS_POSITION:
            out.kind[at] = int(Kind.BAD)
            out.reason[at] = "missing-position"
            out.detail[at] = "no usable source.sequence (Debezium before 1.5, or source rewritten)"
        result.append(at_last or positions.LOWEST)
    return result


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
    """Whether a record key is null, also in JSON and inside the wrapper."""
    return not key or unwrapped(key)[1].strip() == NULL
