"""The pipeline: source → reconcile → sinks, as one query. Start reading here.

    change topics ─► decode ─► packets, reports, touches ─┐
    chunks topic ─────────────────────────────────────────┼─► operator (per shard) ─► foreachBatch
    control topic ────────────────────────────────────────┘

The stages run inside `foreachBatch`, when the batch (`Pipeline.batch`) has made their plan. A batch
has numbered steps. After a crash all of them are repeated from the same state; what a table or an
output topic has of the same content is left out then.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from time import monotonic
from typing import Any, Final

import msgspec
import structlog

from lakemark import failpoints, plans
from lakemark.connectors import catalog_policies
from lakemark.connectors.catalog_changes import Cascades
from lakemark.errors import DependencyError, LakemarkError
from lakemark.model.change_batch import FILE_MISSING
from lakemark.model.decoding import CONVERTER_CHECK, LOG_CHANGED, StretchPlan
from lakemark.model.events import ANY_SOURCE
from lakemark.model.fills import UNSEEN, Fill
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.offsets import Offsets
from lakemark.model.proof import PROPERTY, UNPROVED
from lakemark.model.schema import TableSchema
from lakemark.ops.status import BatchDone
from lakemark.plans import AppliedPositions
from lakemark.runners.batch_runner import BatchRunner, Query
from lakemark.runners.graceful_stop import GracefulStop
from lakemark.runners.trigger import Trigger
from lakemark.settings.config import Config
from lakemark.sink import formats, found_rows, kept_cuts
from lakemark.sink.lake_plan import TableOutcome
from lakemark.sink.names import folder_of
from lakemark.sink.table_format import TableFormat
from lakemark.source import offset_ranges
from lakemark.source.offset_ranges import OffsetRange
from lakemark.sources.cutting import Cutting
from lakemark.sources.schema_topics import SchemaTopics
from lakemark.sources.source_set import Sources
from lakemark.state import (
    advance,
    catch_up,
    control_records,
    new_partitions,
    schema_refresh,
    selection,
    stored_form,
    tables,
)
from lakemark.state.advance import Left, News, Results
from lakemark.state.checkpoint import Checkpoint
from lakemark.state.encoding import Forms
from lakemark.state.schema_refresh import Refresh
from lakemark.state.tables import PipelineState, TableState
from lakemark.tasks import BatchPlan, DecodePlan

log = structlog.get_logger(__name__)

PARTS: Final = ("plan", "tasks", "catchup", "state")  # of a batch, whose seconds are shown


@dataclass(slots=True)
class FillBudget:
    """The sizes of tables that are written anew in one batch, while all others wait.

    Attributes:
        done: tables that had their turn.
        bytes: of their data files.
    """

    done: set[str] = field(default_factory=set)
    bytes: int = 0

    def takes(self, table: str, entry: TableState) -> bool:
        """Count a table in; say whether it is still written anew in this batch."""
        self.done.add(table)
        self.bytes += entry.size.bytes
        return self.bytes <= tables.FILL_BYTES


@dataclass(slots=True)
class Pipeline:
    """One pipeline's query and what its batches need.

    Attributes:
        sources: the connectors.
        controls: reads the control records of a batch: (batch) -> decoded JSON objects.
        publish: writes the tables' states to the progress topic.
        planned: told which runs of snapshots are armed in the batch that begins, or were before.
        snapshots, done: told what a batch says of snapshots and what it did, once it is durable.
        topics_begin: told of topics that no batch before had.
        forms_change: told that events of tables are not of the form that was known.
        left_out: told of a command over which the process has ended twice.
        same_connector: asks at once whether a table's connector is as it was; no if it is away.
        schemas, forms: of the tables, as the catalog says; how columns are written.
        read_schemas: the schemas that snapshots read tables with, newer than the catalog perhaps.
        seen_columns: columns of tables that the newest look at the catalog has found.
        numerics: columns of type numeric by table, as it has found them.
        children: tables that change without an event, by the one whose events tell it, as it has
            found them.
        definitions: of tables, by what the schema topics tell.
        cutting: has batches end between two transactions.
        pace: when the next batch begins.
        lake: the format of the tables.
    """

    runner: BatchRunner
    config: Config
    sources: Sources
    checkpoint: Checkpoint
    librdkafka: dict[str, Any]
    end_offsets: Callable[[Sequence[str]], Offsets]
    controls: Callable[[int, int], list[dict[str, Any]]]
    publish: Callable[[PipelineState], None]
    snapshots: Callable[[PipelineState, News], None]
    planned: Callable[[frozenset[str]], None] = lambda _: None
    done: Callable[[BatchDone], None] = lambda _: None
    left_out: Callable[[dict[str, Any]], None] = lambda _: None
    topics_begin: Callable[[Collection[str]], None] = lambda _: None
    forms_change: Callable[[], None] = lambda: None
    same_connector: Callable[[str], bool] = lambda _: True
    read_schemas: Callable[[], Mapping[str, TableSchema]] = dict
    seen_columns: Callable[[PipelineState], Mapping[str, frozenset[str]]] = lambda _: {}
    numerics: Callable[[], Mapping[str, frozenset[str]]] = dict
    children: Callable[[], Mapping[str, Cascades]] = dict
    definitions: SchemaTopics = field(default_factory=SchemaTopics)
    cutting: Cutting = field(default_factory=Cutting)
    pace: Trigger = field(default_factory=Trigger)
    schemas: dict[str, TableSchema] = field(default_factory=dict)
    forms: Forms = field(default_factory=Forms)
    loads: dict[str, int] = field(default_factory=dict)
    failure: BaseException | None = None
    draining: GracefulStop = field(default_factory=GracefulStop)
    _cuts_kept: float = field(default_factory=monotonic)
    _begins: bool = True  # its connectors have just been read
    refresh: Refresh = field(init=False)
    lake: TableFormat = field(init=False)

    def __post_init__(self) -> None:
        self.lake = formats.format_of(self.config.lake)
        self.refresh = Refresh(self.sources.catalogs(), self.schemas, self.forms)

    def start(self, *, armed: bool, once: bool) -> Query:
        """Start the query; see `BatchRunner.start`."""
        self.failure = None
        self.pace.begin()
        return self.runner.start(
            self,
            self.checkpoint,
            pattern=self.sources.topic_pattern,
            schemas=self.schemas,
            armed=armed,
            once=once,
        )

    def on_batch(self, rows: Any, batch: int) -> None:
        """Carry out one batch, and rest until the next is due; keep the error in `failure`."""
        begun = monotonic()
        try:
            self.batch(rows, batch)
        except BaseException as error:
            self.failure = error
            log.debug("batch.failed", batch=batch, exc_info=True)
            raise
        self.pace.rest(begun)

    def batch(self, rows: Any, batch: int) -> None:
        """Carry out one batch, in order:

        1. the state before it, and the changes by its control records and new partitions;
        2. decode, dead letters, output topics, Delta tables (in the tasks), and their reports;
        3. tables whose schema was out of date: read the catalog again; those whose records have
           another form: ask the connector;
        4. tables that catch up: one bounded read through the same tasks;
        5. what verify runs have found, the state after it, the records of the progress topic.
        """
        marks = [monotonic()]
        # 1. the state before it
        self.checkpoint.check_owner()
        before = self.checkpoint.load(batch - 1)
        state = self._begin(before, batch)
        self.runner.require(armed=bool(state.runs))
        self.planned(frozenset(state.runs))
        marks.append(monotonic())

        # 2. the tasks
        plan = self._plan(
            state,
            step="stream",
            reads=(advance.start_offsets(before, state.offsets), state.offsets),
            applied=plans.applied_positions(before.applied),
            stopped=state.not_streaming(),
            selected=None,
        )
        results = self.stream(rows, plan, before)
        marks.append(monotonic())
        left, news = self._settle(state, before, plan, results)

        # 3. schemas
        self.refresh(state, left.refresh)
        if left.refresh:
            self.definitions.again(state, before, self.schemas)
        for table in filter(self.same_connector, sorted(left.unread)):
            tables.resume(state, table)

        # 4. tables that catch up
        self._degraded(state, left.failed + self._catch_up(state))
        self.refresh.put_off(state, before, batch_s=monotonic() - marks[0])
        marks.append(monotonic())

        # 5. the state after it
        self.cutting.settle(state, results.reports)
        self._keep_found(news)
        failpoints.reach(failpoints.BEFORE_STATE)
        self.checkpoint.check_owner()
        self.checkpoint.save(state)
        self.definitions.end(state, plans.passed)
        self.publish(state)
        if left.refresh or _asks(state, results.outcomes):
            self.forms_change()
        self.snapshots(state, news)
        marks.append(monotonic())
        self._begins = False
        self._tell(batch, results, news, marks)
        failpoints.reach(failpoints.BEFORE_CHECKPOINT)

    # -- 1: the state before it, and what changes it ----------------------------------------------

    def _begin(self, before: PipelineState, batch: int) -> PipelineState:
        """Return the state that the batch makes, as it is before any task runs."""
        self.refresh.learn(self.read_schemas())
        ends = self.checkpoint.offsets(batch)
        state = stored_form.copied(before)
        state.batch = batch
        state.output_prefixes = self.sources.output_prefixes
        state.offsets = new_partitions.known_ends(before.offsets, self._changes(ends))
        start = advance.start_offsets(before, state.offsets)
        self._control(state, before, start, ends)
        self._replace(state, before)
        self._note_proofs(state, before)
        if new := state.offsets.keys() - before.offsets.keys():
            self.topics_begin(new)
        new_partitions.follow(state, before=before, start=start, end_offsets=self.end_offsets)
        self.cutting.begin(state, before)
        self._keep_cuts(state)
        self.definitions.begin(state, before, self.schemas)
        return state

    def _changes(self, ends: list[Offsets]) -> Offsets:
        """Return the offsets of the change topics: the query's source without own topics."""
        own = set(self.config.topics.all())
        return {t: partitions for e in ends for t, partitions in e.items() if t not in own}

    def _control(
        self, state: PipelineState, before: PipelineState, start: Offsets, ends: list[Offsets]
    ) -> None:
        """Carry out people's commands; then let tables go on that do so by themselves."""
        topic = self.config.topics.control
        end = next((e[topic][0] for e in ends if topic in e), 0)
        # What was held back is read by tasks, as it is in quiet times: before a run begins.
        state.deferred = before.held > 0 and end > before.control
        if state.deferred:
            end = before.control
        state.control = max(before.control, end)
        records = self.controls(before.control, end)
        tables.end_fills(state, partial(plans.passed, before))
        budget, can_fill = FillBudget(), partial(plans.can_fill, self.config)

        def carry(some: Sequence[dict[str, Any]]) -> None:
            control_records.carry_out(
                some, state, before=before, start=start, refresh=self.refresh, can_fill=can_fill,
                owners=self.sources.owners,
            )  # fmt: skip
            self._fill(state, budget)

        left = control_records.guarded(
            records,
            carry,
            first=before.control,
            mark=self.checkpoint.handling,
            note=self.checkpoint.note_handling,
        )
        for record in left:
            self.left_out(record)
            control_records.make_up_for(record, state)
        if state.runs:
            state.runs = self.sources.runs(state.runs)
        for name, entry in state.tables.items():
            if self.refresh.is_back(name, entry):
                entry.repair.doubt_all(schema_refresh.MADE_ANEW, state.batch)
                tables.forget_proof(state, name)
                tables.resume(state, name)
            elif self._retries(name, entry):
                tables.resume(state, name)
        for name in tables.end_skips(state, before.offsets):
            log.warning("table.skipped", table=name, upto=before.offsets)

    def _retries(self, table: str, entry: TableState) -> bool:
        """Say whether an errored table goes on by itself with the batch that begins."""
        if entry.code == LOG_CHANGED or not self.refresh.retries(table, entry):
            return False
        return entry.code != CONVERTER_CHECK or self.same_connector(table)

    def _replace(self, state: PipelineState, before: PipelineState) -> None:
        """Put rebuilt tables in the place of the old ones, before anything of the batch is written.

        Done in every repetition, and only the first time something happens. Where the lake does not
        let it, the next batch tries again; until then all goes to the new table. Files that
        rebuilds have left are deleted when the state without them is durable, as it is when this
        begins.
        """
        for name in tables.rebuilt(state):
            try:
                self._replace_table(state, name)
            except LakemarkError as error:
                log.warning(
                    "table.not_replaced", table=name, code=error.code, reason=error.message,
                    hint=error.hint,
                )  # fmt: skip
            except Exception:  # one table's log is no reason to stop the others
                log.exception("table.not_replaced", table=name)
        for name, entry in state.tables.items():
            durable = before.tables.get(name, TableState()).files.rebuild_over
            for over in durable:
                if over in entry.files.rebuild_over and self._discarded(name, over):
                    entry.files.discarded(over)

    def _replace_table(self, state: PipelineState, name: str) -> None:
        entry, options = state.tables[name], self.config.lake.options()
        path = folder_of(self.config.lake, name)
        done = self.lake.replace(path, entry.files.rebuild, table=name, options=options)
        if done is not None:
            log.info("table.rebuilt", table=name, rows=done.rows, reason=entry.files.rebuild_why)
            entry.size.measure(done.rows, done.bytes)
            entry.files.end_rebuild()
            tables.forget_proof(state, name)
        elif entry.size.committed_ms or entry.files.recorded >= 0:
            log.warning("table.rebuild_lost", table=name, rebuild=entry.files.rebuild)
            tables.lost_rebuild(state, entry)
        else:  # the source has no row
            self.lake.empty(path, entry.files.rebuild, options=options)

    def _note_proofs(self, state: PipelineState, before: PipelineState) -> None:
        """Have tables say since when they are proved, by a commit of its own before the batch's.

        Done in every repetition, and only the first time something happens. Where it cannot be
        done, the table goes on saying what it said, until its next proof.
        """
        for name, proof in state.proofs.items():
            known = before.proofs.get(name, UNPROVED)
            if not proof.proved_ms or proof.told() == known.told():
                continue
            told = msgspec.json.encode(proof.told()).decode()
            path, options = folder_of(self.config.lake, name), self.config.lake.options()
            try:
                self.lake.note(path, PROPERTY, told, options=options)
            except LakemarkError as error:
                log.warning(
                    "table.proof_not_noted", table=name, code=error.code, reason=error.message,
                    hint=error.hint,
                )  # fmt: skip
            except Exception:  # one table's log is no reason to stop the others
                log.exception("table.proof_not_noted", table=name)

    def _fill(self, state: PipelineState, budget: FillBudget) -> None:
        """Give older rows their values in new columns, before any row that brings these itself.

        Done in every repetition, and only the first time something happens. Where it cannot be done
        the table is read again.
        """
        for name, entry in state.tables.items():
            due = [one for one in entry.repair.fills if one.batch == state.batch]
            if not due or name in budget.done:
                continue
            if not budget.takes(name, entry) or not self._filled(name, entry, due, state.batch):
                entry.repair.drop_fills(batch=state.batch)
                columns = ", ".join(one.column for one in due)
                entry.repair.doubt_all(f"older rows lack columns: {columns}", state.batch)

    def _filled(self, table: str, entry: TableState, due: Sequence[Fill], batch: int) -> bool:
        if not plans.can_fill(self.config, table, entry):
            return False
        query, columns = self.checkpoint.query_id(), [one.column for one in due]
        try:
            done = self.lake.fill(
                folder_of(self.config.lake, table),
                due,
                app_id=f"{query}/{table}/fill/{batch}",
                table=table,
                options=self.config.lake.options(),
                engine=plans.engine_of(self.config, table, entry),
            )
        except LakemarkError as error:
            log.warning(
                "table.not_filled", table=table, columns=columns, code=error.code,
                reason=error.message,
            )  # fmt: skip
            return False
        except Exception:  # one table's files are no reason to stop the others
            log.exception("table.not_filled", table=table, columns=columns)
            return False
        log.info("table.filled" if done else "table.not_filled", table=table, columns=columns)
        return done

    def _discarded(self, table: str, name: str) -> bool:
        path = folder_of(self.config.lake, table)
        try:
            self.lake.discard(path, name, options=self.config.lake.options())
        except Exception as error:  # noqa: BLE001 - it is tried again with the next batch
            log.debug("rebuild.not_discarded", table=table, reason=str(error))
            return False
        return True

    # -- 2: the tasks -----------------------------------------------------------------------------

    def _plan(
        self,
        state: PipelineState,
        *,
        step: str,
        reads: tuple[Offsets, Offsets],
        applied: AppliedPositions,
        stopped: frozenset[str],
        selected: Any,
    ) -> BatchPlan:
        config, slots, chosen = self.config, self.runner.slots, self.sources.chosen
        parts = self.sources.parts(state)
        again = frozenset(selected or ()) if step == "catchup" else frozenset()
        decode = DecodePlan(
            stretch=StretchPlan(
                identity=ANY_SOURCE,
                modes=HandlingModes(),
                schemas=self.schemas,
                numerics=self.numerics(),
                ignorable={t: frozenset(names) for t, names in state.ignorable.items()},
                applied=applied,
                max_event_bytes=config.stream.max_event_bytes,
                max_bad_share=config.dead_letters.max_share,
                max_bad=config.dead_letters.max_per_batch,
                selected=selected or selection.Streamed(chosen, frozenset(state.left)),
                left=frozenset(n for n in state.left if n in chosen and step == "stream"),
                known_keys={t: tuple(s.files.key) for t, s in state.tables.items() if s.files.key},
                carried=state.carried(),
                partial=state.partial(),
                verified=self.refresh.verified(again),
                converter_asked=self._begins or step == "catchup",
                stopped=stopped,
                stopped_topics=state.silent_topics() if stopped else frozenset(),
                fills={t: tuple(s.repair.fills) for t, s in state.tables.items() if s.repair.fills},
                definitions=self.definitions.of_batch(self.schemas, self.refresh.read & again),
                metadata=tuple(config.lake.metadata),
            ),
            shards=config.stream.shards,
            slots=slots,
            slot_of=plans.balanced(self.loads, slots),
            dead_letter_topic=config.topics.dead_letters,
            kafka=self.librdkafka,
            armed=bool(state.runs) and step == "stream",
            output=plans.output_plan(
                config,
                state,
                query=self.checkpoint.query_id(),
                schemas={**self.schemas, **self.read_schemas()},
                topic_ids=self._topic_ids(state) if config.output else {},
            ),
            parts=parts,
            owners=self.sources.owners,
        )
        lake = plans.lake_plan(
            config,
            state,
            query=self.checkpoint.query_id(),
            step=step,
            applied=applied,
            seen=self.seen_columns(state),
            reads=reads,
        )
        return BatchPlan(decode, lake)

    def _topic_ids(self, state: PipelineState) -> dict[str, str]:
        """Return the topics' ids for marks in output topics; a mark with other ids is void."""
        found = self.checkpoint.topics()
        again = {topic: f"{found.get(topic, '')}/{n}" for topic, n in state.begun_after.items()}
        return found | again

    def stream(self, rows: Any, plan: BatchPlan, before: PipelineState) -> Results:
        """Run all stages over a batch of the query."""
        news = partial(self._news, plan.lake.batch, before)
        return self._finished(self.runner.stream(rows, plan, news), plan)

    def _news(self, batch: int, before: PipelineState) -> list[OffsetRange]:
        """Return the records of the change topics that the runner has planned for a batch.

        Where batches end at cuts, it goes on where the one before ended, up to where it ends.
        """
        end = self._changes(self.checkpoint.offsets(batch))
        planned = self.checkpoint.offsets(batch - 1) if batch else [self.checkpoint.begun()]
        start = self._changes(planned)
        if not self.cutting.topics and not before.held:
            return offset_ranges.between(start, end)
        found = offset_ranges.between(
            _lower(start, before.offsets), _lower(end, self.cutting.offsets)
        )
        return [one for one in found if one.topic not in self.cutting.own_topics]

    def _finished(self, results: Results, plan: BatchPlan) -> Results:
        self._by_driver(results.outcomes, plan)
        for outcome in results.outcomes:
            if outcome.trace:
                log.error("table.internal_error", table=outcome.table, trace=outcome.trace)
        return results

    def _by_driver(self, outcomes: Sequence[TableOutcome], plan: BatchPlan) -> None:
        """Merge the tables that tasks have left to the driver."""
        for outcome in outcomes:
            if outcome.code or not outcome.unfinished:
                continue
            own = plan.lake.tables.get(outcome.table) or plan.lake.new_table(outcome.table)
            try:
                self.runner.finish(own, outcome, plan.lake)
            except LakemarkError as error:
                outcome.code, outcome.reason = error.code, error.message
                outcome.hint, outcome.retried = error.hint, error.retried

    def _settle(
        self, state: PipelineState, before: PipelineState, plan: BatchPlan, results: Results
    ) -> tuple[Left, News]:
        """Take the tasks' reports into the state; return the work left, and snapshots' results."""
        reports = results.reports
        start = advance.start_offsets(before, state.offsets, reports)
        left = advance.settle(
            state, before, start, reports, results.outcomes,
            catalog=self.refresh.may_ask, forwarded=self.config.output is not None,
        )  # fmt: skip
        advance.agreed(
            state, reports,
            schemas=self.schemas, ask=self.refresh.look, rereads=self.refresh.may_ask,
        )  # fmt: skip
        advance.begun_anew(state, reports)
        known = {*state.tables, *state.left, *self.schemas}
        advance.moved(state, reports, partial(self.sources.moved_by, tables=known))
        advance.cascaded(state, reports, self.children())
        news = advance.chunks(state, plan.lake.stopped, results.said)
        advance.applied(state, reports)
        self.loads.update(advance.loads(reports))
        return left, news

    # -- 3, 4: tables that are not there yet ------------------------------------------------------

    def _degraded(self, state: PipelineState, failed: list[TableOutcome]) -> None:
        """Let tables whose dependency was away catch up in the next batch, unless all failed.

        What no repetition brings back, a chunk's file, is no reason to repeat the batch; nor is it
        while a table waits for a person, whose command stands behind the batch, or for the catalog.

        Raises:
            DependencyError: no table at all could be written: the whole batch is tried again.
        """
        away = [one for one in failed if one.code not in {FILE_MISSING, UNSEEN}]
        entries = state.tables.values()
        waiting = [e.state == tables.ERRORED and e.retried and e.code != UNSEEN for e in entries]
        if away and all(waiting):
            raise DependencyError(away[0].reason, code=away[0].code, hint=away[0].hint)
        for outcome in failed:
            log.warning(
                "table.degraded", table=outcome.table, code=outcome.code, reason=outcome.reason
            )

    def _catch_up(self, state: PipelineState) -> list[TableOutcome]:
        """Read once for tables that catch up; a table has one read a batch: a commit names it.

        If a schema turns out to be out of date, a later batch reads the same again.
        """
        self.refresh.read -= set(catch_up.go_on(state))
        turn = catch_up.turn(
            state,
            limit=self.config.stream.max_events_per_batch,
            most=catch_up.TABLES_A_SLOT * self.runner.slots,
        )
        if not turn.tables:
            return []
        self.checkpoint.check_owner()  # the next owner's turn may be another one
        plan = self._plan(
            state,
            step="catchup",
            reads=(turn.start, turn.end),
            applied=plans.applied_positions(turn.applied),
            stopped=frozenset(),
            selected=frozenset(turn.tables),
        )
        for name in turn.tables:
            state.tables[name].code = state.tables[name].reason = ""
        results = self.reread(turn.start, turn.end, plan)
        reports, outcomes = results.reports, results.outcomes
        left = advance.settle(
            state, state, turn.start, reports, outcomes, catalog=self.refresh.may_ask
        )
        advance.cascaded(state, reports, self.children())
        self.refresh.read -= set(turn.tables)
        catch_up.end(state, turn, advance.applied_positions(reports))
        self.refresh(state, left.refresh)
        failed = {outcome.table for outcome in left.failed}
        for name in turn.tables:
            log.info(
                "table.caught_up",
                table=name, state=state.tables[name].state, failed=int(name in failed),
            )  # fmt: skip
        return left.failed

    def reread(self, start: Offsets, end: Offsets, plan: BatchPlan) -> Results:
        """Decode and merge the change records from `start` to before `end`."""
        return self._finished(self.runner.reread(offset_ranges.between(start, end), plan), plan)

    # -- 5: the state after it --------------------------------------------------------------------

    def _keep_cuts(self, state: PipelineState) -> None:
        """Put cuts of earlier batches into the lake, from time to time; else the state keeps them.

        Done in every repetition, and only the first time something happens. Where it cannot be
        done, a later batch tries again.
        """
        is_due = monotonic() - self._cuts_kept > kept_cuts.EVERY_S
        for name, log_state in [("", state), *state.logs.items()]:
            cuts = log_state.cutting.kept
            if not cuts or (len(cuts) < kept_cuts.AT_ONCE and not is_due):
                continue
            self._cuts_kept = monotonic()
            try:
                kept_cuts.keep(self.config.lake, name, cuts, query=self.checkpoint.query_id())
            except LakemarkError as error:
                log.warning("cuts.not_kept", code=error.code, reason=error.message, hint=error.hint)
                del cuts[: -kept_cuts.MOST]
            else:
                cuts.clear()

    def _keep_found(self, news: News) -> None:
        """Keep what verify runs have found; a run that cannot have that kept fails.

        Raises:
            DependencyError: the lake is away: the whole batch is tried again.
        """
        found = [one for one in news.compared if one.findings]
        if not found:
            return
        query, now = self.checkpoint.query_id(), datetime.now(UTC)
        try:
            found_rows.keep(self.config.lake, found, query=query, at=now)
        except LakemarkError as error:
            if error.retried:
                raise
            why = {"code": error.code, "reason": error.message, "hint": error.hint}
            news.compared = [msgspec.structs.replace(one, **why) for one in news.compared]

    def _tell(self, batch: int, results: Results, news: News, marks: list[float]) -> None:
        """Tell what the batch did; the marks stand before, between and after the `PARTS`."""
        times = {p: end - begun for p, (begun, end) in zip(PARTS, pairwise(marks), strict=True)}
        outcomes = results.outcomes
        events = sum(sum(r.kinds.values()) for r in results.reports)
        rows = sum(o.inserted + o.updated + o.deleted for o in outcomes)
        log.info(
            "batch.done", batch=batch, events=events, tables=len(outcomes), rows=rows,
            merges_s=round(sum(o.seconds for o in outcomes), 2),
            **{f"{part}_s": round(seconds, 2) for part, seconds in times.items()},
            **news.held(),
        )  # fmt: skip
        self.done(BatchDone(batch, events, rows, times, held=news.held()))


def _asks(state: PipelineState, outcomes: Sequence[TableOutcome]) -> bool:
    """Say whether tables have changed, or wait, for a reason that the catalog may know more of."""
    return any(entry.code == UNSEEN for entry in state.tables.values()) or any(
        one.changes or one.code in catalog_policies.CODES for one in outcomes
    )


def _lower(offsets: Offsets, held: Offsets) -> Offsets:
    """Return offsets, but those of a batch before where it ended earlier than it was planned."""
    return {
        topic: {n: min(at, held.get(topic, {}).get(n, at)) for n, at in partitions.items()}
        for topic, partitions in offsets.items()
    }
