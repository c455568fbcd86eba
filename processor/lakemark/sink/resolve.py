"""From packets to a write set: one table, one batch, one row per key.

Pure: it reads the table through a function. In order:

1. the row images of all packets become one pool; the newest truncate drops what lies below it;
2. keys whose packets say everything go straight through, column by column;
3. stretches of one key from several packets are composed (`net_change.compose`);
4. keys that take part in key changes start from the table's row and take their steps one by one
   (`net_change.apply_step`); what a delete with a new key leaves behind is a *move*;
5. rows that arrived with unavailable columns take them from their move, chains included: now, or
   in a later batch when the two halves arrive apart (`Resolution.pending`); what is still missing
   then, a chunk's row that lost gives (`change_batch.FILL`); where a row that may miss an event has
   another value than that, its key is read again;
6. the result is laid out as the write set of the engines.

A snapshot's row shows its key as it was at some moment up to the chunk's close row
(`applied_close`), though its position is that of the open row. A key change from below it that
comes later may find a row that is ahead of it: it carries nothing over, and its keys are read
again.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model import change_batch, net_change, positions
from lakemark.model.change_batch import SWEEPS, Filed
from lakemark.model.net_change import KeyArrived, KeyLeft, NetChange, Step, net_of
from lakemark.sink.key_changes import PendingKeyChanges, Special, below
from lakemark.sink.names import CDC
from lakemark.sink.row_images import RowImages, cdc_type

__all__ = ["CDC", "Part", "ReadRows", "Resolution", "cdc_type", "resolve"]

ReadRows = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class Part:
    """A packet and the Kafka partition it came from: parts of one compose in `order`.

    Attributes:
        digest: checksum of the packet as it came.
        filed: rows of a chunk beside the packet, in a data file.
    """

    partition: str
    order: int
    packet: pa.Table
    digest: int = 0
    filed: Filed | None = None

    @property
    def is_sweep(self) -> bool:
        """Say whether it is a snapshot's truncate: it removes rows that the source has not."""
        return self.partition.startswith(SWEEPS)


@dataclass(frozen=True, slots=True)
class Resolution:
    """The effects of one batch on one table.

    Attributes:
        write_set: rows for the engine, see `sink/write_set.py`; one per key.
        truncate: position below which rows are removed first; None = no new truncate.
        pending: what later batches need of this one's key changes, as a packet; None = nothing.
        unavailable: rows of the write set that still have unavailable columns.
        dropped: changes below the newest truncate.
        reread: keys whose rows only the source can make whole again.
        completed: rows as in the write set, and whole: events have left them with unavailable
            columns, and no other event has the values. None = there are none.
    """

    write_set: pa.Table
    truncate: bytes | None
    pending: pa.Table | None
    unavailable: int
    dropped: int
    reread: frozenset[bytes] = frozenset()
    completed: pa.Table | None = None


def resolve(
    parts: Sequence[Part],
    *,
    truncated_at: bytes | None,
    pending: pa.Table | None,
    read_rows: ReadRows,
    deletes: str,
    settled: bytes | None = None,
    applied_close: bytes | None = None,
    stale: frozenset[bytes] | None = frozenset(),
    partial: bool = True,
) -> Resolution:
    """The write set of one table's packets.

    Guarantees: a batch that is repeated from the table as it was before (whether or not truncated
    already) gives the same result. On a table that has some of the batch already, key changes and
    fills may find less than they did: their keys are to be read again.

    Args:
        parts: all packets of the table in this batch.
        truncated_at: position of the newest truncate applied before.
        pending: what earlier batches left (`Resolution.pending`).
        read_rows: given a table of key columns, the lake's rows with these keys, `_cdc` included,
            all columns under the source's names.
        deletes: `hard` or `soft`.
        settled: every partition of the table's topic has passed this position: what waits for the
            other half of a key change below it waits in vain and is forgotten.
        applied_close: highest close row of the chunks that earlier batches applied.
        stale: keys whose rows miss an event and have not been read again yet; None = any may.
        partial: whether the table may have rows with unavailable columns.

    Raises:
        TableError: `schema-incompatible`: the packets' own types do not go together.
    """
    ordered = sorted(parts, key=lambda part: (part.partition, part.order))
    tables = [part.packet for part in ordered]
    if pending is not None:
        tables.append(pending)
    pool = RowImages(tables, change_batch.key_columns(tables), deletes=deletes)
    truncate = max(_truncates(tables), default=None)
    if truncate is not None and truncated_at is not None and truncate <= truncated_at:
        truncate = None  # one that comes again
    truncated_at = truncate or truncated_at
    batch = _Batch(ordered, truncated_at)
    if not (partial or any(is_partial(table) for table in tables)):
        batch.fills.clear()
    waiting = None
    if pending is not None or not batch.is_composed():
        missed = None if stale is None else stale | _missed(tables)
        waiting = PendingKeyChanges(pool, truncated_at, settled, applied_close or b"", missed)
    if waiting is not None and pending is not None:
        waiting.load(pending, pool.offsets[-1])
    nets, special = batch.compose(waiting)
    if waiting is not None and special:
        nets += waiting.settle(special, _read(special, pool, read_rows, truncated_at))
    write_set = pool.simple_rows(batch.plain)
    if nets:
        write_set = pa.concat_tables([write_set, pool.net_rows(nets)])
    unknown = sum(1 for net in nets if (net.missing if net.base else net.unavailable))
    if waiting is None:
        return Resolution(write_set, truncate, None, unknown, batch.dropped)
    left = waiting.pack()
    return Resolution(
        write_set,
        truncate,
        left,
        unknown,
        batch.dropped,
        frozenset(waiting.reread),
        pool.net_rows(waiting.completed) if waiting.completed else None,
    )


