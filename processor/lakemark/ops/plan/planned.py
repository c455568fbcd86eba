"""The answer of `lakemark plan`: frozen values, and how they follow from the facts; pure.

`schemas/plan.json` is their JSON Schema. A number that is not known is null.

| action of a Delta table | means |
|---|---|
| create | the first event makes it |
| keep | it is there and fits |
| alter | it is there; the next event adds or widens columns |
| rebuild | it is there and cannot follow: it is made anew from a snapshot, `reason` says why |
| follow | it is there; its columns come with the events, so what changes is not known before |
| stop | the table stops at its first event: `reason` says why, `hint` what to do |
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, Final, Literal

import msgspec

from lakemark.converters.converter import SchemaSubject
from lakemark.kafka.output_names import topic_of, topic_settings
from lakemark.kafka.own_topics import allow_command, topic_plan, unusable
from lakemark.model.key_ranges import fitting_rows
from lakemark.ops import lag
from lakemark.ops.settings_record import Change
from lakemark.settings.config import Config
from lakemark.settings.layers import Mistake
from lakemark.state.data_loss import CONTROL_LOST, Held, gaps, own_gaps
from lakemark.state.tables import PipelineState

SchemaFrom = Literal["events", "database", "file", "events or database", "events or file"]
Action = Literal["create", "keep", "alter", "rebuild", "follow", "stop"]
TopicAction = Literal["create", "keep", "stop"]
Basis = Literal["checkpoint", "earliest", "latest"]
Compared = Literal["running", "checkpoint", "nothing"]

_WRITING: Final = ("describe", "write")


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A problem that somebody should know; `stops` if the pipeline would not start or would end."""

    code: str
    reason: str
    hint: str = ""
    stops: bool = False


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Delta table of a source table; `added` and `widened` name columns and types.

    So do `left_out` and `dropped`: columns of the source, or their types, that the table's policy
    leaves out of it, and columns of the table that the source has no more.
    """

    path: str
    action: Action
    engine: str = ""
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    code: str = ""
    reason: str = ""
    hint: str = ""
    left_out: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


class PlannedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A captured table; `key` is null while only its events know it, `waiting` counts records."""

    name: str
    topic: str
    topic_exists: bool
    key: tuple[str, ...] | None
    schema_from: SchemaFrom
    target: Target
    state: str = ""
    waiting: int | None = None


class PlannedTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of lakemark's own topics, or with `table` that table's output topic.

    `stop`: it cannot work, or may not be written. An output topic has as many `partitions` as its
    change topic: null if that is not there yet.
    """

    name: str
    action: TopicAction
    partitions: int | None
    settings: dict[str, str]
    reason: str = ""
    hint: str = ""
    table: str = ""


class PlannedSubject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subject of a registry that gets the schemas of an output topic's keys, or of its values.

    `name` is null where `strategy` takes it from each record.
    """

    registry: str
    topic: str
    side: Literal["key", "value"]
    name: str | None
    strategy: str
    action: Literal["create", "keep"] | None


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A partition's start: the offset it is read from, the reason, and the records that wait."""

    topic: str
    partition: int
    offset: int
    basis: Basis
    end: int
    waiting: int


class PlannedScan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table in a snapshot of all: about how many rows and chunks; `refused` says why not."""

    table: str
    rows: int
    bytes: int
    chunks: int
    refused: str = ""


class PlannedSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot of all tables, in the order in which they are read."""

    chunk_rows: int
    parallelism: int
    tables: tuple[PlannedScan, ...]


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The checkpoint: `batch` is -1 before the first, null if it cannot be read from here."""

    path: str
    batch: int | None


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The effects of a run. `snapshot` is null without a database.

    `registries` are those that have the schemas of what is read.

    `compared` says with what the settings were compared: those that the query last ran with, what
    the checkpoint says of itself, or nothing, before the first run.
    """

    name: str
    version: str
    checkpoint: Standing
    tables: tuple[PlannedTable, ...]
    topics: tuple[PlannedTopic, ...]
    starts: tuple[Start, ...]
    snapshot: PlannedSnapshot | None
    compared: Compared
    changes: tuple[Change, ...]
    problems: tuple[Problem, ...]
    registries: tuple[str, ...] = ()
    subjects: tuple[PlannedSubject, ...] = ()

    def stops(self) -> bool:
        """Say whether the pipeline, a table or a topic would stop."""
        tables = any(table.target.action == "stop" for table in self.tables)
        topics = any(topic.action == "stop" for topic in self.topics)
        return tables or topics or any(problem.stops for problem in self.problems)


