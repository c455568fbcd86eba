"""Key changes of one table: a row that leaves one key and arrives under another, perhaps later.

Pure; used by `resolve`. Each key that takes part starts from the table's row and takes its steps
one by one (`net_change.apply_step`). What a delete with a new key leaves behind is a *move*; rows
that arrived with unavailable columns take them from their move, and what is still missing then from
a chunk's row that lost (`change_batch.FILL`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from lakemark.model import change_batch, net_change, positions
from lakemark.model.net_change import KeyArrived, KeyLeft, NetChange, RowState, Step, net_of
from lakemark.sink.row_images import RowImages

Same = Callable[[NetChange, NetChange], bool]
KeyChange = tuple[bytes, bytes]  # new key and position of the delete name it


def below(position: bytes, truncated_at: bytes | None) -> bool:
    """Say whether a truncate at `truncated_at` removes a row at `position`."""
    return truncated_at is not None and positions.below_truncate(position, truncated_at)


@dataclass(slots=True)
class Special:
    """A key that starts from the table's row: its steps, and a pool row with its key columns."""

    row: int
    steps: list[Step] = field(default_factory=list)
    fills: list[NetChange] = field(default_factory=list)


@dataclass(slots=True)
class _Moved:
    """The old key's row that a key change left behind; None = nothing is known of it."""

    old_key: bytes
    image: NetChange | None


