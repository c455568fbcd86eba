"""The effects of a batch's control records on the tables' states; see `model.control`.

    type                does
    ------------------  -----------------------------------------------------------------------
    table-pause         the table stops with this batch, see `tables.stop`
    table-resume        it catches up
    table-stop          it stops for the reason that the record gives, unless a person paused it
    table-skip          it leaves out what it has not applied, up to the record's offsets
    table-read          rows that were in doubt have been read again: by key, or all of them
    table-verified      a verify run has compared it, or could not: see `model.proof`
    table-resnapshot    any row may miss an event: it needs a snapshot
    table-rebuild       it is made anew beside the old one, see `tables.rebuild`
    table-fill          its older rows get values that no event tells, see `fills`
    new-epoch           the source's positions begin again
    others              of snapshots: they arm and disarm runs

Nothing here asks anybody, so that a batch that is repeated does the same with the same records.
Whatever a record holds, nothing raises: one that cannot be carried out is left out, and logged.
A table that is left out (`selection`) is paused, resumed and skipped as any other, for the day on
which it is taken back.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
import structlog

from lakemark.model import control
from lakemark.model.control import (
    NewEpoch,
    Record,
    TableFill,
    TablePause,
    TableRead,
    TableRebuild,
    TableResnapshot,
    TableResume,
    TableSkip,
    TableStop,
    TableVerified,
)
from lakemark.model.offsets import Offsets
from lakemark.model.proof import UNPROVED, TableProof
from lakemark.model.topic_owners import ONE_OWNER, TopicOwners
from lakemark.reconcile import window
from lakemark.state import handling, tables
from lakemark.state.handling import Mark
from lakemark.state.schema_refresh import Refresh
from lakemark.state.tables import PAUSED, PipelineState, TableState

log = structlog.get_logger(__name__)

_SHOWN: Final = 500  # characters of a reason that are kept


def decoded(value: bytes | None) -> dict[str, Any] | None:
    """Decode a record of the control topic; None if it is no JSON object. Never raises."""
    try:
        found = msgspec.json.decode(value or b"null")
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def guarded(
    records: Sequence[dict[str, Any]],
    carry: Callable[[Sequence[dict[str, Any]]], None],
    *,
    first: int,
    mark: Callable[[], Mark | None],
    note: Callable[[Mark | None], None],
    process: str = handling.PROCESS,
) -> list[dict[str, Any]]:
    """Carry the records out, but for commands over which a process has ended twice.

    The mark is written where there are commands of people, which is seldom; see `handling`.

    Args:
        records: of a batch, the same whenever it is repeated.
        carry: carries some of them out.
        first: offset at which the batch's control records begin.
        mark: reads the newest mark.
        note: keeps a mark.
        process: see `handling.past`.

    Returns:
        the commands that were left out.
    """
    places = {f"{first}+{at}": record for at, record in enumerate(records) if is_command(record)}
    if not places:
        carry(records)
        return []
    past = handling.past(mark(), list(places), process)
    gone = tuple(sorted(past.left))
    left = [places[place] for place in gone]
    kept = [record for record in records if not any(record is one for one in left)]
    groups = [[record] for record in kept] if past.apart else [kept]
    for group in groups:
        here = tuple(p for p, one in places.items() if any(one is record for record in group))
        if here:
            note(Mark(here, process, past.deaths, gone))
        carry(group)
    note(Mark(left=gone) if gone else None)
    return left


def _usable(records: Iterable[dict[str, Any]]) -> Iterator[Record]:
    """Yield the records of known types whose fields are of the right types."""
    for record in records:
        try:
            yield control.converted(record)
        except msgspec.ValidationError:
            if is_command(record):
                log.warning("control.unusable", type=record.get("type"))


def is_command(record: Mapping[str, Any]) -> bool:
    """Say whether a record asks for something of the tables; the others are of snapshots."""
    kind = record.get("type")
    return isinstance(kind, str) and kind in control.COMMANDS


def carry_out(
    records: Iterable[dict[str, Any]],
    state: PipelineState,
    *,
    before: PipelineState,
    start: Offsets,
    refresh: Refresh,
    can_fill: Callable[[str, TableState], bool] = lambda _, entry: entry.can_fill(),
    owners: TopicOwners = ONE_OWNER,
) -> None:
    """Carry out the records, one after the other.

    Args:
        records: as `control.read` gives them.
        state: the state being made.
        before: the state before the batch.
        start: Kafka offsets at which the batch began.
        refresh: told of tables that go on: the catalog may be asked about them again.
        can_fill: whether older rows of a table can get values, see `plans.can_fill`.
        owners: the connectors of topics.
    """
    for record in _usable(records):
        match record:
            case TablePause(table=table):
                _pause(state, table, start=start, before=before)
            case TableStop(table=table, code=code) if table and code:
                _stop(state, record, start=start, before=before)
            case TableResume(table=table):
                if _is_meant(state.entry_of(table), record.code) and tables.resume(state, table):
                    refresh.again(table)
            case TableSkip():
                _skip(state, record, refresh)
            case TableRead(table=table) | TableVerified(table=table) if table:
                _read(state, record)
            case TableResnapshot(table=table) if table:
                _doubt(state, table, record.reason)
            case TableRebuild(table=table) if table:
                _rebuild(state, record, refresh, start=start, before=before)
            case TableFill(table=table) if table:
                _fill(state, record, can_fill)
            case NewEpoch():
                _begin_epoch(state, record, start, owners)
            case _:
                window.arm(state.runs, record)


def _begin_epoch(
    state: PipelineState, record: NewEpoch, start: Offsets, owners: TopicOwners
) -> None:
    connector = record.connector
    if bool(connector) != bool(owners.several):  # of several, a command names one
        log.error("control.unusable", type="new-epoch", connector=connector)
        return
    if not record.follows:
        tables.new_epoch(state, start, connector, owners)
        epoch = len(state.log_of(connector).epochs)
        log.warning("pipeline.new_epoch", epoch=epoch, connector=connector)
    elif tables.follow_log(state, start, connector, owners):
        epoch = len(state.log_of(connector).epochs)
        log.info("pipeline.log_followed", epoch=epoch, connector=connector)


def _pause(state: PipelineState, table: str, *, start: Offsets, before: PipelineState) -> None:
    if state.entry_of(table) is None:
        log.warning("table.not_paused", table=table)
        return
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


def _is_meant(entry: TableState | None, code: str | None) -> bool:
    """Say whether a table is still stopped for the code that a command names, if it names one."""
    if not code:
        return True
    return entry is not None and entry.state == tables.ERRORED and entry.code == code


def _runs(entry: TableState | None, code: str | None) -> bool:
    """Say whether a table may be made anew without a person's command."""
    if code:
        return _is_meant(entry, code)
    return entry is not None and entry.runs()


