"""The converters that there are, by their names, and which one a connector's settings ask for.

Ours are made here. Those of other packages are found by their entry points, of the group `GROUP`:
each names what is called with the converter of JSON, for what it leaves to that, and returns a
`Converter`. One that cannot be used is passed over and named: others are read without it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, Final, get_args

import structlog

from lakemark.converters.avro import subjects
from lakemark.converters.avro.converter import AvroConverter
from lakemark.converters.avro.registry_settings import names_registry
from lakemark.converters.converter import OUT, OWN, Converter
from lakemark.converters.flattening import flattening_of
from lakemark.converters.json import struct_keys
from lakemark.converters.json.arriving import ArrivingConverter
from lakemark.converters.json.converter import JsonConverter
from lakemark.converters.json.flattened import FlattenedConverter
from lakemark.converters.json.struct_keys import StructKeysConverter
from lakemark.model.decoding import ConverterChoice, ConverterOptions, Options, Side
from lakemark.settings.layers import Mistake, SetTo
from lakemark.settings.masking import foreign

GROUP: Final = "lakemark.converters"
JSON: Final = "json"
AVRO: Final = "avro"
MAKERS: Final[dict[str, Callable[[Converter], Converter]]] = {AVRO: AvroConverter}
"""Each but JSON's, made of the converter that it hands to what it leaves to JSON's."""
CONVERTERS: Final[dict[str, Converter]] = {
    JSON: JsonConverter(),
    AVRO: AvroConverter(JsonConverter()),
}
"""Each as it is without options. The first is taken where a connector names none."""
UNUSABLE: Final[dict[str, str]] = {}
"""Converters of other packages that cannot be used, by name, and why."""

SIDES: Final[tuple[Side, ...]] = get_args(Side)
_USUAL: Final = "org.apache.kafka.connect.json.JsonConverter"
_OF_WORKER: Final[Mapping[Side, str]] = {
    "key": "",
    "value": (
        ": unless that has replace.null.with.default=false, NULL in a column that has a default"
        " arrives as the default"
    ),
}

log = structlog.get_logger("lakemark.converters")


def add_found() -> None:
    """Add the converters of other packages that are installed beside this one."""
    for entry in sorted(entry_points(group=GROUP)):
        if entry.name in CONVERTERS:
            continue
        try:
            make = entry.load()
            CONVERTERS[entry.name] = _whole(make(CONVERTERS[JSON]))
            MAKERS[entry.name] = make
        except Exception as error:  # noqa: BLE001 - somebody else's code, at a start that needs it perhaps not
            UNUSABLE[entry.name] = f"{entry.value}: {foreign(error) or type(error).__name__}"
            log.warning("converter.unusable", converter=entry.name, reason=UNUSABLE[entry.name])


def _whole(made: Any) -> Converter:
    """Return what was made, which must be a `Converter`."""
    missing = sorted(
        name for name in (*Converter.__annotations__, *vars(Converter))
        if not name.startswith("_") and not hasattr(made, name)
    )  # fmt: skip
    if missing:
        raise TypeError(f"it is no Converter: it has no {', '.join(missing)}")
    converter: Converter = made
    return converter


add_found()


@lru_cache(maxsize=8)  # a process has one, but for tests
def converter_of(choice: ConverterChoice) -> Converter:
    """Return what reads and writes a connector's records; the same object each time."""
    usual = beside = CONVERTERS[JSON]
    if choice.options.key_class == struct_keys.CLASS:
        beside = StructKeysConverter(beside)
    if choice.flattening is not None:
        kind = ArrivingConverter if choice.flattening.arrival else FlattenedConverter
        beside = kind(beside, choice.flattening)
    if beside is usual:
        return CONVERTERS[choice.name].of(choice.options)
    made = beside if choice.name == JSON else MAKERS[choice.name](beside)
    return made.of(choice.options)


def choice_of(settings: Mapping[str, str], own: Mapping[str, str]) -> ConverterChoice:
    """Return the converter of a connector's records, by its configuration.

    Args:
        settings: of the connector. Without a converter of its own the worker's default counts,
            which nobody here knows unless `own` says it: it is taken for the first of ours.
        own: lakemark's settings of the converter, in clear; `key.converter`, `value.converter` and
            what begins with them stand for those of the connector.
    """
    settings, own = _told(settings, own)
    of_key, of_value = classes = [settings.get(f"{side}.converter", "") for side in SIDES]
    # Whichever side has it: what is not JSON's reads JSON beside its own.
    others = {name: one for name, one in CONVERTERS.items() if name != JSON}
    names = (name for name, one in others.items() if not one.java_classes.isdisjoint(classes))
    key, value = (_options(settings, side) for side in SIDES)
    told = tuple(sorted(own.items()))
    options = ConverterOptions(key, value, told, of_key, of_value)
    return ConverterChoice(next(names, JSON), options, flattening_of(settings))