@dataclass(slots=True)
class PendingKeyChanges:
    """Halves of key changes: those of earlier batches and of this one.

    Attributes:
        moved: by key change: the delete was seen.
        awaited: by key change: the create was seen; its old key and a pool row of the new key.
        stale: keys whose rows miss an event, so that they cannot give columns; None = any may.
        displaced: by key: position of its newest step, and the row that a create found there. None:
            that row's delete was seen; sent again, it must not reach the engine as a plain delete.
        reread: keys that need the source.
        special: keys of this batch with their steps.
        full: whether a delete of the batch shows a whole row; None = not looked at yet.
        partial: barriers of the rows that are left with unavailable columns, by key.
        completed: rows that events left with unavailable columns, and that have none any more.
    """

    pool: RowImages
    truncated_at: bytes | None
    settled: bytes | None
    applied_close: bytes
    stale: frozenset[bytes] | None = frozenset()
    moved: dict[KeyChange, _Moved] = field(default_factory=dict)
    awaited: dict[KeyChange, tuple[bytes, int]] = field(default_factory=dict)
    displaced: dict[bytes, tuple[bytes, NetChange | None]] = field(default_factory=dict)
    reread: set[bytes] = field(default_factory=set)
    special: dict[bytes, Special] = field(default_factory=dict)
    full: bool | None = None
    partial: dict[bytes, bytes | None] = field(default_factory=dict)
    completed: list[NetChange] = field(default_factory=list)

    def load(self, pending: pa.Table, offset: int) -> None:
        """Takes up what earlier batches left."""
        for record in change_batch.records_of(pending, np.arange(pending.num_rows), offset=offset):
            change = (record.key, record.position)
            other = record.other_key or b""
            if below(record.position, self.truncated_at):
                continue
            if record.record == change_batch.MOVED:
                self.moved[change] = _Moved(other, record.net)
            elif record.record == change_batch.AWAITED:
                if record.net is not None:
                    self.awaited[change] = (other, record.net.row)
            elif record.net is None or not below(record.net.position, self.truncated_at):
                self.displaced[record.key] = (record.position, record.net)

    def watched(self, leaves: Iterable[KeyLeft]) -> dict[bytes, int]:
        """Keys that what waits makes special, and a pool row with the key, -1 if not needed.

        A key with a displaced row is special when it has steps. A key that waits for columns is
        special as soon as any move is seen: through chains it may be the one.
        """
        found = dict.fromkeys(self.displaced, -1)
        if any(leave.new_key is not None for leave in leaves):
            found.update({change[0]: row for change, (_, row) in self.awaited.items()})
        return found

    def settle(
        self, special: dict[bytes, Special], base: dict[bytes, NetChange]
    ) -> list[NetChange]:
        """Final rows of the special keys, those that did not change left out."""
        rows: dict[bytes, NetChange | None] = {}
        self.special = special
        for key, one in special.items():
            rows[key] = self._walk(key, base.get(key), one.steps)
        for change, moved in sorted(self.moved.items(), key=lambda item: item[0][1]):
            self.moved[change] = replace(moved, image=self._filled(moved.old_key, moved.image))
        changed: list[NetChange] = []
        for key, row in rows.items():
            final = self._filled(key, row)
            for fill in special[key].fills:
                final = self._checked(key, _fill(final, fill), fill)
            if final is not None and final.unavailable and final.action != net_change.DELETE:
                self.partial[key] = final.barrier
            if final is not None and final is not base.get(key):
                changed.append(final)
                if row is not None and row.unavailable and not final.unavailable:
                    self.completed.append(final)
        return changed

    def _walk(self, key: bytes, row: NetChange | None, steps: list[Step]) -> NetChange | None:
        position, displaced = self.displaced.pop(key, (b"", None))
        shared = bool(position)
        state = RowState(row, displaced)
        for step in steps:
            same: Same = self.pool.same
            if self._is_of_two(state, step) and not self.pool.whole(net_of(step)):
                same = same if self._is_whole(step) else _unlike
                if not self.full:  # only likely, then
                    self._doubt(key, step)
            after, left = net_change.apply_step(state, step, same=same)
            if not isinstance(step, NetChange) and step.net.position <= self.applied_close:
                left = None  # the row may be ahead of this step
                self._doubt(key, step)
            if not isinstance(step, NetChange) and not positions.is_ordered(step.net.position):
                self._doubt(key, step)  # what else its transaction did to these keys is not known
            if self.stale is None or key in self.stale:
                left = None  # what misses an event has nothing to give
            if isinstance(step, KeyLeft) and step.new_key is not None:
                self._leave((step.new_key, step.net.position), key, left)
            elif isinstance(step, KeyArrived) and after is not state:
                self.awaited[_arrived(key, step.net.position)] = (step.old_key, step.net.row)
            if after is not state and _is_back(after.row, step):
                self.reread.add(key)  # a sweep may be past its position, and no chunk's row counts
            if after is not state and self._may_be_of_another(state, step):
                self.reread.add(key)
            shared = shared or after.displaced is not None
            state, position = after, net_of(step).position
        if shared:
            self.displaced[key] = (position, state.displaced)
        return state.row

    def _is_of_two(self, state: RowState, step: Step) -> bool:
        """Say whether a delete finds the row that a create brought and the one it displaced."""
        row, gone = state.row, net_of(step)
        return (
            gone.action == net_change.DELETE
            and row is not None
            and row.action != net_change.DELETE
            and state.displaced is not None
            and positions.one_transaction(row.position, gone.position)
        )

    def _may_be_of_another(self, state: RowState, step: Step) -> bool:
        """Say whether a delete may mean a row that the table does not know, not the one it finds.

        Under a deferrable key, where deletes show whole rows, the create of the same transaction
        may have displaced a row that the table lacks or has no more. The delete is then of that
        row, or that row is back: no chunk's row counts.
        """
        row = state.row
        return (
            isinstance(step, KeyLeft)
            and row is not None
            and row.op == "c"
            and state.displaced is None
            and row.position < step.net.position
            and positions.one_transaction(row.position, step.net.position)
            and self._is_whole(step)
        )

    def _is_whole(self, step: Step) -> bool:
        """Say whether a delete shows the whole row it means, and not its key alone.

        A row of nulls shows no more than its key. Then others of the batch tell, or the row as it
        arrives under its new key: it has nothing but nulls there either, or is not known.
        """
        if self.full is None:
            steps = (other for one in self.special.values() for other in one.steps)
            self.full = any(isinstance(s, KeyLeft) and self.pool.whole(s.net) for s in steps)
        if self.full or not isinstance(step, KeyLeft) or step.new_key is None:
            return self.full
        arriving = self.special.get(step.new_key)
        return not any(
            isinstance(other, KeyArrived)
            and positions.left_at(other.net.position) == step.net.position
            and self.pool.whole(other.net)
            for other in (arriving.steps if arriving else ())
        )

    def _doubt(self, key: bytes, step: Step) -> None:
        self.reread.add(key)
        if not isinstance(step, NetChange):
            other = step.new_key if isinstance(step, KeyLeft) else step.old_key
            if other:
                self.reread.add(other)

    def _leave(self, change: KeyChange, old_key: bytes, image: NetChange | None) -> None:
        """A delete that comes again finds nothing: what it found the first time counts."""
        known = self.moved.get(change)
        if known is None or known.image is None:
            self.moved[change] = _Moved(old_key, image)

    def _filled(self, key: bytes, row: NetChange | None) -> NetChange | None:
        """`row` with the columns that the move it arrived by can give."""
        if row is None or row.barrier is None or not row.unavailable:
            return row
        source = self.moved.get(_arrived(key, row.barrier))
        if source is None or source.image is None:
            return row
        left = row.unavailable & source.image.unavailable
        if left == row.unavailable:
            return row
        given = {name: source.image.cell(name) for name in row.unavailable - left}
        return replace(
            row,
            cells={**row.cells, **given},
            unavailable=left,
            missing=row.missing & left,
            barrier=row.barrier if left else None,
        )

    def _checked(self, key: bytes, row: NetChange | None, fill: NetChange) -> NetChange | None:
        """A row that may miss an event, without what it may have kept from before that event.

        An event that lacks a column keeps the row's. Where a chunk has another value of it, only
        one more read can tell whether the row is ahead of the chunk or behind the source; chunks
        from before the row's newest event cannot, hence the barrier.
        """
        missed = self.stale is None or key in self.stale
        if not missed or row is None or row.action == net_change.DELETE:
            return row
        doubtful = self.pool.kept_otherwise(row, fill)
        if not doubtful:
            return row
        return replace(
            row,
            cells={**row.cells, **dict.fromkeys(doubtful, -1)},
            unavailable=row.unavailable | doubtful,
            missing=row.missing | doubtful,
            barrier=row.position,
        )

    def pack(self) -> pa.Table | None:
        """Return what later batches need: halves without the other, moves that may get columns."""
        open_changes: set[KeyChange] = set()
        items: list[change_batch.PacketRecord] = []
        kept: set[KeyChange] = set()
        for change in sorted(self.moved.keys() | self.awaited.keys(), key=lambda one: one[1]):
            key, position = change
            moved = self.moved.get(change)
            image = moved.image if moved else None
            partial = image is not None and bool(image.unavailable)
            if self.settled is not None and position < self.settled:
                if change in self.awaited and (image is None or partial):
                    self.reread.add(key)  # nothing will give its columns
                continue
            if moved is None or (
                image is not None
                and partial
                and _arrived(moved.old_key, image.barrier) in open_changes
            ):
                open_changes.add(change)
            elif change in self.awaited:
                if partial:
                    self.reread.add(key)  # what it waited for is below a truncate, or in vain
                continue
            kept.add(change)
            if moved is not None:
                items.append(
                    change_batch.PacketRecord(
                        change_batch.MOVED, key, position, image, moved.old_key
                    )
                )
            if change in self.awaited:
                old_key, row = self.awaited[change]
                net = NetChange(net_change.UPSERT, "c", position, row=row)
                items.append(
                    change_batch.PacketRecord(change_batch.AWAITED, key, position, net, old_key)
                )
        for key, (position, found) in self.displaced.items():
            if self.settled is None or position >= self.settled:
                items.append(
                    change_batch.PacketRecord(change_batch.DISPLACED, key, position, found)
                )
        self.reread |= {key for key, at in self.partial.items() if _arrived(key, at) not in kept}
        if not items:
            return None
        packet = change_batch.build(items, self.pool.rows(), table="", key_columns=self.pool.key)
        numbers = self.pool.schema_ids([item.net.row if item.net else -1 for item in items])
        return packet if numbers is None else change_batch.with_schema_ids(packet, numbers)


def _arrived(key: bytes, position: bytes | None) -> KeyChange:
    """Return the key change by which a row arrived at a position; that of none without one."""
    return key, positions.left_at(position) if position else b""


def _unlike(_row: NetChange, _image: NetChange) -> bool:
    return False


def _is_back(row: NetChange | None, step: Step) -> bool:
    """Say whether a row that a create had displaced is there again, at the position it had."""
    return (
        net_of(step).action == net_change.DELETE
        and row is not None
        and row.action != net_change.DELETE
        and row.position < net_of(step).position
    )


def _fill(row: NetChange | None, fill: NetChange) -> NetChange | None:
    """`row` with its unavailable columns from a chunk's row of the same incarnation."""
    if row is None or row.action == net_change.DELETE or not row.unavailable:
        return row
    if row.barrier is not None and row.barrier > fill.position:
        return row
    given = dict.fromkeys(row.unavailable, fill.row)
    return replace(
        row,
        cells={**row.cells, **given},
        unavailable=net_change.NOTHING,
        missing=net_change.NOTHING,
        barrier=None,
    )
