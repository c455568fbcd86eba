"""Brokers and topics: from their answers to findings. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from lakemark.kafka.own_topics import (
    allow_command,
    alter_command,
    create_command,
    owner_group,
    topic_plan,
    unusable,
)
from lakemark.kafka.rights import CREATE, OWN_TOPIC, READ_TOPIC, SETTINGS
from lakemark.model.findings import Finding, clock, fine, of_problem, warning, wrong
from lakemark.ops.doctor import checks_place
from lakemark.ops.doctor.checks_place import PlaceFacts
from lakemark.settings.config import Config
from lakemark.settings.units import show_duration

CHECKS: Final = ("brokers", "change topic", "own topic", *checks_place.CHECKS)
FOR_EVER: Final = "for ever"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists, or is kept from us.

    Attributes:
        operations: what we may do with it; empty: not even describe it; None: unknown.
        partitions: how many; 0 when unknown.
        settings: None when we may not ask.
    """

    operations: frozenset[str] | None
    partitions: int
    settings: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """Facts about output topics, from the brokers, beside `KafkaFacts.topics`.

    Attributes:
        tables: the change topic of each table that has an output topic; empty = not known.
        empty: output topics without a record.
        groups: what we may do with the consumer groups of their marks; None: unknown.
        transaction_ms: the longest that a transaction may take; None: unknown.
    """

    tables: Mapping[str, str] = field(default_factory=dict)
    empty: frozenset[str] = frozenset()
    groups: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    transaction_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ChangeTopics:
    """The change topics of a connector.

    Attributes:
        tables: the topic of each captured table.
        streams: whether the connector runs, so that topics should exist.
        schema_topic: the connector's topic of changed schemas, where it is read.
        connector: its name, where there are several.
    """

    tables: Mapping[str, str]
    streams: bool
    schema_topic: str = ""
    connector: str = ""


@dataclass(frozen=True, slots=True)
class KafkaFacts:
    """Facts from the brokers.

    Attributes:
        cluster_id: Kafka's id of the cluster.
        brokers: how many are up.
        version: of their protocol, empty when they do not tell.
        operations: what we may do with the cluster; None: unknown.
        group: what we may do with the group of `ownership`; None: unknown.
        topics: those asked for that exist, our own included.
        captured: the change topics of each connector that is known.
        ahead_s: by how much the newest record of the change topics is in our future; None: there
            is none.
        place: how far the pipeline has read.
        outputs: what is known of the output topics.
    """

    cluster_id: str
    brokers: int
    version: str
    operations: frozenset[str] | None
    group: frozenset[str] | None
    topics: Mapping[str, Topic]
    captured: Sequence[ChangeTopics]
    ahead_s: float | None = None
    place: PlaceFacts = field(default_factory=PlaceFacts)
    outputs: OutputFacts = field(default_factory=OutputFacts)

    @property
    def tables(self) -> Mapping[str, str]:
        """The topic of each captured table, of all connectors."""
        return {table: topic for one in self.captured for table, topic in one.tables.items()}


def findings(facts: KafkaFacts, config: Config) -> list[Finding]:
    """Return all findings about brokers and topics."""
    return [
        _brokers(facts, config),
        *_clock(facts.ahead_s),
        *_captured(facts, config),
        *_own_topics(facts, config),
        *_group(facts, config),
        *checks_place.findings(facts.place, config),
    ]


def _brokers(facts: KafkaFacts, config: Config) -> Finding:
    up = "1 broker" if facts.brokers == 1 else f"{facts.brokers} brokers"
    told = f"protocol {facts.version}" if facts.version else "version not told (from 4 on, none is)"
    reason = f"{up} of cluster {facts.cluster_id}, {told}"
    return fine("brokers", config.kafka.bootstrap_servers, reason)


def _clock(ahead_s: float | None) -> Iterator[Finding]:
    """Report a clock that is wrong: a record bears the time of its broker or writer.

    A record's time in our future shows that their clock or ours is wrong.
    """
    if ahead_s is not None and ahead_s > 0:
        yield clock("newest record in Kafka", ahead_s)


# --- change topics ---------------------------------------------------------------------------


def _captured(facts: KafkaFacts, config: Config) -> Iterator[Finding]:
    for one in facts.captured:
        for found in (*_change_topics(one, facts, config), *_schema_topic(one, facts, config)):
            yield replace(found, connector=one.connector)


def _change_topics(captured: ChangeTopics, facts: KafkaFacts, config: Config) -> Iterator[Finding]:
    existing = {t: name for t, name in captured.tables.items() if name in facts.topics}
    if captured.tables and not existing and captured.streams:
        table, topic = next(iter(captured.tables.items()))
        yield warning(
            "change topic",
            topic,
            f"none of the {len(captured.tables)} captured tables has a topic, {table} neither:"
            " there was no event yet, or the topics have other names",
            "check topic.prefix and routers of the connector; set source.topics where they rename",
        )
        return
    for table, name in captured.tables.items():
        if table not in existing:
            yield fine("change topic", name, "not there yet: the table's first event creates it")
        else:
            yield from _change_topic(name, facts.topics[name], config)


