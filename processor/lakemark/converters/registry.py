"""The converters that there are, by the names that plans have of them."""

from collections.abc import Mapping
from typing import Final

from lakemark.converters.converter import Converter
from lakemark.converters.json.converter import JsonConverter

JSON: Final = "json"
CONVERTERS: Final[dict[str, Converter]] = {JSON: JsonConverter()}


def converter_named(settings: Mapping[str, str]) -> str:
    """Return the name of the converter that reads a connector's values, by its configuration.

    Args:
        settings: of the connector. Without one of their own the worker's default counts, which
            nobody here knows: it is taken for that of JSON.
    """
    java_class = settings.get("value.converter")
    names = (name for name, one in CONVERTERS.items() if java_class in one.java_classes)
    return next(names, JSON)
