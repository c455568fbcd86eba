"""The command line. Exit codes: 0 ok, 1 failure, 2 usage, 3 configuration, 4 the
time of a wait is over.

Commands import what they need when they run: ``validate`` loads neither Spark nor a Kafka client.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lakemark.cli import (
    cut_cli,
    dlq_cli,
    presentation,
    snapshot_cli,
    trace_cli,
    verify_cli,
    wait_cli,
)
from lakemark.cli.invocation import (
    CONFIGURATION,
    FAILED,
    OK,
    USAGE,
    ConfigOption,
    OutputForm,
    OutputOption,
    guarded,
    hide,
    load,
    set_debug,
)
from lakemark.cli.presentation import say
from lakemark.errors import LakemarkError, PipelineError
from lakemark.settings.config import Config
from lakemark.settings.layers import InvalidConfig, Mistake
from lakemark.settings.locate import config_file
from lakemark.settings.units import SettingsSchema

app = typer.Typer(
    name="lakemark",
    help="Keeps Delta tables equal to the databases behind Debezium.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(no_args_is_help=True, help="The configuration in force, and its schema.")
table_app = typer.Typer(no_args_is_help=True, help="Pause, resume and skip single tables.")
app.add_typer(config_app, name="config")
app.add_typer(table_app, name="table")
app.add_typer(snapshot_cli.app, name="snapshot")
app.add_typer(dlq_cli.app, name="dlq")
app.command("verify")(verify_cli.verify)
app.command("wait")(wait_cli.wait)
app.command("trace")(trace_cli.trace)
app.command("cut")(cut_cli.cut)


TableArgument = Annotated[str, typer.Argument(help="schema.table", show_default=False)]


def main() -> None:
    """Entry point of the command ``lakemark``."""
    app()


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: FBT002
) -> None:
    set_debug(on=debug)


@app.command()
@guarded
def validate(config: ConfigOption = None) -> int:
    """Check everything that can be checked offline, and list every mistake at once."""
    from lakemark.cli.check import check  # noqa: PLC0415

    loaded = load(config)
    problems = [*loaded.warnings, *map(loaded.placed, check(loaded.config))]
    mistakes = [problem for problem in problems if not problem.warning]
    console = presentation.error_console() if mistakes else Console()
    source = config_file(config)
    presentation.show_problems(
        console, problems, source=source.name if source else "the environment", hide=hide
    )
    if mistakes:
        return CONFIGURATION
    presentation.show_summary(console, loaded.config)
    return OK


@config_app.command("show")
@guarded
def config_show(config: ConfigOption = None, output: OutputOption = OutputForm.table) -> int:
    """Show every setting, its value (secrets masked) and where it came from."""
    loaded = load(config)
    presentation.show_settings(Console(), loaded, as_json=output is OutputForm.json)
    return OK


@config_app.command("schema")
@guarded
def config_schema() -> int:
    """Print the JSON Schema of the YAML file."""
    print(json.dumps(Config.model_json_schema(schema_generator=SettingsSchema), indent=2))
    return OK


@app.command()
@guarded
def version(output: OutputOption = OutputForm.table) -> int:
    """Print the versions that matter in a bug report."""
    presentation.show_versions(Console(), as_json=output is OutputForm.json)
    return OK


@app.command("jars")
@guarded
def jars_command(
    *,
    msk_iam: Annotated[
        bool, typer.Option("--msk-iam", help="With what sasl_mechanism AWS_MSK_IAM needs.")
    ] = False,
) -> int:
    """Print the jars that Spark needs beside its own, for --jars; fetch those that are missing."""
    from lakemark.spark import jars  # noqa: PLC0415

    found = jars.runtime_jars(msk_iam=msk_iam, progress=lambda said: typer.echo(said, err=True))
    print(",".join(map(str, found)))
    return OK


@app.command()
@guarded
def warm() -> int:
    """Compile what workers run compiled, and make the archive of Java's classes, once."""
    from lakemark.connectors.registry import EXAMPLES  # noqa: PLC0415
    from lakemark.spark.warm import warm as make  # noqa: PLC0415

    path, made = make(*EXAMPLES)
    say(f"{path} {'was made' if made else 'is there already'}")
    return OK