def is_partial(packet: pa.Table) -> bool:
    """Say whether any record has an unavailable column."""
    column = packet.column("unavailable")
    return bool(column.null_count < len(column))


def _truncates(tables: Sequence[pa.Table]) -> list[bytes]:
    found: list[bytes] = []
    for table in tables:
        which = pc.equal(table.column("record"), change_batch.TRUNCATE)
        found += table.column("position").filter(which).to_pylist()
    return found


def _missed(tables: Sequence[pa.Table]) -> frozenset[bytes]:
    """Keys of events that could not be decoded."""
    found = [
        t.filter(pc.equal(t.column("record"), change_batch.MISSED)).column("key") for t in tables
    ]
    return frozenset(key for keys in found for key in keys.to_pylist())


def _read(
    special: dict[bytes, Special], pool: RowImages, read_rows: ReadRows, truncated_at: bytes | None
) -> dict[bytes, NetChange]:
    """The table's rows of special keys, without those that a truncate removes."""
    rows = read_rows(pool.key_table([one.row for one in special.values()]))
    if not rows.num_rows:
        return {}
    found = pool.add_lake_rows(rows, special)
    return {key: net for key, net in found.items() if not below(net.position, truncated_at)}


# -- packets → plain rows, nets and steps by key -------------------------------------------------


