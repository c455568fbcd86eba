"""The command ``lakemark wait``: it asks the process that runs the pipeline until all is visible.

Exit codes as of all commands; 4 if the time is over before.
"""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from rich.console import Console

from lakemark.cli.invocation import (
    FAILED,
    OK,
    TIMED_OUT,
    USAGE,
    ConfigOption,
    OutputForm,
    OutputOption,
    guarded,
    load,
)
from lakemark.cli.presentation import say, show_error, show_table
from lakemark.errors import DependencyError
from lakemark.settings import masking
from lakemark.snapshot import fields

if TYPE_CHECKING:
    from lakemark.ops.waits import WaitAnswer
    from lakemark.settings.config import Config

_ROUND_S: Final = 20.0
"""Seconds that one question may take: proxies end connections that are silent for longer."""
_AGAIN_S: Final = 1.0
_NO_ANSWER: Final = "no-answer"


@guarded
def wait(
    *,
    now: Annotated[
        bool, typer.Option("--now", help="Everything that is committed when this is called.")
    ] = False,
    position: Annotated[
        list[str] | None,
        typer.Option(
            metavar="P",
            help="Everything up to there: as the database prints it (an LSN, FILE:OFFSET, a GTID"
            " set); one for each --connector.",
            show_default=False,
        ),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Only this table, or these; else all."),
    ] = None,
    connector: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Whose database has the position, of several."),
    ] = None,
    timeout: Annotated[str, typer.Option(help="How long to wait, such as 30s or 5m.")] = "60s",
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
) -> int:
    """Return when everything up to a place of the source's log is visible in the lake's tables."""
    texts, names = position or [], connector or []
    if now == bool(texts) or (names and len(names) != len(texts)):
        typer.echo("give --now, or --position; with --connector one for each", err=True)
        return USAGE
    loaded = load(config).config
    within = fields.delay("--timeout", timeout).total_seconds()
    places = tuple(zip(names or [""] * len(texts), texts, strict=True))
    found, why = _asked(loaded, tuple(table or ()), places, within)
    if found is None:
        show_error(Console(stderr=True), why, hide=masking.own)
        return FAILED if why.code == _NO_ANSWER else TIMED_OUT
    _show(found, as_json=output is OutputForm.json)
    return OK if found.visible else TIMED_OUT


def _asked(
    config: "Config", tables: tuple[str, ...], places: tuple[tuple[str, str], ...], within_s: float
) -> "tuple[WaitAnswer | None, DependencyError]":
    """Ask again and again; return the newest answer, and the newest reason why there was none.

    A process that has answered may begin anew meanwhile; one that never has is not waited for.
    """
    from lakemark.ops.served import served_wait  # noqa: PLC0415 - a slow import
    from lakemark.ops.waits import WaitRequest  # noqa: PLC0415 - likewise

    until = time.monotonic() + within_s
    found: WaitAnswer | None = None
    why = DependencyError("")
    while True:
        left = until - time.monotonic()
        try:
            one = max(0.0, min(left, _ROUND_S))
            found = served_wait(config, WaitRequest(tables, places), within_s=one)
        except DependencyError as error:
            why = error
            if (found is None and error.code == _NO_ANSWER) or left <= 0:
                return found, why
            time.sleep(min(_AGAIN_S, left))
            continue
        if found.visible or left <= 0:
            return found, why
        places = tuple((one.connector, one.position) for one in found.positions)


def _show(found: "WaitAnswer", *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        return
    for asked in found.positions:
        whose = f" of {asked.connector}" if asked.connector else ""
        say(f"{'visible up to' if found.visible else 'not yet up to'} {asked.position}{whose}")
    rows = [
        [
            one.table,
            "visible" if one.visible else one.code,
            "" if one.version is None else str(one.version),
            ". ".join(filter(None, (one.reason, one.hint))),
        ]
        for one in found.tables
    ]
    show_table(Console(), ("table", "state", "version", "why"), rows)
