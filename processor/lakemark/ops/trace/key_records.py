"""The records of some keys of one table, among all records of a partition. Pure.

What a record is, which row it is of and whether it was sent again, the decoder's own functions say:
`Converter.headers`, `record_schema.canonical`, `drop_replays`, and `decode_range` of each record
that concerns a key, alone.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from lakemark.converters import record_schema
from lakemark.converters.registry import converter_of
from lakemark.model import change_batch
from lakemark.model.decoding import AppliedPosition, Records, StretchPlan
from lakemark.model.events import Headers, Kind
from lakemark.model.net_change import KeyArrived, KeyLeft, Step
from lakemark.ops.trace.traced import Image, TracedRecord
from lakemark.sink.resolve import step_of
from lakemark.source import decoder
from lakemark.source.replay_filter import drop_replays

_OF_ROWS = frozenset({int(Kind.CHANGE), int(Kind.OWN_SNAPSHOT), int(Kind.INCREMENTAL)})
_BY_KEY_ALONE = frozenset({int(Kind.TOMBSTONE), int(Kind.BAD)})


@dataclass(slots=True)
class KeyRecords:
    """The records that a partition has of some keys, stretch by stretch.

    Attributes:
        table: its name.
        keys: canonical.
        applied: where the stretch at hand begins; of a partition that is read from its midst
            nothing is known, and what was sent again there looks new.
        known: by offset, where the partition was as a batch ended there.
        found: the records, in the order of the partition.
        read: how many records were looked at.
    """

    table: str
    keys: frozenset[bytes]
    applied: AppliedPosition = field(default_factory=AppliedPosition)
    known: Mapping[int, AppliedPosition] = field(default_factory=dict)
    found: list[TracedRecord] = field(default_factory=list)
    read: int = 0

    def take(self, records: Records, plan: StretchPlan) -> None:
        """Look at the next stretch, which is of one epoch and of one batch at most."""
        if not records.offsets:
            return
        self.applied = self.known.get(records.offsets[0], self.applied)
        heads = decoder.headers(records, plan)
        gated = drop_replays(
            heads.kind,
            heads.position,
            heads.source_ts,
            self.applied,
            decoder.logged_by(heads, plan),
        )
        self.applied = gated.after
        self.read += len(records.offsets)
        kept = frozenset(gated.keep)
        named = self._named(records, heads, plan)
        for at, kind in enumerate(heads.kind):
            is_truncate = kind == Kind.TRUNCATE and heads.table[at] == self.table
            if is_truncate or named[at] in self.keys:
                resent = at not in kept and kind not in _BY_KEY_ALONE
                key = b"" if is_truncate else named[at] or b""
                self.found.append(_record(records, heads, plan, at, key=key, resent=resent))

    def _named(self, records: Records, heads: Headers, plan: StretchPlan) -> Sequence[bytes | None]:
        """Return the canonical keys of the table's records; of one that says no table by its key.

        Only the topic tells then that it is of the table.
        """
        raw = heads.readable(records.keys)
        mine = [
            kind in _OF_ROWS and table == self.table
            for kind, table in zip(heads.kind, heads.table, strict=True)
        ]
        kinds = [int(Kind.CHANGE) if own else int(Kind.HEARTBEAT) for own in mine]
        converter = converter_of(plan.converter)
        found = record_schema.canonical(
            converter,
            replace(heads, kind=kinds),
            raw,
            schemas=plan.schemas,
            numerics=plan.numerics,
        )
        others = [at for at, kind in enumerate(heads.kind) if kind in _BY_KEY_ALONE and raw[at]]
        others = [at for at in others if heads.table[at] in {"", self.table}]
        if others:
            schema = plan.schemas.get(self.table)
            keys = converter.canonical_keys([raw[at] for at in others], schema)
            for at, key in zip(others, keys, strict=True):
                found[at] = key
        return found


def cut(records: Records, edges: Sequence[int]) -> Iterator[Records]:
    """Yield the records in pieces that end before each of the offsets, which rise."""
    places = sorted({bisect_left(records.offsets, edge) for edge in edges})
    for begin, end in pairwise([0, *places, len(records.offsets)]):
        if begin < end:
            yield _piece(records, begin, end)


def _piece(records: Records, begin: int, end: int) -> Records:
    return replace(
        records,
        offsets=records.offsets[begin:end],
        keys=records.keys[begin:end],
        values=records.values[begin:end],
        headers=records.headers[begin:end],
        column=None if records.column is None else records.column.slice(begin, end - begin),
    )


def _record(
    records: Records, heads: Headers, plan: StretchPlan, at: int, *, key: bytes, resent: bool
) -> TracedRecord:
    """Decode one record alone: whatever the partition was past, it is told what it is."""
    alone = decoder.decode_range(_piece(records, at, at + 1), replace(plan, applied={}))
    step, image = _step(alone.packets, key)
    bad = alone.dead[0] if alone.dead else None
    return TracedRecord(
        records.topic,
        records.partition,
        records.offsets[at],
        key,
        op=heads.op[at],
        position=heads.position[at],
        source_ts=heads.source_ts[at],
        transaction=heads.transaction[at] or "",
        snapshot=heads.snapshot[at],
        step=step,
        image=image,
        other_key=_other(step),
        resent=resent,
        bad=bad.reason if bad else "",
        detail=bad.detail if bad else "",
    )


def _step(packets: Sequence[tuple[str, object]], key: bytes) -> tuple[Step | None, Image]:
    for _, packet in packets:
        every = np.arange(packet.num_rows)  # type: ignore[attr-defined]
        for found in change_batch.records_of(packet, every, offset=0):
            if found.net is not None and found.key == key:
                (image,) = packet.column("row").slice(found.net.row, 1).to_pylist()  # type: ignore[attr-defined]
                return step_of(found, found.net), image or {}
    return None, {}


def _other(step: Step | None) -> bytes:
    if isinstance(step, KeyLeft):
        return step.new_key or b""
    return step.old_key if isinstance(step, KeyArrived) else b""
