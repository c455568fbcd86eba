"""`lakemark doctor`: is everything in order? Asks everybody, changes nothing.

1. this machine is looked at, while
2. the connector says what it captures,
3. the database is asked about those tables, and whoever its converter needs, such as a registry
   of schemas, about their topics, and
4. the brokers about their topics.

With several connectors steps 2 and 3 are done for all of them at the same time, and findings say of
which one they are; the brokers are asked once.

If one of them does not answer, its own checks are errors, with the reason; all others go on with
what is known. Every call has a deadline of its own, and each of the four `DEADLINE_S`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from lakemark.connectors.connector import Connector
from lakemark.connectors.database import DatabaseAccess, Examination
from lakemark.connectors.parts import PipelinePart, parts_of, shared_prefixes
from lakemark.connectors.registry import database_of
from lakemark.converters.converter import Converter
from lakemark.converters.registry import converter_of
from lakemark.errors import ConfigError, LakemarkError
from lakemark.kafka.output_names import topic_of
from lakemark.model.findings import Finding, fine, of_error, unchecked
from lakemark.model.handling_modes import HandlingModes
from lakemark.ops.doctor import checks_connector, checks_machine, checks_outputs, checks_topics
from lakemark.ops.doctor.checks_connector import ConnectorFacts
from lakemark.ops.doctor.facts_connector import ConnectorAnswers, connector_facts
from lakemark.ops.doctor.facts_kafka import SourceTopics, kafka_facts
from lakemark.ops.doctor.facts_machine import machine_facts
from lakemark.ops.question import Question
from lakemark.settings.config import Config
from lakemark.settings.table_id import qualified

DEADLINE_S: Final = 60.0
"""For everything that one of the four has to say. Four attempts at a Connect that is away take 44 s
with the default timeouts, a broker that is away 30 s."""


def examine(config: Config, *, deadline_s: float = DEADLINE_S) -> list[Finding]:
    """Return all findings: about brokers, topics, connectors, databases and machine."""
    machine = Question("this machine", lambda: machine_facts(config))
    parts = parts_of(config)
    with ThreadPoolExecutor(len(parts), "doctor") as pool:
        seen = [*pool.map(lambda part: _seen(part, deadline_s), parts)]
    about_kafka = _kafka(config, seen, deadline_s)
    about_connectors = [finding for one in seen for finding in one.findings]
    try:
        about_machine = checks_machine.findings(machine.result(deadline_s))
    except LakemarkError as error:
        about_machine = [
            *of_error("machine", "", error),
            *unchecked(checks_machine.CHECKS, "the look at this machine did not end"),
        ]
    return [*about_kafka, *about_connectors, *_shared_prefixes(seen), *about_machine]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A connector and its database, after the look at both.

    Attributes:
        part: of the configuration.
        connector: among the others; None if it gave no answer.
        facts: about it; None likewise.
        tables: that have events; None where nobody knows them.
        findings: about both.
    """

    part: PipelinePart
    connector: Connector | None
    facts: ConnectorFacts | None
    tables: list[str] | None
    findings: list[Finding]

    @property
    def topics(self) -> SourceTopics:
        runs = bool(self.facts and self.facts.runs)
        return SourceTopics(self.part, self.connector, self.tables, runs)


def _seen(part: PipelinePart, deadline_s: float) -> _Seen:
    answers, about_connector = _connector(part.config, deadline_s)
    facts = answers.facts if answers else None
    connector = part.named(answers.connector) if answers else None
    streams = bool(facts and facts.runs)
    offsets = answers.offsets if answers else ()
    database, about_database = _database(
        part.config, connector, offsets, deadline_s, streams=streams
    )
    qualifier = connector.qualifier if connector else ""
    tables = database.tables if database else None
    about_converter = _converter(part.config, connector, tables or (), deadline_s)
    about_all = (*about_connector, *about_database, *about_converter)
    findings = [part.finding(one, qualifier) for one in about_all]
    return _Seen(part, connector, facts, tables, findings)


def _shared_prefixes(seen: Sequence[_Seen]) -> Iterator[Finding]:
    parts, known = [one.part for one in seen], [one.connector for one in seen]
    for part, mistake in shared_prefixes(parts, known):
        yield part.finding(checks_connector.of_setting(mistake))


