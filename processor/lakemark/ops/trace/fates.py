"""The fate of each thing that concerns some keys, by the rules that tables are written by. Pure.

Batch by batch, in the order of the table's commits:

1. a newer truncate or sweep removes what lies below it (`positions.below_truncate`);
2. chunks are decided against the events that were read by then (`chunks.decide`);
3. what a batch has of a key stands in the order that the sink gives it (`resolve.in_order`);
4. each step is taken from the row as it is then (`net_change.apply_step`): one that changes nothing
   is older than the row; of those that do, the last is what the table has.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model import change_batch, net_change, positions
from lakemark.model.net_change import NetChange, RowState, Step, net_of
from lakemark.ops.trace.batches import TableBatches
from lakemark.ops.trace.traced import (
    Fate,
    Image,
    MadeBy,
    RowAtStart,
    Told,
    Traced,
    TracedChunk,
    TracedRecord,
    TracedSweep,
)
from lakemark.reconcile import chunks, key_log
from lakemark.sink.resolve import in_order
from lakemark.source import changed_keys

_NOTHING = RowAtStart()


@dataclass(frozen=True, slots=True)
class _Item:
    """Something with the batch that took it."""

    what: Traced
    made: MadeBy | None


@dataclass(slots=True)
class Fates:
    """The rows of some keys as a table's commits made them.

    Attributes:
        table: its name.
        batches: what is known of them.
        hard: whether the table forgets a deleted row.
        begin: the rows before everything that is told, by key.
    """

    table: str
    batches: TableBatches
    hard: bool = True
    begin: Mapping[bytes, RowAtStart] = field(default_factory=dict)
    _rows: dict[bytes, RowState] = field(default_factory=dict)
    _from: dict[bytes, Traced] = field(default_factory=dict)
    _images: list[Image] = field(default_factory=list)
    _truncate: bytes = b""
    _cut_by: Traced | None = None
    _told: list[Told] = field(default_factory=list)

    def of(self, found: Iterable[Traced]) -> list[Told]:
        """Return the fates, in the order in which the table got them; what it did not get last."""
        every = list(found)
        records = [one for one in every if isinstance(one, TracedRecord)]
        cuts = [one for one in every if _cuts(one)]
        items = [item for one in every if (item := self._item(one, records, cuts)) is not None]
        begun = False
        for place, group in groupby(sorted(items, key=self._order), self._place):
            if place == (-1, 0):  # nothing tells where batches begin and end
                for item in group:
                    self._batch([item])
                continue
            if not begun:
                self._begin()
                begun = True
            self._batch([*group])
        return self._told

    def _begin(self) -> None:
        """Take the rows as they were before the first commit that is known."""
        for key, row in self.begin.items():
            if not row.known:
                continue
            state = self._rows.pop(key, RowState(None)).row
            if row.net is not None:
                self._rows[key] = RowState(replace(row.net, row=self._image(row.image)))
            if row.net is None or state is None or state.position != row.net.position:
                self._from.pop(key, None)

    def _place(self, item: _Item) -> tuple[int, int]:
        return self.batches.place(item.made)

    def _order(self, item: _Item) -> tuple[tuple[int, int], bytes]:
        place = self._place(item)
        return place, positions.in_stream(item.what.position) if place == (-1, 0) else b""

    def _item(
        self, one: Traced, records: Sequence[TracedRecord], cuts: Sequence[Traced]
    ) -> _Item | None:
        """Return what took part in some batch; note the fate of all else."""
        if isinstance(one, TracedSweep):
            made = self.batches.of_sweep(one.run)
            return _Item(one, made)
        if isinstance(one, TracedChunk):
            return self._chunk(one, records)
        place = one.topic, one.partition, one.offset
        made = self.batches.of_record(*place, truncates=one.is_truncate)
        fate, by = None, None
        if (made is None or made.version is None) and self.batches.waits(*place):
            fate, made = Fate.WAITING, None
        elif one.resent:
            fate = Fate.RESENT
        elif one.bad:
            fate = Fate.DEAD_LETTER
        elif one.step is None and not one.is_truncate:
            fate = Fate.NONE
        elif not one.is_truncate and self.batches.lacks(*place, made):
            below = (cut for cut in cuts if positions.below_truncate(one.position, cut.position))
            by = next(below, None)
            fate = Fate.LEFT_OUT if by is None else Fate.BEFORE_TRUNCATE
        if fate is None:
            return _Item(one, made)
        self._told.append(Told(one, fate, made, by))
        return None

    def _chunk(self, one: TracedChunk, records: Sequence[TracedRecord]) -> _Item | None:
        made = self.batches.of_chunk(one.attempt)
        fate, by = None, None
        if one.verify and made is None:
            fate = Fate.COMPARED
        elif one.void and made is None:
            fate = Fate.VOID
        elif not one.position or (one.placed and made is None):
            fate = Fate.UNKNOWN if made is None else None
        else:
            fate, by = self._against(one, self._known_to(one, made, records))
        if fate is None:
            return _Item(one, made)
        self._told.append(Told(one, fate, made, by))
        return None

    def _known_to(
        self, one: TracedChunk, made: MadeBy | None, records: Sequence[TracedRecord]
    ) -> list[TracedRecord]:
        """Return the events that the shard had when it decided a chunk.

        That is a matter of batches. Where these are not known it is one of the close row, if it
        came in the log: of events up to it. A close that is no row in the log (`placed`) may come
        before them.
        """
        own = [r for r in records if r.key == one.key and r.op in {"c", "u", "d"} and not r.bad]
        high = one.hi.position if one.hi else b""
        if made is None or made.version is None:
            return [r for r in own if not high or r.position <= high]
        read = ((r, self.batches.of_record(r.topic, r.partition, r.offset)) for r in own)
        return [r for r, by in read if (by.batch <= made.batch if by else r.position <= high)]

    def _against(
        self, one: TracedChunk, events: Sequence[TracedRecord]
    ) -> tuple[Fate | None, Traced | None]:
        """Return the fate of a chunk that has met events; None where its row counts."""
        newest = max(events, key=lambda event: event.position, default=None)
        decision = chunks.decide(
            {0: one.blob}, one.position, touches(self.table, events), truncated_at=b""
        )
        if decision.blob is None:
            return Fate.UNKNOWN, None
        packet, filed = change_batch.parted(decision.blob)
        own = packet.filter(pc.equal(packet.column("key"), pa.scalar(one.key, pa.binary())))
        kinds = own.column("record").to_pylist()
        if change_batch.FILL in kinds:
            return Fate.FILLS, newest
        if change_batch.NET in kinds or (filed is not None and one.key in filed.keys().to_pylist()):
            return None, None
        return Fate.LOST, newest

    def _batch(self, items: Sequence[_Item]) -> None:
        """Take what one batch has: truncates first, then each key's steps in their order."""
        for item in items:
            if _cuts(item.what):
                self._cut(item)
        by_key: dict[bytes, list[_Item]] = {}
        for item in items:
            if isinstance(item.what, TracedChunk) or (
                isinstance(item.what, TracedRecord) and item.what.step is not None
            ):
                by_key.setdefault(item.what.key, []).append(item)
        for key, own in by_key.items():
            self._steps(key, own)

    def _cut(self, item: _Item) -> None:
        what = item.what
        position = what.position
        if position <= self._truncate:
            self._told.append(Told(what, Fate.OLDER, item.made, self._cut_by))
            return
        self._truncate, self._cut_by = position, what
        self._told.append(Told(what, Fate.APPLIED, item.made))
        for key, state in list(self._rows.items()):
            if state.row is not None and positions.below_truncate(state.row.position, position):
                del self._rows[key]
                self._from.pop(key, None)

    def _steps(self, key: bytes, items: Sequence[_Item]) -> None:
        given: list[tuple[str, int, Step]] = []
        by_row: dict[int, _Item] = {}
        for item in items:
            step = self._step(item.what)
            row = net_of(step).row
            if self._truncate and positions.below_truncate(net_of(step).position, self._truncate):
                self._told.append(Told(item.what, Fate.BEFORE_TRUNCATE, item.made, self._cut_by))
                continue
            by_row[row] = item
            given.append((_source(item.what), row, step))
        taken: list[_Item] = []
        for step in in_order(given):
            item, state = by_row[net_of(step).row], self._rows.get(key, RowState(None))
            after, _ = net_change.apply_step(state, step, same=self._same)
            if after.row == state.row:
                self._told.append(Told(item.what, Fate.OLDER, item.made, self._from.get(key)))
                continue
            self._rows[key] = after
            self._from[key] = item.what
            taken.append(item)
        for item in taken[:-1]:
            self._told.append(Told(item.what, Fate.SUPERSEDED, item.made, taken[-1].what))
        for item in taken[-1:]:
            self._told.append(Told(item.what, Fate.APPLIED, item.made))
        left = self._rows.get(key, RowState(None)).row
        if self.hard and left is not None and left.action == net_change.DELETE:
            del self._rows[key]

    def _step(self, what: Traced) -> Step:
        if isinstance(what, TracedChunk):
            row = self._image(what.image)
            if not what.is_row:
                return net_change.delete(position=what.position, source_ts=0, row=row)
            return net_change.upsert(op="r", position=what.position, source_ts=0, row=row)
        step = what.step if isinstance(what, TracedRecord) else None
        if step is None:
            raise ValueError("it has no step")
        row = self._image(what.image if isinstance(what, TracedRecord) else {})
        if isinstance(step, NetChange):
            return replace(step, row=row)
        return replace(step, net=replace(step.net, row=row))

    def _image(self, image: Image) -> int:
        self._images.append(image)
        return len(self._images) - 1

    def _same(self, one: NetChange, other: NetChange) -> bool:
        """Say whether two rows agree in every column."""
        names = {*self._images[one.row], *self._images[other.row]}
        return all(
            self._images[one.cell(name)].get(name) == self._images[other.cell(name)].get(name)
            for name in names
        )


