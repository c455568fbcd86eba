"""The names under which a registry has the schemas of a topic, by the converter's strategies.

| strategy of Confluent; of Apicurio | subject |
|---|---|
| `TopicNameStrategy`; `TopicIdStrategy`; none | `TOPIC-key`, `TOPIC-value` |
| `RecordNameStrategy`; `RecordIdStrategy`, `QualifiedRecordIdStrategy` | the record's full name |
| `TopicRecordNameStrategy`; `TopicRecordIdStrategy` | `TOPIC-` and the full name |
| ; `SimpleTopicIdStrategy` | the topic |

Through Apicurio's own API an artifact has a group, too: the one that the converter's setting says,
else the record's namespace with `RecordIdStrategy` and `TopicRecordIdStrategy`, whose artifacts
have the record's bare name. Such a subject is ``GROUP/ARTIFACT``; no part can have a slash itself.
One of the group ``default`` has no group in its name.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from lakemark.converters.avro.registry_settings import names_apicurio
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
_GROUPED: Final = frozenset({"RecordIdStrategy", "TopicRecordIdStrategy"})
_APICURIO: Final = "apicurio.registry.artifact-resolver-strategy"
_GROUP: Final = "apicurio.registry.artifact.group-id"


def subject_of(topic: str, side: Side, schema: Any, options: ConverterOptions) -> str:
    """Return the subject of a schema of a topic's keys or values.

    Args:
        topic: that is written.
        side: of keys, or of values.
        schema: of Avro, the data of its JSON.
        options: of the converter.
    """
    name, strategy = foreseen(topic, side, options)
    if name:
        return name
    named, group = _full_name(schema), group_of(side, options)
    if strategy in _GROUPED and names_apicurio(options):
        space, _, named = named.rpartition(".")
        group = group or (f"{space}/" if space else "")
    return group + (named if strategy in _RECORD else f"{topic}-{named}")


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
    if strategy in _RECORD | _BOTH:
        return "", strategy
    group = group_of(side, options)
    return group + (topic if strategy in _BARE else f"{topic}-{side}"), strategy


def group_of(side: Side, options: ConverterOptions) -> str:
    """Return the beginning of subjects that a setting gives them, ``GROUP/``; empty for none."""
    group = options.get(side, _GROUP) if names_apicurio(options) else None
    return f"{group}/" if group and group != "default" else ""


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
