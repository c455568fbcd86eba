"""The command ``lakemark cut``: the versions of the tables as of one place of the source.

Exit codes as of all commands; 1 also if a table has no version that holds exactly that.
"""

import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from lakemark.cli.invocation import (
    FAILED,
    OK,
    ConfigOption,
    OutputForm,
    OutputOption,
    guarded,
    load,
)
from lakemark.cli.presentation import say, show_table

if TYPE_CHECKING:
    from lakemark.ops.cuts import FoundCut


class ViewReader(StrEnum):
    """The engine that reads the views."""

    spark = "spark"
    duckdb = "duckdb"


@guarded
def cut(
    *,
    at: Annotated[
        str,
        typer.Option(
            metavar="latest|TIME|POSITION",
            help="The newest cut at or before a time (2026-11-30T10:00), or a place of the log as"
            " its database prints it.",
        ),
    ] = "latest",
    table: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Only this table, or these; else all."),
    ] = None,
    connector: Annotated[
        str, typer.Option(metavar="NAME", help="Whose tables, of several connectors.")
    ] = "",
    sql: Annotated[
        ViewReader | None,
        typer.Option(help="Print views of these versions, for this engine.", show_default=False),
    ] = None,
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
) -> int:
    """Print the version of every table that holds exactly what was committed at one place."""
    loaded = load(config).config
    from lakemark.ops import cuts  # noqa: PLC0415 - slow imports

    found = cuts.find(loaded, at=at, connector=connector, tables=table or ())
    if sql is not None:
        for line in _views(found, sql):
            sys.stdout.write(line + "\n")
    elif output is OutputForm.json:
        sys.stdout.write(msgspec.json.encode({"cuts": found}).decode() + "\n")
    else:
        _show(found)
    return OK if all(one.version is not None for each in found for one in each.tables) else FAILED


def _show(found: "Sequence[FoundCut]") -> None:
    for each in found:
        whose = f" of {each.connector}" if each.connector else ""
        moment = each.committed_at.isoformat(sep=" ", timespec="milliseconds")
        say(f"as of transaction {each.transaction}{whose}, committed {moment}")
        rows = [
            [one.table, "" if one.version is None else str(one.version), one.reason]
            for one in each.tables
        ]
        show_table(Console(), ("table", "version", "why"), rows)


def _views(found: "Sequence[FoundCut]", dialect: ViewReader) -> Iterator[str]:
    """Yield statements that make views; a comment for each table without a version."""
    for each in found:
        yield f"-- as of transaction {each.transaction}, {each.committed_at.isoformat()}"
        for one in each.tables:
            if one.version is None:
                yield f"-- {one.table}: {one.reason}"
            elif dialect is ViewReader.spark:
                name, path = (text.replace("`", "``") for text in (one.table, one.path))
                rows = f"delta.`{path}` VERSION AS OF {one.version}"
                yield f"CREATE OR REPLACE TEMPORARY VIEW `{name}` AS SELECT * FROM {rows};"  # noqa: S608 - quoted
            else:
                name, path = one.table.replace('"', '""'), one.path.replace("'", "''")
                rows = f"delta_scan('{path}', version => {one.version})"
                yield f'CREATE OR REPLACE VIEW "{name}" AS FROM {rows};'
