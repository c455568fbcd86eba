"""From packets to a write set: one table, one batch, one row per key.

Pure: it reads the table through a function. In order:

1. the row images of all packets become one pool; the truncate floor drops what lies below it;
2. keys whose packets say everything go straight through, column by column;
3. stretches of one key from several packets are composed (`changes.then`);
4. keys that take part in key changes start from the table's row and take their steps one by one
   (`changes.advance`); what a delete with a new key leaves behind is a *move*;
5. rows that arrived with unavailable columns take them from their move, chains included: now, or
   in a later batch when the two halves arrive apart (`Resolution.pending`);
6. the result is laid out as the write set of the engines.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemark import changes, packets, positions
from lakemark.changes import Arrive, Leave, Net, State, Step
from lakemark.sink.names import CDC
from lakemark.sink.pool import Pool, cdc_type

__all__ = ["CDC", "Part", "ReadRows", "Resolution", "cdc_type", "resolve"]

ReadRows = Callable[[pa.Table], pa.Table]
KeyChange = tuple[bytes, bytes]  # new key and position name it


@dataclass(frozen=True, slots=True)
class Part:
    """A packet and the Kafka partition it came from: parts of one compose in `order`."""

    partition: str
    order: int
    packet: pa.Table


@dataclass(frozen=True, slots=True)
class Resolution:
    """What one batch does to one table.

    Attributes:
        write_set: rows for the engine, see `sink/write_set.py`; one per key.
        truncate: position below which rows are removed first; None = no new truncate.
        pending: what later batches need of this one's key changes, as a packet; None = nothing.
        unavailable: rows of the write set that still have unavailable columns.
        dropped: changes below the truncate floor.
    """

    write_set: pa.Table
    truncate: bytes | None
    pending: pa.Table | None
    unavailable: int
    dropped: int


def resolve(
    parts: Sequence[Part],
    *,
    floor: bytes | None,
    pending: pa.Table | None,
    read_rows: ReadRows,
    deletes: str,
    settled: bytes | None = None,
) -> Resolution:
    """The write set of one table's packets.

    Guarantees: a batch that is repeated from the table as it was before (whether or not truncated
    already) gives the same result. On a table that has the batch already it must not be called.

    Args:
        parts: all packets of the table in this batch.
        floor: position of the newest truncate applied before.
        pending: what earlier batches left (`Resolution.pending`).
        read_rows: given a table of key columns, the lake's rows with these keys, `_cdc` included,
            all columns under the source's names.
        deletes: `hard` or `soft`.
        settled: every partition of the table's topic has passed this position: what waits for the
            other half of a key change below it waits in vain and is forgotten.

    Raises:
        TableError: `schema-incompatible`: the packets' own types do not go together.
    """
    ordered = sorted(parts, key=lambda part: (part.partition, part.order))
    tables = [part.packet for part in ordered]
    if pending is not None:
        tables.append(pending)
    pool = Pool(tables, packets.key_columns(tables), deletes=deletes)
    truncate = max(_truncates(tables), default=None)
    if truncate is not None and floor is not None and truncate <= floor:
        truncate = None  # one that comes again
    floor = truncate or floor
    batch = _Batch(pool, floor)
    for number, part in enumerate(ordered):
        batch.add(part, pool.offsets[number])
    waiting = _Waiting(pool, floor, settled)
    if pending is not None:
        waiting.load(pending, pool.offsets[-1])
    nets, special = batch.compose(waiting)
    if special:
        nets += waiting.settle(special, _read(special, pool, read_rows, floor))
    write_set = pool.simple_rows(batch.plain_rows())
    if nets:
        write_set = pa.concat_tables([write_set, pool.net_rows(nets)])
    unknown = sum(1 for net in nets if (net.missing if net.base else net.unavailable))
    return Resolution(write_set, truncate, waiting.pack(), unknown, batch.dropped)


def _truncates(tables: Sequence[pa.Table]) -> list[bytes]:
    found: list[bytes] = []
    for table in tables:
        which = pc.equal(table.column("record"), packets.TRUNCATE)
        found += table.column("position").filter(which).to_pylist()
    return found


def _below(position: bytes, floor: bytes | None) -> bool:
    return floor is not None and positions.below_truncate(position, floor)


@dataclass(slots=True)
class _Special:
    """A key that starts from the table's row: its steps, and a pool row with its key columns."""

    row: int
    steps: list[Step] = field(default_factory=list)


def _read(
    special: dict[bytes, _Special], pool: Pool, read_rows: ReadRows, floor: bytes | None
) -> dict[bytes, Net]:
    """The table's rows of special keys, without those that a truncate removes."""
    rows = read_rows(pool.key_table([one.row for one in special.values()]))
    if not rows.num_rows:
        return {}
    found = pool.add_lake_rows(rows)
    return {key: net for key, net in found.items() if not _below(net.position, floor)}


