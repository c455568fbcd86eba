"""The look of a row's story: a line for each thing, and what lake and database have."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from rich.console import Console

from lakemark.cli import presentation
from lakemark.cli.presentation import show_line, show_table
from lakemark.model import positions
from lakemark.ops.trace.facts_rows import NEITHER, SAME, UNKNOWN
from lakemark.ops.trace.trace import RowStory
from lakemark.ops.trace.traced import (
    Fate,
    Told,
    Traced,
    TracedChunk,
    TracedRecord,
    TracedSweep,
    TracedWindow,
)

_OPS: Final = {"c": "insert", "u": "update", "d": "delete", "r": "read", "t": "truncate", "": "-"}
_AGREED: Final = {
    SAME: "lake and database agree",
    NEITHER: "neither lake nor database has the row",
    "missing": "the database has the row, the lake has not",
    "extra": "the lake has the row, the database has not",
    "differing": "lake and database differ",
    "duplicate": "the lake has the row more than once",
}


def is_good(story: RowStory) -> bool:
    """Say whether nothing is wrong with the row, or what is wrong is on its way to be right."""
    return story.agreement.kind in {SAME, NEITHER, UNKNOWN} or story.on_the_way


@dataclass(frozen=True, slots=True)
class _Look:
    """The look of the lines: what all of them would say alike, none says.

    Attributes:
        topic: that all records are of; empty if there are several.
        one_key: whether all are of one key.
    """

    topic: str
    one_key: bool

    @classmethod
    def of(cls, story: RowStory) -> "_Look":
        topics = {one.what.topic for one in story.told if isinstance(one.what, TracedRecord)}
        return cls(topics.pop() if len(topics) == 1 else "", len(story.keys) == 1)

    def line(self, one: Told) -> tuple[str, ...]:
        """Return the columns of a line."""
        what = one.what
        return _when(what), self.what(what), self.where(what), _place(what), self.fate(one)

    def what(self, what: Traced) -> str:
        """Return what it is, and of which key."""
        if isinstance(what, TracedSweep):
            return "sweep"
        of = f" of {_text(what.key)}" if what.key and not self.one_key else ""
        if isinstance(what, TracedChunk):
            return f"{'row' if what.is_row else 'no row'} in a chunk{of}"
        if what.bad:
            return f"record{of}"
        if what.step is None and not what.op:
            return f"tombstone{of}"
        word = _OPS.get(what.op, what.op)
        if not what.other_key:
            return f"{word}{of}"
        way = "to" if what.op == "d" else "from"
        return f"{word}{of}, moved {way} {_text(what.other_key)}"

    def where(self, what: Traced) -> str:
        """Return where it stands."""
        if isinstance(what, TracedSweep):
            return what.run
        if isinstance(what, TracedChunk):
            return f"{what.run} {what.chunk} #{what.attempt}"
        topic = "" if what.topic == self.topic else f"{what.topic} "
        return f"{topic}{what.partition}:{what.offset}"

    def fate(self, one: Told) -> str:
        """Return what became of it."""
        what, made, by = one.what, one.made, one.by
        other = "" if by is None else f" {self.where(by)}"
        batch = "" if made is None or made.batch < 0 else f" in batch {made.batch}"
        if made is not None and made.step not in {"", "stream"}:
            batch += f" ({made.step})"
        known = batch
        if made is not None and made.version is not None:
            known += f", version {made.version}"
        bad = what.bad if isinstance(what, TracedRecord) else ""
        letter = f"dead letter {one.letter}" if one.letter else "its dead letter is kept no more"
        texts = {
            Fate.APPLIED: f"applied{known or ', commit not known'}",
            Fate.SUPERSEDED: f"superseded{known} by{other}",
            Fate.OLDER: f"older than the row{f' of{other}' if other else ''}{known}",
            Fate.BEFORE_TRUNCATE: f"before the {_cut(by)}{other}{known}",
            Fate.RESENT: f"sent again: dropped{batch}",
            Fate.DEAD_LETTER: f"{bad}: {letter}",
            Fate.WAITING: "waits to be applied",
            Fate.LEFT_OUT: f"left out: read{batch}, and no commit has it",
            Fate.LOST: f"lost to the event{other}{known}",
            Fate.FILLS: f"lost to the event{other}, fills what that lacks{known}",
            Fate.VOID: f"void: {what.void if isinstance(what, TracedChunk) else ''}",
            Fate.COMPARED: "read to be compared",
            Fate.NONE: "nothing to be done",
            Fate.UNKNOWN: "not known: what would tell is not kept any more",
        }
        return f"{texts[one.fate]}{' ← the row of now' if one.is_now else ''}"


def show(console: Console, story: RowStory, *, with_values: bool) -> None:
    """Print the story."""
    look = _Look.of(story)
    others = ", ".join(sorted(_text(key) for key in story.keys - {story.key}))
    had = f", and {others}, which its row had or has" if others else ""
    show_line(console, f"{story.table} {_text(story.key)}{had}")
    if look.topic:
        show_line(console, f"records of {look.topic} as partition:offset")
    if story.later:
        show_line(console, f"as of version {story.at}; {story.later} things came later")
    if story.told:
        header = ["time", "what", "where", "position", "what became of it"]
        show_table(console, header, [look.line(one) for one in story.told])
    else:
        show_line(console, "no record of it was found")
    if with_values:
        _show_values(console, story, look)
    _show_rows(console, story)
    for note in story.notes:
        show_line(console, f"! {note}")
    count = f"{story.read:,} record{'s' * (story.read != 1)}"
    spans = len(story.spans)
    show_line(console, f"{count} of {spans} partition{'s' * (spans != 1)} read")


def _show_values(console: Console, story: RowStory, look: _Look) -> None:
    for one in story.told:
        if not isinstance(one.what, TracedSweep) and one.what.image:
            show_line(console, f"    {look.where(one.what)}  {_json(one.what.image)}")
    for side, row in (("lake", story.lake.row), ("database", story.database)):
        show_line(console, f"    {side}  {'no row' if row is None else _json(row)}")


def _show_rows(console: Console, story: RowStory) -> None:
    lake = story.lake
    if lake.version < 0:
        show_line(console, "lake: there is no table")
    elif lake.row is None:
        show_line(console, f"lake, version {lake.version}: no row")
    else:
        marked = "" if lake.is_alive else ", marked as deleted"
        at = _position(lake.position)
        show_line(console, f"lake, version {lake.version}: op {lake.cdc.get('op')} at {at}{marked}")
    agreed = story.agreement
    if agreed.kind == UNKNOWN:
        show_line(console, f"whether lake and database agree is not known: {agreed.reason}")
        return
    columns = f": {', '.join(agreed.columns)}" if agreed.columns else ""
    show_line(console, f"{_AGREED[agreed.kind]}{columns}")
    if is_good(story) and story.on_the_way and agreed.kind not in {SAME, NEITHER}:
        show_line(console, "    newer events are on their way")
    elif not is_good(story):
        show_line(
            console,
            "    no event of it waits in Kafka: one that the connector has not sent yet may be on "
            "its way; else something beside the log has changed the row",
        )
        key = shlex.quote(msgspec.json.encode(story.texts).decode())
        command = f"lakemark verify {shlex.quote(story.table)} --key {key}"
        show_line(console, f"    → {command} decides that, and --repair mends it")


def _when(what: Traced) -> str:
    if isinstance(what, TracedRecord):
        return _moment(what.source_ts // 1000)
    return _moment(what.read_ms if isinstance(what, TracedChunk) else what.ts_ms)


def _moment(ms: int) -> str:
    if not ms:
        return "-"
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}.{ms % 1000:03}"


def _place(what: Traced) -> str:
    if isinstance(what, TracedChunk):
        return f"{_window(what.lo)} to {_window(what.hi)}"
    named = what.transaction if isinstance(what, TracedRecord) else ""
    return f"{_position(what.position)}{f' {named}' if named else ''}"


def _window(one: TracedWindow | None) -> str:
    return "not known" if one is None or not one.position else _position(one.position)


def _position(position: bytes) -> str:
    """Return the place as the source block has it, an LSN as PostgreSQL's functions write it."""
    if not position or position == positions.LOWEST or not positions.is_one(position):
        return "-"
    fields = positions.to_source(position, {})
    if "lsn" in fields:
        lsn = int(fields["lsn"])
        return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
    if "file" in fields:
        return f"{fields['file']}:{fields['pos']}"
    return position.hex()