@app.command()
@guarded
def run(
    config: ConfigOption = None,
    once: Annotated[bool, typer.Option("--once", help="Apply what is there, then stop.")] = False,  # noqa: FBT002
) -> int:
    """Run the pipeline until it is told to stop."""
    loaded = load(config)
    import structlog  # noqa: PLC0415

    for warning in loaded.warnings:
        structlog.get_logger("lakemark").warning(
            "config.warning", setting=warning.path, message=warning.message, hint=warning.hint
        )
    from lakemark import supervisor  # noqa: PLC0415

    return supervisor.run(loaded.config, once=once)


@app.command()
@guarded
def doctor(config: ConfigOption = None, output: OutputOption = OutputForm.table) -> int:
    """Ask brokers, connector, database and this machine whether all is in order; change nothing."""
    loaded = load(config)
    from lakemark.cli import doctor_view  # noqa: PLC0415
    from lakemark.model.findings import Verdict  # noqa: PLC0415
    from lakemark.ops.doctor.doctor import examine  # noqa: PLC0415

    findings = examine(loaded.config)
    doctor_view.show(Console(), findings, as_json=output is OutputForm.json, hide=hide)
    return FAILED if any(f.verdict is Verdict.ERROR for f in findings) else OK


@app.command()
@guarded
def plan(config: ConfigOption = None, output: OutputOption = OutputForm.table) -> int:
    """Show what a run would do, and what a changed setting takes; change nothing."""
    loaded = load(config)
    from lakemark.cli import plan_view  # noqa: PLC0415
    from lakemark.ops.plan import plan as plans  # noqa: PLC0415

    found = plans.plan(loaded.config)
    plan_view.show(Console(), found, as_json=output is OutputForm.json, hide=hide)
    return FAILED if found.stops() else OK