def _connector(config: Config, deadline_s: float) -> tuple[ConnectorAnswers | None, list[Finding]]:
    try:
        answers = Question("Kafka Connect", lambda: connector_facts(config)).result(deadline_s)
    except LakemarkError as error:
        connect = config.source.connect
        subject = connect.connector if connect else str(config.source.connector_file)
        return None, [
            *of_error("connector", subject, error),
            *unchecked(checks_connector.CHECKS[1:], "the connector's settings are unknown"),
        ]
    return answers, checks_connector.findings(answers.facts, config)


def _database(
    config: Config,
    connector: Connector | None,
    offsets: Sequence[Mapping[str, Any]],
    deadline_s: float,
    *,
    streams: bool,
) -> tuple[Examination | None, list[Finding]]:
    if config.database is None:
        reason = "is not configured: there are no snapshots, and types come from schemas or a file"
        return None, [fine("database", "", reason)]
    settings = connector.settings if connector else {}
    qualifier = connector.qualifier if connector else ""
    access = DatabaseAccess(config.database, _modes(settings), settings, qualifier=qualifier)
    database = database_of(access)
    named = config.source.tables or settings.get("table.include.list")
    try:
        examination = Question(
            "the database",
            lambda: database.examine(
                connector, streams=streams, chosen=bool(named), offsets=offsets
            ),
        ).result(deadline_s)
    except LakemarkError as error:
        return None, [
            *of_error("database", "", error),
            *unchecked(database.checks[1:], "the database did not answer"),
        ]
    return examination, examination.findings


def _converter(
    config: Config, connector: Connector | None, tables: Sequence[str], deadline_s: float
) -> list[Finding]:
    """Return what the connector's converter finds of what it needs beside the records.

    Then what that of the output topics does, where it is told something else, and whether it would
    be refused the newest schemas.
    """
    if connector is None:
        return []
    # A router gives topics other names, which nobody here knows.
    topics = [] if config.source.topics else [connector.topic_of(table) for table in tables]
    found = _asked(converter_of(connector.converter), topics, deadline_s)
    writer = connector.writer
    if writer is None:
        return found
    reader, writes = converter_of(connector.converter), converter_of(writer)
    if writer.options != connector.converter.options:
        found += _asked(writes, [], deadline_s)
    prefix = config.output.topic_prefix if config.output else ""
    pairs = zip(topics, tables, strict=False)
    named = [(topic, qualified(connector.qualifier, table)) for topic, table in pairs]
    outputs = {topic: topic_of(prefix, name) for topic, name in named}
    about = _asked_by(writes, lambda: writes.examine_output(outputs, reader), deadline_s)
    return [*found, *(finding for finding in about if finding not in found)]


def _asked(converter: Converter, topics: Sequence[str], deadline_s: float) -> list[Finding]:
    return _asked_by(converter, lambda: converter.examine(topics), deadline_s)


def _asked_by(
    converter: Converter, question: Callable[[], list[Finding]], deadline_s: float
) -> list[Finding]:
    if not converter.checks:
        return []
    who, *others = converter.checks
    try:
        return Question(f"the {who}", question).result(deadline_s)
    except LakemarkError as error:
        return [*of_error(who, "", error), *unchecked(others, f"the {who} did not answer")]


def _modes(settings: Mapping[str, str]) -> HandlingModes:
    try:
        return HandlingModes.from_connector(settings)
    except ConfigError:  # a finding of the connector's
        return HandlingModes()


def _kafka(config: Config, seen: Sequence[_Seen], deadline_s: float) -> list[Finding]:
    outputs = checks_outputs.CHECKS if config.output else ()
    try:
        facts = Question("Kafka", lambda: kafka_facts(config, [one.topics for one in seen])).result(
            deadline_s
        )
    except LakemarkError as error:
        return [
            *of_error("brokers", config.kafka.bootstrap_servers, error),
            *unchecked((*checks_topics.CHECKS[1:], *outputs), "the brokers did not answer"),
        ]
    parts = {one.part.name: one.part for one in seen}
    found = [*checks_topics.findings(facts, config), *checks_outputs.findings(facts, config)]
    findings = [parts[f.connector].finding(f) if f.connector in parts else f for f in found]
    for one in seen:
        if one.facts is None:
            why = "which topics it writes is unknown without the connector"
            more = unchecked(["change topic", *outputs], why)
        else:
            more = checks_connector.other_cluster(one.facts, facts.cluster_id)
        findings += map(one.part.finding, more)
    return findings