def _cut(by: Traced | None) -> str:
    return "sweep" if isinstance(by, TracedSweep) else "truncate"


def _text(key: bytes) -> str:
    return key.decode("utf-8", "replace")


def _json(row: Mapping[str, Any]) -> str:
    return msgspec.json.encode(row, enc_hook=str).decode()


# -- JSON -----------------------------------------------------------------------------------------


def show_json(story: RowStory, *, with_values: bool) -> None:
    """Print the story as one object."""
    lake, agreed = story.lake, story.agreement
    told: dict[str, Any] = {
        "table": story.table,
        "key": _text(story.key),
        "keys": sorted(map(_text, story.keys)),
        "at": story.at,
        "story": [_told(one, with_values=with_values) for one in story.told],
        "later": story.later,
        "lake": {
            "version": lake.version,
            "there": lake.row is not None,
            "deleted": lake.row is not None and not lake.is_alive,
            "copies": lake.copies,
            "cdc": {name: _plain(value) for name, value in lake.cdc.items()},
            **({"row": _values(lake.row)} if with_values else {}),
        },
        "database": {
            "there": None if agreed.kind == UNKNOWN and story.database is None
            else story.database is not None,
            **({"row": _values(story.database)} if with_values else {}),
        },
        "agreement": agreed.kind,
        "columns": list(agreed.columns),
        "reason": agreed.reason,
        "on_the_way": story.on_the_way,
        "read": {
            "records": story.read,
            "partitions": [
                {
                    "topic": span.topic,
                    "partition": span.partition,
                    "first": span.first,
                    "end": span.end,
                    "held": span.held,
                }
                for span in story.spans
            ],
        },
        "notes": story.notes,
    }  # fmt: skip
    presentation.show_json(told)


