"""The step from a batch's reports to the state after it; pure, so that a repeated batch agrees."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
import structlog

from lakemark.connectors.catalog_changes import Cascades
from lakemark.model import positions
from lakemark.model.agreement import disagreement
from lakemark.model.comparisons import ComparedChunk
from lakemark.model.decoding import CONVERTER_CHECK, LOG_CHANGED, REPORT, Report, TableReport
from lakemark.model.fills import UNSEEN
from lakemark.model.offsets import EARLIEST, Offsets
from lakemark.model.schema import TableSchema
from lakemark.reconcile import outputs
from lakemark.reconcile.chunks import Settled
from lakemark.reconcile.outputs import Size, Swept
from lakemark.settings.table_id import unqualified
from lakemark.sink.lake_plan import OUTCOME, TableOutcome
from lakemark.state import schema_refresh, selection, tables
from lakemark.state.table_parts import BY_CONNECTOR, StoredPosition
from lakemark.state.tables import PipelineState, TableState

log = structlog.get_logger(__name__)

TABLE_STOPPED: Final = "table-stopped"
SCHEMA_CODES: Final = frozenset({schema_refresh.UNKNOWN, "schema-check"})
UNREAD: Final = "records came of which not even the key can be read: any row may miss an event"
BEGUN_ANEW: Final = (
    "the connector began without offsets, as one does that was deleted or lost its slot: changes "
    "from before that may be missing, and rows deleted meanwhile still be here"
)
CASCADED: Final = (
    "rows of {table} were deleted, or changed what others refer to: a foreign key may have changed "
    "rows here, which is in no event"
)
MOVED: Final = (
    "a statement of the database moved rows without an event: a partition was truncated, or "
    "changed places with a table, or a tablespace was imported"
)
ADOPTED: Final = (
    "the checkpoint is new, and the table is not: changes since its last one may be missing, and "
    "rows deleted meanwhile still be here"
)
GONE: Final = "the Delta table was gone, and was made anew: its rows from before are missing"
MANY_BEGIN: Final = "many tables begin at once: it has its turn in one of the next batches"
RETRIED: Final = ("output-", "lake-", LOG_CHANGED, CONVERTER_CHECK)  # what mends itself
HALVES_LOST: Final = (
    "halves of key changes that waited beside the table are gone: rows may be missing or lack "
    "columns"
)
HINTS: Final = {
    "schema-unknown": "describe it in source.schema_file or set database.url, and start again; or "
    "let the connector write schemas (value.converter.schemas.enable=true); then: lakemark table "
    "resume {table}",
    "schema-stale": "add the new columns to source.schema_file, or set database.url; start again, "
    "then: lakemark table resume {table}",
    "schema-check": "correct its types in source.schema_file and start again; what does not fit "
    "then either becomes dead letters: lakemark table resume {table}",
    "no-key": "give the table a primary key, or name a unique one in message.key.columns",
    "key-type": "give the table a primary key of other types, or name other columns in "
    "message.key.columns; where a setting of the connector is in the way, change that. Then: "
    "lakemark table skip {table}",
    "key-out-of-range": "change the value in the database, to infinity where that is meant; then: "
    "lakemark table skip {table}",
    CONVERTER_CHECK: "it goes on by itself as soon as the connector can be asked",
    LOG_CHANGED: "it goes on by itself, unless another table has stopped with position-regressed",
    "position-regressed": "if the source was restored or failed over: {new_epoch}",
    "output-forbidden": "lakemark needs Write and Describe on the topic and on the transactional "
    "ids NAME.output.*, and Read on the groups NAME.output.*",
    "output-topic-missing": "make the topic, or let lakemark make it (Create on the cluster)",
    "output-record-too-large": "raise max.message.bytes of the output topic",
    "output-refused": "look at the settings of the output topic",
    "output-schema-refused": "make the change of the table compatible with what the subject has, "
    "or set another compatibility in the registry; then: lakemark table resume {table}",
    "too-many-bad-records": "look at the topic's records, and at the connector's converters; then: "
    "lakemark table resume {table}, or, if they can never be read: lakemark table skip {table}",
}


@dataclass(slots=True)
class Results:
    """The results of a step's tasks: of stretches, of tables, and the operator's outputs."""

    reports: list[Report] = field(default_factory=list)
    outcomes: list[TableOutcome] = field(default_factory=list)
    said: list[tuple[str, bytes]] = field(default_factory=list)

    def take(self, kind: str, blob: bytes) -> None:
        """Add one row of a task."""
        if kind == REPORT:
            self.reports.append(msgspec.msgpack.decode(blob, type=Report))
        elif kind == OUTCOME:
            self.outcomes.append(msgspec.msgpack.decode(blob, type=TableOutcome))
        else:
            self.said.append((kind, blob))


@dataclass(slots=True)
class News:
    """A batch's results for snapshots.

    Attributes:
        batch: the batch.
        settled: attempts that a shard decided.
        swept: sweeps that went out.
        restarts: tables that the connector reads anew.
        sizes: what the shards hold.
        compared: rows that were compared with a table's.
    """

    batch: int
    settled: list[Settled] = field(default_factory=list)
    swept: list[Swept] = field(default_factory=list)
    restarts: set[str] = field(default_factory=set)
    sizes: list[Size] = field(default_factory=list)
    compared: list[ComparedChunk] = field(default_factory=list)

    def held(self) -> dict[str, int]:
        """Return what the shards hold in all, and the largest state; empty without a run."""
        if not self.sizes:
            return {}
        return {
            "touches": sum(size.touches for size in self.sizes),
            "parts": sum(size.parts for size in self.sizes),
            "largest_state": max(size.bytes for size in self.sizes),
        }


@dataclass(slots=True)
class Left:
    """The work that is left after the reports of one step are in.

    Attributes:
        refresh: tables whose schema must be read from the catalog again, with the columns that the
            records have and the catalog did not.
        failed: outcomes of tables whose dependency was away; tried again by the caller.
        unread: tables whose connector must be asked for its converter.
    """

    refresh: dict[str, set[str]] = field(default_factory=dict)
    failed: list[TableOutcome] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)


def settle(
    state: PipelineState,
    before: PipelineState,
    start: Offsets,
    reports: Sequence[Report],
    outcomes: Sequence[TableOutcome],
    *,
    catalog: Callable[[str], bool],
    forwarded: bool = False,
) -> Left:
    """Take the reports and outcomes of one step into `state`.

    Args:
        state: the state being made.
        before: the state before the batch.
        start: Kafka offsets at which the batch began.
        reports: one per stretch.
        outcomes: one per table that had packets.
        catalog: whether a database catalog is there to be asked about a table's schema.
        forwarded: whether events go to output topics: those of a table that stops may stand there.
    """
    done = Left()
    stop = partial(
        tables.stop,
        state,
        start=start,
        before=before,
        forwarded=state.offsets if forwarded else None,
    )
    known_rows = {
        table: entry.size.rows for table, entry in before.tables.items() if entry.files.engine
    }
    _moved(state, before, start, reports)
    again = _read_again(reports, outcomes)
    for report in reports:
        _count(state, report, again, before=before, start=start)
        if report.regressed >= 0:
            seen = state.regressed.setdefault(report.topic, {})
            seen[report.partition] = min(
                report.regressed, seen.get(report.partition, report.regressed)
            )
    for report in reports:
        for table, found in report.tables.items():
            entry = state.tables.get(table)
            if entry is None or entry.state == tables.PAUSED:  # a person's word stays
                continue
            code, reason = found.stop or ("", "")
            if found.unknown_columns:
                code, reason = "schema-stale", _unknown_columns(found.unknown_columns)
            if not code:
                continue
            if catalog(table) and (code in SCHEMA_CODES or code == "schema-stale"):
                done.refresh.setdefault(table, set()).update(found.unknown_columns)
            if code == CONVERTER_CHECK:
                done.unread.add(table)
            command = tables.new_epoch_command(report.connector)
            hint = HINTS.get(code, "").format(table=table, new_epoch=command)
            stop(
                table,
                to=tables.ERRORED,
                code=code,
                reason=reason,
                hint=hint,
                retried=code.startswith(RETRIED),
            )
    for outcome in outcomes:
        _outcome(state, outcome, done, stop)
    _own_snapshots(state, known_rows, reports, outcomes)
    return done


def _unknown_columns(names: set[str]) -> str:
    listed = ", ".join(sorted(names)[:10])
    return f"its records have columns that its schema lacks: {listed}"


def _moved(
    state: PipelineState, before: PipelineState, start: Offsets, reports: Sequence[Report]
) -> None:
    found: dict[str, set[str]] = {}
    for report in reports:
        for table in report.tables.keys() & state.left.keys():
            if report.topic not in state.left[table].entry.topics:
                found.setdefault(table, set()).add(report.topic)
    for table, topics in found.items():
        selection.move(state, table, topics, start=start, before=before)


def _read_again(reports: Sequence[Report], outcomes: Sequence[TableOutcome]) -> set[str]:
    """Return the tables to which nothing of the step was applied."""
    stopped = {one.table for one in outcomes if one.code or one.needs or one.put_off}
    for report in reports:
        stopped |= {t for t, found in report.tables.items() if found.stop or found.unknown_columns}
    return stopped


def _count(
    state: PipelineState,
    report: Report,
    again: Collection[str],
    *,
    before: PipelineState,
    start: Offsets,
) -> None:
    """Count the events of the report's tables; events that are read again count then."""
    state.learn(report.learnt, report.connector)
    for table, found in report.tables.items():
        if not table or table in state.left:
            continue
        entry = state.tables.setdefault(table, TableState(since_batch=state.batch))
        if report.topic not in entry.topics:
            entry.topics.append(report.topic)
            if entry.state != tables.STREAMING:  # it begins there, for the day on which it goes on
                entry.progress.add_topic(report.topic, start, before.applied)
        if table not in again and (entry.state == tables.STREAMING or found.events):
            entry.size.count(found)
        entry.repair.doubt_keys(found.reread, batch=state.batch)
        if found.unread:
            entry.repair.doubt_all(UNREAD, state.batch)
        if found.doubt:
            entry.repair.doubt_all(found.doubt, state.batch)


