"""The sources of settings: the YAML file with its line numbers, then the environment.

The environment wins over the file. `${env:NAME}` and `${file:path}` are replaced in both. Nothing
here raises for a mistake of the user: every mistake becomes a `Mistake`, so that all of them are
shown at once.
"""

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

import yaml

from lakemark.errors import ConfigError
from lakemark.settings.file_secret import Referred, Template, content

SettingPath = tuple[str | int, ...]
Shape = Literal["scalar", "list", "map", "section", "unknown"]

ENV_PREFIX: Final = "LAKEMARK_"
# Variables with our prefix that are not settings.
NOT_SETTINGS: Final = frozenset({"LAKEMARK_CONFIG", "LAKEMARK_CACHE"})
# Deeper than any setting; stops a YAML alias that contains itself.
_MAX_DEPTH: Final = 16
_NUMBER: Final = re.compile(r"[0-9]{1,4}")  # of an entry in a list
_PLACEHOLDER: Final = re.compile(r"\$\$\{|\$\{([^{}\n]*)\}")
# `{password: ${file:pg}}` is no valid flow YAML. ASCII inside a placeholder is moved to the Unicode
# private use area before parsing and back afterwards; columns and lines stay as they are.
_PRIVATE: Final = 0xE000


class Written:
    """A number and how it was written: to YAML 0123 is 83, but as a password it is 0123."""

    text: str

    @classmethod
    def of(cls, value: Any, text: str) -> Self:
        """The number as it stands in the file."""
        made = cls.__new__(cls, value)  # type: ignore[call-arg]
        made.text = text
        return made


class WrittenInt(Written, int):
    """A whole number."""


class WrittenFloat(Written, float):
    """Any other number."""


_WRITTEN: Final[dict[type, type[Written]]] = {int: WrittenInt, float: WrittenFloat}
_DATE: Final = "tag:yaml.org,2002:timestamp"


class SetTo(str):
    """A hint: give a setting of the connector another value. It reads as a sentence.

    `lakemark prepare` does what it says.
    """

    __slots__ = ("_more", "setting", "value")

    def __new__(cls, setting: str, value: str, *, more: str = "") -> Self:
        """Return the hint.

        Args:
            setting: its name, as the connector has it.
            value: that it is to have.
            more: the end of the sentence.
        """
        made = super().__new__(cls, f"set {setting} to {value}{more}")
        made.setting, made.value, made._more = setting, value, more
        return made

    setting: str
    value: str
    _more: str

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the setting where a copy is made."""
        return (_set_to, (self.setting, self.value, self._more))


def _set_to(setting: str, value: str, more: str) -> SetTo:
    return SetTo(setting, value, more=more)


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a configuration.

    Attributes:
        path: the setting, as in ``kafka.bootstrap_servers``.
        message: what was found and what is expected; never a secret.
        hint: what to do.
        line: line in the YAML file, counted from 1, where known.
        warning: it can be started like this, but the reader should know.
    """

    path: str
    message: str
    hint: str = ""
    line: int | None = None
    warning: bool = False


