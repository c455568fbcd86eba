"""The commands ``lakemark snapshot …``: they write signals and read notifications, nothing else.

A signal is read as the pipeline will read it before it is sent, so that what can be refused is
refused here, in the same words. Then the answer is waited for. Exit codes as of all commands; 1
also if the signal is rejected, the run aborted, a table not read or no answer came in time.
"""

import json
import sys
import uuid
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from lakemark.cli import snapshot_view
from lakemark.cli.invocation import (
    FAILED,
    OK,
    ConfigOption,
    OutputForm,
    OutputOption,
    guarded,
    load,
)
from lakemark.cli.signal_exchange import Request, exchange, require_answers
from lakemark.errors import PipelineError, RefusedError, cut
from lakemark.settings.config import Config
from lakemark.snapshot import fields, notifications
from lakemark.snapshot.run_tracker import newest_of_runs

app = typer.Typer(no_args_is_help=True, help="Read tables again while the log goes on.")

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
AnswerOption = Annotated[
    str, typer.Option("--answer-within", help="How long to wait for the pipeline's answer.")
]


@app.command("start")
@guarded
def start(
    tables: Annotated[
        list[str], typer.Argument(metavar="TABLE...", help="schema.table, or Java regexes of it")
    ],
    *,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", help="Only rows for which SQL holds: SQL, or TABLE=SQL."),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--key", help="Only this row: JSON (42, '[1, \"a\"]', '{\"id\": 1}') or text."
        ),
    ] = None,
    keys_file: Annotated[
        Path | None, typer.Option("--keys-file", help="A key a line; - is standard input.")
    ] = None,
    surrogate_key: Annotated[
        str | None, typer.Option("--surrogate-key", help="Column that orders the chunks.")
    ] = None,
    chunk_rows: ChunkRowsOption = None,
    parallelism: ParallelismOption = None,
    delay: DelayOption = None,
    priority: Annotated[
        int | None, typer.Option("--priority", help="Higher goes first; 0 if left out.")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--id", help="Name of the run; default: a new UUID.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Follow the run to its end.")] = False,
    answer_within: AnswerOption = "30s",
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
) -> int:
    """Read tables again, whole or in part, and bring what is missing into the lake."""
    loaded = load(config).config
    conditions = _conditions(filters or [], tables)
    data = {
        "data-collections": tables,
        "additional-conditions": conditions or None,
        "keys": [_key(text) for text in (*(keys or ()), *_lines(keys_file))] or None,
        "surrogate-key": surrogate_key,
        "chunk-rows": chunk_rows,
        "parallelism": parallelism,
        "delay": delay,
        "priority": priority,
    }
    signal = Request("execute-snapshot", data, run_id or str(uuid.uuid4()))
    _check_conditions(conditions, loaded)
    as_json = output is OutputForm.json
    return _send(loaded, signal, within=_seconds(answer_within), wait=wait, as_json=as_json)


@app.command("stop")
@guarded
def stop(
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE...]", help="only these; default: all")
    ] = None,
    answer_within: AnswerOption = "30s",
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
) -> int:
    """Stop all runs, or some tables of them. Rows that were read stay."""
    signal = Request("stop-snapshot", {"data-collections": tables or None})
    return _command(signal, config, answer_within, output)


@app.command("pause")
@guarded
def pause(
    answer_within: AnswerOption = "30s",
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
) -> int:
    """Read no more chunks until `lakemark snapshot resume`."""
    return _command(Request("pause-snapshot", {}), config, answer_within, output)


@app.command("resume")
@guarded
def resume(
    answer_within: AnswerOption = "30s",
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
) -> int:
    """Go on with what was paused."""
    return _command(Request("resume-snapshot", {}), config, answer_within, output)


@app.command("set")
@guarded
def set_(
    run_id: Annotated[str, typer.Argument(metavar="ID", help="the run")],
    *,
    chunk_rows: ChunkRowsOption = None,
    parallelism: ParallelismOption = None,
    delay: DelayOption = None,
    answer_within: AnswerOption = "30s",
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
) -> int:
    """Change a run while it is active."""
    data = {"id": run_id, "chunk-rows": chunk_rows, "parallelism": parallelism, "delay": delay}
    return _command(Request("set-snapshot", data), config, answer_within, output)


@app.command("status")
@guarded
def status(
    run_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="only this run")] = None,
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
) -> int:
    """Show the newest notification of every run."""
    from lakemark.kafka.records import read_all  # noqa: PLC0415

    loaded = load(config).config
    said = read_all(loaded, loaded.topics.notifications)
    found = [n for record in said if (n := notifications.read(record.value))]
    shown = [n for n in found if n.id == run_id][-1:] if run_id else newest_of_runs(found)
    if run_id is not None and not shown:
        raise PipelineError(
            f"nothing is known of a run {cut(run_id)}",
            code="unknown-run",
            hint="`lakemark snapshot status` lists the runs of the last month",
        )
    snapshot_view.show_runs(Console(), shown, as_json=output is OutputForm.json)
    return OK


def _command(signal: Request, config: Path | None, answer_within: str, output: OutputForm) -> int:
    within = _seconds(answer_within)
    as_json = output is OutputForm.json
    return _send(load(config).config, signal, within=within, wait=False, as_json=as_json)


def _send(config: Config, signal: Request, *, within: float, wait: bool, as_json: bool) -> int:
    found = exchange(config, signal, within=within, wait=wait)
    answered = [run for run in found if run.last is not None]
    if as_json and config.several:
        snapshot_view.show_answers(answered)
    else:
        for run in answered:
            snapshot_view.show_outcome(Console(), run, is_run=signal.is_run, as_json=as_json)
    require_answers(config, found)
    if not signal.is_run:  # of several connectors, only some may have something to do
        return FAILED if all(run.state == "rejected" for run in found) else OK
    return OK if all(run.is_good or not run.has_ended for run in found) else FAILED


def _seconds(duration: str) -> float:
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
