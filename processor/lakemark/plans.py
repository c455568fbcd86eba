"""The plans of a batch's tasks for the lake: folders, engines, truncates; who merges what."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from lakemark.model.commit_note import Span
from lakemark.model.decoding import AppliedPosition
from lakemark.model.offsets import Offsets
from lakemark.model.schema import TableSchema
from lakemark.settings.config import Config
from lakemark.settings.schema_policy import FOLLOWS
from lakemark.sink import formats, names
from lakemark.sink.lake_plan import STREAM, LakePlan, TablePlan
from lakemark.sink.output.publisher import OutputPlan, Row
from lakemark.state.catch_up import TABLES_A_SLOT
from lakemark.state.table_parts import StoredPosition
from lakemark.state.tables import STREAMING, PipelineState, TableState

NOBODY: Final[Mapping[str, frozenset[str]]] = MappingProxyType({})
AppliedPositions = dict[tuple[str, int], AppliedPosition]


def lake_plan(
    config: Config,
    state: PipelineState,
    *,
    query: str,
    step: str,
    applied: AppliedPositions,
    seen: Mapping[str, frozenset[str]] = NOBODY,
    reads: tuple[Offsets, Offsets] = ({}, {}),
) -> LakePlan:
    """Return how the tables of a batch are written.

    Args:
        config: the settings.
        state: the tables as they are before the batch.
        query: the query's id; with batch and step it names the batch in Delta's commits.
        step: `stream` or `catchup`.
        applied: the partitions' applied positions before the batch.
        seen: columns of tables that the newest look at the catalog has found.
        reads: first and end offsets of what the step reads of change topics.
    """
    return LakePlan(
        query=query,
        batch=state.batch,
        step=step,
        tables={
            name: TablePlan(
                path=names.folder_of(config.lake, name, entry.files.rebuild),
                deletes=config.lake.deletes_of(name),
                metadata=tuple(config.lake.metadata),
                engine=engine_of(config, name, entry),
                truncated_at=bytes.fromhex(entry.progress.truncated_at)
                if entry.progress.truncated_at
                else None,
                pending=entry.pending.batch,
                pending_step=entry.pending.step,
                pending_over=entry.pending.over,
                pending_over_step=entry.pending.over_step,
                settled=_settled(entry, applied, state.offsets),
                applied_close=bytes.fromhex(entry.progress.applied_close)
                if entry.progress.applied_close
                else None,
                partial=entry.repair.partial,
                stale=entry.repair.stale(),
                key=tuple(entry.files.key),
                written=bool(entry.files.engine),
                key_ends=tuple(entry.files.key_ends),
                recorded=entry.files.recorded,
                recorded_as=entry.files.recorded_as,
                policy=FOLLOWS if entry.files.rebuild else config.lake.policy_of(name),
                fills=tuple(entry.repair.fills),
                seen=_seen(config, name, entry, seen),
            )
            for name, entry in state.tables.items()
        },
        new_table=NewTable(config),
        options=config.lake.options(),
        format=config.lake.format,
        stopped=state.not_streaming() if step == STREAM else frozenset(),
        begins=TABLES_A_SLOT if step == STREAM and _others_wait(state) else None,
        offsets=_spans(*reads),
    )


def _spans(start: Offsets, end: Offsets) -> dict[str, Span]:
    """Return the offsets that a step reads, by topic and partition, where there is anything new."""
    return {
        f"{topic}/{partition}": (max(begin, 0), at)
        for topic, partitions in end.items()
        for partition, at in partitions.items()
        if (begin := start.get(topic, {}).get(partition, 0)) < at
    }


def _seen(
    config: Config, table: str, entry: TableState, seen: Mapping[str, frozenset[str]]
) -> frozenset[str] | None:
    """The columns that a table may get without waiting; None for any."""
    return seen.get(table) if not entry.asked and can_fill(config, table, entry) else None


def can_fill(config: Config, table: str, entry: TableState) -> bool:
    """Say whether older rows of a table can get values without being read again.

    Not where an output topic tells of rows: they would be in no event there. Nor where the driver
    merges: such tables are large, and reading them again keeps nobody waiting.
    """
    if config.output is not None or not entry.files.engine or not entry.can_fill():
        return False
    merges = formats.format_of(config.lake).merges_in_tasks
    return merges(entry.files.engine) and merges(engine_of(config, table, entry))


def passed(state: PipelineState, entry: TableState) -> bytes | None:
    """The position that every partition of a table has passed in a state; None = not known."""
    return _settled(entry, applied_positions(state.applied), state.offsets)


def _others_wait(state: PipelineState) -> bool:
    """Return whether tables that begin hold up one that has been written before."""
    return any(entry.files.engine and entry.state == STREAMING for entry in state.tables.values())


def output_plan(
    config: Config,
    state: PipelineState,
    *,
    query: str,
    schemas: Mapping[str, TableSchema],
    topic_ids: Mapping[str, str],
) -> OutputPlan | None:
    """Return what the tasks must know of the output topics; None without them.

    What is a connector's own is in `PlanPart`.

    Args:
        config: the settings.
        state: the tables as they are before the batch.
        query: the query's id.
        schemas: tables known from the catalog.
        topic_ids: ids of the change topics.
    """
    output = config.output
    if output is None:
        return None
    return OutputPlan(
        pipeline=config.name,
        prefix=output.topic_prefix,
        control=config.topics.control,
        query=query,
        batch=state.batch,
        resolve=output.resolve_unavailable,
        max_bytes=config.dead_letters.max_record_bytes,
        key_schemas={t: _key_of(schema) for t, schema in schemas.items() if schema.key},
        topic_ids=topic_ids,
        rows={
            name: Row(
                names.folder_of(config.lake, name, entry.files.rebuild),
                entry.repair.stale(),
                bytes.fromhex(entry.progress.truncated_at) if entry.progress.truncated_at else None,
                entry.topics[0] if entry.topics else "",
            )
            for name, entry in state.tables.items()
        },
        options=config.lake.options(),
        format=config.lake.format,
        converts=output.format is not None,
    )


def _key_of(schema: TableSchema) -> TableSchema:
    columns = tuple(schema.by_name[name] for name in schema.key if name in schema.by_name)
    return TableSchema(schema.table, columns, schema.key)


@dataclass(frozen=True, slots=True)
class NewTable:
    """Makes the plan of a table that the driver has not seen yet; picklable."""

    config: Config

    def __call__(self, table: str) -> TablePlan:
        """The plan of one table."""
        return TablePlan(
            path=names.folder_of(self.config.lake, table),
            deletes=self.config.lake.deletes_of(table),
            metadata=tuple(self.config.lake.metadata),
            engine=engine_of(self.config, table, None),
            policy=self.config.lake.policy_of(table),
        )


def engine_of(config: Config, table: str, entry: TableState | None) -> str:
    """The write engine of a table; see `TableFormat.engine_for`."""
    now, size = (None, 0) if entry is None else (entry.files.engine, entry.size.bytes)
    return formats.format_of(config.lake).engine_for(config.lake.engine_of(table), now, size)


def applied_positions(found: dict[str, dict[int, StoredPosition]]) -> AppliedPositions:
    """Applied positions as the tasks use them."""
    return {
        (topic, partition): reached.reached()
        for topic, partitions in found.items()
        for partition, reached in partitions.items()
    }


def _settled(entry: TableState, applied: AppliedPositions, offsets: Offsets) -> bytes | None:
    """The position that every partition of the table's topics has passed; None = not known."""
    places = [(topic, p) for topic in entry.topics for p in offsets.get(topic, {})]
    if not places or any(place not in applied for place in places):
        return None
    return min(applied[place].position for place in places)


def balanced(loads: dict[str, int], slots: int) -> dict[str, int]:
    """Longest first, each to the emptiest slot."""
    filled = [0] * slots
    chosen: dict[str, int] = {}
    for table, load in sorted(loads.items(), key=lambda item: (-item[1], item[0])):
        slot = min(range(slots), key=lambda s: (filled[s], s))
        filled[slot] += load + 1
        chosen[table] = slot
    return chosen
