"""Asks Kafka Connect, or reads the connector's file, for `checks_connector`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakemark.connectors import connector as connectors
from lakemark.connectors.connect_rest import ConnectRest
from lakemark.connectors.connector import Connector
from lakemark.connectors.registry import database_kind
from lakemark.errors import LakemarkError
from lakemark.ops.doctor.checks_connector import CommittedOffsets, ConnectorFacts, Task
from lakemark.settings.config import Config


@dataclass(frozen=True, slots=True)
class ConnectorAnswers:
    """The connector as the pipeline uses it, and the facts that the doctor checks.

    Attributes:
        connector: as the pipeline uses it.
        facts: of it.
        offsets: what Connect has committed for it; none where Connect does not tell.
    """

    connector: Connector
    facts: ConnectorFacts
    offsets: Sequence[Mapping[str, Any]] = ()


def connector_facts(config: Config) -> ConnectorAnswers:
    """Return the connector and all facts about it.

    Raises:
        DependencyError: Connect does not answer.
        InvalidConfig: Connect does not know the connector, refuses us, or the file is unreadable.
    """
    connector = connectors.read(config)
    if config.source.connect is None:
        facts = ConnectorFacts(
            connector.name, connector.settings, connector.problems, connector.traits
        )
        return ConnectorAnswers(connector, facts)
    with ConnectRest(config.source.connect) as rest:
        status, worker = rest.status(), rest.worker()
    offsets, why = _offsets(config)
    facts = ConnectorFacts(
        name=connector.name,
        settings=connector.settings,
        problems=connector.problems,
        traits=connector.traits,
        state=status.state,
        tasks=tuple(Task(task.id, task.state, task.trace) for task in status.tasks),
        version=worker.version,
        cluster_id=worker.cluster_id,
        skew_s=worker.skew_s,
        committed=_committed(connector, offsets, why) if config.output else None,
    )
    return ConnectorAnswers(connector, facts, offsets)


def _offsets(config: Config) -> tuple[Sequence[Mapping[str, Any]], str]:
    """Return what Connect has committed for the connector, or the reason why it is unknown."""
    try:
        return connectors.offsets(config), ""
    except LakemarkError as error:
        return (), error.message


def _committed(
    connector: Connector, offsets: Sequence[Mapping[str, Any]], why: str
) -> CommittedOffsets:
    """Return the position that the connector has committed, or why it is unknown."""
    kind, server = database_kind(connector.settings), connector.topic_prefix
    return CommittedOffsets(kind.committed_position(offsets, 0, server=server), why)
