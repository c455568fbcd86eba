"""From pydantic's errors to sentences for the reader: where, what was found, what is expected."""

import difflib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Final, Union

from pydantic import BaseModel, SecretStr, ValidationError

from lakemark.settings.layers import Layers, Mistake, SettingPath, Shape, dotted, env_name

# Longer values are cut: enough to recognise a typing mistake.
_SHOWN: Final = 60


def shape_of(model: type[BaseModel], path: SettingPath) -> Shape:
    """Return the kind of a setting: one value, a list, a free map, a section or unknown."""
    kind: Any = model
    for part in path:
        kind = _bare(kind)
        if _is_model(kind):
            field = kind.model_fields.get(part)
            if field is None:
                return "unknown"
            kind = field.annotation
        elif typing.get_origin(kind) is dict or (
            typing.get_origin(kind) is list and isinstance(part, int)
        ):
            kind = _held(kind)
        else:
            return "unknown"
    kind = _bare(kind)
    if _is_model(kind):
        return "section"
    origin = typing.get_origin(kind)
    return "map" if origin is dict else "list" if origin is list else "scalar"


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _held(kind: Any) -> Any:
    """Return the kind of what a list or a map holds."""
    return typing.get_args(kind)[-1]


def _bare(kind: Any) -> Any:
    """Without Annotated and without None."""
    while True:
        origin = typing.get_origin(kind)
        if origin is typing.Annotated:
            kind = typing.get_args(kind)[0]
        elif origin in {Union, UnionType}:
            inner = [arg for arg in typing.get_args(kind) if arg is not type(None)]
            kind = inner[0]
        else:
            return kind


def explain(
    error: ValidationError, model: type[BaseModel], layers: Layers, *, file: Path | None
) -> list[Mistake]:
    """One `Mistake` per mistake, in the order of the file; none twice for one setting."""
    known = {problem.path for problem in layers.problems}
    found = []
    for detail in error.errors(include_url=False):
        path = _setting_path(detail["loc"])
        for inner, message in detail.get("ctx", {}).get("settings", {}).items():
            setting = (*path, *inner)
            found.append(Mistake(dotted(setting), message, line=layers.line_of(setting)))
        if detail["type"] != "settings":
            found.append(_problem(detail, path, model, layers, file))
    return [mistake for mistake in found if mistake.path not in known]


def _setting_path(loc: Sequence[str | int]) -> SettingPath:
    """Here pydantic names the key of a map that is wrong itself with an extra part."""
    return tuple(part for part in loc if part != "[key]")


def _problem(
    detail: Mapping[str, Any],
    path: SettingPath,
    model: type[BaseModel],
    layers: Layers,
    file: Path | None,
) -> Mistake:
    name, line, kind = dotted(path), layers.line_of(path), detail["type"]
    if kind == "missing":
        section = shape_of(model, path) == "section"
        variable = env_name(path) + ("__…" if section else "")
        where = [f"{name} in {file.name}" if file else "no configuration file", variable]
        looked = ", then ".join(where)
        return Mistake(name, "is required and was not found", f"looked for {looked}", line)
    if kind == "extra_forbidden":
        hint = _nearest(path, model)
        origin = layers.origins.get(path, "")
        message = "is not a setting" + (f" (from {origin})" if "LAKEMARK_" in origin else "")
        return Mistake(name, message, hint, line)
    message = f"{_found(detail['input'], path, model)}{_expected(detail)}"
    origin = layers.origins.get(path, "")
    hint = f"the value comes from {origin}" if "LAKEMARK_" in origin or "${" in origin else ""
    return Mistake(name, message, hint, line)


def _expected(detail: Mapping[str, Any]) -> str:
    message = str(detail["msg"])
    if detail["type"] == "literal_error":
        return f"expected {detail['ctx']['expected']}"
    if detail["type"] == "string_pattern_mismatch":
        return f"expected a name of the form {detail['ctx']['pattern']}"
    if detail["type"] in {"model_type", "model_attributes_type", "dict_type"}:
        return "expected a section of settings"
    is_name = not message[1:2].islower()  # SASL_SSL stays as it is
    lowered = message if is_name else message[:1].lower() + message[1:]
    return lowered.replace("input should be", "expected").replace("value error, ", "")


def _found(value: Any, path: SettingPath, model: type[BaseModel]) -> str:
    if _holds_secret(path, model):
        return ""
    if isinstance(value, Mapping | BaseModel | SecretStr):
        expected = shape_of(model, path) in {"section", "map"}
        return "" if expected else "found a section of settings; "
    if value is None:
        return "found nothing; "
    shown = repr(value)
    return f"found {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'}; "


def _holds_secret(path: SettingPath, model: type[BaseModel]) -> bool:
    kind: Any = model
    for part in path:
        kind = _bare(kind)
        if _is_model(kind):
            field = kind.model_fields.get(part)
            kind = field.annotation if field else str
        elif typing.get_origin(kind) in {dict, list}:
            kind = _held(kind)
    return _bare(kind) is SecretStr or (bool(path) and path[-1] == "url")


def _nearest(path: SettingPath, model: type[BaseModel]) -> str:
    """A hint with the nearest known setting of the same section, else what the section has.

    A name that another section has is a mistake of place on the first level alone: inside of a
    section it may mean something else, so that one is only named.
    """
    wrong = str(path[-1])
    siblings = _names(model, path[:-1])
    near = difflib.get_close_matches(wrong, siblings, n=1, cutoff=0.6)
    if near:
        return f"did you mean {dotted((*path[:-1], near[0]))}?"
    elsewhere = [dotted(p) for p in _all_paths(model) if p[-1] == wrong]
    place = dotted(path[:-1])
    if not place and elsewhere:
        return f"did you mean {elsewhere[0]}?"
    has = f"{place or 'the first level'} has: {', '.join(siblings)}"
    return f"{has}; another section has {elsewhere[0]}" if elsewhere else has


def _names(model: type[BaseModel], path: SettingPath) -> list[str]:
    kind: Any = model
    for part in path:
        kind = _bare(kind)
        fields = kind.model_fields if _is_model(kind) else None
        kind = fields[part].annotation if fields else _held(kind)
    kind = _bare(kind)
    return list(kind.model_fields) if _is_model(kind) else []


def _all_paths(model: type[BaseModel], above: SettingPath = ()) -> list[SettingPath]:
    found: list[SettingPath] = []
    for name, field in model.model_fields.items():
        path = (*above, name)
        found.append(path)
        kind = _bare(field.annotation)
        if _is_model(kind):
            found += _all_paths(kind, path)
    return found