def _schema_topic(captured: ChangeTopics, facts: KafkaFacts, config: Config) -> Iterator[Finding]:
    name = captured.schema_topic
    if name in facts.topics:
        yield from _change_topic(name, facts.topics[name], config)
    elif name and captured.streams:
        yield warning(
            "change topic",
            name,
            "is not there: where the connector begins anew nothing says that changes are missing",
            "set include.schema.changes of the connector to true",
        )


def _change_topic(name: str, topic: Topic, config: Config) -> Iterator[Finding]:
    refused = list(missing_rights(name, topic, READ_TOPIC, config))
    yield from refused
    if topic.operations == frozenset():
        return
    if topic.settings is None:
        yield settings_hidden("change topic", name, config)
        return
    policy = topic.settings.get("cleanup.policy", "delete")
    if "compact" in policy:
        yield warning(
            "change topic",
            name,
            f"cleanup.policy is {policy}: compaction removes truncates and the history between two"
            " reads, so that a table that pauses may miss changes",
            alter_command(config, name, "cleanup.policy", "delete"),
        )
    elif not refused:
        kept = kept_for(topic.settings)
        yield fine("change topic", name, f"can be read; events are kept {kept}")


def kept_for(settings: Mapping[str, str]) -> str:
    """Return in words for how long a topic keeps its records."""
    size = int(settings.get("retention.bytes", "-1"))
    span = int(settings.get("retention.ms", "-1"))
    said = FOR_EVER if span < 0 else f"for {show_duration(timedelta(milliseconds=span))}"
    return said if size < 0 else f"{said}, {size:,} bytes a partition at most"


# --- rights ----------------------------------------------------------------------------------


def missing_rights(
    name: str, topic: Topic, needed: Sequence[str], config: Config
) -> Iterator[Finding]:
    """Yield one finding for all rights with a topic that we lack; none if we have all."""
    if topic.operations is None:
        return  # the broker does not say
    missing = [right for right in needed if right not in topic.operations]
    if missing:
        hidden = "it may not exist either: the broker does not say" if not topic.operations else ""
        reason = f"lakemark may not {' and '.join(missing)} it"
        yield wrong(
            "rights",
            name,
            f"{reason} ({hidden})" if hidden else reason,
            allow_command(config, missing, topic=name),
        )


def _group(facts: KafkaFacts, config: Config) -> Iterator[Finding]:
    group = owner_group(config)
    if facts.group is not None and "read" not in facts.group:
        yield wrong(
            "rights",
            f"group {group}",
            "lakemark may not join it: the brokers cannot tell which process runs the pipeline",
            allow_command(config, ["read"], group=group),
        )


def settings_hidden(check: str, name: str, config: Config) -> Finding:
    """Return the finding for a topic whose settings we may not see."""
    return warning(
        check,
        name,
        "its settings cannot be seen, so cleanup.policy and retention are unchecked",
        allow_command(config, [SETTINGS], topic=name),
    )


# --- our own topics --------------------------------------------------------------------------


def _own_topics(facts: KafkaFacts, config: Config) -> Iterator[Finding]:
    counts = {name: t.partitions for name, t in facts.topics.items() if t.partitions}
    settings = {n: t.settings for n, t in facts.topics.items() if t.settings is not None}
    refused: dict[str, list[Finding]] = {}
    for name, problem in unusable(config, counts, settings):
        refused.setdefault(name, []).append(of_problem("own topic", name, problem))
    for name, plan in topic_plan(config).items():
        topic = facts.topics.get(name)
        if topic is None:
            yield _own_missing(name, facts, config)
            continue
        problems = [
            *missing_rights(name, topic, OWN_TOPIC, config),
            *refused.get(name, ()),
        ]
        if topic.operations != frozenset():
            problems += _own_differs(name, topic, plan, config)
        yield from problems or [fine("own topic", name, "as lakemark makes it")]


def _own_missing(name: str, facts: KafkaFacts, config: Config) -> Finding:
    if facts.operations is not None and CREATE not in facts.operations:
        return warning(
            "own topic",
            name,
            "is not there, and lakemark may not create topics unless an ACL for the name does",
            create_command(config, name),
        )
    return fine("own topic", name, "not there yet: `lakemark run` creates it")


def _own_differs(
    name: str, topic: Topic, plan: tuple[int, dict[str, str]], config: Config
) -> Iterator[Finding]:
    count, settings = plan
    if topic.partitions > count == 1 and name != config.topics.control:
        yield warning(
            "own topic",
            name,
            f"has {topic.partitions} partitions, lakemark makes one: records of different keys have"
            " no order",
        )
    if topic.settings is None:
        yield settings_hidden("own topic", name, config)
        return
    kept, planned = int(topic.settings.get("retention.ms", "-1")), settings.get("retention.ms")
    if planned and 0 <= kept < int(planned):
        yield warning(
            "own topic",
            name,
            f"keeps records for {show_duration(timedelta(milliseconds=kept))} only: a pipeline that"
            " is down for longer misses some",
            alter_command(config, name, "retention.ms", planned),
        )