@app.command()
@guarded
def prepare(
    connector: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONNECTOR.json]",
            help="The connector as Connect takes it; else the configuration's.",
            show_default=False,
        ),
    ] = None,
    *,
    name: Annotated[
        str | None,
        typer.Option("--connector", metavar="NAME", help="Which one of several connectors."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIRECTORY", help="Write files; else print them.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
    config: ConfigOption = None,
) -> int:
    """Write what connector and lakemark need: SQL, the connector's settings, rights in Kafka.

    It changes nothing anywhere: read the scripts, and run them.
    """
    from lakemark.cli import prepared_files  # noqa: PLC0415

    return prepared_files.answer(connector, name, config, to=to, force=force)


@app.command()
@guarded
def status(
    *,
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
    again: Annotated[
        bool, typer.Option("--watch", help="Again and again, until Ctrl-C: --watch [SECONDS].")
    ] = False,
    seconds: Annotated[
        float | None, typer.Argument(metavar="[SECONDS]", min=0.2, help="with --watch; else 2")
    ] = None,
) -> int:
    """Show the state of the pipeline and of every table: lag, events, last commit, snapshots."""
    if seconds is not None and not again:
        typer.echo("SECONDS goes with --watch: lakemark status --watch 5", err=True)
        return USAGE
    loaded = load(config).config
    from lakemark.cli import status_view  # noqa: PLC0415
    from lakemark.ops.overview import Lookout  # noqa: PLC0415

    look, topic, as_json = Lookout(loaded).look, loaded.topics.progress, output is OutputForm.json
    if not again:
        status_view.show(Console(), look(), topic=topic, as_json=as_json, hide=hide)
        return OK
    with suppress(KeyboardInterrupt):
        status_view.watch(Console(), look, seconds or 2.0, topic=topic, as_json=as_json, hide=hide)
    return OK


@table_app.command("pause")
@guarded
def table_pause(table: TableArgument, config: ConfigOption = None) -> int:
    """Stop applying changes to a table. Nothing is lost: its place in the log is kept."""
    loaded = load(config).config
    from lakemark.state import table_skip as skips  # noqa: PLC0415

    so = skips.already(table, _progress_of(table, loaded), "paused")
    _control(loaded, "table-pause", table)
    lines = [
        f"{table} will pause with the next batch; the other tables go on.",
        "Its place in the log is kept. Kafka must keep the events until you resume it:",
        f"  lakemark table resume {table}",
    ]
    say(*([so] if so else lines))
    return OK


@table_app.command("resume")
@guarded
def table_resume(table: TableArgument, config: ConfigOption = None) -> int:
    """Go on with a table that was paused or has stopped, from its first change not applied."""
    loaded = load(config).config
    from lakemark.state import table_skip as skips  # noqa: PLC0415

    so = skips.already(table, _progress_of(table, loaded), "streaming")
    _control(loaded, "table-resume", table)
    lines = [
        f"{table} will resume with the next batch: first what it missed, then live changes.",
        "Follow it with:",
        "  lakemark status",
    ]
    say(*([so] if so else lines))
    return OK


@table_app.command("skip")
@guarded
def table_skip(
    table: TableArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigOption = None,
) -> int:
    """Go on from the end of the log with a table whose changes cannot be applied at all."""
    loaded = load(config).config
    from lakemark.kafka.brokers import Cluster  # noqa: PLC0415
    from lakemark.state import table_skip as skips  # noqa: PLC0415

    state = skips.standing(table, _progress_of(table, loaded))
    with Cluster(loaded) as cluster:
        places = skips.skipped(state, cluster.end_offsets(state.topics))
    say(f"{table} leaves out for good:", *(f"  {place}" for place in places))
    if not yes and not _agreed("Leave these changes out?"):
        say("Nothing was changed.")
        return FAILED
    _control(loaded, "table-skip", table, {"offsets": skips.offsets(places)})
    again = "It is then snapshotted again by itself, with a sweep, which brings what is missing."
    if all(part.database is None for part in loaded.parts):
        again = (
            "What is missing then takes a snapshot, and that a database: set database.url, start "
            "the pipeline again, and it takes one by itself."
        )
    say(
        f"{table} goes on with the first batch that begins there; until then "
        f"`lakemark table resume {table}` takes this back.",
        again,
        "Follow it with:",
        "  lakemark status",
    )
    return OK


@table_app.command("rebuild")
@guarded
def table_rebuild(
    table: TableArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Go on with the old table.")] = False,
    config: ConfigOption = None,
) -> int:
    """Make a table anew from a snapshot, with its columns, key and engine of now.

    The old table can be read until the new one takes its place, in one commit. For a type or a key
    that the table cannot follow, for another engine, and for a table whose files were damaged.
    """
    loaded = load(config).config
    from lakemark.kafka.brokers import Cluster  # noqa: PLC0415
    from lakemark.state import table_skip as skips  # noqa: PLC0415

    if cancel:
        return _cancelled(table, loaded)
    _require_rebuildable(table, loaded)
    state = skips.rebuildable(table, _progress_of(table, loaded, now=True))
    with Cluster(loaded) as cluster:
        places = skips.skipped(state, cluster.end_offsets(state.topics))
    if state.state in skips.STANDING:
        say(f"{table} stands still. Of what it has not applied it leaves out:")
        say(*(f"  {place}" for place in places), "The snapshot brings what that has changed.")
    more = {"reason": "a command asked for it", "offsets": skips.offsets(places)}
    if loaded.output is not None:
        say(
            "Its output topic gets no deletes of rows that are removed meanwhile by a TRUNCATE or "
            "by changes that it leaves out: whoever reads the topic should read it anew."
        )
    if loaded.lake.deletes_of(table) == "soft":
        say("Rows that are marked as deleted are not in the source: the new table is without them.")
    if not yes and not _agreed(f"Make {table} anew?"):
        say("Nothing was changed.")
        return FAILED
    _control(loaded, "table-rebuild", table, more)
    say(
        f"{table} is made anew beginning with the next batch; the other tables go on.",
        "Until it is whole, readers see the old table as it was then. Follow it with:",
        "  lakemark status",
    )
    return OK


def _require_rebuildable(table: str, config: Config) -> None:
    """Refuses to make a table anew that nobody could read, or that could not be replaced.

    Raises:
        PipelineError: `no-database`, `lake-refused`.
    """
    from lakemark.sink import formats  # noqa: PLC0415
    from lakemark.sink.names import folder_of  # noqa: PLC0415

    path = folder_of(config.lake, table)
    if not formats.format_of(config.lake).can_replace(path, config.lake.options()):
        raise PipelineError(
            f"{table} cannot be rebuilt: commits to {path} have no condition of their own",
            code="lake-refused",
            hint=f"give it a new folder (lake.tables.{table}.path) and snapshot it",
        )
    if not _may_have_database(table, config):
        raise PipelineError(
            f"{table} cannot be rebuilt: there is no database to read it from",
            code="no-database",
            hint="set database.url and start the pipeline again",
        )


def _may_have_database(table: str, config: Config) -> bool:
    """Return whether there may be a database to read a table from: of several its connector's."""
    from lakemark.connectors import connector  # noqa: PLC0415
    from lakemark.settings.table_id import unqualified  # noqa: PLC0415

    if not config.several:
        return config.database is not None
    for part in config.parts:
        if part.database is None:
            with suppress(LakemarkError):  # who is away is known by nobody
                found = connector.read(part, attempts=1)
                if unqualified(found.qualifier, table) is not None:
                    return False
    return any(part.database is not None for part in config.parts)


def _cancelled(table: str, config: Config) -> int:
    from lakemark.state import table_skip as skips  # noqa: PLC0415

    skips.require_rebuilding(table, _progress_of(table, config, now=True))
    _control(config, "table-rebuild", table, {"cancel": True})
    say(
        f"{table} goes on with the old table from the next batch on, and is snapshotted: what came "
        "meanwhile is missing there.",
        "Follow it with:",
        "  lakemark status",
    )
    return OK


def _agreed(question: str) -> bool:
    """The user's answer; no answer is a no."""
    try:
        return typer.confirm(question)
    except typer.Abort:
        return False


@app.command()
@guarded
def recover(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="TABLE", help="with --resnapshot", show_default=False),
    ] = None,
    *,
    new_epoch: Annotated[
        bool, typer.Option("--new-epoch", help="The source was restored or failed over.")
    ] = False,
    resnapshot: Annotated[
        bool, typer.Option("--resnapshot", help="Kafka lost events of these tables; repeat them.")
    ] = False,
    commands: Annotated[
        bool, typer.Option("--control", help="Records of the control topic are lost.")
    ] = False,
    skip_signal: Annotated[
        str | None, typer.Option("--skip-signal", metavar="ID", help="Leave a signal or a run out.")
    ] = None,
    connector: Annotated[
        str | None,
        typer.Option(
            "--connector", metavar="PREFIX", help="Of several, by its topic prefix: --new-epoch."
        ),
    ] = None,
    config: ConfigOption = None,
) -> int:
    """Go on after events or commands were lost, or after the source went back in time.

    --resnapshot TABLE...: Kafka lost events of tables that were not read yet. They go on with what
    there is, and are snapshotted again with a sweep. --control: Kafka lost commands that were not
    carried out yet; those that are still wanted must be given again. --new-epoch: the source was
    restored or failed over, so that its positions start again. --skip-signal ID: the pipeline does
    not get past a signal, or a run of snapshots; its next start leaves it out.
    """
    asked = [new_epoch, resnapshot, commands, skip_signal is not None]
    if asked.count(True) != 1 or resnapshot != bool(tables):
        what = "lakemark recover --new-epoch, --control, --skip-signal ID, or --resnapshot TABLE..."
        typer.echo(f"say what happened: {what}", err=True)
        return USAGE
    loaded = load(config).config
    if tables:
        _resnapshot(sorted(set(tables)), loaded)
        return OK
    if skip_signal is not None:
        _skip_signal(skip_signal, loaded)
        return OK
    if commands:
        return _commands_lost(loaded)
    if loaded.several != bool(connector):
        what = "--connector PREFIX names the one of several whose source went back in time"
        typer.echo(what if loaded.several else f"{what}: there is only one here", err=True)
        return USAGE
    if connector:
        _require_connector(connector, loaded)
    _control(loaded, "new-epoch", "", {"connector": connector} if connector else None)
    say(
        "The next batch begins a new epoch; tables that stopped with position-regressed catch up.",
        "Every table may hold rows that the restored source lacks:",
        "`lakemark status` shows them as to be snapshotted again.",
    )
    return OK


