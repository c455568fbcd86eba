"""`lakemark plan`: what would a run do? Asks everybody, changes nothing.

1. each connector says what it captures; what cannot work in one is the error that a run ends with;
2. the brokers say which topics there are, the checkpoint where it goes on, the database its tables;
3. each Delta table is compared with the columns of its source by the sink's own rules;
4. the settings are compared with those that the query last ran with;
5. the registry that gets the schemas of output topics is asked for their subjects.

If one of them does not answer, the command ends with the usual error. Every call has a deadline of
its own, and all calls to one of them together have `DEADLINE_S`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from msgspec.structs import replace

from lakemark.connectors import connector as connectors
from lakemark.connectors.catalogs import catalog_of
from lakemark.connectors.connector import Connector
from lakemark.connectors.database import DatabaseAccess, PlannedTables
from lakemark.connectors.parts import PipelinePart, parts_of, shared_prefixes
from lakemark.connectors.registry import database_of
from lakemark.converters.registry import converter_of
from lakemark.errors import LakemarkError
from lakemark.kafka.output_names import topic_of
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.schema import TableSchema
from lakemark.ops import settings_record
from lakemark.ops.plan import planned
from lakemark.ops.plan.facts_lake import targets
from lakemark.ops.plan.facts_log import LogFacts, log_facts, output_facts
from lakemark.ops.plan.planned import Plan, PlannedTable, Problem, Standing, Target
from lakemark.ops.question import Question
from lakemark.ops.settings_record import Change
from lakemark.settings import masking
from lakemark.settings.config import Config
from lakemark.settings.layers import InvalidConfig
from lakemark.settings.table_id import is_table, qualified, unqualified
from lakemark.state.data_loss import Held
from lakemark.version import __version__

T = TypeVar("T")

DEADLINE_S: Final = 60.0
"""For everything that one of them has to say; the worst case is as in `doctor`."""

_SET_BACK: Final = "set it back, or give the pipeline a checkpoint of its own"
_UNKNOWN: Final = "its records carry no schema, and neither database nor schema file knows it"
_DESCRIBE: Final = "leave it out by source.tables, or describe it in source.schema_file"
_NEVER: Final[tuple[planned.Compared, list[Change]]] = ("nothing", [])


def plan(config: Config, *, deadline_s: float = DEADLINE_S) -> Plan:
    """Return the effects of a run, as far as they can be known before.

    Raises:
        DependencyError: somebody does not answer.
        InvalidConfig: somebody refuses us, or a connector cannot be used.
    """
    parts = parts_of(config)
    found = _connectors(parts, deadline_s)
    about_log = Question("Kafka", lambda: log_facts(config, found))
    about_tables = [
        (part, connector, Question("the database", partial(_tables, part.config, connector)))
        for part, connector in zip(parts, found, strict=True)
    ]
    log = about_log.result(deadline_s)
    sources = [
        _SourceTables(part, connector, _answer(part, question, deadline_s))
        for part, connector, question in about_tables
    ]
    facts = _Known(config, sources, log)
    names = facts.names()
    at_lake = Question("the lake", lambda: facts.targets(names)).result(deadline_s)
    outputs = Question("Kafka", lambda: output_facts(config, names)).result(deadline_s)
    about_schemas = [
        (part, Question("the schema registry", partial(_subjects, config, connector, names)))
        for part, connector in zip(parts, found, strict=True)
    ]
    tables = tuple(facts.table(name, names[name], at_lake[name]) for name in sorted(names))
    compared, changes = facts.changes()
    return Plan(
        name=config.name,
        version=__version__,
        checkpoint=facts.standing(),
        tables=tables,
        topics=(
            *planned.own_topics(config, log.counts, log.settings),
            *planned.output_topics(config, tables, log.known, outputs),
        ),
        starts=facts.starts,
        snapshot=facts.snapshot(),
        compared=compared,
        changes=tuple(changes),
        problems=tuple(facts.problems()),
        registries=tuple(dict.fromkeys(filter(None, map(_registry_of, found)))),
        subjects=tuple(
            subject
            for part, question in about_schemas
            for subject in _answer(part, question, deadline_s)
        ),
    )


def _registry_of(connector: Connector) -> str:
    """Return the registry that has the schemas of a connector's records; empty without one."""
    return masking.foreign(converter_of(connector.converter).registry())