# -- packets → plain rows, nets and steps by key -------------------------------------------------


@dataclass(slots=True)
class _Batch:
    """The records of a batch by key.

    Attributes:
        plain: pool row, part and place in the part of a key's only record, if that says everything.
        rest: partition, pool row and step of every record of the other keys, in any order: pool
            rows of one partition are in log order.
    """

    pool: Pool
    floor: bytes | None
    dropped: int = 0
    plain: dict[bytes, tuple[int, Part, int]] = field(default_factory=dict)
    rest: dict[bytes, list[tuple[str, int, Step]]] = field(default_factory=dict)

    def add(self, part: Part, offset: int) -> None:
        """Adds a part; parts come in the order of (partition, order)."""
        packet = part.packet
        simple = _simple_mask(packet)
        names = packet.column("key").to_pylist()
        at_position = packet.column("position").to_pylist()
        rest = []
        for at in np.flatnonzero(simple).tolist():
            if _below(at_position[at], self.floor):
                self.dropped += 1
            elif names[at] in self.plain or names[at] in self.rest:
                rest.append(at)
            else:
                self.plain[names[at]] = (offset + at, part, at)
        rest += np.flatnonzero(~simple).tolist()
        if rest:
            self._add_steps(part, np.array(sorted(rest)), offset)

    def _add_steps(self, part: Part, at: np.ndarray, offset: int) -> None:
        for record in packets.records_of(part.packet, at, offset=offset):
            if record.net is None:
                continue
            if _below(record.position, self.floor):
                self.dropped += 1
                continue
            self.take_out(record.key)
            found = self.rest.setdefault(record.key, [])
            found.append((part.partition, record.net.row, _step(record, record.net)))

    def take_out(self, key: bytes) -> None:
        """A plain key becomes one that composes."""
        found = self.plain.pop(key, None)
        if found is not None:
            row, part, at = found
            (record,) = packets.records_of(part.packet, np.array([at]), offset=row - at)
            if record.net is not None:
                self.rest[key] = [(part.partition, row, record.net)]

    def plain_rows(self) -> list[int]:
        """Pool rows that go straight through."""
        return [row for row, _, _ in self.plain.values()]

    def compose(self, waiting: "_Waiting") -> tuple[list[Net], dict[bytes, _Special]]:
        """Nets that the engine applies alone, and keys that need the table's row."""
        watched = waiting.watched(
            step for found in self.rest.values() for *_, step in found if isinstance(step, Leave)
        )
        for key in watched:
            self.take_out(key)
        nets: list[Net] = []
        special: dict[bytes, _Special] = {}
        for key, found in self.rest.items():
            steps = _in_order(found)
            whole = None if key in watched else _whole(steps)
            if whole is not None:
                nets.append(whole)
            else:
                special[key] = _Special(_net(steps[0]).row, steps)
        for key, row in watched.items():
            if row >= 0 and key not in special:
                special[key] = _Special(row)
        return nets, special


def _simple_mask(packet: pa.Table) -> np.ndarray:
    """Records that are whole upserts or deletes of one key."""
    simple = pc.and_(
        pc.equal(packet.column("record"), packets.NET),
        pc.and_(
            pc.not_equal(pc.fill_null(packet.column("action"), changes.INSERT), changes.INSERT),
            pc.and_(pc.invert(packet.column("base")), pc.is_null(packet.column("unavailable"))),
        ),
    )
    return np.asarray(simple.to_numpy(), dtype=bool)


def _step(record: packets.Record, net: Net) -> Step:
    if record.record == packets.LEAVE:
        return Leave(net, record.other_key)
    if record.record == packets.ARRIVE:
        return Arrive(net, record.other_key or b"")
    return net


def _net(step: Step) -> Net:
    return step if isinstance(step, Net) else step.net


def _in_order(found: list[tuple[str, int, Step]]) -> list[Step]:
    """Steps of one key: as they come inside a partition, by last position across partitions."""
    by_partition: dict[str, list[Step]] = {}
    for partition, _, step in sorted(found, key=lambda one: one[:2]):
        by_partition.setdefault(partition, []).append(step)
    stretches = sorted(by_partition.values(), key=lambda steps: _net(steps[-1]).position)
    return [step for steps in stretches for step in steps]


def _whole(steps: list[Step]) -> Net | None:
    """The steps as one net; None where one of them is a key change."""
    whole: Net | None = None
    for step in steps:
        if not isinstance(step, Net):
            return None
        whole = changes.then(whole, step)
    return whole


# -- key changes ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Moved:
    """What a key change left behind of the old key's row; None = nothing is known of it."""

    old_key: bytes
    image: Net | None