def _require_connector(prefix: str, config: Config) -> None:
    """Raise `InvalidConfig` unless the pipeline has run with a connector of this topic prefix."""
    from lakemark.kafka.records import read_compacted  # noqa: PLC0415
    from lakemark.state import control  # noqa: PLC0415
    from lakemark.state.progress import connectors_in  # noqa: PLC0415

    control.require(config, config.topics.progress)
    known = connectors_in(read_compacted(config, config.topics.progress))
    if prefix not in known:
        problem = f"the pipeline has run with no connector of the topic prefix {prefix}"
        raise InvalidConfig([Mistake("--connector", problem, f"it knows {', '.join(known)}")])


def _commands_lost(config: Config) -> int:
    from lakemark.kafka.records import read_compacted  # noqa: PLC0415
    from lakemark.state import control, table_skip  # noqa: PLC0415
    from lakemark.state.progress import PIPELINE  # noqa: PLC0415

    control.require(config, config.topics.control)
    kept = read_compacted(config, config.topics.progress)
    stopped = table_skip.stopped_for_commands(kept.get(PIPELINE, b"{}"))
    control.write(config, "control-lost", "")
    missing = ["`lakemark run` goes on without the commands that are gone."] if stopped else [
        "Nothing is known to be lost: the pipeline has not stopped with control-lost. Should its",
        "next start find commands gone, it goes on without them.",
    ]  # fmt: skip
    say(
        *missing,
        "Look at the tables then:",
        "  lakemark status",
        "and give again what was not carried out: pause, resume, skip, recover.",
    )
    return OK