def own_topics(
    config: Config, counts: Mapping[str, int], settings: Mapping[str, Mapping[str, str]]
) -> tuple[PlannedTopic, ...]:
    """Return our own topics: those that are missing are created, others are kept or refused.

    Args:
        config: ours.
        counts: partitions of those that exist.
        settings: of those that exist, as far as we may know.
    """
    wrong = dict(unusable(config, counts, settings))
    planned_topics = []
    for name, (partitions, made_with) in topic_plan(config).items():
        if name in wrong:
            bad = wrong[name]
            planned_topics.append(
                PlannedTopic(name, "stop", counts.get(name, 0), made_with, bad.message, bad.hint)
            )
        elif name in counts:
            planned_topics.append(PlannedTopic(name, "keep", counts[name], made_with))
        else:
            planned_topics.append(PlannedTopic(name, "create", partitions, made_with))
    return tuple(planned_topics)


def output_topics(
    config: Config,
    tables: Iterable[PlannedTable],
    kafka: lag.Ends,
    existing: Mapping[str, tuple[frozenset[str] | None, int]],
) -> tuple[PlannedTopic, ...]:
    """Return the output topics: the first record of a table makes its own.

    Args:
        config: ours.
        tables: as planned.
        kafka: ends of the change topics.
        existing: of those that exist, or are kept from us, what we may do with them (None: unknown)
            and their number of partitions.
    """
    if config.output is None:
        return ()
    settings = topic_settings(config.dead_letters.max_record_bytes)
    planned = []
    for table in tables:
        name = topic_of(config.output.topic_prefix, table.name)
        rights, count = existing.get(name, (None, len(kafka.ends.get(table.topic, ()))))
        missing = [right for right in _WRITING if rights is not None and right not in rights]
        action: TopicAction = "stop" if missing else "keep" if name in existing else "create"
        reason = hint = ""
        if missing:
            reason = f"lakemark may not {' and '.join(missing)} {name}: {table.name} stops"
            hint = allow_command(config, missing, topic=name)
        planned.append(
            PlannedTopic(name, action, count or None, settings, reason, hint, table.name)
        )
    return tuple(planned)


def subjects(registry: str, known: Iterable[SchemaSubject]) -> Iterator[PlannedSubject]:
    """Yield the subjects of output topics.

    Args:
        registry: the address of the one that they are in.
        known: as their converter has them.
    """
    for one in known:
        action: Literal["create", "keep"] | None = "keep" if one.exists else "create"
        yield PlannedSubject(
            registry,
            one.topic,
            one.side,
            one.name or None,
            one.strategy,
            action if one.name else None,
        )


def starts(
    kafka: lag.Ends, state: PipelineState | None, *, starting: Literal["earliest", "latest"]
) -> tuple[Start, ...]:
    """Return the start of every partition that is read.

    A partition that a checkpoint does not know is read from its first offset: `starting` says
    where a new checkpoint begins, and nothing else.

    Args:
        kafka: first offsets and ends of the change topics.
        state: of the newest batch; None before the first.
        starting: as configured.
    """
    partition_starts = []
    for topic, partitions in sorted(kafka.ends.items()):
        for partition, end in sorted(partitions.items()):
            first = kafka.starts.get(topic, {}).get(partition, 0)
            read = state.offsets.get(topic, {}).get(partition) if state else None
            offset, basis = _start(read, first, end, starting if state is None else "earliest")
            waiting = max(0, end - max(first, offset))
            partition_starts.append(Start(topic, partition, offset, basis, end, waiting))
    return tuple(partition_starts)


