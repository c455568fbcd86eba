"""The command ``lakemark trace``: the story of one row. It changes nothing.

Exit codes as of all commands; 1 also if the row is not as in the database, and nothing is on its
way that will make it so.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from lakemark.cli.invocation import (
    FAILED,
    OK,
    ConfigOption,
    OutputForm,
    OutputOption,
    guarded,
    load,
)
from lakemark.cli.presentation import error_console
from lakemark.snapshot import fields

if TYPE_CHECKING:  # slow imports
    from lakemark.ops.trace.facts_log import Since, Tick

_OFFSET: Final = re.compile(r"\d{1,18}")


@guarded
def trace(
    table: Annotated[str, typer.Argument(help="schema.table", show_default=False)],
    *,
    key: Annotated[
        str,
        typer.Option("--key", help="The row: JSON (42, '[1, \"a\"]', '{\"id\": 1}') or text."),
    ],
    at: Annotated[
        int | None,
        typer.Option("--at", min=0, metavar="VERSION", help="As of this version of the table."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="Read Kafka from a time (2026-11-29T10:00), a duration ago (24h) or an offset on;"
            " else the newest million records.",
        ),
    ] = None,
    with_values: Annotated[
        bool, typer.Option("--with-values", help="Show the rows' values, too.")
    ] = False,
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
) -> int:
    """Tell the story of one row: its records, what became of each, and whether all agrees."""
    begin = _since(since)
    parsed = fields.typed_key("--key", key)
    loaded = load(config).config
    from lakemark.cli import trace_view  # noqa: PLC0415 - slow imports
    from lakemark.ops.trace import trace as tracing  # noqa: PLC0415

    with _progress() as tick:
        story = tracing.trace(loaded, table, parsed, since=begin, at=at, tick=tick)
    if output is OutputForm.json:
        trace_view.show_json(story, with_values=with_values)
    else:
        trace_view.show(Console(), story, with_values=with_values)
    return OK if trace_view.is_good(story) else FAILED


def _since(text: str | None) -> "Since":
    """Read ``--since``.

    Raises:
        RefusedError: it is neither a time nor a duration nor an offset.
    """
    from lakemark.ops.trace.facts_log import Since  # noqa: PLC0415

    if text is None:
        return Since()
    if _OFFSET.fullmatch(text):
        return Since(offset=int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return Since(datetime.now(UTC) - fields.delay("--since", text))
        except OverflowError:
            raise fields.bad_value(
                "--since is out of range", "write it as 24h, 30m or 7d"
            ) from None
    return Since(moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC))


@contextmanager
def _progress() -> Iterator["Tick"]:
    """Draw how much of each topic was read, where somebody is looking."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=error_console(), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def tick(topic: str, done: int, total: int) -> None:
            task = tasks.get(topic) or tasks.setdefault(topic, progress.add_task(topic))
            progress.update(task, completed=done, total=total)

        yield tick
