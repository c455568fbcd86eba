"""Output topics: from what the brokers say of them to findings. Pure.

Whether lakemark may use its transactional ids cannot be asked: no broker tells.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from lakemark.kafka import output_names
from lakemark.kafka.output_names import (
    TRANSACTION_MS,
    group_of,
    groups_of,
    topic_of,
    topic_settings,
)
from lakemark.kafka.own_topics import (
    allow_command,
    alter_command,
    delete_command,
    make_command,
    widen_command,
)
from lakemark.kafka.rights import CREATE, OUTPUT_TOPIC
from lakemark.model.findings import Finding, fine, warning, wrong
from lakemark.ops.doctor.checks_topics import (
    FOR_EVER,
    KafkaFacts,
    Topic,
    kept_for,
    missing_rights,
    settings_hidden,
)
from lakemark.settings.config import Config
from lakemark.state.tables import PipelineState

if TYPE_CHECKING:
    from lakemark.connectors.connector import Connector

CHECK: Final = "output topic"
CHECKS: Final = (CHECK,)

# What a record has beside the event's value: the key, once more in `lakemark.id`, the connector's
# headers. Keys of more than some kB are not indexed by PostgreSQL.
_BESIDE: Final = 64 << 10


def findings(facts: KafkaFacts, config: Config) -> list[Finding]:
    """Return all findings about the output topics; nothing where there are none."""
    if config.output is None:
        return []
    hides = list(_hides_changes(facts, config))
    if hides:
        return hides
    found: list[Finding] = []
    for table, like in facts.outputs.tables.items():
        found += _of(table, like, facts, config)
    return [*found, *_groups(facts, config), *_transactions(facts, config)]


def tables_of(
    config: Config,
    connector: "Connector | None",
    topics: Mapping[str, str],
    state: PipelineState | None,
) -> dict[str, str]:
    """Return the tables that have output topics, each with its change topic.

    Args:
        config: ours.
        connector: None when it is unknown: then nobody knows the tables.
        topics: change topics of tables, as the connector names them. Where a router renames them
            only the checkpoint knows whose they are.
        state: of the newest batch; None before the first.
    """
    if config.output is None or connector is None:
        return {}
    known = {} if config.source.topics else dict(topics)
    for table, entry in (state.tables if state else {}).items():
        if entry.topics:
            known[table] = entry.topics[0]
    return {t: n for t, n in known.items() if t in connector.tables and t != connector.signal_table}


def needed_bytes(config: Config) -> int:
    """Return the least `max.message.bytes` that takes every event which is no dead letter."""
    return config.stream.max_event_bytes + _BESIDE


def _hides_changes(facts: KafkaFacts, config: Config) -> Iterator[Finding]:
    """Report change topics that are named like output topics: those are never read."""
    prefix = config.output.topic_prefix if config.output else ""
    hidden = output_names.hidden(prefix, facts.tables.values())
    if hidden:
        yield wrong(
            CHECK,
            "output.topic_prefix",
            f"{prefix} is what the names of {len(hidden)} change topics begin with, {hidden[0]} for"
            " one: they are taken for output topics, and none is read",
            "set output.topic_prefix to a name that no change topic begins with",
        )


def _of(table: str, like: str, facts: KafkaFacts, config: Config) -> Iterator[Finding]:
    name = _name(table, config)
    empty = name in facts.outputs.empty
    source, topic = facts.topics.get(like), facts.topics.get(name)
    needed = source.partitions if source else 0
    if topic is None:
        yield _absent(name, needed, facts, config)
        return
    found = list(missing_rights(name, topic, OUTPUT_TOPIC, config))
    if topic.operations != frozenset():
        found += _partitions(table, topic.partitions, needed, empty=empty, config=config)
        found += _settings(name, topic, config)
    yield from found or [fine(CHECK, name, _kept(topic))]


def _name(table: str, config: Config) -> str:
    return topic_of(config.output.topic_prefix if config.output else "", table)


def _made_with(config: Config) -> dict[str, str]:
    return topic_settings(max(config.dead_letters.max_record_bytes, needed_bytes(config)))


# --- a topic that is not there ----------------------------------------------------------------


def _absent(name: str, partitions: int, facts: KafkaFacts, config: Config) -> Finding:
    size = config.dead_letters.max_record_bytes
    command = make_command(config, name, partitions, _made_with(config))
    if facts.operations is not None and CREATE not in facts.operations:
        reason = "is not there, and lakemark may not create topics unless an ACL for the name does"
        return warning(CHECK, name, reason, command)
    if size < needed_bytes(config):
        return warning(
            CHECK,
            name,
            f"is not there yet, and would be made for records of {size:,} bytes"
            f" (dead_letters.max_record_bytes): events of stream.max_event_bytes need"
            f" {needed_bytes(config):,}",
            command,
        )
    reason = "not there yet: its first record makes it, with the partitions of the change topic"
    return fine(CHECK, name, reason)


# --- a topic that is there --------------------------------------------------------------------


def _partitions(
    table: str, has: int, needed: int, *, empty: bool, config: Config
) -> Iterator[Finding]:
    if not has or not needed or has == needed:
        return
    name = _name(table, config)
    count = "1 partition" if has == 1 else f"{has} partitions"
    reason = f"has {count}, its change topic {needed}: keys do not stand beside each other"
    if has < needed and empty:
        yield warning(CHECK, name, reason, widen_command(config, name, needed))
        return
    anew = [
        delete_command(config, name),
        make_command(config, name, needed, _made_with(config)),
        "lakemark run",
    ]
    if any(part.database for part in config.parts) and not empty:
        anew.append(f"lakemark snapshot start {table}")
    yield warning(
        CHECK,
        name,
        f"{reason}. It must be made anew while lakemark is stopped; consumers read it again",
        "; ".join(anew),
    )


def _settings(name: str, topic: Topic, config: Config) -> Iterator[Finding]:
    settings = topic.settings
    if settings is None:
        yield settings_hidden(CHECK, name, config)
        return
    needed = needed_bytes(config)
    most = int(settings.get("max.message.bytes", str(needed)))
    if most < needed:
        best = max(needed, config.dead_letters.max_record_bytes)
        yield warning(
            CHECK,
            name,
            f"takes records of {most:,} bytes, events of stream.max_event_bytes need {needed:,}:"
            " its table stops at a larger one",
            alter_command(config, name, "max.message.bytes", str(best)),
        )
    policy = settings.get("cleanup.policy", "delete")
    if "compact" in policy and "delete" in policy:
        yield warning(
            CHECK,
            name,
            f"cleanup.policy is {policy}, records are kept {kept_for(settings)}: a row that does"
            " not change for longer leaves it",
            alter_command(config, name, "cleanup.policy", "compact"),
        )


def _kept(topic: Topic) -> str:
    settings = topic.settings or {}
    if "compact" in settings.get("cleanup.policy", "delete"):
        return "compacted: keeps the newest record of each key"
    kept = kept_for(settings)
    if kept == FOR_EVER:
        return "keeps every record for ever"
    return f"records are kept {kept}: who reads from its beginning gets what is left, not all rows"


# --- rights and transactions ------------------------------------------------------------------


def _groups(facts: KafkaFacts, config: Config) -> Iterator[Finding]:
    groups = facts.outputs.groups
    refused = [
        table
        for table in facts.outputs.tables
        if (may := groups.get(group_of(config.name, table))) is not None and "read" not in may
    ]
    if refused:
        begin = groups_of(config.name)
        yield wrong(
            "rights",
            f"groups {begin}*",
            f"lakemark may not read {len(refused)} of {len(facts.outputs.tables)}, that of"
            f" {refused[0]} for one: without their marks nothing is written",
            allow_command(config, ["read"], group=begin, prefixed=True),
        )


def _transactions(facts: KafkaFacts, config: Config) -> Iterator[Finding]:
    longest = facts.outputs.transaction_ms
    if longest is not None and longest < TRANSACTION_MS:
        yield wrong(
            "brokers",
            config.kafka.bootstrap_servers,
            f"transaction.max.timeout.ms is {longest}: the output topics' transactions need"
            f" {TRANSACTION_MS}",
            f"set transaction.max.timeout.ms={TRANSACTION_MS} in every broker's server.properties",
        )
