"""Net changes: what a stretch of the log does to one row, as a value that composes.

The log of a key is a list of events; a `NetChange` is what any contiguous stretch of it amounts to.
`compose` composes two neighbouring stretches and is associative, so it does not matter how the log
is cut into Kafka partitions, batches and catch-ups. Nets never hold cell values: they point at rows
of a pool of decoded images (`row`, and `cells` for columns that come from another row), so folding
is the same for every type.

Words used here:

* *unavailable* columns: those whose value the stretch does not know (TOAST placeholders). With
  `base` they keep what the table's row has; without it the row is a new incarnation (its insert is
  inside the stretch) and they are unknown until something fills them.
* *barrier*: position of the insert that began the incarnation, kept while columns are unavailable.
* *key change*: Debezium writes it as a delete of the old key (header `newkey`) and a create of the
  new one (header `oldkey`) with equal positions, perhaps in different Kafka partitions. The create
  takes its unavailable columns from the old key's image as of just below that position. Such
  events (`KeyLeft`, `KeyArrived`) do not compose: they need the table's row, so `apply_step` takes
  them one by one from it.

Source: Debezium's RelationalChangeRecordEmitter (key changes), UnchangedToastedPlaceholder.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from lakemark.model.positions import one_transaction

UPSERT: Final = "upsert"
DELETE: Final = "delete"
INSERT: Final = "insert"  # only where the key has no row: Debezium's incremental reads

NOTHING: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class NetChange:
    """The effect of a stretch of one key's log on its row.

    Attributes:
        action: UPSERT, DELETE or INSERT.
        op: op of the newest event of the stretch, as Debezium writes it.
        position: position of that event (20 bytes).
        source_ts: its source time, microseconds since the epoch.
        row: pool row of the image; of a delete, a row with at least the key's columns.
        cells: columns that come from another pool row.
        unavailable: columns unknown to the stretch.
        missing: those of `unavailable` unknown even where the table has no row for the key.
        base: the unavailable columns are the table row's.
        force: applies whatever the table row's position: the stretch holds a row of the connector's
            own snapshot, whose positions are not comparable with what came before it.
        barrier: with unavailable columns and without `base`, which incarnation they belong to:
            the move into this key at that position is where they come from. Without unavailable
            columns, a delete at that position does not concern this row.
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

    def cell(self, column: str) -> int:
        """Pool row that holds this column's value."""
        return self.cells.get(column, self.row)


@dataclass(frozen=True, slots=True)
class KeyLeft:
    """One d event of a key that takes part in key changes.

    `net.row` holds the before image as far as the replica identity knows it. `new_key` is the key
    under which the row lives on; None = it is gone.
    """

    net: NetChange
    new_key: bytes | None = None


@dataclass(frozen=True, slots=True)
class KeyArrived:
    """One c event whose row was known as `old_key` before."""

    net: NetChange
    old_key: bytes


Step = NetChange | KeyLeft | KeyArrived


def net_of(step: Step) -> NetChange:
    """The net of a step."""
    return step if isinstance(step, NetChange) else step.net


@dataclass(frozen=True, slots=True)
class RowState:
    """A key's row on its way through the steps.

    Attributes:
        row: the row as an upsert or delete that needs no base; None = the key never had a row.
        displaced: the row that the newest `KeyArrived` found there, as long as its transaction may
            still be open: only under a deferrable constraint can a key have two rows.
    """

    row: NetChange | None
    displaced: NetChange | None = None


def upsert(
    *,
    op: str,
    position: bytes,
    source_ts: int,
    row: int,
    unavailable: frozenset[str] = NOTHING,
    own_snapshot: bool = False,
) -> NetChange:
    """The net change of one c, u or own-snapshot r event."""
    created = op == "c"  # a connector's own snapshot reads whole rows
    return NetChange(
        action=UPSERT,
        op=op,
        position=position,
        source_ts=source_ts,
        row=row,
        unavailable=unavailable,
        missing=unavailable,
        base=bool(unavailable) and not created,
        force=own_snapshot,
        barrier=position if created and unavailable else None,
    )


def incremental_read(*, position: bytes, source_ts: int, row: int) -> NetChange:
    """One read of Debezium's incremental snapshot: inserts where no row is, overwrites nothing."""
    return NetChange(INSERT, "r", position, source_ts=source_ts, row=row)


