"""Net changes: what a stretch of the log does to one row, as a value that composes.

The log of a key is a list of events; a `Net` is what any contiguous stretch of it amounts to.
`then` composes two neighbouring stretches and is associative, so it does not matter how the log is
cut into Kafka partitions, batches and catch-ups. Nets never hold cell values: they point at rows
of a pool of decoded images (`row`, and `cells` for columns that come from another row), so folding
is the same for every type.

Words used here:

* *unavailable* columns: those whose value the stretch does not know (TOAST placeholders). With
  `base` they keep what the table's row has; without it the row is a new incarnation (its insert is
  inside the stretch) and they are unknown until something fills them.
* *barrier*: position of the newest insert in the stretch: which incarnation the columns belong to.
* *move*: a key change. Debezium writes it as a delete of the old key (header `newkey`) and a create
  of the new one (header `oldkey`) with equal positions; the create takes its unavailable columns
  from the old key's image as of just below that position.

Source: Debezium's RelationalChangeRecordEmitter (key changes), UnchangedToastedPlaceholder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from lakemark import positions

UPSERT: Final = "upsert"
DELETE: Final = "delete"
INSERT: Final = "insert"  # only where the key has no row: Debezium's incremental reads

NOTHING: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Net:
    """What a stretch of one key's log does to its row.

    Attributes:
        action: UPSERT, DELETE or INSERT.
        op: op of the newest event of the stretch, as Debezium writes it.
        position: position of that event (20 bytes).
        source_ts: its source time, microseconds since the epoch.
        row: pool row of the image; of a delete, a row with the key's columns only.
        cells: columns that come from another pool row.
        unavailable: columns unknown to the stretch.
        missing: those of `unavailable` unknown even where the table has no row for the key.
        base: the unavailable columns are the table row's.
        force: applies whatever the table row's position: the stretch holds a row of the connector's
            own snapshot, whose positions are not comparable with what came before it.
        barrier: position of the insert that began the incarnation, where the stretch holds it; the
            move into this key at that position is where unavailable columns come from.
        moved_in: the newest event is a create with an old key (the only state in which a deferred
            key shift can delete the row that was there *before* it).
        existed: with `moved_in`, whether the key had a row before that create; None = look it up.
        displaced: with `moved_in`, the stretch before that create.
        conditional: a deferred shift undecided inside the stretch: the upsert holds if the table
            has a row from before it, else the row is deleted.
    """

    action: str
    op: str
    position: bytes
    source_ts: int = 0
    row: int = -1
    cells: Mapping[str, int] = field(default_factory=dict)
    unavailable: frozenset[str] = NOTHING
    missing: frozenset[str] = NOTHING
    base: bool = False
    force: bool = False
    barrier: bytes | None = None
    moved_in: bool = False
    existed: bool | None = None
    displaced: "Net | None" = None
    conditional: bool = False

    def cell(self, column: str) -> int:
        """Pool row that holds this column's value."""
        return self.cells.get(column, self.row)


@dataclass(frozen=True, slots=True)
class Move:
    """A delete with a new key: the image it leaves behind, as of just below its position.

    Attributes:
        image: the stretch before the delete; None = exactly the table's row of the old key.
        otherwise: with `conditional`, the image if the table had no row of the old key.
        conditional: see `Net.conditional`.
    """

    old_key: bytes
    new_key: bytes
    position: bytes
    image: Net | None
    otherwise: Net | None = None
    conditional: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """A create with an old key was applied: its move is needed no longer than this.

    `row` is the create's pool row: it holds the new key's columns.
    """

    old_key: bytes
    new_key: bytes
    position: bytes
    row: int


def upsert(  # noqa: PLR0913
    *,
    op: str,
    position: bytes,
    source_ts: int,
    row: int,
    unavailable: frozenset[str] = NOTHING,
    moved_in: bool = False,
    own_snapshot: bool = False,
) -> Net:
    """The net change of one c, u or own-snapshot r event; `moved_in`: a c with an old key."""
    created = op == "c" or own_snapshot
    return Net(
        action=UPSERT,
        op=op,
        position=position,
        source_ts=source_ts,
        row=row,
        unavailable=unavailable,
        missing=unavailable,
        base=bool(unavailable) and not created,
        force=own_snapshot,
        barrier=position if created else None,
        moved_in=moved_in,
    )


def incremental_read(*, position: bytes, source_ts: int, row: int) -> Net:
    """One read of Debezium's incremental snapshot: inserts where no row is, overwrites nothing."""
    return Net(INSERT, "r", position, source_ts=source_ts, row=row, barrier=position)


def delete(*, position: bytes, source_ts: int, row: int) -> Net:
    """One d event; its pool row holds the key's columns."""
    return Net(DELETE, "d", position, source_ts=source_ts, row=row)


def then(before: Net | None, after: Net) -> Net:
    """The stretch `before` followed by the stretch `after`; associative, None is its unit.

    A delete with a new key goes through `move_away` instead.
    """
    if before is None:
        return after
    force = before.force or after.force
    if after.action == DELETE:
        return replace(after, force=force)
    if after.action == INSERT:
        if before.action != DELETE:
            return before
        return replace(after, action=UPSERT, force=force)
    if after.moved_in and after.existed is None:
        after = replace(after, existed=_exists(before), displaced=before)
    if not after.base:
        return replace(after, force=force)
    return _patch(before, after, force=force)


def _exists(net: Net) -> bool | None:
    if net.conditional:
        return None
    return net.action != DELETE


def _patch(before: Net, after: Net, *, force: bool) -> Net:
    """An upsert with unavailable columns over what came before it in the stretch."""
    if before.action == DELETE:  # an update of a deleted row: a new incarnation, partly unknown
        return replace(after, force=force, base=False, barrier=after.position)
    cells = dict(after.cells)
    known = after.unavailable - before.unavailable
    for column in after.unavailable - before.missing:
        cells[column] = before.cell(column)
    if before.action == INSERT:  # known only if the table has no row: there the read is inserted
        unavailable = after.unavailable
        base = True
    else:
        unavailable = after.unavailable - known
        base = before.base and bool(unavailable)
    missing = after.missing & before.missing
    return replace(
        after,
        cells=cells,
        unavailable=unavailable,
        missing=missing & unavailable,
        base=base,
        force=force,
        barrier=before.barrier if before.barrier is not None else after.barrier,
    )


def move_away(
    before: Net | None, gone: Net, *, old_key: bytes, new_key: bytes
) -> tuple[Net, Move]:
    """A d event with a new key: the stretch it makes, and the image it leaves for the new key.

    In one statement that shifts unique keys under a deferrable constraint (`id = id + 1`) the
    events of key 2 are a create (old key 1) and *then* the delete of the row that was there before
    (new key 3). The delete must not take the created row with it. Whether it is a shift or a chain
    1 → 2 → 3 shows in whether key 2 had a row before the create: PostgreSQL can only violate the
    key for a while if it had.
    """
    position = gone.position
    shift = (
        before is not None
        and before.moved_in
        and not before.conditional
        and positions.major_of(before.position) == positions.major_of(position)
    )
    if before is None or not shift:
        return then(before, gone), Move(old_key, new_key, position, before)
    if before.existed is False:
        return then(before, gone), Move(old_key, new_key, position, before)
    stays = replace(before, moved_in=False, existed=None, displaced=None)
    if before.existed:
        return stays, Move(old_key, new_key, position, before.displaced)
    stays = replace(stays, conditional=True)
    move = Move(
        old_key, new_key, position, before.displaced, otherwise=before, conditional=True
    )
    return stays, move
