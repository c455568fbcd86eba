"""The connector's own configuration, as lakemark uses it, so that nothing is configured twice.

The configuration comes from Connect's REST API or from its JSON file. Placeholders of Connect's
config providers (``${file:…}``) stay as they are: only Connect can resolve them, and nothing that
lakemark needs should be a secret.
"""

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from lakemark.connectors.connect_rest import ATTEMPTS, ConnectRest
from lakemark.connectors.connector_traits import ConnectorTraits
from lakemark.connectors.registry import CONNECTORS, traits_of
from lakemark.connectors.suitability import PARTS, WITHOUT_ROWS, problems_with
from lakemark.connectors.table_choice import Choice, QualifiedChoice, TableChoice, key_columns
from lakemark.converters import arrival_order
from lakemark.converters.converter import Converter
from lakemark.kafka import output_names
from lakemark.model import positions
from lakemark.model.decoding import ConverterChoice
from lakemark.model.events import SourceIdentity
from lakemark.model.topic_owners import OwnTopics, TopicOwners
from lakemark.model.wanted import Wanted
from lakemark.settings.config import Config
from lakemark.settings.layers import InvalidConfig, Mistake
from lakemark.settings.names import quoted, topic_regex, topic_safe
from lakemark.settings.patterns import compile_java
from lakemark.settings.table_id import (
    TableId,
    plain_of,
    qualified,
    text_written,
    unqualified,
)

SCHEMA_CHANGES: Final = "schema-change"
"""What the topic of changed schemas carries."""
TRANSACTION: Final = "transaction"
"""What the topic of transactions carries: how they begin and end."""