class _Batch:
    """The records of a batch by key.

    Attributes:
        keys: of all records, in the order of the pool's rows.
        plain: pool rows of keys whose only record says everything.
        rest: partition, pool row and step of every record of the other keys, in any order: pool
            rows of one partition are in log order.
        fills: rows of chunks that lost, by key.
        dropped: number of changes below the newest truncate.
    """

    def __init__(self, ordered: Sequence[Part], truncated_at: bytes | None) -> None:
        names = change_batch.CONTROL.names
        control = pa.concat_tables(
            [change_batch.CONTROL.empty_table(), *(part.packet.select(names) for part in ordered)]
        )
        self.keys = control.column("key").combine_chunks()
        change = control.column("action").is_valid().to_numpy()
        low = change & _which_below(control.column("position"), truncated_at)
        self.dropped = int(np.count_nonzero(low))
        change &= ~low
        alone = change & _occurs_once(self.keys, change)
        self.plain = np.flatnonzero(alone & _simple_mask(control))
        self.rest: dict[bytes, list[tuple[str, int, Step]]] = {}
        self.fills: dict[bytes, list[NetChange]] = {}
        change[self.plain] = False
        offset = 0
        for part in ordered:
            at = np.flatnonzero(change[offset : offset + part.packet.num_rows])
            self._add_steps(part, at, offset)
            offset += part.packet.num_rows
        self._control = control

    def _add_steps(self, part: Part, at: np.ndarray, offset: int) -> None:
        for record in change_batch.records_of(part.packet, at, offset=offset):
            if record.net is None:
                continue
            if record.record == change_batch.FILL:
                self.fills.setdefault(record.key, []).append(record.net)
                continue
            found = self.rest.setdefault(record.key, [])
            found.append((part.partition, record.net.row, step_of(record, record.net)))

    def _take_out(self, keys: Iterable[bytes]) -> None:
        """Plain keys become ones that compose."""
        wanted = pa.array(keys, pa.binary())
        if not len(wanted):
            return
        out = np.asarray(pc.is_in(self.keys.take(pa.array(self.plain)), value_set=wanted))
        for record in change_batch.records_of(self._control, self.plain[out], offset=0):
            if record.net is not None:
                self.rest[record.key] = [("", record.net.row, record.net)]
        self.plain = self.plain[~out]

    def is_composed(self) -> bool:
        """Say whether all keys' records compose: no key changes, and no chunk's row that lost."""
        steps = (step for found in self.rest.values() for *_, step in found)
        return not self.fills and all(isinstance(step, NetChange) for step in steps)

    def compose(
        self, waiting: PendingKeyChanges | None
    ) -> tuple[list[NetChange], dict[bytes, Special]]:
        """Nets that the engine applies alone, and keys that need the table's row.

        Args:
            waiting: takes the latter; None where all records compose and nothing waits.
        """
        watched: dict[bytes, int] = {}
        if waiting is not None:
            every = (step for found in self.rest.values() for *_, step in found)
            watched = waiting.watched(step for step in every if isinstance(step, KeyLeft))
        self._take_out(watched)
        nets: list[NetChange] = []
        special: dict[bytes, Special] = {}
        for key, found in self.rest.items():
            steps = in_order(found)
            whole = None if key in watched or key in self.fills else _whole(steps)
            if whole is not None:
                nets.append(whole)
            else:
                special[key] = Special(net_of(steps[0]).row, steps)
        for key, row in watched.items():
            if row >= 0 and key not in special:
                special[key] = Special(row)
        for key, fills in self.fills.items():
            special.setdefault(key, Special(fills[0].row)).fills = fills
        return nets, special


def _which_below(column: pa.ChunkedArray, truncated_at: bytes | None) -> npt.NDArray[np.bool_]:
    """Mark the positions that a truncate at `truncated_at` removes."""
    if truncated_at is None:
        return np.zeros(len(column), dtype=bool)
    return positions.which_below_truncate(column, truncated_at)


def _occurs_once(names: pa.Array, counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Mark the keys that no other counted record has."""
    codes = names.dictionary_encode().indices.fill_null(-1).to_numpy()
    found: npt.NDArray[np.bool_] = (
        np.bincount(codes[counted] + 1, minlength=len(codes) + 1)[codes + 1] == 1
    )
    return found


def _simple_mask(control: pa.Table) -> npt.NDArray[np.bool_]:
    """Records that are whole upserts or deletes of one key."""
    simple = pc.and_(
        pc.equal(control.column("record"), change_batch.NET),
        pc.and_(
            pc.not_equal(
                pc.fill_null(control.column("action"), net_change.INSERT), net_change.INSERT
            ),
            pc.and_(pc.invert(control.column("base")), pc.is_null(control.column("unavailable"))),
        ),
    )
    return np.asarray(simple.to_numpy(), dtype=bool)


def step_of(record: change_batch.PacketRecord, net: NetChange) -> Step:
    """Return what a record of a change batch does to its key's row."""
    if record.record == change_batch.LEAVE:
        return KeyLeft(net, record.other_key)
    if record.record == change_batch.ARRIVE:
        return KeyArrived(net, record.other_key or b"")
    return net


def in_order(found: list[tuple[str, int, Step]]) -> list[Step]:
    """Return a key's steps: as they come inside a partition, by last position across them."""
    by_partition: dict[str, list[Step]] = {}
    for partition, _, step in sorted(found, key=lambda one: one[:2]):
        by_partition.setdefault(partition, []).append(step)
    stretches = sorted(by_partition.values(), key=lambda steps: net_of(steps[-1]).position)
    return [step for steps in stretches for step in steps]


def _whole(steps: list[Step]) -> NetChange | None:
    """The steps as one net; None where one of them is a key change."""
    whole: NetChange | None = None
    for step in steps:
        if not isinstance(step, NetChange):
            return None
        whole = net_change.compose(whole, step)
    return whole
