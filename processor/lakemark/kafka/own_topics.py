"""lakemark's own topics: partitions and settings of each, and what is wrong with one that exists.

Pure. `brokers.Cluster` makes the topics and refuses what cannot work; `lakemark doctor` shows it.
The commands are for any topic and group; those of the output topics are named in `output_names`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lakemark.settings.config import Config
from lakemark.settings.layers import Mistake

_DAY_MS: Final = 86_400_000

Plan = dict[str, tuple[int, dict[str, str]]]
"""Number of partitions and settings, by topic."""


def topic_plan(config: Config) -> Plan:
    """Our own topics: number of partitions and settings of each.

    Topics that the query reads keep a month: one that is down longer finds a gap and says so.
    Chunks keep a week; they can be read from the database again.
    """
    month = {"retention.ms": str(30 * _DAY_MS)}
    topics, shards = config.topics, config.stream.shards
    return {
        topics.signals: (1, month),
        topics.notifications: (1, month),
        # A record holds at most 900 kB of rows, unless a single row is larger.
        topics.chunks: (
            shards,
            {
                "retention.ms": str(7 * _DAY_MS),
                "max.message.bytes": str(max(2 * 1024**2, config.dead_letters.max_record_bytes)),
            },
        ),
        topics.control: (1, month),
        topics.progress: (1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}),
        topics.dead_letters: (
            shards,
            {**month, "max.message.bytes": str(config.dead_letters.max_record_bytes)},
        ),
    }


def owner_group(config: Config) -> str:
    """The consumer group that says which process runs the pipeline."""
    return f"{config.name}.owner"


def create_command(config: Config, name: str) -> str:
    """The command that makes one of our topics as lakemark would."""
    return make_command(config, name, *topic_plan(config)[name])


def make_command(config: Config, name: str, partitions: int, settings: Mapping[str, str]) -> str:
    """The command that makes a topic; 0 partitions: as many as the brokers give it."""
    count = f" --partitions {partitions}" if partitions else ""
    options = " ".join(f"--config {key}={value}" for key, value in settings.items())
    return f"{_topics_command(config, 'create', name)}{count} {options}"


def widen_command(config: Config, name: str, partitions: int) -> str:
    """The command that gives a topic more partitions."""
    return f"{_topics_command(config, 'alter', name)} --partitions {partitions}"


def delete_command(config: Config, name: str) -> str:
    """The command that deletes a topic."""
    return _topics_command(config, "delete", name)


def _topics_command(config: Config, action: str, name: str) -> str:
    brokers = config.kafka.bootstrap_servers
    return f"kafka-topics.sh --bootstrap-server {brokers} --{action} --topic {name}"


def alter_command(config: Config, name: str, setting: str, value: str) -> str:
    """The command that gives a topic another setting."""
    return (
        f"kafka-configs.sh --bootstrap-server {config.kafka.bootstrap_servers} --alter"
        f" --entity-type topics --entity-name {name} --add-config {setting}={value}"
    )


def allow_command(
    config: Config,
    operations: Sequence[str],
    *,
    topic: str = "",
    group: str = "",
    prefixed: bool = False,
) -> str:
    """The command that lets us do something with a topic, or with a consumer group.

    Args:
        config: ours.
        operations: in the brokers' words, as ``describe_configs``.
        topic: name of the topic.
        group: name of the group, where it is about none.
        prefixed: whether the name is what many begin with.
    """
    user = config.kafka.security.sasl_username or "<lakemark's principal>"
    each = " ".join(f"--operation {_in_words(operation)}" for operation in operations)
    where = f"--topic {topic}" if topic else f"--group {group}"
    return (
        f"kafka-acls.sh --bootstrap-server {config.kafka.bootstrap_servers} --add"
        f" --allow-principal 'User:{user}' {each} {where}"
        f"{' --resource-pattern-type prefixed' * prefixed}"
    )


def _in_words(operation: str) -> str:
    return "".join(part.capitalize() for part in operation.split("_"))


def unusable(
    config: Config, counts: Mapping[str, int], settings: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, Mistake]]:
    """Yield what cannot work about our topics that exist: the topic, the problem and the command.

    Args:
        config: ours.
        counts: number of partitions by topic.
        settings: by topic; a topic whose settings are unknown is left out.
    """
    control = config.topics.control
    if counts.get(control, 1) != 1:
        yield (
            control,
            Mistake(
                "kafka",
                f"{control} has {counts[control]} partitions; its order needs exactly one",
                f"delete it while lakemark is stopped, or choose another name: in {control}",
            ),
        )
    for name, (_, wanted) in topic_plan(config).items():
        found = settings.get(name)
        if found is None:
            continue
        compact = "cleanup.policy" in wanted
        if compact != ("compact" in found.get("cleanup.policy", "delete")):
            yield name, _to_alter(config, name, "cleanup.policy", wanted, default="delete")
        if int(found.get("max.message.bytes", "0")) < int(wanted.get("max.message.bytes", "0")):
            yield name, _to_alter(config, name, "max.message.bytes", wanted)


def _to_alter(
    config: Config, name: str, setting: str, wanted: Mapping[str, str], *, default: str = ""
) -> Mistake:
    value = wanted.get(setting, default)
    return Mistake(
        "kafka",
        f"{name} exists, but its {setting} must be {value}",
        f"run: {alter_command(config, name, setting, value)}",
    )