def _outcome(
    state: PipelineState, outcome: TableOutcome, done: Left, stop: Callable[..., None]
) -> None:
    entry = state.tables.setdefault(outcome.table, TableState(since_batch=state.batch))
    if outcome.made and entry.size.committed_ms:
        entry.repair.doubt_all(GONE, state.batch)
    if outcome.made:
        entry.files.ask_again()
        tables.forget_proof(state, outcome.table)
    if outcome.put_off:
        stop(outcome.table, to=tables.CATCHING_UP, code="table-begins", reason=MANY_BEGIN)
        return
    if outcome.needs and not outcome.code:  # the driver has made the table fit: read it again
        stop(
            outcome.table,
            to=tables.CATCHING_UP,
            code="table-changed",
            reason="the table was made to fit new columns or types",
        )
        entry.files.fit(outcome.key)
        return
    if outcome.code:
        if outcome.retried:
            done.failed.append(outcome)
        entry.asked = entry.asked or outcome.code == UNSEEN
        stop(
            outcome.table,
            to=tables.ERRORED,
            code=outcome.code,
            reason=outcome.reason,
            hint=outcome.hint,
            retried=outcome.retried,
        )
        return
    entry.progress.truncated(outcome.truncate)
    if outcome.truncate and tables.is_of_older_epoch(state, outcome.table, outcome.truncate):
        entry.repair.doubt_all(tables.TRUNCATED, state.batch)
    entry.size.commit(outcome)
    entry.files.commit(outcome, state.batch)
    entry.pending.commit(outcome, state.batch)
    entry.repair.lacked_column(outcome.partial)
    entry.repair.doubt_keys(outcome.reread, batch=state.batch)
    if outcome.lost:
        entry.repair.doubt_all(HALVES_LOST, state.batch)


