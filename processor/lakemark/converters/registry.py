"""The converters that there are, by their names, and which one a connector's settings ask for."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, get_args

from lakemark.converters.avro.converter import AvroConverter
from lakemark.converters.converter import Converter
from lakemark.converters.json.converter import JsonConverter
from lakemark.model.decoding import ConverterChoice, ConverterOptions, Options, Side
from lakemark.settings.layers import Mistake, SetTo

JSON: Final = "json"
AVRO: Final = "avro"
CONVERTERS: Final[dict[str, Converter]] = {
    JSON: JsonConverter(),
    AVRO: AvroConverter(JsonConverter()),
}
"""Each as it is without options. The first is taken where a connector names none."""

SIDES: Final[tuple[Side, ...]] = get_args(Side)
_USUAL: Final = "org.apache.kafka.connect.json.JsonConverter"
_OF_WORKER: Final[Mapping[Side, str]] = {
    "key": "",
    "value": (
        ": unless that has replace.null.with.default=false, NULL in a column that has a default"
        " arrives as the default"
    ),
}


@lru_cache(maxsize=8)  # a process has one, but for tests
def converter_of(choice: ConverterChoice) -> Converter:
    """Return what reads and writes a connector's records; the same object each time."""
    return CONVERTERS[choice.name].of(choice.options)


def choice_of(settings: Mapping[str, str], own: Mapping[str, str]) -> ConverterChoice:
    """Return the converter of a connector's records, by its configuration.

    Args:
        settings: of the connector. Without a converter of its own the worker's default counts,
            which nobody here knows: it is taken for the first of ours.
        own: lakemark's settings of the converter, in clear.
    """
    of_key, of_value = classes = [settings.get(f"{side}.converter", "") for side in SIDES]
    # Whichever side has it: what is not JSON's reads JSON beside its own.
    others = {name: one for name, one in CONVERTERS.items() if name != JSON}
    names = (name for name, one in others.items() if not one.java_classes.isdisjoint(classes))
    key, value = (_options(settings, side) for side in SIDES)
    told = tuple(sorted(own.items()))
    return ConverterChoice(next(names, JSON), ConverterOptions(key, value, told, of_key, of_value))


def _options(settings: Mapping[str, str], side: Side) -> Options | None:
    start = f"{side}.converter."
    if f"{side}.converter" not in settings:
        return None
    found = [(name, value) for name, value in settings.items() if name.startswith(start)]
    return tuple(sorted((name.removeprefix(start), value) for name, value in found))


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
    known = {java_class for one in CONVERTERS.values() for java_class in one.java_classes}
    for side in SIDES:
        setting = f"{side}.converter"
        java_class = settings.get(setting)
        if java_class is None:
            yield Mistake(
                setting,
                f"is not set, so the worker's default decides{_OF_WORKER[side]}",
                SetTo(setting, _USUAL, more=", or be sure that the worker does"),
                warning=True,
            )
        elif java_class not in known:
            yield Mistake(setting, f"{java_class} is not supported yet", SetTo(setting, _USUAL))
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
