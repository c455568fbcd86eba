"""The connectors of a pipeline, one or several, as its batches need them.

All of them are read by one query. What is different for each is found by a topic (`owners`) or by
the qualifier in a table's name (`of_table`); everything else of a pipeline knows of tables only.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

from lakemark.connectors.connector import TRANSACTION, Connector, topic_owners
from lakemark.connectors.qualified_database import under
from lakemark.model.definitions import TableChange
from lakemark.model.handling_modes import HandlingModes
from lakemark.model.offsets import Offsets
from lakemark.model.schema import TableSchema
from lakemark.model.topic_owners import TopicOwners
from lakemark.model.wanted import Wanted
from lakemark.ops.sent_events import ConnectorEvents
from lakemark.settings.config import Config
from lakemark.settings.table_id import unqualified
from lakemark.snapshot.signal_parts import own_runs
from lakemark.sources.cutting import TRANSACTIONS, TransactionTopic
from lakemark.sources.schema_topics import SchemaTopic
from lakemark.state.schema_refresh import Catalog
from lakemark.state.tables import PipelineState
from lakemark.tasks import PlanPart

NOTHING: Final = "(?!)"
"""Java regular expression of no topic at all."""


@dataclass(frozen=True)
class PipelineSource:
    """One connector.

    Attributes:
        config: of a pipeline that has this connector alone, see `Config.parts`.
        connector: as it is configured.
        catalog: its tables' schemas.
        modes: its handling modes.
    """

    config: Config
    connector: Connector
    catalog: Catalog
    modes: HandlingModes

    @property
    def qualifier(self) -> str:
        """The qualifier of its tables' names; empty where it is the only connector."""
        return self.connector.qualifier

    def has(self, table: str) -> bool:
        """Say whether a table is this connector's, by its name."""
        return unqualified(self.qualifier, table) is not None

    def part(self, state: PipelineState) -> PlanPart:
        """Return what is its own of a batch's plan."""
        own = (table for table in state.learnt_tables if self.has(table))
        return PlanPart(
            identity=self.connector.identity,
            modes=self.modes,
            converter=self.connector.converter,
            outputs=self.config.source.topics is not None,
            epochs=tuple(state.log_of(self.qualifier).epochs),
            wrapped=self.connector.wraps or any(own),
            learnt=state.learnt(self.qualifier),
            writer=self.connector.writer,
        )

    def schema_topic(self) -> SchemaTopic | None:
        """Return the topic that tells of its tables' definitions; None where it is not needed.

        So it is where all records bring their schemas, and where the connector does not tell of new
        statements. Where no database is asked, the schemas that somebody has written down count.
        """
        connector = self.connector
        name = connector.schema_topic
        tells = connector.settings.get("include.schema.changes", "true").strip().lower() == "true"
        if not name or not tells or not self.catalog.live or connector.schemas_enabled:
            return None

        def definitions(tables: Sequence[TableChange]) -> Iterable[tuple[str, TableSchema]]:
            found = connector.traits.definitions(tables, self.modes)
            return under(self.qualifier, dict(found)).items()

        return SchemaTopic(
            name,
            connector.identity,
            connector.converter,
            self.modes,
            connector.tables,
            definitions,
        )


