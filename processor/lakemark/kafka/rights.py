"""The rights that brokers with ACLs must give: operations on topics, groups and transactions. Pure.

The doctor asks the brokers for lakemark's; `lakemark prepare` writes them all down.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from lakemark.kafka.output_names import groups_of
from lakemark.kafka.own_topics import owner_group, topic_plan
from lakemark.settings.config import Config

READ_TOPIC: Final = ("describe", "read")
OWN_TOPIC: Final = ("describe", "read", "write")
OUTPUT_TOPIC: Final = ("describe", "write")
SETTINGS: Final = "describe_configs"
CREATE: Final = "create"

Kind = Literal["topic", "group", "transactional-id", "cluster"]


@dataclass(frozen=True, slots=True)
class Right:
    """Operations on one resource, or on all whose names begin alike.

    Attributes:
        why: what needs them.
        kind: of the resource, as `kafka-acls.sh` has it.
        name: of it; empty for the cluster.
        operations: in the brokers' words, as ``describe_configs``.
        prefixed: whether the name is what many begin with.
    """

    why: str
    kind: Kind
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False


def own_rights(
    config: Config, changes: Sequence[str], heartbeat: str, schema_topic: str = ""
) -> Iterator[Right]:
    """Yield the rights of lakemark's principal.

    Args:
        config: ours.
        changes: what the names of the change topics begin with.
        heartbeat: the topic of the connector's heartbeats; empty where it writes none.
        schema_topic: that of changed schemas; empty where it is not read.
    """
    for start in changes:
        why = "change events are read; with the settings doctor sees retention and compaction"
        yield Right(why, "topic", start, (*READ_TOPIC, SETTINGS), prefixed=True)
    if schema_topic:
        why = "here the connector says that it begins without offsets"
        yield Right(why, "topic", schema_topic, (*READ_TOPIC, SETTINGS))
    for name in topic_plan(config):
        why = "a topic of lakemark's own (create: unless somebody else makes it)"
        yield Right(why, "topic", name, (*OWN_TOPIC, SETTINGS, CREATE))
    why = "the group says which process runs the pipeline"
    yield Right(why, "group", owner_group(config), ("read",))
    if heartbeat:
        why = "the end of this topic shows how old the newest heartbeat is"
        yield Right(why, "topic", heartbeat, ("describe",))
    if config.output is not None:
        yield from _output_rights(config.output.topic_prefix, config.name)


def _output_rights(prefix: str, pipeline: str) -> Iterator[Right]:
    why = "output topics (create: unless somebody else makes them)"
    yield Right(why, "topic", f"{prefix}.", (*OUTPUT_TOPIC, SETTINGS, CREATE), prefixed=True)
    start = groups_of(pipeline)
    why = "an output topic is written in transactions: each event is there once"
    yield Right(why, "transactional-id", start, ("describe", "write"), prefixed=True)
    why = "their marks say how far an output topic is written"
    yield Right(why, "group", start, ("read",), prefixed=True)