def _own_snapshots(
    state: PipelineState,
    known_rows: Mapping[str, int],
    reports: Sequence[Report],
    outcomes: Sequence[TableOutcome],
) -> None:
    rows_before = {outcome.table: outcome.rows_before for outcome in outcomes}
    lsns: dict[str, set[int]] = {}
    for report in reports:
        for table, found in report.tables.items():
            lsns.setdefault(table, set()).update(found.own_snapshots)
            entry = state.tables.get(table)
            if entry is not None and found.own_ends and not entry.code:
                entry.repair.loaded_by(BY_CONNECTOR)
    for table, found_lsns in lsns.items():
        entry = state.tables.get(table)
        if entry is not None and found_lsns and not entry.code:
            rows = known_rows.get(table, rows_before.get(table, 0))
            entry.repair.own_rows(found_lsns, rows_before=rows, batch=state.batch)
    for table, rows in rows_before.items():
        entry = state.tables[table]
        if rows and table not in known_rows and not entry.repair.resnapshot and not lsns.get(table):
            entry.repair.doubt_all(ADOPTED, 0)  # every run of this checkpoint answers it


def begun_anew(state: PipelineState, reports: Sequence[Report]) -> None:
    """Have all tables of a connector snapshotted again that began without offsets.

    Then it may have missed changes of any table. A beginning is newer than the one before. Where
    none is known, it is newer than what was streamed before it; a pipeline's first is not.

    Args:
        state: the state being made, with the applied positions of the batch before.
        reports: of the batch.
    """
    for connector in dict.fromkeys(report.connector for report in reports):
        own = [report for report in reports if report.connector == connector]
        if _begun_anew(state, own, connector):
            for table, entry in state.named_entries():
                if unqualified(connector, table) is not None:
                    entry.repair.doubt_all(BEGUN_ANEW, state.batch)