@dataclass(frozen=True)
class Sources:
    """All of them that are there.

    Attributes:
        of: each; exactly one without a qualifier, or any number of others with one each.
    """

    of: tuple[PipelineSource, ...]

    @property
    def several(self) -> bool:
        """Say whether tables' names have qualifiers."""
        return any(source.qualifier for source in self.of) or not self.of

    def of_table(self, table: str) -> PipelineSource | None:
        """Return the connector of a table; None if it is none of these."""
        return next((source for source in self.of if source.has(table)), None)

    def runs(self, armed: Iterable[str]) -> set[str]:
        """Return the armed runs of snapshots that go on: those of these connectors.

        One that is not here reads no chunk, and nothing of its log comes. When it is back it arms
        its runs again, as for a new query, and reads what was not settled.
        """
        known = frozenset(armed)
        return {run for source in self.of for run in own_runs(known, source.qualifier)}

    @cached_property
    def owners(self) -> TopicOwners:
        """The connectors of topics."""
        return topic_owners(source.connector for source in self.of)

    @property
    def topic_patterns(self) -> tuple[str, ...]:
        """Java regular expressions of the topics that are read, one of each connector."""
        return tuple(source.connector.topic_pattern for source in self.of)

    @cached_property
    def topic_pattern(self) -> str:
        """Java regular expression of the topics that are read, see `Connector.topic_pattern`.

        It is for Java: of many connectors it may be larger than what is compiled here.
        """
        patterns = self.topic_patterns
        if len(patterns) == 1:
            return patterns[0]
        return "|".join(f"(?:{pattern})" for pattern in patterns) or NOTHING

    @property
    def output_prefixes(self) -> list[str]:
        """The prefixes of output topics, of now and of earlier, see `Connector.output_prefixes`."""
        return [*dict.fromkeys(p for s in self.of for p in s.connector.output_prefixes)]

    @property
    def chosen(self) -> Container[str]:
        """The tables that are chosen of whatever comes, see `Connector.chosen`."""
        return _AnyOf(tuple(source.connector.chosen for source in self.of))

    @property
    def wanted(self) -> Wanted:
        """The topics and tables that a checkpoint may keep, see `Connector.wanted`.

        A table of a connector that is not here counts as captured: nobody says that it is not.
        """
        each = [source.connector.wanted for source in self.of]

        def captured(table: str) -> bool:
            source = self.of_table(table)
            return source is None or source.connector.wanted.captured(table)

        return Wanted(
            topic=lambda topic: any(one.topic(topic) for one in each),
            tables=_AnyOf(tuple(one.tables for one in each)),
            captured=captured,
        )

    def moved_by(self, qualifier: str, statement: str, tables: Iterable[str]) -> list[str]:
        """Return the tables whose rows a statement may have moved, see `ConnectorTraits.moved_by`.

        Args:
            qualifier: of the connector in whose schema topic the statement is.
            statement: its text.
            tables: those that there are, of all connectors.
        """
        for source in self.of:
            if source.qualifier == qualifier:
                own = {source.connector.bare(name): name for name in tables if source.has(name)}
                return [own[name] for name in source.connector.traits.moved_by(statement, own)]
        return []

    def schema_topics(self) -> list[SchemaTopic]:
        """Return the schema topics that are followed, see `PipelineSource.schema_topic`."""
        return [topic for source in self.of if (topic := source.schema_topic()) is not None]

    def transaction_topics(self) -> list[TransactionTopic]:
        """Return the transaction topics by which batches are made to end, see `stream.cuts`."""
        found = []
        for source in self.of:
            name = source.connector.other_topics.get(TRANSACTION, "")
            if name and source.config.stream.cuts == TRANSACTIONS:
                has_rows = partial(self._has_rows, source.connector)
                starts = source.config.stream.starting == "earliest"
                sent = partial(_sent, ConnectorEvents(source.config, source.connector))
                found.append(
                    TransactionTopic(name, source.connector, source.modes, has_rows, sent, starts)
                )
        return found

    def _has_rows(self, connector: Connector, topic: str) -> bool:
        """Say whether a topic has rows of a connector's tables, as far as its name tells."""
        signal = connector.topic_of(connector.signal_table) if connector.signal_table else ""
        others = {*connector.other_topics.values(), signal}
        return topic not in others and self.owners(topic) == connector.qualifier

    def catalogs(self) -> Mapping[str, Catalog]:
        """Return the catalog of each, by its qualifier."""
        return {source.qualifier: source.catalog for source in self.of}

    def parts(self, state: PipelineState) -> dict[str, PlanPart]:
        """Return what is each one's own of a batch's plan, by its qualifier."""
        return {source.qualifier: source.part(state) for source in self.of}


def _sent(events: ConnectorEvents, transaction: str) -> Offsets | None:
    place = events.ended_place(transaction)
    return None if place is None else events.ends_past(place)


@dataclass(frozen=True, slots=True)
class _AnyOf:
    """The tables in any of several choices; picklable."""

    choices: tuple[Container[str], ...]

    def __contains__(self, table: object) -> bool:
        return any(table in choice for choice in self.choices)
