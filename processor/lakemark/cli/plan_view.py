"""The output of `lakemark plan`: what would be done, part by part, and what stands in its way."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec
from rich.console import Console

from lakemark.cli.presentation import Hide, show_json, show_line, show_table
from lakemark.ops.plan.planned import (
    Plan,
    PlannedSubject,
    PlannedTable,
    PlannedTopic,
    Start,
    Target,
)
from lakemark.settings import masking

_TARGETS: Final = {
    "create": "create with the first event",
    "keep": "keep",
    "rebuild": "make anew",
    "follow": "keep; columns come with the events",
    "stop": "✗ stops",
}
_COMPARED: Final = {
    "running": "the settings that it last ran with",
    "checkpoint": "what the checkpoint says of itself",
}


def show(console: Console, plan: Plan, *, as_json: bool, hide: Hide) -> None:
    """The whole plan; secrets are taken out of every text."""
    if as_json:
        show_json(masking.explained(msgspec.to_builtins(plan)))
        return

    def line(text: str) -> None:
        if text.startswith("\n"):
            show_line(console, "")
        show_line(console, hide(text.removeprefix("\n")))

    line(_standing(plan))
    _show_tables(console, plan.tables, line)
    _show_topics("Own topics", [t for t in plan.topics if not t.table], line)
    if outputs := [topic for topic in plan.topics if topic.table]:
        _show_topics("Output topics", outputs, line)
    for text in _about_schemas(plan):
        line(text)
    _show_starts(console, plan.starts, line)
    _show_snapshot(console, plan, line)
    _show_changes(console, plan, line, hide)
    for problem in plan.problems:
        line(f"{'✗' if problem.stops else '!'} {problem.reason} ({problem.code})")
        if problem.hint:
            line(f"    → {problem.hint}")
    line(
        "Nothing was changed. What is marked ✗ stops the run or a table."
        if plan.stops()
        else "Nothing was changed. `lakemark run` does this."
    )


def _standing(plan: Plan) -> str:
    batch, path = plan.checkpoint.batch, plan.checkpoint.path
    if batch is None:
        return f"{plan.name}: where it goes on is not known; see below"
    if batch < 0:
        return f"{plan.name}: begins with a new checkpoint in {path}"
    return f"{plan.name}: goes on after batch {batch} of the checkpoint {path}"


def _show_tables(
    console: Console, tables: Sequence[PlannedTable], line: Callable[[str], None]
) -> None:
    line(f"\nTables: {len(tables)}")
    if not tables:
        line("    → the connector captures none that source.tables chooses")
        return
    rows = [
        (
            table.name,
            "with its events" if table.key is None else ", ".join(table.key) or "none",
            table.schema_from,
            table.topic if table.topic_exists else f"{table.topic} (not yet)",
            _number(table.waiting),
            _TARGETS.get(table.target.action, "alter"),
        )
        for table in tables
    ]
    show_table(console, ("table", "key", "types from", "topic", "waiting", "Delta table"), rows)
    for table in tables:
        for text in _about(table):
            line(text)


def _about(table: PlannedTable) -> Iterator[str]:
    target: Target = table.target
    if target.added:
        yield f"{table.name}: columns are added: {', '.join(target.added)}"
    if target.widened:
        widened = ", ".join(target.widened)
        yield f"{table.name}: columns are widened, the table is rewritten: {widened}"
    if target.left_out:
        left = ", ".join(target.left_out)
        yield f"! {table.name}: left out, as its policy has it: {left}"
    if target.dropped:
        gone = ", ".join(target.dropped)
        yield f"{table.name}: columns that the source has no more: {gone}; what is done about one"
        yield "    that no look has noticed yet, its policy says"
    if target.action == "rebuild":
        yield f"{table.name} is made anew from a snapshot: {target.reason} ({target.code})"
    if target.action == "stop":
        yield f"✗ {table.name}: {target.reason} ({target.code})"
        if target.hint:
            yield f"    → {target.hint}"
    if table.state in {"paused", "errored"}:
        yield f"! {table.name} is {table.state}: see `lakemark status`"


def _show_topics(which: str, topics: Sequence[PlannedTopic], line: Callable[[str], None]) -> None:
    made = [f"{t.name} ({_number(t.partitions)})" for t in topics if t.action == "create"]
    kept = sum(topic.action == "keep" for topic in topics)
    line(f"\n{which}: {kept} kept; created, with partitions: {', '.join(made) or 'none'}")
    for topic in topics:
        if topic.action == "stop":
            line(f"✗ {topic.reason}")
            line(f"    → {topic.hint}")


def _about_schemas(plan: Plan) -> Iterator[str]:
    for registry in plan.registries:
        yield f"\nSchemas of the records that are read are in the registry {registry}"

    def place(subject: PlannedSubject) -> tuple[str, str]:
        return subject.registry, subject.strategy

    for (registry, strategy), group in groupby(sorted(plan.subjects, key=place), key=place):
        subjects = list(group)
        kept = sum(subject.action == "keep" for subject in subjects)
        made = [subject.name for subject in subjects if subject.action == "create"]
        named = f"Subjects of output topics in the registry {registry}, by {strategy}"
        if subjects[0].name is None:
            yield f"\n{named}: as each record is called"
        else:
            yield f"\n{named}: {kept} kept; created: {', '.join(filter(None, made)) or 'none'}"


def _show_starts(console: Console, starts: Sequence[Start], line: Callable[[str], None]) -> None:
    waiting = sum(start.waiting for start in starts)
    line(f"\nRecords that wait in change topics: {waiting:,}")
    rows = []
    for topic, group in groupby(starts, key=lambda start: start.topic):
        places = list(group)
        rows.append(
            (
                topic,
                " ".join(f"{place.partition}:{place.offset}" for place in places),
                ", ".join(dict.fromkeys(place.basis for place in places)),
                _number(sum(place.waiting for place in places)),
            )
        )
    if rows:
        show_table(console, ("topic", "partition:offset", "from", "waiting"), rows)


def _show_snapshot(console: Console, plan: Plan, line: Callable[[str], None]) -> None:
    if plan.snapshot is None:
        line("\nSnapshots: none without the section database")
        return
    scans = plan.snapshot.tables
    rows, chunks = sum(s.rows for s in scans if not s.refused), sum(s.chunks for s in scans)
    line(
        f"\nA snapshot of all tables would read about {rows:,} rows in {chunks:,} chunks of at most"
        f" {plan.snapshot.chunk_rows:,} rows, {plan.snapshot.parallelism} at once, in this order:"
    )
    if scans:
        shown = [
            (s.table, _number(s.rows), _number(s.chunks), f"refused: {s.refused}" * bool(s.refused))
            for s in scans
        ]
        show_table(console, ("table", "rows", "chunks", ""), shown)


def _show_changes(console: Console, plan: Plan, line: Callable[[str], None], hide: Hide) -> None:
    if plan.compared == "nothing":
        line("\nSettings: never ran yet, so there is nothing to compare them with")
        return
    line(f"\nSettings changed against {_COMPARED[plan.compared]}: {len(plan.changes)}")
    if plan.changes:
        rows = [
            tuple(map(hide, (c.setting, c.before or "not set", c.now or "not set", c.takes.value)))
            for c in plan.changes
        ]
        show_table(console, ("setting", "before", "now", "takes"), rows)
    for change in plan.changes:
        if change.note:
            line(f"{change.setting}: {change.note}")
    line("Secrets are not compared: a changed one takes a restart.")


def _number(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"