@dataclass(frozen=True)
class Connector:
    """A connector as lakemark sees it.

    Attributes:
        name: its name in Connect, or that in its file.
        kind: ``postgresql``; as in ``source.connector`` of its events.
        settings: its configuration, placeholders as they are; without options that Connect passes
            over.
        topic_prefix: first part of its topics, ``source.name`` of its events.
        signal_table: ``schema.table`` of ``signal.data.collection``, None without one.
        topic_pattern: Java regular expression of the topics to subscribe to, future tables
            included. It matches at least the chosen tables' topics and the signal table's, and
            none of lakemark's own; what it matches beyond is sorted out by the source block.
        output_prefixes: of lakemark's output topics, those of an earlier configuration included.
        tables: which tables are captured and chosen, as of this configuration.
        chosen: which tables are chosen of whatever comes: the connector has applied its own lists,
            whichever it had at the time.
        converter: what reads its records.
        writer: what writes its output topics; None where its records stay as they are.
        problems: why it cannot be used (errors) and what should be known (warnings).
        qualifier: before the names of its tables in a pipeline of several connectors, its topic
            prefix; empty where it is the only one.
        by_arrival: whether changes of a row are taken in the order in which they arrive.
    """

    name: str
    kind: str
    settings: Mapping[str, str]
    topic_prefix: str
    signal_table: str | None
    topic_pattern: str
    output_prefixes: tuple[str, ...]
    tables: Choice
    chosen: Choice
    converter: ConverterChoice
    problems: tuple[Mistake, ...]
    writer: ConverterChoice | None = None
    qualifier: str = ""
    by_arrival: bool = False

    @property
    def identity(self) -> SourceIdentity:
        """The marks of a record that is this connector's, as its converter tells it."""
        kind = positions.ARRIVAL if self.by_arrival else self.kind
        return SourceIdentity(kind, self.topic_prefix, self.signal_table, self.qualifier)

    def among_several(self) -> "Connector":
        """Return the connector as one of several: its tables' names begin with its topic prefix."""
        qualifier, signal = self.topic_prefix, self.signal_table
        return replace(
            self,
            qualifier=qualifier,
            signal_table=None if signal is None else qualified(qualifier, self.bare(signal)),
            tables=QualifiedChoice(qualifier, self.tables.own),
            chosen=QualifiedChoice(qualifier, self.chosen.own),
        )

    def alone(self) -> "Connector":
        """Return the connector as the only one: its tables have the names of its database."""
        signal = self.signal_table
        return replace(
            self,
            qualifier="",
            signal_table=None if signal is None else self.bare(signal),
            tables=self.tables.own,
            chosen=self.chosen.own,
        )

    def bare(self, table: str) -> str:
        """Return the name that a table of this connector has in its database."""
        found = unqualified(self.qualifier, table)
        return table if found is None else found

    @property
    def traits(self) -> ConnectorTraits:
        """The peculiarities of connectors of its database."""
        return traits_of(self.settings)

    @property
    def has_windows(self) -> bool:
        """Say whether windows can be opened: by rows of its signal table, where it takes such."""
        return self.traits.reads_know_their_place or self.signal_table is not None

    def key_of(self, table: str, columns: Sequence[str]) -> list[str]:
        """Return a table's columns that `message.key.columns` makes its key; empty: its own key."""
        return key_columns(self.settings, self.bare(table), columns)

    @property
    def reads_rows(self) -> bool:
        """Say whether it reads its tables' rows itself before it streams (`snapshot.mode`)."""
        mode = self.settings.get("snapshot.mode", "initial").strip().lower()
        return mode not in WITHOUT_ROWS

    @property
    def reads_all_rows(self) -> bool:
        """Say whether it leaves out no row and no table then."""
        return not any(
            name.startswith(tuple(PARTS)) and value.strip() for name, value in self.settings.items()
        )

    def captures(self, table: str) -> bool:
        """Say whether this ``schema.table`` is captured; the signal table always is."""
        return table == self.signal_table or table in self.tables

    def topic_of(self, table: str) -> str:
        """The topic of this ``schema.table`` under the connector's naming."""
        return _topic_of(self.settings, self.bare(table))

    @property
    def topic_start(self) -> str:
        """The beginning of the names of its tables' topics, as it gives them by itself."""
        return topic_safe(f"{self.topic_prefix}{_delimiter(self.settings)}")

    @property
    def own_topics(self) -> str:
        """Java regular expression of its tables' topics, as it names them by itself."""
        return _every_topic(self.settings)

    @property
    def wanted(self) -> Wanted:
        """The topics and tables that a checkpoint may keep: those that are still named."""
        pattern = compile_java(self.topic_pattern)
        return Wanted(
            topic=pattern.matches,
            tables=self.tables,
            captured=self.tables.captured,
        )

    @cached_property
    def other_topics(self) -> dict[str, str]:
        """Topics of the connector that carry no rows, by what they carry."""
        return _other_topics(self.settings)

    @property
    def schema_topic(self) -> str:
        """The topic of changed schemas, where it is read: see `has_schema_topic`; else empty."""
        return self.other_topics.get(SCHEMA_CHANGES, "") if self.traits.has_schema_topic else ""

    @property
    def schemas_enabled(self) -> bool | None:
        """Say whether values carry their schema; None when the worker's default decides."""
        return _converter(self).carries_schemas("value")

    @cached_property
    def wraps(self) -> bool:
        """Say whether keys or values are known to carry their schemas."""
        converter = _converter(self)
        return any((converter.carries_schemas("key"), converter.carries_schemas("value")))

    def require(self) -> None:
        """Raise one `InvalidConfig` with every problem that is an error."""
        mistakes = [problem for problem in self.problems if not problem.warning]
        if mistakes:
            raise InvalidConfig(mistakes, source=f"the connector {self.name}")

    def having_written(self, prefixes: Iterable[str]) -> "Connector":
        """Return the connector without the topics below these prefixes of earlier output topics.

        Their records are events of this connector, too: read again they would be counted twice.
        """
        new = [prefix for prefix in prefixes if prefix not in self.output_prefixes]
        if not new:
            return self
        return replace(
            self,
            output_prefixes=(*self.output_prefixes, *new),
            topic_pattern=_without([_below(prefix) for prefix in new], self.topic_pattern),
        )

    def leaving(
        self, away: Mapping[str, str], others: Iterable["Connector"], own: Container[str]
    ) -> "Connector":
        """Return the connector without topics of others that its pattern matches, too.

        Args:
            away: `own_topics` of those that are not there, by the `topic_start` of each; one whose
                names begin as those of this connector do at most is not among them: this one's are
                more its own.
            others: all others that are known; their topics without rows are nobody's.
            own: topics of this connector's tables, whatever they are called.
        """
        unwanted = [own for start, own in away.items() if not self.topic_start.startswith(start)]
        pattern = compile_java(self.topic_pattern)
        found = {
            topic
            for other in others
            for topic in other.other_topics.values()
            if topic not in own and topic != other.schema_topic and pattern.matches(topic)
        }
        unwanted += [quoted(topic) + "$" for topic in sorted(found)]
        return replace(self, topic_pattern=_without(unwanted, self.topic_pattern))

    def require_visible(self, tables: Iterable[str]) -> None:
        """Raise `InvalidConfig` if change topics would be taken for output topics."""
        topics = [f"{self.topic_prefix}.", *map(self.topic_of, tables)]
        for prefix in self.output_prefixes:
            hidden = output_names.hidden(prefix, topics)
            if hidden:
                message = (
                    f"change topics begin with {prefix}, as output topics of this pipeline do or"
                    f" did ({hidden[0]}): none would be read"
                )
                hint = (
                    "choose a prefix that no change topic begins with; where one was used before,"
                    " begin a new pipeline: another name and another checkpoint"
                )
                raise InvalidConfig([Mistake("output.topic_prefix", message, hint)])


