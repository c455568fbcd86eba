"""The look of answers and errors: panels and tables on a terminal, plain lines elsewhere."""

import platform
import re
import shlex
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lakemark.errors import LakemarkError
from lakemark.ops.terminal import shown, shown_json
from lakemark.settings.config import Config, Loaded, leaves
from lakemark.settings.layers import Mistake, dotted
from lakemark.settings.masking import MASK, foreign
from lakemark.version import __version__

# Those that take a configuration, and do not name one.
_COMMAND: Final = re.compile(
    r"\blakemark (?:"
    r"(?:table|snapshot|dlq) [a-z]+|config show|run(?: --once)?|recover"
    r"|validate|doctor|plan|prepare|status|verify|trace)"
    r"\b(?! -c )"
)
Hide = Callable[[str], str]
"""Takes secrets out of a text."""


def error_console() -> Console:
    """Errors go to standard error, so that the output of a command can be piped."""
    return Console(stderr=True)


class _Named:
    """The configuration file that the user has named, as a shell takes it; empty if none."""

    option = ""


def name_config(given: Path | None) -> None:
    """Has commands that are shown from now on name this file, as the user's own command did."""
    _Named.option = f" -c {shlex.quote(str(given))}" if given is not None else ""


def as_commands(text: str) -> str:
    """A text whose commands can be typed as they stand there."""
    return _COMMAND.sub(rf"\g<0>{_escaped(_Named.option)}", text) if _Named.option else text


def _escaped(option: str) -> str:
    return option.replace("\\", "\\\\")


def show_line(console: Console, text: str) -> None:
    """A line of ours: nothing in it is markup, no width breaks it, its commands can be typed."""
    show_lines(console, shown(as_commands(text)))


def show_lines(console: Console, text: str) -> None:
    """A text as it is, with the line breaks that stand in it."""
    text = shown(text, lines=True)
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


def say(*lines: str) -> None:
    """Lines of ours on standard output, whatever it is; their commands can be typed."""
    for line in lines:
        sys.stdout.write(shown(as_commands(line)) + "\n")


def show_json(value: Any, *, indent: int | None = 2) -> None:
    """JSON on standard output, one value."""
    sys.stdout.write(shown_json(value, indent=indent) + "\n")


def show_problems(
    console: Console, problems: Sequence[Mistake], *, source: str, hide: Hide
) -> None:
    """Every mistake and warning: where, what, what to do."""
    if not problems:
        return
    lines = []
    for problem in problems:
        where = f"{source}:{problem.line}: " if problem.line and source else ""
        kind = "warning: " if problem.warning else ""
        name = f"{problem.path}: " if problem.path else ""
        lines.append(hide(f"{where}{kind}{name}{problem.message}"))
        if problem.hint:
            lines.append(hide(f"    → {problem.hint}"))
    mistakes = sum(not problem.warning for problem in problems)
    count = f"{mistakes} mistake{'s' * (mistakes != 1)}" if mistakes else "warnings"
    title = f"{count} in {source or 'the configuration'}"
    _say(console, title, lines, colour="red" if mistakes else "yellow")


def show_error(console: Console, error: LakemarkError, *, hide: Hide) -> None:
    """Print what happened, whether it is retried, what to do."""
    lines = [hide(error.message)]
    if error.hint:
        lines.append(hide(f"    → {error.hint}"))
    if error.retried:
        lines.append("    A running pipeline tries again by itself; this command does not.")
    _say(console, error.code, lines, colour="red")


def show_unexpected(console: Console, error: Exception, *, debug: bool) -> None:
    """An error that nobody foresaw, also one that cannot say what it is."""
    lines = [foreign("".join(traceback.format_exception_only(error)).strip())]
    if not debug:
        lines.append("    → run `lakemark --debug …` for the traceback, and please report it")
    _say(console, "unexpected error", lines, colour="red")


def _say(console: Console, title: str, lines: Sequence[str], *, colour: str) -> None:
    if console.is_terminal:
        text = Text("\n".join(shown(as_commands(line)) for line in lines))
        console.print(Panel(text, title=Text(shown(title)), border_style=colour))
        return
    for line in [f"{title}:", *lines]:
        show_line(console, line)


def show_summary(console: Console, config: Config) -> None:
    """Print what a valid configuration means."""
    for line in (
        f"ok: {config.name} can be started",
        *(f"  reads   {_read_by(part)}" for part in config.parts),
        f"  writes  {config.lake.path} ({config.lake.deletes} deletes)",
    ):
        show_line(console, line)


def _read_by(part: Config) -> str:
    source = part.source
    if source.connect:
        place = f"the connector {source.connect.connector} (Connect is asked by `lakemark run`)"
    else:
        place = f"the connector in {source.connector_file}"
    tables = ", ".join(source.tables) or "all that the connector captures"
    return f"{tables} of {place}"


def show_settings(console: Console, loaded: Loaded, *, as_json: bool) -> None:
    """Every setting with its value and origin; secrets are masked."""
    rows = []
    for path, value, secret in leaves(loaded.config):
        name = dotted(path)
        origin = loaded.origins.get(name, "default")
        rows.append((name, MASK if secret else foreign(value), origin))
    if as_json:
        show_json([{"setting": n, "value": v, "from": o} for n, v, o in rows])
        return
    show_table(console, ("setting", "value", "from"), rows)


def show_table(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal; elsewhere lines with columns that no width cuts."""
    if console.is_terminal:
        console.print(drawn_table(header, rows))
        return
    rows = [tuple(map(shown, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        line = "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        show_line(console, line.rstrip())


def drawn_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table as a terminal shows it."""
    table = Table(*header, box=None)
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    return table


def show_versions(console: Console, *, as_json: bool) -> None:
    """The versions of lakemark and of what it stands on."""
    versions = {"lakemark": __version__}
    for name in ("pyspark", "delta-spark", "deltalake", "confluent-kafka", "pyarrow"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    versions |= {"python": platform.python_version(), "java": java_version()}
    if as_json:
        show_json(versions)
        return
    for name, value in versions.items():
        console.print(f"{name:16}{value}", markup=False, highlight=False)


def java_version() -> str:
    """First line of ``java -version``, or why there is none."""
    if shutil.which("java") is None:
        return "not found on PATH"
    try:
        done = subprocess.run(
            ["java", "-version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not answer ({type(error).__name__})"
    lines = [line for line in done.stderr.splitlines() if "version" in line]
    return lines[0].strip() if lines else "unknown"