def delete(*, position: bytes, source_ts: int, row: int) -> NetChange:
    """One d event; its pool row holds at least the key's columns."""
    return NetChange(DELETE, "d", position, source_ts=source_ts, row=row)


def compose(before: NetChange | None, after: NetChange) -> NetChange:
    """The stretch `before` followed by the stretch `after`; associative, None is its unit."""
    if before is None:
        return after
    force = before.force or after.force
    if after.action == INSERT:
        if before.action != DELETE:
            return before
        return replace(after, action=UPSERT, force=force)
    if after.action == UPSERT and after.base:
        return _patch(before, after, force=force)
    return after if after.force == force else replace(after, force=force)


def _patch(before: NetChange, after: NetChange, *, force: bool) -> NetChange:
    """An upsert with unavailable columns over what came before it in the stretch."""
    if before.action == DELETE:
        return replace(alone(after), force=force)
    if before.action == INSERT:  # the read counts only where the table has no row
        left, missing, base = after.unavailable, NOTHING, True
    else:
        left = after.unavailable & before.unavailable
        missing = after.unavailable & before.missing
        base = before.base and bool(left)
    cells = {name: cell for name, cell in after.cells.items() if name not in missing}
    for name in after.unavailable - missing:
        cells[name] = before.cell(name)
    return replace(
        after,
        cells=cells,
        unavailable=left,
        missing=missing,
        base=base,
        force=force,
        barrier=before.barrier if left else None,  # what has a base, has none
    )


def alone(net: NetChange) -> NetChange:
    """`net` where the table has no row for the key: what it does not know is not known."""
    if net.action == INSERT:
        return replace(net, action=UPSERT)
    return replace(net, base=False, unavailable=net.missing) if net.base else net


def apply_step(
    state: RowState, step: Step, *, same: Callable[[NetChange, NetChange], bool]
) -> tuple[RowState, NetChange | None]:
    """One step of a key: its next state, and the row that a `KeyLeft` took away (None = unknown).

    In one statement that shifts unique keys under a deferrable constraint (`id = id + 1`) the
    events of key 2 are a create (old key 1) and *then* the delete of the row that was there before
    (new key 3). The delete must not take the created row with it. Whether it is a shift or a chain
    1 → 2 → 3 shows in the before image: PostgreSQL refuses updates of a published table with a
    deferrable key unless its replica identity is FULL, so where there can be two rows the delete
    says which one it means.

    Args:
        state: the key's state, whole (`RowState`).
        step: what comes next. A step the state is ahead of changes nothing; a key change that
            comes again at the very same position neither. A delete at the position of a row that
            was read is none that comes again: the source was read there once more, without it.
        same: whether a row and the image of a delete agree in every column.
    """
    row = state.row
    net = step if isinstance(step, NetChange) else step.net
    if row is not None and not net.force:
        once = isinstance(step, KeyArrived) or net.action == DELETE
        is_event = row.op != "r"  # of a row that was read only another read has the position
        again = once and net.position in {row.barrier, row.position if is_event else None}
        if again or net.position < row.position:
            return state, None
    if net.action == DELETE:
        return _leave(state, net, same)
    if isinstance(step, KeyArrived):
        found = row if row is not None and row.action != DELETE else None
        return RowState(compose(row, net), found), None
    whole = alone(net) if row is None else compose(row, net)
    if (
        state.displaced is not None
        and row is not None
        and one_transaction(row.position, net.position)
    ):
        return RowState(whole, state.displaced), None
    return RowState(whole), None


def _leave(
    state: RowState, gone: NetChange, same: Callable[[NetChange, NetChange], bool]
) -> tuple[RowState, NetChange | None]:
    row, other = state.row, state.displaced
    if row is None or row.action == DELETE:
        return RowState(compose(row, gone)), None
    if other is None or not one_transaction(row.position, gone.position):
        return RowState(compose(row, gone)), row
    if same(row, gone):
        # The created row is meant: the one it displaced is back, as old as it is, so that a
        # truncate still on its way removes it. The barrier tells this delete if it comes again.
        back = other if other.unavailable else replace(other, barrier=gone.position)
        return RowState(replace(back, force=True)), row
    if same(other, gone):
        return RowState(replace(row, position=gone.position)), other
    return RowState(compose(row, gone)), row