def _begun_anew(state: PipelineState, reports: Sequence[Report], connector: str) -> bool:
    log = state.own_log(connector)
    times: dict[int, int] = {}
    for report in reports:
        for number, time in report.beginnings.items():
            times[number] = min(time, times.get(number, time))
    times.pop(log.begun_at or log.begun, None)
    newest = max(times.values(), default=0)
    if newest <= log.begun:
        return False  # it goes on, or comes again
    known, log.begun = log.begun, newest
    log.begun_at = max(number for number, time in times.items() if time == newest)
    topics = set(state.applied)
    if connector:
        own = (e for name, e in state.named_entries() if unqualified(connector, name) is not None)
        topics &= {report.topic for report in reports}.union(*(entry.topics for entry in own))
    applied = [reached for topic in topics for reached in state.applied[topic].values()]
    streamed = [
        reached for reached in applied if positions.is_of_stream(bytes.fromhex(reached.position))
    ]
    older = any(reached.source_ts < newest for reached in streamed)
    return bool(known or older or len(times) > 1)


def agreed(
    state: PipelineState,
    reports: Sequence[Report],
    *,
    schemas: Mapping[str, TableSchema],
    ask: Callable[[str], None],
    rereads: Callable[[str], bool],
) -> None:
    """Take into the state whether tables' records and the database agree about their columns.

    Args:
        state: the state being made.
        reports: of the batch.
        schemas: tables known from catalog or file.
        ask: reads a table's schema again, where that was not done just now: the one that is known
            may be older than the records.
        rereads: whether rows of a table can be read again from its database.
    """
    newest: dict[str, TableReport] = {}
    for report in reports:
        for table, found in report.tables.items():
            known = newest.get(table)
            if found.brought and (known is None or found.newest_ts >= known.newest_ts):
                newest[table] = found
    for table, found in newest.items():
        entry = state.tables.get(table)
        if entry is not None:
            entry.hidden_nulls = found.hidden_nulls
            _maybe_null(
                entry,
                [one.tables[table] for one in reports if table in one.tables],
                batch=state.batch,
                rereads=rereads(table),
            )
            entry.disagrees = _disagreement(table, entry.disagrees, found, schemas, ask)


def _maybe_null(
    entry: TableState, found: Sequence[TableReport], *, batch: int, rereads: bool
) -> None:
    """Have rows read again that may have a default for NULL, where they are few; else count."""
    count = sum(one.maybe_null for one in found)
    keys = [key for one in found for key in one.maybe_null_keys]
    if not count or (
        count == len(keys) and rereads and entry.repair.may_be_null(keys, batch=batch)
    ):
        return
    entry.size.count_maybe_null(count)


def _disagreement(
    table: str,
    before: str,
    found: TableReport,
    schemas: Mapping[str, TableSchema],
    ask: Callable[[str], None],
) -> str:
    if not found.other_schema or table not in schemas:
        return ""
    records = TableSchema.from_json(found.other_schema)
    text = disagreement(records, schemas[table])
    if not text:
        return ""
    ask(table)
    text = disagreement(records, schemas[table])
    if text and text != before:
        log.warning("table.schemas_differ", table=table, reason=text)
    return text


def cascaded(
    state: PipelineState, reports: Sequence[Report], children: Mapping[str, Cascades]
) -> None:
    """Have tables read again of which a foreign key may have changed rows without an event.

    Args:
        state: the state being made.
        reports: of a step.
        children: by table those that change with it, see `catalog_changes.children_of`.
    """
    for report in reports:
        for table, found in report.tables.items():
            for child, updates in children.get(table, {}).items():
                if found.deletes or (updates and found.updates):
                    tables.doubt_all(state, child, CASCADED.format(table=table))


