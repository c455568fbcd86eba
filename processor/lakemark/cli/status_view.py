"""The look of `lakemark status`: once, again and again, or as JSON."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from lakemark.cli.presentation import (
    Hide,
    as_commands,
    drawn_table,
    show_json,
    show_line,
    show_table,
)
from lakemark.cli.snapshot_view import numbers
from lakemark.errors import LakemarkError
from lakemark.model.findings import named, without
from lakemark.ops.overview import Overview
from lakemark.ops.status import (
    DEGRADED,
    DROPPED,
    PAUSED,
    ConnectorNow,
    Lag,
    ProofNow,
    RunNow,
    ScanNow,
    Status,
    TableNow,
    as_told,
)
from lakemark.ops.terminal import shown
from lakemark.snapshot.run_tracker import ENDED, Scan

Look = Callable[[], Overview]

HEADER: Final = (
    *("table", "state", "behind", "unread", "events", "events/s", "rows", "dead letters"),
    *("last commit", "newest change", "proved", "engine"),
)
CHANGES: Final = 5  # of the catalog
DONE: Final = {
    "nothing": "nothing to do",
    "fill": "older rows get the values",
    "read-again": "snapshotted by itself",
    "rebuild": "rebuilt by itself",
    "stop": "the table stops until it is mended",
    "dropped": "its Delta table stays as it is",
}
_DAY_MS: Final = 86_400_000
_UNITS: Final = (("d", 86_400), ("h", 3600), ("m", 60))
RESNAPSHOT: Final = "with `database` set lakemark takes a snapshot of it by itself; else take one"
ENDS: Final = "dates and times before year 1 or after 9999 are the first or last one there is"
UNLIKE: Final = {
    "missing": "missing in the lake",
    "extra": "only in the lake",
    "differing": "different",
    "duplicate": "there twice",
    "left": "not compared",
}
MEND: Final = (
    "`lakemark verify TABLE` shows which rows, and mends them with --repair; verify.repair: true"
    " lets that be done by itself"
)
UNMENDED: Final = (
    "a key that is there twice takes `lakemark table rebuild TABLE`, more rows than are compared a"
    " snapshot"
)
DISAGREES: Final = (
    "events are kept as their records say, rows of snapshots as the database does; one of them is"
    " wrong unless the connector lags behind a change: compare the schema in the registry with the"
    " table. A column of another name: column.propagate.source.type=.* in the connector"
)
HIDDEN_NULLS: Final = (
    "value.converter.ignore.default.for.nullables=true of Confluent's converter or"
    " value.converter.replace.null.with.default=false of JSON's keeps it NULL; with another"
    " converter drop the default. Then take a snapshot"
)
REREADS: Final = (
    "with `database` set lakemark reads them by itself, a table at most once a minute; their keys "
    "are in `lakemark status --output json`"
)


@dataclass(frozen=True, slots=True)
class _Screen:
    """The text above the table, its rows, the text below; no text holds a secret."""

    head: list[str]
    rows: list[tuple[str, ...]]
    tail: list[str]


def show(console: Console, seen: Overview, *, topic: str, as_json: bool, hide: Hide) -> None:
    """The state, once.

    Args:
        console: where to.
        seen: the state.
        topic: the progress topic, for a pipeline that never ran.
        as_json: for programs: as `/v1/status`, with `reread_keys` per table, `asked`,
            `unreadable`, and without a pipeline before the first start.
        hide: takes secrets out.
    """
    if as_json:
        show_json(document(seen))
        return
    screen = _screen(seen, topic, hide)
    _lines(console, screen.head)
    if screen.rows:
        show_table(console, HEADER, screen.rows)
    _lines(console, screen.tail)


def watch(
    console: Console, look: Look, seconds: float, *, topic: str, as_json: bool, hide: Hide
) -> None:
    """The state, again and again until Ctrl-C; the first look's error is the command's.

    Later ones that pass by themselves stand below what was seen last. Where nothing can be drawn
    over, each look follows the one before; as JSON, one line each.

    Raises:
        LakemarkError: the first look failed, or nothing will mend a later one.
    """
    seen, error = look(), None
    drawn = console.is_terminal and not as_json
    with Live(console=console, auto_refresh=False) if drawn else nullcontext() as live:
        while True:
            if as_json:
                _json_line(seen, error, hide)
            elif live is not None:
                live.update(_drawn(seen, error, topic, hide), refresh=True)
            else:
                show(console, seen, topic=topic, as_json=False, hide=hide)
                _lines(console, _of_error(error, hide))
                _lines(console, [""])
            time.sleep(seconds)
            try:
                seen, error = look(), None
            except LakemarkError as failure:
                if not failure.retried:
                    raise
                error = failure


def document(seen: Overview) -> dict[str, Any]:
    """The state for programs."""
    found = as_told(seen.status)
    for table in found["tables"]:
        table["reread_keys"] = seen.reread_keys.get(table["name"], [])
    if not seen.began:
        found["pipeline"] = None
    return {**found, "asked": seen.asked, "unreadable": list(seen.unreadable)}


def _json_line(seen: Overview, error: LakemarkError | None, hide: Hide) -> None:
    found = document(seen)
    if error is not None:
        found["error"] = {"code": error.code, "reason": hide(error.message), "hint": error.hint}
    show_json(found, indent=None)
    sys.stdout.flush()


def _drawn(seen: Overview, error: LakemarkError | None, topic: str, hide: Hide) -> RenderableType:
    screen = _screen(seen, topic, hide)
    below = [*screen.tail, *_of_error(error, hide), "Ctrl-C ends this; the pipeline goes on."]
    head, tail = (
        [Text(shown(as_commands(line))) for line in lines] for lines in (screen.head, below)
    )
    return Group(*head, drawn_table(HEADER, screen.rows), *tail)


def _of_error(error: LakemarkError | None, hide: Hide) -> list[str]:
    if error is None:
        return []
    lines = [f"not up to date: {hide(error.message)} ({error.code}; it is tried again)"]
    return [*lines, f"    → {hide(error.hint)}"] if error.hint else lines


def _lines(console: Console, lines: list[str]) -> None:
    for line in lines:
        show_line(console, line)


def _screen(seen: Overview, topic: str, hide: Hide) -> _Screen:
    if not seen.began and not seen.unreadable:
        text = f"no state yet: {topic} is empty. Start the pipeline with `lakemark run`."
        return _Screen([text], [], [])
    now = seen.status
    head = [f"pipeline: {_word(seen, topic)}", *_of_source(now), *_unseen(now), *_whole(seen)]
    head += [*_given_up(now), *_of_cuts(now)]
    rows = [(*_row(table, now.now_ms),) for table in now.tables]
    rows += [(name, "unreadable", *[""] * (len(HEADER) - 2)) for name in seen.unreadable]
    tail = [*_of_pipeline(seen)]
    tail += _of_tables(now.tables)
    tail += _of_catalog(now)
    tail += [line for run in _newest(now.snapshots) for line in _of_run(run)]
    tail += [*_of_windows(now)]
    return _Screen([*map(hide, head)], sorted(rows), [*map(hide, tail)])


def _word(seen: Overview, topic: str) -> str:
    now = seen.status.pipeline
    if not seen.began:
        return "unknown"
    if seen.asked == "pipeline":
        return now.state
    return f"{now.state}, said {_age(now.since_ms, seen.status.now_ms)} in {topic}"


def _of_source(now: Status) -> Iterator[str]:
    """Yield why no changes come to Kafka: all below is out of date then."""
    for side in now.sides():
        if side.state == "away":
            yield f"connector {side.name}: {side.reason} ({side.code}; its tables wait)"
            yield f"    → {side.hint or 'it is retried'}"
        for problem in side.source.problems if side.source else ():
            since = _age(problem.since_ms, now.now_ms)
            yield f"{_of('source', side)}: {problem.reason} ({problem.code}, seen first {since})"
            yield f"    → {problem.hint}"


def _given_up(now: Status) -> Iterator[str]:
    """Yield what is not promised of tables, see `SourceNow`."""
    for side in now.sides():
        if side.source is not None and side.source.unpromised:
            yield f"{_of('source', side)}: {side.source.unpromised}"


def _of_cuts(now: Status) -> Iterator[str]:
    """Yield how old the newest cuts are, with the tables that they do not have."""
    for one in now.cuts:
        which = f"cut of {one.connector}" if one.connector else "cut"
        left = f", without {named(list(one.without))}" if one.without else ""
        behind = f"{_span(one.behind_s)} before the newest change"
        yield f"{which}: {behind}, transaction {one.transaction}{left}"


def _of(what: str, side: ConnectorNow) -> str:
    return f"{what} {side.name}" if side.name else what


def _unseen(now: Status) -> Iterator[str]:
    """That nobody sees what the database changes without an event."""
    for side in now.sides():
        if side.catalog is not None and side.catalog.reason:
            last = side.catalog.looked_ms
            since = "never seen" if last is None else f"seen last {_age(last, now.now_ms)}"
            yield f"{_of('catalog', side)}: {since}: {side.catalog.reason} (it is retried)"


def _of_catalog(now: Status) -> Iterator[str]:
    """The newest changes of the last day that no event told, and what was done."""
    every = (change for side in now.sides() if side.catalog for change in side.catalog.changes)
    for change in sorted(every, key=lambda one: -one.at_ms)[:CHANGES]:
        if now.now_ms - change.at_ms <= _DAY_MS:
            said = f"{change.reason} ({change.kind}; {DONE[change.action]})"
            yield f"catalog, {_age(change.at_ms, now.now_ms)}: {said}"
            if change.action == "stop" and change.hint:
                yield f"    → {change.hint}"


def _whole(seen: Overview) -> Iterator[str]:
    behind, sides = seen.status.lag, seen.status.sides()
    source = sides[0].source if len(sides) == 1 else None
    if behind.records is not None:
        line = f"behind the source: {_behind(behind)}, {behind.records:,} records unread"
        if source is not None and source.proven_ms is not None:
            line += f"; all sent as of {_age(source.proven_ms, seen.status.now_ms)}"
        yield line
        if source is not None and not source.watched:
            yield "    → nothing tells whether the connector runs: set source.connect or database"
    elif seen.status.tables:
        yield "behind the source: not known: the checkpoint or the brokers did not say"
    if (slow := seen.status.slowest_step) is not None:
        share = f"{slow.share * 100:.0f} %"
        yield f"slowest step: {slow.step}, {share} of the newest batches' time"


def _row(table: TableNow, now_ms: int) -> Iterator[str]:
    yield from (table.name, table.state.replace("_", " "), _behind(table.lag))
    yield "?" if table.lag.records is None else f"{table.lag.records:,}"
    yield f"{table.events:,}"
    yield "?" if table.events_per_second is None else f"{table.events_per_second:,.1f}"
    yield from (f"{number:,}" for number in (table.rows, table.dead_letters))
    yield from (_age(table.committed_ms, now_ms), _age(table.newest_source_ms, now_ms))
    yield from (_proved(table.proof, now_ms), table.engine)


def _proved(proof: ProofNow | None, now_ms: int) -> str:
    """Return since when a table is proved; empty where nobody has asked for that."""
    if proof is None:
        return ""
    return "never" if proof.proved_ms is None else _age(proof.proved_ms, now_ms)


def _behind(behind: Lag) -> str:
    return "?" if behind.seconds is None else _span(behind.seconds)


def _span(seconds: float) -> str:
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def _age(ms: int | None, now_ms: int) -> str:
    return "" if ms is None else f"{_span(max(0.0, (now_ms - ms) / 1000))} ago"


def _of_pipeline(seen: Overview) -> Iterator[str]:
    now = seen.status.pipeline
    if seen.began and now.reason:
        again = "it is retried" if now.state == DEGRADED else "it is not retried"
        yield f"pipeline: {now.reason} ({now.code or 'no code'}; {again})"
        if now.hint:
            yield f"    → {now.hint}"


def _of_tables(tables: tuple[TableNow, ...]) -> Iterator[str]:
    """Yield what a reader has to know or to do; what several tables have in common is said once."""
    groups: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for table in tables:
        for text, hint in _notes(table):
            same = without(table.name, text), without(table.name, hint)
            groups.setdefault(same, []).append((table.name, text, hint))
    for same, found in groups.items():
        text, hint = same if len(found) > 1 else found[0][1:]
        yield f"{named([name for name, *_ in found])}: {text}"
        if hint:
            yield f"    → {hint}"


def _notes(table: TableNow) -> Iterator[tuple[str, str]]:
    """Yield what is to be known of one table, and what to do."""
    if table.reason:
        again = "it is retried" if table.retried else "it is not retried"
        stands = table.state in {PAUSED, DROPPED}
        said = table.code if stands else f"{table.code or 'no code'}; {again}"
        yield f"{table.reason} ({said})", table.hint
    if table.resnapshot:
        yield f"may differ from the source: {table.resnapshot}", RESNAPSHOT
    if table.rereads or table.more_rereads:
        many = "more than " if table.more_rereads else ""
        rows = "row" if table.rereads == 1 else "rows"
        counted = f"{many}{table.rereads} {rows}" if table.rereads else rows
        yield f"{counted} to be read again from the source", REREADS
    if table.proof is not None:
        yield from _of_proof(table.proof)
    if table.disagrees:
        yield f"its records and the database do not agree: {table.disagrees}", DISAGREES
    if table.hidden_nulls:
        names = ", ".join(table.hidden_nulls)
        yield f"NULL arrives as the default in {names}{_maybe(table.maybe_null)}", HIDDEN_NULLS
    if table.inexact:
        values = "value has" if table.inexact == 1 else "values have"
        yield f"{table.inexact:,} {values} come that the lake cannot hold: {ENDS}", ""


def _of_proof(proof: ProofNow) -> Iterator[tuple[str, str]]:
    """Yield what the newest verify run has found, or why there is none."""
    if proof.found:
        kinds = ", ".join(f"{number:,} {UNLIKE[kind]}" for kind, number in proof.found.items())
        if not proof.unlike:
            yield f"verified: {kinds}: all mended", ""
        elif proof.mended:
            yield f"verified: {kinds}: not all could be mended", UNMENDED
        else:
            yield f"verified: {kinds}", MEND
    if proof.code:
        again = "it is tried again by itself" if proof.expected else "it is not tried again"
        yield f"not verified: {proof.reason} ({proof.code}; {again})", proof.hint
    elif proof.waits and proof.proved_ms is None:
        yield f"not verified yet: {proof.waits}", ""


def _maybe(rows: int) -> str:
    """Say of how many rows that is in doubt."""
    return (
        f": {rows:,} {'row' if rows == 1 else 'rows'} came with it that may be NULL" if rows else ""
    )


def _newest(runs: tuple[RunNow, ...]) -> list[RunNow]:
    """Those that go on, else the newest."""
    going = [run for run in runs if run.state not in ENDED]
    return going or sorted(runs, key=lambda run: run.updated_ms)[-1:]


def _of_run(run: RunNow) -> Iterator[str]:
    done = sum(scan.percent for scan in run.tables) / max(1, len(run.tables))
    yield f"snapshot {run.id}: {run.state}, {done:.0f} %"
    for scan in run.tables:
        counts = Scan(
            scan.status,
            scan.chunks,
            scan.total_chunks,
            scan.rows,
            scan.total_rows,
            scan.rows_per_second,
            scan.eta_seconds,
            scan.inexact,
            scan.found,
        )
        yield f"  {scan.table}: {numbers(counts)}{_flying(scan)}"
    if run.reason:
        yield f"  {run.reason} ({run.code or 'no code'})"


def _flying(scan: ScanNow) -> str:
    """The chunks in flight by their state, else what is done with the table as a whole."""
    if not scan.in_flight:
        return f"  {scan.stage}" if scan.stage not in {"", "reading"} else ""
    states = Counter(chunk.state for chunk in scan.in_flight)
    return "  in flight: " + ", ".join(f"{count} {state}" for state, count in states.items())


def _of_windows(now: Status) -> Iterator[str]:
    for side in now.sides():
        if side.windows is not None:
            since = side.windows.opened_ms
            opened = f", the newest opened {_age(since, now.now_ms)}" if since is not None else ""
            yield f"{_of('windows', side)} in use: {side.windows.in_use}{opened}"
            if side.windows.waits_for:
                yield f"    chunks wait for the end of {side.windows.waits_for}"
        if side.snapshot_delay is not None:
            delay = side.snapshot_delay
            yield f"{_of('snapshots', side)} wait: {delay.reason} ({delay.code}; it is retried)"
            yield f"    → {delay.hint}"