def _doubt(state: PipelineState, table: str, reason: str | None) -> None:
    tables.doubt_all(state, table, (reason or "events of it may be missing")[:_SHOWN])


def _fill(
    state: PipelineState,
    record: TableFill,
    can_fill: Callable[[str, TableState], bool],
) -> None:
    """Note the values that older rows get; a table that cannot take them is read again."""
    table, fills = record.table, record.fills
    entry = state.tables.get(table)
    if entry is None or not fills or not can_fill(table, entry):
        _doubt(state, table, record.reason)
    elif not all(fill.is_sound() for fill in fills):
        log.warning("control.unusable", type="table-fill", table=table)
        _doubt(state, table, record.reason)
    else:
        entry.repair.fill(fills, batch=state.batch)


def make_up_for(record: Mapping[str, Any], state: PipelineState) -> None:
    """Have a table read again where the command that is left out was to mend it."""
    table = record.get("table")
    if record.get("type") == "table-fill" and isinstance(table, str):
        _doubt(state, table, "older rows lack columns")


def _stop(
    state: PipelineState, record: TableStop, *, start: Offsets, before: PipelineState
) -> None:
    """Stop a table because of its source; a person's pause stays, and so do tables left out."""
    table, reason = record.table, record.reason or ""
    entry = state.tables.get(table)
    if table in state.left or (entry is not None and entry.state == PAUSED):
        return
    tables.stop(
        state,
        table,
        to=tables.ERRORED,
        start=start,
        before=before,
        code=record.code,
        reason=reason[:_SHOWN],
        hint=(record.hint or "")[:_SHOWN],
    )
    log.error(
        "table.stopped", table=table, code=record.code, reason=record.reason, hint=record.hint or ""
    )


