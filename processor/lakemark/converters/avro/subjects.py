"""The names under which a registry has the schemas of a topic, by the converter's strategies.

| strategy of Confluent; of Apicurio | subject |
|---|---|
| `TopicNameStrategy`; `TopicIdStrategy`; none | `TOPIC-key`, `TOPIC-value` |
| `RecordNameStrategy`; `RecordIdStrategy`, `QualifiedRecordIdStrategy` | the record's full name |
| `TopicRecordNameStrategy`; `TopicRecordIdStrategy` | `TOPIC-` and the full name |
| ; `SimpleTopicIdStrategy` | the topic |
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from lakemark.converters.converter import OWN
from lakemark.model.decoding import ConverterOptions, Side
from lakemark.settings.layers import Mistake

_TOPIC: Final = frozenset({"TopicNameStrategy", "TopicIdStrategy"})
_RECORD: Final = frozenset({"RecordNameStrategy", "RecordIdStrategy", "QualifiedRecordIdStrategy"})
_BOTH: Final = frozenset({"TopicRecordNameStrategy", "TopicRecordIdStrategy"})
_BARE: Final = frozenset({"SimpleTopicIdStrategy"})
_KNOWN: Final = _TOPIC | _RECORD | _BOTH | _BARE
USUAL: Final = "TopicNameStrategy"
SIDES: Final[tuple[Side, ...]] = ("key", "value")
_APICURIO: Final = "apicurio.registry.artifact-resolver-strategy"


def subject_of(topic: str, side: Side, schema: Any, options: ConverterOptions) -> str:
    """Return the subject of a schema of a topic's keys or values.

    Args:
        topic: that is written.
        side: of keys, or of values.
        schema: of Avro, the data of its JSON.
        options: of the converter.
    """
    name, strategy = foreseen(topic, side, options)
    if strategy in _RECORD:
        return _full_name(schema)
    return name or f"{topic}-{_full_name(schema)}"


def foreseen(topic: str, side: Side, options: ConverterOptions) -> tuple[str, str]:
    """Return a subject, as far as it is known without a schema, and the strategy that makes it.

    Args:
        topic: that is written.
        side: of keys, or of values.
        options: of the converter.

    Returns:
        The name is empty where a part of it is that of the record.
    """
    strategy = _strategy(side, options) or USUAL
    if strategy in _BARE:
        return topic, strategy
    return "" if strategy in _RECORD | _BOTH else f"{topic}-{side}", strategy


def strategies(options: ConverterOptions) -> dict[str, str]:
    """Return the strategies that a connector's converters have, in Confluent's words."""
    told = {_name(side): _strategy(side, options) for side in SIDES}
    return {name: strategy for name, strategy in told.items() if strategy}


def problems(options: ConverterOptions) -> Iterator[Mistake]:
    """Yield strategies that are not known."""
    for side, strategy in ((side, _strategy(side, options)) for side in SIDES):
        if strategy and strategy not in _KNOWN:
            why = f"{strategy} is no strategy that lakemark knows"
            hint = f"set {OWN}: {{{_name(side)}: …}} to one of {sorted(_KNOWN)}"
            yield Mistake(f"{OWN}.{_name(side)}", why, hint)


def _strategy(side: Side, options: ConverterOptions) -> str:
    """Return a strategy's class without its package; empty where none is set."""
    told = options.get(side, _name(side)) or options.get(side, _APICURIO) or ""
    return told.rpartition(".")[2]


def _name(side: Side) -> str:
    return f"{side}.subject.name.strategy"


def _full_name(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return str(schema)  # of a primitive type: its name
    name, space = str(schema["name"]), schema.get("namespace")
    return name if "." in name or not space else f"{space}.{name}"
