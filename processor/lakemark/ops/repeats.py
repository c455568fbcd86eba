"""Warnings and errors that repeat: some of a kind, then one a minute with how many were left out.

A fault that repeats thousands of times a second would fill the disk and say nothing new. Lines are
of one kind when they have the same logger, level, event and table and differ only in numbers and
traces: so a line about another table, or with another reason, is never left out for that.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TextIO

AT_ONCE: Final = 10
"""So many of a kind are written before any is left out."""

EVERY_S: Final = 60.0
"""After that, one in so many seconds."""

_SWEEP_S: Final = 5.0
_TEXTS: Final = 100  # of one event and table at once; more of them count as one kind
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|\d+")
_VARYING: Final = frozenset({"event", "exception", "level", "stack", "table", "timestamp"})


class LineKind(NamedTuple):
    """The common parts of lines that repeat each other; `text` is without its numbers."""

    logger: str
    level: int
    event: str
    table: str
    text: str


@dataclass(slots=True)
class _Seen:
    """A kind's count of lines that may still be written, at a time, and of lines left out.

    Attributes:
        at: when `left` was brought up to date, in seconds.
        left: lines that may be written at once.
        out: lines left out since the last one that was written.
        out_at: when the last of these came, in seconds.
    """

    left: float = AT_ONCE
    at: float = 0.0
    out: int = 0
    out_at: float = 0.0


class Repeats:
    """Decides which lines are written.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[LineKind, _Seen] = {}
        self._texts: dict[LineKind, set[str]] = {}
        self._swept = clock()

    def left_out(self, kind: LineKind) -> int | None:
        """Decide about a line.

        Returns:
            how many were left out before it; None if it is to be left out itself.
        """
        kind, now = self._bounded(kind), self._clock()
        seen = self._seen.setdefault(kind, _Seen(at=now))
        seen.left = min(AT_ONCE, seen.left + (now - seen.at) / EVERY_S)
        seen.at = now
        if seen.left < 1:
            seen.out, seen.out_at = seen.out + 1, now
            return None
        seen.left -= 1
        out, seen.out = seen.out, 0
        return out

    def over(self) -> Iterator[tuple[LineKind, int]]:
        """Yield kinds with lines left out and none since, with the number; forget past kinds."""
        now = self._clock()
        if now - self._swept < _SWEEP_S:
            return
        self._swept = now
        for kind, seen in list(self._seen.items()):
            if seen.out and now - seen.out_at >= EVERY_S:
                yield kind, seen.out
                seen.out = 0
            if not seen.out and now - seen.at >= EVERY_S * AT_ONCE:  # as if it had never been
                del self._seen[kind]
                self._texts.get(kind._replace(text=""), set()).discard(kind.text)

    def _bounded(self, kind: LineKind) -> LineKind:
        rest = kind._replace(text="")
        texts = self._texts.setdefault(rest, set())
        if kind.text in texts or len(texts) < _TEXTS:
            texts.add(kind.text)
            return kind
        return rest


class Handler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream, warnings and errors by `Repeats`."""

    def __init__(self, stream: TextIO, repeats: Repeats | None = None) -> None:
        super().__init__(stream)
        self._repeats = repeats or Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it as left out."""
        if record.levelno >= logging.WARNING:
            for kind, count in self._repeats.over():
                super().emit(_summary(kind, count))
            count_before = self._repeats.left_out(_kind(record))
            if count_before is None:
                return
            if count_before:
                _say(record, count_before)
        super().emit(record)


def _kind(record: logging.LogRecord) -> LineKind:
    if not isinstance(record.msg, dict):
        return LineKind(record.name, record.levelno, "", "", _NUMBER.sub("", record.getMessage()))
    fields: dict[str, Any] = record.msg
    texts = (f"{name}={value}" for name, value in fields.items() if name not in _VARYING)
    return LineKind(
        record.name,
        record.levelno,
        str(fields.get("event")),
        str(fields.get("table", "")),
        _NUMBER.sub("", " ".join(texts)),
    )


def _say(record: logging.LogRecord, count: int) -> None:
    if isinstance(record.msg, dict):
        record.msg["left_out"] = count
    else:
        record.left_out = count


def _summary(kind: LineKind, count: int) -> logging.LogRecord:
    """Return a line for lines that were left out and will not be followed by another one."""
    event = kind.event or kind.text.partition("\n")[0]
    said = {"msg": "log.left_out", "of": event, "lines": count}
    if kind.table:
        said["table"] = kind.table
    level = logging.getLevelName(kind.level)
    return logging.makeLogRecord(
        said | {"name": kind.logger, "levelno": kind.level, "levelname": level}
    )
