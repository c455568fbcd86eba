"""Records of one table that share a schema, folded to packets: one net change per key.

Pure. Keys whose newest event says everything go the fast way: only that event's image is decoded.
Keys with key changes, placeholders, incremental reads, deletes that may be of another row with the
same key (`_shared`) or a newest image that cannot be read are folded event by event.
"""

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lakemark.converters.converter import Converter, Rows, whole
from lakemark.model import change_batch, net_change, positions
from lakemark.model.decoding import AppliedPosition
from lakemark.model.events import NEW_KEY_HEADER, OLD_KEY_HEADER, Headers, Kind, may_lack
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.key import value_fault
from lakemark.model.net_change import NetChange
from lakemark.model.schema import TableSchema

_CHANGED: Final = (NEW_KEY_HEADER, OLD_KEY_HEADER)
# `source.snapshot` of a table's last row, of the last table's in the end.
_LAST: Final = frozenset({"last_in_data_collection", "last"})


@dataclass(frozen=True, slots=True)
class Raw:
    """One stretch's records as they came, column by column, with their decoded headers.

    `converter`: of the records. `since`: where earlier stretches came to, perhaps the middle of a
    transaction. `made`: takes the canonical keys, by index: see `DecodedRange.keys`.
    """

    converter: Converter
    heads: Headers
    keys: Sequence[bytes | None]
    headers: Sequence[list[dict[str, Any]] | None]
    since: AppliedPosition = field(default_factory=AppliedPosition)
    made: dict[int, bytes | None] = field(default_factory=dict)


@dataclass(slots=True)
class Folded:
    """The outcome of one fold.

    Attributes:
        packets: in log order where they share a key: at most two, of disjoint keys.
        rejected: (index, reason code, detail) of records that cannot be decoded.
        missed: canonical keys whose rows miss a rejected event, and its position.
        unread: number of the rejected ones whose key cannot be read.
        own_snapshots: numbers of the connector's own snapshots, see `positions.snapshot_of`.
        own_ends: whether such a snapshot had read all rows of the table.
        incremental_reads: number of Debezium's incremental reads.
        clamped: timestamps at infinity, clamped.
        unknown: fields of images that the schema lacks.
        stop: code and reason, where a key is none that the lake can hold: the table stops.
    """

    packets: list[pa.Table] = field(default_factory=list)
    rejected: list[tuple[int, str, str]] = field(default_factory=list)
    missed: list[tuple[bytes, bytes]] = field(default_factory=list)
    unread: int = 0
    own_snapshots: set[int] = field(default_factory=set)
    own_ends: bool = False
    incremental_reads: int = 0
    clamped: int = 0
    unknown: set[str] = field(default_factory=set)
    stop: tuple[str, str] | None = None


def fold(run: Sequence[int], raw: Raw, schema: TableSchema, modes: HandlingModes) -> Folded:
    """Folds the records at the indices `run`, which are in log order, to packets."""
    work = _Fold(raw, schema, modes)
    work.run(run)
    return work.out


def _gather(
    run: Iterable[int], named: Iterable[bytes], wanted: Container[bytes]
) -> dict[bytes, list[int]]:
    """The events of some keys, in log order."""
    found: dict[bytes, list[int]] = {}
    for index, key in zip(run, named, strict=True):
        if key in wanted:
            found.setdefault(key, []).append(index)
    return found


