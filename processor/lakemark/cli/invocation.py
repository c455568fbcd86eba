"""One invocation of the command line: configuration, log, exit code, one screen per error.

Exit codes: 0 ok, 1 failure, 2 usage, 3 configuration, 4 the
time of a wait is over.
"""

import functools
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, ParamSpec

import typer

from lakemark.cli import presentation
from lakemark.errors import ConfigError, LakemarkError
from lakemark.ops import log
from lakemark.ops.terminal import shown
from lakemark.settings import masking
from lakemark.settings.config import Loaded, load_with_origins
from lakemark.settings.layers import InvalidConfig
from lakemark.settings.locate import config_file

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
CONFIGURATION: Final = 3
TIMED_OUT: Final = 4

_debug = False
P = ParamSpec("P")


class OutputForm(StrEnum):
    """Form of an answer."""

    table = "table"
    json = "json"


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="YAML file; else LAKEMARK_CONFIG, else ./lakemark.yaml."),
]
OutputOption = Annotated[OutputForm, typer.Option("--output", "-o", help="table or json")]


def set_debug(*, on: bool) -> None:
    """Set whether errors come with their traceback."""
    global _debug  # noqa: PLW0603 (one process, one command)
    _debug = on


def hide(text: str) -> str:
    """A text without the configuration's secrets."""
    return masking.own(text)


def guarded(command: Callable[P, int]) -> Callable[P, None]:
    """Turns a result into the exit code, and an error into one screen without a traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except typer.Exit:
            raise
        except KeyboardInterrupt:
            code = 130
        except Exception as error:  # noqa: BLE001 (the last resort before the user)
            code = _report(error)
        raise typer.Exit(code)

    # typer reads the parameters of the wrapped command but must not believe it returns a code.
    run.__annotations__ = {**command.__annotations__, "return": None}
    return run


def _report(error: Exception) -> int:
    if _debug:
        import traceback  # noqa: PLC0415

        trace = masking.foreign("".join(traceback.format_exception(error)))
        sys.stderr.write(shown(trace, lines=True))
    console = presentation.error_console()
    if isinstance(error, InvalidConfig):
        presentation.show_problems(console, error.problems, source=error.source, hide=hide)
    elif isinstance(error, LakemarkError):
        presentation.show_error(console, error, hide=hide)
    else:
        presentation.show_unexpected(console, error, debug=_debug)
    return CONFIGURATION if isinstance(error, ConfigError) else FAILED


def load(given: Path | None) -> Loaded:
    """Return the configuration, with the log set up from it."""
    presentation.name_config(given)
    loaded = load_with_origins(config_file(given))
    log.configure(level=loaded.config.log.level, form=loaded.config.log.format)
    return loaded
