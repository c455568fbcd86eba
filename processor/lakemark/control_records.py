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

from collections.abc import Iterable
from typing import Any

import structlog

from lakemark import gaps, tables
from lakemark.reconcile import window
from lakemark.refresh import Refresh
from lakemark.tables import Offsets, PipelineState

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