def _told(one: Told, *, with_values: bool) -> dict[str, Any]:
    made = one.made
    found = _of(one.what, with_values=with_values)
    found |= {
        "fate": one.fate.value,
        "batch": made.batch if made and made.batch >= 0 else None,
        "step": made.step if made else None,
        "version": made.version if made else None,
        "committed_ms": made.ts_ms if made and made.ts_ms else None,
        "by": None if one.by is None else _of(one.by, with_values=False),
        "is_now": one.is_now,
    }
    return found | ({"dead_letter": one.letter} if one.letter else {})


def _of(what: Traced, *, with_values: bool) -> dict[str, Any]:
    if isinstance(what, TracedSweep):
        return {"kind": "sweep", "run": what.run, "ts_ms": what.ts_ms} | _at(what.position)
    image = {"row": _values(what.image)} if with_values and what.image else {}
    if isinstance(what, TracedChunk):
        return {
            "kind": "chunk",
            "key": _text(what.key),
            "run": what.run,
            "chunk": what.chunk,
            "attempt": what.attempt,
            "read_ms": what.read_ms,
            "found": what.is_row,
            "verify": what.verify,
            "void": what.void,
            "lo": _of_window(what.lo),
            "hi": _of_window(what.hi),
            **image,
        }
    return {
        "kind": "truncate" if what.is_truncate else "record",
        "key": _text(what.key),
        "topic": what.topic,
        "partition": what.partition,
        "offset": what.offset,
        "op": what.op,
        "transaction": what.transaction,
        "source_ts_us": what.source_ts,
        "snapshot": what.snapshot,
        "other_key": _text(what.other_key),
        "bad": what.bad,
        "detail": what.detail,
        **_at(what.position),
        **image,
    }


def _of_window(one: TracedWindow | None) -> dict[str, Any] | None:
    return None if one is None else {"window": one.id, **_at(one.position)}


def _at(position: bytes) -> dict[str, Any]:
    return {"position": position.hex(), "place": _position(position)}


def _values(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if row is None else {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))
