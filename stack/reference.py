"""Writes docs/configuration.md from the model of the settings: `python -m stack.reference`.

A test requires the file to be what this writes, so that it is never behind the model.
"""

import enum
import types
import typing
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from lakemark.settings.config import Config
from lakemark.settings.layers import NOT_SETTINGS, SettingPath, dotted, env_name
from lakemark.settings.units import show_duration

PAGE: Final = Path(__file__).parents[1] / "docs" / "configuration.md"
_HEAD: Final = """\
# Configuration

Made from the model by `python -m stack.reference > docs/configuration.md`; edit the model instead.

One YAML file, or the environment, or both: the environment wins. Lists are comma-separated in the
environment, maps are JSON; `…__0` is the first entry of a list, `…__1` the next one. Durations are
written `500ms`, `1s`, `2m`, `1h`, `1d`, sizes `4 MiB`, `900 kB` or as bytes. A secret is best
written `${file:path}` or `${env:NAME}`; it is masked wherever it is shown. Relative paths are
relative to the YAML file. `lakemark validate` lists every mistake at once, `lakemark config show`
says of each setting where it came from, and `schemas/config.json` completes settings in editors.
When a change takes effect stands in [operations](operations.md#changing-settings).
"""
_UNIONS: Final = (typing.Union, types.UnionType)
_KINDS: Final[dict[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "text",
    timedelta: "duration",
    Path: "file",
    SecretStr: "secret",
}


class Form(enum.Enum):
    """What a setting holds."""

    VALUE = "value"
    SECTION = "section"
    SECTIONS = "sections by name"
    LIST = "sections in a list"


_OF_FORM: Final[dict[Form, SettingPath]] = {
    Form.SECTION: (),
    Form.SECTIONS: ("<schema.table>",),
    Form.LIST: (0,),
}


def page() -> str:
    """The whole page."""
    return _HEAD + "\n".join([*_section(Config, ()), *_elsewhere()]) + "\n"


def _section(model: type[BaseModel], path: SettingPath) -> Iterator[str]:
    """A section and, after it, those inside it."""
    inner = []
    if path:
        words = (model.__doc__ or "").strip().replace("``", "`")
        yield from ("", f"## `{dotted(path)}`", "", " ".join(words.split()))
    yield from ("", "| setting | type | default | environment | meaning |")
    yield "|---|---|---|---|---|"
    for name, field in model.model_fields.items():
        here = (*path, name)
        form, kind = _form(field.annotation)
        if form is Form.VALUE:
            yield _row(here, field)
            continue
        inner.append(_section(kind, (*here, *_OF_FORM[form])))
        if field.is_required() or not path:
            link = dotted(here).replace(".", "").lower()
            default = "required" if field.is_required() else ""
            yield f"| `{dotted(here)}` | section | {default} | | [see below](#{link}) |"
        elif field.description:
            yield _row(here, field)
    for lines in inner:
        yield from lines


def _row(path: SettingPath, field: FieldInfo) -> str:
    nameable = not any("<" in str(part) for part in path)
    cells = (
        f"`{dotted(path)}`",
        _kind(field.annotation, field),
        _default(field),
        f"`{env_name(path)}`" if nameable else "",
        field.description or "",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _form(kind: Any) -> tuple[Form, Any]:
    """Whether a setting is a section; and which."""
    for part in _parts(kind):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return Form.SECTION, part
        if typing.get_origin(part) is dict:
            of = typing.get_args(part)[1]
            if isinstance(of, type) and issubclass(of, BaseModel):
                return Form.SECTIONS, of
        if typing.get_origin(part) is list:
            (of,) = typing.get_args(part)
            if isinstance(of, type) and issubclass(of, BaseModel):
                return Form.LIST, of
    return Form.VALUE, kind


def _parts(kind: Any) -> list[Any]:
    """The types a setting may have, without None and without what is checked of them."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _parts(typing.get_args(kind)[0])
    if origin in _UNIONS:
        return [p for inner in typing.get_args(kind) for p in _parts(inner) if p is not type(None)]
    return [kind]


def _kind(kind: Any, field: FieldInfo) -> str:
    (part,) = _parts(kind)
    origin = typing.get_origin(part)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(part))
    if origin is list:
        return "list"
    if origin is dict:
        return "map"
    size = part is int and any("Size" in str(m) or "parse_size" in str(m) for m in field.metadata)
    shown = "size" if size else _KINDS[part]
    least = [f"≥ {m.ge:,}" for m in field.metadata if hasattr(m, "ge")]
    most = [f"≤ {m.le:,}" for m in field.metadata if hasattr(m, "le")]
    return ", ".join([shown, *least, *most])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None or value in ([], {}):
        return ""
    if isinstance(value, timedelta):
        return f"`{show_duration(value)}`"
    mebi = 1024**2
    if isinstance(value, int) and value >= mebi and value % mebi == 0:
        return f"`{value // mebi} MiB`"
    return f"`{value}`"


def _elsewhere() -> Iterator[str]:
    """What else is read from the environment."""
    meanings = {
        "LAKEMARK_CONFIG": "the YAML file, where `-c` is not given; else `./lakemark.yaml`",
        "LAKEMARK_CACHE": (
            "folder of the jars that were fetched, of Java's classes, and of what lakemark compiles"
        ),
    }
    yield from ("", "## Besides", "", "| environment | meaning |", "|---|---|")
    yield from (f"| `{name}` | {meanings[name]} |" for name in sorted(NOT_SETTINGS))


if __name__ == "__main__":
    print(page(), end="")