def topic_owners(connectors: Iterable[Connector]) -> TopicOwners:
    """Return which of the connectors of a pipeline writes a topic."""
    several = [one for one in connectors if one.qualifier]
    return TopicOwners.of(
        OwnTopics(one.qualifier, one.topic_start, one.topic_pattern) for one in several
    )


def usual_topics(prefix: str) -> OwnTopics:
    """Return the topics of a connector of which nothing but its topic prefix is known."""
    start = topic_safe(f"{prefix}.")
    return OwnTopics(prefix, start, rf"{quoted(start)}[^.]+\..+")


def read(config: Config, *, attempts: int = ATTEMPTS) -> Connector:
    """The connector from Connect or from its file.

    Args:
        config: says which.
        attempts: how often Connect is asked.

    Raises:
        DependencyError: Connect does not answer.
        InvalidConfig: Connect does not know the connector, refuses us, or the file is unreadable.
    """
    if config.source.connect:
        with ConnectRest(config.source.connect, attempts=attempts) as rest:
            settings = rest.settings()
        return parse(settings, config=config, name=config.source.connect.connector)
    file = config.source.connector_file
    if file is None:
        raise InvalidConfig([Mistake("source", "no connector is named")])
    name, settings = read_file(file)
    return parse(settings, config=config, name=name)


def offsets(config: Config) -> list[dict[str, Any]]:
    """The connector's committed source offsets, empty when only its file is known.

    Raises:
        DependencyError: Connect does not answer.
    """
    if config.source.connect is None:
        return []
    with ConnectRest(config.source.connect) as rest:
        return rest.offsets()


def read_file(file: Path) -> tuple[str, dict[str, str]]:
    """Name and settings from a connector's JSON file: ``{"name", "config"}`` or the bare settings.

    Raises:
        InvalidConfig: it is no JSON object.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        problem = f"{file} cannot be read: {error.strerror}"
        raise InvalidConfig([Mistake("source.connector_file", problem)]) from error
    except ValueError as error:
        problem = f"{file.name} is not valid JSON: {error}"
        raise InvalidConfig([Mistake("source.connector_file", problem)]) from error
    inner = document.get("config", document) if isinstance(document, dict) else None
    if not isinstance(inner, dict):
        problem = f"{file.name} holds no JSON object with the connector's settings"
        raise InvalidConfig([Mistake("source.connector_file", problem)])
    settings = {str(k): _as_text(v) for k, v in inner.items() if v is not None}
    return str(document.get("name") or settings.get("name") or file.stem), settings


def _converter(connector: Connector) -> Converter:
    from lakemark.converters.registry import converter_of  # noqa: PLC0415 - slow

    return converter_of(connector.converter)


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse(settings: Mapping[str, str], *, config: Config, name: str = "") -> Connector:
    """The connector from its settings. Never raises: what is wrong stands in `problems`."""
    signal = text_written(settings.get("signal.data.collection", "")) or None
    from lakemark.converters.registry import void_options  # noqa: PLC0415 - slow

    void = void_options(settings)
    traits = traits_of(settings)
    tables = TableChoice(settings, config.source.tables, container=traits.container)
    connector = Connector(
        name=name or settings.get("name", ""),
        kind=CONNECTORS.get(settings.get("connector.class", ""), ""),
        settings={name: settings[name] for name in settings if name not in void},
        topic_prefix=settings.get("topic.prefix", ""),
        signal_table=signal,
        topic_pattern=_topic_pattern(settings, config=config, signal=signal, traits=traits),
        output_prefixes=(config.output.topic_prefix,) if config.output else (),
        tables=tables,
        chosen=TableChoice({}, config.source.tables),
        converter=_reader(settings, config),
        writer=_writer(settings, config),
        problems=tuple(problems_with(settings, config, kinds=CONNECTORS, traits=traits)),
        by_arrival=config.source.order is not None,
    )
    return connector.among_several() if config.is_part else connector


def _reader(settings: Mapping[str, str], config: Config) -> ConverterChoice:
    """Return what reads the connector's records."""
    from lakemark.converters.registry import choice_of  # noqa: PLC0415 - slow

    choice = choice_of(settings, config.source.converter_options())
    if config.source.order is None:
        return choice
    return replace(choice, flattening=arrival_order.arrival_of(settings))