@dataclass(slots=True)
class _Waiting:
    """Halves of key changes: those of earlier batches and of this one.

    Attributes:
        moved: by key change: the delete was seen.
        awaited: by key change: the create was seen; its old key and a pool row of the new key.
        displaced: by key: position of its newest step, and the row that a create found there. None:
            that row's delete was seen; sent again, it must not reach the engine as a plain delete.
    """

    pool: Pool
    floor: bytes | None
    settled: bytes | None
    moved: dict[KeyChange, _Moved] = field(default_factory=dict)
    awaited: dict[KeyChange, tuple[bytes, int]] = field(default_factory=dict)
    displaced: dict[bytes, tuple[bytes, Net | None]] = field(default_factory=dict)

    def load(self, pending: pa.Table, offset: int) -> None:
        """Takes up what earlier batches left."""
        for record in packets.records_of(pending, np.arange(pending.num_rows), offset=offset):
            change = (record.key, record.position)
            other = record.other_key or b""
            if _below(record.position, self.floor):
                continue
            if record.record == packets.MOVED:
                self.moved[change] = _Moved(other, record.net)
            elif record.record == packets.AWAITED:
                if record.net is not None:
                    self.awaited[change] = (other, record.net.row)
            elif record.net is None or not _below(record.net.position, self.floor):
                self.displaced[record.key] = (record.position, record.net)

    def watched(self, leaves: Iterable[Leave]) -> dict[bytes, int]:
        """Keys that what waits makes special, and a pool row with the key, -1 if not needed.

        A key with a displaced row is special when it has steps. A key that waits for columns is
        special as soon as any move is seen: through chains it may be the one.
        """
        found = dict.fromkeys(self.displaced, -1)
        if any(leave.new_key is not None for leave in leaves):
            found.update({change[0]: row for change, (_, row) in self.awaited.items()})
        return found

    def settle(self, special: dict[bytes, _Special], base: dict[bytes, Net]) -> list[Net]:
        """Final rows of the special keys, those that did not change left out."""
        rows: dict[bytes, Net | None] = {}
        for key, one in special.items():
            rows[key] = self._walk(key, base.get(key), one.steps)
        for change, moved in sorted(self.moved.items(), key=lambda item: item[0][1]):
            self.moved[change] = replace(moved, image=self._filled(moved.old_key, moved.image))
        return [
            final
            for key, row in rows.items()
            if (final := self._filled(key, row)) is not None and final is not base.get(key)
        ]

    def _walk(self, key: bytes, row: Net | None, steps: list[Step]) -> Net | None:
        position, displaced = self.displaced.pop(key, (b"", None))
        shared = bool(position)
        state = State(row, displaced)
        for step in steps:
            after, left = changes.advance(state, step, same=self.pool.same)
            if isinstance(step, Leave) and step.new_key is not None:
                self._leave((step.new_key, step.net.position), key, left)
            elif isinstance(step, Arrive) and after is not state:
                self.awaited[key, step.net.position] = (step.old_key, step.net.row)
            shared = shared or after.displaced is not None
            state, position = after, _net(step).position
        if shared:
            self.displaced[key] = (position, state.displaced)
        return state.row

    def _leave(self, change: KeyChange, old_key: bytes, image: Net | None) -> None:
        """A delete that comes again finds nothing: what it found the first time counts."""
        known = self.moved.get(change)
        if known is None or known.image is None:
            self.moved[change] = _Moved(old_key, image)

    def _filled(self, key: bytes, row: Net | None) -> Net | None:
        """`row` with the columns that the move it arrived by can give."""
        if row is None or row.barrier is None or not row.unavailable:
            return row
        source = self.moved.get((key, row.barrier))
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

    def pack(self) -> pa.Table | None:
        """What later batches need: halves without the other, moves that may still get columns."""
        open_changes: set[KeyChange] = set()
        items: list[packets.Record] = []
        for change in sorted(self.moved.keys() | self.awaited.keys(), key=lambda one: one[1]):
            key, position = change
            if self.settled is not None and position < self.settled:
                continue
            moved = self.moved.get(change)
            image = moved.image if moved else None
            if moved is None or (
                image is not None
                and image.unavailable
                and (moved.old_key, image.barrier or b"") in open_changes
            ):
                open_changes.add(change)
            elif change in self.awaited:
                continue
            if moved is not None:
                items.append(packets.Record(packets.MOVED, key, position, image, moved.old_key))
            if change in self.awaited:
                old_key, row = self.awaited[change]
                net = Net(changes.UPSERT, "c", position, row=row)
                items.append(packets.Record(packets.AWAITED, key, position, net, old_key))
        for key, (position, found) in self.displaced.items():
            if self.settled is None or position >= self.settled:
                items.append(packets.Record(packets.DISPLACED, key, position, found))
        if not items:
            return None
        return packets.build(items, self.pool.rows(), table="", key_columns=self.pool.key)
