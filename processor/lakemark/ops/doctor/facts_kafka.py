"""Questions to the brokers for `checks_topics`; nothing is written or created."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakemark.connectors.connector import Connector
from lakemark.connectors.parts import PipelinePart
from lakemark.errors import DependencyError, StateVersionError
from lakemark.kafka.brokers import Cluster
from lakemark.kafka.output_names import group_of, topic_of
from lakemark.kafka.own_topics import owner_group, topic_plan
from lakemark.model.offsets import Offsets
from lakemark.model.wanted import Wanted
from lakemark.ops.doctor.checks_outputs import tables_of
from lakemark.ops.doctor.checks_place import PlaceFacts
from lakemark.ops.doctor.checks_topics import ChangeTopics, KafkaFacts, OutputFacts, Topic
from lakemark.ops.stored_state import Stored, newest_state, paused_tables
from lakemark.settings.config import Config
from lakemark.settings.table_id import qualified
from lakemark.state.data_loss import Held
from lakemark.state.selection import select


@dataclass(frozen=True, slots=True)
class SourceTopics:
    """A connector whose topics are looked at.

    Attributes:
        part: of the configuration.
        connector: None when it is unknown: then none of its topics is.
        tables: the captured tables; None when they are unknown: then the topics tell.
        streams: whether the connector runs.
    """

    part: PipelinePart
    connector: Connector | None
    tables: Sequence[str] | None
    streams: bool


def kafka_facts(config: Config, sources: Sequence[SourceTopics]) -> KafkaFacts:
    """Return all facts about brokers and topics.

    Args:
        config: ours.
        sources: its connectors.

    Raises:
        DependencyError: the brokers do not answer.
        InvalidConfig: they do not let us in.
    """
    with Cluster(config) as cluster:
        return _facts(cluster, config, sources)


def _facts(cluster: Cluster, config: Config, sources: Sequence[SourceTopics]) -> KafkaFacts:
    brokers = cluster.brokers()
    captured = [_captured(cluster, source) for source in sources]
    stored, missing = _stored(config)
    connectors = [source.connector for source in sources if source.connector]
    if stored.state and len(connectors) == len(sources):  # as the next start does
        select(stored.state, Wanted.by_any([connector.wanted for connector in connectors]))
    read = stored.state.offsets if stored.state else {}
    outputs: dict[str, str] = {}
    for source, one in zip(sources, captured, strict=True):
        outputs |= tables_of(source.part.config, source.connector, one.tables, stored.state)
    written = [topic_of(config.output.topic_prefix, t) for t in outputs] if config.output else []
    changes = [topic for one in captured for topic in one.tables.values()]
    schema_topics = [one.schema_topic for one in captured if one.schema_topic]
    asked = (*topic_plan(config), *changes, *schema_topics, *read, *written)
    topics = _topics(cluster, list(dict.fromkeys(asked)))
    change = [name for name in changes if name in topics and topics[name].partitions]
    groups = [group_of(config.name, table) for table in outputs]
    permitted = cluster.permitted_with_groups([owner_group(config), *groups])
    return KafkaFacts(
        cluster_id=brokers.cluster_id,
        brokers=brokers.count,
        version=brokers.version,
        operations=brokers.operations,
        group=permitted.pop(owner_group(config)),
        topics=topics,
        captured=captured,
        ahead_s=_ahead(cluster.newest_ms(change)),
        place=_place(cluster, stored, topics, missing),
        outputs=OutputFacts(
            tables=outputs,
            empty=_empty(cluster, [n for n in written if n in topics and topics[n].partitions]),
            groups=permitted,
            transaction_ms=brokers.transaction_ms,
        ),
    )


def _captured(cluster: Cluster, source: SourceTopics) -> ChangeTopics:
    connector = source.connector
    if connector is None:
        return ChangeTopics({}, streams=False, connector=source.part.name)
    tables = _change_topics(cluster, source.part.config, connector, source.tables)
    return ChangeTopics(tables, source.streams, connector.schema_topic, source.part.name)


def _empty(cluster: Cluster, names: Sequence[str]) -> frozenset[str]:
    """Return those of the topics that hold no record."""
    first, ends = cluster.start_offsets(names), cluster.end_offsets(names, committed=False)
    held = {place[0] for place, end in ends.items() if end > first.get(place, 0)}
    return frozenset(names) - held


def _change_topics(
    cluster: Cluster, config: Config, connector: Connector, tables: Sequence[str] | None
) -> dict[str, str]:
    """Return the topic of each captured table and of the signal table."""
    if tables is None or config.source.topics:
        start = connector.topic_prefix + connector.settings.get("topic.delimiter", ".")
        names = cluster.topics(connector.topic_pattern)
        return {qualified(connector.qualifier, n.removeprefix(start)): n for n in names}
    signal = [connector.signal_table] if connector.signal_table else []
    return {table: connector.topic_of(table) for table in (*tables, *signal)}


def _ahead(newest_ms: int | None) -> float | None:
    return None if newest_ms is None else newest_ms / 1000 - time.time()


def _topics(cluster: Cluster, names: Sequence[str]) -> dict[str, Topic]:
    permitted = cluster.permitted(names)
    shown = [name for name, operations in permitted.items() if operations != frozenset()]
    counts, settings = cluster.partition_counts(shown), cluster.settings_of(shown)
    return {
        name: Topic(operations, counts.get(name, 0), settings.get(name))
        for name, operations in permitted.items()
    }


def _stored(config: Config) -> tuple[Stored, str]:
    """Return what the checkpoint holds, and the reason if a part of it is missing."""
    try:
        return newest_state(config), ""
    except (DependencyError, StateVersionError) as error:
        missing = error.message
    try:
        return Stored(paused_tables(config), {}), missing
    except DependencyError as error:
        return Stored(None, {}), f"{missing}; nor from the progress topic: {error.message}"


def _place(
    cluster: Cluster, stored: Stored, topics: Mapping[str, Topic], missing: str
) -> PlaceFacts:
    names = list(stored.state.offsets) if stored.state else []
    seen = {n: topics[n] for n in names if n in topics and topics[n].partitions}
    settings = {n: topic.settings or {} for n, topic in seen.items()}
    retention = {n: int(found.get("retention.ms", "-1")) for n, found in settings.items()}
    return PlaceFacts(
        state=stored.state,
        missing=missing,
        known=stored.topics,
        held=Held(
            cluster.topic_ids(seen),
            _by_topic(cluster.start_offsets(seen)),
            _by_topic(cluster.end_offsets(seen, committed=False)),
        ),
        aged=_by_topic(_aged(cluster, retention)),
        retention=retention,
        hidden=frozenset(n for n in names if n in topics and not topics[n].partitions),
    )


def _by_topic(offsets: Mapping[tuple[str, int], int]) -> Offsets:
    found: Offsets = {}
    for (topic, partition), offset in offsets.items():
        found.setdefault(topic, {})[partition] = offset
    return found


def _aged(cluster: Cluster, retention: Mapping[str, int]) -> dict[tuple[str, int], int]:
    """Return the first offsets younger than half of the retention, by topic and partition.

    Topics without a retention are left out.
    """
    by_span: dict[int, list[str]] = defaultdict(list)
    for name, span in retention.items():
        if span > 0:
            by_span[span].append(name)
    found: dict[tuple[str, int], int] = {}
    now_ms = time.time_ns() // 1_000_000
    for span, names in by_span.items():
        found |= cluster.offsets_since(names, now_ms - span // 2)
    return found