def _writer(settings: Mapping[str, str], config: Config) -> ConverterChoice | None:
    """Return what writes the connector's output topics; None where its records stay as they are."""
    from lakemark.converters.registry import output_choice  # noqa: PLC0415 - slow

    output = config.output
    if output is None:
        return None
    own = config.source.converter_options()
    return output_choice(settings, own, format_=output.format, told=output.converter_options())


def _delimiter(settings: Mapping[str, str]) -> str:
    return settings.get("topic.delimiter", ".")


def _topic_of(settings: Mapping[str, str], table: str) -> str:
    parts = [settings.get("topic.prefix", ""), *TableId.parse(table).parts]
    return topic_safe(_delimiter(settings).join(parts))


def _other_topics(settings: Mapping[str, str]) -> dict[str, str]:
    prefix, delimiter = settings.get("topic.prefix", ""), _delimiter(settings)
    heartbeat = settings.get("topic.heartbeat.prefix", "__debezium-heartbeat")
    found = {
        "heartbeat": settings.get("topic.heartbeat.name") or f"{heartbeat}{delimiter}{prefix}",
        TRANSACTION: f"{prefix}{delimiter}{settings.get('topic.transaction', 'transaction')}",
        "message": f"{prefix}{delimiter}message",
        SCHEMA_CHANGES: prefix,
        "notification": settings.get("notification.sink.topic.name", ""),
        "signal": settings.get("signal.kafka.topic", f"{prefix}-signal"),
    }
    return {what: topic for what, topic in found.items() if topic}


def _topic_pattern(
    settings: Mapping[str, str], *, config: Config, signal: str | None, traits: ConnectorTraits
) -> str:
    body = config.source.topics or _table_topics(settings, config, signal)
    known = _other_topics(settings)
    read = [known.pop(SCHEMA_CHANGES, "")] if traits.has_schema_topic else []
    if config.stream.cuts == "transactions":  # the end of a transaction makes a batch
        read.append(known.pop(TRANSACTION, ""))
    body = "|".join([body, *(quoted(topic) for topic in read if topic)])
    others = [*config.topics.all(), *known.values()]
    wanted = compile_java(body)
    unwanted = [quoted(topic) + "$" for topic in dict.fromkeys(others) if wanted.matches(topic)]
    if config.output:
        unwanted.append(_below(config.output.topic_prefix))
    return _without(unwanted, body)


def _below(prefix: str) -> str:
    return quoted(prefix) + r"\."


def _without(unwanted: Sequence[str], body: str) -> str:
    return f"(?!{'|'.join(unwanted)})(?:{body})" if unwanted else body


def _table_topics(settings: Mapping[str, str], config: Config, signal: str | None) -> str:
    """Return a pattern for the chosen tables' topics, if possible, else for all tables'.

    The connector's own lists are left out on purpose: when they grow, the new table's topic must
    be read without a restart.
    """
    delimiter = _delimiter(settings)
    start = _start(settings)
    chosen = [topic_regex(regex) for regex in config.source.tables]
    if delimiter == "." and chosen and None not in chosen:
        bodies = [regex for regex in chosen if regex]
        if signal:
            bodies.append(quoted(topic_safe(plain_of(signal))))
        return f"{start}(?:{'|'.join(bodies)})"
    return _every_topic(settings)


def _start(settings: Mapping[str, str]) -> str:
    return quoted(topic_safe(settings.get("topic.prefix", "") + _delimiter(settings)))


def _every_topic(settings: Mapping[str, str]) -> str:
    start, delimiter = _start(settings), _delimiter(settings)
    if delimiter == ".":
        return rf"{start}[^.]+\..+"
    return f"{start}.+{quoted(topic_safe(delimiter))}.+"