def _skip(state: PipelineState, record: TableSkip, refresh: Refresh) -> None:
    if tables.skip(state, record.table, upto=record.offsets):
        refresh.again(record.table)
    else:
        log.warning("table.not_skipped", table=record.table)


def _rebuild(
    state: PipelineState,
    record: TableRebuild,
    refresh: Refresh,
    *,
    start: Offsets,
    before: PipelineState,
) -> None:
    table, why = record.table, (record.reason or "a command asked for it")[:_SHOWN]
    upto = record.offsets
    if record.automatic and not _runs(state.tables.get(table), record.code):
        if not record.code:  # what a look saw that asks for it is older than a person's word
            _doubt(state, table, record.reason)
    elif record.cancel:
        done = tables.cancel_rebuild(state, table)
        log.info("table.rebuild_cancelled" if done else "table.not_rebuilt", table=table)
    elif tables.rebuild(state, table, record.id, why, start=start, before=before, upto=upto):
        refresh.again(table)
        log.info("table.rebuild", table=table, reason=why)
    else:
        log.warning("table.not_rebuilt", table=table)


def _read(state: PipelineState, record: TableRead | TableVerified) -> None:
    """Note that rows were read again; a table without rows is known once it was read in full."""
    table = record.table
    entry = state.entry_of(table)
    if isinstance(record, TableVerified):
        if entry is not None and not entry.files.rebuild:
            state.proofs[table] = state.proofs.get(table, UNPROVED).after(record)
        return
    keys, until = record.keys, -1 if record.until is None else record.until
    if entry is None and keys is None and record.until is not None:
        entry = state.tables[table] = TableState(since_batch=state.batch)
    if entry is not None:
        entry.repair.were_read(until=until, keys=keys)


def first_state(
    records: Iterable[dict[str, Any]],
    known: Mapping[str, TableState],
    *,
    control: int,
    places: Offsets,
    proofs: Mapping[str, TableProof] = MappingProxyType({}),
) -> PipelineState:
    """Return the state of a new checkpoint: the pauses that people asked for and did not take back.

    Done again, old records would arm runs that are over and resume or skip what is no longer the
    same. Three things outlive the checkpoint that they were said to: a table that was paused stays
    so; the source's epochs are counted on, since rows of the tables have positions in them; and a
    table that was proved was so.

    Args:
        records: all control records that there are.
        known: the tables' states as the checkpoint before said them last.
        control: offset behind these records.
        places: by topic and partition, where the tables begin that are not read now.
        proofs: of the tables, as the checkpoint before said them last.
    """
    paused = {name: entry.state == PAUSED for name, entry in known.items()}
    epochs: Counter[str] = Counter()
    for record in filter(is_command, records):
        kind, table = record["type"], str(record.get("table", ""))
        if record.get("automatic") or record.get("code"):  # a person's word stays
            continue
        if kind in {"table-pause", "table-resume", "table-skip", "table-rebuild"}:
            paused[table] = kind == "table-pause"
        if kind == "new-epoch":
            epochs[str(record.get("connector", ""))] += 1
    kept = {t: msgspec.structs.replace(proof, files_since=-1) for t, proof in proofs.items()}
    state = PipelineState(control=control, proofs=kept)
    for connector, count in epochs.items():
        state.own_log(connector).epochs = [{} for _ in range(count)]
    for name, entry in known.items():
        if paused[name] and entry.topics:
            made = state.tables[name] = TableState(
                state=PAUSED,
                code="paused",
                reason="paused by a control record, before this checkpoint was begun",
                hint=f"lakemark table resume {name}",
                topics=list(entry.topics),
            )
            made.progress.hold(entry.topics, places, {})
            made.size.measure(entry.size.rows, entry.size.bytes)
    return state
