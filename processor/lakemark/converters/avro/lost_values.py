"""Values that Avro converters do not write as they are: by their settings, and by a schema. Pure.

The one that none of them tells: NULL in a nullable column that has a default is written as the
default. Confluent's converter has a switch for it, Apicurio's has none.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from lakemark.converters.avro.registry_settings import COMPATIBLE
from lakemark.model.decoding import ConverterOptions
from lakemark.settings.layers import Mistake, SetTo

SWITCH: Final = "ignore.default.for.nullables"
"""Confluent's setting with which NULL stays NULL."""
_NULLS: Final = "NULL in a nullable column that has a default arrives as the default"
_IMAGES: Final = ("before", "after")


def keeps_nulls(options: ConverterOptions) -> bool:
    """Say whether the converter of values is known to write NULL for NULL."""
    return (options.get("value", SWITCH) or "").lower() == "true"


def writes_like_apicurio(options: ConverterOptions) -> bool:
    """Say whether the converter of values is known to have no switch for it."""
    return COMPATIBLE not in dict(options.value or ()) and options.value is not None


def losses(options: ConverterOptions) -> Iterator[Mistake]:
    """Yield settings of the converter of values with which values are lost, or their types."""
    if options.value is None:
        return
    told = dict(options.value)
    if COMPATIBLE in told:
        yield from _of_confluent(told, options)
    elif not keeps_nulls(options):
        why = f"{_NULLS}, and this converter has no switch for it"
        hint = "lakemark doctor names such columns: they need no default, or NOT NULL"
        yield Mistake("value.converter", why, hint, warning=True)


def _of_confluent(told: Mapping[str, str], options: ConverterOptions) -> Iterator[Mistake]:
    if not keeps_nulls(options):
        setting = f"value.converter.{SWITCH}"
        yield Mistake(setting, f"is not true: {_NULLS}", SetTo(setting, "true"), warning=True)
    if told.get("connect.meta.data", "true").strip().lower() == "false":
        setting = "value.converter.connect.meta.data"
        why = "is false: schemas lack the types that Avro has no word for, such as timestamps"
        yield Mistake(setting, why, SetTo(setting, "true"))
    if told.get("use.latest.version", "false").strip().lower() == "true":
        setting = "value.converter.use.latest.version"
        why = "is true: columns that the registered schema lacks are left out of the records"
        yield Mistake(setting, why, SetTo(setting, "false"), warning=True)


def hidden_nulls(schema: Any) -> list[str]:
    """Return the columns of a change event's schema whose NULL arrives as their default.

    Args:
        schema: of values, decoded from JSON; of anything else the answer is empty.
    """
    fields = schema.get("fields", []) if isinstance(schema, dict) else []
    images = (field.get("type") for field in fields if field.get("name") in _IMAGES)
    row = next((branch for image in images for branch in _branches(image) if _is_row(branch)), None)
    columns = row.get("fields", []) if row else []
    return [str(field.get("name")) for field in columns if _hides(field)]


def _branches(schema: Any) -> list[Any]:
    return schema if isinstance(schema, list) else [schema]


def _is_row(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "record"


def _hides(field: Mapping[str, Any]) -> bool:
    branches = _branches(field.get("type"))
    told = (branch.get("connect.default") for branch in branches if isinstance(branch, dict))
    defaults = [field.get("default"), *told]
    return "null" in branches and any(default is not None for default in defaults)
