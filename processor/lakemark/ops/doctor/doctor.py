"""`lakemark doctor`: is everything in order? Asks everybody, changes nothing.

1. this machine is looked at, while
2. the connector says what it captures,
3. the database is asked about those tables, and
4. the brokers about their topics.

If one of them does not answer, its own checks are errors, with the reason; all others go on with
what is known. Every call has a deadline of its own, and each of the four `DEADLINE_S`.
"""

from typing import Final

from lakemark.connectors.database import DatabaseAccess, Examination
from lakemark.connectors.registry import database_of
from lakemark.errors import ConfigError, LakemarkError
from lakemark.model.findings import Finding, fine, of_error, unchecked
from lakemark.model.handling_modes import HandlingModes
from lakemark.ops.doctor import checks_connector, checks_machine, checks_outputs, checks_topics
from lakemark.ops.doctor.facts_connector import ConnectorAnswers, connector_facts
from lakemark.ops.doctor.facts_kafka import kafka_facts
from lakemark.ops.doctor.facts_machine import machine_facts
from lakemark.ops.question import Question
from lakemark.settings.config import Config

DEADLINE_S: Final = 60.0
"""For everything that one of the four has to say. Four attempts at a Connect that is away take 44 s
with the default timeouts, a broker that is away 30 s."""


def examine(config: Config, *, deadline_s: float = DEADLINE_S) -> list[Finding]:
    """Return all findings: about brokers, topics, connector, database and machine."""
    machine = Question("this machine", lambda: machine_facts(config))
    connector, about_connector = _connector(config, deadline_s)
    database, about_database = _database(config, connector, deadline_s)
    about_kafka = _kafka(config, connector, database, deadline_s)
    try:
        about_machine = checks_machine.findings(machine.result(deadline_s))
    except LakemarkError as error:
        about_machine = [
            *of_error("machine", "", error),
            *unchecked(checks_machine.CHECKS, "the look at this machine did not end"),
        ]
    return [*about_kafka, *about_connector, *about_database, *about_machine]


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
    config: Config, answers: ConnectorAnswers | None, deadline_s: float
) -> tuple[Examination | None, list[Finding]]:
    if config.database is None:
        reason = "is not configured: there are no snapshots, and types come from schemas or a file"
        return None, [fine("database", "", reason)]
    settings = answers.connector.settings if answers else {}
    database = database_of(DatabaseAccess(config.database, _modes(answers), settings))
    named = config.source.tables or settings.get("table.include.list")
    try:
        examination = Question(
            "the database",
            lambda: database.examine(
                answers.connector if answers else None,
                streams=bool(answers and answers.facts.runs),
                chosen=bool(named),
            ),
        ).result(deadline_s)
    except LakemarkError as error:
        return None, [
            *of_error("database", "", error),
            *unchecked(database.checks[1:], "the database did not answer"),
        ]
    return examination, examination.findings


def _modes(answers: ConnectorAnswers | None) -> HandlingModes:
    try:
        return HandlingModes.from_connector(answers.connector.settings if answers else {})
    except ConfigError:  # a finding of the connector's
        return HandlingModes()


def _kafka(
    config: Config,
    answers: ConnectorAnswers | None,
    database: Examination | None,
    deadline_s: float,
) -> list[Finding]:
    tables = database.tables if database else None
    outputs = checks_outputs.CHECKS if config.output else ()
    try:
        facts = Question(
            "Kafka",
            lambda: kafka_facts(
                config,
                answers.connector if answers else None,
                tables,
                streams=bool(answers and answers.facts.runs),
            ),
        ).result(deadline_s)
    except LakemarkError as error:
        return [
            *of_error("brokers", config.kafka.bootstrap_servers, error),
            *unchecked((*checks_topics.CHECKS[1:], *outputs), "the brokers did not answer"),
        ]
    findings = [*checks_topics.findings(facts, config), *checks_outputs.findings(facts, config)]
    if answers is None:
        why = "which topics it writes is unknown without the connector"
        return findings + unchecked(["change topic", *outputs], why)
    return findings + checks_connector.other_cluster(answers.facts, facts.cluster_id)