class _Fold:
    """The state of one call of `fold`."""

    def __init__(self, raw: Raw, schema: TableSchema, modes: HandlingModes) -> None:
        self.raw = raw
        self.converter = raw.converter
        self.heads = raw.heads
        self.schema = schema
        self.modes = modes
        self.out = Folded()
        self.new_keys: dict[int, bytes] = {}
        self.old_keys: dict[int, bytes] = {}

    def run(self, run: Sequence[int]) -> None:
        canonical = self.converter.canonical_keys([self.raw.keys[i] for i in run], self.schema)
        self.raw.made.update(zip(run, canonical, strict=True))
        if None in canonical:
            run, canonical = self._keyed(run, canonical)
        named = [key for key in canonical if key is not None]
        newest = dict(zip(named, run, strict=True))
        slow, forced = self._odd(run, named)
        shared = self._going_on(run, named)
        slow |= shared
        if len(newest) < len(named):
            deleted = {key for key, i in zip(named, run, strict=True) if self.heads.op[i] == "d"}
            found = _gather(run, named, deleted)
            shared |= {key for key, events in found.items() if self._shared(events)}
            slow |= shared
        last = {key: index for key, index in newest.items() if key not in slow}
        lacking = self._lacking(last)
        last = {key: index for key, index in last.items() if key not in lacking}
        slow |= lacking
        slow |= self._newest(last, forced)
        if slow:
            self._one_by_one(_gather(run, named, slow), shared)

    def _lacking(self, last: dict[bytes, int]) -> set[bytes]:
        """Keys whose newest event may have unavailable values, by a look at its bytes."""
        partial = {key: index for key, index in last.items() if self._partial(index)}
        images = [self.heads.after[index] or b"" for index in partial.values()]
        found = self.converter.suspects(images, self.schema, self.modes)
        return {key for number, key in enumerate(partial) if number in found} if found else set()

    def _lacking_images(self, order: Sequence[int]) -> set[int]:
        """Return which of the events may have unavailable values, by their place in `order`."""
        heads = self.heads
        partial = {at for at, index in enumerate(order) if self._partial(index)}
        shown = [
            (at, after, before)
            for at in partial
            if (after := heads.after[order[at]]) and (before := heads.before[order[at]])
        ]
        if shown:
            places, afters, befores = zip(*shown, strict=True)
            shown_whole = whole(self.converter, afters, befores, self.schema, self.modes)
            partial -= {places[number] for number in shown_whole}
        return partial

    def _partial(self, index: int) -> bool:
        return may_lack(self.heads.op[index], self.raw.headers[index])

    def _keyed(
        self, run: Sequence[int], canonical: Sequence[bytes | None]
    ) -> tuple[list[int], list[bytes | None]]:
        """The records whose key can be read; the others are bad."""
        for index, key in zip(run, canonical, strict=True):
            if key is None and (
                beyond := self.converter.out_of_range(self.raw.keys[index], self.schema)
            ):
                fault = value_fault(beyond)
                self.out.stop = fault.code, fault.reason
            elif key is None:
                reason = "null-key" if self.raw.keys[index] is None else "wrong-type"
                self.out.rejected.append((index, reason, "the record's key cannot be read"))
                self.out.unread += 1
        kept = [(i, key) for i, key in zip(run, canonical, strict=True) if key is not None]
        return [i for i, _ in kept], [key for _, key in kept]

    def _odd(self, run: Sequence[int], named: Sequence[bytes]) -> tuple[set[bytes], set[bytes]]:
        """Keys that need more than their newest event, and keys with a row of a snapshot."""
        slow: set[bytes] = set()
        forced: set[bytes] = set()
        kinds, headers = self.heads.kind, self.raw.headers
        change, own = int(Kind.CHANGE), int(Kind.OWN_SNAPSHOT)
        if set(map(kinds.__getitem__, run)) != {change} or any(map(headers.__getitem__, run)):
            for index, key in zip(run, named, strict=True):
                if (kinds[index] != change or headers[index]) and self._not_plain(index):
                    slow.add(key)
                if kinds[index] == own:
                    forced.add(key)
        return slow, forced

    def _going_on(self, run: Sequence[int], named: Sequence[bytes]) -> set[bytes]:
        """Keys of deletes whose transaction began in an earlier stretch, and created rows there.

        Of which row such a delete is, only the table can tell: see `_shared`.
        """
        heads, found = self.heads, set[bytes]()
        if not self.raw.since.creates:
            return found
        for index, key in zip(run, named, strict=True):
            if heads.op[index] != "d" or heads.before[index] is None:
                continue
            if positions.one_transaction(self.raw.since.position, heads.position[index]):
                found.add(key)
        return found

    def _shared(self, found: Sequence[int]) -> bool:
        """Say whether the key, judged by these events, may have had two rows for a while.

        Under a deferrable constraint a delete may be of another row than the newest: where it comes
        after other events of its transaction, or where the next event needs a row to be there.
        PostgreSQL allows that only with REPLICA IDENTITY FULL, where updates have a before image.
        """
        heads = self.heads
        if any(heads.op[index] == "u" and heads.before[index] is None for index in found):
            return False
        for one, other in pairwise(found):
            if heads.position[one] == heads.position[other]:
                continue  # sent twice
            if heads.op[one] == "d" and heads.op[other] in {"u", "d"}:
                return True
            if heads.op[other] == "d" and positions.one_transaction(
                heads.position[one], heads.position[other]
            ):
                return True
        return False

    def _not_plain(self, index: int) -> bool:
        """Notes what the record is; whether it needs more than to be the newest of its key."""
        kind = self.heads.kind[index]
        if kind == Kind.OWN_SNAPSHOT:
            self.out.own_snapshots.add(positions.snapshot_of(self.heads.position[index]))
            self.out.own_ends |= self.heads.snapshot[index] in _LAST
        elif kind == Kind.INCREMENTAL:
            self.out.incremental_reads += 1
            return True
        headers = self.raw.headers[index]
        if not headers or not positions.across_partitions(self.heads.position[index]):
            return False  # nothing joins the halves of a key change
        return self._key_change(index, headers)

    def _key_change(self, index: int, headers: list[dict[str, Any]]) -> bool:
        found = False
        for header in headers:
            if header["key"] in _CHANGED:
                (key,) = self.converter.canonical_keys([header["value"]], self.schema)
                if key is not None:
                    of = self.new_keys if header["key"] == NEW_KEY_HEADER else self.old_keys
                    of[index] = key
                    found = True
        return found

    def _decode(self, images: Sequence[bytes], partial: Collection[int] = ()) -> Rows:
        decoded = self.converter.rows(images, self.schema, self.modes, partial=partial)
        self.out.clamped += decoded.clamped
        self.out.unknown |= decoded.unknown
        return decoded

    def _keyless(self, decoded: Rows) -> set[int]:
        """Rows without a value in some key column: partial before images."""
        found: set[int] = set()
        for name in self.schema.key:
            column = decoded.columns.field(name)
            if column.null_count:
                found.update(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)))
        return found

    def _whole(self, decoded: Rows, deletes: Sequence[int]) -> set[int]:
        """Return deletes whose rows have a value outside the key: REPLICA IDENTITY is FULL."""
        at = pa.array(deletes, pa.int64())
        found: set[int] = set()
        for column in self.schema.columns:
            if column.name not in self.schema.key:
                valid = decoded.columns.field(column.name).take(at).is_valid()
                found.update(np.array(deletes)[valid.to_numpy(zero_copy_only=False)].tolist())
        return found

    def _image(self, index: int) -> bytes:
        """The record's row image; of a delete the before image, or else its key."""
        heads = self.heads
        image = heads.before[index] if heads.op[index] == "d" else heads.after[index]
        return self._key_image(index) if image is None else image

    def _key_image(self, index: int) -> bytes:
        """The record's key, which holds the key's columns."""
        return self.converter.key_image(self.raw.keys[index])

    def _newest(self, last: dict[bytes, int], forced: Container[bytes]) -> set[bytes]:
        """Packs keys whose newest event says everything; those where it does not come back."""
        heads = self.heads
        names = list(last)
        decoded = self._decode([self._image(index) for index in last.values()])
        doubtful = {at for at, _, _ in decoded.bad}
        doubtful.update(at for at in self._keyless(decoded) if heads.op[last[names[at]]] == "d")
        keep = [at for at in range(len(names)) if at not in doubtful]
        chosen = [last[names[at]] for at in keep]
        if keep:
            images = decoded.columns
            packet = change_batch.build_simple(
                keys=pa.array([names[at] for at in keep], pa.binary()),
                ops=pa.array([heads.op[index] for index in chosen]),
                position=pa.array([heads.position[index] for index in chosen], pa.binary()),
                source_ts=pa.array([heads.source_ts[index] for index in chosen], pa.int64()),
                force=pa.array([names[at] in forced for at in keep]),
                rows=images.take(pa.array(keep, pa.int64())) if doubtful else images,
                table=self.schema.table,
                key_columns=change_batch.key_columns_by(self.schema),
            )
            self._add(packet, chosen)
        return {names[at] for at in doubtful}

    def _one_by_one(self, events: dict[bytes, list[int]], shared: Container[bytes]) -> None:
        """Packs keys event by event; `shared` ones may have had two rows."""
        order = [index for found in events.values() for index in found]
        # A before image that cannot be read is no loss: the key alone names the row.
        deletes = [index for index in order if self.heads.op[index] == "d"]
        images = [*map(self._image, order), *map(self._key_image, deletes)]
        decoded = self._decode(images, self._lacking_images(order))
        bad = {at: (reason, detail) for at, reason, detail in decoded.bad}
        slot = {index: at for at, index in enumerate(order)}
        useless = bad.keys() | self._keyless(decoded)
        whole = self._whole(decoded, [slot[index] for index in deletes])
        slot.update({i: at for at, i in enumerate(deletes, len(order)) if slot[i] in useless})
        items: list[change_batch.PacketRecord] = []
        for key, found in events.items():
            moved = any(index in self.old_keys for index in found)
            told_apart = key in shared and any(slot[index] in whole for index in found)
            log = _Log(key, items, apart=moved or told_apart)
            for index in found:
                at = slot[index]
                if at in bad:
                    self.out.rejected.append((index, *bad[at]))
                    self.out.missed.append((key, self.heads.position[index]))
                else:
                    self._event(log, index, at, frozenset(decoded.unavailable[at] or ()))
            log.close()
        if items:
            table, columns = self.schema.table, change_batch.key_columns_by(self.schema)
            packet = change_batch.build(items, decoded.columns, table=table, key_columns=columns)
            shown = [*order, *deletes]
            self._add(packet, [shown[item.net.row] for item in items if item.net is not None])

    def _add(self, packet: pa.Table, of: Sequence[int]) -> None:
        """Add a packet whose images are those of the events `of`, and who wrote them if asked."""
        if self.heads.schema_ids:
            numbers = pa.array([self.heads.schema_ids.get(index) for index in of], pa.int64())
            packet = change_batch.with_schema_ids(packet, numbers)
        self.out.packets.append(packet)

    def _event(self, log: "_Log", index: int, row: int, unavailable: frozenset[str]) -> None:
        heads = self.heads
        position, source_ts = heads.position[index], heads.source_ts[index]
        kind, op = heads.kind[index], heads.op[index]
        if kind == Kind.INCREMENTAL:
            at = positions.outside_stream(position)
            log.net(net_change.incremental_read(position=at, source_ts=source_ts, row=row))
        elif op == "d":
            gone = net_change.delete(position=position, source_ts=source_ts, row=row)
            log.leave(gone, self.new_keys.get(index))
        else:
            net = net_change.upsert(
                op=op,
                position=position,
                source_ts=source_ts,
                row=row,
                unavailable=unavailable,
                own_snapshot=kind == Kind.OWN_SNAPSHOT,
            )
            log.arrive(net, self.old_keys.get(index) if op == "c" else None)


