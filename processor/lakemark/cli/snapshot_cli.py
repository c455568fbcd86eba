"""The commands ``lakemark snapshot …``: they write signals and read notifications, nothing else.

A signal is read as the pipeline will read it before it is sent, so that what can be refused is
refused here, in the same words. Then the answer is waited for. Exit codes as of all commands; 1
also if the signal is rejected, the run aborted, a table not read or no answer came in time.
"""

import uuid
from pathlib import Path
from typing import Annotated

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
from lakemark.cli.run_options import (
    AnswerOption,
    ChunkRowsOption,
    DelayOption,
    FilterOption,
    IdOption,
    KeyOption,
    KeysFileOption,
    PaceOption,
    ParallelismOption,
    PriorityOption,
    SurrogateOption,
    TablesArgument,
    data_of,
    seconds,
)
from lakemark.cli.signal_exchange import Request, exchange, require_answers
from lakemark.errors import PipelineError, cut
from lakemark.settings.config import Config
from lakemark.snapshot import notifications
from lakemark.snapshot.run_tracker import newest_of_runs

app = typer.Typer(no_args_is_help=True, help="Read tables again while the log goes on.")


@app.command("start")
@guarded
def start(
    tables: TablesArgument,
    *,
    filters: FilterOption = None,
    keys: KeyOption = None,
    keys_file: KeysFileOption = None,
    surrogate_key: SurrogateOption = None,
    chunk_rows: ChunkRowsOption = None,
    parallelism: ParallelismOption = None,
    delay: DelayOption = None,
    priority: PriorityOption = None,
    differences: Annotated[
        bool,
        typer.Option("--differences", help="Read only what differs: `lakemark verify --repair`."),
    ] = False,
    run_id: IdOption = None,
    wait: Annotated[bool, typer.Option(help="Follow the run to its end.")] = False,
    answer_within: AnswerOption = "30s",
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
) -> int:
    """Read tables again, whole or in part, and bring what is missing into the lake."""
    loaded = load(config).config
    data = data_of(
        tables, filters=filters, keys=keys, keys_file=keys_file, config=loaded,
        surrogate_key=surrogate_key, chunk_rows=chunk_rows, parallelism=parallelism, delay=delay,
        priority=priority, repair=differences or None,
    )  # fmt: skip
    kind = "verify-snapshot" if differences else "execute-snapshot"
    signal = Request(kind, data, run_id or str(uuid.uuid4()))
    as_json = output is OutputForm.json
    return _send(loaded, signal, within=seconds(answer_within), wait=wait, as_json=as_json)


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
    run_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="the run; verify: all that compare tables unasked"),
    ],
    *,
    chunk_rows: ChunkRowsOption = None,
    parallelism: ParallelismOption = None,
    delay: DelayOption = None,
    rows_per_second: PaceOption = None,
    answer_within: AnswerOption = "30s",
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
) -> int:
    """Change a run while it is active."""
    data = {
        "id": run_id,
        "chunk-rows": chunk_rows,
        "parallelism": parallelism,
        "delay": delay,
        "rows-per-second": rows_per_second,
    }
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
    within = seconds(answer_within)
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