def _subjects(
    config: Config, connector: Connector, names: Iterable[str]
) -> list[planned.PlannedSubject]:
    """Return the subjects of a connector's output topics; none where no registry is written to."""
    if config.output is None or connector.writer is None:
        return []
    writer = converter_of(connector.writer)
    mine = sorted(name for name in names if unqualified(connector.qualifier, name) is not None)
    topics = [topic_of(config.output.topic_prefix, name) for name in mine]
    return [*planned.subjects(masking.foreign(writer.registry()), writer.subjects(topics))]


def _connectors(parts: Sequence[PipelinePart], deadline_s: float) -> list[Connector]:
    """Return the connectors, none of which has a problem that a run ends with."""
    questions = [Question("Kafka Connect", partial(connectors.read, part.config)) for part in parts]
    found = [
        part.named(_answer(part, question, deadline_s))
        for part, question in zip(parts, questions, strict=True)
    ]
    if shared := [part.mistake(mistake) for part, mistake in shared_prefixes(parts, found)]:
        raise InvalidConfig(shared)
    for connector in found:
        connector.require()
    return found


def _answer(part: PipelinePart, question: Question[T], deadline_s: float) -> T:
    try:
        return question.result(deadline_s)
    except LakemarkError as error:
        raise part.error(error) from error


def _tables(config: Config, connector: Connector) -> PlannedTables:
    modes = HandlingModes.from_connector(connector.settings)
    if config.database is None:
        found = catalog_of(config, modes, connector).read(None)
        return PlannedTables({t: s for t, s in found.items() if _is_table(connector, t)})
    access = DatabaseAccess(
        config.database, modes, connector.settings, qualifier=connector.qualifier
    )
    return database_of(access).planned_tables(connector)


def _is_table(connector: Connector, name: str) -> bool:
    return name in connector.tables and name != connector.signal_table


@dataclass(frozen=True, slots=True)
class _SourceTables:
    """A connector, and the tables that its database or its schema file has for it."""

    part: PipelinePart
    connector: Connector
    tables: PlannedTables

    @property
    def start(self) -> str:
        """The beginning of its topics' names."""
        return self.connector.topic_start

    def has(self, name: str) -> bool:
        """Say whether it is a connector of which there can be a table of this name."""
        return unqualified(self.connector.qualifier, name) is not None