class InvalidConfig(ConfigError):  # noqa: N818
    """A configuration with mistakes, all of them listed in `problems`; nothing was started."""

    def __init__(self, problems: list[Mistake], *, source: str = "") -> None:
        self.problems = problems
        self.source = source
        lines = [f"{p.path}: {p.message}" if p.path else p.message for p in problems]
        count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
        super().__init__(
            f"{count} in {source or 'the configuration'}: " + "; ".join(lines),
            hint="; ".join(dict.fromkeys(p.hint for p in problems if p.hint)),
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Keeps the list of problems when the error crosses a process border."""
        return (_rebuild, (self.problems, self.source))


class LoginRefused(InvalidConfig):
    """Brokers, Connect or database do not accept who we say we are.

    A command or a start ends with it. A pipeline that has streamed tries again: the password may be
    on its way to the file that the setting names, which is read again by whoever connects.

    Args:
        problem: what was refused.
        code: of whom.
    """

    retried = True

    def __init__(self, problem: Mistake, *, code: str) -> None:
        super().__init__([problem])
        self.message, self.code = problem.message, code

    def __reduce__(self) -> tuple[object, ...]:
        """Keeps its kind when it crosses a process border."""
        return (_refused, (self.problems[0], self.code))


def _refused(problem: Mistake, code: str) -> LoginRefused:
    return LoginRefused(problem, code=code)


def _rebuild(problems: list[Mistake], source: str) -> InvalidConfig:
    return InvalidConfig(problems, source=source)


@dataclass(slots=True)
class Layers:
    """The merged settings, before they are checked, with the place each one came from.

    Attributes:
        values: nested settings.
        origins: place of each leaf, e.g. ``lakemark.yaml:3`` or ``LAKEMARK_NAME``.
        lines: line of each path in the YAML file.
        problems: mistakes found so far.
        base: folder that relative paths are relative to: that of the YAML file.
    """

    base: Path
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[SettingPath, str] = field(default_factory=dict)
    lines: dict[SettingPath, int] = field(default_factory=dict)
    problems: list[Mistake] = field(default_factory=list)

    def line_of(self, path: SettingPath) -> int | None:
        """Line of the setting or of the nearest section around it that the file has."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return None

    def add(self, path: SettingPath, message: str, hint: str = "") -> None:
        """Notes a mistake at this path."""
        self.problems.append(Mistake(dotted(path), message, hint, self.line_of(path)))


def dotted(path: SettingPath) -> str:
    """``("kafka", "security")`` as ``kafka.security``; list positions as ``[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def env_name(path: SettingPath) -> str:
    """The environment variable that sets this path."""
    return ENV_PREFIX + "__".join(str(part).upper() for part in path)


def read_layers(
    file: Path | None,
    environ: Mapping[str, str],
    *,
    shape: Callable[[SettingPath], Shape],
    sections: Sequence[str],
) -> Layers:
    """Reads the file, lays the environment over it and replaces the placeholders.

    Args:
        file: the YAML file; None when everything comes from the environment.
        environ: the environment.
        shape: tells what kind of setting a path is, so that a variable can be read as a list.
        sections: the names of the first level, to recognise a misspelt variable.

    Raises:
        InvalidConfig: the file cannot be read or is no YAML; other mistakes are collected.
    """
    layers = Layers(base=(file.parent if file else Path.cwd()).resolve())
    if file is not None:
        _read_file(file, layers)
    _read_environment(environ, shape, sections, layers)
    layers.values = _resolve(layers.values, (), environ, layers)
    return layers


def _read_file(file: Path, layers: Layers) -> None:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidConfig(
            [Mistake("", f"{file} cannot be read: {reason}", "name the file with -c FILE")],
            source=str(file),
        ) from error
    hidden = re.sub(
        r"\$\{[^{}\n]*\}",
        lambda m: "".join(chr(_PRIVATE + ord(c)) if ord(c) < 128 else c for c in m[0]),  # noqa: PLR2004
        text,
    )
    try:
        node = yaml.compose(hidden, Loader=yaml.SafeLoader)
        value = _from_node(node, (), file.name, layers) if node is not None else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise InvalidConfig(
            [Mistake("", f"not valid YAML: {error.problem}", "check indentation and quotes", line)],
            source=str(file),
        ) from error
    except yaml.YAMLError as error:
        raise InvalidConfig([Mistake("", f"not valid YAML: {error}")], source=str(file)) from error
    if isinstance(value, dict):
        layers.values = value
    else:
        layers.add((), f"{file.name} holds no settings: expected `name: value` lines")


def _from_node(node: yaml.Node, path: SettingPath, file: str, layers: Layers) -> Any:
    line = node.start_mark.line + 1
    layers.lines.setdefault(path, line)
    if len(path) > _MAX_DEPTH:
        layers.add(path[:2], "is nested too deeply", "remove the YAML alias that contains itself")
        return None
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = _show(str(key_node.value))
            inner = (*path, key)
            if key in found:
                layers.add(inner, "is set twice", "keep one of them")
            layers.lines[inner] = key_node.start_mark.line + 1
            found[key] = _from_node(value_node, inner, file, layers)
        return found
    layers.origins[path] = f"{file}:{line}"
    if isinstance(node, yaml.SequenceNode):
        return [_from_node(n, (*path, i), file, layers) for i, n in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        node.value = _show(str(node.value))
        if node.tag == _DATE:
            return node.value  # no setting is one
    value = yaml.SafeLoader("").construct_object(node, deep=True)
    kind = _WRITTEN.get(type(value))
    return kind.of(value, str(node.value)) if kind else value


def _show(text: str) -> str:
    return "".join(chr(ord(c) - _PRIVATE) if 0 <= ord(c) - _PRIVATE < 128 else c for c in text)  # noqa: PLR2004


def _read_environment(
    environ: Mapping[str, str],
    shape: Callable[[SettingPath], Shape],
    sections: Sequence[str],
    layers: Layers,
) -> None:
    for name in sorted(environ, key=_in_order):
        if not name.startswith(ENV_PREFIX) or name in NOT_SETTINGS:
            continue
        path = _path_of(name, shape)
        if shape(path[:1]) == "unknown" and len(path) == 1:
            # Orchestrators inject SERVICE_HOST, PORT and the like under a service's name: only
            # what looks like a setting of ours is a mistake.
            near = difflib.get_close_matches(str(path[0]), sections, n=1, cutoff=0.8)
            if near:
                hint = f"did you mean {env_name((near[0],))}?"
                layers.add(path, f"the variable {name} sets nothing that exists", hint)
            continue
        value: Any = environ[name]
        kind = shape(path)
        if kind != "scalar" and value.lstrip().startswith(("[", "{")):
            try:
                value = yaml.safe_load(value)
            except yaml.YAMLError:
                layers.add(path, f"the variable {name} holds neither JSON nor YAML")
                continue
        elif kind == "list":
            value = [part.strip() for part in value.split(",") if part.strip()]
        _set(layers, path, value, origin=name)


def _in_order(name: str) -> list[tuple[int, str]]:
    """Return a key to sort by: a list before its entries, and these by their numbers."""
    parts = name.split("__")
    return [(int(part), "") if _NUMBER.fullmatch(part) else (-1, part) for part in parts]


def _path_of(name: str, shape: Callable[[SettingPath], Shape]) -> SettingPath:
    """Settings are lower case, entries of lists numbers; keys of a free map stay as they are."""
    path: SettingPath = ()
    for part in name.removeprefix(ENV_PREFIX).split("__"):
        kind = shape(path) if path else "section"
        if kind == "list" and _NUMBER.fullmatch(part):
            path = (*path, int(part))
        else:
            path = (*path, part if kind == "map" else part.lower())
    return path


def _set(layers: Layers, path: SettingPath, value: Any, *, origin: str) -> None:
    target: Any = layers.values
    for end, part in enumerate(path[:-1], start=1):
        wanted = list if isinstance(path[end], int) else dict
        inner = _got(target, part)
        if not isinstance(inner, wanted):
            inner = wanted()
            if not _put(target, part, inner):
                return _add_gap(layers, path[:end], origin)
        target = inner
    if not _put(target, path[-1], value):
        return _add_gap(layers, path, origin)
    for old in [p for p in layers.origins if p[: len(path)] == path]:
        del layers.origins[old]
    for old in [p for p in layers.lines if p[: len(path)] == path]:
        del layers.lines[old]
    layers.origins[path] = origin
    return None


def _got(target: Any, part: str | int) -> Any:
    if isinstance(part, int):
        return target[part] if part < len(target) else None
    return target.get(part)


def _put(target: Any, part: str | int, value: Any) -> bool:
    """Set a key of a map, or an entry of a list; return whether there can be one of that number."""
    if not isinstance(part, int) or part < len(target):
        target[part] = value
    elif part == len(target):
        target.append(value)
    else:
        return False
    return True


def _add_gap(layers: Layers, path: SettingPath, origin: str) -> None:
    message = f"the variable {origin} sets an entry, and those before it are not all there"
    layers.add(path, message, "number the entries from 0 on")


def _resolve(value: Any, path: SettingPath, environ: Mapping[str, str], layers: Layers) -> Any:
    if isinstance(value, dict):
        return {k: _resolve(v, (*path, k), environ, layers) for k, v in value.items()}
    if isinstance(value, list):
        return [_resolve(v, (*path, i), environ, layers) for i, v in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    return _text(value, path, environ, layers)


def _text(value: str, path: SettingPath, environ: Mapping[str, str], layers: Layers) -> str:
    """The text with its placeholders replaced; it remembers the files that it was made from."""
    parts: list[str | Path] = []
    shown, end = "", 0
    for match in _PLACEHOLDER.finditer(value):
        files: list[Path] = []
        found = _placeholder(match, path, environ, layers, files)
        parts.append(value[end : match.start()])
        parts.extend(files or [found])
        shown += value[end : match.start()] + found
        end = match.end()
    whole, template = shown + value[end:], Template((*parts, value[end:]))
    refers = any(match[0] != "$${" for match in _PLACEHOLDER.finditer(value))
    return Referred.of(whole, template) if refers else whole


def _placeholder(
    match: re.Match[str],
    path: SettingPath,
    environ: Mapping[str, str],
    layers: Layers,
    files: list[Path],
) -> str:
    """Return what a placeholder stands for; a file that was read is added to `files`."""
    if match[0] == "$${":
        return "${"
    scheme, _, argument = match[1].partition(":")
    origin = layers.origins.get(path)
    if scheme == "env":
        if argument in environ:
            found = environ[argument]
            if origin:
                layers.origins[path] = f"{origin}, ${{env:{argument}}}"
            return found
        layers.add(path, f"the environment variable {argument} is not set", f"set {argument}")
    elif scheme == "file":
        file = layers.base / os.path.expanduser(argument)  # noqa: PTH111 (joined to the base)
        try:
            found = content(file)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            layers.add(path, f"the file {file} cannot be read: {reason}", f"create {file}")
            return match[0]
        if origin:
            layers.origins[path] = f"{origin}, ${{file:{argument}}}"
        files.append(file)
        return found
    else:
        layers.add(
            path,
            f"the placeholder {match[0]} is not known",
            "use ${env:NAME} or ${file:path}; write $${ for a literal ${",
        )
    return match[0]
