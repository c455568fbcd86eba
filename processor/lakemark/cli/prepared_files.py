"""The answer of `lakemark prepare`: files in a directory, or one after the other on the screen."""

import os
from pathlib import Path

import typer
from rich.console import Console

from lakemark.cli.invocation import FAILED, OK, USAGE, hide, load
from lakemark.cli.presentation import error_console, say, show_line, show_lines
from lakemark.model.findings import SIGNS, Verdict
from lakemark.ops.prepare.prepare import Prepared, chosen, config_of, prepare
from lakemark.settings.config import Config
from lakemark.settings.layers import ENV_PREFIX, NOT_SETTINGS
from lakemark.settings.locate import DEFAULT


def answer(
    connector: Path | None, name: str | None, config: Path | None, *, to: Path | None, force: bool
) -> int:
    """Write or print what is prepared, and return the exit code.

    Args:
        connector: the connector's file; None for the configuration's connector.
        name: of the connector, where the configuration has several.
        config: the configuration that was named.
        to: the directory; None to print.
        force: overwrite what is there.
    """
    known = _configuration(connector, name, config)
    known = known and chosen(known, name, connector)
    asks = known is not None and known.database is not None
    found = prepare(config_of(connector, known) if connector else _required(known), asks=asks)
    if to is None:
        _show(found)
    elif not _write(found, to, force=force):
        return USAGE
    return _close(found)


def _configuration(connector: Path | None, name: str | None, config: Path | None) -> Config | None:
    """Return the configuration; None where a connector's file is all there is, and enough."""
    set_ = any(name.startswith(ENV_PREFIX) and name not in NOT_SETTINGS for name in os.environ)
    named = config or os.environ.get("LAKEMARK_CONFIG") or Path(DEFAULT).is_file()
    needed = connector is None or name is not None
    return load(config).config if named or set_ or needed else None


def _required(config: Config | None) -> Config:
    if config is None:
        raise AssertionError("without a connector's file there is a configuration")
    return config


def _show(found: Prepared) -> None:
    console = Console()
    for name, text in found.files.items():
        show_line(console, f"=== {name}")
        show_lines(console, hide(text))


def _write(found: Prepared, to: Path, *, force: bool) -> bool:
    """Write all files or none; return whether they were written."""
    there = [name for name in found.files if (to / name).exists()]
    if there and not force:
        names = ", ".join(there)
        typer.echo(f"{to} has {names} already: nothing was written. --force overwrites", err=True)
        return False
    to.mkdir(parents=True, exist_ok=True)
    for name, text in found.files.items():
        (to / name).write_text(hide(text), encoding="utf-8")
    say(*(f"{to / name}" for name in found.files))
    return True


def _close(found: Prepared) -> int:
    """Say on standard error what the files are not, and return the exit code."""
    console = error_console()
    if found.catalog:
        show_line(console, f"The catalog was not read: {hide(found.catalog)}")
    for finding in found.left:
        line = f"{SIGNS[finding.verdict]} {finding.subject}: {finding.reason}"
        show_line(console, hide(line))
        if finding.mend:
            show_line(console, f"    → {hide(finding.mend)}")
    show_line(console, "Nothing was changed. Run the scripts, then see: lakemark doctor")
    return FAILED if any(finding.verdict is Verdict.ERROR for finding in found.left) else OK