def _start(
    read: int | None, first: int, end: int, starting: Literal["earliest", "latest"]
) -> tuple[int, Basis]:
    if read is not None:
        return read, "checkpoint"
    return (end, "latest") if starting == "latest" else (first, "earliest")


def waiting(
    table: str,
    topic: str,
    *,
    state: PipelineState | None,
    kafka: lag.Ends,
    places: Iterable[Start],
) -> int | None:
    """Count the records of a table's topics that are to be applied; None where no topic is known.

    A table that does not stream goes on from where it stopped.
    """
    entry = state.tables.get(table) if state else None
    if entry is not None and entry.topics and state is not None:
        return lag.unread_of(entry, state.offsets, kafka)
    counts = [place.waiting for place in places if place.topic == topic]
    return sum(counts) if counts else None


def of_connector(mistake: Mistake) -> Problem:
    """Return a mistake in the connector's settings as a problem, with its hint as plain text."""
    return Problem("connector", f"{mistake.path}: {mistake.message}", str(mistake.hint))


def lost(
    state: PipelineState | None, ids: Mapping[str, str], held: Held, back: Sequence[str] = ()
) -> Iterator[Problem]:
    """Yield problems with records that Kafka lost unread: the start is refused for them.

    Args:
        state: of the newest batch; None before the first.
        ids: of the topics as they were when they were read.
        held: what the brokers have of them now.
        back: tables that the configuration names again: of them the start asks for nothing.
    """
    found = gaps(state, ids, held) if state else []
    for gap in found:
        tables = " ".join(table for table in gap.tables if table not in back)
        if tables:
            hint = f"`lakemark recover --resnapshot {tables}`, then `lakemark run`"
            yield Problem(gap.code, gap.reason, hint, stops=True)
        elif gap.tables:
            again = f"{' '.join(gap.tables)} is named again: it is snapshotted again"
            yield Problem(gap.code, gap.reason, again)


def lost_commands(
    state: PipelineState | None, ids: Mapping[str, str], topic: str, held: Held
) -> Iterator[Problem]:
    """Yield the same as `lost` for the control topic."""
    offsets = {topic: {0: state.control}} if state and topic in held.ids else {}
    for gap in own_gaps(offsets, ids, held):
        hint = "`lakemark recover --control`, then `lakemark run`"
        yield Problem(CONTROL_LOST, gap.reason, hint, stops=True)


def snapshot(
    config: Config, sizes: Sequence[tuple[str, int, int]], refused: Mapping[str, str], most: int
) -> PlannedSnapshot:
    """Return the plan of a snapshot of all tables.

    Args:
        config: ours.
        sizes: table, rows and bytes, in the catalog's order, which is that of a run.
        refused: why some of them cannot be read.
        most: bytes that a chunk may have.
    """
    chunk_rows = config.snapshot.chunk_rows
    scans = []
    for table, rows, size in sizes:
        fitting = fitting_rows(chunk_rows, rows=rows, size=size, most=most)
        chunks = max(1, ceil(rows / fitting))
        why = refused.get(table, "")
        scans.append(PlannedScan(table, rows, size, 0 if why else chunks, why))
    return PlannedSnapshot(chunk_rows, config.snapshot.parallelism, tuple(scans))


def schema_from(*, in_events: bool | None, database: bool) -> SchemaFrom:
    """Return the source of the columns' types; `in_events` None: Connect's worker decides."""
    if in_events:
        return "events"
    if in_events is None:
        return "events or database" if database else "events or file"
    return "database" if database else "file"


def schema() -> dict[str, Any]:
    """Return the JSON Schema of `Plan`."""
    found = msgspec.json.schema(Plan)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