def moved(
    state: PipelineState,
    reports: Sequence[Report],
    moved_by: Callable[[str, str], Iterable[str]],
) -> None:
    """Have tables read again of which a statement has changed rows without an event.

    Args:
        state: the state being made.
        reports: of the batch.
        moved_by: such tables by a connector's qualifier and a statement from its schema topic.
    """
    for report in reports:
        for statement in report.statements:
            for table in moved_by(report.connector, statement):
                tables.doubt_all(state, table, MOVED)


def chunks(
    state: PipelineState, stopped: frozenset[str], said: Sequence[tuple[str, bytes]]
) -> News:
    """Return a batch's results for snapshots; a chunk counts only if its table streams.

    Args:
        state: the state being made, with all outcomes of the batch in it.
        stopped: tables that did not stream when the batch began.
        said: kinds and blobs, see `outputs.Output`.
    """
    stopped |= state.not_streaming()
    news = News(state.batch)
    for kind, blob in sorted(said):
        if kind == outputs.SETTLED:
            settled = msgspec.json.decode(blob, type=Settled)
            if settled.table in stopped and not settled.void:
                settled = msgspec.structs.replace(settled, void=TABLE_STOPPED)
            news.settled.append(settled)
        elif kind == outputs.SWEPT:
            swept = msgspec.json.decode(blob, type=Swept)
            void = TABLE_STOPPED if swept.table in stopped else ""
            news.swept.append(msgspec.structs.replace(swept, void=void))
        elif kind == outputs.COMPARED:
            news.compared.append(msgspec.msgpack.decode(blob, type=ComparedChunk))
        elif kind == outputs.SIZE:
            news.sizes.append(msgspec.json.decode(blob, type=Size))
        elif kind == outputs.RESTART:
            news.restarts.add(blob.decode())
    counted = {(done.attempt, done.shard) for done in news.settled if not done.void}
    news.compared = [
        _without_doubtful(one, state)
        for one in news.compared
        if (one.attempt, one.shard) in counted
    ]
    for done in news.settled:
        if not done.void and done.survivors + done.fills:
            entry = state.tables.setdefault(done.table, TableState(since_batch=state.batch))
            entry.progress.closed(done.hi)
    return news


def _without_doubtful(one: ComparedChunk, state: PipelineState) -> ComparedChunk:
    """Return what was found, without the rows that are to be read again: they are no surprise."""
    entry = state.tables.get(one.table)
    keys = entry.repair.reread_keys if entry is not None else {}
    left = [found for found in one.findings if found.key not in keys]
    known = len(one.findings) - len(left)
    return msgspec.structs.replace(
        one, findings=left, rows=one.rows - known, newer=one.newer + known
    )


def applied(state: PipelineState, reports: Sequence[Report]) -> None:
    """Take the partitions' new applied positions into the state."""
    for report in sorted(reports, key=lambda one: one.first):
        state.applied.setdefault(report.topic, {})[report.partition] = StoredPosition.of(report)


def start_offsets(
    before: PipelineState, end: Offsets, reports: Sequence[Report] | None = None
) -> Offsets:
    """Return the batch's first offsets: where the one before ended, or where its records begin.

    Args:
        before: the state before the batch.
        end: the batch's end offsets.
        reports: the batch's reports: a partition seen for the first time begins at its first
            record, or has none. None = not run yet: it begins at its earliest offset, or at 0 if
            its topic was known before.
    """
    ordered = sorted(reports or (), key=lambda one: -one.first)
    first = {(report.topic, report.partition): report.first for report in ordered}
    start: Offsets = {}
    for topic, partitions in end.items():
        known = before.offsets.get(topic, {})
        earliest = 0 if known else EARLIEST
        for partition, offset in partitions.items():
            unseen = earliest if reports is None else offset
            begin = known.get(partition, first.get((topic, partition), unseen))
            start.setdefault(topic, {})[partition] = begin
    return start


def applied_positions(reports: Sequence[Report]) -> dict[tuple[str, int], StoredPosition]:
    """Return the applied positions at the end of the stretches that were read."""
    return {
        (report.topic, report.partition): StoredPosition.of(report)
        for report in sorted(reports, key=lambda one: one.first)
    }


def loads(reports: Sequence[Report]) -> Mapping[str, int]:
    """Return the events per table: the load that the next batch's slots are balanced by."""
    found: dict[str, int] = {}
    for report in reports:
        for table, entry in report.tables.items():
            found[table] = found.get(table, 0) + entry.events
    return found
