"""The commands ``lakemark dlq …``: what is in the dead letters, and how their rows come back.

They read the dead-letters topic up to its end as of now and write nothing but signals. Exit codes
as of all commands; 1 also if a letter cannot be replayed or its rows were not read.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from lakemark.cli import dlq_view
from lakemark.cli.invocation import (
    FAILED,
    OK,
    USAGE,
    ConfigOption,
    OutputForm,
    OutputOption,
    guarded,
    load,
)
from lakemark.cli.presentation import error_console
from lakemark.cli.signal_exchange import Request, exchange
from lakemark.errors import LakemarkError, PipelineError
from lakemark.ops import dead_letters
from lakemark.ops.dead_letters import Letter, LetterFilter
from lakemark.settings.config import Config
from lakemark.snapshot import fields

if TYPE_CHECKING:  # slow imports
    from lakemark.connectors.connector import Connector
    from lakemark.connectors.parts import PipelinePart
    from lakemark.model.schema import TableSchema
    from lakemark.model.topic_owners import TopicOwners
    from lakemark.ops.replays import Replay
    from lakemark.snapshot.run_tracker import FollowedRun

_LISTED: Final = 100  # letters: a few screens

app = typer.Typer(
    no_args_is_help=True, help="Records that could not be decoded: list, show, replay."
)

TableOption = Annotated[
    str, typer.Option("--table", help="Only of this schema.table.", show_default=False)
]


@app.command("ls")
@guarded
def ls(
    *,
    table: TableOption = "",
    reason: Annotated[
        str, typer.Option("--reason", help="Only with this code.", show_default=False)
    ] = "",
    since: Annotated[
        str | None, typer.Option("--since", help="Only of the last 24h, 30m, 7d.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="List this many.")] = _LISTED,
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
) -> int:
    """List dead letters, the newest last, and how many there are of each kind."""
    begin = _begin(since)
    loaded = load(config).config
    found = _letters(loaded, LetterFilter(table, reason, since=begin))
    letters = dead_letters.by_time(letter.without_value() for letter in found)
    counts = dead_letters.summary(letters)
    as_json = output is OutputForm.json
    dlq_view.show_letters(Console(), letters, counts, limit=limit, as_json=as_json)
    return OK


@app.command("show")
@guarded
def show(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="as `lakemark dlq ls` shows it")],
    *,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write the value's bytes as they came, nothing else.")
    ] = False,
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
) -> int:
    """Show a dead letter: why, from where, and the record itself."""
    loaded = load(config).config
    letter = next(_letters(loaded, LetterFilter(ids=frozenset([letter_id]))), None)
    if letter is None:
        raise _unknown(loaded, [letter_id])
    if raw:
        sys.stdout.buffer.write(letter.value or b"")
        return OK
    dlq_view.show_letter(Console(), letter, as_json=output is OutputForm.json)
    return OK


@app.command("replay")
@guarded
def replay(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID...]", help="as `lakemark dlq ls` shows them")
    ] = None,
    *,
    table: TableOption = "",
    all_: Annotated[bool, typer.Option("--all", help="All dead letters there are.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Follow the runs to their end.")] = False,
    answer_within: Annotated[
        str, typer.Option("--answer-within", help="How long to wait for the pipeline's answer.")
    ] = "30s",
    config: ConfigOption = None,
    output: OutputOption = OutputForm.table,
) -> int:
    """Read the rows of dead letters again from the database.

    The events themselves cannot be applied late: what came after them has been. So the rows they
    were about are read as they are now, by snapshots of their keys.
    """
    if bool(ids) + bool(table) + all_ != 1:
        typer.echo("say which dead letters: IDs, --table TABLE or --all", err=True)
        return USAGE
    within = fields.delay("--answer-within", answer_within).total_seconds()
    loaded = load(config).config
    wanted = LetterFilter(table, ids=frozenset(ids or ()))
    letters = dead_letters.by_time(one.without_value() for one in _letters(loaded, wanted))
    if missing := wanted.ids - {letter.id for letter in letters}:
        raise _unknown(loaded, sorted(missing))
    as_json = output is OutputForm.json
    plan = _planned(loaded, letters)
    if dry_run or not letters:
        dlq_view.show_plan(Console(), plan, as_json=as_json)
        return FAILED if plan.refused else OK
    return _carry_out(loaded, plan, within=within, wait=wait, as_json=as_json)


def _carry_out(config: Config, plan: "Replay", *, within: float, wait: bool, as_json: bool) -> int:
    """One signal after the other; what cannot be replayed is said first, and the rest goes on."""
    if not as_json:
        dlq_view.show_refused(error_console(), plan.refused)
    runs: list[tuple[str, FollowedRun]] = []
    for one in plan.rereadings:
        for data in one.signals():
            asked = Request("execute-snapshot", data)
            for run in exchange(config, asked, within=within, wait=wait):
                runs.append((one.table, run))
                if not as_json:
                    dlq_view.show_run(Console(), one.table, len(data["keys"]), run)
    if as_json:
        dlq_view.show_replay(plan, runs)
    good = all(run.is_good or not run.has_ended for _, run in runs)
    return OK if good and not plan.refused else FAILED


def _letters(config: Config, wanted: LetterFilter) -> Iterator[Letter]:
    """The letters that are asked for, each once.

    Raises:
        PipelineError: the pipeline has never run.
        DependencyError: the brokers are away.
    """
    from lakemark.kafka.brokers import Cluster  # noqa: PLC0415
    from lakemark.kafka.records import read_all  # noqa: PLC0415

    topic = config.topics.dead_letters
    with Cluster(config) as cluster:
        if not cluster.partition_counts([topic]):
            raise PipelineError(
                f"the pipeline {config.name} has never run: there is no topic {topic}",
                code="not-started",
                hint="start it with `lakemark run`",
            )
    since_ms = int(wanted.since.timestamp() * 1000) if wanted.since else None
    found = (
        dead_letters.letter_of(r.key, r.value, r.headers, r.timestamp_ms)
        for r in read_all(config, topic, since_ms=since_ms)
    )
    return dead_letters.chosen(found, wanted)


def _planned(config: Config, letters: list[Letter]) -> "Replay":
    """Return what a replay of these comes to, by the connector's tables as they are now.

    Raises:
        PipelineError: no database is configured.
        DependencyError, InvalidConfig: see `_asked`.
    """
    from lakemark.connectors.registry import database_kind  # noqa: PLC0415
    from lakemark.converters.registry import converter_of  # noqa: PLC0415
    from lakemark.ops import replays  # noqa: PLC0415

    if not letters:
        return replays.Replay([], [])
    if all(part.database is None for part in config.parts):
        tables = sorted({letter.table for letter in letters if letter.table})
        raise PipelineError(
            "no database is configured: the rows of dead letters cannot be read again",
            code="no-database",
            hint="set database.url and start the pipeline again; else let the rows be written "
            f"again in the source: {', '.join(tables[:5]) or 'see `lakemark dlq ls`'}",
        )
    here, away = _asked(config)
    owners = _owners(config, [one.connector for one in here], away)
    qualifiers = [one.connector.qualifier for one in here] + [*away]
    by_owner: dict[str, list[Letter]] = {}
    for letter in letters:
        by_owner.setdefault(replays.owner_of(letter, qualifiers, owners), []).append(letter)
    whole = replays.Replay([], [])
    for one in here:
        connector = one.connector
        found = replays.planned(
            by_owner.get(connector.qualifier, []),
            one.schemas,
            prefix=connector.topic_prefix,
            converter=converter_of(connector.converter),
            key_texts=database_kind(connector.settings).key_texts,
            qualifier=connector.qualifier,
        )
        whole.rereadings.extend(found.rereadings)
        whole.refused.extend(found.refused)
    for qualifier, error in away.items():
        whole.refused.extend(replays.refused(by_owner.get(qualifier, []), error))
    return whole


@dataclass(frozen=True, slots=True)
class _Captured:
    """A connector and the tables that it captures."""

    connector: "Connector"
    schemas: dict[str, "TableSchema"]


def _asked(config: Config) -> tuple[list[_Captured], dict[str, LakemarkError]]:
    """Return the connectors with their tables, and why some of several cannot be asked.

    The others are there by their qualifiers, as the pipeline remembers them; else by their names.

    Raises:
        DependencyError: Connect or the database is away, of all of them.
        InvalidConfig: none of them can be used.
    """
    from lakemark.connectors.parts import parts_of  # noqa: PLC0415
    from lakemark.kafka.records import read_compacted  # noqa: PLC0415
    from lakemark.snapshot import listed_connectors  # noqa: PLC0415

    here, away = list[_Captured](), dict[str, LakemarkError]()
    for part in parts_of(config):
        try:
            here.append(_captured(part))
        except LakemarkError as error:
            away[part.name] = error
    if not here:
        raise next(iter(away.values()))
    listed = {}
    if away:
        listed = listed_connectors.remembered(read_compacted(config, config.topics.progress))
    return here, {
        (listed[name].qualifier if name in listed else "") or name: error
        for name, error in away.items()
    }


def _captured(part: "PipelinePart") -> _Captured:
    from lakemark.connectors.catalogs import catalog_of  # noqa: PLC0415
    from lakemark.model.handling_modes import HandlingModes  # noqa: PLC0415

    connector = part.read()
    modes = HandlingModes.from_connector(connector.settings)
    try:
        known = catalog_of(part.config, modes, connector).read(None)
    except LakemarkError as error:
        raise part.error(error) from error
    schemas = {name: schema for name, schema in known.items() if name in connector.tables}
    return _Captured(connector, schemas)


def _owners(config: Config, here: Sequence["Connector"], away: Iterable[str]) -> "TopicOwners":
    """Return the connectors of topics, with those of which only the topic prefix is known."""
    from lakemark.connectors.connector import topic_owners, usual_topics  # noqa: PLC0415
    from lakemark.model.topic_owners import TopicOwners  # noqa: PLC0415

    if not config.several:
        return topic_owners(here)
    return TopicOwners.of([*topic_owners(here).several, *map(usual_topics, away)])


def _begin(since: str | None) -> datetime | None:
    if since is None:
        return None
    try:
        return datetime.now(UTC) - fields.delay("--since", since)
    except OverflowError:
        raise fields.bad_value("--since is out of range", "write it as 24h, 30m or 7d") from None


def _unknown(config: Config, ids: list[str]) -> PipelineError:
    shown = ", ".join(ids[:5]) + (" and more" if len(ids) > 5 else "")  # noqa: PLR2004 (as shown)
    return PipelineError(
        f"{config.topics.dead_letters} has no dead letter {shown}",
        code="unknown-letter",
        hint="`lakemark dlq ls` lists them; they are kept for 30 days unless the topic says else",
    )
