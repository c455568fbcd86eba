"""One row, the naive way: what every event does to it, one after the other, as a plain value."""

from dataclasses import dataclass, field, replace
from typing import Any

from lakemark.connectors.postgres import positions as lsns
from lakemark.model import net_change
from lakemark.model.net_change import NetChange
from tests.kit.log_model import STEP

COLUMNS = ("a", "b", "c")


@dataclass(frozen=True)
class Row:
    """A table's row: values of known columns, which are unknown, and of which incarnation."""

    values: dict[str, Any]
    unavailable: frozenset[str] = frozenset()
    barrier: bytes | None = None


@dataclass(frozen=True)
class Event:
    """kind: c, u, d, own (the connector's own snapshot), read (Debezium's incremental one)."""

    kind: str
    number: int
    values: dict[str, Any] = field(default_factory=dict)
    unavailable: frozenset[str] = frozenset()

    @property
    def position(self) -> bytes:
        at = STEP * self.number
        return lsns.pack(0, 0 if self.kind == "own" else at, at)


def happen(row: Row | None, event: Event) -> Row | None:
    """What the event does to the row."""
    known = {c: v for c, v in event.values.items() if c not in event.unavailable}
    if event.kind == "d":
        return None
    if event.kind == "read":
        return Row(known) if row is None else row
    if event.kind == "own":
        return Row(known)
    if event.kind == "c":
        return Row(known, event.unavailable, event.position if event.unavailable else None)
    if row is None:  # an update of a row that the mirror has never seen
        return Row(known, event.unavailable)
    kept = {c: v for c, v in row.values.items() if c in event.unavailable}
    left = row.unavailable & event.unavailable
    return Row({**known, **kept}, left, row.barrier if left else None)


def net_of(event: Event, pool: list[dict[str, Any]]) -> NetChange:
    """The event as the code under test sees it; its image goes into the pool."""
    pool.append({c: v for c, v in event.values.items() if c not in event.unavailable})
    place = {"position": event.position, "source_ts": event.number, "row": len(pool) - 1}
    if event.kind == "d":
        return net_change.delete(**place)
    if event.kind == "read":
        return net_change.incremental_read(**place)
    return net_change.upsert(
        op="r" if event.kind == "own" else event.kind,
        unavailable=event.unavailable,
        own_snapshot=event.kind == "own",
        **place,
    )


def apply(row: Row | None, net: NetChange | None, pool: list[dict[str, Any]]) -> Row | None:
    """What a merge does with a net change, by the contract of the engines."""
    if net is None:
        return row
    if net.action == net_change.DELETE:
        return None
    if net.action == net_change.INSERT and row is not None:
        return row
    values = {c: pool[net.cell(c)][c] for c in COLUMNS if c in pool[net.cell(c)]}
    if net.base and row is not None:
        kept = {c: v for c, v in row.values.items() if c in net.unavailable}
        values = {c: v for c, v in values.items() if c not in net.unavailable}
        left = row.unavailable & net.unavailable
        return Row({**values, **kept}, left, row.barrier if left else None)
    unknown = net.missing if net.base else net.unavailable
    values = {c: v for c, v in values.items() if c not in unknown}
    return Row(values, unknown, net.barrier if unknown else None)


def without_barrier(row: Row | None) -> Row | None:
    return None if row is None else replace(row, barrier=None)