def _cuts(what: Traced) -> bool:
    """Say whether something removes all rows below its position."""
    return isinstance(what, TracedSweep) or (isinstance(what, TracedRecord) and what.is_truncate)


def _source(what: Traced) -> str:
    if isinstance(what, TracedRecord):
        return what.source
    return f"chunk/{what.attempt}" if isinstance(what, TracedChunk) else ""


def touches(table: str, events: Sequence[TracedRecord]) -> pa.RecordBatch:
    """Return what shards remember of events of a table, see `key_log`."""
    if not events:
        return key_log.NOTHING
    position = positions.fixed([event.position for event in events])
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([table] * len(events)).dictionary_encode(),
            pa.array([event.key for event in events], pa.binary()),
            position,
            pa.array([event.op != "u" for event in events], pa.bool_()),
        ],
        schema=changed_keys.touches(position.type),
    )
    blobs = [changed_keys.encode_touches(rows)]
    return key_log.newest(key_log.fresh(blobs, tables=[table], above=positions.LOWEST))


def newest_first(told: Sequence[Told]) -> Iterator[Told]:
    """Yield what is told, the newest first: by its place in the log, then in Kafka.

    What has no place in the log stands behind what came before it in its partition.
    """
    before: dict[str, bytes] = {}
    places: dict[int, tuple[bytes, int]] = {}
    for one in sorted(told, key=lambda one: _offset(one.what)):
        what = one.what
        at = positions.in_stream(what.position) if what.position else b""
        if isinstance(what, TracedRecord):
            if what.position == positions.LOWEST:
                at = before.get(what.source, at)
            before[what.source] = max(at, before.get(what.source, b""))
        places[id(one)] = at, _offset(what)
    yield from sorted(told, key=lambda one: places[id(one)], reverse=True)


def _offset(what: Traced) -> int:
    return what.offset if isinstance(what, TracedRecord) else -1
