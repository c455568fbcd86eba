"""The script of rights in Kafka: a line of `kafka-acls.sh` for each, with its reason. Pure."""

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from lakemark.kafka.rights import CREATE, OWN_TOPIC, SETTINGS, Right, own_rights
from lakemark.ops.prepare.comments import comment
from lakemark.settings.config import Config
from lakemark.settings.names import split_list, topic_safe
from lakemark.settings.table_id import TableId

if TYPE_CHECKING:
    from lakemark.connectors.connector import Connector

_HISTORY: Final = "schema.history.internal.kafka.topic"
_MADE: Final = ("describe", "write", CREATE)
_HEAD: Final = """\
#!/bin/sh
# The rights of the connector and of lakemark in Kafka. Run it as an administrator of the brokers:
#   BOOTSTRAP=… CONNECTOR=User:… LAKEMARK=User:… COMMAND_CONFIG=admin.properties sh kafka-rights.sh
# CONNECTOR is the principal of Connect's workers; the rights to their own topics are not here.
# It can be run again: what is there stays.
set -eu
BOOTSTRAP=${{BOOTSTRAP:-{brokers}}}
CONNECTOR=${{CONNECTOR:-User:connect}}
LAKEMARK=${{LAKEMARK:-User:{user}}}
ADMIN=${{COMMAND_CONFIG:+--command-config $COMMAND_CONFIG}}
ACLS="kafka-acls.sh --bootstrap-server $BOOTSTRAP $ADMIN --add"
"""


def acl_script(config: Config, connector: "Connector", homes: Sequence[str] | None) -> str:
    """Return the script.

    Args:
        config: ours.
        connector: as it is to be.
        homes: the schemas or databases of the captured tables; None where nobody knows them.
    """
    user = config.kafka.security.sasl_username or "lakemark"
    head = _HEAD.format(brokers=shlex.quote(config.kafka.bootstrap_servers), user=shlex.quote(user))
    heartbeat = _heartbeat(connector)
    changes = _changes(config, connector, homes)
    own = own_rights(config, changes, heartbeat, connector.schema_topic)
    return "\n".join(
        [
            head,
            "# --- the connector",
            *(_line("CONNECTOR", right) for right in connector_rights(connector)),
            "",
            "# --- lakemark",
            *(_line("LAKEMARK", right) for right in own),
            "",
        ]
    )


def _line(principal: str, right: Right) -> str:
    operations = " ".join(f"--operation {_in_words(one)}" for one in right.operations)
    where = f"--{right.kind} {shlex.quote(right.name)}".removesuffix(" ''")
    pattern = " --resource-pattern-type prefixed" * right.prefixed
    return (
        f"{comment('#', right.why)}\n"
        f'$ACLS --allow-principal "${principal}" {operations}{pattern} {where}'
    )


def _in_words(operation: str) -> str:
    return "".join(part.capitalize() for part in operation.split("_"))


def _changes(config: Config, connector: "Connector", homes: Sequence[str] | None) -> list[str]:
    """Return the beginnings of the change topics' names; where a router renames them, of all."""
    if config.source.topics is not None:
        return []
    start = connector.topic_prefix
    delimiter = connector.settings.get("topic.delimiter", ".")
    if homes is None:
        return [topic_safe(f"{start}{delimiter}")]
    signal = connector.signal_table
    more = [TableId.parse(signal).namespace] if signal else []
    return [
        topic_safe(f"{start}{delimiter}{home}{delimiter}")
        for home in dict.fromkeys((*homes, *more))
    ]


def _heartbeat(connector: "Connector") -> str:
    every = connector.settings.get("heartbeat.interval.ms", "0").strip()
    return connector.other_topics["heartbeat"] if every not in {"", "0"} else ""


def connector_rights(connector: "Connector") -> Iterator[Right]:
    """Yield the rights of the connector's principal."""
    settings, topics = connector.settings, connector.other_topics
    start = topic_safe(connector.topic_prefix + settings.get("topic.delimiter", "."))
    why = (
        "change events and transactions are written (create: unless somebody else makes the topics)"
    )
    yield Right(why, "topic", start, _MADE, prefixed=True)
    if heartbeat := _heartbeat(connector):
        yield Right("heartbeats tell that the log was read", "topic", heartbeat, _MADE)
    if history := settings.get(_HISTORY, ""):
        yield from _of_history(history, connector.topic_prefix)
    if notification := topics.get("notification"):
        yield Right("the connector's notifications", "topic", notification, _MADE)
    if "kafka" in split_list(settings.get("signal.enabled.channels", "source")):
        why = "the connector's own signals"
        yield Right(why, "topic", topics["signal"], ("describe", "read"))
        yield Right(why, "group", settings.get("signal.kafka.groupId", "kafka-signal"), ("read",))
    if settings.get("exactly.once.support", "").strip().lower() == "required":
        why = "exactly.once.support: the worker's group.id stands before the connector's name"
        yield Right(
            why,
            "transactional-id",
            "<group.id of the workers>-",
            ("describe", "write"),
            prefixed=True,
        )


def _of_history(topic: str, prefix: str) -> Iterator[Right]:
    why = "events about changed schemas are written (create: unless somebody else makes the topic)"
    yield Right(why, "topic", topic_safe(prefix), _MADE)
    why = "the connector keeps there which form its tables had, and reads it at its start"
    yield Right(why, "topic", topic, (*OWN_TOPIC, SETTINGS, CREATE))
    yield Right(f"as whom it reads {topic}", "group", f"{prefix}-schemahistory", ("read",))
    why = "the connector makes that topic with the brokers' replication factor"
    yield Right(why, "cluster", "", (SETTINGS,))
