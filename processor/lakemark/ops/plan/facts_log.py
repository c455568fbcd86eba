"""Questions to brokers and checkpoint for `lakemark plan`; nothing is written."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lakemark.connectors.connector import Connector
from lakemark.errors import DependencyError, StateVersionError
from lakemark.kafka.brokers import Cluster
from lakemark.kafka.output_names import topic_of
from lakemark.kafka.own_topics import topic_plan
from lakemark.kafka.records import read_compacted
from lakemark.model.wanted import Wanted
from lakemark.ops import lag, settings_record
from lakemark.ops.settings_record import SettingsRecord
from lakemark.ops.stored_state import Stored, newest_state
from lakemark.settings.config import Config
from lakemark.state.data_loss import Held
from lakemark.state.selection import select


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Facts from brokers and checkpoint.

    Attributes:
        counts: partitions of our own topics that exist.
        settings: of our own topics that exist, as far as we may know.
        known: first offsets and ends of the change topics.
        ids: Kafka's ids of the topics that were read.
        stored: the checkpoint; None if it cannot be read, and then `missing` says why.
        running: the settings that the query last ran with.
        back: tables that were left out, and that the configuration names again.
        control: ids, first offsets and ends of the control topic.
    """

    counts: Mapping[str, int]
    settings: Mapping[str, Mapping[str, str]]
    known: lag.Ends
    ids: Mapping[str, str]
    stored: Stored | None
    missing: DependencyError | StateVersionError | None
    running: SettingsRecord | None
    back: tuple[str, ...] = ()
    control: Held = field(default_factory=lambda: Held({}, {}, {}))


def log_facts(config: Config, connectors: Sequence[Connector]) -> LogFacts:
    """Return all facts about topics, offsets and the checkpoint.

    Args:
        config: ours.
        connectors: all of them.

    Raises:
        DependencyError: the brokers do not answer.
        InvalidConfig: they do not let us in.
    """
    stored, missing = None, None
    back: tuple[str, ...] = ()
    control_topics = [config.topics.control]
    with Cluster(config) as cluster:
        counts = cluster.partition_counts(topic_plan(config))
        try:
            stored = newest_state(config)
        except (DependencyError, StateVersionError) as error:
            missing = error
        if stored and stored.state:
            written = stored.state.output_prefixes
            connectors = [connector.having_written(written) for connector in connectors]
            wanted = Wanted.by_any([connector.wanted for connector in connectors])
            back = select(stored.state, wanted).back  # as the next start does
        read = list(stored.state.offsets) if stored and stored.state else []
        named = [n for connector in connectors for n in cluster.topics(connector.topic_pattern)]
        names = list(dict.fromkeys([*named, *read]))
        ends = cluster.end_offsets(names, committed=False)
        kafka = lag.Ends(lag.offsets(cluster.start_offsets(names)), lag.offsets(ends))
        settings, ids = cluster.settings_of(counts), cluster.topic_ids(read)
        control = Held(
            cluster.topic_ids(control_topics),
            lag.offsets(cluster.start_offsets(control_topics)),
            lag.offsets(cluster.end_offsets(control_topics, committed=False)),
        )
    kept = read_compacted(config, config.topics.progress)
    running = settings_record.decode(kept.get(settings_record.KEY))
    return LogFacts(counts, settings, kafka, ids, stored, missing, running, back, control)


def output_facts(
    config: Config, tables: Iterable[str]
) -> dict[str, tuple[frozenset[str] | None, int]]:
    """Return our rights and the number of partitions of output topics that exist or are hidden.

    Raises:
        DependencyError: the brokers do not answer.
    """
    if config.output is None:
        return {}
    prefix = config.output.topic_prefix
    with Cluster(config) as cluster:
        permitted = cluster.permitted([topic_of(prefix, table) for table in tables])
        counts = cluster.partition_counts([n for n, may in permitted.items() if may != frozenset()])
    return {name: (may, counts.get(name, 0)) for name, may in permitted.items()}
