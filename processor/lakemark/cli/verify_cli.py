"""The command ``lakemark verify``: it writes a signal, follows its run, and shows what was found.

Exit codes as of all commands; 1 also if a row is not as in the source, if not all suspected rows
could be compared, if a table was not verified, or no answer came in time.
"""

import uuid
from typing import Annotated, Any

import typer
from rich.console import Console

from lakemark.cli import snapshot_view, verify_view
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
from lakemark.settings.config import Config


@guarded
def verify(
    tables: TablesArgument,
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what differs.")] = False,
    with_values: Annotated[
        bool, typer.Option("--with-values", help="Keep and show the rows' values, too.")
    ] = False,
    filters: FilterOption = None,
    keys: KeyOption = None,
    keys_file: KeysFileOption = None,
    surrogate_key: SurrogateOption = None,
    chunk_rows: ChunkRowsOption = None,
    parallelism: ParallelismOption = None,
    delay: DelayOption = None,
    rows_per_second: PaceOption = None,
    priority: PriorityOption = None,
    run_id: IdOption = None,
    wait: Annotated[bool, typer.Option(help="Follow the run to its end.")] = True,
    answer_within: AnswerOption = "30s",
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
) -> int:
    """Compare tables of the lake with their database, row by row, while the log goes on."""
    loaded = load(config).config
    data = data_of(
        tables, filters=filters, keys=keys, keys_file=keys_file, config=loaded,
        surrogate_key=surrogate_key, chunk_rows=chunk_rows, parallelism=parallelism, delay=delay,
        priority=priority, repair=repair or None, with_values=with_values or None,
        rows_per_second=rows_per_second,
    )  # fmt: skip
    signal = Request("verify-snapshot", data, run_id or str(uuid.uuid4()))
    runs = exchange(loaded, signal, within=seconds(answer_within), wait=wait)
    ended = [run for run in runs if run.has_ended]
    found = {run.id: _found(loaded, run.id) for run in ended if run.unlike}
    if output is OutputForm.json:
        verify_view.show_json(runs, found)
    else:
        for run in runs:
            if run.last is not None:
                snapshot_view.show_outcome(Console(), run, is_run=True, as_json=False)
                verify_view.show_found(Console(), run, found.get(run.id, []), repair=repair)
    require_answers(loaded, runs)
    good = all(run.is_good and not run.unlike for run in ended)
    return OK if good else FAILED


def _found(config: Config, run: str) -> list[dict[str, Any]]:
    from lakemark.sink import found_rows  # noqa: PLC0415 - a slow import

    return found_rows.of_run(config.lake, run)
