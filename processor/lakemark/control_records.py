"""What a batch's control records do to the tables' states; they are written and read in `control`.

    type                does
    ------------------  -----------------------------------------------------------------------
    table-pause         the table stops with this batch, see `tables.stop`
    table-resume        it catches up
    table-skip          it leaves out what it has not applied, up to the record's offsets
    table-read          rows that were in doubt have been read again: by key, or all of them
    table-resnapshot    any row may miss an event: it needs a snapshot
    new-epoch           the source's positions begin again
    others              of snapshots: they arm and disarm runs

Nothing here asks anybody, so that a batch that is repeated does the same with the same records.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import structlog

from lakemark import gaps, tables
from lakemark.reconcile import window
from lakemark.refresh import Refresh
from lakemark.tables import PAUSED, Offsets, PipelineState, TableState

log = structlog.get_logger(__name__)


def carry_out(
    records: Iterable[dict[str, Any]],
    state: PipelineState,
    *,
    before: PipelineState,
    start: Offsets,
    refresh: Refresh,
) -> None:
    """Does what the records ask for, one after the other.

    Args:
        records: as `control.read` gives them.
        state: the state being made.
        before: the state before the batch.
        start: Kafka offsets at which the batch began.
        refresh: told of tables that go on: the catalog may be asked about them again.
    """
    for record in records:
        kind, table = record.get("type"), str(record.get("table", ""))
        entry = state.tables.get(table)
        if kind == "table-pause" and entry is not None:
            tables.stop(
                state,
                table,
                to=tables.PAUSED,
                start=start,
                before=before,
                code="paused",
                reason="paused by a control record",
                hint=f"lakemark table resume {table}",
            )
        elif kind == "table-pause":
            log.warning("table.not_paused", table=table)
        elif kind == "table-resume":
            if tables.resume(state, table):
                refresh.again(table)
        elif kind == "table-skip":
            if tables.skip(state, table, upto=record.get("offsets")):
                refresh.again(table)
            else:
                log.warning("table.not_skipped", table=table)
        elif kind == "table-read" and entry is not None:
            tables.reread(entry, until=int(record.get("until", -1)), keys=record.get("keys"))
        elif kind == gaps.RESNAPSHOT and (entry or table in state.left):
            entry = entry or state.left[table].entry
            why = str(record.get("reason") or "events of it may be missing")
            tables.resnapshot(entry, why, state.batch)
            state.ignorable.pop(table, None)  # the catalog says whether they are gone still
        elif kind == "new-epoch":
            tables.new_epoch(state, start)
            log.warning("pipeline.new_epoch", epoch=len(state.epochs))
        else:
            window.arm(state.runs, record)


def first_state(
    records: Iterable[dict[str, Any]],
    known: Mapping[str, TableState],
    *,
    control: int,
    places: Offsets,
) -> PipelineState:
    """What a new checkpoint begins with: what people asked for, and have not taken back.

    Done again, old records would arm runs that are over and resume or skip what is no longer the
    same. Two things outlive the checkpoint that they were said to: a table that was paused stays
    so, and the source's epochs are counted on, since rows of the tables have positions in them.

    Args:
        records: all control records that there are.
        known: the tables' states as the checkpoint before said them last.
        control: offset behind these records.
        places: by topic and partition, where the tables begin that are not read now.
    """
    paused = {name: entry.state == PAUSED for name, entry in known.items()}
    epochs = 0
    for record in records:
        kind, table = record.get("type"), str(record.get("table", ""))
        if kind in {"table-pause", "table-resume", "table-skip"}:
            paused[table] = kind == "table-pause"
        epochs += kind == "new-epoch"
    state = PipelineState(control=control, epochs=[{} for _ in range(epochs)])
    for name, entry in known.items():
        if paused[name] and entry.topics:
            state.tables[name] = TableState(
                state=PAUSED,
                code="paused",
                reason="paused by a control record, before this checkpoint was begun",
                hint=f"lakemark table resume {name}",
                topics=list(entry.topics),
                from_offsets={topic: dict(places.get(topic, {})) for topic in entry.topics},
                rows=entry.rows,
                bytes=entry.bytes,
            )
    return state
