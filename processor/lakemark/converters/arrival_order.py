"""Rows that say no place in the log, taken as they arrive: when that is possible. Pure.

It has to be asked for (`source.order: arrival`), and is refused where the log's own order can be
had. See `model.arrival` for the positions, `json.arriving` for the records.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from lakemark.converters import flattening
from lakemark.model.decoding import Flattening
from lakemark.model.value_rules import connector_of
from lakemark.settings.layers import Mistake, SetTo
from lakemark.settings.names import split_list

SETTING: Final = "source.order"
AFTER_STATE: Final = "after.state.only"
"""Setting of Confluent's cloud with which values are rows alone."""
UNPROMISED: Final = (
    "rows are taken as they arrive: while a connector sends records again they are older for a"
    " moment, and what is missed is not noticed"
)
"""What whoever reads the tables must know."""

_TOMBSTONES: Final = "tombstones.on.delete"
_ROUTING: Final = "PartitionRouting"
_NAMING: Final = "SchemaTopicNamingStrategy"


def is_flat(settings: Mapping[str, str]) -> bool:
    """Say whether a connector's rows come without an envelope."""
    return flattening.alias_of(settings) is not None or _is(settings, AFTER_STATE, usual="false")


def arrival_of(settings: Mapping[str, str]) -> Flattening | None:
    """Return the form of a connector's rows, to be taken as they arrive; None with envelopes."""
    if not is_flat(settings):
        return None
    usual = Flattening(connector=connector_of(settings.get("connector.class", "")))
    return replace(flattening.flattening_of(settings) or usual, arrival=True)


def problems(settings: Mapping[str, str], *, has_place: bool) -> Iterator[Mistake]:
    """Yield why a connector's rows cannot be taken as they arrive; or else what that means.

    Paths are `SETTING`, or names of the connector's settings.

    Args:
        settings: of the connector.
        has_place: whether its records say their place in the log.
    """
    if has_place:
        why = "is arrival, but this connector's records say their place in the log, which is better"
        yield Mistake(SETTING, why, f"remove {SETTING}")
        return
    yield from _deletes(settings)
    yield from _partitions(settings)
    yield from _topics(settings)
    yield Mistake(SETTING, f"is arrival: {UNPROMISED}", "see docs/flattened.md", warning=True)


def _deletes(settings: Mapping[str, str]) -> Iterator[Mistake]:
    """Yield why rows that are deleted would stay."""
    alias = flattening.alias_of(settings)
    setting = f"transforms.{alias}.{flattening.DELETES}"
    mode = settings.get(setting, "tombstone").strip().lower()
    if alias is not None and mode == "drop":
        yield Mistake(setting, "is drop: deletes are in no record", SetTo(setting, "rewrite"))
    elif (alias is None or mode == "tombstone") and not _is(settings, _TOMBSTONES, usual="true"):
        yield Mistake(_TOMBSTONES, "is false: deletes are in no record", SetTo(_TOMBSTONES, "true"))


def _partitions(settings: Mapping[str, str]) -> Iterator[Mistake]:
    """Yield what sends records of one key to several partitions."""
    for alias in split_list(settings.get("transforms", "")):
        setting = f"transforms.{alias}"
        if settings.get(f"{setting}.type", "").split(".")[-1] == _ROUTING:
            why = f"{_ROUTING} may send a row's changes to several partitions, which have no order"
            yield Mistake(setting, why, f"remove {alias} from transforms")


def _topics(settings: Mapping[str, str]) -> Iterator[Mistake]:
    """Yield why nobody knows which table's rows a topic has: no record says it."""
    if settings.get("topic.delimiter", ".") != ".":
        why = "is not a dot: which table a topic is of cannot be told from its name"
        yield Mistake("topic.delimiter", why, SetTo("topic.delimiter", "."))
    strategy = settings.get("topic.naming.strategy", _NAMING).split(".")[-1]
    if strategy != _NAMING:
        why = f"{strategy} names topics in a way from which no table can be told"
        yield Mistake("topic.naming.strategy", why, "remove topic.naming.strategy")
    for alias in split_list(settings.get("transforms", "")):
        setting = f"transforms.{alias}"
        name = settings.get(f"{setting}.type", "").split(".")[-1]
        if name.endswith("Router"):
            why = f"{name} renames topics, which alone tell the tables of rows"
            yield Mistake(setting, why, f"remove {alias} from transforms")


def _is(settings: Mapping[str, str], name: str, *, usual: str) -> bool:
    return settings.get(name, usual).strip().lower() == "true"