def _told(
    settings: Mapping[str, str], own: Mapping[str, str]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the connector's settings with the converters that `own` names, and its rest."""
    starts = tuple(f"{side}.converter." for side in SIDES)
    instead = {name: value for name, value in own.items() if f"{name}.".startswith(starts)}
    if not instead:
        return settings, own
    replaced = tuple(f"{side}.converter." for side in SIDES if f"{side}.converter" in instead)
    left = {k: v for k, v in settings.items() if not f"{k}.".startswith(replaced)}
    return {**left, **instead}, {k: v for k, v in own.items() if k not in instead}


def output_choice(
    settings: Mapping[str, str],
    own: Mapping[str, str],
    *,
    format_: str | None,
    told: Mapping[str, str],
) -> ConverterChoice | None:
    """Return the converter of a connector's output topics; None where nothing is to be done.

    Args:
        settings: of the connector.
        own: lakemark's settings of the converter of its records, in clear.
        format_: of the topics; None for that of the records.
        told: lakemark's settings of the converter of the topics, in clear.
    """
    reads = choice_of(settings, own)
    name = format_ or reads.name
    if name == reads.name != AVRO:
        return None
    if name != reads.name or names_registry(told):
        apart = {**subjects.strategies(reads.options), **told}
        return ConverterChoice(name, ConverterOptions(own=tuple(sorted(apart.items()))))
    both = tuple(sorted({**dict(reads.options.own), **told}.items()))
    return ConverterChoice(name, replace(reads.options, own=both))


def output_problems(choice: ConverterChoice) -> Iterator[Mistake]:
    """Yield why the converter of output topics does not suit; paths are `OUT` and a name."""
    found = [*converter_of(choice).problems(described=True)]
    if choice.name == AVRO:
        found += subjects.problems(choice.options)
    for problem in found:
        if problem.path.startswith(OWN) and not problem.warning:
            texts = str(problem.path), problem.message, str(problem.hint)
            path, why, hint = (text.replace(OWN, OUT) for text in texts)
            yield Mistake(path, why, hint)


def _options(settings: Mapping[str, str], side: Side) -> Options | None:
    start = f"{side}.converter."
    if f"{side}.converter" not in settings:
        return None
    found = [(name, value) for name, value in settings.items() if name.startswith(start)]
    return tuple(sorted((name.removeprefix(start), value) for name, value in found))


def has_text_keys(settings: Mapping[str, str], own: Mapping[str, str]) -> bool:
    """Say whether a connector's keys are texts, read by the rows beside them: see `choice_of`."""
    return choice_of(settings, own).options.key_class == struct_keys.CLASS


def restores_names(settings: Mapping[str, str]) -> bool:
    """Say whether a connector's converters restore names, see `Converter.restores_names`."""
    return converter_of(choice_of(settings, {})).restores_names()


def void_options(settings: Mapping[str, str]) -> list[str]:
    """Options of converters that Connect passes over: the connector names no such converter."""
    return sorted(
        name
        for side in SIDES
        for name in settings
        if name.startswith(f"{side}.converter.") and f"{side}.converter" not in settings
    )


def without_schemas(settings: Mapping[str, str]) -> Iterator[Mistake]:
    """Yield what keeps schemas out of records, for converters that a connector does not name."""
    for side in SIDES:
        if f"{side}.converter" not in settings:
            name = f"{side}.converter.schemas.enable"
            why = "events are a tenth the size, and exact types come from the catalog"
            yield Mistake(name, why, SetTo(name, "false"), warning=True)


def problems(
    settings: Mapping[str, str], own: Mapping[str, str], *, described: bool
) -> Iterator[Mistake]:
    """Yield why a connector's converters do not suit, see `Converter.problems`.

    Args:
        settings: of the connector.
        own: lakemark's settings of the converter, in clear.
        described: as `Converter.problems` has it.
    """
    told, left = _told(settings, own)
    for problem in _problems(told, left, described=described):
        side = problem.path.partition(".")[0] + ".converter"
        ours = problem.path in own or side in own
        yield replace(problem, path=f"{OWN}.{problem.path}") if ours else problem


def _problems(
    settings: Mapping[str, str], own: Mapping[str, str], *, described: bool
) -> Iterator[Mistake]:
    known = {java_class for one in CONVERTERS.values() for java_class in one.java_classes}
    for side in SIDES:
        setting = f"{side}.converter"
        java_class = settings.get(setting)
        if java_class is None:
            yield Mistake(
                setting,
                f"is not set, so the worker's default decides{_OF_WORKER[side]}",
                SetTo(setting, _USUAL, more=f", or say in {OWN}: {{{setting}: …}} what it is"),
                warning=True,
            )
        elif java_class not in known | ({struct_keys.CLASS} if side == "key" else set()):
            away = "".join(f"; {name} cannot be used: {why}" for name, why in UNUSABLE.items())
            reads = f"no converter here reads what {java_class} writes{away}"
            yield Mistake(setting, reads, SetTo(setting, _USUAL))
    void = void_options(settings)
    if void:
        sides = dict.fromkeys(name.partition(".")[0] + ".converter" for name in void)
        yield Mistake(
            ", ".join(void),
            f"is passed over by Connect without {' and '.join(sides)}",
            f"set {' and '.join(sides)} to {_USUAL}",
            warning=True,
        )
    yield from converter_of(choice_of(settings, own)).problems(described=described)