class _Log:
    """The events of one key as packet records: key changes as they are, the rest composed.

    Where a row has moved to the key or the key may have had two rows (`apart`), even a plain delete
    is kept as it is: under a deferrable constraint it may be the delete of another row.
    """

    def __init__(self, key: bytes, items: list[change_batch.PacketRecord], *, apart: bool) -> None:
        self.key = key
        self.items = items
        self.apart = apart
        self.composed: NetChange | None = None

    def net(self, net: NetChange) -> None:
        self.composed = net_change.compose(self.composed, net)

    def leave(self, gone: NetChange, new_key: bytes | None) -> None:
        if new_key is None and not self.apart:
            self.net(gone)
        elif new_key != self.key:  # spellings of one key are one row: it stays
            self._add(change_batch.LEAVE, gone, new_key)

    def arrive(self, net: NetChange, old_key: bytes | None) -> None:
        if old_key is None:
            self.net(net)
        elif old_key != self.key:
            self._add(change_batch.ARRIVE, net, old_key)
        else:
            self.net(replace(net, base=bool(net.unavailable), barrier=None))

    def close(self) -> None:
        if self.composed is not None:
            net, self.composed = self.composed, None
            self.items.append(
                change_batch.PacketRecord(change_batch.NET, self.key, net.position, net)
            )

    def _add(self, record: int, net: NetChange, other_key: bytes | None) -> None:
        self.close()
        self.items.append(change_batch.PacketRecord(record, self.key, net.position, net, other_key))
