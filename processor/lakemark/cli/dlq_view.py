"""The look of dead letters: tables and lines for people, JSON for programs.

`show_letters` shows no cell value; `show_letter` shows the record, as it is asked to. What a record
holds is never passed to a terminal as it is: control characters are escaped.
"""

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.console import Console
from rich.filesize import decimal

from lakemark.cli import snapshot_view
from lakemark.cli.presentation import show_json, show_line, show_lines, show_table
from lakemark.ops.dead_letters import Count, Letter
from lakemark.ops.terminal import shown

if TYPE_CHECKING:
    from lakemark.ops.replays import Refused, Replay  # a slow import
    from lakemark.snapshot.run_tracker import FollowedRun

_MOST_SHOWN: Final = 64 * 1024  # characters: more than anybody reads on a screen
_HEX_SHOWN: Final = 4096  # bytes
_LINE: Final = 16  # bytes of a line of a dump
_TEXT: Final = 0.8  # share of readable bytes from which bytes are shown as text


def show_letters(
    console: Console,
    letters: Sequence[Letter],
    counts: Sequence[Count],
    *,
    limit: int,
    as_json: bool,
) -> None:
    """The newest letters, at most `limit`, the newest last; then how many there are of each kind.

    Args:
        console: where to.
        letters: all that were asked for, the oldest first.
        counts: their summary.
        limit: how many are listed.
        as_json: as one JSON object instead.
    """
    listed = letters[max(0, len(letters) - limit) :]
    if as_json:
        show_json(
            {
                "letters": [_listed(letter) for letter in listed],
                "summary": [
                    {"table": c.table, "reason": c.reason, "letters": c.letters} for c in counts
                ],
            }
        )
        return
    if not letters:
        show_line(console, "no dead letters")
        return
    header = ("id (topic-partition-offset)", "written", "table", "reason", "size")
    rows = [(o.id, _written(o), o.table, o.reason, decimal(o.size)) for o in listed]
    show_table(console, header, rows)
    if len(listed) < len(letters):
        show_line(console, f"… and {len(letters) - len(listed):,} older ones: --limit shows more")
    show_line(console, "")
    for count in counts:
        show_line(console, f"{count.table or 'no table'}  {count.reason}: {count.letters:,}")
    show_line(console, "    → lakemark dlq show ID; lakemark dlq replay ID, --table TABLE or --all")


def show_letter(console: Console, letter: Letter, *, as_json: bool) -> None:
    """One letter: where it is from, why, and the record's key and value."""
    if as_json:
        show_json(_listed(letter) | {"key": _data(letter.key), "value": _data(letter.value)})
        return
    for name, text in (
        ("id", letter.id),
        ("reason", letter.reason),
        ("detail", letter.detail),
        ("table", letter.table),
        ("topic", letter.topic),
        ("partition", str(letter.partition)),
        ("offset", str(letter.offset)),
        ("written", _written(letter)),
    ):
        show_line(console, f"{name:10} {text}".rstrip())
    for name, data in (("key", letter.key), ("value", letter.value)):
        show_line(console, "")
        show_line(console, f"{name} ({'null' if data is None else decimal(len(data))}):")
        if data:
            show_lines(console, readable(data))


def readable(data: bytes) -> str:
    """Bytes as a person can read them: JSON indented, text with escapes, else a hex dump."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        if sum(0x20 <= byte < 0x7F for byte in data) < _TEXT * len(data):  # noqa: PLR2004 (ASCII)
            return _dump(data)
        return _cut(shown(data.decode(errors="backslashreplace"), lines=True))
    try:
        # Formatted, not read: every digit and every member stays as it is.
        return _cut(shown(msgspec.json.format(text, indent=2), lines=True))
    except (ValueError, RecursionError):
        pass
    if sum(map(str.isprintable, text)) < _TEXT * len(text):
        return _dump(data)
    return _cut(shown(text, lines=True))


def show_plan(console: Console, replay: "Replay", *, as_json: bool) -> None:
    """Print what a replay would do."""
    if as_json:
        show_replay(replay, [])
        return
    if not replay.rereadings and not replay.refused:
        show_line(console, "no dead letters: nothing to replay")
    for one in replay.rereadings:
        rows, letters = _many(len(one.keys), "row"), _many(len(one.letters), "dead letter")
        signals = _many(sum(1 for _ in one.signals()), "signal")
        show_line(console, f"{one.table}: {rows} would be read again for {letters}, by {signals}")
    show_refused(console, replay.refused)


def show_refused(console: Console, refused: Sequence["Refused"]) -> None:
    """Letters that cannot be replayed, and what to do instead; those alike together."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for one in refused:
        groups.setdefault((one.code, one.table, one.reason, one.hint), []).append(one.letter)
    for (code, _, reason, hint), letters in groups.items():
        named = ", ".join(letters[:5]) + (f" and {len(letters) - 5:,} more" * (len(letters) > 5))  # noqa: PLR2004 (as shown)
        show_line(console, f"{named}: cannot be replayed: {reason} ({code})")
        show_line(console, f"    → {hint}")


def show_run(console: Console, table: str, rows: int, run: "FollowedRun") -> None:
    """Print what has become of one signal of a replay."""
    show_line(
        console, f"{table}: {_many(rows, 'row')} {'is' if rows == 1 else 'are'} to be read again"
    )
    snapshot_view.show_outcome(console, run, is_run=True, as_json=False)


def show_replay(replay: "Replay", runs: Sequence[tuple[str, "FollowedRun"]]) -> None:
    """A replay as JSON; keys, which are cell values, are only counted."""
    data = {
        "tables": [
            {"table": one.table, "rows": len(one.keys), "letters": one.letters}
            for one in replay.rereadings
        ],
        "refused": [
            {"id": o.letter, "table": o.table, "code": o.code, "reason": o.reason, "hint": o.hint}
            for o in replay.refused
        ],
        "runs": [{"table": table, "id": run.id, "state": run.state} for table, run in runs],
    }
    show_json(data)


def _listed(letter: Letter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "written": letter.written.isoformat() if letter.written else None,
        "table": letter.table,
        "reason": letter.reason,
        "detail": letter.detail,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "size": letter.size,
    }


def _data(data: bytes | None) -> dict[str, str] | None:
    """Text as text, anything else as base64."""
    if data is None:
        return None
    try:
        return {"encoding": "utf-8", "data": data.decode()}
    except UnicodeDecodeError:
        return {"encoding": "base64", "data": base64.b64encode(data).decode()}


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _written(letter: Letter) -> str:
    if letter.written is None:
        return ""
    return letter.written.strftime("%Y-%m-%d %H:%M:%S UTC")


def _dump(data: bytes) -> str:
    lines = []
    for at in range(0, min(len(data), _HEX_SHOWN), _LINE):
        part = data[at : at + _LINE]
        text = "".join(chr(b) if 0x20 <= b < 0x7F else "." for b in part)  # noqa: PLR2004 (ASCII)
        lines.append(f"{at:08x}  {part.hex(' '):{3 * _LINE}} {text}")
    if len(data) > _HEX_SHOWN:
        lines.append(f"… and {len(data) - _HEX_SHOWN:,} more bytes: --raw writes them all")
    return "\n".join(lines)


def _cut(text: str) -> str:
    if len(text) <= _MOST_SHOWN:
        return text
    return f"{text[:_MOST_SHOWN]}\n… and {len(text) - _MOST_SHOWN:,} more characters: --raw"
