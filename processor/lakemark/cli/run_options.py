"""The options that commands for runs share: which rows, how they are read, how long is waited."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from lakemark.errors import RefusedError
from lakemark.settings.config import Config
from lakemark.snapshot import fields

TablesArgument = Annotated[
    list[str], typer.Argument(metavar="TABLE...", help="schema.table, or Java regexes of it")
]
FilterOption = Annotated[
    list[str] | None,
    typer.Option("--filter", help="Only rows for which SQL holds: SQL, or TABLE=SQL."),
]
KeyOption = Annotated[
    list[str] | None,
    typer.Option("--key", help="Only this row: JSON (42, '[1, \"a\"]', '{\"id\": 1}') or text."),
]
KeysFileOption = Annotated[
    Path | None, typer.Option("--keys-file", help="A key a line; - is standard input.")
]
SurrogateOption = Annotated[
    str | None, typer.Option("--surrogate-key", help="Column that orders the chunks.")
]
PriorityOption = Annotated[
    int | None, typer.Option("--priority", help="Higher goes first; 0 if left out.")
]
IdOption = Annotated[str | None, typer.Option("--id", help="Name of the run; default: a new UUID.")]
ChunkRowsOption = Annotated[
    int | None, typer.Option("--chunk-rows", help="Rows of one chunk.", show_default=False)
]
ParallelismOption = Annotated[
    int | None, typer.Option("--parallelism", help="Chunks read at once.", show_default=False)
]
DelayOption = Annotated[
    str | None,
    typer.Option("--delay", help="Pause after each chunk: 500ms, 1s, PT5S.", show_default=False),
]
PaceOption = Annotated[
    int | None,
    typer.Option("--rows-per-second", help="Rows that a verify run's scan reads, at most."),
]
AnswerOption = Annotated[
    str, typer.Option("--answer-within", help="How long to wait for the pipeline's answer.")
]


def data_of(
    tables: list[str],
    *,
    filters: list[str] | None,
    keys: list[str] | None,
    keys_file: Path | None,
    config: Config,
    **more: Any,
) -> dict[str, Any]:
    """Return `data` of the signal for a run; what is not given is None.

    Raises:
        RefusedError: an option is none that the pipeline could take.
    """
    found = _conditions(filters or [], tables)
    _check_conditions(found, config)
    return {
        "data-collections": tables,
        "additional-conditions": found or None,
        "keys": [_key(text) for text in (*(keys or ()), *_lines(keys_file))] or None,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


def seconds(duration: str) -> float:
    """Return how long to wait for an answer; raises `RefusedError`."""
    return fields.delay("--answer-within", duration).total_seconds()


def _conditions(filters: list[str], tables: list[str]) -> list[dict[str, str]]:
    """Filters of single tables first: the first that matches a table counts."""
    own, for_all = [], []
    for text in filters:
        table, found, sql = text.partition("=")
        if found and table.strip() in tables:
            own.append({"data-collection": table.strip(), "filter": sql})
        else:
            for_all.append({"data-collection": ".*", "filter": text})
    if len(for_all) > 1:
        raise RefusedError(
            "more than one --filter is for all tables",
            code="bad-value",
            hint="join them by AND, or write --filter TABLE=SQL with TABLE as in the arguments",
        )
    return [*own, *for_all]


def _check_conditions(conditions: list[dict[str, str]], config: Config) -> None:
    if conditions and not config.several:  # else each connector has a say of its own
        from lakemark.connectors.registry import database_kind  # noqa: PLC0415 (a slow import)

        kind = database_kind(database=config.database)
        for condition in conditions:
            kind.check_condition(condition["filter"])


def _lines(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(
            f"{file} cannot be read: {type(error).__name__}",
            code="bad-value",
            hint="name a file of UTF-8 text with a key a line",
        ) from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise RefusedError(f"{file} has no keys", code="bad-value", hint="write a key a line")
    return lines


def _key(text: str) -> msgspec.Raw | str:
    """JSON as it was written, so that numbers keep every digit; anything else is text."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return msgspec.Raw(text.encode())