class _Known:
    """All facts together, and the parts of the plan that follow from them."""

    def __init__(self, config: Config, sources: Sequence[_SourceTables], log: LogFacts) -> None:
        self._config, self._sources, self._log = config, sources, log
        self.state = log.stored.state if log.stored else None
        self.starts: tuple[planned.Start, ...] = ()
        if log.stored is not None:  # else nobody knows where it goes on
            starting = config.stream.starting
            self.starts = planned.starts(log.known, self.state, starting=starting)

    def standing(self) -> Standing:
        """Return the checkpoint's standing."""
        if self._log.stored is None:
            return Standing(self._config.checkpoint, None)
        return Standing(self._config.checkpoint, self.state.batch if self.state else -1)

    def names(self) -> dict[str, TableSchema | None]:
        """Return the tables of the catalog, of the state, and those known from their topics alone.

        The value is the catalog's schema; None for a table that the catalog does not have.
        """
        names: dict[str, TableSchema | None] = {}
        known = self.state.tables if self.state else ()
        for source in self._sources:
            names |= source.tables.schemas
            for name in (*known, *self._by_topics(source)):
                if _is_table(source.connector, name):
                    names.setdefault(name, None)
        return names

    def _by_topics(self, source: _SourceTables) -> list[str]:
        """Return tables named by their topics; none where a router has renamed these."""
        if source.part.config.source.topics:
            return []
        connector, start = source.connector, source.start
        starts = {other.start for other in self._sources} - {start}
        others = tuple(longer for longer in starts if longer.startswith(start))
        topics = [
            topic
            for topic in self._log.known.ends
            if topic.startswith(start) and not topic.startswith(others)
        ]
        known = {connector.topic_of(name) for name in source.tables.schemas}
        named = [topic.removeprefix(start) for topic in topics if topic not in known]
        return [qualified(connector.qualifier, name) for name in named if is_table(name)]

    def _source_of(self, name: str) -> _SourceTables:
        return next(source for source in self._sources if source.has(name))

    def targets(self, names: Mapping[str, TableSchema | None]) -> dict[str, Target]:
        """Return the action on the Delta table of each of these tables."""
        found: dict[str, Target] = {}
        for source in self._sources:
            own = {name: schema for name, schema in names.items() if source.has(name)}
            found |= targets(source.part.config, source.connector, own, self.state)
        return found

    def snapshot(self) -> planned.PlannedSnapshot | None:
        """Return the plan of a snapshot of all tables; None where there is no database."""
        found = [
            planned.snapshot(self._config, tables.sizes, tables.refused, tables.chunk_bytes)
            for source in self._sources
            if source.part.config.database is not None
            for tables in [source.tables]
        ]
        scans = tuple(scan for one in found for scan in one.tables)
        return replace(found[0], tables=scans) if found else None

    def table(self, name: str, schema: TableSchema | None, target: Target) -> PlannedTable:
        """Return the plan of one table, with the action on its Delta table."""
        entry = self.state.tables.get(name) if self.state else None
        source = self._source_of(name)
        topic = entry.topics[0] if entry and entry.topics else source.connector.topic_of(name)
        origin = planned.schema_from(
            in_events=source.connector.schemas_enabled,
            database=source.part.config.database is not None,
        )
        waiting = None
        if self._log.stored is not None:
            waiting = planned.waiting(
                name, topic, state=self.state, kafka=self._log.known, places=self.starts
            )
        if schema is None and waiting and not origin.startswith("events"):
            target = replace(
                target, action="stop", code="schema-unknown", reason=_UNKNOWN, hint=_DESCRIBE
            )
        if target.action == "rebuild" and (why := source.tables.refused.get(name)) is not None:
            target = replace(target, action="stop", hint=f"no snapshot can be taken of it: {why}")
        key = (
            schema.key if schema else tuple(entry.files.key) if entry and entry.files.key else None
        )
        exists = topic in self._log.known.ends
        state = entry.state if entry else ""
        return PlannedTable(name, topic, exists, key, origin, target, state, waiting)

    def changes(self) -> tuple[planned.Compared, list[Change]]:
        """Return the differences from the settings that ran last, else from the checkpoint's."""
        if self._log.running is not None:
            return "running", settings_record.changes(self._log.running.settings, self._config)
        return ("checkpoint", made) if (made := self._made_otherwise()) is not None else _NEVER

    def _made_otherwise(self) -> list[Change] | None:
        made_for = self._log.stored.made_for if self._log.stored else None
        return None if made_for is None else settings_record.changes(made_for, self._config)

    def problems(self) -> Iterator[Problem]:
        """Yield the problems that a run would end with, and others that somebody should know."""
        for problem in (p for source in self._sources for p in source.connector.problems):
            yield planned.of_connector(problem)
        log = self._log
        if log.missing is not None:
            missing = log.missing
            stops = not missing.retried
            yield Problem(missing.code, missing.message, missing.hint, stops=stops)
        for change in self._made_otherwise() or ():
            made = f"the checkpoint was made with {change.setting} {change.before}"
            yield Problem("checkpoint-mismatch", f"{made}, not {change.now}", _SET_BACK, stops=True)
        if log.stored is not None:
            held = Held(log.ids, log.known.starts, log.known.ends)
            ids, topic = log.stored.topics, self._config.topics.control
            yield from planned.lost(self.state, ids, held, log.back)
            yield from planned.lost_commands(self.state, ids, topic, log.control)
