"""Reasons why a table of the lake does not hold all that the stream has read of it; pure.

That everything up to a place of the log was read says nothing of a table that has stopped, that
catches up, of which rows have never been read, or are to be read again. `hindrance` says which.
"""

from typing import Final

import msgspec

from lakemark.errors import LakemarkError
from lakemark.model import positions
from lakemark.state import table_parts
from lakemark.state.tables import CATCHING_UP, PAUSED, STREAMING, PipelineState, TableState


class Hindrance(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reason why a table does not show something yet.

    Attributes:
        code: stable name; `BEHIND` unless the table has one of its own.
        reason: half a sentence.
        hint: what to do; empty where nothing is to be done but to wait.
    """

    code: str
    reason: str
    hint: str = ""

    @classmethod
    def of(cls, error: LakemarkError) -> "Hindrance":
        """Return the hindrance that an error is."""
        return cls(error.code, error.message, error.hint)


BEHIND: Final = "table-behind"
WAITING: Final = Hindrance(
    "table-waiting",
    "nothing of it has come yet",
    "wait for its first change, or start a snapshot of it",
)
LEFT: Final = Hindrance(
    "not-selected",
    "the configuration no longer names it",
    "name it again in source.tables, start, and snapshot it",
)


def hindrance(state: PipelineState, table: str, *, own_whole: bool) -> Hindrance | None:
    """Return what keeps a table from showing all that was read of it; None if nothing does.

    Args:
        state: after a batch, durable.
        table: its name.
        own_whole: whether the connector's own snapshots leave out no row.
    """
    if table in state.left:
        return LEFT
    entry = state.tables.get(table)
    if entry is None:
        return WAITING
    if entry.state != STREAMING:
        return _stopped(table, entry)
    return _doubt(table, entry, own_whole=own_whole)


def _doubt(table: str, entry: TableState, *, own_whole: bool) -> Hindrance | None:
    if entry.files.rebuild:
        return Hindrance(BEHIND, entry.rebuilding())
    whole = entry.repair.complete and (
        entry.repair.complete != table_parts.BY_CONNECTOR or own_whole
    )
    if not whole:
        return Hindrance(
            BEHIND,
            "its rows from before its events have not all been read yet",
            f"wait for its snapshot, or: lakemark snapshot start {table}",
        )
    if entry.repair.resnapshot:
        return Hindrance(
            BEHIND,
            entry.repair.resnapshot,
            f"wait until it was read again, or: lakemark snapshot start {table}",
        )
    if entry.repair.stale() != frozenset():
        return Hindrance(
            BEHIND,
            "events did not bring all values of some of its rows, which are to be read again",
            f"it happens by itself where a snapshot can, else: lakemark snapshot start {table}",
        )
    return None


def _stopped(table: str, entry: TableState) -> Hindrance:
    if entry.state == CATCHING_UP:
        return Hindrance(BEHIND, entry.reason or "it catches up with the stream")
    if entry.state == PAUSED:
        reason = entry.reason or "it is paused"
        return Hindrance(BEHIND, reason, entry.hint or f"lakemark table resume {table}")
    return Hindrance(entry.code, entry.reason, entry.hint)


def passed(state: PipelineState, table: str, *, epoch: int) -> bytes:
    """Return the position that every known partition of a table's only topic has passed.

    Args:
        state: after a batch.
        table: its name.
        epoch: the newest of its log, as `positions.epoch_number` has it.

    Returns:
        empty if it is not known, of an older epoch, or of no event of the stream.
    """
    entry = state.tables.get(table)
    if entry is None or len(entry.topics) != 1:
        return b""
    (topic,) = entry.topics
    applied = state.applied.get(topic, {})
    known = [applied.get(partition) for partition in state.offsets.get(topic, {})]
    reached = [one.reached().position for one in known if one is not None]
    if not reached or len(reached) < len(known):
        return b""
    lowest = min(reached)
    newest = positions.epoch_of(positions.of_epoch(epoch, b""))
    is_newest = all(positions.epoch_of(one) == newest for one in reached)
    return lowest if is_newest and all(map(positions.is_of_stream, reached)) else b""