def _resnapshot(tables: list[str], config: Config) -> None:
    from lakemark.state import table_skip as skips  # noqa: PLC0415

    for table in tables:  # all of them or none
        _known_form(table, config)
    skips.require_known(tables, _seen(config))
    for table in tables:
        _control(config, "table-resnapshot", table)
    say(
        f"To be snapshotted again, with a sweep: {', '.join(tables)}.",
        "With a database configured, `lakemark run` does so by itself; else send a signal:",
        f"  lakemark snapshot start {' '.join(tables)}",
    )


def _skip_signal(name: str, config: Config) -> None:
    from lakemark.kafka import records  # noqa: PLC0415
    from lakemark.snapshot import signal_skip  # noqa: PLC0415
    from lakemark.state import control  # noqa: PLC0415
    from lakemark.state.progress import connectors_in, key_of, of_connector  # noqa: PLC0415

    progress, topic = config.topics.progress, config.topics.signals
    control.require(config, progress, topic)
    kept = records.read_compacted(config, progress)
    came = [(one.partition, one.offset, one.value) for one in records.read_all(config, topic)]
    parts = {one: of_connector(kept, one) for one in connectors_in(kept)}
    waiting = {one: signal_skip.unread(came, own, topic=topic) for one, own in parts.items()}
    every = {key: value for own in parts.values() for key, value in own.items()}
    found = signal_skip.what(name, [i for ids in waiting.values() for i in ids], every)
    key = signal_skip.key_of(name)
    concerned = [  # others would leave out the next one of this id
        one for one in parts if name in waiting[one] or name in signal_skip.going(parts[one])
    ]
    records.publish(config, progress, [(key_of(one, key), b"{}") for one in concerned])
    say(
        f"To be left out: {found}. The next start of `lakemark run` does so, and answers it on",
        f"{config.topics.notifications}; where the pipeline runs, start it again.",
    )


def _control(
    config: Config, kind: str, table: str, more: Mapping[str, object] | None = None
) -> None:
    """One record on the control topic, acknowledged by all replicas."""
    if table:
        _known_form(table, config)
    from lakemark.state import control  # noqa: PLC0415

    control.write(config, kind, table, more)


def _progress_of(table: str, config: Config, *, now: bool = False) -> bytes:
    """Return what the pipeline says of a table; for one not seen yet a command would do nothing.

    Args:
        table: its name.
        config: says which pipeline.
        now: the command is carried out only of a table that is read now, and not left out.

    Raises:
        PipelineError: `unknown-table`, `not-read`.
    """
    _known_form(table, config)
    from lakemark.kafka.records import read_compacted  # noqa: PLC0415
    from lakemark.state import control  # noqa: PLC0415
    from lakemark.state import table_skip as skips  # noqa: PLC0415

    control.require(config, config.topics.control)
    kept = read_compacted(config, config.topics.progress)
    left = None if table.encode() in kept else _left_out(table, config)
    if left is None:
        skips.require_known([table], (key.decode(errors="replace") for key in kept))
        return kept[table.encode()]
    why = f"{table} is not read now: its connector is away, or the settings leave it out"
    if now:
        hint = "`lakemark status` shows which connectors are away; ask again when it is read"
        raise PipelineError(why, code="not-read", hint=hint)
    say(f"{why}. What is asked of it counts from the day on which it is read again.")
    return left


def _left_out(table: str, config: Config) -> bytes | None:
    """Return what the checkpoint says of a table that is left out; None if it says nothing."""
    from lakemark.ops.stored_state import newest_state  # noqa: PLC0415
    from lakemark.state.progress import record_of_left  # noqa: PLC0415

    with suppress(LakemarkError):  # it may be where only the pipeline reaches it
        state = newest_state(config).state
        return record_of_left(table, state) if state else None
    return None


def _seen(config: Config) -> set[str]:
    """Tables of which the progress topic or, where that is new, the checkpoint knows."""
    from lakemark.kafka.records import read_compacted  # noqa: PLC0415
    from lakemark.ops.stored_state import newest_state  # noqa: PLC0415
    from lakemark.state import control  # noqa: PLC0415
    from lakemark.state.progress import is_own  # noqa: PLC0415

    control.require(config, config.topics.control)
    kept = read_compacted(config, config.topics.progress)
    seen = {key.decode(errors="replace") for key in kept if not is_own(key)}
    with suppress(LakemarkError):  # it may be where only the pipeline reaches it
        state = newest_state(config).state
        seen |= {*state.tables, *state.left} if state is not None else set()
    return seen


def _known_form(table: str, config: Config) -> None:
    from lakemark.connectors.table_choice import TableChoice  # noqa: PLC0415
    from lakemark.settings.table_id import TableId, is_table, text_of  # noqa: PLC0415

    problem, own = "", table
    if not is_table(table):
        problem = f"{table!r} is not a table: expected schema.table, such as public.orders"
    elif config.several and not is_table(own := text_of(*TableId.parse(table).parts[1:])):
        problem = f"{table!r} is not a table: expected one such as shop.public.orders"
    elif all(own not in TableChoice({}, part.source.tables) for part in config.parts):
        named = [one for part in config.parts for one in part.source.tables]
        problem = f"{table} is not among source.tables: {', '.join(named)}"
    if problem:
        raise InvalidConfig([Mistake("TABLE", problem, "lakemark status shows the tables")])
